//! `--php`: PHP scripts in a folder, run by an existing php-fpm or by a pool that Tidegate starts.
//!
//! [`address`] checks what listens at an address, [`listeners`] finds the owner of a port, [`pool`]
//! is a pool started by Tidegate, which [`keeper`] supervises in a separate process, and
//! [`locations`] generates the configuration for PHP.
//!
//! Deliberately not here: ways to run PHP other than FastCGI, and the settings of php.ini.

mod address;
mod keeper;
mod listeners;
pub(super) mod locations;
mod pool;

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::User;
use address::{Address, AddressCheck};
pub(crate) use keeper::run as keep;
pub(crate) use pool::Pool;
pub(super) use pool::Settings;

/// Sockets of distributions; the first one that answers is used. Names that match a `*` are tried
/// from the highest version down.
const SOCKETS: &[&str] = &[
    "/run/php/php-fpm.sock",     // Debian, whichever version is preferred
    "/run/php/php*-fpm.sock",    // Debian, by version
    "/run/php-fpm/www.sock",     // Fedora and its kin
    "/run/php-fpm/php-fpm.sock", // Arch
    "/run/php-fpm.sock",
    "/var/run/php-fpm/php-fpm.sock", // where /var/run is no link to /run
    "/var/run/php-fpm.sock",
];

/// php-fpm's default address.
const PORT: &str = "127.0.0.1:9000";

/// The PHP that runs scripts.
pub(super) struct Php {
    runner: Runner,
    /// The message about PHP.
    pub(super) note: String,
}

/// The php-fpm that runs scripts.
enum Runner {
    /// A php-fpm that is already running.
    Running(Address),
    /// A pool that Tidegate starts, with this program.
    Own(PathBuf),
}

impl Php {
    /// The pool to start in a private folder, if PHP needs one.
    pub(super) fn pool(&self, folder: &Path) -> Result<Option<Settings>, String> {
        match &self.runner {
            Runner::Running(_) => Ok(None),
            Runner::Own(program) => Settings::new(program.clone(), folder).map(Some),
        }
    }

    /// Whether Tidegate starts the pool.
    pub(super) fn is_own(&self) -> bool {
        matches!(self.runner, Runner::Own(_))
    }

    /// The argument of `server` in the configuration.
    pub(super) fn server(&self, folder: &Path) -> String {
        match &self.runner {
            Runner::Running(address) => address.to_string(),
            Runner::Own(_) => Address::Unix(folder.join(pool::SOCKET)).to_string(),
        }
    }
}

/// Finds PHP according to `--php` or `--php=WANTED`.
pub(super) fn find(wanted: &str, directory: &Path, user: Option<&User>) -> Result<Php, String> {
    if wanted.is_empty() {
        return search(directory, user);
    }
    if pool::is_program(Path::new(wanted)) {
        let program = fs::canonicalize(wanted).unwrap_or_else(|_| PathBuf::from(wanted));
        return Ok(own(program, user, String::new()));
    }
    let address = Address::parse(wanted)?;
    let blind = match address.ask(directory, user) {
        AddressCheck::Usable | AddressCheck::Odd => String::new(),
        AddressCheck::Blind => format!(
            "Warning: php-fpm at {address} does not find {}, so every script will be 404.\n",
            directory.display()
        ),
        AddressCheck::Absent(why) | AddressCheck::Refused(why) => {
            return Err(format!(
                "--php={wanted}: no php-fpm can be used at {address}: {why}"
            ));
        }
    };
    Ok(running(address, &blind))
}

/// The first usable php-fpm that is running, else a pool to start.
fn search(directory: &Path, user: Option<&User>) -> Result<Php, String> {
    let addresses = SOCKETS
        .iter()
        .flat_map(|pattern| matching(pattern))
        .map(Address::Unix);
    let addresses = addresses.chain(Address::parse(PORT));
    let mut passed_by = String::new();
    for address in addresses {
        // Only root can create sockets in those folders, but any user can listen on a port.
        let foreign_listener = match &address {
            Address::Tcp(address) => {
                listeners::foreign_listener(address.port(), user.map(User::number))
            }
            Address::Unix(_) => None,
        };
        if let Some(foreign_listener) = foreign_listener {
            passed_by.push_str(&format!(
                "{address} is not used: it belongs to user {foreign_listener}, who would see everything.\n"
            ));
            continue;
        }
        let why = match address.ask(directory, user) {
            AddressCheck::Usable => return Ok(running(address, &passed_by)),
            AddressCheck::Absent(_) => continue,
            AddressCheck::Refused(why) => why,
            AddressCheck::Odd => "it does not answer as php-fpm does".to_owned(),
            AddressCheck::Blind => format!("it does not find {}", directory.display()),
        };
        passed_by.push_str(&format!("{address} is not used: {why}.\n"));
    }
    match pool::find_program() {
        Some(program) => Ok(own(program, user, passed_by)),
        None => Err(format!(
            "{passed_by}--php finds no PHP: no php-fpm listens at {} or {PORT}, and no program php-fpm is in PATH or /usr/sbin. \
             Install it (Debian, Ubuntu, Fedora: the package php-fpm; Alpine: php84-fpm), or say where it listens: \
             --php=HOST:PORT or --php=unix:PATH",
            SOCKETS.join(", "),
        )),
    }
}

fn running(address: Address, notes: &str) -> Php {
    Php {
        note: format!("{notes}PHP is run by php-fpm at {address}.\n"),
        runner: Runner::Running(address),
    }
}

fn own(program: PathBuf, user: Option<&User>, passed_by: String) -> Php {
    let whose = match user {
        Some(user) if user.is_root() => " as root, who may do everything".to_owned(),
        Some(user) => format!(" as user {}", user.name()),
        None => String::new(),
    };
    let shown = program.display();
    Php {
        note: format!("{passed_by}PHP is run by a pool of its own, {shown}{whose}.\n"),
        runner: Runner::Own(program),
    }
}

/// The files that match a pattern, the highest version first. A name without `*` stands for itself.
fn matching(pattern: &str) -> Vec<PathBuf> {
    let path = Path::new(pattern);
    let parts = pattern
        .rsplit_once('/')
        .and_then(|(_, name)| name.split_once('*'));
    let (Some(folder), Some((before, behind))) = (path.parent(), parts) else {
        return vec![path.to_owned()];
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<(Vec<u32>, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let version = name.to_str()?.strip_prefix(before)?.strip_suffix(behind)?;
            let version: Result<Vec<u32>, _> = version.split('.').map(str::parse).collect();
            Some((version.ok()?, entry.path()))
        })
        .collect();
    found.sort_by(|one, other| other.cmp(one));
    found.into_iter().map(|(_, path)| path).collect()
}

/// Limit of directory entries that are examined for a warning.
const NAMES_MAX: usize = 1000;

/// A warning if an `.htaccess` file in the folder or in one of its subfolders restricts access,
/// which Tidegate ignores.
pub(super) fn warning(directory: &Path) -> String {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let folders = entries.take(NAMES_MAX).map(|entry| entry.path());
    let rules = std::iter::once(directory.to_owned()).chain(folders);
    let closes = |path: &PathBuf| {
        let text = short_text(path).unwrap_or_default().to_ascii_lowercase();
        let says = |words: &[u8]| text.windows(words.len()).any(|window| window == words);
        says(b"deny from all") || says(b"all denied")
    };
    let found = rules.map(|folder| folder.join(".htaccess")).find(closes);
    found.map_or_else(String::new, |path| {
        format!(
            "Warning: {} closes something to clients, and is not read here: files of Apache have no effect.\n",
            path.strip_prefix(directory).unwrap_or(&path).display()
        )
    })
}

/// The content of a short regular file. A pipe might block forever, and a long file takes long to
/// read.
fn short_text(path: &Path) -> Option<Vec<u8>> {
    const LENGTH_MAX: u64 = 64 * 1024;
    let found = fs::metadata(path).ok()?;
    if !found.is_file() || found.len() > LENGTH_MAX {
        return None;
    }
    // The file may have been replaced since the check: opening must not block, and the read is
    // limited.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.bits().cast_signed());
    let mut text = Vec::new();
    let file = options.open(path).ok()?;
    file.take(LENGTH_MAX).read_to_end(&mut text).ok()?;
    Some(text)
}

/// A PHP file in the folder itself, if there is one.
pub(super) fn first_script(directory: &Path) -> Option<String> {
    let entries = fs::read_dir(directory).ok()?.flatten().take(NAMES_MAX);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".php")).collect();
    names.sort_by_key(|name| (name != "index.php", name.clone()));
    names.into_iter().next()
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Bytes that this thread has read by system calls.
    fn bytes_read() -> u64 {
        let counts = fs::read_to_string("/proc/thread-self/io").unwrap();
        let line = counts.lines().find_map(|line| line.strip_prefix("rchar:"));
        line.unwrap().trim().parse().unwrap()
    }

    /// The warning about a folder, and the number of bytes read for it; fails if a read blocks.
    fn warning_of(folder: &Path) -> (String, u64) {
        let (say, said) = mpsc::channel();
        let folder = folder.to_owned();
        thread::spawn(move || {
            let before = bytes_read();
            let warning = warning(&folder);
            say.send((warning, bytes_read() - before))
        });
        said.recv_timeout(Duration::from_secs(60)).unwrap()
    }

    #[test]
    fn rules_of_apache_are_read_from_short_files_alone() {
        let folder = std::env::temp_dir().join(format!("tidegate-rules-{}", std::process::id()));
        for name in ["pipe", "long", "loop"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        let rules = |name: &str| folder.join(name).join(".htaccess");
        let made = Command::new("mkfifo").arg(rules("pipe")).status().unwrap();
        assert!(made.success());
        fs::write(rules("long"), "Deny from all\n").unwrap();
        let long = OpenOptions::new().write(true).open(rules("long")).unwrap();
        long.set_len(100 << 20).unwrap();
        std::os::unix::fs::symlink(".htaccess", rules("loop")).unwrap();
        let (warning, read) = warning_of(&folder);
        assert_eq!(warning, "");
        assert!(read < 1 << 20, "{read} bytes have been read");
        // A valid file in another folder is still found.
        fs::create_dir(folder.join("short")).unwrap();
        fs::write(rules("short"), "Deny from all\n").unwrap();
        let (warning, _) = warning_of(&folder);
        assert!(
            warning.starts_with("Warning: short/.htaccess closes "),
            "{warning}"
        );
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn sockets_of_the_highest_version_come_first() {
        let folder = std::env::temp_dir().join(format!("tidegate-sockets-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for name in [
            "php8.9-fpm.sock",
            "php8.10-fpm.sock",
            "php7.4-fpm.sock",
            "phpx-fpm.sock",
            "php-fpm.sock",
        ] {
            fs::write(folder.join(name), "").unwrap();
        }
        fs::write(folder.join("info.php"), "").unwrap();
        let found = matching(folder.join("php*-fpm.sock").to_str().unwrap());
        let names = ["php8.10-fpm.sock", "php8.9-fpm.sock", "php7.4-fpm.sock"];
        assert_eq!(found, names.map(|name| folder.join(name)));
        let one = folder.join("php-fpm.sock");
        assert_eq!(matching(one.to_str().unwrap()), [one]);
        assert_eq!(first_script(&folder), Some("info.php".to_owned()));
        fs::write(folder.join("index.php"), "").unwrap();
        fs::write(folder.join("a.php"), "").unwrap();
        assert_eq!(first_script(&folder), Some("index.php".to_owned()));
        fs::remove_dir_all(folder).unwrap();
    }
}
