//! Receive buffers and the thread's pool of spare ones.
//!
//! A [`Buffer`] is either plain memory from the allocator or a frame of its engine's region
//! (`frames.rs`). On drop, plain memory goes to the pool of the thread that drops the buffer, if
//! the pool has room and the sizes match; a frame returns to its region. An idle connection holds
//! no buffer.
//!
//! Memory is not zeroed before the kernel writes to it. Zeroing would touch all pages of a buffer,
//! which mostly holds a request of a few hundred bytes.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::num::NonZeroU32;
use std::ops::{Deref, DerefMut, Range};

use base::limits::{RECEIVE_BUFFER_SIZE_DEFAULT, SPARE_BUFFERS_KEPT, SPARE_BUFFERS_MAX};
use bytes::Bytes;

use crate::frames::Frame;

/// A buffer's memory, which may be uninitialized.
pub(crate) type Memory = Box<[MaybeUninit<u8>]>;

thread_local! {
    /// The size of receive buffers in bytes.
    static SIZE: Cell<usize> = const { Cell::new(RECEIVE_BUFFER_SIZE_DEFAULT) };
    /// The pool of spare buffers.
    static SPARE: RefCell<Vec<Memory>> = const { RefCell::new(Vec::new()) };
    /// The smallest number of spare buffers since the last call of `shrink`.
    static UNUSED: Cell<usize> = const { Cell::new(0) };
}

/// Bytes received from a peer. Dereferences to the bytes that are not yet consumed. An empty buffer
/// from a receive means end of input.
pub struct Buffer {
    /// The memory, which may have room behind the bytes.
    room: BufferStorage,
    /// The offset of the first byte that is not yet consumed.
    start: u32,
    /// All bytes before `end` are initialized. Never beyond the memory; raised only by `append`,
    /// after writing.
    end: BufferLength,
}

/// A length, stored plus one, so that `Option<Buffer>` is no larger than `Buffer`.
#[derive(Clone, Copy)]
struct BufferLength(NonZeroU32);

impl BufferLength {
    fn new(count: u32) -> BufferLength {
        BufferLength(NonZeroU32::MIN.saturating_add(count))
    }

    fn get(self) -> u32 {
        self.0.get() - 1
    }
}

/// The memory of a buffer, which also decides where it goes on drop.
enum BufferStorage {
    /// Memory of the thread's pool.
    Pooled(Memory),
    /// A frame of the engine's region.
    Frame(Frame),
}

impl BufferStorage {
    fn memory(&self) -> &[MaybeUninit<u8>] {
        match self {
            BufferStorage::Pooled(memory) => memory,
            BufferStorage::Frame(frame) => frame.memory(),
        }
    }

    fn memory_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        match self {
            BufferStorage::Pooled(memory) => memory,
            BufferStorage::Frame(frame) => frame.memory_mut(),
        }
    }
}

impl Frame {
    /// The received bytes in `part` of the frame, as a buffer. The range is clipped to the frame.
    #[must_use]
    pub fn into_buffer(self, part: Range<usize>) -> Buffer {
        Buffer::in_frame(self, part)
    }
}

impl Default for Buffer {
    fn default() -> Buffer {
        Buffer {
            room: BufferStorage::Pooled(Memory::default()),
            start: 0,
            end: BufferLength::new(0),
        }
    }
}

impl Buffer {
    /// An empty buffer without memory.
    #[must_use]
    pub fn empty() -> Buffer {
        Buffer::default()
    }

    /// A buffer with a copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Buffer {
        let mut memory = Box::new_uninit_slice(bytes.len());
        memory.write_copy_of_slice(bytes);
        // SAFETY: all of it has just been written.
        unsafe { Buffer::filled(memory, bytes.len()) }
    }

    /// An empty buffer with the capacity of a receive buffer.
    #[must_use]
    pub fn roomy() -> Buffer {
        // SAFETY: the length is zero.
        unsafe { Buffer::filled(take(), 0) }
    }

    /// A buffer that takes over `bytes`; excess capacity is given back.
    #[must_use]
    pub fn of(bytes: Vec<u8>) -> Buffer {
        let length = bytes.len();
        let memory = Box::into_raw(bytes.into_boxed_slice()) as *mut [MaybeUninit<u8>];
        // SAFETY: the box has just been released, and `MaybeUninit<u8>` has the layout of `u8`.
        let memory = unsafe { Memory::from_raw(memory) };
        // SAFETY: all bytes come from the vector, so they are initialized.
        unsafe { Buffer::filled(memory, length) }
    }

    /// Takes memory and passes it to `receive`, which returns the part that it has written, from
    /// the start. After an error, or if nothing was written, the memory goes back to the pool at
    /// once.
    pub(crate) fn receive<E>(
        receive: impl FnOnce(&mut [MaybeUninit<u8>]) -> Result<&mut [u8], E>,
    ) -> Result<Buffer, E> {
        let mut memory = take();
        let start = memory.as_ptr().cast::<u8>();
        let count = match receive(&mut memory) {
            Ok(written) if std::ptr::eq(written.as_ptr(), start) => written.len(),
            Ok(_) => 0,
            Err(error) => {
                give(memory);
                return Err(error);
            }
        };
        if count == 0 {
            give(memory);
            return Ok(Buffer::empty());
        }
        // SAFETY: `receive` returned this many initialized bytes at the start of the memory.
        Ok(unsafe { Buffer::filled(memory, count) })
    }

    /// Wraps `memory`, of which the first `length` bytes are received data.
    ///
    /// # Safety
    /// The first `length` bytes of `memory` are initialized.
    pub(crate) unsafe fn filled(memory: Memory, length: usize) -> Buffer {
        let end = length.min(memory.len());
        Buffer {
            room: BufferStorage::Pooled(memory),
            start: 0,
            end: BufferLength::new(u32::try_from(end).unwrap_or(u32::MAX - 1)),
        }
    }

    /// The bytes in `part` of a frame; the range is clipped to the frame. All bytes of a frame are
    /// initialized.
    pub(crate) fn in_frame(frame: Frame, part: Range<usize>) -> Buffer {
        let length = frame.memory().len().min(u32::MAX as usize - 1);
        let end = part.end.min(length);
        Buffer {
            room: BufferStorage::Frame(frame),
            start: part.start.min(end) as u32,
            end: BufferLength::new(end as u32),
        }
    }

    /// The number of bytes that are not yet consumed.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        (self.end.get() - self.start) as usize
    }

    /// Whether all bytes are consumed. An empty buffer from a receive means end of input.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.end.get()
    }

    /// Whether the memory is filled to its end, so that the kernel may hold more data.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let memory = self.room.memory();
        !memory.is_empty() && self.end.get() as usize == memory.len()
    }

    /// The address in memory of the first byte that is not yet consumed.
    #[must_use]
    pub fn address(&self) -> usize {
        self.as_ptr().addr()
    }

    /// Consumes `count` bytes from the front, or all if there are fewer.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        self.start += count.min(self.len()) as u32;
    }

    /// Keeps the first `length` bytes and drops the rest.
    #[inline]
    pub fn truncate(&mut self, length: usize) {
        self.end = BufferLength::new(self.start + length.min(self.len()) as u32);
    }

    /// Converts the remaining bytes to `Bytes` that occupy at most twice their length. If the bytes
    /// fill at least half of the memory, they are shared without a copy, and the memory goes back
    /// with the last reference. Otherwise they are copied, and the memory goes back now.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        if self.is_mostly_empty() {
            Bytes::copy_from_slice(&self)
        } else {
            Bytes::from_owner(self)
        }
    }

    /// Copies the bytes into smaller memory if they fill less than half of the current one. For a
    /// buffer that is kept while its task waits.
    pub fn fit(&mut self) {
        if self.is_mostly_empty() {
            *self = Buffer::copy_of(self);
        }
    }

    /// Whether the bytes fill less than half of the memory.
    fn is_mostly_empty(&self) -> bool {
        self.len() < self.room.memory().len() / 2
    }

    /// Whether `bytes` more bytes fit.
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        bytes <= self.left()
    }

    /// The number of bytes that can still be appended.
    fn left(&self) -> usize {
        self.room.memory().len() - self.end.get() as usize
    }

    /// Appends as many of `bytes` as fit, and returns their number.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.left());
        let fitting = bytes.get(..count).unwrap_or_default();
        if self.append(fitting) { count } else { 0 }
    }

    /// Appends `bytes` if all of them fit. False if they do not.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> bool {
        let end = self.end.get() as usize;
        let room = self.room.memory_mut().get_mut(end..end + bytes.len());
        let Some(room) = room else { return false };
        room.write_copy_of_slice(bytes);
        self.end = BufferLength::new((end + bytes.len()) as u32);
        true
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let bytes = self
            .room
            .memory()
            .get(self.start as usize..self.end.get() as usize)
            .unwrap_or_default();
        // SAFETY: the bytes before `end` are initialized, as `filled` demands; those of a frame
        // always are.
        unsafe { bytes.assume_init_ref() }
    }
}

/// Received bytes may be changed in place, as decryption does.
impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self
            .room
            .memory_mut()
            .get_mut(self.start as usize..self.end.get() as usize)
            .unwrap_or_default();
        // SAFETY: the bytes before `end` are initialized, as `filled` demands; those of a frame
        // always are.
        unsafe { bytes.assume_init_mut() }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let BufferStorage::Pooled(memory) = &mut self.room {
            give(std::mem::take(memory));
        }
    }
}

/// Sets the size of this thread's receive buffers, in bytes.
pub(crate) fn set_size(bytes: usize) {
    // `Buffer` counts in 32 bits; no socket returns more than 1 GiB at once.
    SIZE.set(bytes.clamp(512, 1 << 30));
    SPARE.with_borrow_mut(Vec::clear);
    UNUSED.set(0);
}

/// The size of this thread's receive buffers, in bytes.
pub(crate) fn size() -> usize {
    SIZE.get()
}

/// Memory for one receive: from the pool, or newly allocated.
pub(crate) fn take() -> Memory {
    SPARE.with_borrow_mut(|spare| {
        let taken = spare.pop();
        UNUSED.set(UNUSED.get().min(spare.len()));
        taken.unwrap_or_else(|| Box::new_uninit_slice(SIZE.get()))
    })
}

/// Whether the pool holds more buffers than an idle thread keeps.
pub(crate) fn has_spares() -> bool {
    SPARE.with_borrow(|spare| spare.len() > SPARE_BUFFERS_KEPT)
}

/// Frees half of the spare buffers that have not been used since the last call, but keeps those
/// that an idle thread keeps.
pub(crate) fn shrink() {
    SPARE.with_borrow_mut(|spare| {
        let surplus = spare.len().saturating_sub(SPARE_BUFFERS_KEPT);
        let freed = UNUSED.get().div_ceil(2).min(surplus);
        spare.truncate(spare.len() - freed);
        UNUSED.set(spare.len());
    });
}

/// Returns memory to the thread's pool, or to the allocator if the pool is full or the size
/// differs.
pub(crate) fn give(memory: Memory) {
    if memory.is_empty() {
        return;
    }
    // While the thread ends the pool may be gone; then the allocator gets the memory.
    let _ = SPARE.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if memory.len() == SIZE.get() && spare.len() < SPARE_BUFFERS_MAX {
            spare.push(memory);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spares() -> usize {
        SPARE.with_borrow(Vec::len)
    }

    /// The second kind of storage must not make an idle connection larger.
    #[test]
    fn a_buffer_is_small() {
        assert_eq!(size_of::<Option<Buffer>>(), 24);
    }

    #[test]
    fn memory_comes_back_to_the_store() {
        set_size(1024);
        let memory = take();
        let address = memory.as_ptr();
        // SAFETY: the bytes are not read.
        let buffer = unsafe { Buffer::filled(memory, 10) };
        assert_eq!((buffer.len(), spares()), (10, 0));
        drop(buffer);
        assert_eq!(spares(), 1);
        let again = take();
        assert_eq!(again.as_ptr(), address);
    }

    #[test]
    fn shared_bytes_keep_the_memory_until_the_last_slice_is_gone() {
        set_size(1024);
        let mut memory = take();
        memory.iter_mut().for_each(|byte| {
            byte.write(b'x');
        });
        memory[..5].write_copy_of_slice(b"hello");
        // SAFETY: all of it has been written.
        let mut buffer = unsafe { Buffer::filled(memory, 600) };
        buffer.advance(1);
        let bytes = buffer.into_bytes();
        let slice = bytes.slice(1..3);
        drop(bytes);
        assert_eq!((&slice[..], spares()), (&b"ll"[..], 0));
        drop(slice);
        assert_eq!(spares(), 1);
        assert_eq!(Buffer::empty().into_bytes().len(), 0);
    }

    #[test]
    fn few_bytes_do_not_keep_the_memory() {
        set_size(1024);
        let few = || {
            let mut memory = take();
            memory[..5].write_copy_of_slice(b"hello");
            // SAFETY: five bytes have been written.
            unsafe { Buffer::filled(memory, 5) }
        };
        assert_eq!((&few().into_bytes()[..], spares()), (&b"hello"[..], 1));
        let mut kept = few();
        assert_eq!(spares(), 0);
        kept.fit();
        assert_eq!(
            (&kept[..], kept.room.memory().len(), spares()),
            (&b"hello"[..], 5, 1)
        );
    }

    #[test]
    fn bytes_are_appended_where_there_is_room() {
        set_size(1024);
        let mut memory = take();
        memory[..5].write_copy_of_slice(b"hello");
        // SAFETY: five bytes have been written.
        let mut buffer = unsafe { Buffer::filled(memory, 5) };
        buffer.advance(2);
        assert!(buffer.append(b" you"));
        assert_eq!(&buffer[..], b"llo you");
        assert!(!buffer.append(&[b'x'; 1016]));
        assert!(buffer.append(&[b'x'; 1015]));
        assert!(!buffer.append(b"x"));
        assert_eq!(buffer.len(), 1022);
    }

    #[test]
    fn advance_and_truncate_stay_inside() {
        let mut buffer = Buffer::copy_of(b"abc");
        buffer.truncate(9);
        assert_eq!(&buffer[..], b"abc");
        buffer.advance(1);
        buffer.truncate(1);
        assert_eq!(&buffer[..], b"b");
        buffer.advance(9);
        assert!(buffer.is_empty());
    }

    #[test]
    fn what_is_not_used_goes() {
        set_size(1024);
        let taken: Vec<_> = (0..20).map(|_| take()).collect();
        taken.into_iter().for_each(give);
        assert!(has_spares());
        shrink(); // since they came there was no time to use them
        assert_eq!(spares(), 20);
        // Four of them are in use now and then.
        let used: Vec<_> = (0..4).map(|_| take()).collect();
        used.into_iter().for_each(give);
        shrink();
        assert_eq!(spares(), 12);
        for _ in 0..8 {
            shrink();
        }
        assert_eq!(spares(), SPARE_BUFFERS_KEPT);
        assert!(!has_spares());
    }

    #[test]
    fn the_store_is_bounded() {
        set_size(1024);
        let taken: Vec<_> = (0..SPARE_BUFFERS_MAX * 2).map(|_| take()).collect();
        taken.into_iter().for_each(give);
        assert_eq!(spares(), SPARE_BUFFERS_MAX);
        give(Box::new_uninit_slice(999));
        assert_eq!(spares(), SPARE_BUFFERS_MAX);
    }
}
