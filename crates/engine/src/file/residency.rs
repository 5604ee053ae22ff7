//! Which parts of a file are in memory, so that reading them does not wait for a disk.
//!
//! Most file systems tell: a read that must not wait (`RWF_NOWAIT`) fails where it would have to. Those that live in
//! memory (tmpfs) need not be asked. Some cannot tell, notably overlayfs, on which containers run: there a range counts as
//! cold until a pool thread has read it, and as warm for a while after that.

use std::cell::RefCell;
use std::io::IoSliceMut;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags};

use super::File;
use crate::clock;

/// How far apart a range is probed. Readahead fills larger pieces than this.
const PROBE_STEP: u64 = 128 * 1024;

/// What a pool thread reads at once.
const READ_STEP: usize = 128 * 1024;

/// How long a range that was read counts as being in memory where the file system cannot tell.
const REMEMBERED: Duration = Duration::from_secs(10);

/// Places in a thread's table of such ranges: 512 MiB of files, 128 KiB each.
const TABLE_SIZE: usize = 4096;

/// File systems that live in memory, by `f_type`: tmpfs and ramfs.
const MEMORY_FILE_SYSTEMS: [i64; 2] = [0x0102_1994, 0x8584_58f6];

thread_local! {
    /// Ranges that were read, by hash; empty until a file system that cannot tell is met.
    static READ: RefCell<Vec<Option<(RangeName, Instant)>>> = const { RefCell::new(Vec::new()) };
}

/// One step of one file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct RangeName {
    device: u64,
    inode: u64,
    step: u64,
}

/// How the file system of an open file answers; found out at the first question.
#[derive(Debug, Default)]
pub(super) struct Answers(AtomicU8);

const UNKNOWN: u8 = 0;
const TELLS: u8 = 1;
const IN_MEMORY: u8 = 2;
const CANNOT_TELL: u8 = 3;

/// Reads at `place` what is in memory. `EAGAIN` where that would have to wait, or might.
pub(super) fn read_warm(file: &File, place: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let flags = match file.answers().0.load(Ordering::Relaxed) {
        UNKNOWN | TELLS => ReadWriteFlags::NOWAIT,
        IN_MEMORY => ReadWriteFlags::empty(),
        _ if was_read(file, place, into.len() as u64) => ReadWriteFlags::empty(),
        _ => return Err(Errno::AGAIN),
    };
    match rustix::io::preadv2(file, &mut [IoSliceMut::new(into)], place, flags) {
        Err(Errno::OPNOTSUPP) if flags == ReadWriteFlags::NOWAIT => {
            file.answers().0.store(answer_of(file), Ordering::Relaxed);
            read_warm(file, place, into)
        }
        Ok(count) => {
            if flags == ReadWriteFlags::NOWAIT {
                file.answers().0.store(TELLS, Ordering::Relaxed);
            }
            Ok(count)
        }
        result => result,
    }
}

/// How many bytes from `offset`, of `length`, are in memory as far as probes every 128 KiB and at both ends tell.
///
/// A range beyond the end of the file counts as being in memory: sending it tells at once that it is not there.
pub(crate) fn warm_prefix(file: &File, offset: u64, length: u64) -> u64 {
    let Some(last) = offset
        .checked_add(length)
        .and_then(|end| end.checked_sub(1))
    else {
        return 0;
    };
    let mut place = offset;
    while place < last {
        if !is_warm(file, place) {
            return place - offset;
        }
        place += PROBE_STEP - place % PROBE_STEP;
    }
    if is_warm(file, last) {
        length
    } else {
        (last - last % PROBE_STEP).saturating_sub(offset)
    }
}

fn is_warm(file: &File, place: u64) -> bool {
    match read_warm(file, place, &mut [0]) {
        Ok(_) | Err(Errno::INTR) => true,
        Err(Errno::AGAIN) => false,
        // An error that sending will meet too, and report.
        Err(_) => true,
    }
}

/// Brings a range of a file into memory, waiting for the disk. Errors are left to whoever sends the range.
pub(crate) fn warm(file: &File, offset: u64, length: u64) {
    // Has the kernel ask for the whole range at once, instead of as much as it reads ahead by itself.
    let _ = fadvise(
        file,
        offset,
        std::num::NonZero::new(length),
        Advice::WillNeed,
    );
    let mut memory = vec![0; READ_STEP.min(usize::try_from(length).unwrap_or(READ_STEP))];
    let end = offset.saturating_add(length);
    let mut place = offset;
    while place < end {
        let step = (end - place).min(memory.len() as u64) as usize;
        let Some(memory) = memory.get_mut(..step) else {
            return;
        };
        match rustix::io::pread(file, memory, place) {
            Ok(0) => return,
            Ok(count) => place += count as u64,
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Notes on this thread that a range was read a moment ago, for file systems that cannot tell.
pub(crate) fn note_read(file: &File, offset: u64, length: u64) {
    if file.answers().0.load(Ordering::Relaxed) != CANNOT_TELL || length == 0 {
        return;
    }
    let Ok(metadata) = file.metadata() else {
        return;
    };
    READ.with_borrow_mut(|table| {
        table.resize(TABLE_SIZE, None);
        for step in offset / PROBE_STEP..=offset.saturating_add(length - 1) / PROBE_STEP {
            let name = RangeName {
                device: metadata.device,
                inode: metadata.inode,
                step,
            };
            if let Some(place) = table.get_mut(place_of(&name)) {
                *place = Some((name, clock::now()));
            }
        }
    });
}

fn was_read(file: &File, offset: u64, length: u64) -> bool {
    if READ.with_borrow(Vec::is_empty) || length == 0 {
        return false;
    }
    let Ok(metadata) = file.metadata() else {
        return false;
    };
    let now = clock::now();
    READ.with_borrow(|table| {
        (offset / PROBE_STEP..=offset.saturating_add(length - 1) / PROBE_STEP).all(|step| {
            let name = RangeName {
                device: metadata.device,
                inode: metadata.inode,
                step,
            };
            matches!(table.get(place_of(&name)), Some(Some((known, at)))
                if *known == name && now.saturating_duration_since(*at) < REMEMBERED)
        })
    })
}

fn place_of(name: &RangeName) -> usize {
    use std::hash::BuildHasher;
    base::hash::State.hash_one(name) as usize % TABLE_SIZE
}

fn answer_of(file: &File) -> u8 {
    match rustix::fs::fstatfs(file) {
        // The type of the field differs between architectures.
        #[allow(clippy::unnecessary_cast)]
        Ok(system) if MEMORY_FILE_SYSTEMS.contains(&(system.f_type as i64)) => IN_MEMORY,
        _ => CANNOT_TELL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn temporary(bytes: &[u8]) -> File {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let mut file = std::fs::File::from(rustix::fs::memfd_create("residency", flags).unwrap());
        file.write_all(bytes).unwrap();
        file.into()
    }

    #[test]
    fn files_in_memory_are_warm_to_the_end_and_beyond() {
        let file = temporary(&[1; 200_000]);
        assert_eq!(warm_prefix(&file, 0, 200_000), 200_000);
        assert_eq!(warm_prefix(&file, 199_999, 1_000_000), 1_000_000);
        assert_eq!(warm_prefix(&file, 5, 0), 0);
        let mut bytes = [0; 10];
        assert_eq!(read_warm(&file, 199_995, &mut bytes).unwrap(), 5);
    }

    #[test]
    fn where_nobody_can_tell_a_range_is_warm_after_it_was_read() {
        let file = temporary(&[1; 200_000]);
        file.answers().0.store(CANNOT_TELL, Ordering::Relaxed);
        assert_eq!(warm_prefix(&file, 0, 200_000), 0);
        warm(&file, 0, 70_000);
        note_read(&file, 0, 70_000);
        assert_eq!(warm_prefix(&file, 0, 200_000), 131_072);
        assert_eq!(warm_prefix(&file, 100, 60_000), 60_000);
        assert_eq!(
            read_warm(&file, 140_000, &mut [0]).unwrap_err(),
            Errno::AGAIN
        );
    }
}
