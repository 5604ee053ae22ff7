//! Receive buffers and the thread's small store of spare ones.
//!
//! A [`Buffer`] is plain memory from the allocator. Giving it back puts it in the store of the
//! thread that drops it, whichever thread that is, as long as the store has room and the sizes
//! agree. Or it is a part of a region of its engine's (`frames.rs`), and goes home there. An idle
//! connection holds none.
//!
//! Memory is not cleared before the kernel writes to it: to clear it would touch all pages of a
//! buffer that mostly holds a request of a few hundred bytes.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::num::NonZeroU32;
use std::ops::{Deref, DerefMut, Range};

use base::limits::{RECEIVE_BUFFER_SIZE_DEFAULT, SPARE_BUFFERS_KEPT, SPARE_BUFFERS_MAX};
use bytes::Bytes;

use crate::frames::Frame;

/// What a buffer is made of: bytes that nobody may have written yet.
pub(crate) type Memory = Box<[MaybeUninit<u8>]>;

thread_local! {
    static SIZE: Cell<usize> = const { Cell::new(RECEIVE_BUFFER_SIZE_DEFAULT) };
    static SPARE: RefCell<Vec<Memory>> = const { RefCell::new(Vec::new()) };
    /// The fewest spare ones since somebody last looked.
    static UNUSED: Cell<usize> = const { Cell::new(0) };
}

/// Bytes that came from a peer. Dereferences to those that were not yet consumed; an empty one
/// means end of input.
pub struct Buffer {
    room: BufferStorage,
    start: u32,
    /// All bytes before this one have been written; never beyond the memory, raised only behind
    /// what `append` has written.
    end: BufferLength,
}

/// A number of bytes, kept one higher than it is: so `Option<Buffer>` is no larger than `Buffer`.
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

/// What a buffer lies in, and with that where it goes when it is dropped.
enum BufferStorage {
    /// The store of a thread.
    Pooled(Memory),
    /// A region of its engine's.
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
    /// What has been received into this part of it. What lies outside of the frame is left out.
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
    /// A buffer that holds nothing and owns no memory.
    #[must_use]
    pub fn empty() -> Buffer {
        Buffer::default()
    }

    /// A buffer that holds a copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Buffer {
        let mut memory = Box::new_uninit_slice(bytes.len());
        memory.write_copy_of_slice(bytes);
        // SAFETY: all of it has just been written.
        unsafe { Buffer::filled(memory, bytes.len()) }
    }

    /// A buffer that holds nothing yet, with as much room as one for a receive.
    #[must_use]
    pub fn roomy() -> Buffer {
        // SAFETY: it is said to hold nothing.
        unsafe { Buffer::filled(take(), 0) }
    }

    /// A buffer that holds `bytes`, in their own memory if that is not much larger.
    #[must_use]
    pub fn of(bytes: Vec<u8>) -> Buffer {
        let length = bytes.len();
        let memory = Box::into_raw(bytes.into_boxed_slice()) as *mut [MaybeUninit<u8>];
        // SAFETY: the box has just been let go of, and what may be unwritten has the layout of what
        // has been written.
        let memory = unsafe { Memory::from_raw(memory) };
        // SAFETY: all of it is bytes of the vector.
        unsafe { Buffer::filled(memory, length) }
    }

    /// Takes memory and lets `receive` write to it, which returns what it has written, from the
    /// start on. Where that is nothing, or an error, the memory goes back at once.
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
        // SAFETY: there are so many bytes that can be read as such at the start of the memory.
        Ok(unsafe { Buffer::filled(memory, count) })
    }

    /// Wraps `memory`, whose first `length` bytes a peer has filled.
    ///
    /// # Safety
    /// As many bytes at its start as `length` says have been written.
    pub(crate) unsafe fn filled(memory: Memory, length: usize) -> Buffer {
        let end = length.min(memory.len());
        Buffer {
            room: BufferStorage::Pooled(memory),
            start: 0,
            end: BufferLength::new(u32::try_from(end).unwrap_or(u32::MAX - 1)),
        }
    }

    /// Those bytes of a frame; what lies outside of it is left out. All that is in a frame has been
    /// written.
    pub(crate) fn in_frame(frame: Frame, part: Range<usize>) -> Buffer {
        let length = frame.memory().len().min(u32::MAX as usize - 1);
        let end = part.end.min(length);
        Buffer {
            room: BufferStorage::Frame(frame),
            start: part.start.min(end) as u32,
            end: BufferLength::new(end as u32),
        }
    }

    /// How many bytes were not yet consumed.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        (self.end.get() - self.start) as usize
    }

    /// Whether nothing is left. A buffer that came empty from a receive means end of input.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.end.get()
    }

    /// Whether it is filled to the end of its memory: a receive has left nothing of its room, so
    /// that more may stand ready.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let memory = self.room.memory();
        !memory.is_empty() && self.end.get() as usize == memory.len()
    }

    /// Where in memory the bytes begin that were not yet consumed.
    #[must_use]
    pub fn address(&self) -> usize {
        self.as_ptr().addr()
    }

    /// Consumes `count` bytes from the front; at most those that are there.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        self.start += count.min(self.len()) as u32;
    }

    /// Keeps the first `length` bytes and forgets the rest.
    #[inline]
    pub fn truncate(&mut self, length: usize) {
        self.end = BufferLength::new(self.start + length.min(self.len()) as u32);
    }

    /// The bytes that are left as a shared byte string, which occupies no more than twice its
    /// length: without a copy where they fill the memory by half, which goes back when its last
    /// user is gone; else as a copy, and the memory goes back now.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        if self.is_mostly_empty() {
            Bytes::copy_from_slice(&self)
        } else {
            Bytes::from_owner(self)
        }
    }

    /// Gives memory back that is more than twice of what is left: for a buffer that is kept while
    /// something is waited for.
    pub fn fit(&mut self) {
        if self.is_mostly_empty() {
            *self = Buffer::copy_of(self);
        }
    }

    fn is_mostly_empty(&self) -> bool {
        self.len() < self.room.memory().len() / 2
    }

    /// Whether so many more bytes have room.
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        bytes <= self.left()
    }

    fn left(&self) -> usize {
        self.room.memory().len() - self.end.get() as usize
    }

    /// Appends as many of these bytes as there is room for; how many those are.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.left());
        let fitting = bytes.get(..count).unwrap_or_default();
        if self.append(fitting) { count } else { 0 }
    }

    /// Appends bytes where there is room for them; whether there was.
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
        // SAFETY: the bytes before `end` have been written, as `filled` demands; those of a frame
        // always are.
        unsafe { bytes.assume_init_ref() }
    }
}

/// What was received may be changed in place, as decryption does.
impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self
            .room
            .memory_mut()
            .get_mut(self.start as usize..self.end.get() as usize)
            .unwrap_or_default();
        // SAFETY: the bytes before `end` have been written, as `filled` demands; those of a frame
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

/// Says how large this thread's buffers are from now on.
pub(crate) fn set_size(bytes: usize) {
    // `Buffer` counts in 32 bits; no socket hands over more than 1 GiB at once.
    SIZE.set(bytes.clamp(512, 1 << 30));
    SPARE.with_borrow_mut(Vec::clear);
    UNUSED.set(0);
}

/// How large this thread's buffers are.
pub(crate) fn size() -> usize {
    SIZE.get()
}

/// Memory for one receive: a spare piece, or a new one.
pub(crate) fn take() -> Memory {
    SPARE.with_borrow_mut(|spare| {
        let taken = spare.pop();
        UNUSED.set(UNUSED.get().min(spare.len()));
        taken.unwrap_or_else(|| Box::new_uninit_slice(SIZE.get()))
    })
}

/// Whether there are more spare ones than a quiet thread keeps.
pub(crate) fn has_spares() -> bool {
    SPARE.with_borrow(|spare| spare.len() > SPARE_BUFFERS_KEPT)
}

/// Frees half of the spare ones that have not been used since the last call, if a quiet thread
/// would not keep them.
pub(crate) fn shrink() {
    SPARE.with_borrow_mut(|spare| {
        let surplus = spare.len().saturating_sub(SPARE_BUFFERS_KEPT);
        let freed = UNUSED.get().div_ceil(2).min(surplus);
        spare.truncate(spare.len() - freed);
        UNUSED.set(spare.len());
    });
}

/// Gives memory back to the thread's store, or to the allocator when the store is full or the size
/// is another.
pub(crate) fn give(memory: Memory) {
    if memory.is_empty() {
        return;
    }
    // While the thread ends the store may be gone already; then the allocator gets the memory.
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

    /// One more home costs an idle connection nothing.
    #[test]
    fn a_buffer_is_small() {
        assert_eq!(size_of::<Option<Buffer>>(), 24);
    }

    #[test]
    fn memory_comes_back_to_the_store() {
        set_size(1024);
        let memory = take();
        let address = memory.as_ptr();
        // SAFETY: nobody reads it.
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
