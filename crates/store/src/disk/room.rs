//! Room on the disk: taken before anything is written, made by evicting what was used longest ago.
//!
//! Who needs room takes it in memory at once; the files that had to go for it are *doomed*, and
//! who has taken the room unlinks them before writing. So the folder never takes more than
//! `max_size`, and no loop waits for a file to be unlinked.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::error::StoreError;
use super::id::{EntryId, TemporaryName};
use super::index::Removed;
use super::store::DiskStore;

/// By how much the room of an entry of unknown length grows, at most.
const STEP_MAX: u64 = 1 << 20;

/// By which part of all room it grows at most.
const STEP_PART: u64 = 64;

/// A file that is to be unlinked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Doomed {
    /// An entry that the index does not know any more; it stays if it has been replaced.
    Entry(EntryId),
    /// What a fill has left.
    Temporary(TemporaryName),
}

#[derive(Debug)]
pub(super) struct DiskBudget {
    /// Blocks of all entries, and what fills have taken.
    used: AtomicU64,
    /// Blocks that may be used.
    max: AtomicU64,
    doomed: Mutex<VecDeque<Doomed>>,
    /// Files that are doomed or being unlinked.
    doomed_count: AtomicUsize,
    /// Held by who unlinks.
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

    /// Has a file unlinked by the next who may wait for the disk.
    pub(super) fn doom(&self, file: Doomed) {
        self.doomed_count.fetch_add(1, Ordering::AcqRel);
        lock(&self.doomed).push_back(file);
    }
}

impl DiskStore {
    /// For how long a file room is taken that is `length` bytes long and grows.
    pub(super) fn room_ahead(&self, length: u64) -> u64 {
        let part = self.room.max.load(Ordering::Relaxed) / STEP_PART;
        let step = part.saturating_mul(self.block_size()).min(STEP_MAX);
        length.checked_next_multiple_of(step).unwrap_or(length)
    }

    /// Takes room for so many blocks.
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

    /// Makes room for `needed` bytes beside those that are to stay free on the file system.
    pub(super) fn keep_free(&self, needed: u64) -> Result<(), StoreError> {
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
            if !self.unlink_doomed() {
                return Err(StoreError::NoRoom);
            }
            free = folder.free().map_err(failed)?;
        }
        Ok(())
    }

    /// Takes the entry used longest ago out of the index, if this process owns the folder. Whether
    /// there was one.
    pub(super) fn evict(&self) -> bool {
        if !self.is_owner() {
            return false;
        }
        let Some(removed) = self.index.evict() else {
            return false;
        };
        self.let_go(removed, &self.counters.evicted);
        true
    }

    /// Gives back what an entry took that is no longer in the index, has its file unlinked by the
    /// process that owns the folder, and counts it.
    pub(super) fn let_go(&self, removed: Removed, counter: &AtomicU64) {
        if let Some(blocks) = removed.blocks {
            self.room.subtract(blocks);
            self.forget(&removed.id);
            if self.is_owner() && self.folder.is_some() {
                self.room.doom(Doomed::Entry(removed.id));
            }
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits for the disk: unlinks what is doomed, also what another thread is about to. Whether
    /// there was anything.
    pub(super) fn unlink_doomed(&self) -> bool {
        let Some(folder) = &self.folder else {
            return false;
        };
        if self.room.doomed_count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let _unlinking = lock(&self.room.unlinking);
        while let Some(file) = self.next_doomed() {
            match file {
                Doomed::Entry(id) => {
                    let _file = self.lock_file(&id);
                    // What has been stored or found since is another entry's.
                    if self.index.of(&id).expected(&id).is_none() {
                        let _ = folder.unlink_entry(&id);
                    }
                }
                Doomed::Temporary(name) => {
                    let _ = folder.unlink_temporary(name);
                    lock(&self.temporaries).remove(&name);
                }
            }
            self.room.doomed_count.fetch_sub(1, Ordering::AcqRel);
        }
        true
    }

    fn next_doomed(&self) -> Option<Doomed> {
        lock(&self.room.doomed).pop_front()
    }
}

/// Blocks that a fill has taken and not yet given to an entry.
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

    /// Takes more, so that a file of so many bytes fits.
    pub(super) fn grow_to(&mut self, length: u64) -> Result<(), StoreError> {
        let blocks = self.store.blocks(length);
        if blocks > self.blocks {
            self.store.reserve(blocks - self.blocks)?;
            self.blocks = blocks;
        }
        Ok(())
    }

    /// Gives the blocks that the entry takes to it, and the rest back.
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
