//! The folder of a cache. It is opened once, and all files are opened relative to its descriptor,
//! so that neither renaming a parent folder nor confining the process changes the target.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use base::hash::Set;
use bytes::Bytes;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::id::{EntryId, EntryPath, Levels, NUMBERS, TemporaryName};

/// The permissions are those of nginx.
const FILE_MODE: Mode = Mode::from_raw_mode(0o600);
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o700);

/// How far the number of a temporary file is advanced if a name is already in use.
const NUMBER_JUMP: u64 = 123_456;

/// Maximum number of names tried for a temporary file.
const NAMES_TRIED_MAX: usize = 100;

/// Maximum number of parts in one `pwritev` (the kernel's limit, `UIO_MAXIOV`, is 1024).
const PARTS_MAX: usize = 64;

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Maximum number of times that a process reopens its folder after it has been removed. Each time,
/// the old descriptor stays open.
const REPLACED_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct CacheFolder {
    place: Place,
    /// The path for reopening the folder after it has been removed; `None` if the caller passed an
    /// open descriptor.
    path: Option<PathBuf>,
    levels: Levels,
    block_size: u64,
    next_number: AtomicU64,
    /// Whether `openat2` with `RESOLVE_CACHED` is unavailable: the kernel lacks it, or a seccomp
    /// filter forbids it.
    no_cached_open: AtomicBool,
    /// Whether unnamed files (`O_TMPFILE`) are unavailable, or cannot be linked later.
    no_unnamed: AtomicBool,
}

/// An open folder.
#[derive(Debug)]
struct Place {
    descriptor: OwnedFd,
    /// A separate open file description for the lock of the folder's owner: descriptors inherited
    /// from another process share an open file description, and thus the lock, with that process.
    lock: OwnedFd,
    /// The folder that replaced this one after its removal. Other threads may still use this
    /// descriptor.
    next: OnceLock<Box<Place>>,
}

impl Place {
    fn of(descriptor: OwnedFd) -> Result<Place, Errno> {
        let lock = rustix::fs::openat(&descriptor, ".", FOLDER, Mode::empty())?;
        Ok(Place {
            descriptor,
            lock,
            next: OnceLock::new(),
        })
    }

    /// This folder and its successive replacements.
    fn chain(&self) -> impl Iterator<Item = &Place> {
        std::iter::successors(Some(self), |place| place.next.get().map(|next| &**next))
    }
}

/// Opens a folder, and creates it if it is missing.
fn open_or_make(path: &Path) -> Result<OwnedFd, Errno> {
    let open = || rustix::fs::open(path, FOLDER, Mode::empty());
    match open() {
        Err(Errno::NOENT) => {
            match rustix::fs::mkdir(path, FOLDER_MODE) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
            open()
        }
        opened => opened,
    }
}

impl CacheFolder {
    /// Opens the folder, and creates it if it is missing.
    pub(super) fn open(path: &Path, levels: Levels) -> Result<CacheFolder, Errno> {
        let folder = CacheFolder::from_descriptor(open_or_make(path)?, levels)?;
        let path = Some(path.to_owned());
        Ok(CacheFolder { path, ..folder })
    }

    /// Opens an existing folder.
    pub(super) fn open_existing(path: &Path, levels: Levels) -> Result<CacheFolder, Errno> {
        let descriptor = rustix::fs::open(path, FOLDER, Mode::empty())?;
        CacheFolder::from_descriptor(descriptor, levels)
    }

    pub(super) fn with_levels(self, levels: Levels) -> CacheFolder {
        CacheFolder { levels, ..self }
    }

    pub(super) fn from_descriptor(
        descriptor: OwnedFd,
        levels: Levels,
    ) -> Result<CacheFolder, Errno> {
        let block_size = rustix::fs::fstatvfs(&descriptor)?.f_bsize.max(1);
        // The first number is random in each process, so that names rarely collide with leftovers.
        let first = base::hash::of(b"temporary") % NUMBERS;
        Ok(CacheFolder {
            place: Place::of(descriptor)?,
            path: None,
            levels,
            block_size,
            next_number: AtomicU64::new(first),
            no_cached_open: AtomicBool::new(false),
            no_unnamed: AtomicBool::new(false),
        })
    }

    fn descriptor(&self) -> &OwnedFd {
        match self.place.next.get() {
            None => &self.place.descriptor,
            Some(next) => &next.chain().last().unwrap_or(next).descriptor,
        }
    }

    /// Whether the folder still has a link, that is, has not been removed.
    pub(super) fn is_linked(&self) -> Result<bool, Errno> {
        Ok(rustix::fs::fstat(self.descriptor())?.st_nlink > 0)
    }

    /// Opens the folder that is now at the path of a removed one, or creates it.
    pub(super) fn replace(&self) -> Result<(), Errno> {
        let path = self.path.as_deref().ok_or(Errno::NOENT)?;
        if self.place.chain().count() > REPLACED_MAX {
            return Err(Errno::MFILE);
        }
        let new = Box::new(Place::of(open_or_make(path)?)?);
        if let Some(last) = self.place.chain().last() {
            // Only one thread calls this, so the cell is empty.
            let _ = last.next.set(new);
        }
        Ok(())
    }

    pub(super) fn levels(&self) -> &Levels {
        &self.levels
    }

    pub(super) fn block_size(&self) -> u64 {
        self.block_size
    }

    /// The number of blocks that a file of this length occupies.
    pub(super) fn blocks(&self, length: u64) -> u64 {
        length.div_ceil(self.block_size)
    }

    /// Bytes on the file system that are available to this process.
    pub(super) fn free(&self) -> Result<u64, Errno> {
        let stat = rustix::fs::fstatvfs(self.descriptor())?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize.max(1)))
    }

    /// Tries to become the owner of the folder. Returns whether this process is its owner now. The
    /// kernel releases the lock at the end of the process.
    pub(super) fn try_lock(&self) -> bool {
        let lock = match self.place.chain().last() {
            Some(last) => &last.lock,
            None => &self.place.lock,
        };
        match rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => false,
            // On a file system without locks, every process is an owner.
            Ok(()) | Err(_) => true,
        }
    }

    /// Opens an entry for reading.
    pub(super) fn open_entry(&self, id: &EntryId) -> Result<OwnedFd, Errno> {
        self.open_below(self.levels.path(id).as_str(), READ)
    }

    /// Opens an entry for changes to its head.
    pub(super) fn open_entry_to_change(&self, id: &EntryId) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.open_below(self.levels.path(id).as_str(), flags)
    }

    /// Opens an entry for reading if the path is in the kernel's cache; `None` if the disk may be
    /// needed.
    pub(super) fn open_entry_in_memory(&self, id: &EntryId) -> Option<Result<OwnedFd, Errno>> {
        self.open_cached(id, READ)
    }

    /// The status of an entry's file if its path is in the kernel's cache; `None` if the disk may
    /// be needed.
    pub(super) fn stat_entry_in_memory(&self, id: &EntryId) -> Option<Result<Stat, Errno>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = self.open_cached(id, flags)?;
        Some(opened.and_then(|place| rustix::fs::fstat(&place)))
    }

    fn open_cached(&self, id: &EntryId, flags: OFlags) -> Option<Result<OwnedFd, Errno>> {
        if self.no_cached_open.load(Ordering::Relaxed) {
            return None;
        }
        let path = self.levels.path(id);
        let mode = Mode::empty();
        let cached = ResolveFlags::CACHED;
        match rustix::fs::openat2(self.descriptor(), path.as_str(), flags, mode, cached) {
            Err(Errno::AGAIN) => None,
            Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) => {
                self.no_cached_open.store(true, Ordering::Relaxed);
                None
            }
            result => Some(result),
        }
    }

    fn open_below(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(self.descriptor(), path, flags, Mode::empty())
    }

    /// Opens a subfolder for listing; `.` is the folder itself.
    pub(super) fn open_folder(&self, path: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.open_below(path, flags)
    }

    /// The status of an entry's file.
    pub(super) fn stat_entry(&self, id: &EntryId) -> Result<Stat, Errno> {
        let path = self.levels.path(id);
        rustix::fs::statat(self.descriptor(), path.as_str(), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Creates a temporary file in the folder of an entry, and the missing subfolders. The name is
    /// added to `names` before the file is created.
    pub(super) fn create_temporary(
        &self,
        id: EntryId,
        names: &Mutex<Set<TemporaryName>>,
    ) -> Result<(TemporaryName, OwnedFd), DiskError> {
        self.make_temporary(id, names, "openat()", |path| self.create(path))
    }

    /// Creates a temporary file in the folder of an entry with `make`; `call` names the system call
    /// in errors.
    fn make_temporary<T>(
        &self,
        id: EntryId,
        names: &Mutex<Set<TemporaryName>>,
        call: &'static str,
        make: impl Fn(&str) -> Result<T, Errno>,
    ) -> Result<(TemporaryName, T), DiskError> {
        let names = || names.lock().unwrap_or_else(PoisonError::into_inner);
        let mut step = 1;
        for _ in 0..NAMES_TRIED_MAX {
            let number = self.next_number.fetch_add(step, Ordering::Relaxed) % NUMBERS;
            let name = TemporaryName { id, number };
            let path = self.levels.temporary_path(name);
            names().insert(name);
            let error = match make(path.as_str()) {
                Ok(made) => return Ok((name, made)),
                Err(error) => error,
            };
            names().remove(&name);
            match error {
                Errno::NOENT => self.make_folders(&path)?,
                Errno::EXIST => step = NUMBER_JUMP,
                error => return Err(DiskError::of(call, error)),
            }
        }
        Err(DiskError::of(call, Errno::EXIST))
    }

    /// Creates an unnamed file in the folder of an entry. It must be given its name with
    /// [`CacheFolder::link`]. `None` if the file system does not support such files.
    pub(super) fn create_unnamed(&self, id: &EntryId) -> Result<Option<OwnedFd>, DiskError> {
        if self.no_unnamed.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let path = self.levels.path(id);
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let create = || rustix::fs::openat(self.descriptor(), path.parent(), flags, FILE_MODE);
        let mut created = create();
        if created.as_ref().is_err_and(|error| *error == Errno::NOENT) {
            self.make_folders(&path)?;
            created = create();
        }
        match created {
            Ok(file) => Ok(Some(file)),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::PERM) => {
                self.no_unnamed.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Err(error) => Err(DiskError::of("openat()", error)),
        }
    }

    /// Links an unnamed file as the entry. If it replaces a file, it is first linked under a
    /// temporary name, which is in `names` meanwhile.
    pub(super) fn link(
        &self,
        file: &OwnedFd,
        id: &EntryId,
        names: &Mutex<Set<TemporaryName>>,
    ) -> Result<(), DiskError> {
        match self.link_as(file, self.levels.path(id).as_str()) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => {}
            Err(error) => {
                // If linking is unsupported after all, later files are created with temporary
                // names.
                self.no_unnamed.store(true, Ordering::Relaxed);
                return Err(DiskError::of("linkat()", error));
            }
        }
        let link = |path: &str| self.link_as(file, path);
        let (name, ()) = self.make_temporary(*id, names, "linkat()", link)?;
        let renamed = self.rename(name);
        if renamed.is_err() {
            // An error of this cleanup would be less informative than the error of the rename.
            let _ = self.unlink_temporary(name);
        }
        let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
        names.remove(&name);
        renamed
    }

    /// Links an open file. Kernels before 6.10 require `/proc` for this without a capability.
    fn link_as(&self, file: &OwnedFd, path: &str) -> Result<(), Errno> {
        let to = self.descriptor();
        match rustix::fs::linkat(file, "", to, path, AtFlags::EMPTY_PATH) {
            Err(Errno::NOENT) => {}
            linked => return linked,
        }
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(rustix::fs::CWD, from, to, path, AtFlags::SYMLINK_FOLLOW)
    }

    fn create(&self, path: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::openat(self.descriptor(), path, flags, FILE_MODE)
    }

    fn make_folders(&self, path: &EntryPath) -> Result<(), DiskError> {
        for folder in path.folders() {
            self.make_folder(folder)?;
        }
        Ok(())
    }

    /// Creates a subfolder, if it is missing.
    pub(super) fn make_folder(&self, path: &str) -> Result<(), DiskError> {
        match rustix::fs::mkdirat(self.descriptor(), path, FOLDER_MODE) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(DiskError::of("mkdirat()", error)),
        }
    }

    /// Renames a temporary file to the entry.
    pub(super) fn rename(&self, name: TemporaryName) -> Result<(), DiskError> {
        let from = self.levels.temporary_path(name);
        let to = self.levels.path(&name.id);
        self.rename_below(from.as_str(), to.as_str())
    }

    pub(super) fn rename_below(&self, from: &str, to: &str) -> Result<(), DiskError> {
        rustix::fs::renameat(self.descriptor(), from, self.descriptor(), to)
            .map_err(|error| DiskError::of("renameat()", error))
    }

    pub(super) fn unlink_entry(&self, id: &EntryId) -> Result<(), Errno> {
        self.unlink(self.levels.path(id).as_str())
    }

    pub(super) fn unlink_temporary(&self, name: TemporaryName) -> Result<(), Errno> {
        self.unlink(self.levels.temporary_path(name).as_str())
    }

    fn unlink(&self, path: &str) -> Result<(), Errno> {
        rustix::fs::unlinkat(self.descriptor(), path, AtFlags::empty())
    }

    /// Unlinks another file below the folder, and ignores errors.
    pub(super) fn unlink_other(&self, path: &str) {
        let _ = self.unlink(path);
    }

    /// Opens another file below the folder for reading.
    pub(super) fn open_other(&self, path: &str) -> Result<OwnedFd, Errno> {
        self.open_below(path, READ)
    }

    /// Opens another file below the folder for writing.
    pub(super) fn open_other_to_change(&self, path: &str) -> Result<OwnedFd, Errno> {
        self.open_below(path, OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC)
    }

    /// Creates another file below the folder, or truncates it.
    pub(super) fn create_other(&self, path: &str) -> Result<OwnedFd, DiskError> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(self.descriptor(), path, flags, FILE_MODE)
            .map_err(|error| DiskError::of("openat()", error))
    }
}

/// A failed system call on the folder or one of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskError {
    /// The name of the system call, for log lines.
    pub call: &'static str,
    error: Errno,
}

impl DiskError {
    pub(super) fn of(call: &'static str, error: Errno) -> DiskError {
        DiskError { call, error }
    }

    /// The error of the system call.
    #[must_use]
    pub fn error(&self) -> std::io::Error {
        self.error.into()
    }
}

/// Writes all `parts` in sequence, from offset `at`.
pub(super) fn write_all(file: impl AsFd, mut at: u64, parts: &[Bytes]) -> Result<(), DiskError> {
    let mut parts = parts.iter().map(|part| &part[..]);
    loop {
        let mut slices: [IoSlice<'_>; PARTS_MAX] = [IoSlice::new(&[]); PARTS_MAX];
        let mut count = 0;
        for (slice, part) in slices.iter_mut().zip(&mut parts) {
            *slice = IoSlice::new(part);
            count += 1;
        }
        if count == 0 {
            return Ok(());
        }
        let mut left = slices.get_mut(..count).unwrap_or_default();
        while !left.is_empty() {
            match rustix::io::pwritev(&file, left, at) {
                // Without an error, `pwritev` writes nothing only if the device has no room.
                Ok(0) if left.iter().any(|slice| !slice.is_empty()) => {
                    return Err(DiskError::of("pwritev()", Errno::NOSPC));
                }
                Ok(written) => {
                    at += written as u64;
                    IoSlice::advance_slices(&mut left, written);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(DiskError::of("pwritev()", error)),
            }
        }
    }
}

/// Waits until the data of a file has reached the disk.
pub(super) fn sync(file: impl AsFd) -> Result<(), DiskError> {
    match rustix::fs::fdatasync(file) {
        // File systems that do not support this keep their files in memory.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(error) => Err(DiskError::of("fdatasync()", error)),
    }
}

/// Reads into `memory` until it is full or the file ends. Returns the number of bytes read.
pub(super) fn read_all(file: impl AsFd, at: u64, memory: &mut [u8]) -> Result<usize, Errno> {
    let mut filled = 0;
    while let Some(rest) = memory.get_mut(filled..)
        && !rest.is_empty()
    {
        match rustix::io::pread(&file, rest, at + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
