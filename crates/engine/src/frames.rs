//! A region of receive memory of one engine, divided into frames of equal size that return to it.
//!
//! A network card, or a kernel that writes to our memory on its own, is given one region once.
//! Received data becomes a [`Buffer`] in place. When that buffer, or the last `Bytes` slice of it,
//! is dropped, on whatever thread, its frame returns to the region: a bit is set, and no lock is
//! taken. An engine that has run out of frames is notified.
//!
//! Each frame is in one of three places: available in `free`, returning in `returned`, or in
//! exactly one [`Frame`], which therefore has exclusive access to the memory.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::marks::Marks;

use crate::notifier::Notifier;

/// The region is page-aligned and a multiple of pages long, as network cards and the kernel
/// require.
const PAGE: usize = 4096;

/// The frames of an engine, which takes them on its thread. The region is freed with the last frame
/// in use.
pub struct Frames {
    /// The slot of each frame, by number.
    slots: Box<[Arc<Slot>]>,
    /// The numbers of available frames.
    free: Vec<u32>,
    home: Arc<FramePool>,
}

/// A frame in use: its number and its pool. One slot per frame lives as long as the region, so that
/// taking a frame allocates nothing.
struct Slot {
    home: Arc<FramePool>,
    number: u32,
}

/// The memory of the frames, and the frames that were returned.
struct FramePool {
    region: NonNull<u8>,
    layout: Layout,
    /// Bytes of each frame.
    size: usize,
    /// Frames that were returned since the engine last checked.
    returned: Marks,
    /// The engine has found no free frame, and wants to be notified of the next return.
    wanted: AtomicBool,
    notifier: Notifier,
}

// SAFETY: the region is memory of the process. Only the holder of a frame uses that part of it (see
// the top of this page), and the region is freed when nothing refers to it any more. All other
// fields are thread-safe by themselves.
unsafe impl Send for FramePool {}
// SAFETY: as above: a shared reference hands out no part of the region.
unsafe impl Sync for FramePool {}

impl Frames {
    /// Allocates `count` frames of `size` bytes each, zeroed. `notifier` ends the wait of an engine
    /// that has found no free frame, when one is returned.
    ///
    /// # Errors
    /// `InvalidInput` if the region would be empty, or larger than the address space allows. A
    /// frame has less than 4 GiB.
    pub fn new(count: u32, size: u32, notifier: Notifier) -> io::Result<Frames> {
        let bytes = (count as usize).checked_mul(size as usize);
        let layout = bytes
            .filter(|bytes| *bytes > 0)
            .and_then(|bytes| bytes.checked_next_multiple_of(PAGE))
            .and_then(|bytes| Layout::from_size_align(bytes, PAGE).ok())
            .ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the layout is not empty.
        let Some(region) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            handle_alloc_error(layout)
        };
        let home = Arc::new(FramePool {
            region,
            layout,
            size: size as usize,
            returned: Marks::new(),
            wanted: AtomicBool::new(false),
            notifier,
        });
        home.returned.make_room(count);
        let slot = |number| {
            let home = Arc::clone(&home);
            Arc::new(Slot { home, number })
        };
        Ok(Frames {
            slots: (0..count).map(slot).collect(),
            // Frames with low numbers are used first.
            free: (0..count).rev().collect(),
            home,
        })
    }

    /// Takes a frame. If none is free, the notifier is signalled when the next frame is returned.
    pub fn take(&mut self) -> Option<Frame> {
        if self.free.is_empty() {
            self.look();
        }
        if self.free.is_empty() {
            self.home.wanted.store(true, Ordering::SeqCst);
            // A frame may have been returned just before `wanted` was set.
            self.look();
        }
        let number = self.free.pop()?;
        let slot = self.slots.get(number as usize)?;
        Some(Frame(Arc::clone(slot)))
    }

    /// Collects the frames that were returned.
    fn look(&mut self) {
        let free = &mut self.free;
        self.home.returned.take(|number| free.push(number));
    }
}

impl Drop for FramePool {
    fn drop(&mut self) {
        // SAFETY: the region was allocated with this layout. Nothing refers to it any more, since
        // each frame holds a reference to the pool.
        unsafe { dealloc(self.region.as_ptr(), self.layout) };
    }
}

/// A frame in use, with exclusive access to its whole memory: first filled, then read as a
/// [`Buffer`](crate::Buffer). Dropping the frame returns it to the region.
pub struct Frame(Arc<Slot>);

impl Frame {
    fn start(&self) -> NonNull<u8> {
        let Slot { home, number } = &*self.0;
        // SAFETY: the number is below the count of frames, and the region holds that many frames of
        // this size.
        unsafe { home.region.add(*number as usize * home.size) }
    }

    pub(crate) fn memory(&self) -> &[MaybeUninit<u8>] {
        let start = self.start().cast::<MaybeUninit<u8>>();
        // SAFETY: `size` bytes begin at `start`, and they belong to this frame alone while it is
        // borrowed.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.0.home.size) }
    }

    pub(crate) fn memory_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        let start = self.start().cast::<MaybeUninit<u8>>();
        // SAFETY: `size` bytes begin at `start`, they belong to this frame alone, and it is
        // borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.0.home.size) }
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the region was zeroed at first, and only initialized bytes have been written to
        // it.
        unsafe { self.memory().assume_init_ref() }
    }
}

impl DerefMut for Frame {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { self.memory_mut().assume_init_mut() }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        let Slot { home, number } = &*self.0;
        // `add` publishes all earlier uses of the memory to the thread that takes the number.
        home.returned.add(*number);
        // The counterpart of `take`: first return the frame, then check whether the engine waits
        // for one.
        if home.wanted.load(Ordering::SeqCst) && home.wanted.swap(false, Ordering::SeqCst) {
            home.notifier.notify();
        }
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frame({})", self.0.number)
    }
}

impl std::fmt::Debug for Frames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Frames({} of {} free)",
            self.free.len(),
            self.slots.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;

    fn frames(count: u32, size: u32) -> (Frames, Notifier) {
        let notifier = Notifier::new().unwrap();
        let frames = Frames::new(count, size, notifier.clone()).unwrap();
        (frames, notifier)
    }

    fn filled(frames: &mut Frames, text: &[u8]) -> Option<Buffer> {
        let mut frame = frames.take()?;
        frame[2..][..text.len()].copy_from_slice(text);
        Some(frame.into_buffer(2..2 + text.len()))
    }

    #[test]
    fn a_buffer_is_where_it_was_received_and_goes_home() {
        let (mut frames, notifier) = frames(2, 100);
        let mut first = filled(&mut frames, b"hello").unwrap();
        let second = filled(&mut frames, b"world").unwrap();
        assert_eq!((&first[..], &second[..]), (&b"hello"[..], &b"world"[..]));
        assert!(frames.take().is_none());
        assert_eq!(notifier.count(), 0);
        first[0] = b'j';
        assert!(first.append(b"!"));
        assert!(!first.append(&[b'!'; 93]), "there is room for 92");
        assert_eq!(&first[..], b"jello!");
        // A few bytes are copied, and the frame returns at once.
        let bytes = first.into_bytes();
        assert_eq!(notifier.count(), 1, "one was wanted");
        assert_eq!(bytes, b"jello!"[..]);
        let third = filled(&mut frames, b"third").unwrap();
        drop(second);
        assert_eq!(notifier.count(), 0, "none was wanted");
        assert_eq!(&third[..], b"third");
    }

    #[test]
    fn slices_keep_a_frame_and_the_region_whatever_becomes_of_the_engine() {
        let (mut frames, notifier) = frames(1, 10);
        let bytes = filled(&mut frames, b"12345678").unwrap().into_bytes();
        let slice = bytes.slice(2..5);
        drop(bytes);
        assert!(frames.take().is_none());
        let copy = slice.clone();
        std::thread::spawn(move || assert_eq!(copy, b"345"[..]))
            .join()
            .unwrap();
        assert_eq!(notifier.count(), 0);
        drop(frames);
        assert_eq!(slice, b"345"[..]);
        drop(slice);
    }

    #[test]
    fn what_lies_outside_is_left_out() {
        let (mut frames, _) = frames(1, 4);
        for (part, length) in [(0..9, 4), (3..4, 1), (4..4, 0), (7..9, 0)] {
            let buffer = frames.take().unwrap().into_buffer(part);
            assert_eq!(buffer.len(), length);
        }
        assert!(Frames::new(0, 1, Notifier::new().unwrap()).is_err());
        assert!(Frames::new(u32::MAX, u32::MAX, Notifier::new().unwrap()).is_err());
    }

    /// Frames that are dropped on other threads return, no frame is in use twice, and an engine
    /// that waits for a frame is always notified.
    #[test]
    fn frames_come_home_from_other_threads() {
        const ROUNDS: usize = 20_000;
        let (mut frames, notifier) = frames(3, 64);
        let (senders, threads): (Vec<_>, Vec<_>) = (0..2)
            .map(|_| {
                let (sender, receiver) = std::sync::mpsc::channel::<(Buffer, u64)>();
                let thread = std::thread::spawn(move || {
                    for (buffer, number) in receiver {
                        assert_eq!(buffer[..], number.to_ne_bytes());
                    }
                });
                (sender, thread)
            })
            .unzip();
        for round in 0..ROUNDS {
            let number = round as u64;
            let buffer = loop {
                if let Some(buffer) = filled(&mut frames, &number.to_ne_bytes()) {
                    break buffer;
                }
                // Wait like an engine: until the notifier is signalled, or until a timeout that
                // means it was forgotten.
                let fd = notifier.fd();
                let mut polled = [rustix::event::PollFd::new(
                    &fd,
                    rustix::event::PollFlags::IN,
                )];
                let patience = rustix::event::Timespec {
                    tv_sec: 60,
                    tv_nsec: 0,
                };
                assert_eq!(rustix::event::poll(&mut polled, Some(&patience)), Ok(1));
                notifier.clear();
            };
            senders[round % 2].send((buffer, number)).unwrap();
        }
        drop(senders);
        for thread in threads {
            thread.join().unwrap();
        }
        let out: Vec<_> = std::iter::from_fn(|| frames.take()).collect();
        assert_eq!(out.len(), 3);
    }
}
