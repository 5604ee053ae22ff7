//! Segments: stretches of memory that records are written into one behind the other, and that are
//! freed as a whole.

use crate::Seconds;
use crate::index::{RecordLocation, UNITS_MAX, segments_max};
use crate::lifetime;
use crate::record::{Head, UNIT};
use crate::region::{Piece, Regions};

/// Largest segment: what is evicted under one lock is bounded by it.
const SEGMENT_MAX: usize = 256 * 1024;

/// A segment of a large shard.
const SEGMENT_MIN: usize = 16 * 1024;

/// One in so many segments keeps its memory when it is freed, for the next segment, which then
/// needs neither a system call nor new pages. Further freed segments are given back gradually.
const SPARE_SHARE: usize = 16;

/// Which of S3-FIFO's queues a segment stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Small,
    /// What has been used, or has come back.
    Main,
}

pub(crate) struct Segment {
    /// Empty where the number is free.
    bytes: Piece,
    /// Never 0; another each time that the number is used again.
    pub(crate) generation: u8,
    pub(crate) stage: Stage,
    /// The class of lifetimes that it is for.
    pub(crate) class: usize,
    pub(crate) end: usize,
    /// Eviction has come this far.
    pub(crate) cursor: usize,
    /// Bytes of records that are alive.
    pub(crate) live: usize,
    /// Bytes of extents that records of it name.
    pub(crate) extents: usize,
    /// When the last of them expires; `Seconds::MAX` is never.
    pub(crate) latest: Seconds,
    /// Whether records are still appended.
    pub(crate) is_open: bool,
}

/// All segments of a shard.
pub(crate) struct Segments {
    size: usize,
    all: Vec<Segment>,
    free: Vec<u32>,
    regions: Regions,
    /// Memory of segments that were freed, for the next ones.
    spares: Vec<Piece>,
    /// So many of them stay for good.
    spares_max: usize,
    /// Segments that have memory, without the spares.
    count: usize,
    /// Bytes of records that are alive.
    live: usize,
    /// Bytes of records that are not, in segments that are not freed yet.
    dead: usize,
}

impl Segments {
    /// Segments that fit a shard with this limit.
    pub(crate) fn new(limit: usize) -> Segments {
        // Every class of lifetimes may have one that is being filled.
        let share = (limit / 512).max(SEGMENT_MIN).min(limit / 64);
        let size = 1 << share.clamp(1024, SEGMENT_MAX.min(UNITS_MAX * UNIT)).ilog2();
        Segments {
            size,
            all: Vec::new(),
            free: Vec::new(),
            regions: Regions::new(size),
            spares: Vec::new(),
            spares_max: (limit / size / SPARE_SHARE).max(1),
            count: 0,
            live: 0,
            dead: 0,
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Bits of an offset in units.
    pub(crate) fn unit_bits(&self) -> u32 {
        (self.size / UNIT).ilog2()
    }

    /// Whether there is a number left for another one.
    pub(crate) fn can_open(&self) -> bool {
        !self.free.is_empty() || self.all.len() < segments_max(self.unit_bits())
    }

    pub(crate) fn bytes(&self) -> usize {
        (self.count + self.spares.len()) * self.size
    }

    /// What records in them have of it.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// How many have memory.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Bytes that no record needs any more.
    pub(crate) fn dead(&self) -> usize {
        self.dead
    }

    /// Bytes that a new segment adds to what is occupied.
    pub(crate) fn cost_of_one(&self) -> usize {
        if self.spares.is_empty() { self.size } else { 0 }
    }

    /// A new segment. `None` if no number is left, or the system has no memory left.
    pub(crate) fn open(&mut self, stage: Stage, class: usize) -> Option<u32> {
        let bytes = match self.spares.pop() {
            Some(spare) => spare,
            None => self.regions.claim()?,
        };
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.all.len() < segments_max(self.unit_bits()) => {
                self.all.push(Segment {
                    bytes: Piece::default(),
                    generation: 0,
                    stage,
                    class,
                    end: 0,
                    cursor: 0,
                    live: 0,
                    extents: 0,
                    latest: 0,
                    is_open: false,
                });
                u32::try_from(self.all.len() - 1).ok()?
            }
            None => return None,
        };
        let segment = self.at_mut(number);
        *segment = Segment {
            bytes,
            generation: segment.generation.checked_add(1).unwrap_or(1),
            stage,
            class,
            end: 0,
            cursor: 0,
            live: 0,
            extents: 0,
            latest: if class == lifetime::NEVER {
                Seconds::MAX
            } else {
                0
            },
            is_open: true,
        };
        self.count += 1;
        Some(number)
    }

    /// Frees a segment; all that was in it is gone.
    pub(crate) fn free(&mut self, number: u32) {
        let segment = self.at_mut(number);
        let bytes = std::mem::take(&mut segment.bytes);
        let (live, end) = (segment.live, segment.end);
        segment.is_open = false;
        self.live -= live;
        self.dead -= end - live;
        self.count -= 1;
        self.spares.push(bytes);
        self.free.push(number);
    }

    /// Gives the memory back that is kept for the next segments.
    pub(crate) fn release_spares(&mut self) {
        self.spares = Vec::new();
        self.regions.unmap_empty();
    }

    /// Gives an eighth of the memory back that is kept for more of the next segments than will soon
    /// be begun.
    pub(crate) fn release_surplus(&mut self) {
        let surplus = self.spares.len().saturating_sub(self.spares_max);
        self.spares
            .truncate(self.spares.len() - surplus.div_ceil(8));
    }

    /// Gives the memory back that is kept for one of the next segments. Whether there was any.
    pub(crate) fn let_one_spare_go(&mut self) -> bool {
        self.spares.pop().is_some()
    }

    /// Whether a number stands for memory.
    pub(crate) fn is_used(&self, number: u32, generation: u8) -> bool {
        let segment = self.at(number);
        segment.generation == generation && !segment.bytes.is_empty()
    }

    /// Numbers of all that have memory.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        let used = |(_, segment): &(usize, &Segment)| !segment.bytes.is_empty();
        self.all
            .iter()
            .enumerate()
            .filter(used)
            .map(|(number, _)| number as u32)
    }

    pub(crate) fn at(&self, number: u32) -> &Segment {
        &self.all[number as usize]
    }

    pub(crate) fn at_mut(&mut self, number: u32) -> &mut Segment {
        &mut self.all[number as usize]
    }

    /// Whether a record of this length fits at a segment's end.
    pub(crate) fn has_room(&self, number: u32, length: usize) -> bool {
        self.at(number).end + length <= self.size
    }

    /// Reserves room for a record that fits, and counts it as alive.
    pub(crate) fn append(&mut self, number: u32, length: usize) -> RecordLocation {
        self.live += length;
        let segment = self.at_mut(number);
        let at = segment.end;
        segment.end += length;
        segment.live += length;
        segment.place(number, at)
    }

    /// The place of what begins at this offset.
    pub(crate) fn place(&self, number: u32, at: usize) -> RecordLocation {
        self.at(number).place(number, at)
    }

    /// A record, and whatever lies behind it.
    #[inline]
    pub(crate) fn record(&self, place: RecordLocation) -> &[u8] {
        let segment = self.at(place.segment);
        &segment.bytes[place.unit as usize * UNIT..]
    }

    pub(crate) fn record_mut(&mut self, place: RecordLocation) -> &mut [u8] {
        let segment = self.at_mut(place.segment);
        &mut segment.bytes[place.unit as usize * UNIT..]
    }

    /// A record dies. Whether nothing in its segment lives any more, and none is appended.
    pub(crate) fn kill(&mut self, place: RecordLocation) -> bool {
        let record = self.record_mut(place);
        let mut head = Head::read(record);
        head.is_dead = true;
        head.write(record);
        let length = head.record_length();
        self.live -= length;
        self.dead += length;
        let segment = self.at_mut(place.segment);
        segment.live -= length;
        segment.live == 0 && !segment.is_open
    }

    pub(crate) fn clear(&mut self) {
        for number in self.numbers().collect::<Vec<_>>() {
            self.free(number);
        }
        self.release_spares();
    }
}

impl Segment {
    fn place(&self, number: u32, at: usize) -> RecordLocation {
        RecordLocation {
            segment: number,
            unit: (at / UNIT) as u32,
        }
    }
}
