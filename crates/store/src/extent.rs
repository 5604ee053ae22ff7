//! Large objects, each in an allocation of its own: key and value in sequence, lent by reference to
//! the connection that sends them.

use bytes::Bytes;

use crate::sync::{Arc, AtomicUsize, Ordering};

/// Bytes that an extent occupies in addition to its data: its table entry, and the overhead of the
/// allocator and of [`Bytes`].
const OVERHEAD: usize = 96;

/// The value of a large object while it is received; stored as an extent without a copy.
#[derive(Debug)]
pub struct Large {
    /// The key, then the value.
    bytes: Vec<u8>,
    key_length: usize,
}

impl Large {
    /// An empty value for this key, with the given capacity in bytes.
    #[must_use]
    pub fn new(key: &[u8], capacity: usize) -> Large {
        let mut bytes = Vec::with_capacity(key.len() + capacity);
        bytes.extend_from_slice(key);
        Large {
            bytes,
            key_length: key.len(),
        }
    }

    /// Appends to the value.
    pub fn extend(&mut self, part: &[u8]) {
        self.bytes.extend_from_slice(part);
    }

    /// The value's length so far, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.key_length
    }

    /// Whether the value is empty so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key of the object.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.bytes.get(..self.key_length).unwrap_or_default()
    }

    /// The value so far.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        self.bytes.get(self.key_length..).unwrap_or_default()
    }

    /// The contents of the extent: the key, then the value.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.shrink_to_fit();
        self.bytes
    }
}

/// The memory of an extent. It is accounted for until the last reference is dropped.
struct Memory {
    bytes: Vec<u8>,
    /// The counter of bytes of all extents in memory.
    held: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let occupied = occupied(self.bytes.len(), 0);
        self.held.fetch_sub(occupied, Ordering::Relaxed);
    }
}

/// Memory that an extent with a key and a value of these lengths occupies, in bytes.
pub(crate) fn occupied(key: usize, value: usize) -> usize {
    key + value + OVERHEAD
}

/// The extents of a shard, by number.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    /// The extents by number; empty for free numbers.
    all: Vec<Bytes>,
    /// Free numbers.
    free: Vec<u32>,
    /// Bytes of all extents in memory, including removed ones that are still lent.
    held: Arc<AtomicUsize>,
}

impl Extents {
    /// Width of an extent's number in a record, in bits.
    const NUMBER_BITS: u32 = 24;

    /// Adds an extent. `None` if no number is free.
    pub(crate) fn insert(&mut self, bytes: Vec<u8>) -> Option<u32> {
        if self.free.is_empty() && self.all.len() >= 1 << Self::NUMBER_BITS {
            return None;
        }
        let held = Arc::clone(&self.held);
        held.fetch_add(occupied(bytes.len(), 0), Ordering::Relaxed);
        let bytes = Bytes::from_owner(Memory { bytes, held });
        if let Some(number) = self.free.pop() {
            *self.all.get_mut(number as usize)? = bytes;
            return Some(number);
        }
        let number = u32::try_from(self.all.len()).ok()?;
        self.all.push(bytes);
        Some(number)
    }

    pub(crate) fn get(&self, number: u32) -> &Bytes {
        &self.all[number as usize]
    }

    /// Removes an extent. Its memory is freed, and no longer accounted for, when the last reference
    /// is dropped.
    pub(crate) fn remove(&mut self, number: u32) {
        self.all[number as usize] = Bytes::new();
        self.free.push(number);
    }

    /// Bytes of all extents in memory, including removed ones that are still lent.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(crate) fn clear(&mut self) {
        self.all = Vec::new();
        self.free = Vec::new();
    }
}
