//! A folder of this run alone: pid file, temporary files, logs.
//!
//! The folder is newly created, so no other user can have put anything into it, and is removed with
//! its owner.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Maximum number of names that are tried if names are taken.
const ATTEMPTS: u32 = 100;

/// The folder. Unless it is to be kept, it is removed with its contents when the value is dropped.
#[derive(Debug)]
pub(crate) struct PrivateFolder {
    path: PathBuf,
    stays: bool,
}

impl PrivateFolder {
    /// Creates a temporary folder, removed on drop. The error has the path that could not be
    /// created.
    pub(crate) fn temporary(purpose: &str) -> Result<PrivateFolder, (PathBuf, io::Error)> {
        let base = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let base = base.filter(|path| path.is_dir());
        PrivateFolder::below(&base.unwrap_or_else(std::env::temp_dir), purpose)
    }

    /// A private folder with room for long bodies: not in `$XDG_RUNTIME_DIR`, which is in memory.
    pub(crate) fn roomy(purpose: &str) -> Result<PrivateFolder, (PathBuf, io::Error)> {
        PrivateFolder::below(&std::env::temp_dir(), purpose)
    }

    /// Creates a temporary folder in `base`.
    fn below(base: &Path, purpose: &str) -> Result<PrivateFolder, (PathBuf, io::Error)> {
        let process = std::process::id();
        let mut number = 0;
        loop {
            let path = base.join(format!("tidegate-{purpose}-{process}-{number}"));
            match make(&path) {
                Ok(()) => return Ok(PrivateFolder { path, stays: false }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < ATTEMPTS => {
                    number += 1;
                }
                Err(error) => return Err((path, error)),
            }
        }
    }

    /// Creates a folder at a path that the user has chosen, which is kept.
    pub(crate) fn lasting(path: &Path) -> Result<PrivateFolder, (PathBuf, io::Error)> {
        let path = path.to_owned();
        match make(&path) {
            Ok(()) => Ok(PrivateFolder { path, stays: true }),
            Err(error) => Err((path, error)),
        }
    }

    /// The absolute path of the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Creates a folder for its owner. If the owner is root, a worker process of another user must be
/// able to reach its own files in the folder, but not list the folder.
fn make(path: &Path) -> io::Result<()> {
    let mode = if process::identity::is_superuser() {
        0o711
    } else {
        0o700
    };
    DirBuilder::new().mode(mode).create(path)
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        if !self.stays {
            // A failure to remove the folder is ignored at the end.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_its_own_and_goes_with_its_owner() {
        let one = PrivateFolder::temporary("test").unwrap();
        let other = PrivateFolder::temporary("test").unwrap();
        assert_ne!(one.path(), other.path());
        fs::write(one.path().join("file"), "").unwrap();
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && other.path().is_dir());
    }
}
