//! Room for what is stored: what has expired goes first, then what no record needs any more, then
//! what S3-FIFO says.
//!
//! S3-FIFO (Yang et al., SOSP 2023): what is new waits in a small queue of a tenth; who was used
//! there twice goes on to the main queue, others leave a fingerprint, by which they come into the
//! main queue at once when they are stored again. In the main queue who was used since the last
//! time goes round again.

use super::{Shard, Sought, UpdateOutcome};
use crate::Seconds;
use crate::index::{RecordLocation, SlotMatch};
use crate::lifetime;
use crate::record::Head;
use crate::segment::Stage;

/// The small queue's share of both queues.
const SMALL_SHARE: usize = 10;

/// Uses in the small queue that lead to the main one.
const PROMOTED_FROM: u8 = 2;

/// Records of so many segments go round in the main queue for one that is stored; the next ones go,
/// used or not.
const ROUND_SEGMENTS_MAX: usize = 4;

/// A quarter of all segments may be dead records before the worst of them is emptied.
const DEAD_SHARE: usize = 4;

/// Segments that one sweep frees at most.
const SWEEP_MAX: usize = 1;

/// Bytes above the limit that one operation frees at most. Where a limit has shrunk, operations and
/// [`Shard::shrink`] come down to it together, and none of them holds the lock for long.
const SHRINK_STEP: usize = 64 * 1024;

impl Shard {
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

    /// A place for a new record, with room for its extent.
    pub(super) fn reserve(
        &mut self,
        sought: Sought<'_>,
        head: &Head,
        extent: usize,
        found: Option<SlotMatch>,
    ) -> Result<RecordLocation, UpdateOutcome> {
        let length = head.record_length();
        let is_too_large = extent.max(length) > self.limit / 2 || length > self.segments.size();
        let stage = match found {
            Some(found) => self.segments.at(found.place.segment).stage,
            None if self.ghost.take(sought.hash) => Stage::Main,
            // As long as there is room for all, nothing has to prove itself.
            None if self.counted.evicted == 0 && self.is_small_full() => Stage::Main,
            None => Stage::Small,
        };
        let class = lifetime::class(head.expiry(), sought.now);
        let made = !is_too_large && self.make_room(stage, class, length, extent, sought.now);
        let place = made.then(|| self.append(stage, class, length, head.expiry()));
        if let Some(Some(place)) = place {
            return Ok(place);
        }
        // What was to be written over must not answer for what is refused.
        if let Some(found) = self.look_up(sought) {
            self.remove(found, sought.hash);
        }
        Err(if is_too_large {
            UpdateOutcome::TooLarge
        } else {
            UpdateOutcome::NoRoom
        })
    }

    /// Frees until a record fits with its extent. False where that cannot be.
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

    fn free_something(&mut self, now: Seconds, rounds_left: &mut usize) -> bool {
        self.segments.let_one_spare_go()
            || self.free_expired(now)
            || self.empty_the_worst(now)
            || (self.evicts && self.evict(now, rounds_left))
    }

    /// Frees memory that is above the limit, a stretch of it. Whether there is more.
    pub(crate) fn shrink(&mut self, now: Seconds) -> bool {
        self.segments.let_spares_go();
        let end = self.occupied().saturating_sub(SHRINK_STEP);
        let mut rounds_left = self.segments.size() * ROUND_SEGMENTS_MAX;
        while self.occupied() > self.limit {
            if self.occupied() <= end {
                return true;
            }
            let evicted = self.free_expired(now)
                || self.empty_the_worst(now)
                || self.evict(now, &mut rounds_left);
            self.segments.let_spares_go();
            if !evicted {
                break;
            }
        }
        false
    }

    /// Frees segments of which all has expired. Whether there are more. Where there are none, some
    /// of the memory is given back that waits for segments.
    pub(crate) fn sweep(&mut self, now: Seconds) -> bool {
        self.flush_if_due(now);
        for _ in 0..SWEEP_MAX {
            if !self.free_expired(now) {
                self.segments.let_surplus_go();
                return false;
            }
        }
        true
    }

    /// Frees a segment of which all has expired, if there is one.
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

    /// Where much of all segments is dead, moves the rest of the one with the least that lives.
    fn empty_the_worst(&mut self, now: Seconds) -> bool {
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

    /// Whether the small queue has more than its share of both.
    fn is_small_full(&self) -> bool {
        self.small.bytes * SMALL_SHARE > self.small.bytes + self.main.bytes
    }

    /// Looks at the next record of the queue whose turn it is; whoever may not stay goes. False
    /// where nothing is left.
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
        // To the end of the segment, but not further than an extent that has made room.
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

    /// Whether a record stays, and where, or goes.
    fn judge(&mut self, place: RecordLocation, head: &Head, now: Seconds, rounds_left: &mut usize) {
        if head.is_expired(now) {
            self.count_expired(*head, place, false);
            self.remove_at(place);
            return;
        }
        let hash = base::hash::of(self.key(place));
        let Some(found) = self.index.find(hash, |at| at == place) else {
            self.let_go(place);
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

    /// Moves a record to the end of a queue; it has been used so many times less from now on.
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
            self.let_go(from);
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

    /// Takes a record's object out of the index, if it leads here, and lets the record go.
    fn remove_at(&mut self, place: RecordLocation) {
        let hash = base::hash::of(self.key(place));
        match self.index.find(hash, |at| at == place) {
            Some(found) => self.remove(found, hash),
            None => self.let_go(place),
        }
    }

    /// Room for a record at the end of a queue, whatever is occupied then.
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
        self.expires_no_earlier(number, expires);
        Some(place)
    }

    /// Nothing is appended to a segment any more. One without objects is freed.
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
