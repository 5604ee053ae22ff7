//! Files that are read with the configuration and written by the worker process: the servers of
//! groups (`state`), and the pairs of `keyval_zone`.
//!
//! A configuration is compiled from the files that the master has read. A worker process may have
//! written these files since then. So a worker process that replaces a crashed one reads the
//! current file, and uses the master's copy only if the file cannot be read.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use conf::Files;
use framework::compile::Compiler;
use framework::places::FileAccess;

/// A source of configuration files that prefers the current file on disk over the master's copy.
pub(crate) struct Current<'a>(pub(crate) &'a dyn Files);

impl Files for Current<'_> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        // Called even if the file on disk can be read, because the master records through this call
        // which files the worker processes need.
        let known = self.0.read(path);
        fs::read(path).or(known)
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        self.0.glob(pattern)
    }

    fn addresses(&self, host: &str) -> Option<Vec<IpAddr>> {
        self.0.addresses(host)
    }
}

/// Registers that the worker process writes the file `path`. It needs access to the directory,
/// since the new file is created there before it replaces the old file.
pub(crate) fn will_be_written(compiler: &Compiler<'_>, path: &Path, by: &str) {
    let folder = path.parent().unwrap_or(path);
    compiler.will_open(FileAccess::Write, folder, by);
}

/// Replaces a file atomically.
pub(crate) fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let beside = path.with_file_name(name);
    let written = File::create(&beside).and_then(|mut file| {
        file.write_all(text)?;
        file.sync_all()
    });
    let placed = written.and_then(|()| fs::rename(&beside, path));
    placed.inspect_err(|_| {
        // An incomplete file is removed; if it could not be created, there is nothing to remove.
        let _ = fs::remove_file(&beside);
    })
}
