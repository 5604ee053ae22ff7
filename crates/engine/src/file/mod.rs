//! File access that does not block the loop on a disk: data in the kernel's cache is read inline,
//! the rest by the thread pool of [`blocking`](crate::blocking).
//!
//! Opening and asking for metadata use `openat2(RESOLVE_CACHED)`, which fails instead of waiting
//! for the disk. If that call is unavailable (a kernel before 5.12, or a seccomp filter), both are
//! done inline.

mod handle;
pub(crate) mod residency;

pub use handle::File;

use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::blocking::{Weight, blocking, weighed};
use crate::budget;
use handle::OPEN_FILES;

/// Buffer size of a copy from file to file, in bytes.
const COPY_SIZE: u64 = 64 * 1024;

/// The metadata of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The size of the file in bytes.
    pub size: u64,
    /// When the content last changed, in seconds since 1970.
    pub mtime: i64,
    /// The nanoseconds of `mtime`.
    pub mtime_nanos: u32,
    /// When content or metadata last changed, in seconds since 1970.
    pub ctime: i64,
    /// The nanoseconds of `ctime`.
    pub ctime_nanos: u32,
    /// Inode number.
    pub inode: u64,
    /// Device number of the file system.
    pub device: u64,
    /// Kind and permissions, as in `st_mode`.
    pub mode: u32,
    /// The user id of the file's owner.
    pub uid: u32,
}

impl Metadata {
    /// Whether the file is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        FileType::from_raw_mode(self.mode) == FileType::Directory
    }

    /// Whether the file is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        FileType::from_raw_mode(self.mode) == FileType::RegularFile
    }

    /// Whether the file is a symbolic link; never true for metadata of a resolved path.
    #[must_use]
    pub fn is_link(&self) -> bool {
        FileType::from_raw_mode(self.mode) == FileType::Symlink
    }
}

impl From<Stat> for Metadata {
    // The types of the fields differ between architectures.
    #[allow(clippy::unnecessary_cast, clippy::cast_lossless)]
    fn from(stat: Stat) -> Metadata {
        Metadata {
            size: stat.st_size as u64,
            mtime: stat.st_mtime as i64,
            mtime_nanos: stat.st_mtime_nsec as u32,
            ctime: stat.st_ctime as i64,
            ctime_nanos: stat.st_ctime_nsec as u32,
            inode: stat.st_ino as u64,
            device: stat.st_dev as u64,
            mode: stat.st_mode as u32,
            uid: stat.st_uid,
        }
    }
}

/// Opens a file or directory for reading.
///
/// # Errors
/// Those of `open()` and `fstat()`.
pub async fn open(path: &Path) -> io::Result<(File, Metadata)> {
    match open_in_memory(path) {
        Some(opened) => opened,
        None => open_on_disk(path.to_owned()).await,
    }
}

/// Opens a file or directory for reading if that needs no disk access; `None` if it might need one.
pub fn open_in_memory(path: &Path) -> Option<io::Result<(File, Metadata)>> {
    match open_cached(path, READ) {
        Ok(file) => Some(described(file)),
        Err(Errno::AGAIN) => None,
        Err(error) => Some(Err(error.into())),
    }
}

/// Opens a file for which [`open_in_memory`] returned `None`, on a pool thread.
///
/// # Errors
/// Those of `open()` and `fstat()`.
pub async fn open_on_disk(path: PathBuf) -> io::Result<(File, Metadata)> {
    blocking(move || open_now(&path)).await
}

/// Metadata of the file at `path`, without waiting for a disk: three cheap calls if the path is
/// cached, else a job for the pool. For a path that was resolved a moment ago, [`stat_now`] takes
/// one call.
///
/// # Errors
/// Those of `stat()`.
pub async fn stat(path: &Path) -> io::Result<Metadata> {
    match stat_in_memory(path) {
        Some(metadata) => metadata,
        None => stat_on_disk(path.to_owned()).await,
    }
}

/// Metadata of the file at `path` if that needs no disk access; `None` if it might need one.
pub fn stat_in_memory(path: &Path) -> Option<io::Result<Metadata>> {
    match open_cached(path, OFlags::PATH.union(OFlags::CLOEXEC)) {
        Ok(place) => {
            let stat = rustix::fs::fstat(&place);
            Some(stat.map(Metadata::from).map_err(io::Error::from))
        }
        Err(Errno::AGAIN) => None,
        Err(error) => Some(Err(error.into())),
    }
}

/// Metadata of a path for which [`stat_in_memory`] returned `None`, on a pool thread.
///
/// # Errors
/// Those of `stat()`.
pub async fn stat_on_disk(path: PathBuf) -> io::Result<Metadata> {
    blocking(move || stat_now(&path)).await
}

/// Metadata of the file at `path`, inline: for paths that were resolved recently, so that their
/// directories are cached.
///
/// # Errors
/// Those of `stat()`.
pub fn stat_now(path: &Path) -> io::Result<Metadata> {
    Ok(rustix::fs::stat(path)?.into())
}

/// Opens an existing file or directory for reading, inline; like [`stat_now`], for paths that were
/// resolved recently.
///
/// # Errors
/// Those of `open()` and `fstat()`.
pub fn open_now(path: &Path) -> io::Result<(File, Metadata)> {
    described(rustix::fs::open(path, READ, Mode::empty())?)
}

/// Opens an existing file for appending if that needs no disk access, so that the call never waits.
/// A pipe without a reader is an error (`ENXIO`).
///
/// # Errors
/// `WouldBlock` if the call might have to wait; else those of `open()`. Nothing is created, so a
/// missing file is `NotFound`.
pub fn append_now(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED) {
        // The call or its flag may be unsupported: then only a call that waits can tell.
        Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) => Err(Errno::AGAIN.into()),
        result => Ok(result?),
    }
}

const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// Wraps an opened file or directory, and reads its metadata.
///
/// # Errors
/// `EMFILE` if open files use at least half of the process's descriptor limit and the number of
/// this descriptor is in the last sixteenth. The last sixteenth is reserved for connections, so
/// that clients can be served. Also the errors of `fstat()`.
pub fn described(file: OwnedFd) -> io::Result<(File, Metadata)> {
    let limit = descriptors_max();
    // The kernel assigns the lowest free number.
    let is_of_the_last = u64::from(file.as_raw_fd().unsigned_abs()) >= limit - limit / RESERVE;
    if is_of_the_last && OPEN_FILES.load(Ordering::Relaxed) >= limit / 2 {
        return Err(Errno::MFILE.into());
    }
    let metadata: Metadata = rustix::fs::fstat(&file)?.into();
    let file = File::from(file);
    file.note_identity(metadata.device, metadata.inode);
    Ok((file, metadata))
}

/// One in this many descriptors is reserved for connections.
const RESERVE: u64 = 16;

/// The process's limit of descriptors. Read once, after `worker_rlimit_nofile` has been applied.
fn descriptors_max() -> u64 {
    static MAX: OnceLock<u64> = OnceLock::new();
    *MAX.get_or_init(|| {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        limit.current.unwrap_or(u64::MAX)
    })
}

/// Opens `path` if that needs no disk access; `EAGAIN` if it might need one.
fn open_cached(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    static MISSING: AtomicBool = AtomicBool::new(false);
    if MISSING.load(Ordering::Relaxed) {
        return rustix::fs::open(path, flags, Mode::empty());
    }
    match rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED) {
        Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) => {
            // The call or its flag may be unsupported, or the path itself may be refused: the plain
            // call distinguishes them.
            let plain = rustix::fs::open(path, flags, Mode::empty());
            if plain.is_ok() {
                MISSING.store(true, Ordering::Relaxed);
            }
            plain
        }
        result => result,
    }
}

impl File {
    /// Reads up to `length` bytes at `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// Those of `pread()`.
    pub async fn read_at(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        budget::take().await;
        let mut memory = vec![0; length];
        let mut filled = 0;
        while let Some(rest) = memory.get_mut(filled..)
            && !rest.is_empty()
        {
            match residency::read_warm(self, offset + filled as u64, rest) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let file = self.clone();
                    let weight = Weight::of_read((length - filled) as u64);
                    (memory, filled) =
                        weighed(weight, move || file.read_cold(memory, filled, offset)).await?;
                    residency::note_warm(self, offset, filled as u64);
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        memory.truncate(filled);
        Ok(memory.into())
    }

    /// Fills `memory` from the offset `filled` on, waiting for the disk.
    fn read_cold(
        &self,
        mut memory: Vec<u8>,
        mut filled: usize,
        offset: u64,
    ) -> io::Result<(Vec<u8>, usize)> {
        while let Some(rest) = memory.get_mut(filled..)
            && !rest.is_empty()
        {
            match rustix::io::pread(self, rest, offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok((memory, filled))
    }

    /// Writes `parts` one after another, starting at `offset`, on a pool thread. The file must be
    /// open for writing, so it cannot come from [`open`].
    ///
    /// # Errors
    /// Those of `pwrite()`.
    pub async fn write_at(&self, offset: u64, parts: Vec<Bytes>) -> io::Result<()> {
        let file = self.clone();
        let length: usize = parts.iter().map(Bytes::len).sum();
        let job = move || {
            let mut at = offset;
            let written = parts.iter().try_for_each(|part| {
                file.write_part(at, part)?;
                at += part.len() as u64;
                Ok(())
            });
            // Return the parts, so that receive buffers go back to the receiving thread's pool.
            (written, parts)
        };
        let (written, _parts) = weighed(Weight::of_read(length as u64), job).await;
        written
    }

    /// Appends `length` bytes of this file, starting at `offset`, to `to`. Waits for the disk, so
    /// call it only on a thread that may block.
    ///
    /// # Errors
    /// Those of `pread()` and `write()`; `UnexpectedEof` if the file is too short.
    pub fn copy_to(&self, offset: u64, length: u64, to: &mut std::fs::File) -> io::Result<()> {
        let mut memory = vec![0; usize::try_from(length.min(COPY_SIZE)).unwrap_or_default()];
        let (mut at, end) = (offset, offset + length);
        while at < end {
            let wanted = usize::try_from(end - at).unwrap_or(usize::MAX);
            let room = wanted.min(memory.len());
            let part = memory.get_mut(..room).unwrap_or_default();
            match rustix::io::pread(self, &mut *part, at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    to.write_all(part.get(..count).unwrap_or_default())?;
                    at += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes all of `bytes` at `offset`, waiting for the disk.
    fn write_part(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while let Some(rest) = bytes.get(written..)
            && !rest.is_empty()
        {
            match rustix::io::pwrite(self, rest, offset + written as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The file's current metadata, read inline.
    ///
    /// # Errors
    /// Those of `fstat()`.
    pub fn metadata(&self) -> io::Result<Metadata> {
        Ok(rustix::fs::fstat(self)?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn temporary(bytes: &[u8]) -> File {
        let mut file = std::fs::File::from(
            rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap(),
        );
        file.write_all(bytes).unwrap();
        file.into()
    }

    #[test]
    fn metadata_tells_kinds_apart() {
        let directory = stat_now(Path::new("/")).unwrap();
        assert!(directory.is_dir() && !directory.is_file() && !directory.is_link());
        let metadata = temporary(b"12345").metadata().unwrap();
        assert!(metadata.is_file());
        assert_eq!(metadata.size, 5);
    }

    #[test]
    fn cold_reads_stop_at_the_end() {
        let file = temporary(b"0123456789");
        let (memory, filled) = file.read_cold(vec![0; 20], 0, 3).unwrap();
        assert_eq!(&memory[..filled], b"3456789");
    }
}
