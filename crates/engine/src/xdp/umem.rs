//! The memory of a queue's frames: a memory file that the worker process maps and that is
//! registered with the kernel, divided into frames of equal size.
//!
//! Each frame belongs either to the kernel or to us. For each frame of ours there is exactly one
//! [`Frame`], which is consumed when the frame is given to the kernel and created anew when the
//! kernel returns it. Addresses from the kernel are checked, so that a frame that the kernel does
//! not have cannot be returned.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

/// Number of a queue's frames for receiving. They must last while the thread waits for its
/// processor: 8,192 frames are 20 ms of 400,000 frames a second. A SYN that finds no frame is lost,
/// and its client sends it again only after a second.
pub(super) const FRAMES_TO_RECEIVE: u32 = 8192;

/// Number of a queue's frames for sending.
pub(super) const FRAMES_TO_SEND: u32 = 2048;

/// Number of all frames of a queue.
pub(super) const FRAMES: u32 = FRAMES_TO_RECEIVE + FRAMES_TO_SEND;

/// Size of a frame in bytes. It has room for the largest Ethernet frame of an MTU of 1500, and for
/// the kernel's headroom before the data.
pub(super) const FRAME_SIZE: usize = 2048;

/// A mapped region of memory that is shared with the kernel.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

impl Mapping {
    /// Maps `length` bytes of a file from `offset` on, and allocates all pages.
    ///
    /// # Errors
    /// The error of the failed call.
    pub(super) fn new(file: impl AsFd, offset: u64, length: usize) -> io::Result<Mapping> {
        Mapping::with(file, offset, length, MapFlags::SHARED | MapFlags::POPULATE)
    }

    /// Maps the first `length` bytes of a file. Pages are allocated when they are first used.
    ///
    /// # Errors
    /// The error of the failed call.
    pub(super) fn sparse(file: impl AsFd, length: usize) -> io::Result<Mapping> {
        Mapping::with(file, 0, length, MapFlags::SHARED)
    }

    /// Maps a part of a file for reading and writing, with these flags.
    fn with(file: impl AsFd, offset: u64, length: usize, flags: MapFlags) -> io::Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the place of the new mapping, so that it overlaps no memory of
        // ours.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                flags,
                file.as_fd(),
                offset,
            )
        }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, length })
    }

    /// The address of the byte at `offset`; `None` unless the `length` bytes from there on lie in
    /// the region.
    pub(super) fn at(&self, offset: usize, length: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(length)?;
        // SAFETY: the offset is within the region.
        (end <= self.length).then(|| unsafe { self.start.add(offset) })
    }

    fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping owns the region, and its users keep it until their pointers into it
        // are no longer used.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// Creates a memory file for the frames of one queue.
///
/// # Errors
/// The error of the failed call.
pub(super) fn file() -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("tidegate-frames", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, (FRAMES as usize * FRAME_SIZE) as u64)?;
    Ok(file)
}

/// Registers the frames in a file with a socket. The memory counts as locked for the calling
/// process; the kernel keeps it after the mapping is removed.
///
/// # Errors
/// Those of `setsockopt()`: `ENOBUFS` if no more memory may be locked.
pub(super) fn register(socket: impl AsFd, file: impl AsFd) -> io::Result<()> {
    use rustix::net::xdp::{XdpUmemReg, XdpUmemRegFlags};
    let length = FRAMES as usize * FRAME_SIZE;
    let mapping = Mapping::new(file, 0, length)?;
    let registration = XdpUmemReg {
        addr: mapping.address(),
        len: length as u64,
        chunk_size: FRAME_SIZE as u32,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    rustix::net::sockopt::set_xdp_umem_reg(socket, registration)?;
    Ok(())
}

/// Ownership of one frame; the value is its number.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame(u32);

/// The frames of one queue.
#[derive(Debug)]
pub(super) struct Umem {
    mapping: Mapping,
    /// By the frame's number: whether the kernel has the frame.
    is_kernels: Vec<bool>,
}

impl Umem {
    /// Maps the frames in a file, and returns all of them as ours.
    ///
    /// # Errors
    /// Those of `mmap()`; `InvalidData` if the file does not have the size of the frames.
    pub(super) fn map(file: impl AsFd) -> io::Result<(Umem, Vec<Frame>)> {
        let length = FRAMES as usize * FRAME_SIZE;
        let found = rustix::fs::fstat(&file)?.st_size;
        if usize::try_from(found).ok() != Some(length) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let umem = Umem {
            mapping: Mapping::new(file, 0, length)?,
            is_kernels: vec![false; FRAMES as usize],
        };
        Ok((umem, (0..FRAMES).map(Frame).collect()))
    }

    /// Gives a frame to the kernel, and returns the frame's address for ring entries.
    pub(super) fn give(&mut self, frame: Frame) -> u64 {
        if let Some(is_kernels) = self.is_kernels.get_mut(frame.0 as usize) {
            *is_kernels = true;
        }
        u64::from(frame.0) * FRAME_SIZE as u64
    }

    /// Takes back the frame that contains an address from the kernel, and returns it with the
    /// address's offset in it. `None` if the kernel does not have that frame.
    pub(super) fn take_back(&mut self, address: u64) -> Option<(Frame, usize)> {
        let number = u32::try_from(address / FRAME_SIZE as u64).ok()?;
        let is_kernels = self.is_kernels.get_mut(number as usize)?;
        let offset = (address % FRAME_SIZE as u64) as usize;
        std::mem::take(is_kernels).then_some((Frame(number), offset))
    }

    /// The bytes in `part` of a frame; empty if `part` is not within the frame.
    pub(super) fn bytes(&self, frame: &Frame, part: Range<usize>) -> &[u8] {
        let Some((start, length)) = self.place(frame, &part) else {
            return &[];
        };
        // SAFETY: all bytes are in the mapping, and the frame is ours. The kernel writes to it only
        // after `give`, which borrows `self` mutably and thus cannot be called while the slice
        // exists.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), length) }
    }

    /// All bytes of a frame.
    pub(super) fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
        let Some((start, length)) = self.place(frame, &(0..FRAME_SIZE)) else {
            return &mut [];
        };
        // SAFETY: as for `bytes`. The slice borrows `self` mutably, so no other slice of a frame
        // exists.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), length) }
    }

    /// The address and length of a part of a frame; `None` if the part is not within the frame.
    fn place(&self, frame: &Frame, part: &Range<usize>) -> Option<(NonNull<u8>, usize)> {
        let length = part.end.checked_sub(part.start)?;
        if part.end > FRAME_SIZE {
            return None;
        }
        let offset = frame.0 as usize * FRAME_SIZE + part.start;
        Some((self.mapping.at(offset, length)?, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that the kernel keeps before what it receives (`XDP_PACKET_HEADROOM`).
    const HEADROOM: usize = 256;

    #[test]
    fn a_frame_comes_back_once_and_only_if_it_was_given() {
        let (mut umem, mut frames) = Umem::map(file().unwrap()).unwrap();
        let mut frame = frames.pop().unwrap();
        assert_eq!(frame, Frame(FRAMES - 1));
        umem.bytes_mut(&mut frame)[HEADROOM..HEADROOM + 4].copy_from_slice(b"tide");
        let address = umem.give(frame);
        assert_eq!(address, u64::from(FRAMES - 1) * 2048);
        let (frame, offset) = umem.take_back(address + HEADROOM as u64).unwrap();
        assert_eq!(offset, HEADROOM);
        assert_eq!(umem.bytes(&frame, offset..offset + 4), b"tide");
        assert_eq!(umem.take_back(address), None);
        assert_eq!(umem.take_back(0), None);
        assert_eq!(umem.take_back(u64::from(FRAMES) * 2048), None);
        assert_eq!(umem.take_back(u64::MAX), None);
    }

    #[test]
    fn nothing_is_read_beyond_a_frame() {
        let (umem, frames) = Umem::map(file().unwrap()).unwrap();
        let frame = &frames[7];
        assert_eq!(umem.bytes(frame, 0..FRAME_SIZE).len(), FRAME_SIZE);
        assert_eq!(umem.bytes(frame, 1..FRAME_SIZE + 1), b"");
        let (start, end) = (FRAME_SIZE, 0);
        assert_eq!(umem.bytes(frame, start..end), b"");
        assert!(Umem::map(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
