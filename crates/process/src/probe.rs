//! Whether something could be opened or made, found out without making or changing anything: what
//! `-t` asks of the files that belong to the running server.
//!
//! The answers are the errors that open(2), mkdir(2) and bind(2) would give. They hold for this
//! moment and this user.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

/// Symbolic links that are followed to a file that is missing: Linux's own bound.
const LINKS_MAX: usize = 40;

/// Whether a log could be opened for appending, created where it is missing.
///
/// # Errors
/// As of open(2).
pub fn log(path: &Path) -> io::Result<()> {
    file(path, OFlags::WRONLY | OFlags::APPEND)
}

/// Whether a pid file could be written.
pub(crate) fn pid_file(path: &Path) -> io::Result<()> {
    file(path, OFlags::RDWR)
}

fn file(path: &Path, flags: OFlags) -> io::Result<()> {
    match fs::metadata(path) {
        // A reader at its other end would take an open and a close for the end of the log.
        Ok(found) if found.file_type().is_fifo() => may(path, Access::WRITE_OK),
        Ok(_) => {
            let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty())?;
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => creatable(&behind_links(path)),
        Err(error) => Err(error),
    }
}

/// Whether a folder is there or could be made.
pub(crate) fn folder(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => in_its_folder(path),
        found => found.map(drop),
    }
}

/// Whether a Unix socket could be bound there. One that exists is in use, or left over, which the
/// start finds out.
///
/// # Errors
/// As of bind(2).
pub fn socket(path: &Path) -> io::Result<()> {
    folder(path)
}

/// The file that opening a path would create: where its links lead.
fn behind_links(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => break,
        }
    }
    path
}

fn creatable(path: &Path) -> io::Result<()> {
    if path.as_os_str().as_bytes().ends_with(b"/") {
        return Err(Errno::ISDIR.into());
    }
    in_its_folder(path)
}

/// Whether the folder of a path takes a new entry.
fn in_its_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    may(folder, Access::WRITE_OK | Access::EXEC_OK)
}

/// Whether this process may, by the user that it acts as.
fn may(path: &Path, access: Access) -> io::Result<()> {
    Ok(rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(result: io::Result<()>) -> Option<i32> {
        result.err().and_then(|error| error.raw_os_error())
    }

    #[test]
    fn the_answers_are_those_of_open_and_nothing_is_made() {
        let base = std::env::temp_dir().join(format!("tidegate-probe-{}", std::process::id()));
        fs::create_dir_all(base.join("folder")).unwrap();
        fs::write(base.join("file"), "kept").unwrap();
        let link = |name: &str, target: &str| {
            std::os::unix::fs::symlink(target, base.join(name)).unwrap();
        };
        link("dangling", "made");
        link("chain", "dangling");
        link("nowhere", "none/made");
        link("round", "round");
        let fifo = base.join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(made.unwrap().success());
        let before = fs::read_dir(&base).unwrap().count();
        let changed = fs::metadata(&base).unwrap().modified().unwrap();
        for (name, expected) in [
            ("file", None),
            ("missing", None),
            ("dangling", None),
            ("chain", None),
            ("fifo", None),
            ("folder", Some(libc::EISDIR)),
            ("missing/", Some(libc::EISDIR)),
            ("none/missing", Some(libc::ENOENT)),
            ("nowhere", Some(libc::ENOENT)),
            ("round", Some(libc::ELOOP)),
            ("file/below", Some(libc::ENOTDIR)),
        ] {
            let path = base.join(name);
            assert_eq!(number(log(&path)), expected, "log {name}");
            assert_eq!(number(pid_file(&path)), expected, "pid file {name}");
        }
        for (name, expected) in [
            ("folder", None),
            ("new", None),
            ("none/new", Some(libc::ENOENT)),
            ("file/new", Some(libc::ENOTDIR)),
        ] {
            assert_eq!(number(folder(&base.join(name))), expected, "folder {name}");
            assert_eq!(number(socket(&base.join(name))), expected, "socket {name}");
        }
        assert_eq!(fs::read_dir(&base).unwrap().count(), before);
        assert_eq!(fs::metadata(&base).unwrap().modified().unwrap(), changed);
        assert_eq!(fs::read(base.join("file")).unwrap(), b"kept");
        fs::remove_dir_all(&base).unwrap();
    }
}
