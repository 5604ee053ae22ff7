//! A pool of php-fpm of our own: the program, its configuration, and the keeper that looks after
//! both.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::keeper;
use crate::serve::User;

/// The socket in the folder of a pool.
pub(super) const SOCKET: &str = "php.sock";
/// The configuration beside it.
pub(super) const CONFIGURATION: &str = "php-fpm.conf";

/// The bytes that the path of a socket may have (`sun_path` of unix(7), with its null byte).
const SOCKET_PATH_MAX: usize = 107;

/// Folders that are looked into behind those of `PATH`, which leaves out the first of them for most
/// users.
const FOLDERS: &[&str] = &[
    "/usr/sbin",
    "/usr/local/sbin",
    "/usr/bin",
    "/usr/local/bin",
    "/sbin",
];

/// Variables that are ours and not PHP's: a password, what reports our own start, and what would
/// hand it sockets.
const KEPT_FROM_PHP: &[&str] = &[
    "TIDEGATE_PASSWORD",
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
    "FPM_SOCKETS",
];

/// What PHP gets of root's environment, to find programs and to tell the time.
const KEPT_FROM_ROOT: &[&str] = &["PATH", "TZ", "LANG"];

/// The fewest and the most children of a pool; between them it is two for each processor. A browser
/// alone has six connections, and a page whose session is locked holds a child.
const CHILDREN_MIN: usize = 8;
const CHILDREN_MAX: usize = 32;

/// A pool that has not been started.
#[derive(Debug)]
pub(in crate::serve) struct Settings {
    pub(super) program: PathBuf,
    /// Where socket and configuration are made.
    folder: PathBuf,
}

/// A pool that runs, until the value is dropped.
pub(crate) struct Pool {
    keeper: Child,
}

impl Settings {
    /// A pool of `program` in a private folder.
    pub(super) fn new(program: PathBuf, folder: &Path) -> Result<Settings, String> {
        let socket = folder.join(SOCKET);
        let length = socket.as_os_str().len();
        if length <= SOCKET_PATH_MAX {
            Ok(Settings {
                program,
                folder: folder.to_owned(),
            })
        } else {
            Err(format!(
                "--php: a socket at {} would have a path of {length} bytes, and {SOCKET_PATH_MAX} is the most; set \
                 TMPDIR to a shorter one",
                socket.display()
            ))
        }
    }

    /// Starts the pool and waits until it answers. Where this process is root, PHP runs as `user`.
    pub(in crate::serve) fn start(&self, user: Option<&User>) -> Result<Pool, String> {
        let path = self.folder.join(CONFIGURATION);
        let mut file = fs::OpenOptions::new();
        let file = file.write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(self.text(user).as_bytes()))
            .map_err(|error| {
                process::log::failure(&format!("\"{}\" cannot be written", path.display()), &error)
            })?;
        let [name, arguments @ ..] = keeper::ARGUMENTS;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0(name)
            .args(arguments)
            .arg(&self.folder)
            .arg(&self.program);
        if user.is_some_and(User::is_root) {
            command.arg(keeper::AS_ROOT);
        }
        match user {
            // What root has in its environment is no business of those who serve.
            Some(_) => {
                let kept = KEPT_FROM_ROOT.iter();
                let kept = kept.filter_map(|name| Some((name, std::env::var_os(name)?)));
                command.env_clear().envs(kept);
            }
            None => {
                for name in KEPT_FROM_PHP {
                    command.env_remove(name);
                }
            }
        }
        // Ctrl-C is for us: the requests that we wait for then still need PHP.
        command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let keeper = command.spawn().map_err(|error| {
            process::log::failure("the keeper of php-fpm could not be started", &error)
        })?;
        let mut pool = Pool { keeper };
        let mut said = String::new();
        if let Some(stdout) = &mut pool.keeper.stdout {
            // What cannot be read says as little as nothing.
            let _ = BufReader::new(stdout).read_line(&mut said);
        }
        match said.as_str() {
            keeper::READY => Ok(pool),
            "" => Err("the keeper of php-fpm ended before it answered".to_owned()),
            _ => Err(format!("{}: {said}", self.program.display())),
        }
    }

    /// The configuration: as little as possible, so that php.ini says the rest.
    fn text(&self, user: Option<&User>) -> String {
        // The socket is for the user who serves.
        let owner = user.map_or_else(String::new, User::pool_lines);
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let children = (2 * processors).clamp(CHILDREN_MIN, CHILDREN_MAX);
        // Paths are relative to the folder (`--prefix`), so that nothing in its name means anything
        // here. What scripts report goes to standard error as it is, without `fastcgi.logging` not
        // once more with the answer.
        format!(
            "[global]\nerror_log = /dev/null\nlog_level = warning\ndaemonize = no\n[serve]\n{owner}listen = {SOCKET}\nlisten.mode = 0600\n\
             pm = ondemand\npm.max_children = {children}\npm.process_idle_timeout = 60s\nclear_env = no\n\
             catch_workers_output = yes\ndecorate_workers_output = no\nsecurity.limit_extensions = .php\n\
             php_admin_flag[fastcgi.logging] = off\n"
        )
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The end of its standard input tells the keeper to end.
        drop(self.keeper.stdin.take());
        // The master may have reaped it.
        let _ = self.keeper.wait();
    }
}

/// The program php-fpm: the one that has no version in its name, else the one with the highest.
pub(super) fn find_program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).filter(|folder| folder.is_absolute());
    let folders: Vec<PathBuf> = folders.chain(FOLDERS.iter().map(PathBuf::from)).collect();
    let mut found: Vec<(Version, PathBuf)> = Vec::new();
    for folder in folders {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        for entry in entries {
            let version = entry.file_name().to_str().and_then(version);
            if let Some(version) = version
                && is_program(&entry.path())
            {
                found.push((version, entry.path()));
            }
        }
    }
    // Of those that are alike the first in `PATH`.
    found
        .into_iter()
        .rev()
        .max_by_key(|(version, _)| *version)
        .map(|(_, path)| path)
}

/// Whether a file can be executed.
pub(super) fn is_program(path: &Path) -> bool {
    let metadata = fs::metadata(path);
    metadata.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// What a name says of the version: the name alone is the one that the system prefers.
type Version = (bool, u32, u32);

/// The version in a name of php-fpm: `php-fpm8.2` (Debian), `php-fpm83` (Alpine).
fn version(name: &str) -> Option<Version> {
    let rest = name.strip_prefix("php-fpm")?;
    if rest.is_empty() {
        return Some((true, 0, 0));
    }
    let rest = rest.strip_prefix('-').unwrap_or(rest);
    let (major, minor) = match rest.split_once('.') {
        Some(parts) => parts,
        None => rest.split_at_checked(1)?,
    };
    let minor = if minor.is_empty() { "0" } else { minor };
    Some((false, major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_program() {
        assert_eq!(version("php-fpm"), Some((true, 0, 0)));
        assert_eq!(version("php-fpm8.2"), Some((false, 8, 2)));
        assert_eq!(version("php-fpm83"), Some((false, 8, 3)));
        assert_eq!(version("php-fpm7"), Some((false, 7, 0)));
        assert!(version("php-fpm8.10") > version("php-fpm8.9"));
        for name in [
            "php",
            "php-fpm.conf",
            "php-fpm8.2.bak",
            "php-fpm-x",
            "php-fpm\u{e9}1",
        ] {
            assert_eq!(version(name), None, "{name}");
        }
    }

    #[test]
    fn a_socket_has_a_path_of_bounded_length() {
        let folder = PathBuf::from(format!("/{}", "a".repeat(97)));
        assert!(Settings::new(PathBuf::from("/php-fpm"), &folder).is_ok());
        let folder = PathBuf::from(format!("/{}", "a".repeat(98)));
        let error = Settings::new(PathBuf::from("/php-fpm"), &folder).unwrap_err();
        assert!(error.contains("a path of 108 bytes"), "{error}");
    }
}
