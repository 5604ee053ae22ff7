//! Periodic maintenance: expires entries that have not been used for long, enforces limits that
//! were lowered, and unlinks files that are queued for it.

use std::io;
use std::sync::atomic::Ordering;

use super::clock::Millis;
use super::folder::CacheFolder;
use super::store::DiskStore;

/// The result of a call of [`DiskStore::maintain`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceProgress {
    /// Number of removed entries.
    pub removed: usize,
    /// Whether there may be more to remove.
    pub is_more: bool,
}

/// The result of a check of the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderState {
    /// The folder still exists.
    There,
    /// The folder had been removed. A new one is now open.
    Replaced,
}

impl DiskStore {
    /// Tries to become the owner of the folder, and returns whether this process is its owner now.
    /// There is one owner at a time. Ownership ends with the process.
    ///
    /// A process that is not the owner serves and stores as well, but evicts nothing.
    pub fn try_acquire_ownership(&self) -> bool {
        let is_owner = self.folder.as_ref().is_none_or(CacheFolder::try_lock);
        self.is_owner.store(is_owner, Ordering::Relaxed);
        is_owner
    }

    /// Checks that the folder still exists. If it has been removed, opens or creates the folder
    /// that is now at its path, blocking on the disk. The index is then emptied, and the caller
    /// should try to own and scan the new folder.
    ///
    /// # Errors
    /// The folder has been removed and cannot be opened or created.
    pub fn ensure_folder(&self) -> io::Result<FolderState> {
        let Some(folder) = &self.folder else {
            return Ok(FolderState::There);
        };
        if folder.is_linked()? {
            return Ok(FolderState::There);
        }
        folder.replace()?;
        self.is_owner.store(false, Ordering::Relaxed);
        self.is_scanned.store(false, Ordering::Relaxed);
        for number in 0..self.index.shards() {
            let mut shard = self.index.shard(number);
            for id in shard.ids_of(|_| true) {
                let removed = shard.remove(&id);
                self.room
                    .subtract(removed.and_then(|removed| removed.blocks).unwrap_or(0));
            }
        }
        Ok(FolderState::Replaced)
    }

    /// Removes up to `entries_max` entries that have expired or exceed the limit. Blocks on the
    /// disk.
    pub fn maintain(&self, entries_max: usize, now: Millis) -> MaintenanceProgress {
        let mut removed = 0;
        while removed < entries_max && (self.expire(now) || self.keep_max()) {
            removed += 1;
        }
        self.unlink_pending();
        if removed < entries_max {
            // The error is ignored: if the free space cannot be determined, there is no limit to
            // enforce.
            let _ = self.ensure_free_space(0);
        }
        MaintenanceProgress {
            removed,
            is_more: removed == entries_max,
        }
    }

    /// Removes an entry that has not been used for long. Returns whether there was one.
    fn expire(&self, now: Millis) -> bool {
        let inactive = self.inactive.load(Ordering::Relaxed);
        let Some(before) = now.checked_sub(inactive) else {
            return false;
        };
        let Some((number, used)) = self.index.oldest() else {
            return false;
        };
        if used > before {
            return false;
        }
        let removed = self.index.shard(number).remove_unused(before);
        let Some(removed) = removed else {
            return false;
        };
        self.discard_removed(removed, &self.counters.expired);
        true
    }

    /// Evicts an entry if the limit is exceeded. Returns whether one was evicted.
    fn keep_max(&self) -> bool {
        self.room.is_over() && self.evict()
    }
}
