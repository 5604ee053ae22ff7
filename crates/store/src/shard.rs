//! One shard: the operations on its objects under its lock.
//!
//! Memory is freed before a record is written (`room.rs`), so that the memory occupied stays within
//! the limit, except for segments that are opened to move records while memory is freed.

mod room;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use crate::extent::{self, Extents, Large};
use crate::ghost::Ghost;
use crate::index::{Index, RecordLocation, SlotMatch};
use crate::queue::Queue;
use crate::record::{self, Head};
use crate::segment::{Segments, Stage};
use crate::{KEY_LENGTH_MAX, Seconds, lifetime};

/// An object as passed to a closure.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// The key of the object.
    pub key: &'a [u8],
    /// The value of the object.
    pub value: Value<'a>,
    /// The flags that the object was stored with.
    pub flags: u32,
    /// Changes with every store; unique among all versions of a key.
    pub cas: u64,
    /// The time of expiry; `None` means never.
    pub expires: Option<Seconds>,
    /// The time when the object was last stored or read.
    pub used: Seconds,
    /// Whether the object has been read.
    pub is_read: bool,
    /// Three bits for the caller's use.
    pub marks: u8,
    /// The object's tags, in the caller's notation; empty if there are none.
    pub tags: &'a [u8],
}

/// A value, valid under the lock.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    bytes: &'a [u8],
    /// The extent of the value, if it is in one.
    extent: Option<&'a Bytes>,
}

impl<'a> Value<'a> {
    /// Splits the tags off the end of the value.
    fn without_tags(self) -> (Value<'a>, &'a [u8]) {
        let whole = self.bytes;
        let Some((rest, length)) = whole.split_last_chunk::<2>() else {
            return (self, &[]);
        };
        let length = usize::from(u16::from_le_bytes(*length));
        let Some((bytes, tags)) = rest.split_at_checked(rest.len().saturating_sub(length)) else {
            return (self, &[]);
        };
        (Value { bytes, ..self }, tags)
    }

    /// The bytes of the value.
    #[must_use]
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(self) -> usize {
        self.bytes.len()
    }

    /// Whether the value is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.bytes.is_empty()
    }

    /// A reference to the value's extent, which keeps the memory alive. `None` if the value must be
    /// copied.
    #[must_use]
    pub fn lent(self) -> Option<Bytes> {
        self.extent.map(|extent| extent.slice_ref(self.bytes))
    }
}

/// A change of an object, or of a key without an object.
#[derive(Debug)]
pub enum ObjectChange<'a> {
    /// The object is unchanged.
    Keep,
    /// The object is removed, if it exists.
    Remove,
    /// The object is replaced or created.
    Write(Write<'a>),
    /// Bytes are appended to the value; everything else is unchanged.
    Append(&'a [u8], Cas),
    /// Bytes are prepended to the value; everything else is unchanged.
    Prepend(&'a [u8], Cas),
    /// The value is replaced; everything else is unchanged.
    Rewrite(&'a [u8], Cas),
    /// Metadata are changed; the value is unchanged.
    Revise(Revision),
}

/// An object to store.
#[derive(Debug)]
pub struct Write<'a> {
    /// The value to store.
    pub content: Content<'a>,
    /// As [`Item::flags`].
    pub flags: u32,
    /// The time of expiry; `None` means never.
    pub expires: Option<Seconds>,
    /// How the object gets its [`Item::cas`].
    pub cas: Cas,
    /// As [`Item::marks`].
    pub marks: u8,
    /// The object's tags.
    pub tags: Tags<'a>,
}

/// The tags of a stored object.
#[derive(Clone, Copy, Debug, Default)]
pub enum Tags<'a> {
    /// The object has no tags.
    #[default]
    None,
    /// New tags; beyond 65,535 bytes they are cut off.
    Given(&'a [u8]),
    /// The previous object's tags.
    Kept,
}

/// A value to store.
#[derive(Debug)]
pub enum Content<'a> {
    /// The value is copied into the store.
    Copied(&'a [u8]),
    /// The value is taken over without a copy, if it is long enough for an extent.
    Given(Large),
}

/// Changes of metadata; a field with `None` is unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Revision {
    /// The new time of expiry; `Some(None)` means never.
    pub expires: Option<Option<Seconds>>,
    /// The new CAS.
    pub cas: Option<Cas>,
    /// The new [`Item::marks`].
    pub marks: Option<u8>,
    /// Whether the change counts as a use.
    pub is_use: bool,
    /// The last use, and whether the object has been read: for restored objects.
    pub used: Option<(Seconds, bool)>,
}

/// The CAS of a changed object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cas {
    /// The store chooses the next number.
    Next,
    /// The caller names the number.
    Given(u64),
}

/// The outcome of an [`update`](crate::Store::update).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateOutcome {
    /// The object has stayed as it was.
    Kept,
    /// The object has been removed.
    Removed,
    /// The object was stored or changed, and has this CAS.
    Stored(u64),
    /// The object is too large. An object that it would have replaced was removed.
    TooLarge,
    /// There is no room, and eviction is disabled. An object that it would have replaced was
    /// removed.
    NoRoom,
}

/// Statistics of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStatistics {
    /// Limit of the memory occupied, in bytes.
    pub limit: usize,
    /// Memory occupied, in bytes, including all tables.
    pub occupied: usize,
    /// Bytes of objects: heads, keys and values.
    pub live: usize,
    /// Bytes of removed extents to which callers still hold references.
    pub lent: usize,
    /// Bytes of the index's tables.
    pub tables: usize,
    /// Number of objects, including expired ones that have not been noticed.
    pub objects: u64,
    /// Objects stored since the start.
    pub stored: u64,
    /// Evicted objects.
    pub evicted: u64,
    /// Evicted objects that had never been read.
    pub evicted_unread: u64,
    /// Objects found expired.
    pub expired: u64,
    /// Objects found expired that had never been read.
    pub expired_unread: u64,
    /// Objects found expired by a [`get`](crate::Store::get).
    pub expired_got: u64,
    /// Objects removed by a flush.
    pub flushed: u64,
    /// Reads of flushed keys, as far as the keys are remembered.
    pub flushed_got: u64,
    /// Segments with allocated memory.
    pub segments: u64,
}

impl StoreStatistics {
    pub(crate) fn add(&mut self, other: &StoreStatistics) {
        self.limit += other.limit;
        self.occupied += other.occupied;
        self.live += other.live;
        self.lent += other.lent;
        self.tables += other.tables;
        self.objects += other.objects;
        self.stored += other.stored;
        self.evicted += other.evicted;
        self.evicted_unread += other.evicted_unread;
        self.expired += other.expired;
        self.expired_unread += other.expired_unread;
        self.expired_got += other.expired_got;
        self.flushed += other.flushed;
        self.flushed_got += other.flushed_got;
        self.segments += other.segments;
    }
}

/// The counters of a shard since its start.
#[derive(Default)]
struct ShardCounters {
    stored: u64,
    evicted: u64,
    evicted_unread: u64,
    expired: u64,
    expired_unread: u64,
    expired_got: u64,
    flushed: u64,
    flushed_got: u64,
}

/// Limit of the hashes of flushed keys that a shard remembers to count reads of them.
const FLUSHED_MAX: usize = 1024;

/// Notified of objects that are evicted or expire, under the lock of their shard.
pub trait Observer: Send + Sync {
    /// An object is about to be evicted.
    fn evicted(&self, shard: usize, item: &Item<'_>, now: Seconds);

    /// An expired object was found, by a request for its key (`is_sought`) or by a sweep.
    fn expired(&self, shard: usize, item: &Item<'_>, is_sought: bool);
}

/// The key of an operation, its hash, and the time.
#[derive(Clone, Copy)]
pub(crate) struct KeyQuery<'a> {
    pub(crate) hash: u64,
    pub(crate) key: &'a [u8],
    pub(crate) now: Seconds,
}

/// A shard: a part of the store's objects, which has its own lock.
pub(crate) struct Shard {
    limit: usize,
    evicts: bool,
    index: Index,
    segments: Segments,
    extents: Extents,
    /// Bytes of the extents of existing objects.
    extent_bytes: usize,
    /// Bytes of extents removed since the allocator was last trimmed.
    pub(crate) removed_extent_bytes: usize,
    small: Queue,
    main: Queue,
    ghost: Ghost,
    /// Segments by the time at which all of their objects will have expired; without segments that
    /// contain an object that never expires.
    by_expiry: BTreeSet<(Seconds, u32)>,
    /// The next CAS and its increment, chosen so that no two shards assign the same CAS.
    cas: u64,
    cas_step: u64,
    /// The time of a pending flush.
    flush_at: Option<Seconds>,
    /// Hashes of keys removed by the last flush, sorted; at most [`FLUSHED_MAX`].
    flushed: Vec<u64>,
    /// The counters for statistics.
    counted: ShardCounters,
    /// Buffer for assembling a value.
    scratch: Vec<u8>,
    /// The shard's number in its store.
    number: usize,
    observer: Option<Arc<dyn Observer>>,
}

impl Shard {
    pub(crate) fn new(limit: usize, evicts: bool, number: u64, count: u64) -> Shard {
        let segments = Segments::new(limit);
        Shard {
            limit,
            evicts,
            index: Index::new(segments.unit_bits()),
            segments,
            extents: Extents::default(),
            extent_bytes: 0,
            removed_extent_bytes: 0,
            small: Queue::default(),
            main: Queue::default(),
            ghost: Ghost::new(),
            by_expiry: BTreeSet::new(),
            cas: number + 1,
            cas_step: count,
            flush_at: None,
            flushed: Vec::new(),
            counted: ShardCounters::default(),
            scratch: Vec::new(),
            number: number as usize,
            observer: None,
        }
    }

    pub(crate) fn set_observer(&mut self, observer: Arc<dyn Observer>) {
        self.observer = Some(observer);
    }

    /// The CAS of the next stored object.
    pub(crate) fn cas(&self) -> u64 {
        self.cas
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Raises the CAS of objects stored from now on to at least this value.
    pub(crate) fn raise_cas(&mut self, least: u64) {
        let steps = least.saturating_sub(self.cas).div_ceil(self.cas_step);
        self.cas = self.cas.wrapping_add(steps.wrapping_mul(self.cas_step));
    }

    /// Minimum length of a value that is stored in an extent.
    pub(crate) fn extent_min(&self) -> usize {
        (self.segments.size() / 8).min(crate::COPIED_MAX)
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub(crate) fn counts(&self) -> StoreStatistics {
        StoreStatistics {
            limit: self.limit,
            occupied: self.occupied(),
            live: self.segments.live() + self.extent_bytes,
            lent: self.extents.held().saturating_sub(self.extent_bytes),
            tables: self.index.bytes() + self.ghost.bytes(),
            objects: self.index.objects() as u64,
            stored: self.counted.stored,
            evicted: self.counted.evicted,
            evicted_unread: self.counted.evicted_unread,
            expired: self.counted.expired,
            expired_unread: self.counted.expired_unread,
            expired_got: self.counted.expired_got,
            flushed: self.counted.flushed,
            flushed_got: self.counted.flushed_got,
            segments: self.segments.count() as u64,
        }
    }

    #[inline]
    pub(crate) fn get<R>(
        &mut self,
        sought: KeyQuery<'_>,
        read: impl FnOnce(Item<'_>) -> R,
    ) -> Option<R> {
        if self.flush_at.is_some() {
            self.flush_if_due(sought.now);
        }
        let Some(found) = self.look_up(sought) else {
            self.count_flushed(sought.hash);
            return None;
        };
        let head = Head::read(self.segments.record(found.place));
        if head.is_expired(sought.now) {
            self.counted.expired_got += 1;
            self.count_flushed(sought.hash);
            self.remove_expired(sought, found, head);
            return None;
        }
        let result = read(self.item_with(found.place, &head));
        self.index.count_use(found, sought.hash);
        if head.used != sought.now || !head.is_read {
            record::note_use(self.segments.record_mut(found.place), sought.now);
        }
        Some(result)
    }

    pub(crate) fn peek<R>(
        &mut self,
        sought: KeyQuery<'_>,
        read: impl FnOnce(Item<'_>) -> R,
    ) -> Option<R> {
        let found = self.find(sought)?;
        Some(read(self.item(found.place)))
    }

    pub(crate) fn update<'a>(
        &mut self,
        sought: KeyQuery<'_>,
        decide: impl FnOnce(Option<Item<'_>>) -> ObjectChange<'a>,
    ) -> UpdateOutcome {
        if sought.key.len() > KEY_LENGTH_MAX {
            return UpdateOutcome::TooLarge;
        }
        let found = self.find(sought);
        let change = decide(found.map(|found| self.item(found.place)));
        match (change, found) {
            (ObjectChange::Keep, _) => UpdateOutcome::Kept,
            (ObjectChange::Remove, Some(found)) => {
                self.remove(found, sought.hash);
                UpdateOutcome::Removed
            }
            (ObjectChange::Write(write), found) => self.write(sought, write, found),
            (ObjectChange::Append(more, cas), Some(found)) => {
                self.join(sought, found, (&[], more), cas)
            }
            (ObjectChange::Prepend(more, cas), Some(found)) => {
                self.join(sought, found, (more, &[]), cas)
            }
            (ObjectChange::Rewrite(value, cas), Some(found)) => {
                let old = Head::read(self.segments.record(found.place));
                let head = Head {
                    used: sought.now,
                    is_extent: false,
                    ..old
                };
                let behind = encoded_tags(self.item(found.place).tags);
                self.write_copied(sought, head, (value, &behind), cas, Some(found))
            }
            (ObjectChange::Revise(revision), Some(found)) => self.revise(sought, found, revision),
            (_, None) => UpdateOutcome::Kept,
        }
    }

    pub(crate) fn flush(&mut self, at: Seconds, now: Seconds) {
        self.flush_at = Some(at);
        self.flush_if_due(now);
    }

    pub(crate) fn clear(&mut self) {
        self.index = Index::new(self.segments.unit_bits());
        self.segments.clear();
        self.extents.clear();
        self.extent_bytes = 0;
        self.small = Queue::default();
        self.main = Queue::default();
        self.ghost = Ghost::new();
        self.by_expiry.clear();
    }

    /// Visits the objects of a few buckets. Returns the position to continue at, if there is one.
    pub(crate) fn visit(
        &mut self,
        from: u64,
        now: Seconds,
        mut seen: impl FnMut(Item<'_>),
    ) -> Option<u64> {
        const BUCKETS: usize = 16;
        self.flush_if_due(now);
        let mut position = from;
        for _ in 0..BUCKETS {
            let (bucket, next) = self.index.bucket_at(position);
            for place in self.index.places(bucket) {
                if !Head::read(self.segments.record(place)).is_expired(now) {
                    seen(self.item(place));
                }
            }
            position = next?;
        }
        Some(position)
    }

    /// Removes all objects if the time of a pending flush has passed.
    fn flush_if_due(&mut self, now: Seconds) {
        if self.flush_at.is_some_and(|at| at <= now) {
            self.flush_at = None;
            self.counted.flushed += self.index.objects() as u64;
            let mut flushed = Vec::new();
            for bucket in 0..self.index.buckets() {
                if flushed.len() >= FLUSHED_MAX {
                    break;
                }
                let places = self.index.places(bucket).into_iter();
                flushed.extend(places.map(|place| base::hash::of(self.key(place))));
            }
            flushed.truncate(FLUSHED_MAX);
            flushed.sort_unstable();
            self.clear();
            self.flushed = flushed;
        }
    }

    /// Counts a read of a flushed key, once per key.
    #[cold]
    fn count_flushed(&mut self, hash: u64) {
        if let Ok(at) = self.flushed.binary_search(&hash) {
            self.flushed.remove(at);
            self.counted.flushed_got += 1;
        }
    }

    /// Finds the object of a key. An expired object is removed.
    fn find(&mut self, sought: KeyQuery<'_>) -> Option<SlotMatch> {
        if self.flush_at.is_some() {
            self.flush_if_due(sought.now);
        }
        let found = self.look_up(sought)?;
        let head = Head::read(self.segments.record(found.place));
        if head.is_expired(sought.now) {
            self.remove_expired(sought, found, head);
            return None;
        }
        Some(found)
    }

    /// Counts an expired object that was requested, and removes it.
    #[cold]
    fn remove_expired(&mut self, sought: KeyQuery<'_>, found: SlotMatch, head: Head) {
        self.count_expired(head, found.place, true);
        self.remove(found, sought.hash);
    }

    /// Finds the object of a key, expired or not.
    #[inline(always)]
    fn look_up(&self, sought: KeyQuery<'_>) -> Option<SlotMatch> {
        self.index.find(sought.hash, |place| {
            let record = self.segments.record(place);
            if record::is_extent(record) {
                self.key(place) == sought.key
            } else {
                record::has_key(record, sought.key)
            }
        })
    }

    fn key(&self, place: RecordLocation) -> &[u8] {
        key_of(&self.segments, &self.extents, place)
    }

    fn item(&self, place: RecordLocation) -> Item<'_> {
        let head = Head::read(self.segments.record(place));
        self.item_with(place, &head)
    }

    /// The object of a record whose head has been read.
    #[inline(always)] // fields that the closure does not use are not read
    fn item_with(&self, place: RecordLocation, head: &Head) -> Item<'_> {
        let record = self.segments.record(place);
        let (key, value) = if head.is_extent {
            let extent = self.extents.get(head.value);
            let (key, bytes) = extent.split_at(usize::from(head.key_length));
            let extent = Some(extent);
            (key, Value { bytes, extent })
        } else {
            let bytes = head.value(record);
            let extent = None;
            (head.key(record), Value { bytes, extent })
        };
        let (value, tags) = if head.has_tags {
            value.without_tags()
        } else {
            (value, &[][..])
        };
        Item {
            key,
            value,
            tags,
            flags: head.flags,
            cas: head.cas,
            expires: head.expiry(),
            used: head.used,
            is_read: head.is_read,
            marks: head.marks,
        }
    }

    fn next_cas(&mut self, wanted: Cas) -> u64 {
        match wanted {
            Cas::Given(cas) => cas,
            Cas::Next => {
                let cas = self.cas;
                self.cas = cas.wrapping_add(self.cas_step);
                cas
            }
        }
    }

    /// Removes an object from the index and frees its record.
    fn remove(&mut self, found: SlotMatch, hash: u64) {
        self.index.remove(found, hash);
        self.ghost.fit(self.index.objects());
        self.free_record(found.place);
    }

    /// Frees a record that the index no longer refers to.
    fn free_record(&mut self, place: RecordLocation) {
        let head = Head::read(self.segments.record(place));
        if head.is_extent {
            self.drop_extent(place.segment, head.value);
        }
        if self.segments.kill(place) {
            self.free(place.segment);
        }
    }

    /// Removes an extent of a record in this segment.
    fn drop_extent(&mut self, segment: u32, extent: u32) {
        let bytes = extent::occupied(self.extents.get(extent).len(), 0);
        self.extents.remove(extent);
        self.removed_extent_bytes += bytes;
        self.segments.at_mut(segment).extents -= bytes;
        self.extent_bytes -= bytes;
        let stage = self.segments.at(segment).stage;
        self.queue_mut(stage).bytes -= bytes;
    }

    /// Frees a segment without objects.
    fn free(&mut self, number: u32) {
        let (stage, latest) = {
            let segment = self.segments.at(number);
            debug_assert!(segment.extents == 0 && segment.live == 0);
            (segment.stage, segment.latest)
        };
        self.by_expiry.remove(&(latest, number));
        let size = self.segments.size();
        self.queue_mut(stage).bytes -= size;
        self.segments.free(number);
    }

    fn queue_mut(&mut self, stage: Stage) -> &mut Queue {
        match stage {
            Stage::Small => &mut self.small,
            Stage::Main => &mut self.main,
        }
    }

    fn count_expired(&mut self, head: Head, place: RecordLocation, is_sought: bool) {
        self.counted.expired += 1;
        self.counted.expired_unread += u64::from(!head.is_read);
        if let Some(observer) = &self.observer {
            observer.expired(self.number, &self.item(place), is_sought);
        }
    }

    fn count_evicted(&mut self, head: &Head, place: RecordLocation, now: Seconds) {
        self.counted.evicted += 1;
        self.counted.evicted_unread += u64::from(!head.is_read);
        if let Some(observer) = &self.observer {
            observer.evicted(self.number, &self.item(place), now);
        }
    }

    /// Stores an object, by a copy or as an extent.
    fn write(
        &mut self,
        sought: KeyQuery<'_>,
        write: Write<'_>,
        found: Option<SlotMatch>,
    ) -> UpdateOutcome {
        let behind = match (write.tags, found) {
            (Tags::Given(tags), _) => encoded_tags(tags),
            (Tags::Kept, Some(found)) => encoded_tags(self.item(found.place).tags),
            (Tags::None, _) | (Tags::Kept, None) => Vec::new(),
        };
        let head = Head {
            has_tags: !behind.is_empty(),
            ..head_of(sought, &write)
        };
        let joined = |parts, this: &mut Shard| {
            this.write_copied(sought, head, (parts, &behind), write.cas, found)
        };
        match write.content {
            Content::Copied(bytes) => joined(bytes, self),
            Content::Given(large)
                if large.len() < self.extent_min() || large.key() != sought.key =>
            {
                joined(large.value(), self)
            }
            Content::Given(mut large) => {
                large.extend(&behind);
                self.write_extent(sought, head, large.into_bytes(), write.cas, found)
            }
        }
    }

    /// Stores a value copied from two parts.
    fn write_copied(
        &mut self,
        sought: KeyQuery<'_>,
        head: Head,
        (first, second): (&[u8], &[u8]),
        cas: Cas,
        found: Option<SlotMatch>,
    ) -> UpdateOutcome {
        let length = first.len() + second.len();
        if length + sought.key.len() >= self.extent_min() {
            let mut large = Large::new(sought.key, length);
            large.extend(first);
            large.extend(second);
            return self.write_extent(sought, head, large.into_bytes(), cas, found);
        }
        let head = Head {
            value: length as u32,
            ..head
        };
        if let Some(found) = found
            && self.fits_in_place(found.place, &head, sought.now)
        {
            let cas = self.next_cas(cas);
            self.fill(
                found.place,
                &Head { cas, ..head },
                sought.key,
                first,
                second,
            );
            self.note_expiry(found.place.segment, head.expiry());
            self.index.count_use(found, sought.hash);
            self.counted.stored += 1;
            return UpdateOutcome::Stored(cas);
        }
        let place = match self.reserve(sought, &head, 0, found) {
            Ok(place) => place,
            Err(outcome) => return outcome,
        };
        let cas = self.next_cas(cas);
        self.fill(place, &Head { cas, ..head }, sought.key, first, second);
        self.enter(sought, place);
        UpdateOutcome::Stored(cas)
    }

    /// Stores a value in an extent, preceded by its key.
    fn write_extent(
        &mut self,
        sought: KeyQuery<'_>,
        head: Head,
        bytes: Vec<u8>,
        cas: Cas,
        found: Option<SlotMatch>,
    ) -> UpdateOutcome {
        let occupied = extent::occupied(bytes.len(), 0);
        let head = Head {
            is_extent: true,
            ..head
        };
        let place = match self.reserve(sought, &head, occupied, found) {
            Ok(place) => place,
            Err(outcome) => return outcome,
        };
        let Some(number) = self.extents.insert(bytes) else {
            self.free_unfilled(place, &head);
            return UpdateOutcome::NoRoom;
        };
        let cas = self.next_cas(cas);
        let head = Head {
            cas,
            value: number,
            ..head
        };
        head.write(self.segments.record_mut(place));
        self.segments.at_mut(place.segment).extents += occupied;
        self.extent_bytes += occupied;
        let stage = self.segments.at(place.segment).stage;
        self.queue_mut(stage).bytes += occupied;
        self.enter(sought, place);
        UpdateOutcome::Stored(cas)
    }

    /// Frees a reserved record that is not used.
    fn free_unfilled(&mut self, place: RecordLocation, head: &Head) {
        let head = Head {
            is_extent: true,
            value: 0,
            ..*head
        };
        head.write(self.segments.record_mut(place));
        if self.segments.kill(place) {
            self.free(place.segment);
        }
    }

    /// Writes a record: head, key and the two parts of the value.
    fn fill(
        &mut self,
        place: RecordLocation,
        head: &Head,
        key: &[u8],
        first: &[u8],
        second: &[u8],
    ) {
        let record = self.segments.record_mut(place);
        head.write(record);
        let at = head.length();
        let (key_end, first_end) = (at + key.len(), at + key.len() + first.len());
        record[at..key_end].copy_from_slice(key);
        record[key_end..first_end].copy_from_slice(first);
        record[first_end..first_end + second.len()].copy_from_slice(second);
    }

    /// Makes the index refer to a new record; the previous one is freed.
    fn enter(&mut self, sought: KeyQuery<'_>, place: RecordLocation) {
        self.counted.stored += 1;
        // Freeing memory may have moved the previous record, or removed it.
        match self.look_up(sought) {
            Some(before) => {
                let uses = before.uses.saturating_add(1).min(crate::index::USES_MAX);
                self.index.replace(before, sought.hash, place, uses);
                self.free_record(before.place);
            }
            None => {
                let (segments, extents) = (&self.segments, &self.extents);
                self.index.insert(sought.hash, place, 0, |place| {
                    base::hash::of(key_of(segments, extents, place))
                });
                self.ghost.fit(self.index.objects());
            }
        }
    }

    /// Whether a record can be overwritten in place by one with this head.
    fn fits_in_place(&self, place: RecordLocation, new: &Head, now: Seconds) -> bool {
        let old = Head::read(self.segments.record(place));
        !old.is_extent
            && old.length() == new.length()
            && old.record_length() == new.record_length()
            && self.segments.at(place.segment).class == lifetime::class(new.expiry(), now)
    }

    /// Appends to a value or prepends to it.
    fn join(
        &mut self,
        sought: KeyQuery<'_>,
        found: SlotMatch,
        (before, behind): (&[u8], &[u8]),
        cas: Cas,
    ) -> UpdateOutcome {
        let old = Head::read(self.segments.record(found.place));
        let head = Head {
            used: sought.now,
            is_read: false,
            is_extent: false,
            ..old
        };
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.extend_from_slice(before);
        let item = self.item(found.place);
        scratch.extend_from_slice(item.value.bytes());
        let tags = encoded_tags(item.tags);
        let outcome = if tags.is_empty() {
            self.write_copied(sought, head, (&scratch, behind), cas, Some(found))
        } else {
            scratch.extend_from_slice(behind);
            self.write_copied(sought, head, (&scratch, &tags), cas, Some(found))
        };
        if scratch.capacity() <= crate::COPIED_MAX * 2 {
            self.scratch = scratch;
        }
        outcome
    }

    /// Changes the metadata of an object.
    fn revise(
        &mut self,
        sought: KeyQuery<'_>,
        found: SlotMatch,
        revision: Revision,
    ) -> UpdateOutcome {
        let cas = revision.cas.map(|cas| self.next_cas(cas));
        let record = self.segments.record_mut(found.place);
        let mut head = Head::read(record);
        head.cas = cas.unwrap_or(head.cas);
        head.marks = revision.marks.map_or(head.marks, |marks| marks & 7);
        if let Some(expires) = revision.expires {
            head.expires = expires.map_or(0, |at| at.max(1));
        }
        if revision.is_use {
            head.used = sought.now;
            head.is_read = true;
        }
        if let Some((used, is_read)) = revision.used {
            head.used = used;
            head.is_read = is_read;
        }
        head.write(record);
        if revision.expires.is_some() {
            self.note_expiry(found.place.segment, head.expiry());
        }
        if revision.is_use {
            self.index.count_use(found, sought.hash);
        }
        UpdateOutcome::Stored(head.cas)
    }

    /// Records that a segment contains an object with this expiry.
    fn note_expiry(&mut self, number: u32, expires: Option<Seconds>) {
        let until = expires.unwrap_or(Seconds::MAX);
        let segment = self.segments.at_mut(number);
        if until > segment.latest {
            self.by_expiry.remove(&(segment.latest, number));
            segment.latest = until;
            if until != Seconds::MAX {
                self.by_expiry.insert((until, number));
            }
        }
    }
}

#[inline]
fn key_of<'a>(segments: &'a Segments, extents: &'a Extents, place: RecordLocation) -> &'a [u8] {
    let record = segments.record(place);
    let head = Head::read(record);
    if head.is_extent {
        &extents.get(head.value)[..usize::from(head.key_length)]
    } else {
        head.key(record)
    }
}

/// The head of a record to write.
fn head_of(sought: KeyQuery<'_>, write: &Write<'_>) -> Head {
    Head {
        cas: 0,
        expires: write.expires.map_or(0, |at| at.max(1)),
        used: sought.now,
        key_length: sought.key.len() as u16, // its length has been checked
        value: 0,
        flags: write.flags,
        is_read: false,
        is_dead: false,
        is_extent: false,
        has_tags: false,
        marks: write.marks & 7,
    }
}

/// The tags with their length, as stored after a value; empty if there are none.
fn encoded_tags(tags: &[u8]) -> Vec<u8> {
    let mut behind = Vec::new();
    let length = u16::try_from(tags.len()).unwrap_or(u16::MAX);
    if length > 0 {
        behind.extend_from_slice(tags.get(..usize::from(length)).unwrap_or_default());
        behind.extend_from_slice(&length.to_le_bytes());
    }
    behind
}
