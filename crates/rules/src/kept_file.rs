//! Files that the configuration is read from and the workers write: servers of groups, pairs of
//! keys and values.
//!
//! A configuration is compiled from what the master has read. These files may have been written
//! since: a worker process that is started again, because the one before has died, takes what is
//! there now, and goes back to what the master has read only where it cannot.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use conf::Files;
use framework::compile::Compiler;
use framework::places::FileAccess;

/// Files as they are now.
pub(crate) struct Current<'a>(pub(crate) &'a dyn Files);

impl Files for Current<'_> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        // Asked first, and always: the master notes what is asked for.
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

/// Says that workers write such a file: the folder that it lies in, where a new one is made before
/// it takes its place.
pub(crate) fn will_be_written(compiler: &Compiler<'_>, path: &Path, by: &str) {
    let folder = path.parent().unwrap_or(path);
    compiler.will_open(FileAccess::Write, folder, by);
}

/// Puts a file in the place of the one before, whole or not at all.
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
        // What could not be written whole is of no use; where it could not be made, it is not
        // there.
        let _ = fs::remove_file(&beside);
    })
}
