//! The store itself: what it holds, what is asked of it, and what is noted of its entries.

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
use super::order::Order;
use super::purge::Purges;
use super::room::DiskBudget;

/// Locks of files, by id: who changes what a name stands for holds its lock.
const FILE_LOCKS: usize = 64;

/// What a disk store is made with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder. It is made if it is missing; its parent must be there.
    pub path: PathBuf,
    /// The lengths of the names of subfolders.
    pub levels: Levels,
    /// Bytes that the index may take: [`ENTRY_SIZE`](super::ENTRY_SIZE) an entry.
    pub index_size: usize,
    /// Bytes that the files may take together.
    pub max_size: Option<u64>,
    /// Bytes that are to stay free on the file system; 0 where nothing is asked for.
    pub min_free: u64,
    /// How long an entry stays that is not used.
    pub inactive: Millis,
}

/// Objects in the files of one folder.
#[derive(Debug)]
pub struct DiskStore {
    /// Of all stores of this process no other has it.
    pub(super) number: u64,
    /// Nothing where all entries lie in memory.
    pub(super) folder: Option<CacheFolder>,
    /// Where there is or was memory for entries.
    pub(super) memory: OnceLock<Memory>,
    pub(super) index: Index,
    pub(super) room: DiskBudget,
    pub(super) min_free: AtomicU64,
    pub(super) inactive: AtomicU64,
    /// Whether the index knows every entry of the folder.
    pub(super) is_scanned: AtomicBool,
    pub(super) file_locks: [Mutex<()>; FILE_LOCKS],
    /// The temporary files of this process.
    pub(super) temporaries: Mutex<Set<TemporaryName>>,
    pub(super) purges: Purges,
    pub(super) order: Order,
    /// Whether this process owns the folder.
    pub(super) is_owner: AtomicBool,
    /// Whether the saved index says that it knows all entries.
    pub(super) is_saved_whole: AtomicBool,
    /// Held by who saves the index.
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

/// What a store holds and has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries in the index.
    pub entries: u64,
    /// Bytes that their files and those being filled take.
    pub bytes: u64,
    /// Entries that are being filled.
    pub fills: u64,
    /// Entries that were stored.
    pub stored: u64,
    /// Entries that had to make room.
    pub evicted: u64,
    /// Entries that were not used for long.
    pub expired: u64,
    /// Entries whose file was unlinked by others.
    pub gone: u64,
    /// Entries whose file was not what it should be.
    pub wrong: u64,
}

/// Whether an entry is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The index knows a file of it.
    Present,
    /// The folder has not been looked through yet: opening tells.
    Unknown,
    /// There is no entry of the key.
    Absent,
}

/// What is known of an id.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// Whether it is stored.
    pub presence: Presence,
    /// How often it was asked for, this time included; 0 where nothing is known of it.
    pub uses: u32,
    /// What [`DiskStore::mark`] has left, as long as that holds.
    pub marker: Option<u16>,
    /// The fetch that has been claimed and is under way; also of an entry that is present.
    pub fill: Option<Arc<Fill>>,
}

/// Whether a fetch may be made.
#[derive(Debug)]
pub enum Claim {
    /// It is the caller's to make.
    Won(Box<Filler>),
    /// Another request makes the entry already.
    Taken(Arc<Fill>),
}

impl DiskStore {
    /// Opens a folder, waiting for the disk.
    ///
    /// # Errors
    /// Those of `mkdir()` and `open()`.
    pub fn open(settings: &Settings) -> io::Result<Arc<DiskStore>> {
        let folder = CacheFolder::open(&settings.path, settings.levels)?;
        Ok(DiskStore::with(folder, settings))
    }

    /// Uses a folder that is open.
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
            order: Order::default(),
            is_owner: AtomicBool::new(false),
            is_saved_whole: AtomicBool::new(false),
            saving: Mutex::default(),
            counters: DiskCounters::default(),
        }
    }

    /// Its number: no other store of this process has, or has had, the same.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The folder, for what is only done where there is one.
    pub(super) fn folder(&self) -> Result<&CacheFolder, DiskError> {
        let missing = DiskError::of("openat()", Errno::NOENT);
        self.folder.as_ref().ok_or(missing)
    }

    /// Bytes of a block; room is counted in blocks.
    pub(super) fn block_size(&self) -> u64 {
        self.folder.as_ref().map_or(1, CacheFolder::block_size)
    }

    /// How many blocks an entry of this length takes; in memory none.
    pub(super) fn blocks(&self, length: u64) -> u64 {
        self.folder
            .as_ref()
            .map_or(0, |folder| folder.blocks(length))
    }

    /// Changes the bounds. What is above them goes with the next [`DiskStore::maintain`].
    pub fn set_bounds(&self, max_size: Option<u64>, min_free: u64, inactive: Millis) {
        let blocks = max_size.map_or(u64::MAX / 2, |size| size / self.block_size());
        self.room.set_max(blocks);
        self.min_free.store(min_free, Ordering::Relaxed);
        self.inactive.store(inactive, Ordering::Relaxed);
    }

    /// What is known of an id, without looking at the disk. Counts as a use of it.
    #[must_use]
    pub fn lookup(&self, id: &EntryId, now: Millis) -> Lookup {
        let known = self.index.of(id).lookup(id, now);
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

    /// Whether the index knows a file of an entry; not a use of it.
    #[must_use]
    pub fn has(&self, id: &EntryId) -> bool {
        self.index.of(id).expected(id).is_some()
    }

    /// Counts a use of what may not be stored, and says how many there were.
    pub fn note_use(&self, id: &EntryId, now: Millis) -> u32 {
        let (uses, removed) = self.index.of(id).note_use(id, now);
        self.make_way(removed);
        uses
    }

    /// Has an id carry a number of the caller's until `until`, or until it is stored.
    pub fn mark(&self, id: &EntryId, marker: u16, until: Millis, now: Millis) {
        let removed = self.index.of(id).mark(id, marker, until, now);
        self.make_way(removed);
    }

    /// Asks for the right to fetch an entry, which one has at a time. From one to whom nothing has
    /// come for `age` it is taken over.
    pub fn claim(self: &Arc<Self>, id: &EntryId, age: Millis, now: Millis) -> Claim {
        self.claim_unless(id, now, |fill| !fill.is_overdue(age, now))
    }

    /// The same for one who has asked for it in any case: it is taken over from one to whom all has
    /// come, though that may not be written yet. What comes now is newer.
    pub fn claim_newer(self: &Arc<Self>, id: &EntryId, now: Millis) -> Claim {
        self.claim_unless(id, now, |fill| !fill.is_over())
    }

    /// Claims an entry unless another fetch holds it.
    pub(super) fn claim_unless(
        self: &Arc<Self>,
        id: &EntryId,
        now: Millis,
        holds: impl FnOnce(&Fill) -> bool,
    ) -> Claim {
        let mut shard = self.index.of(id);
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

    /// Fetches an entry whatever others do. Whoever stores last has stored it.
    #[must_use]
    pub fn filler(self: &Arc<Self>, id: &EntryId) -> Filler {
        // No one waits for it, who would ask since when.
        Filler::new(self, Arc::new(Fill::new(0)), id, false)
    }

    /// Whether all entries lie in memory, so that no call waits for a disk.
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        self.folder.is_none()
    }

    /// What the store holds and has counted.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (mut entries, mut evicted) = (self.index.files() as u64, of(&self.counters.evicted));
        if self.folder.is_none() {
            // The index learns of what has made room in memory only when it is asked for.
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

    /// Whether the index knows every entry of the folder.
    #[must_use]
    pub fn is_scanned(&self) -> bool {
        self.is_scanned.load(Ordering::Relaxed)
    }

    /// What a name stands for is changed under this lock, by threads that may wait.
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

    /// Lets go what had to make room in the index.
    pub(super) fn make_way(&self, removed: Option<Removed>) {
        if let Some(removed) = removed {
            self.let_go(removed, &self.counters.evicted);
        }
    }

    /// Notes an entry that has been stored, whose blocks have been taken.
    pub(super) fn note_stored(&self, id: &EntryId, stored: StoredEntry, now: Millis) {
        let (replaced, removed) = self.index.of(id).insert(id, stored, now);
        self.room.subtract(replaced.unwrap_or(0));
        self.make_way(removed);
        self.counters.stored.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes an entry whose file has been found, unless the index has learnt of another file since
    /// it was asked. The revision that it has now.
    pub(super) fn note_found(
        &self,
        id: &EntryId,
        stored: StoredEntry,
        revision: Option<u32>,
        now: Millis,
    ) -> Option<u32> {
        let mut shard = self.index.of(id);
        if shard.expected(id).map(|expected| expected.revision) != revision {
            return None;
        }
        let blocks = stored.blocks;
        let (replaced, removed) = shard.insert(id, stored, now);
        let revision = shard.expected(id).map(|expected| expected.revision);
        drop(shard);
        self.room.add(blocks);
        self.room.subtract(replaced.unwrap_or(0));
        self.make_way(removed);
        revision
    }

    /// Unlinks an entry whose lock is held. The index forgets it even where that fails, so that it
    /// is not served again. Whether there was a file.
    pub(super) fn try_remove_file(&self, id: &EntryId) -> Result<bool, Errno> {
        let unlinked = self.folder.as_ref().map(|folder| folder.unlink_entry(id));
        let removed = self.index.of(id).remove(id);
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

    /// The same where no one asks what came of it.
    pub(super) fn remove_file(&self, id: &EntryId) {
        let _ = self.try_remove_file(id);
    }

    /// Whether this process owns the folder ([`DiskStore::try_own`]).
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.is_owner.load(Ordering::Relaxed)
    }

    pub(super) fn forget_temporary(&self, name: TemporaryName) {
        self.lock_temporaries().remove(&name);
    }
}
