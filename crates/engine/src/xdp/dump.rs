//! Copies of frames for `tidegate xdp dump`.
//!
//! Each queue has a ring in shared memory, of which only the first page is allocated until a dump
//! starts. A dump opens the ring through the descriptor of the queue's process, which requires the
//! permission to inspect that process. The first page holds the time until which frames are wanted;
//! a dump keeps extending it, so that copying stops after the dump has ended for any reason.
//!
//! ```text
//!            wanted until ◀── dump                         `Dump`
//!   queue ─▶ records ───────▶ dump                         `Tap` ─▶ `Dump`
//!            lost: frames that had no room
//! ```
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{FlockOperation, MemfdFlags, SealFlags};
use rustix::time::{ClockId, clock_gettime};

use super::umem::{FRAME_SIZE, Mapping};

/// Prefix of the names of such shared memory files; queue and interface follow.
const NAME: &str = "tidegate-dump";

/// Prefix and suffix that the kernel adds to the name of a shared memory file in `/proc`.
const SHOWN: (&str, &str) = ("/memfd:", " (deleted)");

/// Size of the ring, in bytes.
const RECORDS: usize = 4 << 20;

/// Positions of the words on the first page, each on a cache line of its own.
const WANTED_UNTIL: usize = 0;
const WRITTEN: usize = 64;
const READ: usize = 128;
const LOST: usize = 192;
/// Size of the first page, behind which the records begin.
const FIRST_PAGE: usize = 4096;

/// Bytes before each frame: time and length.
const RECORD_HEADER: usize = 16;

/// Time for which one renewal makes a queue copy frames.
const LEASE: Duration = Duration::from_secs(1);

/// A ring, as both sides map it.
#[derive(Debug)]
struct Ring {
    mapping: Mapping,
    file: OwnedFd,
}

impl Ring {
    fn map(file: OwnedFd) -> io::Result<Ring> {
        let mapping = Mapping::sparse(&file, FIRST_PAGE + RECORDS)?;
        Ok(Ring { mapping, file })
    }

    /// The word at this position of the first page.
    fn word(&self, at: usize) -> &AtomicU64 {
        let place = self.mapping.at(at, size_of::<u64>());
        let place = place.expect("the first page has these words");
        // SAFETY: aligned, within the mapping for its whole lifetime, and only used as an atomic.
        unsafe { AtomicU64::from_ptr(place.cast::<u64>().as_ptr()) }
    }

    /// Splits the `length` bytes of records from `position` on into two parts; the second starts at
    /// the beginning of the ring.
    fn parts(position: u64, length: usize) -> [(usize, usize); 2] {
        let begin = (position % RECORDS as u64) as usize;
        let first = length.min(RECORDS - begin);
        [(begin, first), (0, length - first)]
    }

    fn write(&self, position: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (begin, length) in Ring::parts(position, bytes.len().min(RECORDS)) {
            let (part, behind) = rest.split_at(length);
            rest = behind;
            if let Some(place) = self.mapping.at(FIRST_PAGE + begin, length) {
                // SAFETY: the range is within the mapping, and the reader reads it only after it
                // has been published.
                unsafe { place.copy_from_nonoverlapping(NonNull::from(part).cast(), length) };
            }
        }
    }

    fn read(&self, position: u64, into: &mut [u8]) {
        let mut rest = into;
        for (begin, length) in Ring::parts(position, rest.len().min(RECORDS)) {
            let (part, behind) = rest.split_at_mut(length);
            rest = behind;
            if let Some(place) = self.mapping.at(FIRST_PAGE + begin, length) {
                // SAFETY: the range is within the mapping; the writer does not write to it until it
                // has been released, and all byte values are valid.
                unsafe { place.copy_to_nonoverlapping(NonNull::from(part).cast(), length) };
            }
        }
    }
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Length of a record in the ring: records are aligned to eight bytes.
fn record_length(frame: usize) -> usize {
    RECORD_HEADER + frame.next_multiple_of(8)
}

/// The queue's side. Without a dump it costs one load per turn.
#[derive(Debug)]
pub(super) struct Tap {
    ring: Ring,
    /// Whether a dump wants the frames of this turn.
    is_wanted: bool,
}

impl Tap {
    /// Creates the ring of a queue.
    ///
    /// # Errors
    /// If the ring's memory file cannot be created or mapped.
    pub(super) fn open(interface: &str, queue: u32) -> io::Result<Tap> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(format!("{NAME} {queue} {interface}"), flags)?;
        rustix::fs::ftruncate(&file, (FIRST_PAGE + RECORDS) as u64)?;
        // Sealed, so that neither side can shrink the memory while the other uses it.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Tap {
            ring: Ring::map(file)?,
            is_wanted: false,
        })
    }

    /// Checks whether a dump wants frames.
    pub(super) fn begin_turn(&mut self) {
        let until = self.ring.word(WANTED_UNTIL).load(Ordering::Relaxed);
        self.is_wanted = until != 0 && nanoseconds(ClockId::Monotonic) < until;
    }

    /// Copies a frame if a dump wants it and there is room.
    pub(super) fn take(&self, frame: &[u8]) {
        if self.is_wanted {
            self.copy(frame);
        }
    }

    #[cold]
    fn copy(&self, frame: &[u8]) {
        let ring = &self.ring;
        let written = ring.word(WRITTEN).load(Ordering::Relaxed);
        let read = ring.word(READ).load(Ordering::Acquire);
        let length = record_length(frame.len());
        if written.wrapping_sub(read).saturating_add(length as u64) > RECORDS as u64 {
            ring.word(LOST).fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut header = [0; RECORD_HEADER];
        let (time, size) = header.split_at_mut(8);
        time.copy_from_slice(&nanoseconds(ClockId::Realtime).to_ne_bytes());
        size.copy_from_slice(&(frame.len() as u64).to_ne_bytes());
        ring.write(written, &header);
        ring.write(written.wrapping_add(RECORD_HEADER as u64), frame);
        let written = written.wrapping_add(length as u64);
        ring.word(WRITTEN).store(written, Ordering::Release);
    }
}

/// A dump of one queue. A queue has one dump at most.
#[derive(Debug)]
pub struct Dump {
    ring: Ring,
    /// The interface of the queue.
    pub interface: String,
    /// The receive queue's number.
    pub queue: u32,
    /// Position of the next record to read.
    position: u64,
    /// The count of lost frames when this dump started.
    lost_before: u64,
}

impl Dump {
    /// Opens a dump of every queue of the process `pid`. Queues that already have a dump are
    /// returned as errors with their interface. Copying starts with [`Dump::renew`].
    ///
    /// # Errors
    /// If the process does not exist or may not be inspected.
    pub fn of_process(pid: u32) -> io::Result<Vec<Result<Dump, (String, io::Error)>>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
            let path = entry?.path();
            let Some((interface, queue)) = fs::read_link(&path).ok().and_then(|to| named(&to))
            else {
                continue;
            };
            let dump = Dump::open(&path, &interface, queue);
            found.push(dump.map_err(|error| (interface, error)));
        }
        Ok(found)
    }

    fn open(path: &Path, interface: &str, queue: u32) -> io::Result<Dump> {
        let file = File::options().read(true).write(true).open(path)?;
        let has_size = file.metadata()?.len() == (FIRST_PAGE + RECORDS) as u64;
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        if !has_size || !seals.contains(SealFlags::SHRINK) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let ring = Ring::map(file.into())?;
        // Frames left by an earlier dump are skipped.
        let position = ring.word(WRITTEN).load(Ordering::Acquire);
        ring.word(READ).store(position, Ordering::Release);
        let lost_before = ring.word(LOST).load(Ordering::Relaxed);
        Ok(Dump {
            ring,
            interface: interface.to_owned(),
            queue,
            position,
            lost_before,
        })
    }

    /// Requests frames for another second.
    pub fn renew(&self) {
        let until = nanoseconds(ClockId::Monotonic) + LEASE.as_nanos() as u64;
        let word = self.ring.word(WANTED_UNTIL);
        word.store(until, Ordering::Relaxed);
    }

    /// Copies the next frame to `frame`. Returns the time at which the queue copied it, in
    /// nanoseconds since 1970, or `None` if there is none.
    ///
    /// # Errors
    /// `InvalidData` if the ring is corrupt: the process has been tampered with.
    pub fn next_frame(&mut self, frame: &mut Vec<u8>) -> io::Result<Option<u64>> {
        let written = self.ring.word(WRITTEN).load(Ordering::Acquire);
        let waiting = written.wrapping_sub(self.position);
        if waiting == 0 {
            return Ok(None);
        }
        let mut words = [[0; 8]; 2];
        self.ring.read(self.position, words.as_flattened_mut());
        let [time, length] = words.map(u64::from_ne_bytes);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if waiting > RECORDS as u64 || length > FRAME_SIZE || waiting < record_length(length) as u64
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        frame.clear();
        frame.resize(length, 0);
        let begin = self.position.wrapping_add(RECORD_HEADER as u64);
        self.ring.read(begin, frame);
        self.position = self.position.wrapping_add(record_length(length) as u64);
        let read = self.ring.word(READ);
        read.store(self.position, Ordering::Release);
        Ok(Some(time))
    }

    /// Frames lost because the ring was full, since this dump started.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let lost = self.ring.word(LOST).load(Ordering::Relaxed);
        lost.wrapping_sub(self.lost_before)
    }
}

impl Drop for Dump {
    fn drop(&mut self) {
        self.ring.word(WANTED_UNTIL).store(0, Ordering::Relaxed);
        // Closing the file would not release the lock if a forked process has the file open.
        let _ = rustix::fs::flock(self.ring.file.as_fd(), FlockOperation::Unlock);
    }
}

/// The interface and queue in the name of a shared memory file.
fn named(shown: &Path) -> Option<(String, u32)> {
    let name = shown.to_str()?.strip_prefix(SHOWN.0)?;
    let name = name.strip_suffix(SHOWN.1).unwrap_or(name);
    let rest = name.strip_prefix(NAME)?.strip_prefix(' ')?;
    let (queue, interface) = rest.split_once(' ')?;
    Some((interface.to_owned(), queue.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both() -> (Tap, Dump) {
        let tap = Tap::open("eth0", 3).unwrap();
        let found = Dump::of_process(std::process::id()).unwrap();
        let own = rustix::fs::fstat(&tap.ring.file).unwrap().st_ino;
        let is_own = |dump: &Dump| rustix::fs::fstat(&dump.ring.file).unwrap().st_ino == own;
        let dump = found.into_iter().flatten().find(is_own).unwrap();
        assert_eq!((dump.interface.as_str(), dump.queue), ("eth0", 3));
        (tap, dump)
    }

    #[test]
    fn frames_are_copied_for_as_long_as_somebody_looks_on() {
        let (mut tap, mut dump) = both();
        let mut frame = Vec::new();
        tap.begin_turn();
        tap.take(b"before");
        assert_eq!(dump.next_frame(&mut frame).unwrap(), None);
        dump.renew();
        tap.begin_turn();
        // Odd lengths, and more data than the ring holds at once.
        for number in 0..20_000_u32 {
            let length = 1 + number as usize * 7 % FRAME_SIZE;
            tap.take(&vec![number as u8; length]);
            let time = dump.next_frame(&mut frame).unwrap();
            assert!(time.is_some_and(|time| time > 1_700_000_000_000_000_000));
            assert_eq!(frame, vec![number as u8; length]);
        }
        assert_eq!(dump.lost(), 0);
        drop(dump);
        tap.begin_turn();
        tap.take(b"after");
        let written = tap.ring.word(WRITTEN).load(Ordering::Relaxed);
        let read = tap.ring.word(READ).load(Ordering::Relaxed);
        assert_eq!(written, read);
    }

    #[test]
    fn a_reader_that_does_not_read_costs_frames_and_one_that_has_gone_nothing() {
        let (mut tap, mut dump) = both();
        dump.renew();
        tap.begin_turn();
        let count = 3 * RECORDS / FRAME_SIZE;
        for _ in 0..count {
            tap.take(&[7; FRAME_SIZE]);
        }
        let mut came = 0;
        let mut frame = Vec::new();
        while dump.next_frame(&mut frame).unwrap().is_some() {
            assert_eq!(frame, [7; FRAME_SIZE]);
            came += 1;
        }
        assert_eq!(came + dump.lost() as usize, count);
        assert!(came >= RECORDS / record_length(FRAME_SIZE));
        // Like a killed dump, whose request expires by itself.
        let past = nanoseconds(ClockId::Monotonic);
        let word = dump.ring.word(WANTED_UNTIL);
        word.store(past, Ordering::Relaxed);
        tap.begin_turn();
        tap.take(b"after");
        assert_eq!(dump.next_frame(&mut frame).unwrap(), None);
    }

    #[test]
    fn what_is_no_record_is_an_error() {
        let (_tap, mut dump) = both();
        let mut frame = Vec::new();
        for (written, length) in [(8, 8), (RECORDS as u64 + 8, 8), (64, 1 << 40), (4096, 2049)] {
            let length = u64::to_ne_bytes(length);
            dump.ring.write(8, &length);
            let word = dump.ring.word(WRITTEN);
            word.store(written, Ordering::Relaxed);
            assert!(dump.next_frame(&mut frame).is_err());
        }
    }

    #[test]
    fn two_do_not_look_on_at_once() {
        let (tap, _dump) = both();
        let own = rustix::fs::fstat(&tap.ring.file).unwrap().st_ino;
        let found = Dump::of_process(std::process::id()).unwrap();
        let is_own = |dump: &Dump| rustix::fs::fstat(&dump.ring.file).unwrap().st_ino == own;
        assert!(!found.iter().flatten().any(is_own));
        assert!(found.iter().any(|found| matches!(found,
            Err((_, error)) if error.kind() == io::ErrorKind::WouldBlock)));
    }
}
