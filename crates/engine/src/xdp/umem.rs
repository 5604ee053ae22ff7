//! The memory that frames stand in: one file in memory, mapped by the worker and known to the
//! kernel, in frames of one size.
//!
//! A frame is the kernel's or ours. Ours is named by a [`Frame`], of which there is one at most:
//! it is given away with the frame, and comes back with it. What the kernel says is checked, so
//! that a frame that it has not got cannot come back twice.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

/// Frames of one queue that the kernel receives into. They bridge the time in which the thread
/// waits for its processor: 8,192 frames are 20 ms of 400,000 frames a second. A SYN that finds no
/// frame is lost, and its client sends it again only after a second.
pub(super) const FRAMES_TO_RECEIVE: u32 = 8192;

/// Frames of one queue that are sent from.
pub(super) const FRAMES_TO_SEND: u32 = 2048;

/// All frames of one queue.
pub(super) const FRAMES: u32 = FRAMES_TO_RECEIVE + FRAMES_TO_SEND;

/// Bytes of a frame, for which those of the largest that an MTU allows and what the kernel keeps
/// before it have to have room.
pub(super) const FRAME_SIZE: usize = 2048;

/// A mapped region of memory that is shared with the kernel.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

impl Mapping {
    /// So many bytes of a file from this place on.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn new(file: impl AsFd, offset: u64, length: usize) -> io::Result<Mapping> {
        Mapping::with(file, offset, length, MapFlags::SHARED | MapFlags::POPULATE)
    }

    /// The first bytes of a file, whose pages come to be when they are first used.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn sparse(file: impl AsFd, length: usize) -> io::Result<Mapping> {
        Mapping::with(file, 0, length, MapFlags::SHARED)
    }

    fn with(file: impl AsFd, offset: u64, length: usize, flags: MapFlags) -> io::Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new region at a place of the kernel's choice, which aliases nothing of ours.
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

    /// The address of the byte at `offset`, where `length` bytes begin that are all in the region.
    pub(super) fn at(&self, offset: usize, length: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(length)?;
        // SAFETY: the place is within the region.
        (end <= self.length).then(|| unsafe { self.start.add(offset) })
    }

    fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the region is this one's alone, and whatever has pointed into it is gone with it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// A file in memory for the frames of one queue.
///
/// # Errors
/// The kernel's.
pub(super) fn file() -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("tidegate-frames", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, (FRAMES as usize * FRAME_SIZE) as u64)?;
    Ok(file)
}

/// Has the kernel know the frames of a file as those of this socket. The process that does it pays
/// for locked memory; the kernel keeps it when the mapping is gone.
///
/// # Errors
/// The kernel's: `ENOBUFS` where no more memory may be locked.
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

/// A frame that is ours.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame(u32);

/// The frames of one queue.
#[derive(Debug)]
pub(super) struct Umem {
    mapping: Mapping,
    /// Whether the kernel has a frame, by its number.
    is_kernels: Vec<bool>,
}

impl Umem {
    /// Maps the frames of a file, all of which are ours.
    ///
    /// # Errors
    /// The kernel's, and `InvalidData` where the file is no such file.
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

    /// Gives a frame to the kernel: its address there.
    pub(super) fn give(&mut self, frame: Frame) -> u64 {
        if let Some(is_kernels) = self.is_kernels.get_mut(frame.0 as usize) {
            *is_kernels = true;
        }
        u64::from(frame.0) * FRAME_SIZE as u64
    }

    /// Takes back the frame that an address of the kernel's is in, and where in it that is; `None`
    /// where the kernel has not got it.
    pub(super) fn take_back(&mut self, address: u64) -> Option<(Frame, usize)> {
        let number = u32::try_from(address / FRAME_SIZE as u64).ok()?;
        let is_kernels = self.is_kernels.get_mut(number as usize)?;
        let offset = (address % FRAME_SIZE as u64) as usize;
        std::mem::take(is_kernels).then_some((Frame(number), offset))
    }

    /// Bytes of a frame; none where they are not all in it.
    pub(super) fn bytes(&self, frame: &Frame, part: Range<usize>) -> &[u8] {
        let Some((start, length)) = self.place(frame, &part) else {
            return &[];
        };
        // SAFETY: all of the bytes are in the mapping, and the frame is ours: the kernel does not
        // write to it until it is given away, which takes the name that is borrowed here.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), length) }
    }

    /// All bytes of a frame.
    pub(super) fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
        let Some((start, length)) = self.place(frame, &(0..FRAME_SIZE)) else {
            return &mut [];
        };
        // SAFETY: as for `bytes`; and no other slice of it can be, since its name, of which there
        // is one, is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), length) }
    }

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
