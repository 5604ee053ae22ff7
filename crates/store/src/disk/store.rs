//! The store itself: its settings, state, lookups and claims, and the bookkeeping of its entries.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use base::hash::Set;
use rustix::io::Errno;

use super::clock::Millis;
use super::fill::Fill;
use super::filler::Filler;
use super::folder::{CacheFolder, DiskError};
use super::id::{EntryId, Levels, TemporaryName};
use super::index::{Index, Removed, StoredEntry};
use super::memory::Memory;
use super::order::FetchOrder;
use super::purge::Purges;
use super::room::DiskBudget;

/// Number of the locks that serialise changes to an entry's file; each serves many ids.
const FILE_LOCKS: usize = 64;

/// The settings of a disk store.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder. It is created if it is missing; its parent must exist.
    pub path: PathBuf,
    /// The levels of subfolders.
    pub levels: Levels,
    /// Limit of the index's memory, in bytes: [`ENTRY_SIZE`](super::ENTRY_SIZE) per entry.
    pub index_size: usize,
    /// Limit of the disk space of all files together, in bytes.
    pub max_size: Option<u64>,
    /// Bytes that must stay free on the file system; 0 for no such limit.
    pub min_free: u64,
    /// How long an unused entry is kept.
    pub inactive: Millis,
}

/// Objects in the files of one folder.
#[derive(Debug)]
pub struct DiskStore {
    /// Identifies the store within the process; never reused.
    pub(super) number: u64,
    /// `None` if all entries are in memory.
    pub(super) folder: Option<CacheFolder>,
    /// Set once memory for entries has been configured, even if it was disabled later.
    pub(super) memory: OnceLock<Memory>,
    pub(super) index: Index,
    pub(super) room: DiskBudget,
    pub(super) min_free: AtomicU64,
    pub(super) inactive: AtomicU64,
    /// Whether the index lists every entry of the folder.
    pub(super) is_scanned: AtomicBool,
    pub(super) file_locks: [Mutex<()>; FILE_LOCKS],
    /// The temporary files that this process is writing.
    pub(super) temporaries: Mutex<Set<TemporaryName>>,
    pub(super) purges: Purges,
    /// Decides which of several concurrent fetches of an entry is stored.
    pub(super) order: FetchOrder,
    /// Whether this process owns the folder.
    pub(super) is_owner: AtomicBool,
    /// Whether the saved index is marked as complete.
    pub(super) is_saved_whole: AtomicBool,
    /// Held while the index is saved.
    pub(super) saving: Mutex<()>,
    pub(super) counters: DiskCounters,
}

#[derive(Debug, Default)]
pub(super) struct DiskCounters {
    pub(super) stored: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) gone: AtomicU64,
    pub(super) wrong: AtomicU64,
}

/// The counters of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries in the index.
    pub entries: u64,
    /// Disk space of the entries and of running fills, in bytes.
    pub bytes: u64,
    /// Fetches in progress that have claimed their entries.
    pub fills: u64,
    /// Entries that have been stored.
    pub stored: u64,
    /// Entries that have been evicted.
    pub evicted: u64,
    /// Entries that were removed because they had not been used for long.
    pub expired: u64,
    /// Entries whose file was unlinked by another program.
    pub gone: u64,
    /// Entries whose file was not valid.
    pub wrong: u64,
}

/// Whether an entry is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The index lists the entry. Its file may have been removed by another program.
    Present,
    /// The folder has not been scanned yet. Opening the entry gives the answer.
    Unknown,
    /// The entry is not stored.
    Absent,
}

/// The result of a lookup.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// Whether the entry is stored.
    pub presence: Presence,
    /// The number of requests for the entry, including this one; 0 if the index has no record of
    /// it.
    pub uses: u32,
    /// The marker set by [`DiskStore::mark`], if it has not expired.
    pub marker: Option<u16>,
    /// The running fetch that has claimed the entry. There may also be one while the entry is
    /// present.
    pub fill: Option<Arc<Fill>>,
}

/// The result of a claim.
#[derive(Debug)]
pub enum Claim {
    /// The caller has the claim and must fetch the entry.
    Won(Box<Filler>),
    /// Another request has the claim and is fetching the entry.
    Taken(Arc<Fill>),
}

impl DiskStore {
    /// Opens a store in a folder. Blocks on the disk.
    ///
    /// # Errors
    /// Those of `mkdir()` and `open()`.
    pub fn open(settings: &Settings) -> io::Result<Arc<DiskStore>> {
        let folder = CacheFolder::open(&settings.path, settings.levels)?;
        Ok(DiskStore::with(folder, settings))
    }

    /// Opens a store in a folder that is already open.
    ///
    /// # Errors
    /// Those of `open()`.
    pub fn in_folder(folder: OwnedFd, settings: &Settings) -> io::Result<Arc<DiskStore>> {
        let folder = CacheFolder::from_descriptor(folder, settings.levels)?;
        Ok(DiskStore::with(folder, settings))
    }

    pub(super) fn with(folder: CacheFolder, settings: &Settings) -> Arc<DiskStore> {
        let store = DiskStore::of(Some(folder), settings.index_size);
        store.set_bounds(settings.max_size, settings.min_free, settings.inactive);
        Arc::new(store)
    }

    /// A store with no limit but that of the index: the caller sets the others by
    /// [`DiskStore::set_bounds`].
    pub(super) fn of(folder: Option<CacheFolder>, index_size: usize) -> DiskStore {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        DiskStore {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            folder,
            memory: OnceLock::new(),
            index: Index::new(index_size),
            room: DiskBudget::new(u64::MAX),
            min_free: AtomicU64::new(0),
            inactive: AtomicU64::new(0),
            is_scanned: AtomicBool::new(false),
            file_locks: [const { Mutex::new(()) }; FILE_LOCKS],
            temporaries: Mutex::default(),
            purges: Purges::default(),
            order: FetchOrder::default(),
            is_owner: AtomicBool::new(false),
            is_saved_whole: AtomicBool::new(false),
            saving: Mutex::default(),
            counters: DiskCounters::default(),
        }
    }

    /// The number of the store, unique within the process and never reused.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The folder, or an error if the store has none.
    pub(super) fn folder(&self) -> Result<&CacheFolder, DiskError> {
        let missing = DiskError::of("openat()", Errno::NOENT);
        self.folder.as_ref().ok_or(missing)
    }

    /// The block size, in bytes; space is accounted for in blocks.
    pub(super) fn block_size(&self) -> u64 {
        self.folder.as_ref().map_or(1, CacheFolder::block_size)
    }

    /// The number of blocks that a file of this length occupies; 0 in a store without a folder.
    pub(super) fn blocks(&self, length: u64) -> u64 {
        self.folder
            .as_ref()
            .map_or(0, |folder| folder.blocks(length))
    }

    /// Changes the limits. The next calls of [`DiskStore::maintain`] remove entries above them.
    pub fn set_bounds(&self, max_size: Option<u64>, min_free: u64, inactive: Millis) {
        let blocks = max_size.map_or(u64::MAX / 2, |size| size / self.block_size());
        self.room.set_max(blocks);
        self.min_free.store(min_free, Ordering::Relaxed);
        self.inactive.store(inactive, Ordering::Relaxed);
    }

    /// Looks up an id in the index, without access to the disk. Counts as a use.
    #[must_use]
    pub fn lookup(&self, id: &EntryId, now: Millis) -> Lookup {
        let known = self.index.lock_shard(id).lookup(id, now);
        let presence = if known.has_file {
            Presence::Present
        } else if self.is_scanned() {
            Presence::Absent
        } else {
            Presence::Unknown
        };
        Lookup {
            presence,
            uses: known.uses,
            marker: known.marker,
            fill: known.fill,
        }
    }

    /// Whether the index lists the entry. Does not count as a use.
    #[must_use]
    pub fn has(&self, id: &EntryId) -> bool {
        self.index.lock_shard(id).known_entry(id).is_some()
    }

    /// Counts a use of an id that need not be stored. Returns the number of uses.
    pub fn note_use(&self, id: &EntryId, now: Millis) -> u32 {
        let (uses, removed) = self.index.lock_shard(id).note_use(id, now);
        self.discard_evicted(removed);
        uses
    }

    /// Attaches a number of the caller to an id, until the given time or until the id is stored.
    pub fn mark(&self, id: &EntryId, marker: u16, until: Millis, now: Millis) {
        let removed = self.index.lock_shard(id).mark(id, marker, until, now);
        self.discard_evicted(removed);
    }

    /// Claims the right to fetch an entry, which one request has at a time. The claim of a fetch
    /// that has made no progress for `age` is taken over.
    pub fn claim(self: &Arc<Self>, id: &EntryId, age: Millis, now: Millis) -> Claim {
        self.claim_unless(id, now, |fill| !fill.is_overdue(age, now))
    }

    /// Claims the right to fetch an entry again. Takes over the claim of a fetch that has ended,
    /// even if that fetch's body is still being written, because the new response will be newer.
    pub fn claim_newer(self: &Arc<Self>, id: &EntryId, now: Millis) -> Claim {
        self.claim_unless(id, now, |fill| !fill.is_over())
    }

    /// Claims the entry, unless there is a fetch for which `holds` returns true.
    pub(super) fn claim_unless(
        self: &Arc<Self>,
        id: &EntryId,
        now: Millis,
        holds: impl FnOnce(&Fill) -> bool,
    ) -> Claim {
        let mut shard = self.index.lock_shard(id);
        if let Some(fill) = shard.fill(id)
            && holds(fill)
        {
            return Claim::Taken(Arc::clone(fill));
        }
        let fill = Arc::new(Fill::new(now));
        shard.begin_fill(id, &fill);
        drop(shard);
        Claim::Won(Box::new(Filler::new(self, fill, id, true)))
    }

    /// Fetches an entry without a claim, concurrently with other fetches. The fetch whose head is
    /// received last is stored.
    #[must_use]
    pub fn filler(self: &Arc<Self>, id: &EntryId) -> Filler {
        // Only the holder of a claim needs a start time.
        Filler::new(self, Arc::new(Fill::new(0)), id, false)
    }

    /// Whether all entries are in memory, so that no call blocks on a disk.
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        self.folder.is_none()
    }

    /// The counters of the store.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (mut entries, mut evicted) = (self.index.files() as u64, of(&self.counters.evicted));
        if self.folder.is_none() {
            // The index notices evictions from memory only at the next use of the entry.
            let memory = self.memory_counts();
            entries = memory.entries.min(entries);
            evicted += memory.evicted;
        }
        Counts {
            entries,
            bytes: self.room.used().saturating_mul(self.block_size()),
            fills: self.index.fills() as u64,
            stored: of(&self.counters.stored),
            evicted,
            expired: of(&self.counters.expired),
            gone: of(&self.counters.gone),
            wrong: of(&self.counters.wrong),
        }
    }

    /// Whether the index lists every entry of the folder.
    #[must_use]
    pub fn is_scanned(&self) -> bool {
        self.is_scanned.load(Ordering::Relaxed)
    }

    /// The lock under which an entry's file is replaced, changed or unlinked. Blocks.
    pub(super) fn lock_file(&self, id: &EntryId) -> MutexGuard<'_, ()> {
        let number = base::hash::of(&id.0) as usize % FILE_LOCKS;
        self.file_locks[number]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock_temporaries(&self) -> MutexGuard<'_, Set<TemporaryName>> {
        self.temporaries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a record that the index has evicted to make room.
    pub(super) fn discard_evicted(&self, removed: Option<Removed>) {
        if let Some(removed) = removed {
            self.discard_removed(removed, &self.counters.evicted);
        }
    }

    /// Records a stored entry, whose blocks have already been accounted for.
    pub(super) fn note_stored(&self, id: &EntryId, stored: StoredEntry, now: Millis) {
        let (replaced, removed) = self.index.lock_shard(id).insert(id, stored, now);
        self.room.subtract(replaced.unwrap_or(0));
        self.discard_evicted(removed);
        self.counters.stored.fetch_add(1, Ordering::Relaxed);
    }

    /// Records an entry whose file has been found, unless the index has another revision than the
    /// caller expects. Returns the new revision.
    pub(super) fn note_found(
        &self,
        id: &EntryId,
        stored: StoredEntry,
        revision: Option<u32>,
        now: Millis,
    ) -> Option<u32> {
        let mut shard = self.index.lock_shard(id);
        if shard.known_entry(id).map(|expected| expected.revision) != revision {
            return None;
        }
        let blocks = stored.blocks;
        let (replaced, removed) = shard.insert(id, stored, now);
        let revision = shard.known_entry(id).map(|expected| expected.revision);
        drop(shard);
        self.room.add(blocks);
        self.room.subtract(replaced.unwrap_or(0));
        self.discard_evicted(removed);
        revision
    }

    /// Unlinks an entry whose file lock is held. The index removes it even if unlinking fails, so
    /// that it is not served again. Returns whether there was a file.
    pub(super) fn try_remove_file(&self, id: &EntryId) -> Result<bool, Errno> {
        let unlinked = self.folder.as_ref().map(|folder| folder.unlink_entry(id));
        let removed = self.index.lock_shard(id).remove(id);
        let was_in_memory = self.forget(id);
        if let Some(blocks) = removed.and_then(|removed| removed.blocks) {
            self.room.subtract(blocks);
        }
        match unlinked {
            Some(Ok(())) => Ok(true),
            Some(Err(Errno::NOENT | Errno::NOTDIR)) => Ok(false),
            Some(Err(error)) => Err(error),
            None => Ok(was_in_memory && removed.is_some()),
        }
    }

    /// Like [`DiskStore::try_remove_file`], but ignores the result.
    pub(super) fn remove_file(&self, id: &EntryId) {
        let _ = self.try_remove_file(id);
    }

    /// Whether this process owns the folder ([`DiskStore::try_acquire_ownership`]).
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.is_owner.load(Ordering::Relaxed)
    }

    pub(super) fn forget_temporary(&self, name: TemporaryName) {
        self.lock_temporaries().remove(&name);
    }
}
