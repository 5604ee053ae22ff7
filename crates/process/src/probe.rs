//! Checks whether files could be opened or created, without creating or changing anything: `-t`
//! must not touch the files of the running server.
//!
//! The results are the errors that open(2), mkdir(2) and bind(2) would return now to this user.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

/// Maximum number of symbolic links that are followed to a missing file: Linux's own limit.
const LINKS_MAX: usize = 40;

/// Checks whether a log could be opened for appending or, if it is missing, created.
///
/// # Errors
/// The error that open(2) would return.
pub fn log(path: &Path) -> io::Result<()> {
    file(path, OFlags::WRONLY | OFlags::APPEND)
}

/// Checks whether a pid file could be written.
pub(crate) fn pid_file(path: &Path) -> io::Result<()> {
    file(path, OFlags::RDWR)
}

fn file(path: &Path, flags: OFlags) -> io::Result<()> {
    match fs::metadata(path) {
        // A reader of the FIFO would take the close after an open for the end of the log.
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

/// Checks whether a folder (or any other file) exists or could be created.
pub(crate) fn folder(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => in_its_folder(path),
        found => found.map(drop),
    }
}

/// Checks whether a Unix socket could be bound to this path. An existing file passes: the start
/// finds out whether it is in use or left over.
///
/// # Errors
/// The error that bind(2) would return.
pub fn socket(path: &Path) -> io::Result<()> {
    folder(path)
}

/// The file that opening a path would create: the target of its symbolic links.
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

/// Checks whether opening could create this file.
fn creatable(path: &Path) -> io::Result<()> {
    if path.as_os_str().as_bytes().ends_with(b"/") {
        return Err(Errno::ISDIR.into());
    }
    in_its_folder(path)
}

/// Checks whether a file may be created in the folder of a path.
fn in_its_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    may(folder, Access::WRITE_OK | Access::EXEC_OK)
}

/// Checks whether the effective user of this process has this access.
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
