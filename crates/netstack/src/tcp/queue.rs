//! The send queue: data from the application that the peer has not acknowledged.
//!
//! The queue shares the application's buffers. Each transmission copies the segment's data into a
//! frame; frames belong to the device, and no connection holds one. Acknowledged data are released.
//! Small buffers are copied into chunks, so that a limit of bytes also limits memory.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::wire::checksum::Sum;

/// Buffers up to this length, in bytes, are copied into chunks.
const SMALL_MAX: usize = 512;

/// Capacity of a chunk of copied buffers, in bytes.
const OWN_CHUNK: usize = 4096;

/// Memory charged for a chunk besides its bytes.
const CHUNK_OVERHEAD: usize = 64;

/// Capacity that an empty queue keeps, in chunks, so that a response needs no allocation.
const CHUNKS_KEPT: usize = 4;

/// Distance of the offsets for which a prebuilt response stores its sum, in bytes. It is even, so
/// that all of them are at word boundaries.
const SUM_EVERY: usize = 128;

/// A frequently sent response with precomputed sums. The checksum of any part needs to read at most
/// 127 bytes at either end of the part.
#[derive(Clone, Debug)]
pub struct Prebuilt {
    bytes: Bytes,
    /// The sum of all bytes before each offset that is a multiple of [`SUM_EVERY`].
    sums: Arc<[Sum]>,
}

impl Prebuilt {
    /// Computes the sums of `bytes`.
    #[must_use]
    pub fn new(bytes: Bytes) -> Prebuilt {
        let mut before = Sum::default();
        let mut sums = vec![before];
        for part in bytes.chunks_exact(SUM_EVERY) {
            before = before.plus(Sum::of(part));
            sums.push(before);
        }
        Prebuilt {
            bytes,
            sums: sums.into(),
        }
    }

    /// The sum of all bytes before `end`.
    fn sum_before(&self, end: usize) -> Sum {
        let place = end / SUM_EVERY;
        let known = self.sums.get(place).copied().unwrap_or_default();
        let rest = self.bytes.get(place * SUM_EVERY..end).unwrap_or_default();
        known.plus(Sum::of(rest))
    }

    /// The sum of the bytes between two offsets, for a part that is sent at an even offset.
    fn sum(&self, from: usize, to: usize) -> Sum {
        let sum = self.sum_before(to).minus(self.sum_before(from));
        if from.is_multiple_of(2) {
            sum
        } else {
            sum.from_odd_place()
        }
    }
}

#[derive(Debug)]
enum Chunk {
    Foreign(Bytes),
    Prebuilt(Prebuilt),
    Own(Vec<u8>),
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match self {
            Chunk::Foreign(bytes) => bytes,
            Chunk::Prebuilt(prebuilt) => &prebuilt.bytes,
            Chunk::Own(bytes) => bytes,
        }
    }

    /// Copies the bytes from offset `from` on. Returns their sum.
    fn copy(&self, from: usize, into: &mut [u8]) -> Sum {
        let to = from + into.len();
        let Some(part) = self.bytes().get(from..to) else {
            return Sum::default();
        };
        into.copy_from_slice(part);
        match self {
            Chunk::Prebuilt(prebuilt) => prebuilt.sum(from, to),
            Chunk::Foreign(_) | Chunk::Own(_) => Sum::of(part),
        }
    }
}

/// The queued data, from the first unacknowledged byte on.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    chunks: VecDeque<Chunk>,
    /// Acknowledged bytes of the first chunk.
    acknowledged: usize,
    length: usize,
    /// The index of the chunk that was read last and the offset at which it begins, so that the
    /// next segment is found without a search.
    cursor: (usize, usize),
}

impl Queue {
    /// Number of bytes that are not acknowledged.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Memory of the queue, in bytes. Only the unacknowledged part of a shared buffer counts, since
    /// the memory is the application's. If all of it counted until its end, there would be no room
    /// for new data near that end, and sending would stall.
    pub(crate) fn occupied(&self) -> usize {
        let dead = match self.chunks.front() {
            Some(Chunk::Own(_)) => self.acknowledged,
            _ => 0,
        };
        self.length + dead + self.chunks.len() * CHUNK_OVERHEAD
    }

    pub(crate) fn push(&mut self, bytes: Bytes) {
        self.length += bytes.len();
        if bytes.is_empty() {
            return;
        }
        if bytes.len() > SMALL_MAX {
            self.chunks.push_back(Chunk::Foreign(bytes));
        } else if let Some(Chunk::Own(last)) = self.chunks.back_mut()
            && last.len() + bytes.len() <= OWN_CHUNK
        {
            last.extend_from_slice(&bytes);
        } else {
            self.chunks.push_back(Chunk::Own(bytes.to_vec()));
        }
    }

    /// Appends a response with precomputed sums.
    pub(crate) fn push_prebuilt(&mut self, prebuilt: Prebuilt) {
        self.length += prebuilt.bytes.len();
        if !prebuilt.bytes.is_empty() {
            self.chunks.push_back(Chunk::Prebuilt(prebuilt));
        }
    }

    /// Releases the first `count` bytes, which have been acknowledged.
    pub(crate) fn release(&mut self, count: usize) {
        let count = count.min(self.length);
        self.length -= count;
        self.acknowledged += count;
        self.cursor = (0, 0);
        while let Some(first) = self.chunks.front()
            && first.bytes().len() <= self.acknowledged
        {
            self.acknowledged -= first.bytes().len();
            self.chunks.pop_front();
        }
        if self.chunks.is_empty() && self.chunks.capacity() > CHUNKS_KEPT {
            self.chunks = VecDeque::new();
        }
    }

    /// Copies the bytes from `offset` on into `into`, as far as there are any. Returns their sum.
    pub(crate) fn copy(&mut self, offset: usize, into: &mut [u8]) -> Sum {
        let offset = offset + self.acknowledged;
        if self.cursor.1 > offset {
            self.cursor = (0, 0);
        }
        let (mut index, mut begins) = self.cursor;
        let (mut filled, mut sum) = (0, Sum::default());
        while let Some(chunk) = self.chunks.get(index) {
            let length = chunk.bytes().len();
            if begins + length > offset + filled {
                self.cursor = (index, begins);
                let from = offset + filled - begins;
                let count = (length - from).min(into.len() - filled);
                let place = into.get_mut(filled..filled + count).unwrap_or_default();
                sum = sum.followed_by(filled, chunk.copy(from, place));
                filled += count;
            }
            if filled == into.len() {
                break;
            }
            begins += length;
            index += 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(length: usize) -> Vec<u8> {
        (0..length).map(|n| (n * 131 % 251) as u8).collect()
    }

    /// A queue of pieces of every kind and odd lengths, and what it holds.
    fn mixed() -> (Queue, Vec<u8>) {
        let all = content(4000);
        let mut queue = Queue::default();
        let mut at = 0;
        for (number, length) in [1, 513, 3, 700, 20, 999, 129, 600, 1000, 35]
            .into_iter()
            .enumerate()
        {
            let part = Bytes::copy_from_slice(&all[at..at + length]);
            if number % 3 == 0 {
                queue.push_prebuilt(Prebuilt::new(part));
            } else {
                queue.push(part);
            }
            at += length;
        }
        (queue, all[..at].to_vec())
    }

    #[test]
    fn every_part_is_copied_with_its_sum() {
        let (mut queue, all) = mixed();
        assert_eq!(queue.len(), all.len());
        let mut released = 0;
        for step in [0, 1, 512, 700, 1300] {
            queue.release(step);
            released += step;
            for from in (released..all.len()).step_by(61) {
                for length in [1, 2, 536, 1447] {
                    let to = (from + length).min(all.len());
                    let mut part = vec![0; to - from];
                    let sum = queue.copy(from - released, &mut part);
                    assert_eq!(part, all[from..to]);
                    assert_eq!(sum, Sum::of(&part), "{from}..{to} after {released}");
                }
            }
        }
        queue.release(usize::MAX);
        assert_eq!(queue.occupied(), 0);
    }

    #[test]
    fn foreign_memory_is_held_until_it_is_acknowledged_and_no_longer() {
        let memory: Arc<Vec<u8>> = Arc::new(content(2000));
        struct Shared(Arc<Vec<u8>>);
        impl AsRef<[u8]> for Shared {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        let mut queue = Queue::default();
        queue.push(Bytes::from_owner(Shared(Arc::clone(&memory))));
        queue.copy(0, &mut [0; 2000]);
        queue.release(1999);
        assert_eq!(Arc::strong_count(&memory), 2);
        queue.release(1);
        assert_eq!(Arc::strong_count(&memory), 1);
    }

    #[test]
    fn single_bytes_cost_little_more_than_their_number() {
        let mut queue = Queue::default();
        for _ in 0..10_000 {
            queue.push(Bytes::from_static(b"a"));
        }
        assert!(queue.occupied() < 11_000, "{}", queue.occupied());
    }
}
