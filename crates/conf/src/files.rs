//! Where configuration files, and the addresses of the hosts in them, come from: the system, or a
//! record of an earlier reading.
//!
//! The master reads through a [`Recorder`] and hands the [`Recording`] to the worker process, which
//! reads the very same texts from a [`Sealed`], touches no file and asks no name server.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::hash::Map;

use crate::glob;

/// A source of configuration files, and of the addresses of the hosts that they name.
pub trait Files {
    /// The content of a file.
    ///
    /// # Errors
    /// As the system has it.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// The content of a file for a reader who is content with what the last reading found, as long
    /// as the file seems to be the same. Where nothing is kept, this is [`read`](Files::read).
    ///
    /// # Errors
    /// As the system has it.
    fn read_unchanged(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.read(path)
    }

    /// The paths that a pattern of `glob(7)` fits, in the order of their bytes.
    ///
    /// # Errors
    /// None for directories that are missing or may not be read: they hold nothing that fits.
    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>>;

    /// The addresses of a host's name, each once, in the order in which the system has them. `None`
    /// where there is none, or where no name server tells.
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

/// The file system, and the system's own way to look names up.
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

/// Reads everything anew for every caller.
#[derive(Clone, Copy, Debug)]
pub struct Anew<F>(pub F);

impl<F: Files> Files for Anew<F> {
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

/// Reads the files of `F`, and resolves every host name to a distinct address that leads nowhere,
/// in order to check a configuration without name servers.
///
/// The addresses are of the prefix that is discarded everywhere (RFC 6666), so that two names never
/// seem to be one host.
#[derive(Debug, Default)]
pub struct StandIns<F> {
    files: F,
    /// How many names have been asked for.
    count: Cell<u64>,
}

impl<F: Files> StandIns<F> {
    /// Reads the files of `files`.
    pub fn new(files: F) -> StandIns<F> {
        StandIns {
            files,
            count: Cell::new(0),
        }
    }
}

impl<F: Files> Files for StandIns<F> {
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
    /// Reads the files of `files`, and asks it for addresses first.
    pub fn new(files: F) -> MissingHosts<F> {
        MissingHosts {
            files,
            missing: Mutex::default(),
        }
    }

    /// The names that had no address, in the order in which they were asked for.
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

    /// The stand-ins are multicast addresses of examples (RFC 5771): the kernel refuses to connect
    /// to them at once.
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
        // As long as there are no more than 254, no two names seem to be one host.
        let last = u8::try_from(1 + at % 254).unwrap_or(1);
        Some(vec![IpAddr::V4(Ipv4Addr::new(233, 252, 0, last))])
    }
}

/// Files that the last reading of a configuration has found. A file is the same as long as its
/// inode and the second of its last change are, which is how nginx decides it.
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
    /// Nothing has been read yet.
    pub const fn new() -> LastReading {
        LastReading(Mutex::new(Readings {
            last: BTreeMap::new(),
            current: BTreeMap::new(),
        }))
    }

    /// What has been read until now is the last reading. What that has not asked for is forgotten.
    pub fn begin(&self) {
        let mut readings = self.lock();
        readings.last = std::mem::take(&mut readings.current);
    }

    /// The content of a file of the disk, which is read only if it seems to have changed.
    ///
    /// # Errors
    /// As the system has it.
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

/// Everything that was read: what a [`Sealed`] answers from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Files with their contents, each path once, in the order of reading.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// Patterns with the paths that they fitted.
    pub globs: Vec<(PathBuf, Vec<PathBuf>)>,
    /// Names of hosts with the addresses that they had, each once; those without any are not among
    /// them.
    pub hosts: Vec<(String, Vec<IpAddr>)>,
}

/// Reads through to other files and remembers what it got.
///
/// A path is read once, and a name looked up once: a second caller gets the same, so that a
/// recording never disagrees with what was made from it.
#[derive(Debug, Default)]
pub struct Recorder<F> {
    files: F,
    /// Addresses that are known without asking.
    known: Map<String, Vec<IpAddr>>,
    record: RefCell<Record>,
}

#[derive(Debug, Default)]
struct Record {
    recording: Recording,
    /// Indexes into the recording.
    files: Map<PathBuf, usize>,
    globs: Map<PathBuf, usize>,
    /// Every name that was asked for; nothing for those that have no address.
    hosts: Map<String, Option<Vec<IpAddr>>>,
}

impl<F: Files> Recorder<F> {
    /// Records what is read from `files`.
    pub fn new(files: F) -> Recorder<F> {
        Recorder::knowing(files, [])
    }

    /// Records what is read from `files`, which is not asked for the hosts that are known.
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

    /// What was read so far.
    pub fn recording(&self) -> Recording {
        self.record.borrow().recording.clone()
    }
}

impl<F: Files> Recorder<F> {
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

/// Files as they were when they were recorded; nothing else exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sealed {
    files: Map<PathBuf, Vec<u8>>,
    globs: Map<PathBuf, Vec<PathBuf>>,
    hosts: Map<String, Vec<IpAddr>>,
}

impl Sealed {
    /// Answers from a recording.
    #[must_use]
    pub fn new(recording: Recording) -> Sealed {
        Sealed {
            files: recording.files.into_iter().collect(),
            globs: recording.globs.into_iter().collect(),
            hosts: recording.hosts.into_iter().collect(),
        }
    }
}

impl Files for Sealed {
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
