//! Log files: one per path and generation, shared by all threads.
//!
//! The process with the necessary privileges opens a file, and its descriptor is installed here.
//! After a rotation, the thread that is told of the rotation installs another descriptor. Unwritten
//! lines are gathered per thread, in [`super::unwritten`].

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

/// Permissions of a new log file, before the umask (nginx's default).
const FILE_MODE: u32 = 0o644;

/// Permissions of a new log file that contains secrets.
const SECRET_FILE_MODE: u32 = 0o600;

/// Path at which standard error can be opened as a separate file description.
const STDERR_PATH: &str = "/proc/self/fd/2";

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// `access_log … buffer=… flush=… gzip=…`: lines are buffered in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffering {
    /// Maximum number of bytes that a thread buffers.
    pub size: usize,
    /// Maximum time that a line waits; `None` if lines wait until the buffer is full.
    pub flush: Option<Duration>,
    /// Compression level from 1 to 9, for lines that are written together.
    pub gzip: Option<u32>,
}

/// A file that lines are appended to.
#[derive(Debug)]
pub struct LogFile {
    /// The path; `None` for standard error.
    path: Option<PathBuf>,
    /// Identifies the file among all log files of the process, including past ones.
    number: u64,
    descriptor: Mutex<Option<Arc<File>>>,
    /// Counts the installed descriptors: lines buffered before a rotation belong to the previous
    /// one.
    opening: AtomicU64,
    /// Whether the generation of the file has ended, so that buffered lines must be written.
    retired: AtomicBool,
    /// Whether the file is created readable by its owner only.
    is_secret: AtomicBool,
    buffering: OnceLock<Buffering>,
    lines_dropped: AtomicU64,
}

/// Lines lost by all files of the process.
static LINES_DROPPED: AtomicU64 = AtomicU64::new(0);

/// Lines lost by all logs since the start, because they could not be written.
pub fn lines_dropped() -> u64 {
    LINES_DROPPED.load(Ordering::Relaxed)
}

/// Counts lines that are lost before their file has been opened.
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

    /// Opens a file outside of any table, for paths that requests determine. A pipe without a
    /// reader is an error: the thread must not wait for a reader.
    pub(super) fn opened(path: &Path) -> io::Result<LogFile> {
        let descriptor = open(path, OFlags::NONBLOCK, FILE_MODE)?.into();
        Ok(LogFile::with_descriptor(path, descriptor))
    }

    /// A file outside of any table, with an open descriptor.
    pub(super) fn with_descriptor(path: &Path, descriptor: OwnedFd) -> LogFile {
        let file = LogFile::new(Some(path.to_owned()));
        file.install(descriptor);
        file
    }

    /// Whether this descriptor is open on the file.
    pub(super) fn is_open_on(&self, descriptor: &impl AsFd) -> bool {
        let identity = |fd: BorrowedFd<'_>| {
            let stat = rustix::fs::fstat(fd).ok()?;
            Some((stat.st_dev, stat.st_ino))
        };
        let own = self.descriptor();
        let own = own.and_then(|own| identity(own.as_fd()));
        own.is_some() && own == identity(descriptor.as_fd())
    }

    /// The descriptor's key across reloads: `log /path`, or `log stderr`.
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

    /// Whether the file can be rotated, and is reopened on the signal.
    pub fn can_be_reopened(&self) -> bool {
        self.path.is_some()
    }

    /// Makes [`open`](Self::open) create the file readable by its owner only.
    pub fn restrict_to_owner(&self) {
        self.is_secret.store(true, Ordering::Relaxed);
    }

    /// Opens the file for appending, creating it if it is missing. A pipe or terminal gets a
    /// nonblocking descriptor. Errors are those of `open`.
    pub fn open(&self) -> io::Result<OwnedFd> {
        let mode = if self.is_secret.load(Ordering::Relaxed) {
            SECRET_FILE_MODE
        } else {
            FILE_MODE
        };
        match &self.path {
            Some(path) => open(path, OFlags::empty(), mode).map(OwnedFd::from),
            // Opened by path, standard error gets a file description of its own, so nonblocking
            // mode does not affect other writers. A socket cannot be opened by path.
            None => open(Path::new(STDERR_PATH), OFlags::empty(), mode)
                .map(OwnedFd::from)
                .or_else(|_| io::stderr().as_fd().try_clone_to_owned()),
        }
    }

    /// Replaces the descriptor to which lines are written. Any thread may call this.
    pub fn install(&self, descriptor: OwnedFd) {
        *self.slot() = Some(Arc::new(File::from(descriptor)));
        self.opening.fetch_add(1, Ordering::Release);
    }

    /// The number of the current descriptor, which each [`LogFile::install`] changes.
    pub(super) fn opening(&self) -> u64 {
        self.opening.load(Ordering::Acquire)
    }

    /// Notes that the file's generation has ended, so that buffered lines must be written.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Whether the file's generation has ended, so that no request logs to the file any more.
    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// The current descriptor; `None` until one is installed.
    pub fn descriptor(&self) -> Option<Arc<File>> {
        self.slot().clone()
    }

    /// Lines of this file that were lost because they could not be written.
    pub fn lines_dropped(&self) -> u64 {
        self.lines_dropped.load(Ordering::Relaxed)
    }

    /// The buffering settings, if lines are buffered.
    pub fn buffering(&self) -> Option<Buffering> {
        self.buffering.get().copied()
    }

    /// Sets buffering; false if another directive has set it differently.
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

    /// The lock is held only while a pointer is copied, never over a system call.
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

/// The log files of one configuration, each once.
#[derive(Debug, Default)]
pub struct LogTable {
    files: Map<PathBuf, Arc<LogFile>>,
    stderr: Option<Arc<LogFile>>,
    /// The error log of a configuration without `error_log`: that of `-e`.
    pub default_error_log: Destination,
}

impl Registry for LogTable {}

/// The log files of a generation, which are kept open as long as the generation lives.
pub struct OpenLogs(pub Vec<Arc<LogFile>>);

impl Drop for OpenLogs {
    /// The buffered lines of the files are to be written.
    fn drop(&mut self) {
        for file in &self.0 {
            file.retire();
        }
    }
}

/// Access to the log files of the configuration that is being compiled.
pub trait Compiling {
    /// The log file of a path, shared by all lines that name the path. A relative path is relative
    /// to the prefix.
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
        file.restrict_to_owner();
        // The second iteration is as after a rotation.
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
