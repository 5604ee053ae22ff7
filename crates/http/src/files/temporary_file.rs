//! Creates temporary files with unique names, in a directory or in hashed subdirectories below it,
//! as nginx does.
//!
//! The caller decides what a file is for and when it is deleted. Every function blocks on the disk:
//! call them on the thread pool ([`engine::blocking`]).

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, io};

/// The number of the next name, shared by all directories.
pub(crate) static NEXT_NAME: AtomicU64 = AtomicU64::new(1);

/// The number by which the counter jumps if a name is taken, to skip quickly over files that an
/// earlier process has left (nginx's `ngx_random_number`).
const NAME_JUMP: u64 = 123_456;

/// The number of different names: names have ten digits.
const NAMES_COUNT: u64 = 10_000_000_000;

/// A directory of temporary files.
#[derive(Debug)]
pub struct Directory {
    /// The absolute path of the directory.
    pub path: PathBuf,
    /// The length in digits of each level's subdirectory names, which are cut from the end of the
    /// file name.
    pub levels: Vec<u64>,
}

/// A failed system call on a file.
#[derive(Debug)]
pub struct FileError {
    /// The call, as log lines name it.
    pub call: &'static str,
    /// The file or directory that the call was about.
    pub path: PathBuf,
    /// The error of the system call.
    pub error: io::Error,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (call, path) = (self.call, self.path.display());
        write!(f, "{call} \"{path}\" failed {}", logs::Errno(&self.error))
    }
}

impl Directory {
    /// Creates a file, and returns it with its path. Unless `keeps_name` is set, the file is
    /// unlinked at once, so that it is not left behind after a crash.
    ///
    /// # Errors
    /// Those of `open()`, `mkdir()` and `unlink()`.
    pub fn create(&self, mode: u32, keeps_name: bool) -> Result<(PathBuf, File), FileError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(mode);
        let mut path = self.next_path(1);
        let mut has_levels = self.levels.is_empty();
        loop {
            let created = options.open(&path).and_then(|file| {
                if !keeps_name {
                    std::fs::remove_file(&path)?;
                }
                Ok(file)
            });
            match created {
                Ok(file) => return Ok((path, file)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    path = self.next_path(NAME_JUMP);
                    has_levels = self.levels.is_empty();
                }
                Err(error) if error.kind() == ErrorKind::NotFound && !has_levels => {
                    self.make_levels(&path)?;
                    has_levels = true;
                }
                Err(error) => {
                    let call = "open()";
                    return Err(FileError { call, path, error });
                }
            }
        }
    }

    /// The path with the next name; the counter advances by `step`.
    fn next_path(&self, step: u64) -> PathBuf {
        self.path_of(NEXT_NAME.fetch_add(step, Ordering::Relaxed) % NAMES_COUNT)
    }

    fn path_of(&self, number: u64) -> PathBuf {
        let name = format!("{number:010}");
        let (mut path, mut rest) = (self.path.clone(), name.as_str());
        for level in &self.levels {
            let at = rest.len().saturating_sub(*level as usize);
            let (before, folder) = rest.split_at_checked(at).unwrap_or_default();
            path.push(folder);
            rest = before;
        }
        path.push(name);
        path
    }

    /// Creates the subdirectories of a file's path.
    fn make_levels(&self, file: &Path) -> Result<(), FileError> {
        let mut builder = DirBuilder::new();
        builder.mode(0o700);
        let levels = file.ancestors().skip(1).take(self.levels.len());
        let levels: Vec<&Path> = levels.collect();
        for level in levels.into_iter().rev() {
            match builder.create(level) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    let (call, path) = ("mkdir()", level.to_owned());
                    return Err(FileError { call, path, error });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str, levels: &[u64]) -> Directory {
        let path = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory {
            path,
            levels: levels.to_vec(),
        }
    }

    /// The same paths as `ngx_create_hashed_filename` makes.
    #[test]
    fn levels_are_the_last_digits_of_a_name() {
        let path = |levels: &[u64]| {
            let directory = Directory {
                path: "/temp".into(),
                levels: levels.to_vec(),
            };
            directory.path_of(1_234_567).display().to_string()
        };
        assert_eq!(path(&[]), "/temp/0001234567");
        assert_eq!(path(&[1, 2]), "/temp/7/56/0001234567");
        assert_eq!(path(&[2, 1, 3]), "/temp/67/5/234/0001234567");
    }

    #[test]
    fn missing_levels_are_created() {
        let directory = directory("levels", &[1, 2]);
        let (path, _file) = directory.create(0o600, true).unwrap();
        assert!(path.exists());
        assert_eq!(path.ancestors().nth(3), Some(directory.path.as_path()));
        let (path, _file) = directory.create(0o600, false).unwrap();
        assert!(!path.exists());
        std::fs::remove_dir_all(&directory.path).unwrap();
        let failure = directory.create(0o600, false).unwrap_err();
        let text = failure.to_string();
        assert!(text.starts_with("mkdir() \"/"), "{text}");
        assert!(
            text.ends_with("\" failed (2: No such file or directory)"),
            "{text}"
        );
    }

    #[test]
    fn a_name_that_is_taken_is_left_alone() {
        let directory = directory("taken", &[]);
        let taken = directory.path_of(NEXT_NAME.load(Ordering::Relaxed));
        std::fs::write(&taken, "theirs").unwrap();
        for _ in 0..3 {
            let (path, _file) = directory.create(0o600, false).unwrap();
            assert_ne!(path, taken);
        }
        assert_eq!(std::fs::read(&taken).unwrap(), b"theirs");
        std::fs::remove_dir_all(&directory.path).unwrap();
    }
}
