//! Memory of an engine's that it receives into and that has to come home: one region, in frames of
//! one size.
//!
//! A network card, or a kernel that writes to memory of ours by itself, is told of a region once
//! and for all. What it has received becomes a [`Buffer`] where it lies. When that is dropped, or
//! the last slice of what has been made of it, on whatever thread, its frame goes home: a bit is
//! set, and no lock is taken. An engine that has run out is told.
//!
//! Each frame is at one of three places: at home in `free`, on its way there in `returned`, or in
//! just one [`Frame`], which so has its memory alone.
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

/// The region begins and ends with pages, as those want it who share it.
const PAGE: usize = 4096;

/// The frames of an engine, which takes from them on its thread. Its memory is freed with the last
/// of them that is out.
pub struct Frames {
    slots: Box<[Arc<Slot>]>,
    free: Vec<u32>,
    home: Arc<FramePool>,
}

/// What a frame is when it is out: its place, and its way home. There is one for each frame for as
/// long as the region is, so that taking one allocates nothing.
struct Slot {
    home: Arc<FramePool>,
    number: u32,
}

struct FramePool {
    region: NonNull<u8>,
    layout: Layout,
    /// Bytes of each frame.
    size: usize,
    /// Frames that have come home and were not looked for since.
    returned: Marks,
    /// The engine has found none, and wants to be told of the next one.
    wanted: AtomicBool,
    notifier: Notifier,
}

// SAFETY: the region is memory of the process, whose parts are used by the one who has the frame
// (see the top of this page), and freed when nobody refers to it any more. Everything else is
// shared between threads by its own means.
unsafe impl Send for FramePool {}
// SAFETY: as above: what is shared of it hands out no part of the region.
unsafe impl Sync for FramePool {}

impl Frames {
    /// So many frames of so many bytes each, which are zeros at first. `notifier` ends the wait of
    /// an engine that has found none, when one comes home.
    ///
    /// # Errors
    /// `InvalidInput` where that is nothing, or more than there can be: a frame has less than 4
    /// GiB.
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
            // The first ones go out first.
            free: (0..count).rev().collect(),
            home,
        })
    }

    /// Takes a frame. Where none is at home, the notifier is used when the next one comes.
    pub fn take(&mut self) -> Option<Frame> {
        if self.free.is_empty() {
            self.look();
        }
        if self.free.is_empty() {
            self.home.wanted.store(true, Ordering::SeqCst);
            // One may have come just before that was known.
            self.look();
        }
        let number = self.free.pop()?;
        let slot = self.slots.get(number as usize)?;
        Some(Frame(Arc::clone(slot)))
    }

    /// Takes in what has come home.
    fn look(&mut self) {
        let free = &mut self.free;
        self.home.returned.take(|number| free.push(number));
    }
}

impl Drop for FramePool {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and nothing refers to it any more: each frame
        // holds a share of this.
        unsafe { dealloc(self.region.as_ptr(), self.layout) };
    }
}

/// A frame that is out, all of it: to be filled and then to be read as a [`Buffer`](crate::Buffer).
/// Dropping it sends it home.
pub struct Frame(Arc<Slot>);

impl Frame {
    fn start(&self) -> NonNull<u8> {
        let Slot { home, number } = &*self.0;
        // SAFETY: the number is below the count of frames, and the region holds so many of this
        // size.
        unsafe { home.region.add(*number as usize * home.size) }
    }

    pub(crate) fn memory(&self) -> &[MaybeUninit<u8>] {
        let start = self.start().cast::<MaybeUninit<u8>>();
        // SAFETY: so many bytes begin there, which are this frame's alone for as long as it is
        // borrowed.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.0.home.size) }
    }

    pub(crate) fn memory_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        let start = self.start().cast::<MaybeUninit<u8>>();
        // SAFETY: so many bytes begin there, which are this frame's alone, and it is borrowed to be
        // changed.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.0.home.size) }
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the region was zeros at first, and only bytes have been written to it.
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
        // What was done with the memory is done before; who takes the number takes note of that.
        home.returned.add(*number);
        // The counterpart of `take`: first return the frame, then check whether one is wanted.
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
        // Few bytes are copied out, and the frame goes home at once.
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

    /// Frames that are dropped on other threads come home, none is handed out twice, and an engine
    /// that waits for one is always told.
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
                // As an engine does: until the notifier is used, or for so long that it was
                // forgotten.
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
