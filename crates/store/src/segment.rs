//! Segments: contiguous memory to which records are appended, and which is freed as a whole.

use crate::Seconds;
use crate::index::{RecordLocation, UNITS_MAX, segments_max};
use crate::lifetime;
use crate::record::{Head, UNIT};
use crate::region::{Piece, Regions};

/// Maximum size of a segment, in bytes. It bounds the work of an eviction under the lock.
const SEGMENT_MAX: usize = 256 * 1024;

/// Minimum size of a segment in a large shard, in bytes.
const SEGMENT_MIN: usize = 16 * 1024;

/// One in this many segments keeps its memory when it is freed: the next segment then needs no
/// system call and no new pages. Further freed memory is returned gradually.
const SPARE_SHARE: usize = 16;

/// The S3-FIFO queue that a segment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Small,
    /// Objects that were used in the small queue, or were stored again soon after their eviction.
    Main,
}

/// A segment, or a free number of segments.
pub(crate) struct Segment {
    /// The memory; empty if the number is free.
    bytes: Piece,
    /// Changes each time that the number is reused; never 0.
    pub(crate) generation: u8,
    pub(crate) stage: Stage,
    /// The class of lifetimes of the segment's objects.
    pub(crate) class: usize,
    /// End of the last record, in bytes.
    pub(crate) end: usize,
    /// Offset of the next record that eviction will examine.
    pub(crate) cursor: usize,
    /// Total size of records that are not dead.
    pub(crate) live: usize,
    /// Total size of the extents that records of the segment refer to.
    pub(crate) extents: usize,
    /// The latest expiry of the segment's objects; `Seconds::MAX` means never.
    pub(crate) latest: Seconds,
    /// Whether records can still be appended.
    pub(crate) is_open: bool,
}

/// All segments of a shard.
pub(crate) struct Segments {
    /// Size of a segment, in bytes.
    size: usize,
    /// The segments by number, including free numbers.
    all: Vec<Segment>,
    /// Free numbers of segments.
    free: Vec<u32>,
    regions: Regions,
    /// Memory of freed segments, for new ones.
    spares: Vec<Piece>,
    /// Number of spares that are kept permanently.
    spares_max: usize,
    /// Number of segments with memory, without the spares.
    count: usize,
    /// Total size of records that are not dead.
    live: usize,
    /// Total size of dead records in segments that have not been freed.
    dead: usize,
}

impl Segments {
    /// The segments of a shard with this memory limit, in bytes.
    pub(crate) fn new(limit: usize) -> Segments {
        // Segments are small enough that one can be open for each class of lifetimes.
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

    /// Number of bits of an offset in units.
    pub(crate) fn unit_bits(&self) -> u32 {
        (self.size / UNIT).ilog2()
    }

    /// Whether a number is left for another segment.
    pub(crate) fn can_open(&self) -> bool {
        !self.free.is_empty() || self.all.len() < segments_max(self.unit_bits())
    }

    pub(crate) fn bytes(&self) -> usize {
        (self.count + self.spares.len()) * self.size
    }

    /// Total size of records that are not dead, in bytes.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Number of segments with memory.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Total size of dead records, in bytes.
    pub(crate) fn dead(&self) -> usize {
        self.dead
    }

    /// Memory that a new segment adds to the memory occupied, in bytes.
    pub(crate) fn cost_of_one(&self) -> usize {
        if self.spares.is_empty() { self.size } else { 0 }
    }

    /// Opens a segment; returns its number. `None` if no number is left, or the system has no
    /// memory left.
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

    /// Frees a segment with all of its records.
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

    /// Returns all memory that is kept for new segments.
    pub(crate) fn release_spares(&mut self) {
        self.spares = Vec::new();
        self.regions.unmap_empty();
    }

    /// Returns an eighth of the memory that is kept for new segments in excess of the permanent
    /// spares.
    pub(crate) fn release_surplus(&mut self) {
        let surplus = self.spares.len().saturating_sub(self.spares_max);
        self.spares
            .truncate(self.spares.len() - surplus.div_ceil(8));
    }

    /// Returns the memory that is kept for one new segment. False if there was none.
    pub(crate) fn let_one_spare_go(&mut self) -> bool {
        self.spares.pop().is_some()
    }

    /// Whether the segment with this number and generation has not been freed.
    pub(crate) fn is_used(&self, number: u32, generation: u8) -> bool {
        let segment = self.at(number);
        segment.generation == generation && !segment.bytes.is_empty()
    }

    /// Numbers of the segments with memory.
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

    /// Whether a record of this length, in bytes, fits at the end of a segment.
    pub(crate) fn has_room(&self, number: u32, length: usize) -> bool {
        self.at(number).end + length <= self.size
    }

    /// Reserves memory for a record that fits, and counts the record as live.
    pub(crate) fn append(&mut self, number: u32, length: usize) -> RecordLocation {
        self.live += length;
        let segment = self.at_mut(number);
        let at = segment.end;
        segment.end += length;
        segment.live += length;
        segment.place(number, at)
    }

    /// The location of the record at this offset in bytes.
    pub(crate) fn place(&self, number: u32, at: usize) -> RecordLocation {
        self.at(number).place(number, at)
    }

    /// The bytes from the beginning of a record to the end of its segment.
    #[inline]
    pub(crate) fn record(&self, place: RecordLocation) -> &[u8] {
        let segment = self.at(place.segment);
        &segment.bytes[place.unit as usize * UNIT..]
    }

    pub(crate) fn record_mut(&mut self, place: RecordLocation) -> &mut [u8] {
        let segment = self.at_mut(place.segment);
        &mut segment.bytes[place.unit as usize * UNIT..]
    }

    /// Marks a record as dead. Returns whether its segment is closed and all of its records are
    /// dead.
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
