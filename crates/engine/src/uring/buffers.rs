//! The ring of provided buffers: memory that the kernel receives into, and that becomes an ordinary
//! buffer afterwards.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;

use crate::buffer::{self, Buffer};

/// The id of the only group of provided buffers.
pub(super) const BUFFER_GROUP: u16 = 0;

/// The ring of buffers that the kernel takes for receives.
pub(super) struct BufferRing {
    /// `count` entries shared with the kernel; the tail lies inside the first entry.
    entries: NonNull<BufRingEntry>,
    count: u16,
    /// Entries given to the kernel so far, modulo 2^16.
    tail: u16,
    /// Bytes of each buffer.
    pub(super) size: u32,
    /// Memory that the kernel may write to, by buffer id. Raw pointers, since the memory is ours
    /// only after the kernel has returned the buffer.
    memory: Vec<*mut MaybeUninit<u8>>,
}

impl BufferRing {
    pub(super) fn new(submitter: &Submitter<'_>, count: u16) -> io::Result<BufferRing> {
        let layout = BufferRing::layout(count);
        // SAFETY: the layout is not empty.
        let Some(entries) = NonNull::new(unsafe { alloc_zeroed(layout) }.cast::<BufRingEntry>())
        else {
            handle_alloc_error(layout)
        };
        let size = buffer::size();
        let mut buffers = BufferRing {
            entries,
            count,
            tail: 0,
            size: u32::try_from(size).unwrap_or(u32::MAX),
            memory: vec![std::ptr::null_mut(); usize::from(count)],
        };
        // SAFETY: the memory is page-aligned, holds `count` entries, and is freed only after the
        // ring has been drained (see the destructor of `Uring`), or leaked.
        unsafe {
            submitter.register_buf_ring_with_flags(
                entries.as_ptr().addr() as u64,
                count,
                BUFFER_GROUP,
                0,
            )?;
        }
        for id in 0..count {
            buffers.provide(id);
        }
        buffers.publish();
        Ok(buffers)
    }

    fn layout(count: u16) -> Layout {
        let bytes = usize::from(count) * size_of::<BufRingEntry>();
        // A power of two and a size below 1 MiB: the layout is valid.
        Layout::from_size_align(bytes, 4096).unwrap_or(Layout::new::<[u8; 4096]>())
    }

    /// Puts fresh memory into the ring under the id `id`; the kernel sees it after
    /// [`publish`](Self::publish).
    fn provide(&mut self, id: u16) {
        let memory = Box::into_raw(buffer::take()).cast::<MaybeUninit<u8>>();
        self.memory[usize::from(id)] = memory;
        let index = usize::from(self.tail & (self.count - 1));
        // SAFETY: the index is below `count`, and the kernel does not read the entry before the
        // tail moves past it.
        let entry = unsafe { &mut *self.entries.as_ptr().add(index) };
        entry.set_addr(memory.addr() as u64);
        entry.set_len(self.size);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Makes all provided entries visible to the kernel.
    pub(super) fn publish(&self) {
        // SAFETY: the tail lies in the first entry, in a field that we do not use otherwise, and is
        // aligned for its type.
        let tail =
            unsafe { AtomicU16::from_ptr(BufRingEntry::tail(self.entries.as_ptr()).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    /// Takes buffer `id`, into which the kernel has received `length` bytes, and provides a fresh
    /// one in its place.
    pub(super) fn exchange(&mut self, id: u16, length: usize) -> Buffer {
        let Some(&memory) = self.memory.get(usize::from(id)) else {
            return Buffer::empty();
        };
        let whole = std::ptr::slice_from_raw_parts_mut(memory, self.size as usize);
        // SAFETY: the pointer came from a box of this size, and the kernel has returned the buffer
        // with this completion. The next line replaces the pointer, so it becomes a box only once.
        let filled = unsafe { Box::from_raw(whole) };
        self.provide(id);
        // SAFETY: the kernel reports that it has written `length` bytes; `filled` clips the length
        // to the memory.
        unsafe { Buffer::filled(filled, length) }
    }

    /// Leaks all memory, because the kernel may still write to it.
    pub(super) fn leak(&mut self) {
        self.memory.clear();
        self.count = 0;
    }
}

impl Drop for BufferRing {
    fn drop(&mut self) {
        // Null if creating the ring failed before all buffers were provided.
        for &memory in self.memory.iter().filter(|memory| !memory.is_null()) {
            let whole = std::ptr::slice_from_raw_parts_mut(memory, self.size as usize);
            // SAFETY: each pointer came from a box of this size, and the owner guarantees that no
            // operation is in flight.
            drop(unsafe { Box::from_raw(whole) });
        }
        if self.count > 0 {
            // SAFETY: allocated with this layout. The registration ends with the ring, and without
            // operations in flight the kernel reads no entries.
            unsafe { dealloc(self.entries.as_ptr().cast(), BufferRing::layout(self.count)) };
        }
    }
}
