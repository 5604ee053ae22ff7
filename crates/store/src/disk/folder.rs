//! A cache's folder, opened once: every file of it is named relative to that descriptor, so that
//! neither a renamed parent nor a confined process changes what is meant.

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

/// Permissions of entries and folders are nginx's.
const FILE_MODE: Mode = Mode::from_raw_mode(0o600);
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o700);

/// How far names of temporary files jump where one is taken.
const NUMBER_JUMP: u64 = 123_456;

/// How many names are tried.
const NAMES_TRIED_MAX: usize = 100;

/// Most parts that one `pwritev` takes (the kernel's `UIO_MAXIOV` is 1024).
const PARTS_MAX: usize = 64;

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// How often a folder is opened anew in a process: each time a descriptor of the removed one stays
/// open.
const REPLACED_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct CacheFolder {
    place: Place,
    /// Where it is opened again once it has been removed; nothing where it was given open.
    path: Option<PathBuf>,
    levels: Levels,
    block_size: u64,
    next_number: AtomicU64,
    /// The kernel does not know `openat2`, or a filter forbids it.
    no_cached_open: AtomicBool,
    /// The file system makes no files without a name, or gives them none later.
    no_unnamed: AtomicBool,
}

/// A folder that is open.
#[derive(Debug)]
struct Place {
    descriptor: OwnedFd,
    /// A description of its own for the lock that says who owns the folder: what was inherited
    /// from another process shares its lock with it.
    lock: OwnedFd,
    /// The one in its place, where it has been removed. Others may still use this one.
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

    /// This one and those that came in its place.
    fn chain(&self) -> impl Iterator<Item = &Place> {
        std::iter::successors(Some(self), |place| place.next.get().map(|next| &**next))
    }
}

/// Opens a folder; makes it where it is missing.
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
    /// Opens the folder; makes it where it is missing.
    pub(super) fn open(path: &Path, levels: Levels) -> Result<CacheFolder, Errno> {
        let folder = CacheFolder::from_descriptor(open_or_make(path)?, levels)?;
        let path = Some(path.to_owned());
        Ok(CacheFolder { path, ..folder })
    }

    /// Opens a folder that is there.
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
        // Another number in each process, so that names seldom meet those of the one before.
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

    /// Whether it has a name still.
    pub(super) fn is_linked(&self) -> Result<bool, Errno> {
        Ok(rustix::fs::fstat(self.descriptor())?.st_nlink > 0)
    }

    /// Opens what is now in the place of a folder that has been removed, or makes it.
    pub(super) fn replace(&self) -> Result<(), Errno> {
        let path = self.path.as_deref().ok_or(Errno::NOENT)?;
        if self.place.chain().count() > REPLACED_MAX {
            return Err(Errno::MFILE);
        }
        let new = Box::new(Place::of(open_or_make(path)?)?);
        if let Some(last) = self.place.chain().last() {
            // Only one thread looks after a folder.
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

    /// How many blocks a file of this length takes.
    pub(super) fn blocks(&self, length: u64) -> u64 {
        length.div_ceil(self.block_size)
    }

    /// Bytes that the file system has left for us.
    pub(super) fn free(&self) -> Result<u64, Errno> {
        let stat = rustix::fs::fstatvfs(self.descriptor())?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize.max(1)))
    }

    /// Whether this process owns the folder from now on, or does so already. The lock goes with
    /// the process that has it, however that ends.
    pub(super) fn try_lock(&self) -> bool {
        let lock = match self.place.chain().last() {
            Some(last) => &last.lock,
            None => &self.place.lock,
        };
        match rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => false,
            // A file system without locks: nothing could ever be owned.
            Ok(()) | Err(_) => true,
        }
    }

    /// Opens an entry for reading.
    pub(super) fn open_entry(&self, id: &EntryId) -> Result<OwnedFd, Errno> {
        self.open_below(self.levels.path(id).as_str(), READ)
    }

    /// Opens an entry for changing its head.
    pub(super) fn open_entry_to_change(&self, id: &EntryId) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.open_below(self.levels.path(id).as_str(), flags)
    }

    /// Opens an entry for reading if that needs no disk; nothing where it might.
    pub(super) fn open_entry_in_memory(&self, id: &EntryId) -> Option<Result<OwnedFd, Errno>> {
        self.open_cached(id, READ)
    }

    /// What is known of an entry's file if that needs no disk; nothing where it might.
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

    /// Opens a folder of this one to list it; the folder itself is `.`.
    pub(super) fn open_folder(&self, path: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.open_below(path, flags)
    }

    /// What is known of an entry's file.
    pub(super) fn stat_entry(&self, id: &EntryId) -> Result<Stat, Errno> {
        let path = self.levels.path(id);
        rustix::fs::statat(self.descriptor(), path.as_str(), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Makes a temporary file beside an entry, and the subfolders that both lie in. `names` has its
    /// name before it is there.
    pub(super) fn create_temporary(
        &self,
        id: EntryId,
        names: &Mutex<Set<TemporaryName>>,
    ) -> Result<(TemporaryName, OwnedFd), DiskError> {
        self.make_temporary(id, names, "openat()", |path| self.create(path))
    }

    /// Has `make` make a temporary file beside an entry; `call` is what that calls.
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

    /// Makes a file without a name where an entry is to lie, which is gone if it gets none:
    /// [`CacheFolder::link`]. Nothing where the file system has no such files.
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

    /// Makes a file without a name the entry. `names` has the one that it has meanwhile where it
    /// replaces another.
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
                // If this has no files of that kind after all, those to come are made otherwise.
                self.no_unnamed.store(true, Ordering::Relaxed);
                return Err(DiskError::of("linkat()", error));
            }
        }
        let link = |path: &str| self.link_as(file, path);
        let (name, ()) = self.make_temporary(*id, names, "linkat()", link)?;
        let renamed = self.rename(name);
        if renamed.is_err() {
            // The error that is told says more than one about this would.
            let _ = self.unlink_temporary(name);
        }
        let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
        names.remove(&name);
        renamed
    }

    /// Gives an open file a name. A kernel before 6.10 has that asked for by way of `/proc`.
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

    /// Makes a folder below this one, if it is not there.
    pub(super) fn make_folder(&self, path: &str) -> Result<(), DiskError> {
        match rustix::fs::mkdirat(self.descriptor(), path, FOLDER_MODE) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(DiskError::of("mkdirat()", error)),
        }
    }

    /// Makes a temporary file the entry.
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

    /// Removes another file below the folder, if it is there.
    pub(super) fn unlink_other(&self, path: &str) {
        let _ = self.unlink(path);
    }

    /// Opens another file below the folder for reading.
    pub(super) fn open_other(&self, path: &str) -> Result<OwnedFd, Errno> {
        self.open_below(path, READ)
    }

    /// Opens another file below the folder to change it.
    pub(super) fn open_other_to_change(&self, path: &str) -> Result<OwnedFd, Errno> {
        self.open_below(path, OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC)
    }

    /// Makes another file below the folder, or empties it.
    pub(super) fn create_other(&self, path: &str) -> Result<OwnedFd, DiskError> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(self.descriptor(), path, flags, FILE_MODE)
            .map_err(|error| DiskError::of("openat()", error))
    }
}

/// A system call about a file of the cache that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskError {
    /// The call, as log lines name it.
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

/// Writes all of `parts` one behind the other.
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
                // Only a device without room takes nothing without saying why.
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

/// Waits until what has been written lies on the disk.
pub(super) fn sync(file: impl AsFd) -> Result<(), DiskError> {
    match rustix::fs::fdatasync(file) {
        // A file system without it keeps files in memory alone.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(error) => Err(DiskError::of("fdatasync()", error)),
    }
}

/// Reads into `memory` until it is full or the file ends. How much was read.
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
