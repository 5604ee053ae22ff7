//! The file operations of WebDAV: PUT, DELETE, COPY and MOVE.
//!
//! Every function here blocks, so it runs on the thread pool. A request cannot be used on that
//! thread, so log lines are returned with the status. Modes, times and the order of calls are
//! nginx's.

use std::fs::{self, Metadata, ReadDir};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use logs::{Errno, Level, Printable};

use http::files::rename::{
    Rename, RenameResult, copy_file, create_directory, directory_access, modified,
    remove_temporary, set_time, shown,
};

/// The greatest depth of a tree that is deleted or copied: each level holds a file descriptor.
const DEPTH_MAX: usize = 256;

/// A body in a temporary file, and its target.
pub(super) struct Put {
    pub(super) temporary: PathBuf,
    pub(super) target: PathBuf,
    /// The permissions of the file and of created directories: `dav_access`.
    pub(super) access: u32,
    /// The time of the Date field in seconds since 1970, which becomes the modification time.
    pub(super) modified: Option<i64>,
    /// Whether missing parent directories are created: `create_full_put_path`.
    pub(super) create_path: bool,
}

/// Renames a file into place, atomically for all readers.
pub(super) fn put(put: &Put) -> RenameResult {
    let mut done = RenameResult::default();
    let status = match fs::metadata(&put.target) {
        Err(_) => 201,
        Ok(found) if found.is_dir() => {
            let (path, error) = (
                shown(&put.target),
                io::Error::from_raw_os_error(libc::EISDIR),
            );
            let text = format!("\"{path}\" could not be created {}", Errno(&error));
            done.line(Level::Error, text);
            remove_temporary(&put.temporary, &mut done);
            return done.with(409);
        }
        Ok(_) => 204,
    };
    let rename = Rename {
        source: &put.temporary,
        target: &put.target,
        access: Some(put.access),
        path_access: put.access,
        modified: put.modified,
        create_path: put.create_path,
    };
    if rename.run(&mut done) {
        return done.with(status);
    }
    remove_temporary(&put.temporary, &mut done);
    done.with(500)
}

/// The arguments of DELETE.
pub(super) struct Delete {
    /// The path, with a slash at its end if the URI has one.
    pub(super) path: PathBuf,
    /// Whether the URI ends with a slash.
    pub(super) is_collection: bool,
    /// The value of the Depth field, if the request has one.
    pub(super) depth: Option<Vec<u8>>,
}

/// The value of a Depth field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    Zero,
    One,
    Infinity,
}

impl Depth {
    /// Parses the field's value. The error is a log line about a value that RFC 4918, section 10.2
    /// does not define.
    pub(super) fn parse(value: &[u8]) -> Result<Depth, String> {
        match value {
            b"0" => Ok(Depth::Zero),
            b"1" => Ok(Depth::One),
            b"infinity" => Ok(Depth::Infinity),
            _ => Err(format!(
                "client sent invalid \"Depth\" header: \"{}\"",
                Printable(value)
            )),
        }
    }
}

/// Deletes a file, or a directory with its contents.
pub(super) fn delete(delete: &Delete) -> RenameResult {
    let mut done = RenameResult::default();
    let found = match fs::symlink_metadata(&delete.path) {
        Ok(found) => found,
        Err(error) => {
            let missing = match error.raw_os_error() {
                Some(libc::ENOTDIR) => 409,
                _ => 404,
            };
            let status = done.refused("lstat()", &delete.path, &error, missing);
            return done.with(status);
        }
    };
    if found.is_dir() && !delete.is_collection {
        let error = io::Error::from_raw_os_error(libc::EISDIR);
        done.failed(Level::Error, "DELETE", &delete.path, &error);
        return done.with(409);
    }
    let depth = match delete.depth.as_deref().map(Depth::parse) {
        None => Some(Depth::Infinity),
        Some(Ok(depth)) => Some(depth),
        Some(Err(line)) => {
            done.line(Level::Error, line);
            None
        }
    };
    if !found.is_dir() {
        if !matches!(depth, Some(Depth::Zero | Depth::Infinity)) {
            let text = "\"Depth\" header must be 0 or infinity";
            done.line(Level::Error, text.into());
            return done.with(400);
        }
        let status = delete_path(&delete.path, false, &mut done).unwrap_or(204);
        return done.with(status);
    }
    if depth != Some(Depth::Infinity) {
        done.line(Level::Error, "\"Depth\" header must be infinity".into());
        return done.with(400);
    }
    let status = delete_path(&delete.path, true, &mut done).unwrap_or(204);
    done.with(status)
}

fn without_slash(path: &Path) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    let bytes = bytes.strip_suffix(b"/").unwrap_or(bytes);
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}

/// Deletes a file or directory; returns a status if that failed.
fn delete_path(path: &Path, is_directory: bool, done: &mut RenameResult) -> Option<u16> {
    if !is_directory {
        let error = fs::remove_file(path).err()?;
        return Some(done.refused("unlink()", path, &error, 404));
    }
    if !walk(&without_slash(path), &mut Removal, done) {
        return Some(500);
    }
    let error = fs::remove_dir(path).err()?;
    Some(done.refused("rmdir()", path, &error, 404))
}

/// Visits the entries of a tree.
trait Visitor {
    /// A directory, before its entries.
    fn enter(&mut self, path: &Path, found: &Metadata, done: &mut RenameResult);
    fn file(&mut self, path: &Path, found: &Metadata, done: &mut RenameResult);
    /// Anything else: a link, a socket or a device.
    fn special(&mut self, path: &Path, done: &mut RenameResult);
    /// A directory, after its entries.
    fn leave_directory(&mut self, path: &Path, found: &Metadata, done: &mut RenameResult);
}

/// Visits everything below a directory; false if the directory cannot be read. If a directory or an
/// entry below it cannot be read, this is logged and the walk continues.
fn walk(root: &Path, visitor: &mut dyn Visitor, done: &mut RenameResult) -> bool {
    let Some(entries) = read_directory(root, done) else {
        return false;
    };
    let mut open: Vec<(PathBuf, ReadDir, Option<Metadata>)> =
        vec![(root.to_owned(), entries, None)];
    while let Some((directory, entries, _)) = open.last_mut() {
        let entry = match entries.next() {
            Some(Ok(entry)) => entry,
            Some(Err(error)) => {
                done.failed(Level::Crit, "readdir()", directory, &error);
                continue;
            }
            None => {
                if let Some((path, _, Some(found))) = open.pop() {
                    visitor.leave_directory(&path, &found, done);
                }
                continue;
            }
        };
        let path = entry.path();
        let found = match fs::symlink_metadata(&path) {
            Ok(found) => found,
            Err(error) => {
                done.failed(Level::Crit, "lstat()", &path, &error);
                continue;
            }
        };
        if found.is_file() {
            visitor.file(&path, &found, done);
        } else if !found.is_dir() {
            visitor.special(&path, done);
        } else {
            visitor.enter(&path, &found, done);
            let entries = if open.len() < DEPTH_MAX {
                read_directory(&path, done)
            } else {
                let text = format!("\"{}\" is nested too deeply", shown(&path));
                done.line(Level::Crit, text);
                None
            };
            match entries {
                Some(entries) => open.push((path, entries, Some(found))),
                None => visitor.leave_directory(&path, &found, done),
            }
        }
    }
    true
}

fn read_directory(path: &Path, done: &mut RenameResult) -> Option<ReadDir> {
    fs::read_dir(path)
        .map_err(|error| done.failed(Level::Crit, "opendir()", path, &error))
        .ok()
}

/// Deletes everything that is visited.
struct Removal;

impl Visitor for Removal {
    fn enter(&mut self, _: &Path, _: &Metadata, _: &mut RenameResult) {}

    fn file(&mut self, path: &Path, _: &Metadata, done: &mut RenameResult) {
        if let Err(error) = fs::remove_file(path) {
            done.refused("unlink()", path, &error, 0);
        }
    }

    fn special(&mut self, path: &Path, done: &mut RenameResult) {
        if let Err(error) = fs::remove_file(path) {
            done.refused("unlink()", path, &error, 0);
        }
    }

    fn leave_directory(&mut self, path: &Path, _: &Metadata, done: &mut RenameResult) {
        if let Err(error) = fs::remove_dir(path) {
            done.refused("rmdir()", path, &error, 0);
        }
    }
}

/// Copies a tree into another directory, which exists already.
struct Copy<'a> {
    /// The directory whose entries are copied.
    from: &'a Path,
    /// The directory into which the entries are copied.
    to: &'a Path,
}

impl Copy<'_> {
    fn target(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(self.from) {
            Ok(rest) => self.to.join(rest),
            // invariant: the walk stays below `from`
            Err(_) => self.to.to_owned(),
        }
    }
}

impl Visitor for Copy<'_> {
    fn enter(&mut self, path: &Path, found: &Metadata, done: &mut RenameResult) {
        let target = self.target(path);
        if let Err(error) = create_directory(&target, directory_access(found.mode() & 0o777)) {
            done.refused("mkdir()", &target, &error, 0);
        }
    }

    fn file(&mut self, path: &Path, found: &Metadata, done: &mut RenameResult) {
        let (target, access) = (self.target(path), found.mode() & 0o777);
        copy_file(path, &target, access, modified(found), done);
    }

    /// Copies a link to a file as a file. A link to a directory is skipped, since it may form a
    /// cycle.
    fn special(&mut self, path: &Path, done: &mut RenameResult) {
        if let Ok(found) = fs::metadata(path)
            && found.is_file()
        {
            self.file(path, &found, done);
        }
    }

    fn leave_directory(&mut self, path: &Path, found: &Metadata, done: &mut RenameResult) {
        let target = self.target(path);
        if let Err(error) = set_time(&target, modified(found)) {
            done.failed(Level::Alert, "utimes()", &target, &error);
        }
    }
}

/// Creates a directory for MKCOL.
pub(super) fn make_collection(path: &Path, access: u32) -> RenameResult {
    let mut done = RenameResult::default();
    match create_directory(path, directory_access(access)) {
        Ok(()) => done.with(201),
        Err(error) => {
            let status = done.refused("mkdir()", path, &error, 409);
            done.with(status)
        }
    }
}

/// The arguments of COPY or MOVE.
pub(super) struct Transfer {
    /// Ends with a slash if the URI does.
    pub(super) source: PathBuf,
    /// Does not end with a slash.
    pub(super) target: PathBuf,
    /// Whether both URIs end with a slash.
    pub(super) is_collection: bool,
    /// Whether an existing target is replaced: the Overwrite field.
    pub(super) overwrite: bool,
    /// Whether the method is MOVE, rather than COPY.
    pub(super) moves: bool,
    /// `dav_access`, for created directories.
    pub(super) access: u32,
    /// The URI of the source and the Destination field, for log lines.
    pub(super) uri: String,
    pub(super) destination: String,
}

/// Copies or moves a file or a tree.
pub(super) fn transfer(transfer: &Transfer) -> RenameResult {
    let mut done = RenameResult::default();
    let replaced = match transfer.replaced(&mut done) {
        Ok(replaced) => replaced,
        Err(status) => return done.with(status),
    };
    let found = match fs::symlink_metadata(&transfer.source) {
        Ok(found) => found,
        Err(error) => {
            let status = done.refused("lstat()", &transfer.source, &error, 404);
            return done.with(status);
        }
    };
    if !found.is_dir() {
        let status = transfer.file(&found, &mut done);
        return done.with(status);
    }
    if !transfer.is_collection {
        let text = format!("\"{}\" is collection", transfer.uri);
        done.line(Level::Error, text);
        return done.with(400);
    }
    if transfer.overlaps() {
        let (uri, destination) = (&transfer.uri, &transfer.destination);
        let text = format!("\"{uri}\" and \"{destination}\" lie within each other");
        done.line(Level::Error, text);
        return done.with(403);
    }
    if let Some(is_directory) = replaced
        && let Some(status) = delete_path(&transfer.target, is_directory, &mut done)
    {
        return done.with(status);
    }
    let status = transfer.tree(&found, &mut done);
    done.with(status)
}

impl Transfer {
    /// Checks the target. Returns whether the existing target is a directory; `None` if the target
    /// does not exist. An error is the status of the response.
    fn replaced(&self, done: &mut RenameResult) -> Result<Option<bool>, u16> {
        let found = match fs::symlink_metadata(&self.target) {
            Ok(found) => found,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            Err(error) => return Err(done.refused("lstat()", &self.target, &error, 404)),
        };
        if found.is_dir() && !self.is_collection {
            let method = if self.moves { "MOVE" } else { "COPY" };
            let (uri, destination) = (&self.uri, &self.destination);
            let text = format!("\"{uri}\" could not be {method}ed to collection \"{destination}\"");
            done.line(Level::Error, text);
            return Err(409);
        }
        if !self.overwrite {
            let error = io::Error::from_raw_os_error(libc::EEXIST);
            let path = shown(&self.target);
            let text = format!("\"{path}\" could not be created {}", Errno(&error));
            done.line(Level::Error, text);
            return Err(412);
        }
        Ok(Some(found.is_dir()))
    }

    /// Whether the source is within the target or the target within the source, after links are
    /// resolved: a copy could be endless, or the source could be deleted before it is copied.
    fn overlaps(&self) -> bool {
        let parent = self.target.parent().map(fs::canonicalize);
        let (Ok(source), Some(Ok(parent))) = (fs::canonicalize(&self.source), parent) else {
            return false; // the call that needs the path reports the error
        };
        let target = self
            .target
            .file_name()
            .map_or(parent.clone(), |name| parent.join(name));
        target.starts_with(&source) || source.starts_with(&target)
    }

    fn file(&self, found: &Metadata, done: &mut RenameResult) -> u16 {
        let whole = if self.moves {
            let rename = Rename {
                source: &self.source,
                target: &self.target,
                access: None,
                path_access: self.access,
                modified: None,
                create_path: true,
            };
            rename.run(done)
        } else {
            let access = found.mode() & 0o777;
            copy_file(&self.source, &self.target, access, modified(found), done)
        };
        if whole { 204 } else { 500 }
    }

    fn tree(&self, found: &Metadata, done: &mut RenameResult) -> u16 {
        let source = without_slash(&self.source);
        if self.moves && fs::rename(&source, &self.target).is_ok() {
            return 201;
        }
        if let Err(error) = create_directory(&self.target, found.mode() & 0o777) {
            return done.refused("mkdir()", &self.target, &error, 404);
        }
        self.copy_tree(&source, done)
    }

    /// Copies the tree into the target directory, which has been created. The source of a move is
    /// then deleted, unless a part of it could not be copied.
    fn copy_tree(&self, source: &Path, done: &mut RenameResult) -> u16 {
        let lines_before = done.lines_count;
        let mut copy = Copy {
            from: source,
            to: &self.target,
        };
        if !walk(source, &mut copy, done) || (self.moves && done.lines_count > lines_before) {
            return 500;
        }
        if self.moves {
            delete_path(&self.source, true, done).unwrap_or(201)
        } else {
            201
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path =
                std::env::temp_dir().join(format!("tidegate-dav-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        fn transfer(&self, from: &str, to: &str, moves: bool) -> Transfer {
            Transfer {
                source: self.0.join(from),
                target: self.0.join(to.trim_end_matches('/')),
                is_collection: to.ends_with('/'),
                overwrite: true,
                moves,
                access: 0o600,
                uri: from.into(),
                destination: to.into(),
            }
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn who_may_read_a_directory_may_enter_it() {
        assert_eq!(directory_access(0o600), 0o700);
        assert_eq!(directory_access(0o644), 0o755);
        assert_eq!(directory_access(0o660), 0o770);
    }

    #[test]
    fn a_put_makes_directories_only_where_it_may() {
        let folder = Folder::new("put");
        let temporary = folder.0.join("0000000001");
        fs::write(&temporary, "x").unwrap();
        let mut job = Put {
            temporary: temporary.clone(),
            target: folder.0.join("a/b/c"),
            access: 0o644,
            modified: Some(1_000_000_000),
            create_path: true,
        };
        assert_eq!(put(&job).status, 201);
        let found = fs::metadata(&job.target).unwrap();
        assert_eq!(
            (found.mode() & 0o777, found.mtime()),
            (0o644, 1_000_000_000)
        );
        fs::write(&temporary, "y").unwrap();
        assert_eq!(put(&job).status, 204);
        fs::write(&temporary, "y").unwrap();
        job.target = folder.0.join("none/c");
        job.create_path = false;
        let done = put(&job);
        assert_eq!((done.status, done.lines.len()), (500, 1));
        assert!(!temporary.exists());
    }

    #[test]
    fn trees_are_copied_and_deleted_links_are_not_followed() {
        let folder = Folder::new("tree");
        fs::create_dir_all(folder.0.join("a/deep/er")).unwrap();
        fs::write(folder.0.join("a/deep/file"), "text").unwrap();
        fs::write(folder.0.join("kept"), "kept").unwrap();
        std::os::unix::fs::symlink("../kept", folder.0.join("a/link")).unwrap();
        std::os::unix::fs::symlink("..", folder.0.join("a/circle")).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.0.join("a/broken")).unwrap();
        let done = transfer(&folder.transfer("a/", "b/", false));
        assert_eq!((done.status, &done.lines), (201, &Vec::new()));
        assert_eq!(fs::read(folder.0.join("b/deep/file")).unwrap(), b"text");
        assert!(
            fs::symlink_metadata(folder.0.join("b/link"))
                .unwrap()
                .is_file()
        );
        assert!(!folder.0.join("b/circle").exists());
        let removal = Delete {
            path: folder.0.join("a/"),
            is_collection: true,
            depth: None,
        };
        let done = delete(&removal);
        assert_eq!((done.status, &done.lines), (204, &Vec::new()));
        assert!(folder.0.join("kept").exists() && !folder.0.join("a").exists());
        assert_eq!(transfer(&folder.transfer("b/", "c/", true)).status, 201);
        assert!(folder.0.join("c/deep/er").is_dir() && !folder.0.join("b").exists());
    }

    #[test]
    fn a_tree_is_not_copied_into_itself_by_links() {
        let folder = Folder::new("within");
        fs::create_dir_all(folder.0.join("a/b")).unwrap();
        fs::write(folder.0.join("a/b/file"), "text").unwrap();
        std::os::unix::fs::symlink(".", folder.0.join("here")).unwrap();
        for (from, to) in [("a/", "here/a/c/"), ("a/b/", "here/a/"), ("a/", "here/a/")] {
            for moves in [true, false] {
                let done = transfer(&folder.transfer(from, to, moves));
                assert_eq!((done.status, done.lines.len()), (403, 1), "{from} {to}");
            }
        }
        assert!(folder.0.join("a/b/file").exists() && !folder.0.join("a/c").exists());
    }

    #[test]
    fn a_tree_that_could_not_be_copied_is_not_deleted() {
        let folder = Folder::new("kept");
        fs::create_dir_all(folder.0.join("a")).unwrap();
        fs::write(folder.0.join("a/file"), "text").unwrap();
        // Makes the copy of this file fail.
        fs::create_dir_all(folder.0.join("b/file")).unwrap();
        let mut done = RenameResult::default();
        let moved = folder.transfer("a/", "b/", true);
        assert_eq!(moved.copy_tree(&folder.0.join("a"), &mut done), 500);
        assert!(folder.0.join("a/file").exists());
    }

    #[test]
    fn a_file_copied_to_another_name_of_itself_stays() {
        let folder = Folder::new("same");
        fs::write(folder.0.join("a"), "text").unwrap();
        fs::hard_link(folder.0.join("a"), folder.0.join("b")).unwrap();
        assert_eq!(transfer(&folder.transfer("a", "b", false)).status, 204);
        assert_eq!(fs::read(folder.0.join("a")).unwrap(), b"text");
    }
}
