//! The dynamic table (RFC 7541, section 2.3.2): the most recent fields of one direction of a
//! connection.
//!
//! The fields' bytes are stored in sequence in one buffer, so that inserting a field and returning
//! one cost one copy each. The space of evicted fields, at the buffer's beginning, is reclaimed
//! when there is no space left at its end.
//!
//! The memory of a table is at most twice its maximum size, 8 KiB for the default of 4096 bytes:
//! the RFC counts 32 bytes for each field, of which the entry of the list takes less than half; the
//! other half allows for unused capacity of the list. An empty table takes none.

use std::collections::VecDeque;

use super::FIELD_OVERHEAD;
use super::check::{Faults, NameKind};

/// Initial capacity of the buffer, in bytes.
const CAPACITY_MIN: usize = 512;

/// A field of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    /// The name, followed by the value.
    pub(super) text: &'a [u8],
    pub(super) name_length: usize,
    pub(super) name: NameKind,
    pub(super) faults: Faults,
}

impl<'a> Entry<'a> {
    pub(super) fn name_bytes(&self) -> &'a [u8] {
        self.text.get(..self.name_length).unwrap_or_default()
    }

    pub(super) fn value_bytes(&self) -> &'a [u8] {
        self.text.get(self.name_length..).unwrap_or_default()
    }
}

/// The metadata of a field in the table.
#[derive(Clone, Copy, Debug)]
struct StoredField {
    /// Offset of the field's bytes in the sequence of all bytes that the table ever had; wraps
    /// around.
    start: u32,
    name_length: u32,
    length: u32,
    name: NameKind,
    faults: Faults,
}

#[derive(Debug)]
pub(super) struct Table {
    /// The bytes of evicted fields, then those of the current fields, oldest first.
    bytes: Vec<u8>,
    /// Number of bytes at the beginning that belong to evicted fields.
    evicted: usize,
    /// Offset of the first byte in the sequence of all bytes; see [`StoredField::start`].
    base: u32,
    fields: VecDeque<StoredField>,
    /// Current size, by RFC 7541, section 4.1.
    size: usize,
    size_max: usize,
    /// Number of changes; wraps around.
    changes: u32,
}

impl Table {
    pub(super) fn new(size_max: usize) -> Table {
        Table {
            bytes: Vec::new(),
            evicted: 0,
            base: 0,
            fields: VecDeque::new(),
            size: 0,
            size_max,
            changes: 0,
        }
    }

    /// Counter of changes: the table is unchanged while this is the same.
    pub(super) fn changes(&self) -> u32 {
        self.changes
    }

    /// Maximum size, by RFC 7541, section 4.1.
    pub(super) fn size_max(&self) -> usize {
        self.size_max
    }

    /// Current size, by RFC 7541, section 4.1.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Number of fields.
    pub(super) fn len(&self) -> usize {
        self.fields.len()
    }

    /// The field that was inserted `age` fields before the last one.
    #[inline]
    pub(super) fn field(&self, age: usize) -> Option<Entry<'_>> {
        let place = self.fields.len().checked_sub(age)?.checked_sub(1)?;
        let kept = self.fields.get(place)?;
        let start = kept.start.wrapping_sub(self.base) as usize;
        let text = self.bytes.get(start..start + kept.length as usize);
        Some(Entry {
            text: text.unwrap_or_default(),
            name_length: kept.name_length as usize,
            name: kept.name,
            faults: kept.faults,
        })
    }

    /// Inserts a field, and evicts others to make room. A field that is larger than the table
    /// empties it.
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8], which: NameKind, faults: Faults) {
        self.changes = self.changes.wrapping_add(1);
        let length = name.len() + value.len();
        let size = length + FIELD_OVERHEAD;
        let Some(left) = self.size_max.checked_sub(size) else {
            self.clear();
            return;
        };
        self.evict(left);
        self.make_room(length);
        self.fields.push_back(StoredField {
            start: self.base.wrapping_add(self.bytes.len() as u32),
            name_length: name.len() as u32,
            length: length as u32,
            name: which,
            faults,
        });
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.size += size;
    }

    /// Changes the maximum size.
    pub(super) fn set_size_max(&mut self, size_max: usize) {
        self.changes = self.changes.wrapping_add(1);
        self.size_max = size_max;
        self.evict(size_max);
        if self.fields.is_empty() {
            self.clear();
        } else if self.bytes.capacity() > size_max {
            self.reclaim();
            self.bytes.shrink_to(size_max);
            self.fields.shrink_to(size_max / FIELD_OVERHEAD);
        }
    }

    /// Removes all fields, and frees the memory.
    fn clear(&mut self) {
        *self = Table {
            changes: self.changes,
            ..Table::new(self.size_max)
        };
    }

    /// Removes the oldest fields until the size is at most `size`.
    fn evict(&mut self, size: usize) {
        while self.size > size
            && let Some(oldest) = self.fields.pop_front()
        {
            self.size -= oldest.length as usize + FIELD_OVERHEAD;
            self.evicted += oldest.length as usize;
        }
    }

    /// Makes room in the buffer for `length` more bytes; the buffer's capacity stays within the
    /// table's maximum size.
    fn make_room(&mut self, length: usize) {
        let needed = self.bytes.len() + length;
        if needed <= self.bytes.capacity() {
            return;
        }
        if needed > self.size_max || self.evicted > self.bytes.len() / 2 {
            self.reclaim();
        }
        let needed = self.bytes.len() + length;
        if needed > self.bytes.capacity() {
            let doubled = (2 * self.bytes.capacity()).max(CAPACITY_MIN);
            let capacity = doubled.min(self.size_max).max(needed);
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
    }

    /// Removes the bytes of evicted fields from the buffer.
    fn reclaim(&mut self) {
        self.bytes.drain(..self.evicted);
        self.base = self.base.wrapping_add(self.evicted as u32);
        self.evicted = 0;
    }

    /// Allocated memory, in bytes.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity() + self.fields.capacity() * size_of::<StoredField>()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Random;
    use super::*;

    /// A naive implementation of the RFC's table.
    struct Model {
        fields: VecDeque<(Vec<u8>, Vec<u8>)>,
        size_max: usize,
    }

    impl Model {
        fn size(&self) -> usize {
            let sizes = self.fields.iter();
            sizes
                .map(|(name, value)| name.len() + value.len() + 32)
                .sum()
        }

        fn insert(&mut self, name: &[u8], value: &[u8]) {
            self.fields.push_front((name.to_vec(), value.to_vec()));
            self.evict();
        }

        fn evict(&mut self) {
            while self.size() > self.size_max {
                self.fields.pop_back();
            }
        }
    }

    fn assert_same(table: &Table, model: &Model) {
        assert_eq!(
            (table.len(), table.size()),
            (model.fields.len(), model.size())
        );
        for (age, (name, value)) in model.fields.iter().enumerate() {
            let entry = table.field(age).unwrap();
            assert_eq!(
                (entry.name_bytes(), entry.value_bytes()),
                (&name[..], &value[..])
            );
            assert_eq!(
                (entry.name, entry.faults),
                (NameKind::of(name), Faults::of_name(name))
            );
        }
        assert!(table.field(table.len()).is_none() && table.field(usize::MAX).is_none());
        assert!(table.memory() <= 2 * table.size_max().max(64));
        assert!(table.len() > 0 || table.memory() == 0);
    }

    #[test]
    fn agrees_with_a_plain_model_through_evictions_and_changes_of_its_size() {
        for (seed, size_max) in [0, 31, 32, 33, 64, 100, 300, 1000, 4096, 20_000]
            .into_iter()
            .enumerate()
        {
            let mut random = Random::new(seed as u64);
            let mut table = Table::new(size_max);
            // Close to the wrap-around of the offset.
            table.base = u32::MAX - 5000;
            let mut model = Model {
                fields: VecDeque::new(),
                size_max,
            };
            for step in 0..1000 {
                if random.below(50) == 0 {
                    let size = random.below(size_max + 1);
                    table.set_size_max(size);
                    model.size_max = size;
                    model.evict();
                } else {
                    let longest = [8, 40, size_max / 2 + 1, size_max + 10][random.below(4)];
                    let (name, value) = (random.below(longest), random.below(longest));
                    let (name, value) = (random.bytes(name), random.bytes(value));
                    table.insert(&name, &value, NameKind::of(&name), Faults::of_name(&name));
                    model.insert(&name, &value);
                }
                if step % 8 == 0 || table.len() < 20 {
                    assert_same(&table, &model);
                }
            }
        }
    }

    #[test]
    fn a_field_as_large_as_the_table_fits_and_a_larger_one_empties_it() {
        let mut table = Table::new(100);
        let which = NameKind::of(b"a");
        table.insert(b"a", &[b'x'; 67], which, Faults::NONE);
        assert_eq!((table.len(), table.size()), (1, 100));
        table.insert(b"a", &[b'x'; 68], which, Faults::NONE);
        assert_eq!((table.len(), table.size(), table.memory()), (0, 0, 0));
    }

    #[test]
    fn a_smaller_size_gives_memory_back() {
        let mut table = Table::new(1 << 20);
        for _ in 0..10_000 {
            table.insert(b"name", &[b'x'; 100], NameKind::of(b"name"), Faults::NONE);
        }
        assert!(table.memory() > 700_000);
        table.set_size_max(4096);
        assert!(table.memory() <= 8192 && table.len() == 4096 / 136);
        table.set_size_max(135);
        assert_eq!(table.memory(), 0);
    }
}
