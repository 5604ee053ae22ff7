//! Frees memory for new objects: expired objects first, then dead records, then the objects that
//! S3-FIFO evicts.
//!
//! S3-FIFO (Yang et al., SOSP 2023): new objects enter a small queue with a tenth of the memory. An
//! object used twice there moves to the main queue; others leave a fingerprint, by which they enter
//! the main queue directly when they are stored again. In the main queue, an object used since the
//! last round goes round again.

use super::{KeyQuery, Shard, UpdateOutcome};
use crate::Seconds;
use crate::index::{RecordLocation, SlotMatch};
use crate::lifetime;
use crate::record::Head;
use crate::segment::Stage;

/// The small queue's share of both queues: one part in this many.
const SMALL_SHARE: usize = 10;

/// Uses in the small queue that promote an object to the main queue.
const PROMOTED_FROM: u8 = 2;

/// Limit of segments whose used records go round in the main queue for one stored object; after
/// that, records are evicted whether used or not.
const ROUND_SEGMENTS_MAX: usize = 4;

/// Dead records may take one part in this many of all segments before the segment with the fewest
/// live bytes is emptied.
const DEAD_SHARE: usize = 4;

/// Segments freed by one sweep at most.
const SWEEP_MAX: usize = 1;

/// Bytes above the limit that one operation frees at most. After the limit has been lowered,
/// operations and [`Shard::shrink`] reach it gradually, so that none holds the lock for long.
const SHRINK_STEP: usize = 64 * 1024;

impl Shard {
    /// Memory that the shard occupies, in bytes, including tables.
    pub(crate) fn occupied(&self) -> usize {
        self.segments.bytes()
            + self.extents.held()
            + self.index.bytes()
            + self.ghost.bytes()
            + self.flushed.len() * size_of::<u64>()
    }

    pub(crate) fn is_above_limit(&self) -> bool {
        self.occupied() > self.limit
    }

    /// Reserves a place for a new record, and memory for its extent.
    pub(super) fn reserve(
        &mut self,
        sought: KeyQuery<'_>,
        head: &Head,
        extent: usize,
        found: Option<SlotMatch>,
    ) -> Result<RecordLocation, UpdateOutcome> {
        let length = head.record_length();
        let is_too_large = extent.max(length) > self.limit / 2 || length > self.segments.size();
        let stage = match found {
            Some(found) => self.segments.at(found.place.segment).stage,
            None if self.ghost.take(sought.hash) => Stage::Main,
            // Before the first eviction there is room for all objects, so new ones may enter the
            // main queue.
            None if self.counted.evicted == 0 && self.is_small_full() => Stage::Main,
            None => Stage::Small,
        };
        let class = lifetime::class(head.expiry(), sought.now);
        let made = !is_too_large && self.make_room(stage, class, length, extent, sought.now);
        let place = made.then(|| self.append(stage, class, length, head.expiry()));
        if let Some(Some(place)) = place {
            return Ok(place);
        }
        // An object that would have been replaced must not remain when its replacement is refused.
        if let Some(found) = self.look_up(sought) {
            self.remove(found, sought.hash);
        }
        Err(if is_too_large {
            UpdateOutcome::TooLarge
        } else {
            UpdateOutcome::NoRoom
        })
    }

    /// Frees memory until a record with its extent fits. False if that is impossible.
    fn make_room(
        &mut self,
        stage: Stage,
        class: usize,
        length: usize,
        extent: usize,
        now: Seconds,
    ) -> bool {
        let mut rounds_left = self.segments.size() * ROUND_SEGMENTS_MAX;
        let bound = self.limit.max(self.occupied().saturating_sub(SHRINK_STEP));
        loop {
            let tail = self.queue_mut(stage).tails[class];
            let (segment, can_append) = match tail {
                Some(tail) if self.segments.has_room(tail, length) => (0, true),
                _ => (self.segments.cost_of_one(), self.segments.can_open()),
            };
            if can_append && self.occupied() + segment + extent <= bound {
                return true;
            }
            if !self.free_something(now, &mut rounds_left) {
                return false;
            }
        }
    }

    /// Frees some memory: spares first, then expired objects, dead records, and objects to evict.
    /// False if nothing could be freed.
    fn free_something(&mut self, now: Seconds, rounds_left: &mut usize) -> bool {
        self.segments.let_one_spare_go()
            || self.free_expired(now)
            || self.compact_worst_segment(now)
            || (self.evicts && self.evict(now, rounds_left))
    }

    /// Frees some of the memory above the limit. Returns whether there is more.
    pub(crate) fn shrink(&mut self, now: Seconds) -> bool {
        self.segments.release_spares();
        let end = self.occupied().saturating_sub(SHRINK_STEP);
        let mut rounds_left = self.segments.size() * ROUND_SEGMENTS_MAX;
        while self.occupied() > self.limit {
            if self.occupied() <= end {
                return true;
            }
            let evicted = self.free_expired(now)
                || self.compact_worst_segment(now)
                || self.evict(now, &mut rounds_left);
            self.segments.release_spares();
            if !evicted {
                break;
            }
        }
        false
    }

    /// Frees segments whose objects have all expired. Returns whether there are more. If there are
    /// none, some of the memory kept for future segments is returned.
    pub(crate) fn sweep(&mut self, now: Seconds) -> bool {
        self.flush_if_due(now);
        for _ in 0..SWEEP_MAX {
            if !self.free_expired(now) {
                self.segments.release_surplus();
                return false;
            }
        }
        true
    }

    /// Frees a segment whose objects have all expired, if there is one.
    fn free_expired(&mut self, now: Seconds) -> bool {
        let Some((latest, number)) = self.by_expiry.first().copied() else {
            return false;
        };
        if latest > now {
            return false;
        }
        self.seal(number);
        let mut at = 0;
        let generation = self.segments.at(number).generation;
        while self.segments.is_used(number, generation) && at < self.segments.at(number).end {
            let place = self.segments.place(number, at);
            let head = Head::read(self.segments.record(place));
            at += head.record_length();
            if !head.is_dead {
                self.count_expired(head, place, false);
                self.remove_at(place);
            }
        }
        if self.segments.is_used(number, generation) {
            self.free(number);
        }
        true
    }

    /// If too much memory is dead, moves the live records out of the segment with the fewest live
    /// bytes.
    fn compact_worst_segment(&mut self, now: Seconds) -> bool {
        if self.segments.dead() * DEAD_SHARE <= self.segments.count() * self.segments.size() {
            return false;
        }
        let closed = self.segments.numbers().filter(|number| {
            let segment = self.segments.at(*number);
            !segment.is_open && segment.end > segment.live
        });
        let Some(worst) = closed.min_by_key(|number| self.segments.at(*number).live) else {
            return false;
        };
        let segment = self.segments.at(worst);
        if segment.live * 10 > self.segments.size() * 9 {
            return false;
        }
        let (generation, stage) = (segment.generation, segment.stage);
        let mut at = 0;
        while self.segments.is_used(worst, generation) && at < self.segments.at(worst).end {
            let place = self.segments.place(worst, at);
            let head = Head::read(self.segments.record(place));
            at += head.record_length();
            if head.is_dead {
                continue;
            }
            if head.is_expired(now) {
                self.count_expired(head, place, false);
                self.remove_at(place);
            } else {
                self.relocate(place, &head, stage, 0, now);
            }
        }
        true
    }

    /// Whether the small queue exceeds its share of both queues.
    fn is_small_full(&self) -> bool {
        self.small.bytes * SMALL_SHARE > self.small.bytes + self.main.bytes
    }

    /// Evicts or moves records of the oldest segment of the queue whose turn it is. False if
    /// both queues are empty.
    fn evict(&mut self, now: Seconds, rounds_left: &mut usize) -> bool {
        let mut front = None;
        if self.is_small_full() {
            front = self.small.front(&self.segments);
        }
        let front = front
            .or_else(|| self.main.front(&self.segments))
            .or_else(|| self.small.front(&self.segments));
        let Some(number) = front else {
            return false;
        };
        self.seal(number);
        let generation = self.segments.at(number).generation;
        // Continues to the end of the segment, but stops after an extent was freed.
        let before = self.extent_bytes;
        while self.segments.is_used(number, generation) && self.extent_bytes >= before {
            let segment = self.segments.at(number);
            if segment.cursor >= segment.end {
                self.free(number);
                break;
            }
            let place = self.segments.place(number, segment.cursor);
            let head = Head::read(self.segments.record(place));
            self.segments.at_mut(number).cursor += head.record_length();
            if !head.is_dead {
                self.judge(place, &head, now, rounds_left);
            }
        }
        true
    }

    /// Evicts a record, or moves it to the end of the main queue.
    fn judge(&mut self, place: RecordLocation, head: &Head, now: Seconds, rounds_left: &mut usize) {
        if head.is_expired(now) {
            self.count_expired(*head, place, false);
            self.remove_at(place);
            return;
        }
        let hash = base::hash::of(self.key(place));
        let Some(found) = self.index.find(hash, |at| at == place) else {
            self.free_record(place);
            return;
        };
        let length = head.record_length();
        match self.segments.at(place.segment).stage {
            Stage::Small if found.uses >= PROMOTED_FROM => {
                self.relocate(place, head, Stage::Main, 0, now);
                return;
            }
            Stage::Small => self.ghost.insert(hash),
            Stage::Main if found.uses > 0 && *rounds_left >= length => {
                *rounds_left -= length;
                self.relocate(place, head, Stage::Main, 1, now);
                return;
            }
            Stage::Main => {}
        }
        self.count_evicted(head, place, now);
        self.remove(found, hash);
    }

    /// Moves a record to the end of a queue, and reduces its use count by `fewer`.
    fn relocate(
        &mut self,
        from: RecordLocation,
        head: &Head,
        stage: Stage,
        fewer: u8,
        now: Seconds,
    ) {
        let hash = base::hash::of(self.key(from));
        let Some(found) = self.index.find(hash, |at| at == from) else {
            self.free_record(from);
            return;
        };
        let length = head.record_length();
        let class = lifetime::class(head.expiry(), now);
        let Some(to) = self.append(stage, class, length, head.expiry()) else {
            self.remove(found, hash);
            return;
        };
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.extend_from_slice(&self.segments.record(from)[..length]);
        self.segments.record_mut(to)[..length].copy_from_slice(&scratch);
        self.scratch = scratch;
        if head.is_extent {
            let bytes = crate::extent::occupied(self.extents.get(head.value).len(), 0);
            let left = self.segments.at(from.segment).stage;
            self.segments.at_mut(from.segment).extents -= bytes;
            self.segments.at_mut(to.segment).extents += bytes;
            self.queue_mut(left).bytes -= bytes;
            self.queue_mut(stage).bytes += bytes;
        }
        self.index
            .replace(found, hash, to, found.uses.saturating_sub(fewer));
        if self.segments.kill(from) {
            self.free(from.segment);
        }
    }

    /// Removes a record's object from the index, if the index refers to this record, and frees the
    /// record.
    fn remove_at(&mut self, place: RecordLocation) {
        let hash = base::hash::of(self.key(place));
        match self.index.find(hash, |at| at == place) {
            Some(found) => self.remove(found, hash),
            None => self.free_record(place),
        }
    }

    /// Reserves a record at the end of a queue regardless of the memory limit.
    fn append(
        &mut self,
        stage: Stage,
        class: usize,
        length: usize,
        expires: Option<Seconds>,
    ) -> Option<RecordLocation> {
        let tail = self.queue_mut(stage).tails[class];
        let tail = tail.filter(|tail| self.segments.has_room(*tail, length));
        let number = match tail {
            Some(tail) => tail,
            None => {
                if let Some(full) = self.queue_mut(stage).tails[class] {
                    self.seal(full);
                }
                let number = self.segments.open(stage, class)?;
                let size = self.segments.size();
                let queue = match stage {
                    Stage::Small => &mut self.small,
                    Stage::Main => &mut self.main,
                };
                queue.push(number, &self.segments);
                queue.tails[class] = Some(number);
                queue.bytes += size;
                number
            }
        };
        let place = self.segments.append(number, length);
        self.note_expiry(number, expires);
        Some(place)
    }

    /// Closes a segment to further records. A segment without objects is freed.
    fn seal(&mut self, number: u32) {
        let segment = self.segments.at_mut(number);
        if !segment.is_open {
            return;
        }
        segment.is_open = false;
        let (stage, class, live) = (segment.stage, segment.class, segment.live);
        self.queue_mut(stage).tails[class] = None;
        if live == 0 {
            self.free(number);
        }
    }
}
