//! From a key's hash to the place of its record: a hash table that grows and shrinks by one bucket
//! at a time.
//!
//! Linear hashing: there are `buckets` of them, the next to be split is the one that the latest
//! would have shared a number with, so no operation ever moves the whole table. A bucket is a line
//! of the processor's cache: seven slots and the number of a bucket that what does not fit goes on
//! in. A slot holds the place, a part of the hash, so that other keys' records are hardly ever
//! looked at, and how often the object has been used.
//!
//! Keys are compared by the caller, who knows where they lie.

/// Slots of a bucket.
const WIDTH: usize = 7;

/// Buckets are allocated by so many: 4 KiB.
const CHUNK: usize = 64;

/// More objects a bucket than this on the average split one.
const LOAD_MAX: usize = 6;

/// Fewer than this merge two.
const LOAD_MIN: usize = 4;

/// How often an object has been used is counted up to this.
pub(crate) const USES_MAX: u8 = 3;

/// Where a record is: segment, offset in units, and the generation that the segment had when the
/// record was written, so that the place of what has gone is never mistaken for what lies there
/// now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordLocation {
    pub(crate) segment: u32,
    pub(crate) unit: u32,
    pub(crate) generation: u8,
}

const UNIT_BITS: u32 = 18;
const SEGMENT_BITS: u32 = 22;
const GENERATION_BITS: u32 = 8;
const USES_BITS: u32 = 2;
const AT_SEGMENT: u32 = UNIT_BITS;
const AT_GENERATION: u32 = AT_SEGMENT + SEGMENT_BITS;
const AT_USES: u32 = AT_GENERATION + GENERATION_BITS;
const AT_TAG: u32 = AT_USES + USES_BITS;

/// Units that an offset can name.
pub(crate) const UNITS_MAX: usize = 1 << UNIT_BITS;

/// Segments that a place can name.
pub(crate) const SEGMENTS_MAX: usize = 1 << SEGMENT_BITS;

/// A place, the uses of what is there, and a part of the hash. 0 is none: a generation never is.
type Slot = u64;

fn slot(hash: u64, place: RecordLocation, uses: u8) -> Slot {
    u64::from(place.unit)
        | u64::from(place.segment) << AT_SEGMENT
        | u64::from(place.generation) << AT_GENERATION
        | u64::from(uses) << AT_USES
        | hash >> AT_TAG << AT_TAG
}

fn place(slot: Slot) -> RecordLocation {
    RecordLocation {
        unit: (slot & ((1 << UNIT_BITS) - 1)) as u32,
        segment: (slot >> AT_SEGMENT & ((1 << SEGMENT_BITS) - 1)) as u32,
        generation: (slot >> AT_GENERATION) as u8,
    }
}

fn uses(slot: Slot) -> u8 {
    (slot >> AT_USES) as u8 & USES_MAX
}

#[repr(align(64))]
#[derive(Clone, Copy)]
struct Bucket {
    slots: [Slot; WIDTH],
    /// The number of the overflow bucket that it goes on in, and one; or 0.
    next: u32,
}

const EMPTY: Bucket = Bucket {
    slots: [0; WIDTH],
    next: 0,
};

/// Buckets that can be added and taken away at the end.
#[derive(Default)]
struct Chunks(Vec<Box<[Bucket; CHUNK]>>);

impl Chunks {
    fn bytes(&self) -> usize {
        self.0.len() * size_of::<[Bucket; CHUNK]>()
    }

    fn fit(&mut self, buckets: usize) {
        let wanted = buckets.div_ceil(CHUNK);
        while self.0.len() < wanted {
            self.0.push(Box::new([EMPTY; CHUNK]));
        }
        // One more may stay, or a table that hovers about a chunk's end would allocate all the
        // time.
        self.0.truncate(wanted + 1);
    }

    fn at(&self, bucket: usize) -> &Bucket {
        &self.0[bucket / CHUNK][bucket % CHUNK]
    }

    fn at_mut(&mut self, bucket: usize) -> &mut Bucket {
        &mut self.0[bucket / CHUNK][bucket % CHUNK]
    }
}

/// A bucket: one of the table's, or one that others go on in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Main(usize),
    Overflow(usize),
}

/// A slot that was found. Good until the index is changed otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotMatch {
    bucket: Which,
    slot: usize,
    pub(crate) place: RecordLocation,
    pub(crate) uses: u8,
}

pub(crate) struct Index {
    main: Chunks,
    buckets: usize,
    overflow: Chunks,
    overflow_used: usize,
    /// Those of them that something goes on in.
    overflow_live: usize,
    /// The first of the overflow buckets that are free, linked by `next`, and one; or 0.
    overflow_free: u32,
    objects: usize,
}

impl Index {
    pub(crate) fn new() -> Index {
        let mut main = Chunks::default();
        main.fit(1);
        Index {
            main,
            buckets: 1,
            overflow: Chunks::default(),
            overflow_used: 0,
            overflow_live: 0,
            overflow_free: 0,
            objects: 0,
        }
    }

    /// What the table occupies.
    pub(crate) fn bytes(&self) -> usize {
        self.main.bytes() + self.overflow.bytes()
    }

    /// How many objects there are.
    pub(crate) fn objects(&self) -> usize {
        self.objects
    }

    /// Number of buckets, for walks over all.
    pub(crate) fn buckets(&self) -> usize {
        self.buckets
    }

    /// The slot with this hash whose record is the one that is looked for.
    pub(crate) fn find(
        &self,
        hash: u64,
        mut is_it: impl FnMut(RecordLocation) -> bool,
    ) -> Option<SlotMatch> {
        let mut which = Which::Main(self.bucket_of(hash));
        loop {
            let bucket = self.bucket(which);
            for (number, slot) in bucket.slots.iter().enumerate() {
                if *slot != 0 && slot >> AT_TAG == hash >> AT_TAG && is_it(place(*slot)) {
                    return Some(SlotMatch {
                        bucket: which,
                        slot: number,
                        place: place(*slot),
                        uses: uses(*slot),
                    });
                }
            }
            which = Which::Overflow(bucket.next.checked_sub(1)? as usize);
        }
    }

    /// Adds an object that is not there. `hash_of` gives the hash of any that is.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        place: RecordLocation,
        uses: u8,
        hash_of: impl Fn(RecordLocation) -> u64,
    ) {
        self.put(self.bucket_of(hash), slot(hash, place, uses));
        self.objects += 1;
        if self.objects > self.buckets * LOAD_MAX {
            self.split(hash_of);
        }
    }

    /// Gives a found object another place, and other uses.
    pub(crate) fn replace(&mut self, found: SlotMatch, hash: u64, place: RecordLocation, uses: u8) {
        self.bucket_mut(found.bucket).slots[found.slot] = slot(hash, place, uses);
    }

    /// Counts a use of a found object.
    pub(crate) fn count_use(&mut self, found: SlotMatch, hash: u64) {
        if found.uses < USES_MAX {
            self.replace(found, hash, found.place, found.uses + 1);
        }
    }

    /// Takes a found object out.
    pub(crate) fn remove(&mut self, found: SlotMatch, hash: u64) {
        self.bucket_mut(found.bucket).slots[found.slot] = 0;
        self.objects -= 1;
        let number = self.bucket_of(hash);
        if self.main.at(number).next != 0 {
            // Chains are seldom; what is left of this one is put together.
            self.gather(number).into_iter().for_each(|slot| {
                self.put(number, slot);
            });
        }
        if self.buckets > 1 && self.objects < self.buckets * LOAD_MIN {
            self.merge();
        }
    }

    /// The places in a bucket.
    pub(crate) fn places(&self, bucket: usize) -> Vec<RecordLocation> {
        let mut places = Vec::new();
        let mut which = Which::Main(bucket);
        loop {
            let bucket = self.bucket(which);
            let taken = bucket.slots.iter().filter(|slot| **slot != 0);
            places.extend(taken.map(|slot| place(*slot)));
            match bucket.next {
                0 => return places,
                next => which = Which::Overflow(next as usize - 1),
            }
        }
    }

    fn bucket_of(&self, hash: u64) -> usize {
        // The lowest bits have chosen the shard.
        let hash = (hash >> 8) as usize;
        let doubled = self.buckets.next_power_of_two();
        let bucket = hash & (doubled - 1);
        if bucket < self.buckets {
            bucket
        } else {
            bucket & (doubled / 2 - 1)
        }
    }

    fn bucket(&self, which: Which) -> &Bucket {
        match which {
            Which::Main(number) => self.main.at(number),
            Which::Overflow(number) => self.overflow.at(number),
        }
    }

    fn bucket_mut(&mut self, which: Which) -> &mut Bucket {
        match which {
            Which::Main(number) => self.main.at_mut(number),
            Which::Overflow(number) => self.overflow.at_mut(number),
        }
    }

    /// Puts a slot where there is room in a bucket and what it goes on in.
    fn put(&mut self, number: usize, slot: Slot) {
        let mut which = Which::Main(number);
        loop {
            let bucket = self.bucket_mut(which);
            if let Some(free) = bucket.slots.iter_mut().find(|slot| **slot == 0) {
                *free = slot;
                return;
            }
            which = match bucket.next {
                0 => {
                    let more = self.overflow_bucket();
                    self.bucket_mut(which).next = more as u32 + 1;
                    Which::Overflow(more)
                }
                next => Which::Overflow(next as usize - 1),
            };
        }
    }

    fn overflow_bucket(&mut self) -> usize {
        self.overflow_live += 1;
        match self.overflow_free {
            0 => {
                let number = self.overflow_used;
                self.overflow_used += 1;
                self.overflow.fit(self.overflow_used);
                number
            }
            free => {
                let number = free as usize - 1;
                let bucket = self.overflow.at_mut(number);
                self.overflow_free = bucket.next;
                *bucket = EMPTY;
                number
            }
        }
    }

    /// Empties a bucket and what it goes on in.
    fn gather(&mut self, number: usize) -> Vec<Slot> {
        let bucket = std::mem::replace(self.main.at_mut(number), EMPTY);
        let mut slots: Vec<Slot> = bucket.slots.to_vec();
        let mut next = bucket.next;
        while let Some(number) = next.checked_sub(1) {
            let free = Bucket {
                next: self.overflow_free,
                ..EMPTY
            };
            let bucket = std::mem::replace(self.overflow.at_mut(number as usize), free);
            self.overflow_free = next;
            self.overflow_live -= 1;
            slots.extend(bucket.slots);
            next = bucket.next;
        }
        if self.objects == 0 {
            self.forget_overflow();
        }
        slots.retain(|slot| *slot != 0);
        slots
    }

    fn split(&mut self, hash_of: impl Fn(RecordLocation) -> u64) {
        let added = self.buckets;
        let doubled = (added + 1).next_power_of_two();
        let slots = self.gather(added & (doubled / 2 - 1));
        self.buckets += 1;
        self.main.fit(self.buckets);
        for slot in slots {
            self.put(self.bucket_of(hash_of(place(slot))), slot);
        }
    }

    fn merge(&mut self) {
        let last = self.buckets - 1;
        let doubled = self.buckets.next_power_of_two();
        let slots = self.gather(last);
        self.buckets -= 1;
        self.main.fit(self.buckets);
        for slot in slots {
            self.put(last & (doubled / 2 - 1), slot);
        }
        if self.overflow_used > 4 * CHUNK && self.overflow_live * 4 < self.overflow_used {
            self.pack_overflow();
        }
    }

    /// Puts the overflow buckets that are needed together, so that the others give their memory
    /// back.
    fn pack_overflow(&mut self) {
        let old = self.forget_overflow();
        for number in 0..self.buckets {
            let mut next = std::mem::take(&mut self.main.at_mut(number).next);
            while let Some(before) = next.checked_sub(1) {
                let bucket = *old.at(before as usize);
                let slots = bucket.slots.into_iter().filter(|slot| *slot != 0);
                slots.for_each(|slot| self.put(number, slot));
                next = bucket.next;
            }
        }
    }

    fn forget_overflow(&mut self) -> Chunks {
        self.overflow_used = 0;
        self.overflow_live = 0;
        self.overflow_free = 0;
        std::mem::take(&mut self.overflow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place_of(number: u32) -> RecordLocation {
        RecordLocation {
            segment: number >> 4,
            unit: number & 15,
            generation: (number % 255) as u8 + 1,
        }
    }

    fn number_of(place: RecordLocation) -> u32 {
        place.segment << 4 | place.unit
    }

    fn hash(number: u32) -> u64 {
        base::hash::of(&number.to_le_bytes())
    }

    fn find(index: &Index, number: u32) -> Option<SlotMatch> {
        index.find(hash(number), |place| number_of(place) == number)
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes hours")]
    fn everything_is_found_while_the_table_grows_and_shrinks() {
        let mut index = Index::new();
        for number in 0..20_000 {
            let uses = (number % 4) as u8;
            index.insert(hash(number), place_of(number), uses, |place| {
                hash(number_of(place))
            });
        }
        for number in 0..20_000 {
            let found = find(&index, number).unwrap();
            assert_eq!(found.place, place_of(number));
            assert_eq!(u32::from(found.uses), number % 4);
        }
        assert!(find(&index, 20_000).is_none());
        let all: usize = (0..index.buckets()).map(|at| index.places(at).len()).sum();
        assert_eq!(all, 20_000);
        let full = index.bytes();
        assert!(full < 20_000 * 15, "{full}"); // by the seed of the process
        for number in 0..19_990 {
            let found = find(&index, number).unwrap();
            index.remove(found, hash(number));
            assert!(find(&index, number).is_none());
        }
        assert!((19_990..20_000).all(|number| find(&index, number).is_some()));
        assert!(index.bytes() < full / 4, "{}", index.bytes());
    }

    #[test]
    fn uses_are_counted_up_to_three() {
        let mut index = Index::new();
        index.insert(hash(1), place_of(1), 0, |_| unreachable!());
        for expected in [0, 1, 2, 3, 3] {
            let found = find(&index, 1).unwrap();
            assert_eq!(found.uses, expected);
            index.count_use(found, hash(1));
        }
    }

    #[test]
    fn hashes_that_are_all_the_same_are_a_chain() {
        let mut index = Index::new();
        for number in 0..100 {
            index.insert(5, place_of(number), 0, |_| 5);
        }
        for number in 0..100 {
            let found = index.find(5, |place| number_of(place) == number).unwrap();
            index.remove(found, 5);
        }
        assert_eq!(index.objects(), 0);
        index.insert(5, place_of(1), 0, |_| 5);
        assert_eq!(index.places(0).len(), 1);
    }
}
