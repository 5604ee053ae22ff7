//! Log files: one per path and generation, shared by all threads.
//!
//! A file is opened by the process that has the privileges for it and installed here; after
//! rotation another descriptor is installed in its place by whatever thread learns of it. What
//! is gathered before it is written lives per thread, in [`super::unwritten`].

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use base::hash::Map;
use framework::compile::Compiler;
use framework::registry::Registry;
use rustix::fs::OFlags;

use super::Destination;

/// Access rights of a new log file, before the umask (nginx's default).
const FILE_MODE: u32 = 0o644;

/// Access rights of a new log file that contains secrets.
const SECRET_FILE_MODE: u32 = 0o600;

/// Where the process finds standard error as a file of its own.
const STDERR_PATH: &str = "/proc/self/fd/2";

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// `access_log … buffer=… flush=… gzip=…`: lines are held back in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffering {
    /// Bytes that a thread holds back at most.
    pub size: usize,
    /// How long the oldest line may wait; without it until the buffer is full.
    pub flush: Option<Duration>,
    /// Level from 1 to 9 at which what leaves together is compressed.
    pub gzip: Option<u32>,
}

/// A file that lines are appended to.
#[derive(Debug)]
pub struct LogFile {
    /// Where it is; `None` is standard error.
    path: Option<PathBuf>,
    /// What tells it from all other log files of the process, past ones included.
    number: u64,
    descriptor: Mutex<Option<Arc<File>>>,
    /// Counts descriptors: lines that were held back before a rotation belong to the one before.
    opening: AtomicU64,
    /// The generation that named it has ended: what is held back for it is to be written.
    retired: AtomicBool,
    /// What is written there is for its owner's eyes only.
    is_secret: AtomicBool,
    buffering: OnceLock<Buffering>,
    lines_dropped: AtomicU64,
}

/// Lines lost by every file of the process.
static LINES_DROPPED: AtomicU64 = AtomicU64::new(0);

/// Lines lost since the start, by whatever log, because it could not be written.
pub fn lines_dropped() -> u64 {
    LINES_DROPPED.load(Ordering::Relaxed)
}

/// Counts lines that are lost before it is known to which file they belong.
pub(super) fn count_lost(lines: u64) {
    LINES_DROPPED.fetch_add(lines, Ordering::Relaxed);
}

impl LogFile {
    fn new(path: Option<PathBuf>) -> LogFile {
        LogFile {
            path,
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            descriptor: Mutex::new(None),
            opening: AtomicU64::new(0),
            retired: AtomicBool::new(false),
            is_secret: AtomicBool::new(false),
            buffering: OnceLock::new(),
            lines_dropped: AtomicU64::new(0),
        }
    }

    /// A file that no table knows, opened at once: for paths that requests make. A pipe that nobody
    /// reads is an error: the thread must not wait for a reader.
    pub(super) fn opened(path: &Path) -> io::Result<LogFile> {
        let descriptor = open(path, OFlags::NONBLOCK, FILE_MODE)?.into();
        Ok(LogFile::with_descriptor(path, descriptor))
    }

    /// A file that no table knows, opened already.
    pub(super) fn with_descriptor(path: &Path, descriptor: OwnedFd) -> LogFile {
        let file = LogFile::new(Some(path.to_owned()));
        file.install(descriptor);
        file
    }

    /// Whether it is the file that this descriptor is open on.
    pub(super) fn is_open_on(&self, descriptor: &impl AsFd) -> bool {
        let identity = |fd: BorrowedFd<'_>| {
            let stat = rustix::fs::fstat(fd).ok()?;
            Some((stat.st_dev, stat.st_ino))
        };
        let own = self.descriptor();
        let own = own.and_then(|own| identity(own.as_fd()));
        own.is_some() && own == identity(descriptor.as_fd())
    }

    /// What names the descriptor over reloads: `log /path`, or `log stderr`.
    pub fn key(&self) -> String {
        format!("log {}", self.name())
    }

    /// The path, or `stderr`.
    pub fn name(&self) -> std::path::Display<'_> {
        self.path().display()
    }

    /// The path, or `stderr`.
    pub fn path(&self) -> &Path {
        self.path.as_deref().unwrap_or(Path::new("stderr"))
    }

    /// Whether it is a file that can be rotated: to be opened again when the signal comes.
    pub fn can_be_reopened(&self) -> bool {
        self.path.is_some()
    }

    /// Only its owner may read the file where it is created from now on, whatever else is written
    /// there.
    pub fn keep_secret(&self) {
        self.is_secret.store(true, Ordering::Relaxed);
    }

    /// Opens the file for appending, creating it where it is missing. A pipe or terminal gets a
    /// descriptor that never blocks. Errors are those of `open`.
    pub fn open(&self) -> io::Result<OwnedFd> {
        let mode = if self.is_secret.load(Ordering::Relaxed) {
            SECRET_FILE_MODE
        } else {
            FILE_MODE
        };
        match &self.path {
            Some(path) => open(path, OFlags::empty(), mode).map(OwnedFd::from),
            // By its path standard error becomes a description of its own, which may be
            // non-blocking without disturbing others that write there. A socket has no path.
            None => open(Path::new(STDERR_PATH), OFlags::empty(), mode)
                .map(OwnedFd::from)
                .or_else(|_| io::stderr().as_fd().try_clone_to_owned()),
        }
    }

    /// Writes through this descriptor from now on. Any thread may call it.
    pub fn install(&self, descriptor: OwnedFd) {
        *self.slot() = Some(Arc::new(File::from(descriptor)));
        self.opening.fetch_add(1, Ordering::Release);
    }

    /// Which descriptor is in force: another number after each [`LogFile::install`].
    pub(super) fn opening(&self) -> u64 {
        self.opening.load(Ordering::Acquire)
    }

    /// Says that the generation that named it has ended.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Whether no request will be logged here any more.
    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// The descriptor in force; `None` until one is installed.
    pub fn descriptor(&self) -> Option<Arc<File>> {
        self.slot().clone()
    }

    /// Lines lost since the file was named, because it could not be written.
    pub fn lines_dropped(&self) -> u64 {
        self.lines_dropped.load(Ordering::Relaxed)
    }

    /// How lines are held back, if they are.
    pub fn buffering(&self) -> Option<Buffering> {
        self.buffering.get().copied()
    }

    /// Holds lines back from now on; false when another directive said otherwise already.
    pub fn set_buffering(&self, buffering: Buffering) -> bool {
        *self.buffering.get_or_init(|| buffering) == buffering
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn count_dropped(&self, lines: u64) {
        self.lines_dropped.fetch_add(lines, Ordering::Relaxed);
        count_lost(lines);
    }

    /// The lock is held for a pointer's copy only, never over a system call.
    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Arc<File>>> {
        self.descriptor
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn open(path: &Path, flags: OFlags, mode: u32) -> io::Result<File> {
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(mode)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_fifo() || kind.is_char_device() {
        let flags = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, flags | OFlags::NONBLOCK)?;
    }
    Ok(file)
}

/// The log files that one configuration names, each once.
#[derive(Debug, Default)]
pub struct LogTable {
    files: Map<PathBuf, Arc<LogFile>>,
    stderr: Option<Arc<LogFile>>,
    /// Where errors go when no line writes `error_log`: what `-e` says.
    pub default_error_log: Destination,
}

impl Registry for LogTable {}

/// The log files of a generation, kept open as long as it lives.
pub struct OpenLogs(pub Vec<Arc<LogFile>>);

impl Drop for OpenLogs {
    /// What is held back for them is to be written.
    fn drop(&mut self) {
        for file in &self.0 {
            file.retire();
        }
    }
}

/// Log files of the configuration that is being compiled.
pub trait Compiling {
    /// The log file of a path, shared by all lines that name the same path. A relative one starts
    /// at the prefix.
    fn log_file(&self, path: &Path) -> Arc<LogFile>;

    /// Standard error as a log file.
    fn standard_error(&self) -> Arc<LogFile>;
}

impl Compiling for Compiler<'_> {
    fn log_file(&self, path: &Path) -> Arc<LogFile> {
        let table = self.registry::<LogTable>();
        table.borrow_mut().file(&self.path(path))
    }

    fn standard_error(&self) -> Arc<LogFile> {
        self.registry::<LogTable>().borrow_mut().stderr()
    }
}

impl LogTable {
    /// The file with this absolute path.
    pub fn file(&mut self, path: &Path) -> Arc<LogFile> {
        if let Some(known) = self.files.get(path) {
            return Arc::clone(known);
        }
        let made = Arc::new(LogFile::new(Some(path.to_owned())));
        self.files.insert(path.to_owned(), Arc::clone(&made));
        made
    }

    /// The log that writes to standard error.
    pub fn stderr(&mut self) -> Arc<LogFile> {
        Arc::clone(
            self.stderr
                .get_or_insert_with(|| Arc::new(LogFile::new(None))),
        )
    }

    /// All files, in the order of their paths.
    pub fn into_files(self) -> Vec<Arc<LogFile>> {
        let mut files: Vec<Arc<LogFile>> = self.files.into_values().collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        files.extend(self.stderr);
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_same_path_is_the_same_file() {
        let mut table = LogTable::default();
        let first = table.file(Path::new("/var/log/b.log"));
        let again = table.file(Path::new("/var/log/b.log"));
        assert!(Arc::ptr_eq(&first, &again));
        table.file(Path::new("/var/log/a.log"));
        table.stderr();
        let keys: Vec<String> = table.into_files().iter().map(|file| file.key()).collect();
        assert_eq!(
            keys,
            ["log /var/log/a.log", "log /var/log/b.log", "log stderr"]
        );
    }

    #[test]
    fn buffering_belongs_to_the_file() {
        let file = LogTable::default().file(Path::new("/x"));
        let buffering = Buffering {
            size: 4096,
            flush: None,
            gzip: None,
        };
        assert_eq!(file.buffering(), None);
        assert!(file.set_buffering(buffering));
        assert!(file.set_buffering(buffering));
        assert!(!file.set_buffering(Buffering {
            size: 8192,
            flush: None,
            gzip: None,
        }));
        assert_eq!(file.buffering(), Some(buffering));
    }

    #[test]
    fn secrets_are_for_their_owner_only() {
        let path = std::env::temp_dir().join(format!("tidegate-secrets-{}", std::process::id()));
        let file = LogTable::default().file(&path);
        file.keep_secret();
        // The second time as after a rotation.
        for _ in 0..2 {
            let opened = File::from(file.open().unwrap());
            assert_eq!(opened.metadata().unwrap().mode() & 0o777, 0o600);
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn opening_reports_the_system_error() {
        let file = LogTable::default().file(Path::new("/nonexistent-folder/access.log"));
        assert_eq!(file.open().unwrap_err().raw_os_error(), Some(2));
    }
}
