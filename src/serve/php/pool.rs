//! A php-fpm pool started by Tidegate: the program, its configuration, and the keeper process that
//! supervises it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::keeper;
use crate::serve::User;

/// Name of the socket in a pool's folder.
pub(super) const SOCKET: &str = "php.sock";
/// Name of the configuration, in the same folder as the socket.
pub(super) const CONFIGURATION: &str = "php-fpm.conf";

/// Maximum length of a socket's path, in bytes (`sun_path` of unix(7), without the null byte).
const SOCKET_PATH_MAX: usize = 107;

/// Folders searched after those in `PATH`, which for most users lacks the first of them.
const FOLDERS: &[&str] = &[
    "/usr/sbin",
    "/usr/local/sbin",
    "/usr/bin",
    "/usr/local/bin",
    "/sbin",
];

/// Environment variables of this process that PHP must not see: a password, and variables for start
/// notification and for socket passing.
const KEPT_FROM_PHP: &[&str] = &[
    "TIDEGATE_PASSWORD",
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
    "FPM_SOCKETS",
];

/// The variables of root's environment that PHP gets, to find programs and to tell the time.
const KEPT_FROM_ROOT: &[&str] = &["PATH", "TZ", "LANG"];

/// Minimum and maximum number of children in a pool; within these limits it is two per processor. A
/// single browser opens six connections, and a page with a locked session occupies a child.
const CHILDREN_MIN: usize = 8;
const CHILDREN_MAX: usize = 32;

/// The settings of a pool that has not been started.
#[derive(Debug)]
pub(in crate::serve) struct Settings {
    pub(super) program: PathBuf,
    /// The folder of the socket and the configuration.
    folder: PathBuf,
}

/// A running pool, stopped when the value is dropped.
pub(crate) struct Pool {
    keeper: Child,
}

impl Settings {
    /// The settings of a pool that runs `program`, in a private folder.
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

    /// Starts the pool and waits until it answers. If this process is root, PHP runs as `user`.
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
            // The serving user must not see root's environment.
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
        // Ctrl-C is handled by the server alone: the requests that it still completes need PHP.
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
            // A failed read is treated like an empty message.
            let _ = BufReader::new(stdout).read_line(&mut said);
        }
        match said.as_str() {
            keeper::READY => Ok(pool),
            "" => Err("the keeper of php-fpm ended before it answered".to_owned()),
            _ => Err(format!("{}: {said}", self.program.display())),
        }
    }

    /// The configuration: minimal, so that php.ini decides everything else.
    fn text(&self, user: Option<&User>) -> String {
        // The socket belongs to the serving user.
        let owner = user.map_or_else(String::new, User::pool_lines);
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let children = (2 * processors).clamp(CHILDREN_MIN, CHILDREN_MAX);
        // Paths are relative to the folder (`--prefix`), so that no character of its name has a
        // special meaning here. Errors of scripts go to standard error unchanged, and without
        // `fastcgi.logging` are not repeated in the response.
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
        // The end of its standard input makes the keeper end.
        drop(self.keeper.stdin.take());
        // The master may have reaped the keeper already.
        let _ = self.keeper.wait();
    }
}

/// Finds php-fpm: preferably without a version in its name, else with the highest version.
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
    // If names are equal, the program in the first folder of `PATH` is used.
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

/// The version in a program's name. A name without a version is the system's preferred one.
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
