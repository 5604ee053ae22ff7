//! Sources of configuration files and of host addresses: the system, or a recording of an earlier
//! read.
//!
//! The master reads through a [`Recorder`] and passes the [`Recording`] to the worker process,
//! which reads the same texts from a [`RecordedFiles`], without access to files or name servers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::hash::Map;

use crate::glob;

/// A source of configuration files, and of the addresses of the hosts in them.
pub trait Files {
    /// The content of a file.
    ///
    /// # Errors
    /// If the file cannot be read.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// The content of a file. A source with a [`LastReading`] may return the content of the
    /// previous load if the file seems unchanged; any other source does the same as
    /// [`read`](Files::read).
    ///
    /// # Errors
    /// If the file cannot be read.
    fn read_unchanged(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.read(path)
    }

    /// The paths that match a pattern of `glob(7)`, sorted by bytes.
    ///
    /// # Errors
    /// If the source cannot list files. A missing or unreadable directory is no error: nothing in
    /// the directory matches.
    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>>;

    /// The addresses of a host name without duplicates, in the order of the system's resolver.
    /// `None` if the name has no address, or if no name server answers.
    fn addresses(&self, host: &str) -> Option<Vec<IpAddr>>;
}

impl<F: Files + ?Sized> Files for Box<F> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        (**self).read(path)
    }

    fn read_unchanged(&self, path: &Path) -> io::Result<Vec<u8>> {
        (**self).read_unchanged(path)
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        (**self).glob(pattern)
    }

    fn addresses(&self, host: &str) -> Option<Vec<IpAddr>> {
        (**self).addresses(host)
    }
}

impl<F: Files + ?Sized> Files for &F {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        (**self).read(path)
    }

    fn read_unchanged(&self, path: &Path) -> io::Result<Vec<u8>> {
        (**self).read_unchanged(path)
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        (**self).glob(pattern)
    }

    fn addresses(&self, host: &str) -> Option<Vec<IpAddr>> {
        (**self).addresses(host)
    }
}

/// The file system, and the system's resolver.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Files for Disk {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(glob::expand(pattern))
    }

    fn addresses(&self, host: &str) -> Option<Vec<IpAddr>> {
        let mut addresses = Vec::new();
        for found in (host, 0).to_socket_addrs().ok()? {
            if !addresses.contains(&found.ip()) {
                addresses.push(found.ip());
            }
        }
        (!addresses.is_empty()).then_some(addresses)
    }
}

/// Reads through `F` without its cache: [`read_unchanged`](Files::read_unchanged) reads the file.
#[derive(Clone, Copy, Debug)]
pub struct Uncached<F>(pub F);

impl<F: Files> Files for Uncached<F> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.0.read(path)
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        self.0.glob(pattern)
    }

    fn addresses(&self, host: &str) -> Option<Vec<IpAddr>> {
        self.0.addresses(host)
    }
}

/// Reads the files of `F`, and resolves every lookup of a host name to a distinct unreachable
/// address, in order to check a configuration without name servers.
///
/// The addresses are from the discard-only prefix (RFC 6666). They are distinct so that two names
/// never seem to be one host.
#[derive(Debug, Default)]
pub struct PlaceholderHosts<F> {
    files: F,
    /// Number of lookups.
    count: Cell<u64>,
}

impl<F: Files> PlaceholderHosts<F> {
    /// Reads the files of `files`.
    pub fn new(files: F) -> PlaceholderHosts<F> {
        PlaceholderHosts {
            files,
            count: Cell::new(0),
        }
    }
}

impl<F: Files> Files for PlaceholderHosts<F> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.files.read(path)
    }

    fn read_unchanged(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.files.read_unchanged(path)
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        self.files.glob(pattern)
    }

    fn addresses(&self, _: &str) -> Option<Vec<IpAddr>> {
        const DISCARDED: u128 = 0x0100 << 112;
        self.count.set(self.count.get() + 1);
        let address = DISCARDED | u128::from(self.count.get());
        Some(vec![IpAddr::V6(Ipv6Addr::from_bits(address))])
    }
}

/// Reads the files of `F` and resolves with `F`. A host that does not resolve gets an address that
/// refuses connections, so that a configuration can be examined on a machine that does not know its
/// hosts.
#[derive(Debug, Default)]
pub struct MissingHosts<F> {
    files: F,
    missing: Mutex<Vec<String>>,
}

impl<F: Files> MissingHosts<F> {
    /// Reads files from `files`, and looks host names up there before it substitutes an address.
    pub fn new(files: F) -> MissingHosts<F> {
        MissingHosts {
            files,
            missing: Mutex::default(),
        }
    }

    /// The names without an address, in the order of their lookups.
    pub fn names(&self) -> Vec<String> {
        let missing = self.missing.lock();
        missing.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<F: Files> Files for MissingHosts<F> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.files.read(path)
    }

    fn read_unchanged(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.files.read_unchanged(path)
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        self.files.glob(pattern)
    }

    /// A host without an address gets a multicast address of the documentation range (RFC 5771),
    /// because the kernel refuses to connect there at once.
    fn addresses(&self, host: &str) -> Option<Vec<IpAddr>> {
        if let Some(found) = self.files.addresses(host) {
            return Some(found);
        }
        let missing = self.missing.lock();
        let mut missing = missing.unwrap_or_else(PoisonError::into_inner);
        let known = missing.iter().position(|name| name == host);
        let at = known.unwrap_or_else(|| {
            missing.push(host.to_owned());
            missing.len() - 1
        });
        // Up to 254 names get distinct addresses.
        let last = u8::try_from(1 + at % 254).unwrap_or(1);
        Some(vec![IpAddr::V4(Ipv4Addr::new(233, 252, 0, last))])
    }
}

/// The contents of the files that the last load of a configuration read. A file is considered
/// unchanged if its inode and the second of its last modification are the same, which is nginx's
/// rule.
#[derive(Debug)]
pub struct LastReading(Mutex<Readings>);

#[derive(Debug)]
struct Readings {
    last: BTreeMap<PathBuf, KeptFile>,
    current: BTreeMap<PathBuf, KeptFile>,
}

#[derive(Clone, Debug)]
struct KeptFile {
    device: u64,
    inode: u64,
    changed: i64,
    text: Vec<u8>,
}

impl Default for LastReading {
    fn default() -> LastReading {
        LastReading::new()
    }
}

impl LastReading {
    /// An empty cache.
    pub const fn new() -> LastReading {
        LastReading(Mutex::new(Readings {
            last: BTreeMap::new(),
            current: BTreeMap::new(),
        }))
    }

    /// Begins the next load: the files read since the last call become the cache. Older contents
    /// are removed.
    pub fn begin(&self) {
        let mut readings = self.lock();
        readings.last = std::mem::take(&mut readings.current);
    }

    /// The content of a file on disk, which is read only if it seems to have changed.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let found = std::fs::metadata(path)?;
        if !found.is_file() {
            return Disk.read(path);
        }
        let mut readings = self.lock();
        let known = readings.last.get(path).cloned();
        let known = known.filter(|known| {
            let one = (known.device, known.inode, known.changed);
            one == (found.dev(), found.ino(), found.mtime())
        });
        let kept = match known {
            Some(known) => known,
            None => KeptFile {
                device: found.dev(),
                inode: found.ino(),
                changed: found.mtime(),
                text: Disk.read(path)?,
            },
        };
        let text = kept.text.clone();
        readings.current.insert(path.to_owned(), kept);
        Ok(text)
    }

    fn lock(&self) -> MutexGuard<'_, Readings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything that was read: the content of a [`RecordedFiles`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Paths with the contents of the files, without duplicates, in the order of reading.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// Glob patterns with the paths that matched.
    pub globs: Vec<(PathBuf, Vec<PathBuf>)>,
    /// Host names with their addresses. Each name occurs once; names without an address are absent.
    pub hosts: Vec<(String, Vec<IpAddr>)>,
}

/// Reads from another source and records the results.
///
/// Each path is read once, and each name is resolved once: later callers get the recorded result,
/// so that the recording always agrees with the configuration that was loaded through the recorder.
#[derive(Debug, Default)]
pub struct Recorder<F> {
    files: F,
    /// The addresses of hosts that are not looked up.
    known: Map<String, Vec<IpAddr>>,
    record: RefCell<Record>,
}

#[derive(Debug, Default)]
struct Record {
    recording: Recording,
    /// Index into [`Recording::files`] by path; `globs` likewise.
    files: Map<PathBuf, usize>,
    globs: Map<PathBuf, usize>,
    /// The result for every name that was looked up; `None` for a name without an address.
    hosts: Map<String, Option<Vec<IpAddr>>>,
}

impl<F: Files> Recorder<F> {
    /// Records what is read from `files`.
    pub fn new(files: F) -> Recorder<F> {
        Recorder::knowing(files, [])
    }

    /// Records what is read from `files`. The names in `hosts` get the given addresses without a
    /// lookup.
    pub fn knowing(
        files: F,
        hosts: impl IntoIterator<Item = (String, Vec<IpAddr>)>,
    ) -> Recorder<F> {
        Recorder {
            files,
            known: hosts.into_iter().collect(),
            record: RefCell::default(),
        }
    }

    /// A copy of the files, globs and addresses recorded so far.
    pub fn recording(&self) -> Recording {
        self.record.borrow().recording.clone()
    }
}

impl<F: Files> Recorder<F> {
    /// The recorded content of a file, or else the content that `read` returns, which is recorded.
    fn read_by(
        &self,
        path: &Path,
        read: impl FnOnce(&F, &Path) -> io::Result<Vec<u8>>,
    ) -> io::Result<Vec<u8>> {
        let record = &mut *self.record.borrow_mut();
        let known = record
            .files
            .get(path)
            .and_then(|index| record.recording.files.get(*index));
        if let Some((_, text)) = known {
            return Ok(text.clone());
        }
        let text = read(&self.files, path)?;
        record
            .files
            .insert(path.to_owned(), record.recording.files.len());
        record.recording.files.push((path.to_owned(), text.clone()));
        Ok(text)
    }
}

impl<F: Files> Files for Recorder<F> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.read_by(path, F::read)
    }

    fn read_unchanged(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.read_by(path, F::read_unchanged)
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        let record = &mut *self.record.borrow_mut();
        let known = record
            .globs
            .get(pattern)
            .and_then(|index| record.recording.globs.get(*index));
        if let Some((_, paths)) = known {
            return Ok(paths.clone());
        }
        let paths = self.files.glob(pattern)?;
        record
            .globs
            .insert(pattern.to_owned(), record.recording.globs.len());
        record
            .recording
            .globs
            .push((pattern.to_owned(), paths.clone()));
        Ok(paths)
    }

    fn addresses(&self, host: &str) -> Option<Vec<IpAddr>> {
        let record = &mut *self.record.borrow_mut();
        if let Some(answer) = record.hosts.get(host) {
            return answer.clone();
        }
        let known = self.known.get(host).cloned();
        let answer = known.or_else(|| self.files.addresses(host));
        record.hosts.insert(host.to_owned(), answer.clone());
        if let Some(addresses) = &answer {
            let hosts = &mut record.recording.hosts;
            hosts.push((host.to_owned(), addresses.clone()));
        }
        answer
    }
}

/// Files as recorded; nothing else exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedFiles {
    files: Map<PathBuf, Vec<u8>>,
    globs: Map<PathBuf, Vec<PathBuf>>,
    hosts: Map<String, Vec<IpAddr>>,
}

impl RecordedFiles {
    /// A source backed by a recording.
    #[must_use]
    pub fn new(recording: Recording) -> RecordedFiles {
        RecordedFiles {
            files: recording.files.into_iter().collect(),
            globs: recording.globs.into_iter().collect(),
            hosts: recording.hosts.into_iter().collect(),
        }
    }
}

impl Files for RecordedFiles {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.files
            .get(path)
            .cloned()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        self.globs
            .get(pattern)
            .cloned()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn addresses(&self, host: &str) -> Option<Vec<IpAddr>> {
        self.hosts.get(host).cloned()
    }
}
