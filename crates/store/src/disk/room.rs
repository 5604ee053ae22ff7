//! The disk space of a store: reserved before a write, and made by evicting the least recently used
//! entries.
//!
//! A reservation evicts entries from the index only, without blocking. Their files are queued as
//! *doomed*, and the writer unlinks them before it writes. Thus the folder never exceeds
//! `max_size`, and no event loop waits for a file to be unlinked.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::error::StoreError;
use super::id::{EntryId, TemporaryName};
use super::index::Removed;
use super::store::DiskStore;

/// Maximum step by which the reservation of an entry of unknown length grows, in bytes.
const STEP_MAX: u64 = 1 << 20;

/// The step is at most the limit of the store divided by this number.
const STEP_PART: u64 = 64;

/// A file queued for unlinking.
#[derive(Clone, Copy, Debug)]
pub(super) enum PendingUnlink {
    /// The file of an entry that was removed from the index. It stays if the entry has been stored
    /// again.
    Entry(EntryId),
    /// The temporary file of an abandoned fill.
    Temporary(TemporaryName),
}

#[derive(Debug)]
pub(super) struct DiskBudget {
    /// Blocks of all entries and reservations.
    used: AtomicU64,
    /// Limit of the blocks.
    max: AtomicU64,
    doomed: Mutex<VecDeque<PendingUnlink>>,
    /// Number of files in the queue or being unlinked.
    doomed_count: AtomicUsize,
    /// Held while files are unlinked.
    unlinking: Mutex<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DiskBudget {
    pub(super) fn new(max: u64) -> DiskBudget {
        DiskBudget {
            used: AtomicU64::new(0),
            max: AtomicU64::new(max),
            doomed: Mutex::default(),
            doomed_count: AtomicUsize::new(0),
            unlinking: Mutex::default(),
        }
    }

    pub(super) fn set_max(&self, max: u64) {
        self.max.store(max, Ordering::Relaxed);
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn is_over(&self) -> bool {
        self.used() > self.max.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, blocks: u64) {
        self.used.fetch_add(blocks, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, blocks: u64) {
        self.used.fetch_sub(blocks, Ordering::Relaxed);
    }

    /// Queues a file for unlinking by the next thread that may block on the disk.
    pub(super) fn schedule_unlink(&self, file: PendingUnlink) {
        self.doomed_count.fetch_add(1, Ordering::AcqRel);
        lock(&self.doomed).push_back(file);
    }
}

impl DiskStore {
    /// The length for which room is reserved when a file of unknown final length is `length` bytes
    /// long.
    pub(super) fn room_ahead(&self, length: u64) -> u64 {
        let part = self.room.max.load(Ordering::Relaxed) / STEP_PART;
        let step = part.saturating_mul(self.block_size()).min(STEP_MAX);
        length.checked_next_multiple_of(step).unwrap_or(length)
    }

    /// Reserves blocks, and evicts entries if necessary.
    pub(super) fn reserve(&self, blocks: u64) -> Result<(), StoreError> {
        let room = &self.room;
        let max = room.max.load(Ordering::Relaxed);
        if blocks > max {
            return Err(StoreError::NoRoom);
        }
        let mut used = room.used.fetch_add(blocks, Ordering::AcqRel) + blocks;
        while used > max {
            if !self.evict() {
                room.subtract(blocks);
                return Err(StoreError::NoRoom);
            }
            used = room.used();
        }
        Ok(())
    }

    /// Frees disk space until `needed` bytes are available in addition to `min_free`.
    pub(super) fn ensure_free_space(&self, needed: u64) -> Result<(), StoreError> {
        let min_free = self.min_free.load(Ordering::Relaxed);
        let Some(folder) = self.folder.as_ref().filter(|_| min_free > 0) else {
            return Ok(());
        };
        let wanted = min_free.saturating_add(needed);
        let failed = |error: Errno| StoreError::io("fstatvfs()", error);
        let mut free = folder.free().map_err(failed)?;
        while free < wanted {
            let missing = self.blocks(wanted - free);
            let goal = self.room.used().saturating_sub(missing);
            while self.room.used() > goal && self.evict() {}
            if !self.unlink_pending() {
                return Err(StoreError::NoRoom);
            }
            free = folder.free().map_err(failed)?;
        }
        Ok(())
    }

    /// Evicts the least recently used entry from the index, if this process owns the folder.
    /// Returns whether there was one.
    pub(super) fn evict(&self) -> bool {
        if !self.is_owner() {
            return false;
        }
        let Some(removed) = self.index.evict() else {
            return false;
        };
        self.discard_removed(removed, &self.counters.evicted);
        true
    }

    /// Releases the blocks and the memory of an entry that was removed from the index, and counts
    /// it in `counter`. The owner of the folder also queues its file for unlinking.
    pub(super) fn discard_removed(&self, removed: Removed, counter: &AtomicU64) {
        if let Some(blocks) = removed.blocks {
            self.room.subtract(blocks);
            self.forget(&removed.id);
            if self.is_owner() && self.folder.is_some() {
                self.room.schedule_unlink(PendingUnlink::Entry(removed.id));
            }
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Unlinks the queued files, and waits for those that another thread is unlinking. Blocks on
    /// the disk. Returns whether there were any.
    pub(super) fn unlink_pending(&self) -> bool {
        let Some(folder) = &self.folder else {
            return false;
        };
        if self.room.doomed_count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let _unlinking = lock(&self.room.unlinking);
        while let Some(file) = self.next_doomed() {
            match file {
                PendingUnlink::Entry(id) => {
                    let _file = self.lock_file(&id);
                    // If the index lists the id again, the file belongs to a newer entry.
                    if self.index.lock_shard(&id).known_entry(&id).is_none() {
                        let _ = folder.unlink_entry(&id);
                    }
                }
                PendingUnlink::Temporary(name) => {
                    let _ = folder.unlink_temporary(name);
                    lock(&self.temporaries).remove(&name);
                }
            }
            self.room.doomed_count.fetch_sub(1, Ordering::AcqRel);
        }
        true
    }

    fn next_doomed(&self) -> Option<PendingUnlink> {
        lock(&self.room.doomed).pop_front()
    }
}

/// Blocks that a fill has reserved and that do not belong to an entry yet.
#[derive(Debug)]
pub(super) struct Reserved {
    store: Arc<DiskStore>,
    blocks: u64,
}

impl Reserved {
    pub(super) fn none(store: &Arc<DiskStore>) -> Reserved {
        Reserved {
            store: Arc::clone(store),
            blocks: 0,
        }
    }

    /// Extends the reservation for a file of `length` bytes.
    pub(super) fn grow_to(&mut self, length: u64) -> Result<(), StoreError> {
        let blocks = self.store.blocks(length);
        if blocks > self.blocks {
            self.store.reserve(blocks - self.blocks)?;
            self.blocks = blocks;
        }
        Ok(())
    }

    /// Transfers blocks to the entry, and releases the rest.
    pub(super) fn give(mut self, blocks: u64) {
        let taken = std::mem::take(&mut self.blocks);
        self.store.room.subtract(taken);
        self.store.room.add(blocks);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.store.room.subtract(self.blocks);
    }
}
