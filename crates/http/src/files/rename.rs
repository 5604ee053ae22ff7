//! Renames files into place, atomically for every process that opens them. Used for bodies that
//! WebDAV or `proxy_store` has stored.
//!
//! Every function here blocks, so it runs on the thread pool. The request is not available there,
//! so log lines are part of the result. Modes, times and the order of calls are nginx's.

use std::fs::{self, DirBuilder, FileTimes, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use logs::{Errno, Level, Printable};

/// Maximum number of log lines that one request keeps about failed files.
const LINES_MAX: usize = 64;

/// The result of a job on the thread pool.
#[derive(Debug, Default)]
pub struct RenameResult {
    /// The status of the response.
    pub status: u16,
    /// Lines for the error log.
    pub lines: Vec<(Level, String)>,
    /// The total number of log lines, of which `lines` keeps the first.
    pub lines_count: usize,
}

impl RenameResult {
    /// Adds a line for the log.
    pub fn line(&mut self, level: Level, text: String) {
        self.lines_count += 1;
        if self.lines.len() < LINES_MAX {
            self.lines.push((level, text));
        }
    }

    /// Adds a line about a failed call.
    pub fn failed(&mut self, level: Level, call: &str, path: &Path, error: &io::Error) {
        let (path, error) = (shown(path), Errno(error));
        self.line(level, format!("{call} \"{path}\" failed {error}"));
    }

    /// Adds a line about a failed call, and returns the response status for the error: `missing` if
    /// a component of the path does not exist.
    pub fn refused(&mut self, call: &str, path: &Path, error: &io::Error, missing: u16) -> u16 {
        let (level, status) = match error.raw_os_error().unwrap_or(0) {
            libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG => (Level::Error, missing),
            libc::EACCES | libc::EPERM => (Level::Error, 403),
            libc::EEXIST => (Level::Error, 405),
            libc::ENOSPC => (Level::Crit, 507),
            _ => (Level::Crit, 500),
        };
        self.failed(level, call, path, error);
        status
    }

    /// The result with another status.
    pub fn with(mut self, status: u16) -> RenameResult {
        self.status = status;
        self
    }
}

/// A path as log lines show it.
pub fn shown(path: &Path) -> Printable<'_> {
    Printable(path.as_os_str().as_bytes())
}

/// The mode of directories for files with the mode `access`: everyone who may read may also search.
pub fn directory_access(access: u32) -> u32 {
    access | ((access & 0o444) >> 2)
}

/// Creates a directory with this mode.
pub fn create_directory(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().mode(mode).create(path)
}

/// Removes a temporary file, unless it is gone.
pub fn remove_temporary(path: &Path, done: &mut RenameResult) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        done.failed(Level::Crit, "unlink()", path, &error);
    }
}

/// The parameters of a rename that creates directories and works across file systems.
pub struct Rename<'a> {
    /// The current path of the file.
    pub source: &'a Path,
    /// The new path of the file.
    pub target: &'a Path,
    /// The new mode of the file, unless it keeps its own.
    pub access: Option<u32>,
    /// The mode of created directories.
    pub path_access: u32,
    /// The new modification time in seconds since 1970, unless the file keeps its own.
    pub modified: Option<i64>,
    /// Whether missing directories of `target` are created.
    pub create_path: bool,
}

impl Rename<'_> {
    /// Renames the file. Returns false after a failure, which is logged; the file then keeps its
    /// old name.
    pub fn run(&self, done: &mut RenameResult) -> bool {
        if let Some(access) = self.access
            && let Err(error) = fs::set_permissions(self.source, fs::Permissions::from_mode(access))
        {
            done.failed(Level::Crit, "chmod()", self.source, &error);
            return false;
        }
        if let Some(seconds) = self.modified
            && let Err(error) = set_time(self.source, at(seconds))
        {
            done.failed(Level::Crit, "utimes()", self.source, &error);
            return false;
        }
        let mut renamed = fs::rename(self.source, self.target);
        if self.create_path && is_errno(&renamed, libc::ENOENT) {
            let mode = directory_access(self.path_access);
            if let Err((path, error)) = create_directories_to(self.target, mode) {
                done.failed(Level::Crit, "mkdir()", path, &error);
                return false;
            }
            renamed = fs::rename(self.source, self.target);
        }
        if is_errno(&renamed, libc::EXDEV) {
            return self.copy_across_filesystems(done);
        }
        match renamed {
            Ok(()) => true,
            Err(error) => {
                rename_failed(done, self.source, self.target, &error);
                false
            }
        }
    }

    /// Copies the file to a temporary name in the target's directory, and then renames the copy.
    fn copy_across_filesystems(&self, done: &mut RenameResult) -> bool {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let mut name = self.target.as_os_str().to_owned();
        name.push(format!(".{:010}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let name = PathBuf::from(name);
        let found = match fs::metadata(self.source) {
            Ok(found) => found,
            Err(error) => {
                done.failed(Level::Alert, "fstat()", self.source, &error);
                return false;
            }
        };
        let access = self.access.unwrap_or(found.mode() & 0o777);
        let Some(copy) = Copying::open(self.source, &name, access, done) else {
            return false;
        };
        if !copy.run(modified(&found), done) {
            // nginx leaves the incomplete copy behind.
            remove_temporary(&name, done);
            return false;
        }
        if let Err(error) = fs::rename(&name, self.target) {
            rename_failed(done, &name, self.target, &error);
            remove_temporary(&name, done);
            return false;
        }
        if let Err(error) = fs::remove_file(self.source) {
            done.failed(Level::Crit, "unlink()", self.source, &error);
            return false;
        }
        true
    }
}

fn rename_failed(done: &mut RenameResult, from: &Path, to: &Path, error: &io::Error) {
    let (from, to, error) = (shown(from), shown(to), Errno(error));
    done.line(
        Level::Crit,
        format!("rename() \"{from}\" to \"{to}\" failed {error}"),
    );
}

fn is_errno<T>(result: &io::Result<T>, errno: i32) -> bool {
    matches!(result, Err(error) if error.raw_os_error() == Some(errno))
}

/// Creates the parent directories of a path. Returns the error and the path that it is about.
/// `EACCES` does not end the loop, since the directory may exist nevertheless.
fn create_directories_to(path: &Path, mode: u32) -> Result<(), (&Path, io::Error)> {
    let mut parents: Vec<&Path> = path.ancestors().skip(1).collect();
    parents.reverse();
    let mut last = Ok(());
    for parent in parents {
        if parent.parent().is_none() {
            continue;
        }
        last = match create_directory(parent, mode) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            // The error names the whole path: whether the directory exists only shows when the next
            // component is created.
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => Err((path, error)),
            Err(error) => return Err((parent, error)),
            Ok(()) => Ok(()),
        };
    }
    last
}

/// The time this many seconds after 1970.
fn at(seconds: i64) -> SystemTime {
    let distance = Duration::from_secs(seconds.unsigned_abs());
    let time = if seconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(distance)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(distance)
    };
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The modification time of a file, in whole seconds.
pub fn modified(found: &Metadata) -> SystemTime {
    at(found.mtime())
}

/// Sets the access time and the modification time of a file.
pub fn set_time(path: &Path, time: SystemTime) -> io::Result<()> {
    let times = FileTimes::new().set_accessed(time).set_modified(time);
    fs::File::open(path)?.set_times(times)
}

/// Copies the bytes of a file to another. An existing target keeps its mode.
pub fn copy_file(
    from: &Path,
    to: &Path,
    access: u32,
    time: SystemTime,
    done: &mut RenameResult,
) -> bool {
    Copying::open(from, to, access, done).is_some_and(|copy| copy.run(time, done))
}

/// A copy of a file whose source and target are open.
struct Copying<'a> {
    source: fs::File,
    target: fs::File,
    /// The path of the target, for log lines.
    path: &'a Path,
}

impl<'a> Copying<'a> {
    /// Opens both files, and creates the target if it does not exist.
    fn open(
        from: &Path,
        to: &'a Path,
        access: u32,
        done: &mut RenameResult,
    ) -> Option<Copying<'a>> {
        let source = match fs::File::open(from) {
            Ok(source) => source,
            Err(error) => {
                done.failed(Level::Crit, "open()", from, &error);
                return None;
            }
        };
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(access);
        match options.open(to) {
            Ok(target) => Some(Copying {
                source,
                target,
                path: to,
            }),
            Err(error) => {
                done.failed(Level::Crit, "open()", to, &error);
                None
            }
        }
    }

    /// Copies the bytes, and sets the times of the target. After a failure the target may be
    /// incomplete.
    fn run(mut self, time: SystemTime, done: &mut RenameResult) -> bool {
        if is_same_file(&self.source, &self.target) {
            // Both names lead to one file, which must not be truncated before it is copied.
            return true;
        }
        if let Err(error) = self
            .target
            .set_len(0)
            .and_then(|()| io::copy(&mut self.source, &mut self.target))
        {
            done.failed(Level::Alert, "write()", self.path, &error);
            return false;
        }
        let times = FileTimes::new().set_accessed(time).set_modified(time);
        if let Err(error) = self.target.set_times(times) {
            done.failed(Level::Alert, "utimes()", self.path, &error);
            return false;
        }
        true
    }
}

fn is_same_file(one: &fs::File, other: &fs::File) -> bool {
    match (one.metadata(), other.metadata()) {
        (Ok(one), Ok(other)) => one.dev() == other.dev() && one.ino() == other.ino(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rename<'a>(source: &'a Path, target: &'a Path) -> Rename<'a> {
        Rename {
            source,
            target,
            access: Some(0o600),
            path_access: 0o600,
            modified: None,
            create_path: false,
        }
    }

    /// A directory can be opened but not read: copying it fails once the target exists, as on a
    /// full disk.
    #[test]
    fn a_copy_over_file_systems_that_fails_leaves_nothing_behind() {
        let folder = std::env::temp_dir().join(format!("tidegate-rename-{}", std::process::id()));
        let (source, place) = (folder.join("source"), folder.join("place"));
        fs::create_dir_all(&source).unwrap();
        fs::create_dir_all(&place).unwrap();
        let target = place.join("file");
        fs::write(&target, "as before").unwrap();
        let rename = rename(&source, &target);
        let mut done = RenameResult::default();
        assert!(!rename.copy_across_filesystems(&mut done));
        // The copy has failed at this point, and the incomplete copy has been removed.
        let [(Level::Alert, line)] = &done.lines[..] else {
            panic!("{:?}", done.lines);
        };
        let begin = format!("write() \"{}.", target.display());
        assert!(line.starts_with(&begin), "{line}");
        let names: Vec<_> = fs::read_dir(&place)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["file"]);
        assert_eq!(fs::read(&target).unwrap(), b"as before");
        assert!(source.exists());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_crosses_file_systems_by_a_copy() {
        let folder = std::env::temp_dir().join(format!("tidegate-crossed-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (source, target) = (folder.join("source"), folder.join("target"));
        fs::write(&source, "bytes").unwrap();
        let rename = rename(&source, &target);
        let mut done = RenameResult::default();
        assert!(rename.copy_across_filesystems(&mut done));
        assert!(done.lines.is_empty(), "{:?}", done.lines);
        assert_eq!(fs::read(&target).unwrap(), b"bytes");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
    }
}
