//! Which ranges of a file are in the page cache, so that reading them does not wait for a disk.
//!
//! Most file systems can tell: a read with `RWF_NOWAIT` fails if it would have to wait. A range
//! that was completely cached is not probed again for a moment, since each 128 KiB takes a call.
//! File systems in memory (tmpfs) need no probe. Some file systems cannot tell, notably overlayfs,
//! which containers use: there a range counts as cold until a pool thread has read it, and as warm
//! for a while after that.

use std::cell::RefCell;
use std::io::IoSliceMut;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags};

use super::handle::{CANNOT_TELL, File, IN_MEMORY, TELLS, UNKNOWN};
use crate::clock;

/// Distance between the probes of a range, in bytes. Readahead fills larger pieces than this.
const PROBE_STEP: u64 = 128 * 1024;

/// Bytes that a pool thread reads at once.
const READ_STEP: usize = 128 * 1024;

/// How long a range that was read counts as cached if the file system cannot tell.
const REMEMBERED_WHEN_READ: Duration = Duration::from_secs(10);

/// How long a range counts as cached after a probe has found it cached.
const REMEMBERED_WHEN_TOLD: Duration = Duration::from_secs(1);

/// Number of steps in a group, one bit each: 2 MiB of a file, as much as one turn sends by default.
const STEPS: u64 = u16::BITS as u64;

/// Slots in a thread's table of groups: together they cover 512 MiB of files.
const TABLE_SIZE: usize = 256;

/// File systems that live in memory, by `f_type`: tmpfs and ramfs.
const MEMORY_FILE_SYSTEMS: [i64; 2] = [0x0102_1994, 0x8584_58f6];

thread_local! {
    /// Groups with steps that were recently cached, by hash; empty until the first is noted.
    static WARM: RefCell<Vec<Option<Warm>>> = const { RefCell::new(Vec::new()) };
}

/// Identifies a group of consecutive steps of one file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Group {
    device: u64,
    inode: u64,
    /// The group's index in the file.
    number: u64,
}

/// Which steps of a group were cached, and when.
#[derive(Clone, Copy)]
struct Warm {
    group: Group,
    /// One bit for each step.
    steps: u16,
    /// When the first of the steps was found cached.
    since: Instant,
}

/// Reads cached data at the offset `place`. `EAGAIN` if the read would have to wait for the disk,
/// or might.
pub(super) fn read_warm(file: &File, place: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let flags = match file.answers().0.load(Ordering::Relaxed) {
        UNKNOWN | TELLS => ReadWriteFlags::NOWAIT,
        IN_MEMORY => ReadWriteFlags::empty(),
        _ if was_warm(file, place, into.len() as u64) => ReadWriteFlags::empty(),
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

/// How many of the `length` bytes from `offset` on are cached, according to probes every 128 KiB
/// and at both ends.
///
/// A range beyond the end of the file counts as cached, since sending it fails at once.
pub(crate) fn warm_prefix(file: &File, offset: u64, length: u64) -> u64 {
    let Some(last) = offset
        .checked_add(length)
        .and_then(|end| end.checked_sub(1))
    else {
        return 0;
    };
    if was_warm(file, offset, length) {
        return length;
    }
    let mut place = offset;
    while place < last {
        if !is_warm(file, place) {
            return place - offset;
        }
        place += PROBE_STEP - place % PROBE_STEP;
    }
    if is_warm(file, last) {
        note_warm(file, offset, length);
        length
    } else {
        (last - last % PROBE_STEP).saturating_sub(offset)
    }
}

/// Whether the byte at the offset `place` is cached.
fn is_warm(file: &File, place: u64) -> bool {
    match read_warm(file, place, &mut [0]) {
        Ok(_) | Err(Errno::INTR) => true,
        Err(Errno::AGAIN) => false,
        // The send will fail with the same error, and report it.
        Err(_) => true,
    }
}

/// Reads a range of a file into the page cache, waiting for the disk. Errors are left to the send.
pub(crate) fn warm(file: &File, offset: u64, length: u64) {
    // Ask for the whole range at once, since the kernel's own readahead is smaller.
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

/// Notes on this thread that a range is cached now, because it was read or a probe has found it
/// cached.
pub(crate) fn note_warm(file: &File, offset: u64, length: u64) {
    let Some((device, inode)) = file.identity().filter(|_| length > 0) else {
        return;
    };
    let (now, remembered) = (clock::now(), remembered(file));
    WARM.with_borrow_mut(|table| {
        table.resize(TABLE_SIZE, None);
        for (number, steps) in groups(offset, length) {
            let group = Group {
                device,
                inode,
                number,
            };
            let Some(place) = table.get_mut(place_of(&group)) else {
                continue;
            };
            match place {
                // A step added to a group gets the age of the group.
                Some(warm) if warm.holds(&group, now, remembered) && warm.steps & !steps != 0 => {
                    warm.steps |= steps;
                }
                _ => {
                    *place = Some(Warm {
                        group,
                        steps,
                        since: now,
                    });
                }
            }
        }
    });
}

/// Whether the whole range is known to have been cached a short time ago.
fn was_warm(file: &File, offset: u64, length: u64) -> bool {
    if WARM.with_borrow(Vec::is_empty) || length == 0 {
        return false;
    }
    let Some((device, inode)) = file.identity() else {
        return false;
    };
    let (now, remembered) = (clock::now(), remembered(file));
    WARM.with_borrow(|table| {
        groups(offset, length).all(|(number, steps)| {
            let group = Group {
                device,
                inode,
                number,
            };
            matches!(table.get(place_of(&group)), Some(Some(warm))
                if warm.holds(&group, now, remembered) && warm.steps & steps == steps)
        })
    })
}

/// How long a note about this file is valid.
fn remembered(file: &File) -> Duration {
    match file.answers().0.load(Ordering::Relaxed) {
        CANNOT_TELL => REMEMBERED_WHEN_READ,
        _ => REMEMBERED_WHEN_TOLD,
    }
}

impl Warm {
    /// Whether this note is about `group` and still valid.
    fn holds(&self, group: &Group, now: Instant, remembered: Duration) -> bool {
        self.group == *group && now.saturating_duration_since(self.since) < remembered
    }
}

/// The groups that a non-empty range touches, by index, each with the touched steps.
fn groups(offset: u64, length: u64) -> impl Iterator<Item = (u64, u16)> {
    let first = offset / PROBE_STEP;
    let last = offset.saturating_add(length - 1) / PROBE_STEP;
    (first / STEPS..=last / STEPS).map(move |number| {
        let from = first.saturating_sub(number * STEPS);
        let to = (last - number * STEPS).min(STEPS - 1);
        (number, u16::MAX << from & u16::MAX >> (STEPS - 1 - to))
    })
}

/// The group's slot in the table.
fn place_of(group: &Group) -> usize {
    use std::hash::BuildHasher;
    base::hash::State.hash_one(group) as usize % TABLE_SIZE
}

/// Classifies a file system without `RWF_NOWAIT`: [`IN_MEMORY`] or [`CANNOT_TELL`].
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
    use std::os::fd::{AsFd, AsRawFd};

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
        note_warm(&file, 0, 70_000);
        assert_eq!(warm_prefix(&file, 0, 200_000), 131_072);
        assert_eq!(warm_prefix(&file, 100, 60_000), 60_000);
        assert_eq!(
            read_warm(&file, 140_000, &mut [0]).unwrap_err(),
            Errno::AGAIN
        );
    }

    #[test]
    fn what_was_warm_is_not_asked_about_again() {
        let file = temporary(&[1; 200_000]);
        assert_eq!(warm_prefix(&file, 0, 200_000), 200_000);
        // A descriptor that cannot be read from: the same file, opened only for writing.
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        let again: File = std::fs::File::options()
            .write(true)
            .open(path)
            .unwrap()
            .into();
        again.answers().0.store(CANNOT_TELL, Ordering::Relaxed);
        assert_eq!(warm_prefix(&again, 0, 200_000), 200_000);
        assert_eq!(warm_prefix(&again, 150_000, 10_000), 10_000);
        assert_eq!(warm_prefix(&again, 200_000, 100_000), 62_144);
        let other = temporary(&[1; 200_000]);
        other.answers().0.store(CANNOT_TELL, Ordering::Relaxed);
        assert_eq!(warm_prefix(&other, 0, 200_000), 0);
    }

    #[test]
    fn a_range_is_cut_into_groups_of_steps() {
        let step = PROBE_STEP;
        let cut = |offset, length| groups(offset, length).collect::<Vec<_>>();
        assert_eq!(cut(0, 1), [(0, 1)]);
        assert_eq!(cut(step - 1, 2), [(0, 0b11)]);
        assert_eq!(cut(0, 16 * step), [(0, u16::MAX)]);
        assert_eq!(cut(15 * step, step + 1), [(0, 1 << 15), (1, 1)]);
        assert_eq!(
            cut(17 * step, 32 * step),
            [(1, u16::MAX << 1), (2, u16::MAX), (3, 1)]
        );
        assert_eq!(cut(u64::MAX, 5).len(), 1);
    }
}
