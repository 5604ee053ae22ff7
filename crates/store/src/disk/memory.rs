//! Entries in memory: copies of files, or all entries of a store without a folder.
//!
//! Memory holds an image of the entry's file, head and body, with the entry's revision in the
//! index. Replacing, purging, evicting or refreshing an entry in this process changes or removes
//! its revision, so that an outdated image is never served. A copy of a file also has the file's
//! identity from before the file was read. Each use compares it with the file's current status,
//! without opening the file. Changes and removals by other processes therefore take effect as soon
//! as they would without the copy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use rustix::fs::Stat;
use rustix::time::ClockId;

use super::clock::Millis;
use super::error::StoreError;
use super::filler::FILL_MEMORY_MAX;
use super::head::{self, EntryTimes, Fault, HEAD_LENGTH_MAX};
use super::id::EntryId;
use super::index::{KnownEntry, StoredEntry, TagHashes};
use super::open::{Miss, OpenEntry};
use super::order::Turn;
use super::purge::Fetch;
use super::store::DiskStore;
use crate::{Cas, Content, Item, Large, ObjectChange, Seconds, Store, Tags, UpdateOutcome, Write};

/// Maximum length of a body in memory, in bytes, whatever the settings say. An entry without a file
/// is in memory while it is being filled, so the limit of filling applies.
pub const MEMORY_ENTRY_MAX: usize = FILL_MEMORY_MAX;

/// How long a file's directory entry is assumed to be in the kernel's cache after the last use, in
/// seconds.
const WARM: Seconds = 10;

/// Minimum age of a file's last change, in nanoseconds, so that a further change would give the
/// file another time stamp. The second value is for file systems that store whole seconds.
const SETTLED: i128 = 100_000_000;
const SETTLED_COARSE: i128 = 2_000_000_000;

/// Limits of the entries in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// Limit of the memory of entries and their tables, in bytes.
    pub limit: usize,
    /// Maximum length of a body, in bytes; at most [`MEMORY_ENTRY_MAX`].
    pub entry_max: usize,
}

/// Counters of the entries in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCounts {
    /// Limit of the memory, in bytes.
    pub limit: u64,
    /// Memory in use, in bytes.
    pub bytes: u64,
    /// Number of entries in memory.
    pub entries: u64,
    /// Hits served from memory.
    pub hits: u64,
    /// Entries that were evicted from memory.
    pub evicted: u64,
}

#[derive(Debug)]
pub(super) struct Memory {
    store: Store,
    entry_max: AtomicUsize,
    hits: AtomicU64,
}

/// The identity of a file's content: a copy is valid while the file has the same identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity([u8; IDENTITY]);

/// Inode, size, modification time and change time.
const IDENTITY: usize = 8 + 8 + 12 + 12;

impl Identity {
    /// The identity of a file. `None` if the file was changed so recently that a further change
    /// might not change its time stamps.
    #[expect(
        clippy::cast_possible_wrap,
        reason = "some platforms have other types here"
    )]
    pub(super) fn settled(stat: &Stat) -> Option<Identity> {
        let now = rustix::time::clock_gettime(ClockId::Realtime);
        let nanoseconds =
            |seconds: i64, part: i64| i128::from(seconds) * 1_000_000_000 + i128::from(part);
        let now = nanoseconds(now.tv_sec, now.tv_nsec);
        let changed = nanoseconds(stat.st_ctime, stat.st_ctime_nsec as i64);
        let is_coarse = stat.st_ctime_nsec == 0;
        let settled = if is_coarse { SETTLED_COARSE } else { SETTLED };
        (now - changed >= settled).then(|| Identity::of(stat))
    }

    pub(super) fn of(stat: &Stat) -> Identity {
        let mut bytes = [0; IDENTITY];
        let parts = [
            &stat.st_ino.to_le_bytes()[..],
            &stat.st_size.to_le_bytes(),
            &stat.st_mtime.to_le_bytes(),
            &(stat.st_mtime_nsec as u32).to_le_bytes(),
            &stat.st_ctime.to_le_bytes(),
            &(stat.st_ctime_nsec as u32).to_le_bytes(),
        ];
        let all = parts.into_iter().flatten();
        bytes
            .iter_mut()
            .zip(all)
            .for_each(|(byte, part)| *byte = *part);
        Identity(bytes)
    }
}

/// An entry found in memory.
struct CachedImage {
    /// The identity of the file; `None` in a store without a folder.
    identity: Option<Identity>,
    file: Bytes,
    /// Whether the entry was used within the last [`WARM`] seconds.
    is_warm: bool,
}

fn seconds(now: Millis) -> Seconds {
    Seconds::try_from(now / 1000).unwrap_or(Seconds::MAX)
}

impl Memory {
    pub(super) fn new(settings: MemorySettings) -> Memory {
        let entry_max = settings.entry_max.min(MEMORY_ENTRY_MAX);
        let store = Store::new(crate::Settings {
            limit: settings.limit,
            value_max: entry_max,
            evicts: true,
        });
        Memory {
            store,
            entry_max: AtomicUsize::new(entry_max),
            hits: AtomicU64::new(0),
        }
    }

    fn set(&self, settings: MemorySettings) {
        let entry_max = settings.entry_max.min(MEMORY_ENTRY_MAX);
        self.entry_max.store(entry_max, Ordering::Relaxed);
        self.store.set_limit(settings.limit);
    }

    /// Maximum length of a body, in bytes.
    pub(super) fn entry_max(&self) -> usize {
        self.entry_max.load(Ordering::Relaxed)
    }

    pub(super) fn counts(&self) -> MemoryCounts {
        let counts = self.store.counts();
        MemoryCounts {
            limit: counts.limit as u64,
            bytes: counts.occupied as u64,
            entries: counts.objects,
            hits: self.hits.load(Ordering::Relaxed),
            evicted: counts.evicted,
        }
    }

    /// The image of an entry, if it has this revision.
    fn get(
        &self,
        id: &EntryId,
        revision: u32,
        is_before_file: bool,
        now: Millis,
    ) -> Option<CachedImage> {
        let at = seconds(now);
        let read = |item: Item<'_>| {
            if item.flags != revision {
                return None;
            }
            let bytes = item.value.lent();
            let bytes = bytes.unwrap_or_else(|| Bytes::copy_from_slice(item.value.bytes()));
            Some((bytes, at.saturating_sub(item.used) <= WARM))
        };
        let Some((mut file, is_warm)) = self.store.get(&id.0, at, read)? else {
            self.remove(id, now);
            return None;
        };
        let identity = if is_before_file {
            let identity = *file.first_chunk()?;
            let _ = file.split_to(IDENTITY);
            Some(Identity(identity))
        } else {
            None
        };
        Some(CachedImage {
            identity,
            file,
            is_warm,
        })
    }

    /// Stores the image of an entry with this revision, in place of a previous one. Returns false
    /// if there is no room.
    pub(super) fn put(&self, id: &EntryId, revision: u32, image: Image, now: Millis) -> bool {
        let small;
        let content = match image {
            Image::Small(bytes) => {
                small = bytes;
                Content::Copied(&small)
            }
            Image::Large(large) => Content::Given(large),
        };
        let write = Write {
            content,
            flags: revision,
            expires: None,
            cas: Cas::Next,
            marks: 0,
            tags: Tags::None,
        };
        let written = |_: Option<Item<'_>>| ObjectChange::Write(write);
        let outcome = self.store.update(&id.0, seconds(now), written);
        matches!(outcome, UpdateOutcome::Stored(_))
    }

    /// Builds the image of a file that consists of these parts.
    pub(super) fn image(&self, id: &EntryId, identity: Option<Identity>, parts: &[Bytes]) -> Image {
        let identity = identity.as_ref().map_or(&[][..], |identity| &identity.0);
        let length = identity.len() + parts.iter().map(Bytes::len).sum::<usize>();
        let parts = parts.iter().map(|part| &part[..]);
        let parts = std::iter::once(identity).chain(parts);
        if length + id.0.len() < self.store.extent_min() {
            let mut small = Vec::with_capacity(length);
            parts.for_each(|part| small.extend_from_slice(part));
            return Image::Small(small);
        }
        let mut large = Large::new(&id.0, length);
        parts.for_each(|part| large.extend(part));
        Image::Large(large)
    }

    fn remove(&self, id: &EntryId, now: Millis) -> bool {
        self.store.remove(&id.0, seconds(now))
    }
}

/// The image of an entry's file, preceded by the file's identity if there is a file.
pub(super) enum Image {
    Small(Vec<u8>),
    Large(Large),
}

impl DiskStore {
    /// Creates a store without a folder, in which all entries are in memory. The index uses
    /// `index_size` bytes in addition to the settings' limit, [`super::ENTRY_SIZE`] per entry.
    #[must_use]
    pub fn in_memory(
        index_size: usize,
        inactive: Millis,
        settings: MemorySettings,
    ) -> Arc<DiskStore> {
        let store = DiskStore::of(None, index_size);
        store.set_bounds(None, 0, inactive);
        store.is_scanned.store(true, Ordering::Relaxed);
        store.is_owner.store(true, Ordering::Relaxed);
        store.set_memory(Some(settings));
        Arc::new(store)
    }

    /// Changes the limits of the entries in memory. `None` disables them.
    ///
    /// Memory above a lowered limit is freed by [`DiskStore::shrink_memory`], and when entries are
    /// added.
    pub fn set_memory(&self, settings: Option<MemorySettings>) {
        match (self.memory.get(), settings) {
            (Some(memory), settings) => {
                let none = MemorySettings {
                    limit: 0,
                    entry_max: 0,
                };
                memory.set(settings.unwrap_or(none));
            }
            (None, Some(settings)) => {
                self.memory.get_or_init(|| Memory::new(settings));
            }
            (None, None) => {}
        }
    }

    /// Frees memory above the limit; may take long. Returns whether there was any.
    pub fn shrink_memory(&self, now: Millis) -> bool {
        let memory = self.memory.get();
        memory.is_some_and(|memory| memory.store.shrink(seconds(now)))
    }

    /// The counters of the entries in memory.
    #[must_use]
    pub fn memory_counts(&self) -> MemoryCounts {
        let memory = self.memory.get();
        memory.map(Memory::counts).unwrap_or_default()
    }

    /// Maximum length of a body that is worth reading entirely, because it will be kept in memory.
    /// `None` if the entry is too long or memory is disabled.
    pub(super) fn kept_max(&self, expected: Option<KnownEntry>) -> Option<u64> {
        let max = self.memory.get()?.entry_max() as u64;
        let blocks = expected.map_or(0, |expected| expected.blocks);
        let length = blocks.saturating_mul(self.block_size());
        (max > 0 && length <= max + HEAD_LENGTH_MAX as u64).then_some(max)
    }

    /// The entry from memory, if its revision and the file's identity still match. Also returns
    /// that identity, if there is a file.
    pub(super) fn recall(
        &self,
        id: &EntryId,
        key: &[u8],
        expected: Option<KnownEntry>,
        now: Millis,
    ) -> Option<(OpenEntry, Option<Identity>)> {
        let memory = self.memory.get()?;
        let revision = expected?.revision;
        let kept = memory.get(id, revision, self.folder.is_some(), now)?;
        if let Some(folder) = &self.folder {
            let found = if kept.is_warm {
                folder.stat_entry(id)
            } else {
                folder.stat_entry_in_memory(id)?
            };
            let identity = found.ok().map(|stat| Identity::of(&stat));
            if identity != kept.identity {
                memory.remove(id, now);
                return None;
            }
        }
        // A mismatch of the key is left to the lookup on the disk, which reports it.
        let parsed = head::parse(&kept.file, key, kept.file.len() as u64).ok()?;
        let start = usize::try_from(parsed.body.start).ok()?;
        let first = kept.file.slice(start.min(kept.file.len())..);
        let opened = OpenEntry::recalled(id, revision, parsed.head, parsed.body, first);
        Some((opened, kept.identity))
    }

    /// Counts a hit, if the entry came from memory.
    pub fn note_given(&self, opened: &OpenEntry) {
        if let (None, Some(memory)) = (&opened.file, self.memory.get()) {
            memory.hits.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Keeps a file's content in memory. `identity` must have been determined before the file was
    /// read.
    pub(super) fn cache_read(
        &self,
        id: &EntryId,
        revision: Option<u32>,
        identity: Option<Identity>,
        file: Bytes,
        now: Millis,
    ) {
        if let (Some(memory), Some(revision)) = (self.memory.get(), revision)
            && identity.is_some()
        {
            let image = memory.image(id, identity, &[file]);
            memory.put(id, revision, image, now);
        }
    }

    /// Removes an entry from memory. Returns whether it was there.
    pub(super) fn forget(&self, id: &EntryId) -> bool {
        let memory = self.memory.get();
        memory.is_some_and(|memory| memory.remove(id, 0))
    }

    /// Stores a fetched entry in a store without a folder.
    pub(super) fn commit_in_memory(
        &self,
        id: &EntryId,
        parts: &[Bytes],
        names: TagHashes,
        (fetch, turn): (&Fetch, Option<&Turn>),
        now: Millis,
    ) -> Result<(), StoreError> {
        let memory = self.memory.get().ok_or(StoreError::NoRoom)?;
        let image = memory.image(id, None, parts);
        if fetch.is_purged(id, &names) {
            return Err(StoreError::Purged);
        }
        if turn.is_some_and(|turn| !turn.take()) {
            return Err(StoreError::Superseded);
        }
        let stored = StoredEntry {
            blocks: 0,
            names: Some(names.clone()),
            is_checked: true,
            is_remembered: false,
        };
        // Under one lock, so that an entry found in the index is always in memory.
        let mut shard = self.index.lock_shard(id);
        let (_, removed) = shard.insert(id, stored, now);
        let expected = shard.known_entry(id);
        let has_room = expected.is_some_and(|it| memory.put(id, it.revision, image, now));
        if !has_room {
            shard.remove(id);
        }
        drop(shard);
        self.discard_evicted(removed);
        if !has_room {
            return Err(StoreError::NoRoom);
        }
        self.counters.stored.fetch_add(1, Ordering::Relaxed);
        // A concurrent purge may have read the index before the entry was added.
        if fetch.is_purged(id, &names) {
            self.remove_file(id);
            return Err(StoreError::Purged);
        }
        Ok(())
    }

    /// Replaces the times of an entry in a store without a folder.
    pub(super) fn refresh_in_memory(
        &self,
        id: &EntryId,
        key: &[u8],
        times: &EntryTimes,
        now: Millis,
    ) -> Result<(), Miss> {
        let memory = self.memory.get().ok_or(Miss::Gone)?;
        let mut shard = self.index.lock_shard(id);
        let expected = shard.known_entry(id).ok_or(Miss::Gone)?;
        let kept = memory.get(id, expected.revision, false, now);
        let mut file = kept.ok_or(Miss::Gone)?.file.to_vec();
        if head::key_of(&file) != Some(key) {
            return Err(Miss::Wrong(Fault::Key));
        }
        let (at, new) = head::replace_times(&file, times).map_err(Miss::Wrong)?;
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let place = file
            .get_mut(at..)
            .and_then(|rest| rest.get_mut(..new.len()));
        place
            .ok_or(Miss::Wrong(Fault::Short))?
            .copy_from_slice(&new);
        let image = memory.image(id, None, &[file.into()]);
        match shard.renew(id) {
            Some(revision) if memory.put(id, revision, image, now) => Ok(()),
            _ => Err(Miss::Gone),
        }
    }

    /// The image of an entry in a store without a folder, for walks through all entries.
    pub(super) fn image_in_memory(&self, id: &EntryId) -> Option<Bytes> {
        let read = |item: Item<'_>| Bytes::copy_from_slice(item.value.bytes());
        self.memory.get()?.store.peek(&id.0, 0, read)
    }
}
