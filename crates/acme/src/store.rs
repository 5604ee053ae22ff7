//! The store of an issuer: its account, and one file for each certificate with its key.
//!
//! Every file is written under a temporary name and then renamed, and only its owner may read it.
//! Chain and key are in one file, so that a crash cannot pair a certificate with the key of
//! another. If nothing may be written to disk, the store is in memory: it survives a reload but not
//! the process.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::FlockOperation;

/// The store of an issuer's account and certificates.
#[derive(Clone, Debug)]
pub enum Store {
    /// State is kept in files on disk.
    Folder(StateFolder),
    /// State is kept in memory; clones share it.
    Memory(Arc<Memory>),
}

/// An in-memory substitute for the folder.
#[derive(Debug, Default)]
pub struct Memory {
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    lock: Mutex<()>,
}

/// An exclusive lock on a store, released when it is dropped.
pub enum Lock<'a> {
    /// A file lock (`flock`) on a folder on disk.
    Folder(File),
    /// The lock of a store in memory.
    Memory(MutexGuard<'a, ()>),
}

impl Store {
    /// Reads a file; `None` if it does not exist.
    ///
    /// # Errors
    /// Any other I/O error.
    pub fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match self {
            Store::Folder(folder) => folder.read(name),
            Store::Memory(memory) => Ok(memory.files().get(name).cloned()),
        }
    }

    /// Replaces a file atomically.
    ///
    /// # Errors
    /// Any I/O error. Unless only the final sync failed, the file has its previous content.
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        match self {
            Store::Folder(folder) => folder.write(name, bytes),
            Store::Memory(memory) => {
                memory.files().insert(name.to_owned(), bytes.to_owned());
                Ok(())
            }
        }
    }

    /// Locks the store; waits while another process, or the thread of another configuration, holds
    /// the lock.
    ///
    /// # Errors
    /// Any I/O error.
    pub fn lock(&self) -> io::Result<Lock<'_>> {
        match self {
            Store::Folder(folder) => folder.lock().map(Lock::Folder),
            Store::Memory(memory) => {
                let lock = memory.lock.lock();
                Ok(Lock::Memory(lock.unwrap_or_else(PoisonError::into_inner)))
            }
        }
    }
}

impl Memory {
    fn files(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A folder on disk that only its owner may access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFolder(PathBuf);

impl StateFolder {
    /// The folder at a path. It is created when something is first written.
    pub fn new(path: impl Into<PathBuf>) -> StateFolder {
        StateFolder(path.into())
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Reads a file; `None` if it does not exist.
    ///
    /// # Errors
    /// Any other I/O error.
    pub fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.0.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces a file atomically.
    ///
    /// # Errors
    /// Any I/O error. Unless only the final sync failed, the file has its previous content.
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.make()?;
        let process = std::process::id();
        let draft = self.0.join(format!(".{name}.{process}"));
        let written = private(&draft).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&draft, self.0.join(name))?;
            File::open(&self.0)?.sync_all()
        });
        if written.is_err() {
            // The temporary file holds a private key and should not stay. The first error is
            // reported; an error here is ignored.
            let _ = fs::remove_file(&draft);
        }
        written
    }

    fn lock(&self) -> io::Result<File> {
        self.make()?;
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.0.join(".lock"))?;
        loop {
            match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn make(&self) -> io::Result<()> {
        match fs::DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }
}

/// Creates an empty file that only its owner may access.
fn private(path: &Path) -> io::Result<File> {
    // Removes a leftover of a crash.
    let _ = fs::remove_file(path);
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn folder(name: &str) -> StateFolder {
        let path =
            std::env::temp_dir().join(format!("tidegate-acme-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        StateFolder::new(path)
    }

    #[test]
    fn files_are_for_their_owner_alone() {
        let folder = folder("private");
        assert_eq!(folder.read("one").unwrap(), None);
        folder.write("one", b"secret").unwrap();
        folder.write("one", b"another").unwrap();
        assert_eq!(
            folder.read("one").unwrap().as_deref(),
            Some(&b"another"[..])
        );
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(folder.path()), 0o700);
        assert_eq!(mode(&folder.path().join("one")), 0o600);
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn one_changes_it_at_a_time() {
        let folder = folder("lock");
        let lock = folder.lock().unwrap();
        let other = folder.clone();
        let (told, heard) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            let _lock = other.lock().unwrap();
            told.send(()).unwrap();
        });
        assert!(heard.try_recv().is_err());
        drop(lock);
        heard.recv().unwrap();
        waiter.join().unwrap();
        fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn memory_keeps_the_same_for_all() {
        let store = Store::Memory(Arc::default());
        let other = store.clone();
        store.write("one", b"x").unwrap();
        assert_eq!(other.read("one").unwrap().as_deref(), Some(&b"x"[..]));
        assert_eq!(other.read("two").unwrap(), None);
        drop(store.lock().unwrap());
        drop(other.lock().unwrap());
    }

    #[test]
    fn what_cannot_be_written_changes_nothing() {
        let folder = StateFolder::new("/nonexistent/tidegate/acme");
        assert!(folder.write("one", b"x").is_err());
        assert_eq!(folder.read("one").unwrap(), None);
    }
}
