//! The index from a key's hash to the location of its record: a hash table that grows and shrinks
//! by one bucket at a time.
//!
//! Linear hashing: the next bucket to be split is the one that contains the hashes of the bucket to
//! be added, so no operation moves the whole table. A bucket is a cache line: ten slots and the
//! number of an overflow bucket for further entries. Buckets that have not been split yet hold up
//! to twice as many entries as the others and overflow often, so an overflow bucket has only half a
//! cache line. A slot has six bytes: the location, a part of the hash and the object's use count.
//! By the part of the hash, records of other keys are hardly ever read. In a chain, all buckets
//! except the last are full.
//!
//! The caller compares keys, since only the caller can find a record's key.

/// Number of slots in a bucket of the table.
const WIDTH: usize = 10;

/// Number of slots in an overflow bucket.
const OVERFLOW_WIDTH: usize = 4;

/// Number of buckets that are allocated together: 4 KiB, or 2 KiB of overflow buckets.
const CHUNK: usize = 64;

/// A bucket is split if there are more objects than this per bucket on average: 8.3 to 8.9 bytes
/// per object.
const LOAD_MAX: usize = 9;

/// Two buckets are merged if there are fewer objects than this per bucket on average.
const LOAD_MIN: usize = 6;

/// Maximum of an object's use count.
pub(crate) const USES_MAX: u8 = 3;

/// The location of a record: its segment, and its offset in units. Valid as long as the index
/// contains the object: slots are changed before their segment is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordLocation {
    pub(crate) segment: u32,
    pub(crate) unit: u32,
}

/// Number of different offsets in a segment, in units.
pub(crate) const UNITS_MAX: usize = 1 << 18;

/// Maximum number of segments, if offsets in a segment have this many bits: 16 GiB of records.
pub(crate) fn segments_max(unit_bits: u32) -> usize {
    (u32::MAX >> unit_bits) as usize
}

/// The bits of a slot's marks that contain the use count; the others contain a part of the hash.
const USES: u16 = USES_MAX as u16;

/// The content of a slot.
#[derive(Clone, Copy)]
struct Entry {
    /// The number of the location, plus one.
    place: u32,
    /// A part of the hash, and the use count.
    marks: u16,
}

/// The part of a hash that a slot contains, without the use count.
fn tag(hash: u64) -> u16 {
    (hash >> 48) as u16 & !USES
}

/// A bucket of the table, or an overflow bucket, which has fewer slots.
#[repr(C, align(32))]
#[derive(Clone, Copy)]
struct Bucket<const N: usize> {
    /// Numbers of locations, plus one; 0 in a free slot.
    places: [u32; N],
    /// Parts of hashes and use counts, by slot; see [`Entry::marks`].
    marks: [u16; N],
    /// The number of the next overflow bucket of the chain, plus one; 0 if there is none.
    next: u32,
}

impl<const N: usize> Bucket<N> {
    const EMPTY: Bucket<N> = Bucket {
        places: [0; N],
        marks: [0; N],
        next: 0,
    };

    /// The first slot with this part of a hash for which `is_it` returns true; `is_it` gets the
    /// number of the slot's location, plus one.
    #[inline]
    fn find(&self, tag: u16, mut is_it: impl FnMut(u32) -> bool) -> Option<(usize, Entry)> {
        let mut same = 0_u32;
        for (number, marks) in self.marks.iter().enumerate() {
            same |= u32::from((marks ^ tag) & !USES == 0) << number;
        }
        while same != 0 {
            let number = same.trailing_zeros() as usize;
            same &= same - 1;
            let (place, marks) = (self.places[number], self.marks[number]);
            if place != 0 && is_it(place) {
                return Some((number, Entry { place, marks }));
            }
        }
        None
    }

    /// The first free slot.
    fn free(&self) -> Option<usize> {
        self.places.iter().position(|place| *place == 0)
    }

    fn set(&mut self, slot: usize, entry: Entry) {
        self.places[slot] = entry.place;
        self.marks[slot] = entry.marks;
    }

    /// The contents of the used slots.
    fn entries(&self) -> impl Iterator<Item = Entry> {
        let all = self.places.iter().zip(&self.marks);
        all.filter(|(place, _)| **place != 0)
            .map(|(place, marks)| Entry {
                place: *place,
                marks: *marks,
            })
    }
}

/// Contiguous buckets, none of which crosses a cache line.
#[repr(align(64))]
struct Chunk<const N: usize>([Bucket<N>; CHUNK]);

/// A growable array of buckets, in chunks that are never moved.
struct Chunks<const N: usize>(Vec<Box<Chunk<N>>>);

impl<const N: usize> Chunks<N> {
    fn bytes(&self) -> usize {
        self.0.len() * size_of::<Chunk<N>>()
    }

    /// Allocates chunks for this number of buckets, and frees surplus chunks.
    fn fit(&mut self, buckets: usize) {
        let wanted = buckets.div_ceil(CHUNK);
        while self.0.len() < wanted {
            self.0.push(Box::new(Chunk([Bucket::EMPTY; CHUNK])));
        }
        // One surplus chunk is kept, so that a table whose size varies around the end of a chunk
        // does not allocate a chunk again and again.
        self.0.truncate(wanted + 1);
    }

    #[inline]
    fn at(&self, bucket: usize) -> &Bucket<N> {
        &self.0[bucket / CHUNK].0[bucket % CHUNK]
    }

    fn at_mut(&mut self, bucket: usize) -> &mut Bucket<N> {
        &mut self.0[bucket / CHUNK].0[bucket % CHUNK]
    }
}

/// A bucket of the table, or an overflow bucket, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BucketRef {
    Main(usize),
    Overflow(usize),
}

/// A slot that was found. Valid until the index is next changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotMatch {
    bucket: BucketRef,
    slot: usize,
    pub(crate) place: RecordLocation,
    pub(crate) uses: u8,
}

/// The index of a shard.
pub(crate) struct Index {
    main: Chunks<WIDTH>,
    /// Number of buckets in the table.
    buckets: usize,
    overflow: Chunks<OVERFLOW_WIDTH>,
    /// Number of overflow buckets that have been allocated since the table was last compacted,
    /// including free ones.
    overflow_used: usize,
    /// Number of overflow buckets that are part of a chain.
    overflow_live: usize,
    /// The number of the first free overflow bucket, plus one; 0 if there is none. Free buckets are
    /// linked by `next`.
    overflow_free: u32,
    objects: usize,
    /// Number of bits of a location's number that are the offset in the segment.
    unit_bits: u32,
}

impl Index {
    /// An empty index for segments in which an offset, in units, has this many bits.
    pub(crate) fn new(unit_bits: u32) -> Index {
        let mut main = Chunks(Vec::new());
        main.fit(1);
        Index {
            main,
            buckets: 1,
            overflow: Chunks(Vec::new()),
            overflow_used: 0,
            overflow_live: 0,
            overflow_free: 0,
            objects: 0,
            unit_bits,
        }
    }

    /// Memory of the table, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.main.bytes() + self.overflow.bytes()
    }

    /// Number of objects.
    pub(crate) fn objects(&self) -> usize {
        self.objects
    }

    /// Number of buckets.
    pub(crate) fn buckets(&self) -> usize {
        self.buckets
    }

    /// The slot with this hash for whose record `is_it` returns true.
    #[inline(always)] // the result stays in registers
    pub(crate) fn find(
        &self,
        hash: u64,
        mut is_it: impl FnMut(RecordLocation) -> bool,
    ) -> Option<SlotMatch> {
        let (tag, number) = (tag(hash), self.bucket_of(hash));
        let mut is_it = |place| is_it(self.location(place));
        let bucket = self.main.at(number);
        if let Some((slot, entry)) = bucket.find(tag, &mut is_it) {
            return Some(self.slot_match(BucketRef::Main(number), slot, entry));
        }
        let mut next = bucket.next;
        while let Some(number) = next.checked_sub(1) {
            let number = number as usize;
            let bucket = self.overflow.at(number);
            if let Some((slot, entry)) = bucket.find(tag, &mut is_it) {
                return Some(self.slot_match(BucketRef::Overflow(number), slot, entry));
            }
            next = bucket.next;
        }
        None
    }

    /// Adds an object that the index does not contain. `hash_of` returns the hash of an object that
    /// it contains.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        place: RecordLocation,
        uses: u8,
        hash_of: impl Fn(RecordLocation) -> u64,
    ) {
        self.put(self.bucket_of(hash), self.entry(hash, place, uses));
        self.objects += 1;
        if self.objects > self.buckets * LOAD_MAX {
            self.split(hash_of);
        }
    }

    /// Changes the location and the use count of a found object.
    pub(crate) fn replace(&mut self, found: SlotMatch, hash: u64, place: RecordLocation, uses: u8) {
        let entry = self.entry(hash, place, uses);
        self.set(found.bucket, found.slot, entry);
    }

    /// Counts a use of a found object.
    #[inline]
    pub(crate) fn count_use(&mut self, found: SlotMatch, hash: u64) {
        if found.uses < USES_MAX {
            self.replace(found, hash, found.place, found.uses + 1);
        }
    }

    /// Removes a found object.
    pub(crate) fn remove(&mut self, found: SlotMatch, hash: u64) {
        self.objects -= 1;
        self.empty_slot(self.bucket_of(hash), found);
        if self.buckets > 1 && self.objects < self.buckets * LOAD_MIN {
            self.merge();
        }
        if self.objects == 0 {
            self.forget_overflow();
        }
    }

    /// The locations of the records in a bucket and its overflow buckets.
    pub(crate) fn places(&self, bucket: usize) -> Vec<RecordLocation> {
        let entries = self.entries(bucket).into_iter();
        entries.map(|entry| self.location(entry.place)).collect()
    }

    /// The location with this number plus one.
    fn location(&self, place: u32) -> RecordLocation {
        let number = place.wrapping_sub(1);
        RecordLocation {
            segment: number >> self.unit_bits,
            unit: number & ((1 << self.unit_bits) - 1),
        }
    }

    /// The content of a slot for an object.
    fn entry(&self, hash: u64, place: RecordLocation, uses: u8) -> Entry {
        Entry {
            place: (place.segment << self.unit_bits | place.unit) + 1,
            marks: tag(hash) | u16::from(uses),
        }
    }

    fn slot_match(&self, bucket: BucketRef, slot: usize, entry: Entry) -> SlotMatch {
        SlotMatch {
            bucket,
            slot,
            place: self.location(entry.place),
            uses: (entry.marks & USES) as u8,
        }
    }

    /// The entries of a bucket and its overflow buckets.
    fn entries(&self, number: usize) -> Vec<Entry> {
        let bucket = self.main.at(number);
        let mut entries: Vec<Entry> = bucket.entries().collect();
        let mut next = bucket.next;
        while let Some(number) = next.checked_sub(1) {
            let bucket = self.overflow.at(number as usize);
            entries.extend(bucket.entries());
            next = bucket.next;
        }
        entries
    }

    /// Empties the slot of a found object of this bucket. If the bucket has overflow buckets, the
    /// last entry of the chain is moved to the slot, so that chains stay as short as possible.
    fn empty_slot(&mut self, number: usize, found: SlotMatch) {
        let none = Entry { place: 0, marks: 0 };
        let (mut before, mut last) = (BucketRef::Main(number), BucketRef::Main(number));
        while let Some(next) = self.next(last).checked_sub(1) {
            (before, last) = (last, BucketRef::Overflow(next as usize));
        }
        let BucketRef::Overflow(at) = last else {
            return self.set(found.bucket, found.slot, none);
        };
        let bucket = self.overflow.at(at);
        let taken = bucket.places.iter().rposition(|place| *place != 0);
        let taken = taken.unwrap_or_default(); // the last of a chain holds something
        let entry = Entry {
            place: bucket.places[taken],
            marks: bucket.marks[taken],
        };
        self.set(found.bucket, found.slot, entry);
        self.set(last, taken, none);
        if self.overflow.at(at).places == [0; OVERFLOW_WIDTH] {
            self.set_next(before, 0);
            self.free_overflow(at);
        }
    }

    /// The bucket at a position of a walk over all objects, and the position after the bucket;
    /// `None` at the end.
    ///
    /// A position is a hash with its bits reversed. A bucket contains the hashes with the same low
    /// bits, which are a contiguous range of positions; splitting and merging buckets divides and
    /// joins such ranges. So a walk visits all objects that exist throughout, even if the table
    /// grows or shrinks in the meantime; after a merge it may visit some objects twice.
    pub(crate) fn bucket_at(&self, position: u64) -> (usize, Option<u64>) {
        let bucket = self.bucket_of_bits(position.reverse_bits() as usize);
        let doubled = self.buckets.next_power_of_two();
        // A bucket that has not been split, or has been merged, is selected by one bit fewer.
        let is_split = bucket >= doubled / 2 || bucket + doubled / 2 < self.buckets;
        let bits = if is_split {
            doubled.ilog2()
        } else {
            doubled.ilog2() - 1
        };
        let Some(range) = 1_u64.checked_shl(u64::BITS - bits) else {
            return (bucket, None); // the only bucket
        };
        let begin = position & !(range - 1);
        (bucket, begin.checked_add(range))
    }

    /// The bucket of a hash.
    fn bucket_of(&self, hash: u64) -> usize {
        // The lowest bits have selected the shard.
        self.bucket_of_bits((hash >> 8) as usize)
    }

    /// The bucket that the low bits of a hash select.
    fn bucket_of_bits(&self, hash: usize) -> usize {
        let doubled = self.buckets.next_power_of_two();
        let bucket = hash & (doubled - 1);
        if bucket < self.buckets {
            bucket
        } else {
            bucket & (doubled / 2 - 1)
        }
    }

    fn next(&self, which: BucketRef) -> u32 {
        match which {
            BucketRef::Main(number) => self.main.at(number).next,
            BucketRef::Overflow(number) => self.overflow.at(number).next,
        }
    }

    fn set_next(&mut self, which: BucketRef, next: u32) {
        match which {
            BucketRef::Main(number) => self.main.at_mut(number).next = next,
            BucketRef::Overflow(number) => self.overflow.at_mut(number).next = next,
        }
    }

    #[inline]
    fn set(&mut self, which: BucketRef, slot: usize, entry: Entry) {
        match which {
            BucketRef::Main(number) => self.main.at_mut(number).set(slot, entry),
            BucketRef::Overflow(number) => self.overflow.at_mut(number).set(slot, entry),
        }
    }

    /// Adds an entry to the first free slot of a bucket and its overflow buckets; adds an overflow
    /// bucket if all are full.
    fn put(&mut self, number: usize, entry: Entry) {
        let mut which = BucketRef::Main(number);
        loop {
            let free = match which {
                BucketRef::Main(number) => self.main.at(number).free(),
                BucketRef::Overflow(number) => self.overflow.at(number).free(),
            };
            if let Some(free) = free {
                return self.set(which, free, entry);
            }
            which = match self.next(which) {
                0 => {
                    let more = self.overflow_bucket();
                    self.set_next(which, more as u32 + 1);
                    BucketRef::Overflow(more)
                }
                next => BucketRef::Overflow(next as usize - 1),
            };
        }
    }

    /// Allocates an overflow bucket.
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
                *bucket = Bucket::EMPTY;
                number
            }
        }
    }

    /// Adds an overflow bucket to the free ones.
    fn free_overflow(&mut self, number: usize) {
        *self.overflow.at_mut(number) = Bucket {
            next: self.overflow_free,
            ..Bucket::EMPTY
        };
        self.overflow_free = number as u32 + 1;
        self.overflow_live -= 1;
    }

    /// Empties a bucket, and frees its overflow buckets; returns their entries.
    fn gather(&mut self, number: usize) -> Vec<Entry> {
        let entries = self.entries(number);
        let mut next = self.main.at(number).next;
        *self.main.at_mut(number) = Bucket::EMPTY;
        while let Some(number) = next.checked_sub(1) {
            next = self.overflow.at(number as usize).next;
            self.free_overflow(number as usize);
        }
        entries
    }

    /// Adds a bucket to the table, and divides the entries of the bucket that contained its hashes.
    fn split(&mut self, hash_of: impl Fn(RecordLocation) -> u64) {
        let added = self.buckets;
        let doubled = (added + 1).next_power_of_two();
        let entries = self.gather(added & (doubled / 2 - 1));
        self.buckets += 1;
        self.main.fit(self.buckets);
        for entry in entries {
            let hash = hash_of(self.location(entry.place));
            self.put(self.bucket_of(hash), entry);
        }
    }

    /// Removes the table's last bucket, and moves its entries to the bucket that it was split from.
    fn merge(&mut self) {
        let last = self.buckets - 1;
        let doubled = self.buckets.next_power_of_two();
        let entries = self.gather(last);
        self.buckets -= 1;
        self.main.fit(self.buckets);
        for entry in entries {
            self.put(last & (doubled / 2 - 1), entry);
        }
        if self.overflow_used > 4 * CHUNK && self.overflow_live * 4 < self.overflow_used {
            self.pack_overflow();
        }
    }

    /// Moves all overflow buckets that are in use to new chunks, so that the memory of free ones is
    /// released.
    fn pack_overflow(&mut self) {
        let old = self.forget_overflow();
        for number in 0..self.buckets {
            let mut next = std::mem::take(&mut self.main.at_mut(number).next);
            while let Some(before) = next.checked_sub(1) {
                let bucket = *old.at(before as usize);
                bucket.entries().for_each(|entry| self.put(number, entry));
                next = bucket.next;
            }
        }
    }

    /// Removes all overflow buckets and returns them; the table must no longer refer to them.
    fn forget_overflow(&mut self) -> Chunks<OVERFLOW_WIDTH> {
        self.overflow_used = 0;
        self.overflow_live = 0;
        self.overflow_free = 0;
        std::mem::replace(&mut self.overflow, Chunks(Vec::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place_of(number: u32) -> RecordLocation {
        RecordLocation {
            segment: number >> 4,
            unit: number & 15,
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
        let mut index = Index::new(4);
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
        assert!(full < 20_000 * 10, "{full}"); // by the seed of the process
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
        let mut index = Index::new(4);
        index.insert(hash(1), place_of(1), 0, |_| unreachable!());
        for expected in [0, 1, 2, 3, 3] {
            let found = find(&index, 1).unwrap();
            assert_eq!(found.uses, expected);
            index.count_use(found, hash(1));
        }
    }

    #[test]
    fn hashes_that_are_all_the_same_are_a_chain() {
        let mut index = Index::new(4);
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
