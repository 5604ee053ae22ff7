//! Large objects, each in memory of its own: key and value in one piece, which is lent by reference
//! to the connection that sends it.

use bytes::Bytes;

use crate::sync::{Arc, AtomicUsize, Ordering};

/// What an extent occupies beside its bytes: its place in the table, and what the allocator and
/// [`Bytes`] need.
const OVERHEAD: usize = 96;

/// A value for an extent while it is being received: it is stored without being copied.
#[derive(Debug)]
pub struct Large {
    /// The key, then the value.
    bytes: Vec<u8>,
    key_length: usize,
}

impl Large {
    /// An empty value for this key, with room for so many bytes.
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

    /// How long the value is so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.key_length
    }

    /// Whether nothing has been appended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key of the large.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.bytes.get(..self.key_length).unwrap_or_default()
    }

    /// The value so far.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        self.bytes.get(self.key_length..).unwrap_or_default()
    }

    /// The bytes of an extent, its key in front.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.shrink_to_fit();
        self.bytes
    }
}

/// The memory of an extent. It counts until the last who holds a share of it lets that go.
struct Memory {
    bytes: Vec<u8>,
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

/// What a value of so many bytes occupies as an extent, with its key.
pub(crate) fn occupied(key: usize, value: usize) -> usize {
    key + value + OVERHEAD
}

/// The extents of a shard, by number.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    all: Vec<Bytes>,
    /// Numbers that are free.
    free: Vec<u32>,
    /// Bytes of all extents that somebody still holds: those that are here, and those that were
    /// removed while they were lent.
    held: Arc<AtomicUsize>,
}

impl Extents {
    /// Numbers have this many bits in a record.
    const NUMBER_BITS: u32 = 24;

    /// Takes an extent over, or none where there is no number left for one.
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

    /// Lets an extent go. What was lent of it lives on, and counts, until that is dropped.
    pub(crate) fn remove(&mut self, number: u32) {
        self.all[number as usize] = Bytes::new();
        self.free.push(number);
    }

    /// Bytes that all of them occupy, with those that are only lent any more.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(crate) fn clear(&mut self) {
        self.all = Vec::new();
        self.free = Vec::new();
    }
}
