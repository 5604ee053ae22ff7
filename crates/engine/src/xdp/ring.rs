//! The rings that an AF_XDP socket shares with the kernel. Their entries are frame addresses, or
//! descriptors of the data in frames.
//!
//! Each ring has a producer and a consumer, each of which writes one index. Indexes grow without
//! limit (modulo 2^32); their difference is the number of entries in the ring. An entry is written
//! before the producer's index is stored (release), and read after that index was loaded (acquire).
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::xdp::XdpRingOffset;

use super::umem::Mapping;

/// `XDP_RING_NEED_WAKEUP`: the kernel checks the ring only after a system call.
const NEEDS_WAKEUP: u32 = 1;

/// An entry of a ring. It consists of integers, for which all byte patterns are valid.
pub(super) trait Entry: Copy {}

impl Entry for u64 {}

/// A descriptor of the data in a frame (`struct xdp_desc`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Filled {
    /// The offset of the data in the memory of the frames, in bytes.
    pub(super) address: u64,
    /// The length of the data in bytes.
    pub(super) length: u32,
    pub(super) options: u32,
}

impl Entry for Filled {}

/// A mapped ring, as either end uses it.
#[derive(Debug)]
struct Shared<T> {
    mapping: Mapping,
    /// Offset of the producer's index in the mapping.
    producer: usize,
    /// Offset of the consumer's index.
    consumer: usize,
    /// Offset of the flags, if the kernel has them.
    flags: Option<usize>,
    /// Offset of the first entry.
    entries: usize,
    /// The number of entries minus one.
    mask: u32,
    of: PhantomData<T>,
}

impl<T: Entry> Shared<T> {
    /// Maps a ring of `places` entries, which must be a power of two.
    fn map(
        file: impl AsFd,
        page_offset: u64,
        offsets: &XdpRingOffset,
        places: u32,
    ) -> io::Result<Shared<T>> {
        let offset = |offset: u64| usize::try_from(offset).map_err(|_| too_large());
        let entries = offset(offsets.desc)?;
        let length = (places as usize)
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.checked_add(entries))
            .filter(|_| places.is_power_of_two())
            .ok_or_else(too_large)?;
        let shared = Shared {
            mapping: Mapping::new(file, page_offset, length)?,
            producer: offset(offsets.producer)?,
            consumer: offset(offsets.consumer)?,
            flags: offsets.flags.map(offset).transpose()?,
            entries,
            mask: places - 1,
            of: PhantomData,
        };
        // The methods below rely on these checks: the indexes and flags lie in the mapping, and
        // everything is aligned.
        let indexes = [Some(shared.producer), Some(shared.consumer), shared.flags];
        let mut indexes = indexes.into_iter().flatten();
        let are_within = indexes.all(|at| at % 4 == 0 && shared.mapping.at(at, 4).is_some());
        if are_within && entries.is_multiple_of(align_of::<T>()) {
            Ok(shared)
        } else {
            Err(too_large())
        }
    }

    /// The index, or the flags, at this offset of the mapping.
    fn index(&self, at: usize) -> &AtomicU32 {
        let Some(place) = self.mapping.at(at, 4) else {
            unreachable!("checked when the queue was mapped")
        };
        // SAFETY: `map` has checked that the four bytes lie in the mapping and are aligned. Both
        // ends access them only as whole atomic words, and the mapping outlives the reference.
        unsafe { AtomicU32::from_ptr(place.cast::<u32>().as_ptr()) }
    }

    /// The address of the entry with this index.
    fn place(&self, index: u32) -> NonNull<T> {
        let at = self.entries + (index & self.mask) as usize * size_of::<T>();
        let Some(place) = self.mapping.at(at, size_of::<T>()) else {
            unreachable!("the mapping has as many places as the mask says")
        };
        place.cast::<T>()
    }

    fn needs_wakeup(&self) -> bool {
        let flags = self.flags.map(|at| self.index(at).load(Ordering::Relaxed));
        flags.is_none_or(|flags| flags & NEEDS_WAKEUP != 0)
    }
}

/// The error for a ring whose offsets or size are invalid.
fn too_large() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// The producing end of a ring: of the fill ring, or of the send ring.
#[derive(Debug)]
pub(super) struct Producer<T> {
    shared: Shared<T>,
    /// The index of the next entry to write.
    next: u32,
    /// The index of the other end when it was last loaded.
    consumed: u32,
}

impl<T: Entry> Producer<T> {
    /// Maps this end of a ring of `places` entries, which must be a power of two.
    ///
    /// # Errors
    /// Those of `mmap()`; `InvalidData` if the offsets are invalid.
    pub(super) fn map(
        file: impl AsFd,
        page_offset: u64,
        offsets: &XdpRingOffset,
        places: u32,
    ) -> io::Result<Producer<T>> {
        let shared = Shared::map(file, page_offset, offsets, places)?;
        let next = shared.index(shared.producer).load(Ordering::Relaxed);
        let consumed = shared.index(shared.consumer).load(Ordering::Acquire);
        Ok(Producer {
            shared,
            next,
            consumed,
        })
    }

    /// The number of free entries.
    pub(super) fn room(&mut self) -> u32 {
        let places = self.shared.mask + 1;
        let is_free = |consumed: u32| places.saturating_sub(self.next.wrapping_sub(consumed));
        if is_free(self.consumed) == 0 {
            let index = self.shared.index(self.shared.consumer);
            self.consumed = index.load(Ordering::Acquire);
        }
        is_free(self.consumed)
    }

    /// Writes an entry, which the consumer sees after [`publish`](Self::publish). False if the ring
    /// is full.
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.room() == 0 {
            return false;
        }
        let place = self.shared.place(self.next);
        // SAFETY: the entry lies in the mapping and is aligned. It is free: the consumer has
        // released it, and reads it again only after the producer's index has passed it.
        unsafe { place.write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Makes the written entries visible to the consumer.
    pub(super) fn publish(&mut self) {
        let index = self.shared.index(self.shared.producer);
        index.store(self.next, Ordering::Release);
    }

    /// The number of written entries that the consumer has not released.
    pub(super) fn left(&self) -> u32 {
        let index = self.shared.index(self.shared.consumer);
        self.next.wrapping_sub(index.load(Ordering::Acquire))
    }

    /// Whether the kernel checks the ring only after a system call.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.shared.needs_wakeup()
    }
}

/// The consuming end of a ring: of the receive ring, or of the completion ring.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    shared: Shared<T>,
    /// The index of the next entry to read.
    next: u32,
    /// The index of the other end when it was last loaded.
    produced: u32,
}

impl<T: Entry> Consumer<T> {
    /// Maps this end of a ring of `places` entries, which must be a power of two.
    ///
    /// # Errors
    /// As for [`Producer::map`].
    pub(super) fn map(
        file: impl AsFd,
        page_offset: u64,
        offsets: &XdpRingOffset,
        places: u32,
    ) -> io::Result<Consumer<T>> {
        let shared = Shared::map(file, page_offset, offsets, places)?;
        let next = shared.index(shared.consumer).load(Ordering::Relaxed);
        Ok(Consumer {
            shared,
            next,
            produced: next,
        })
    }

    /// Reads the next entry; `None` if the ring is empty. The entry is free after
    /// [`release`](Self::release).
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.next == self.produced {
            let index = self.shared.index(self.shared.producer);
            self.produced = index.load(Ordering::Acquire);
            if self.next == self.produced {
                return None;
            }
        }
        let place = self.shared.place(self.next);
        // SAFETY: the entry lies in the mapping and is aligned. The producer wrote it before its
        // index passed it, and does not write to it again before the consumer's index has passed
        // it.
        let entry = unsafe { place.read() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Whether the ring has an entry that was not read yet.
    pub(super) fn has_more(&self) -> bool {
        let index = self.shared.index(self.shared.producer);
        self.next != index.load(Ordering::Acquire)
    }

    /// Frees the entries that were read.
    pub(super) fn release(&mut self) {
        let index = self.shared.index(self.shared.consumer);
        index.store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;
    use std::os::fd::OwnedFd;

    const OFFSETS: XdpRingOffset = XdpRingOffset {
        producer: 0,
        consumer: 64,
        desc: 128,
        flags: Some(96),
    };

    /// A queue's memory, without a kernel behind it: the other end is this program's, too.
    fn memory() -> OwnedFd {
        let file = rustix::fs::memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        file
    }

    fn ends<T: Entry>(file: &OwnedFd, places: u32) -> (Producer<T>, Consumer<T>) {
        (
            Producer::map(file, 0, &OFFSETS, places).unwrap(),
            Consumer::map(file, 0, &OFFSETS, places).unwrap(),
        )
    }

    #[test]
    fn what_goes_in_comes_out_in_order_once_it_is_shown() {
        let file = memory();
        let (mut producer, mut consumer) = ends::<u64>(&file, 4);
        // Beyond the end of the indexes, too.
        producer.next = u32::MAX - 5;
        producer.consumed = u32::MAX - 5;
        producer.publish();
        consumer.next = u32::MAX - 5;
        consumer.produced = u32::MAX - 5;
        consumer.release();
        for round in 0..10_u64 {
            for number in 0..4 {
                assert!(producer.push(round * 4 + number));
            }
            assert!(!producer.push(99));
            assert_eq!((consumer.has_more(), consumer.pop()), (false, None));
            producer.publish();
            assert_eq!((producer.left(), consumer.has_more()), (4, true));
            for number in 0..4 {
                assert_eq!(consumer.pop(), Some(round * 4 + number));
            }
            assert_eq!((consumer.has_more(), consumer.pop()), (false, None));
            assert_eq!(producer.room(), 0);
            consumer.release();
            assert_eq!((producer.room(), producer.left()), (4, 0));
        }
    }

    #[test]
    fn an_end_that_comes_later_goes_on_where_the_queue_is() {
        let file = memory();
        let (mut producer, mut consumer) = ends::<Filled>(&file, 2);
        let filled = |address| Filled {
            address,
            length: 60,
            options: 0,
        };
        producer.push(filled(1));
        producer.push(filled(2));
        producer.publish();
        assert_eq!(consumer.pop(), Some(filled(1)));
        consumer.release();
        let (mut producer, mut consumer) = ends::<Filled>(&file, 2);
        assert_eq!(producer.room(), 1);
        producer.push(filled(3));
        producer.publish();
        assert_eq!(consumer.pop(), Some(filled(2)));
        assert_eq!(consumer.pop(), Some(filled(3)));
        assert_eq!(consumer.pop(), None);
    }

    #[test]
    fn queues_that_cannot_be_are_refused() {
        let file = memory();
        assert!(Producer::<u64>::map(&file, 0, &OFFSETS, 3).is_err());
        let beyond = XdpRingOffset {
            producer: 9000,
            ..OFFSETS
        };
        assert!(Consumer::<u64>::map(&file, 0, &beyond, 4).is_err());
        let crooked = XdpRingOffset {
            consumer: 62,
            ..OFFSETS
        };
        assert!(Consumer::<u64>::map(&file, 0, &crooked, 4).is_err());
    }

    #[test]
    fn the_flag_tells_whether_the_kernel_looks_by_itself() {
        let file = memory();
        let (producer, _) = ends::<u64>(&file, 4);
        assert!(!producer.needs_wakeup());
        rustix::io::pwrite(&file, &1_u32.to_ne_bytes(), 96).unwrap();
        assert!(producer.needs_wakeup());
    }
}
