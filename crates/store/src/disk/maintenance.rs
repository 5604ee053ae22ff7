//! What is done now and then, beside service: entries that were not used for long go, bounds that
//! have become smaller are kept, files that are doomed are unlinked.

use std::io;
use std::sync::atomic::Ordering;

use super::clock::Millis;
use super::folder::CacheFolder;
use super::store::DiskStore;

/// What a step of maintenance has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Entries that are gone.
    pub removed: usize,
    /// Whether there is more to do.
    pub is_more: bool,
}

/// What has become of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is where it was.
    There,
    /// It was removed, and a new one is there.
    Replaced,
}

impl DiskStore {
    /// Whether this process owns index and eviction of the folder from now on: one does at a time.
    /// It no longer does when it ends, however that comes.
    ///
    /// Who does not own it serves and stores as well, but lets no entry go to make room.
    pub fn try_own(&self) -> bool {
        let is_owner = self.folder.as_ref().is_none_or(CacheFolder::try_lock);
        self.is_owner.store(is_owner, Ordering::Relaxed);
        is_owner
    }

    /// Whether the folder is there. One that has been removed while it is used is made anew, or
    /// another one in its place opened, waiting for the disk: then nothing of the old one is known
    /// any more, and the new one is to be owned and looked through.
    ///
    /// # Errors
    /// The folder is not there, and cannot be opened or made.
    pub fn keep_folder(&self) -> io::Result<Kept> {
        let Some(folder) = &self.folder else {
            return Ok(Kept::There);
        };
        if folder.is_linked()? {
            return Ok(Kept::There);
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
        Ok(Kept::Replaced)
    }

    /// Removes up to so many entries that must go, waiting for the disk.
    pub fn maintain(&self, entries_max: usize, now: Millis) -> Maintained {
        let mut removed = 0;
        while removed < entries_max && (self.expire(now) || self.keep_max()) {
            removed += 1;
        }
        self.unlink_doomed();
        if removed < entries_max {
            // A file system that cannot tell has no bound to keep.
            let _ = self.keep_free(0);
        }
        Maintained {
            removed,
            is_more: removed == entries_max,
        }
    }

    /// Lets go an entry that was not used for long. Whether there was one.
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
        self.let_go(removed, &self.counters.expired);
        true
    }

    /// Lets go an entry where more is used than may be. Whether there was one.
    fn keep_max(&self) -> bool {
        self.room.is_over() && self.evict()
    }
}
