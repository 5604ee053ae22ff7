//! The index of the stored entries: a hash table by id with an LRU list, which needs no access to
//! the disk.
//!
//! Each shard has a lock of its own, a vector of records, hash chains of records, and a list of the
//! records in the order of their last use. A record may stand for an entry with a file, or only
//! count the requests for its id and carry the caller's marker. An entry that is evicted from the
//! index is no longer served; `room.rs` unlinks its file.

use std::sync::Arc;

use base::hash::Map;

use crate::sync::{self, AtomicU64, Mutex, MutexGuard, Ordering};

use super::clock::Millis;
use super::fill::Fill;
use super::id::EntryId;

/// Memory that the index uses for an entry, in bytes: its record, its bucket, and the spare
/// capacity of a growing vector. nginx uses 128.
pub const ENTRY_SIZE: usize = 72;

/// Number of entries per shard that a new index aims at.
const SHARD_ENTRIES: usize = 16 * 1024;

const SHARDS_MAX: usize = 64;

/// Minimum capacity of an index, in entries.
const ENTRIES_MIN: usize = 16;

const NONE: u32 = u32::MAX;

/// Minimum number of records by which a shard grows.
const GROWTH_MIN: usize = 64;

/// The properties of an entry's file in the index.
#[derive(Clone, Debug, Default)]
pub(super) struct StoredEntry {
    pub(super) blocks: u64,
    pub(super) names: Option<TagHashes>,
    /// Whether this process has verified or computed the body's checksum.
    pub(super) is_checked: bool,
    /// Whether the record is from the saved index and the file has not been seen yet.
    pub(super) is_remembered: bool,
}

/// Hashes of the group and the tags of an entry, by which it is purged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TagHashes {
    pub(super) group: u64,
    pub(super) tags: Box<[u64]>,
}

/// What the index knows of an entry's file before it is opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownEntry {
    pub(super) blocks: u64,
    pub(super) is_checked: bool,
    /// Whether this process has not seen the file yet, or the group and tags are not known.
    pub(super) is_incomplete: bool,
    /// Whether the record is from the saved index and the file has not been seen yet.
    pub(super) is_remembered: bool,
    pub(super) revision: u32,
}

/// An entry that has been removed from the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Removed {
    pub(super) id: EntryId,
    /// Blocks of the file; `None` if the record had no file.
    pub(super) blocks: Option<u64>,
}

/// The result of a lookup.
#[derive(Debug, Default)]
pub(super) struct IdEntry {
    pub(super) has_file: bool,
    pub(super) uses: u32,
    pub(super) marker: Option<u16>,
    pub(super) fill: Option<Arc<Fill>>,
}

/// A record of the saved index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SavedRecord {
    pub(super) id: EntryId,
    pub(super) blocks: u32,
    pub(super) uses: u16,
    pub(super) used: Millis,
    pub(super) names: Option<TagHashes>,
}

#[derive(Debug)]
struct Record {
    id: EntryId,
    group: u64,
    used: Millis,
    blocks: u32,
    revision: u32,
    newer: u32,
    older: u32,
    chain: u32,
    uses: u16,
    flags: u8,
}

/// The caller's marker, which an id carries until a given time.
#[derive(Clone, Copy, Debug)]
struct Marker {
    number: u16,
    until: Millis,
}

const HAS_FILE: u8 = 1;
const HAS_NAMES: u8 = 2;
const IS_CHECKED: u8 = 4;
const IS_REMEMBERED: u8 = 8;

const _: () = assert!(size_of::<Record>() + 2 * size_of::<u32>() < ENTRY_SIZE);

#[derive(Debug)]
pub(super) struct Shard {
    records: Vec<Record>,
    /// The first free record; free records are chained.
    free: u32,
    buckets: Box<[u32]>,
    newest: u32,
    oldest: u32,
    count: usize,
    files: usize,
    capacity: usize,
    revision: u32,
    /// Counts changes other than uses: of records, markers and fills.
    changes: u64,
    /// Tags, only for entries that have any.
    tags: Map<EntryId, Box<[u64]>>,
    /// Markers, only for records that have one.
    markers: Map<EntryId, Marker>,
    /// The claimed fetches.
    fills: Map<EntryId, Arc<Fill>>,
}

#[derive(Debug)]
pub(super) struct Index {
    shards: Box<[PaddedShard]>,
    /// The changes of each shard. [`WatchedEntry`](super::WatchedEntry) reads them without the
    /// lock, so they are not on the cache lines that every use writes to.
    changes: Box<[PaddedChanges]>,
}

/// The shard's counter of changes, as of the last release of its lock.
#[derive(Debug, Default)]
#[repr(align(128))]
struct PaddedChanges(AtomicU64);

/// Aligned, so that the locks of neighbouring shards do not share a cache line.
#[derive(Debug)]
#[repr(align(128))]
struct PaddedShard {
    shard: Mutex<Shard>,
    /// When the least recently used record was last used.
    oldest_used: AtomicU64,
}

/// A guard of a locked shard. When it is dropped, the values that are read without the lock are
/// updated.
pub(super) struct LockedShard<'a> {
    shard: MutexGuard<'a, Shard>,
    place: &'a PaddedShard,
    changes: &'a PaddedChanges,
    /// The counter of changes when the lock was taken.
    changes_before: u64,
}

impl Drop for LockedShard<'_> {
    fn drop(&mut self) {
        let oldest = self.shard.at(self.shard.oldest);
        let used = oldest.map_or(u64::MAX, |oldest| oldest.used);
        self.place.oldest_used.store(used, Ordering::Relaxed);
        if self.shard.changes != self.changes_before {
            self.changes.0.store(self.shard.changes, Ordering::Release);
        }
    }
}

impl std::ops::Deref for LockedShard<'_> {
    type Target = Shard;

    fn deref(&self) -> &Shard {
        &self.shard
    }
}

impl std::ops::DerefMut for LockedShard<'_> {
    fn deref_mut(&mut self) -> &mut Shard {
        &mut self.shard
    }
}

impl Index {
    /// Creates an index that uses at most `size` bytes.
    pub(super) fn new(size: usize) -> Index {
        let capacity = (size / ENTRY_SIZE).max(ENTRIES_MIN);
        let count = (capacity / SHARD_ENTRIES).clamp(1, SHARDS_MAX);
        let count = 1 << count.ilog2();
        let place = |_| PaddedShard {
            shard: Mutex::new(Shard::new(capacity.div_ceil(count))),
            oldest_used: AtomicU64::new(u64::MAX),
        };
        Index {
            shards: (0..count).map(place).collect(),
            changes: (0..count).map(|_| PaddedChanges::default()).collect(),
        }
    }

    pub(super) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Locks the shard of an id.
    pub(super) fn lock_shard(&self, id: &EntryId) -> LockedShard<'_> {
        self.shard(self.number_of(id))
    }

    /// The number of an id's shard.
    pub(super) fn number_of(&self, id: &EntryId) -> usize {
        // Uses the upper half of the hash, because buckets use the lower half.
        (base::hash::of(&id.0) >> 32) as usize & (self.shards.len() - 1)
    }

    pub(super) fn shard(&self, number: usize) -> LockedShard<'_> {
        let number = number % self.shards.len();
        let place = &self.shards[number];
        // No code below panics between two changes that must be made together, so a poisoned lock
        // is usable.
        let shard = sync::lock_or_renew(&place.shard, |_| ());
        LockedShard {
            changes_before: shard.changes,
            shard,
            place,
            changes: &self.changes[number], // invariant: there are as many
        }
    }

    /// A shard's counter of changes, read without the lock.
    pub(super) fn changes(&self, number: usize) -> u64 {
        let place = self.changes.get(number);
        place.map_or(0, |changes| changes.0.load(Ordering::Acquire))
    }

    /// The shard with the least recently used record, and when that record was last used.
    pub(super) fn oldest(&self) -> Option<(usize, Millis)> {
        let used = |place: &PaddedShard| place.oldest_used.load(Ordering::Relaxed);
        let shards = self.shards.iter().map(used).enumerate();
        shards
            .min_by_key(|shard| shard.1)
            .filter(|oldest| oldest.1 < u64::MAX)
    }

    /// Removes the least recently used record.
    pub(super) fn evict(&self) -> Option<Removed> {
        let (number, _) = self.oldest()?;
        self.shard(number).remove_oldest()
    }

    /// The number of claimed fetches.
    pub(super) fn fills(&self) -> usize {
        (0..self.shards())
            .map(|number| self.shard(number).fills.len())
            .sum()
    }

    /// Whether `is_such` holds for any claimed fetch.
    pub(super) fn any_fill(&self, is_such: impl Fn(&EntryId, &Fill) -> bool) -> bool {
        (0..self.shards()).any(|number| {
            let shard = self.shard(number);
            shard.fills.iter().any(|(id, fill)| is_such(id, fill))
        })
    }

    /// Removes the claimed fetches for which `is_such` holds: later requests do not wait for them
    /// and may claim the entries.
    pub(super) fn forget_fills(&self, is_such: impl Fn(&EntryId, &Fill) -> bool) {
        for number in 0..self.shards() {
            self.shard(number).forget_fills(&is_such);
        }
    }

    /// The number of entries with a file.
    pub(super) fn files(&self) -> usize {
        (0..self.shards())
            .map(|number| self.shard(number).files)
            .sum()
    }
}

impl Shard {
    fn new(capacity: usize) -> Shard {
        Shard {
            records: Vec::new(),
            free: NONE,
            buckets: Box::default(),
            newest: NONE,
            oldest: NONE,
            count: 0,
            files: 0,
            capacity: capacity.min(NONE as usize),
            revision: 0,
            changes: 0,
            tags: Map::default(),
            markers: Map::default(),
            fills: Map::default(),
        }
    }

    /// Looks up an id, and counts a use of it.
    pub(super) fn lookup(&mut self, id: &EntryId, now: Millis) -> IdEntry {
        let mut known = IdEntry::default();
        if let Some(at) = self.find(id) {
            self.touch(at, now);
            if let Some(record) = self.at_mut(at) {
                record.uses = record.uses.saturating_add(1);
                known.has_file = record.flags & HAS_FILE != 0;
                known.uses = u32::from(record.uses);
            }
            if !self.markers.is_empty() {
                known.marker = self.marker(id, now);
            }
        }
        if !self.fills.is_empty() {
            known.fill = self.fills.get(id).cloned();
        }
        known
    }

    /// Counts a use of an id, with or without an entry. Returns the number of uses, and the record
    /// that was evicted to make room.
    pub(super) fn note_use(&mut self, id: &EntryId, now: Millis) -> (u32, Option<Removed>) {
        if self.find(id).is_some() {
            return (self.lookup(id, now).uses, None);
        }
        let removed = self.make_room();
        let at = self.add(*id, now);
        if let Some(record) = self.at_mut(at) {
            record.uses = 1;
        }
        (1, removed)
    }

    /// Attaches the caller's marker to an id. Returns the record that was evicted to make room.
    pub(super) fn mark(
        &mut self,
        id: &EntryId,
        marker: u16,
        until: Millis,
        now: Millis,
    ) -> Option<Removed> {
        let mut removed = None;
        if self.find(id).is_none() {
            removed = self.make_room();
            self.add(*id, now);
        }
        let number = marker;
        self.markers.insert(*id, Marker { number, until });
        self.changes += 1;
        removed
    }

    fn marker(&mut self, id: &EntryId, now: Millis) -> Option<u16> {
        let marker = self.markers.get(id)?;
        if marker.until > now {
            return Some(marker.number);
        }
        self.markers.remove(id);
        None
    }

    /// The properties of an entry's file. Does not count as a use.
    pub(super) fn known_entry(&self, id: &EntryId) -> Option<KnownEntry> {
        let record = self.at(self.find(id)?)?;
        (record.flags & HAS_FILE != 0).then_some(KnownEntry {
            blocks: u64::from(record.blocks),
            is_checked: record.flags & IS_CHECKED != 0,
            is_incomplete: record.flags & (IS_REMEMBERED | HAS_NAMES) != HAS_NAMES,
            is_remembered: record.flags & IS_REMEMBERED != 0,
            revision: record.revision,
        })
    }

    /// Records that an entry has a file: a newly stored one, or one found on disk. Returns the
    /// blocks of the replaced file, and the record that was evicted to make room.
    pub(super) fn insert(
        &mut self,
        id: &EntryId,
        stored: StoredEntry,
        now: Millis,
    ) -> (Option<u64>, Option<Removed>) {
        let mut removed = None;
        let at = match self.find(id) {
            Some(at) => {
                self.touch(at, now);
                at
            }
            None => {
                removed = self.make_room();
                self.add(*id, now)
            }
        };
        self.changes += 1;
        self.revision = self.revision.wrapping_add(1);
        let revision = self.revision;
        let Some(record) = self.at_mut(at) else {
            return (None, removed);
        };
        let had_file = record.flags & HAS_FILE != 0;
        let replaced = had_file.then_some(u64::from(record.blocks));
        record.revision = revision;
        record.blocks = u32::try_from(stored.blocks).unwrap_or(u32::MAX);
        record.uses = record.uses.max(1);
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        record.flags = HAS_FILE
            | flag(stored.names.is_some(), HAS_NAMES)
            | flag(stored.is_checked, IS_CHECKED)
            | flag(stored.is_remembered, IS_REMEMBERED);
        record.group = stored.names.as_ref().map_or(0, |names| names.group);
        self.tags.remove(id);
        self.markers.remove(id);
        if let Some(names) = stored.names
            && !names.tags.is_empty()
        {
            self.tags.insert(*id, names.tags);
        }
        self.files += usize::from(!had_file);
        (replaced, removed)
    }

    /// Gives an entry a new revision, after its times have been replaced.
    pub(super) fn renew(&mut self, id: &EntryId) -> Option<u32> {
        let at = self.find(id)?;
        self.changes += 1;
        self.revision = self.revision.wrapping_add(1);
        let revision = self.revision;
        self.at_mut(at)?.revision = revision;
        Some(revision)
    }

    /// The counter of changes.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether the id has exactly the entry of this revision: no marker, and no fetch that would
    /// replace it.
    pub(super) fn is_settled(&self, id: &EntryId, revision: u32) -> bool {
        let expected = self.known_entry(id);
        expected.is_some_and(|expected| expected.revision == revision)
            && !self.markers.contains_key(id)
            && !self.fills.contains_key(id)
    }

    /// The claimed fetch of an id.
    pub(super) fn fill(&self, id: &EntryId) -> Option<&Arc<Fill>> {
        self.fills.get(id)
    }

    /// Records a claimed fetch.
    pub(super) fn begin_fill(&mut self, id: &EntryId, fill: &Arc<Fill>) {
        self.fills.insert(*id, Arc::clone(fill));
        self.changes += 1;
    }

    /// Removes the claimed fetch of an id.
    pub(super) fn end_fill(&mut self, id: &EntryId) {
        self.fills.remove(id);
        self.changes += 1;
    }

    /// Removes the claimed fetches for which `is_such` holds.
    fn forget_fills(&mut self, is_such: impl Fn(&EntryId, &Fill) -> bool) {
        let before = self.fills.len();
        self.fills.retain(|id, fill| !is_such(id, fill));
        if self.fills.len() != before {
            self.changes += 1;
        }
    }

    /// Records that an entry's file has been seen, and its group and tags if they were not known.
    pub(super) fn note_seen(&mut self, id: &EntryId, names: Option<TagHashes>) {
        let Some(at) = self.find(id) else { return };
        let Some(record) = self.at_mut(at) else {
            return;
        };
        record.flags &= !IS_REMEMBERED;
        if let Some(names) = names
            && record.flags & HAS_NAMES == 0
        {
            record.flags |= HAS_NAMES;
            record.group = names.group;
            if !names.tags.is_empty() {
                self.tags.insert(*id, names.tags);
            }
        }
    }

    /// Records that the body's checksum of this revision has been verified, or that a check has
    /// begun. Returns whether this is new.
    pub(super) fn note_checked(&mut self, id: &EntryId, revision: u32) -> bool {
        if let Some(at) = self.find(id)
            && let Some(record) = self.at_mut(at)
            && record.revision == revision
        {
            let was_checked = record.flags & IS_CHECKED != 0;
            record.flags |= IS_CHECKED;
            return !was_checked;
        }
        false
    }

    pub(super) fn remove(&mut self, id: &EntryId) -> Option<Removed> {
        let at = self.find(id)?;
        self.remove_at(at)
    }

    /// Removes an entry if it still has this revision.
    pub(super) fn remove_revision(&mut self, id: &EntryId, revision: u32) -> Option<Removed> {
        let at = self.find(id)?;
        (self.at(at)?.revision == revision)
            .then(|| self.remove_at(at))
            .flatten()
    }

    /// Removes the least recently used record.
    pub(super) fn remove_oldest(&mut self) -> Option<Removed> {
        self.remove_at(self.oldest)
    }

    /// Removes the least recently used record, if it has not been used since `since`.
    pub(super) fn remove_unused(&mut self, since: Millis) -> Option<Removed> {
        let oldest = self.at(self.oldest)?;
        (oldest.used <= since)
            .then(|| self.remove_oldest())
            .flatten()
    }

    /// Ids of the entries with a file for which `matches` holds. It gets `None` for entries whose
    /// group and tags are not known.
    pub(super) fn ids_of(
        &self,
        mut matches: impl FnMut(Option<NamesRef<'_>>) -> bool,
    ) -> Vec<EntryId> {
        let files = self.listed().filter(|record| record.flags & HAS_FILE != 0);
        let matching = files.filter(|record| {
            let names = NamesRef {
                group: record.group,
                tags: self.tags.get(&record.id).map_or(&[], |tags| &tags[..]),
            };
            matches((record.flags & HAS_NAMES != 0).then_some(names))
        });
        matching.map(|record| record.id).collect()
    }

    /// Ids of entries from the saved index whose file has not been seen yet.
    pub(super) fn remembered(&self) -> Vec<EntryId> {
        let told = HAS_FILE | IS_REMEMBERED;
        let records = self.listed().filter(|record| record.flags & told == told);
        records.map(|record| record.id).collect()
    }

    /// All entries with a file, the least recently used first.
    pub(super) fn saved(&self) -> Vec<SavedRecord> {
        let files = self.listed().filter(|record| record.flags & HAS_FILE != 0);
        let saved = files.map(|record| SavedRecord {
            id: record.id,
            blocks: record.blocks,
            uses: record.uses,
            used: record.used,
            names: (record.flags & HAS_NAMES != 0).then(|| TagHashes {
                group: record.group,
                tags: self.tags.get(&record.id).cloned().unwrap_or_default(),
            }),
        });
        saved.collect()
    }

    /// Restores an entry of the saved index, last used at `used`. Returns false if the shard is
    /// full or has a record of the id.
    pub(super) fn restore(&mut self, saved: SavedRecord) -> bool {
        if self.find(&saved.id).is_some() || self.count >= self.capacity {
            return false;
        }
        let stored = StoredEntry {
            blocks: u64::from(saved.blocks),
            names: saved.names,
            is_checked: false,
            is_remembered: true,
        };
        self.insert(&saved.id, stored, saved.used);
        if let Some(at) = self.find(&saved.id) {
            self.insert_by_last_use(at);
            if let Some(record) = self.at_mut(at) {
                record.uses = saved.uses.max(1);
            }
        }
        true
    }

    /// Moves a record from the most recently used end to its place in the order of use. The search
    /// starts at the least recently used end, because entries are restored in the order from the
    /// newest to the oldest.
    fn insert_by_last_use(&mut self, at: u32) {
        let Some(used) = self.at(at).map(|record| record.used) else {
            return;
        };
        self.unlink(at);
        let mut newer = self.oldest;
        while let Some(record) = self.at(newer)
            && record.used < used
        {
            newer = record.newer;
        }
        match newer {
            NONE => self.link_newest(at),
            _ => self.link_behind(at, newer),
        }
    }

    /// The records, the least recently used first.
    fn listed(&self) -> impl Iterator<Item = &Record> {
        let mut at = self.oldest;
        std::iter::from_fn(move || {
            let record = self.at(at)?;
            at = record.newer;
            Some(record)
        })
    }

    fn at(&self, at: u32) -> Option<&Record> {
        self.records.get(at as usize)
    }

    fn at_mut(&mut self, at: u32) -> Option<&mut Record> {
        self.records.get_mut(at as usize)
    }

    fn find(&self, id: &EntryId) -> Option<u32> {
        let mut at = *self.buckets.get(self.bucket(id))?;
        while let Some(record) = self.at(at) {
            if record.id == *id {
                return Some(at);
            }
            at = record.chain;
        }
        None
    }

    fn bucket(&self, id: &EntryId) -> usize {
        // Clients influence keys and thus ids, so the bucket is computed with the process's secret
        // hash.
        base::hash::of(&id.0) as u32 as usize & self.buckets.len().wrapping_sub(1)
    }

    /// Evicts the least recently used record if the shard is full.
    fn make_room(&mut self) -> Option<Removed> {
        (self.count >= self.capacity)
            .then(|| self.remove_oldest())
            .flatten()
    }

    fn add(&mut self, id: EntryId, now: Millis) -> u32 {
        let length = self.records.len();
        let is_full = length == self.records.capacity() || length >= self.buckets.len();
        if is_full && self.free == NONE {
            self.grow();
        }
        let record = Record {
            id,
            group: 0,
            used: now,
            blocks: 0,
            revision: 0,
            newer: NONE,
            older: NONE,
            chain: NONE,
            uses: 0,
            flags: 0,
        };
        let at = self.free;
        let at = match self.records.get_mut(at as usize) {
            Some(place) => {
                self.free = place.chain;
                *place = record;
                at
            }
            None => {
                self.records.push(record);
                (self.records.len() - 1) as u32
            }
        };
        let bucket = self.bucket(&id);
        if let Some(first) = self.buckets.get_mut(bucket) {
            let chain = std::mem::replace(first, at);
            if let Some(record) = self.at_mut(at) {
                record.chain = chain;
            }
        }
        self.link_newest(at);
        self.count += 1;
        at
    }

    /// Grows the vector by a quarter, and doubles the number of buckets if needed.
    fn grow(&mut self) {
        let more = (self.records.len() / 4).max(GROWTH_MIN);
        let more = more.min(self.capacity.saturating_sub(self.records.len()).max(1));
        self.records.reserve_exact(more);
        let buckets = (self.records.len() + more).next_power_of_two();
        if buckets <= self.buckets.len() {
            return;
        }
        self.buckets = vec![NONE; buckets].into();
        let mut at = self.oldest;
        while let Some(record) = self.at(at) {
            let (id, newer) = (record.id, record.newer);
            let bucket = self.bucket(&id);
            if let Some(first) = self.buckets.get_mut(bucket) {
                let chain = std::mem::replace(first, at);
                if let Some(record) = self.at_mut(at) {
                    record.chain = chain;
                }
            }
            at = newer;
        }
    }

    fn remove_at(&mut self, at: u32) -> Option<Removed> {
        let record = self.at(at)?;
        let (id, chain) = (record.id, record.chain);
        let blocks = (record.flags & HAS_FILE != 0).then_some(u64::from(record.blocks));
        self.unlink(at);
        let bucket = self.bucket(&id);
        if self.buckets.get(bucket) == Some(&at) {
            if let Some(first) = self.buckets.get_mut(bucket) {
                *first = chain;
            }
        } else {
            let mut before = self.buckets.get(bucket).copied().unwrap_or(NONE);
            while let Some(record) = self.at_mut(before) {
                if record.chain == at {
                    record.chain = chain;
                    break;
                }
                before = record.chain;
            }
        }
        let free = std::mem::replace(&mut self.free, at);
        if let Some(record) = self.at_mut(at) {
            record.chain = free;
        }
        self.tags.remove(&id);
        self.markers.remove(&id);
        self.changes += 1;
        self.count -= 1;
        self.files -= usize::from(blocks.is_some());
        Some(Removed { id, blocks })
    }

    /// Makes a record the most recently used.
    fn touch(&mut self, at: u32, now: Millis) {
        if let Some(record) = self.at_mut(at) {
            // The times passed by different threads may be slightly out of order.
            record.used = record.used.max(now);
        }
        if self.newest != at {
            self.unlink(at);
            self.link_newest(at);
        }
    }

    /// Removes a record from the LRU list.
    fn unlink(&mut self, at: u32) {
        let Some(record) = self.at(at) else { return };
        let (newer, older) = (record.newer, record.older);
        match self.at_mut(newer) {
            Some(record) => record.older = older,
            None => self.newest = older,
        }
        match self.at_mut(older) {
            Some(record) => record.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link_newest(&mut self, at: u32) {
        let older = self.newest;
        if let Some(record) = self.at_mut(at) {
            record.newer = NONE;
            record.older = older;
        }
        match self.at_mut(older) {
            Some(record) => record.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }

    /// Inserts a record into the LRU list, directly before `newer` in the order of use.
    fn link_behind(&mut self, at: u32, newer: u32) {
        let older = self.at(newer).map_or(NONE, |record| record.older);
        if let Some(record) = self.at_mut(at) {
            record.newer = newer;
            record.older = older;
        }
        if let Some(record) = self.at_mut(newer) {
            record.older = at;
        }
        match self.at_mut(older) {
            Some(record) => record.newer = at,
            None => self.oldest = at,
        }
    }
}

/// Borrowed [`TagHashes`].
#[derive(Clone, Copy, Debug)]
pub(super) struct NamesRef<'a> {
    pub(super) group: u64,
    pub(super) tags: &'a [u64],
}
