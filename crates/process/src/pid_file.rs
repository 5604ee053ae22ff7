//! The pid file: tells scripts and `-s` which process is the master.
//!
//! If the pid file names a running process, the program refuses to start: the file belongs to
//! another program, or the server runs already. A file that a crash has left behind does not
//! prevent a start, even if a younger process has its number now.

use std::fmt::{self, Display};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::process::Pid;

use crate::log::failure;
use crate::predecessor::Predecessor;
use crate::probe;

/// Maximum number of bytes that are read from a pid file: nginx's limit for a number and a line
/// feed.
const SIZE_MAX: u64 = 22;

/// A process may appear to be this much younger than the pid file that it wrote: the kernel counts
/// start times in ticks, and the clock may have been set.
const AGE_TOLERANCE: Duration = Duration::from_secs(2);

/// nginx's suffix for the pid file of the older program during an upgrade.
const OLD_SUFFIX: &str = ".oldbin";

/// A pid file that this process has written. Only [`PidFile::remove`] removes it.
#[derive(Debug)]
pub(crate) struct PidFile {
    /// Where the configuration has it.
    path: PathBuf,
    /// Whether the file was renamed to the name with [`OLD_SUFFIX`].
    is_aside: bool,
}

/// Why no process number could be read from a pid file.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The file cannot be read.
    Io(PathBuf, io::Error),
    /// The file contains something other than a number.
    Invalid(PathBuf, String),
}

impl ReadError {
    /// Whether the file does not exist.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, ReadError::Io(_, error) if error.kind() == std::io::ErrorKind::NotFound)
    }
}

impl Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Io(path, error) => f.write_str(&failure(
                &format!("open() \"{}\" failed", path.display()),
                error,
            )),
            ReadError::Invalid(path, text) => {
                write!(f, "invalid PID number \"{text}\" in \"{}\"", path.display())
            }
        }
    }
}

/// The process that a pid file names.
pub(crate) fn read(path: &Path) -> Result<Pid, ReadError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(SIZE_MAX).read_to_end(&mut bytes))
        .map_err(|error| ReadError::Io(path.to_owned(), error))?;
    let text = String::from_utf8_lossy(&bytes);
    let number = text.trim_end_matches(['\r', '\n']);
    // `parse` alone would accept a sign.
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    digits
        .then(|| number.parse().ok().and_then(Pid::from_raw))
        .flatten()
        .ok_or_else(|| ReadError::Invalid(path.to_owned(), number.to_owned()))
}

/// Checks that the pid file that this process is about to write names no other running process.
/// Exception: a server that completes its last requests, which is returned. The error is the line
/// for the log.
pub(crate) fn check(path: &Path) -> Result<Option<Predecessor>, String> {
    let Ok(pid) = read(path) else {
        return Ok(None);
    };
    if pid == rustix::process::getpid() || !is_alive(pid) {
        return Ok(None);
    }
    let written = fs::metadata(path)
        .and_then(|metadata| metadata.modified())
        .ok();
    // A process that is younger than the file did not write the file: the number was assigned
    // again.
    if let (Some(written), Some(started)) = (written, start_time(pid))
        && started > written + AGE_TOLERANCE
    {
        return Ok(None);
    }
    if let Some(predecessor) = Predecessor::find(pid) {
        return Ok(Some(predecessor));
    }
    let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Err(format!(
        "pid file \"{}\" names process {pid} ({}), which is running",
        path.display(),
        program.trim_end()
    ))
}

/// Checks for `-t` whether the pid file could be written, without creating it.
pub(crate) fn probe(path: &Path) -> Result<(), String> {
    probe::pid_file(path).map_err(|error| open_failed(path, &error))
}

impl PidFile {
    /// Writes the number of this process; the error is the line for the log.
    ///
    /// A script that waits for the file to appear reads it at once. So the file is written under
    /// another name and then renamed. If the folder does not permit that, the file is written in
    /// place.
    pub(crate) fn create(path: &Path) -> Result<PidFile, String> {
        put(path)?;
        let path = path.to_owned();
        Ok(PidFile {
            path,
            is_aside: false,
        })
    }

    /// Where the configuration has it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the file to the name with [`OLD_SUFFIX`], before a new program writes its own pid
    /// file. The error is the line for the log.
    pub(crate) fn set_aside(&mut self) -> Result<(), String> {
        match read(&self.path) {
            Ok(named) if named != rustix::process::getpid() => Err(format!(
                "pid file \"{}\" names process {named}, and not this one",
                self.path.display()
            )),
            _ => self.rename(true),
        }
    }

    /// Restores the name of the file after the new program has ended (`ended`) or could not be
    /// started. Does nothing if the pid file names a third program, which has taken over from the
    /// new program. The error is the line for the log.
    pub(crate) fn take_back(&mut self, ended: Option<Pid>) -> Result<(), String> {
        let me = rustix::process::getpid();
        let is_free = match read(&self.path) {
            Ok(named) => named == me || Some(named) == ended,
            Err(_) => true,
        };
        if !self.is_aside || !is_free {
            return Ok(());
        }
        if read(&self.file()).is_ok_and(|named| named == me) {
            return self.rename(false);
        }
        self.is_aside = false;
        put(&self.path)
    }

    fn rename(&mut self, is_aside: bool) -> Result<(), String> {
        let from = self.file();
        let before = std::mem::replace(&mut self.is_aside, is_aside);
        let to = self.file();
        fs::rename(&from, &to).map_err(|error| {
            self.is_aside = before;
            let call = format!("rename() {} to {} failed", from.display(), to.display());
            failure(&call, &error)
        })
    }

    /// Writes the file again if another process has removed it. The error is the line for the log.
    pub(crate) fn keep(&self) -> Result<(), String> {
        if self.file().exists() {
            return Ok(());
        }
        put(&self.file())
    }

    /// Removes the file, unless it names another process by now. The error is the line for the log.
    pub(crate) fn remove(&self) -> Result<(), String> {
        let path = self.file();
        let is_anothers = match read(&path) {
            Ok(pid) => pid != rustix::process::getpid(),
            // The new program was upgraded in turn, so that its file had the name with the suffix,
            // and has removed the file.
            Err(error) => self.is_aside && error.is_missing(),
        };
        if is_anothers {
            return Ok(());
        }
        fs::remove_file(&path)
            .map_err(|error| failure(&format!("unlink() \"{}\" failed", path.display()), &error))
    }

    /// The current path of the file.
    fn file(&self) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        if self.is_aside {
            name.push(OLD_SUFFIX);
        }
        name.into()
    }
}

/// Makes a file with the number of this process appear at `path` with its content, or else writes
/// it in place. The error is the line for the log.
fn put(path: &Path) -> Result<(), String> {
    let mut other_name = path.as_os_str().to_owned();
    other_name.push(format!(".{}", std::process::id()));
    let other_name = PathBuf::from(other_name);
    let renamed = write(&other_name).and_then(|()| fs::rename(&other_name, path));
    if renamed.is_err() {
        let _ = fs::remove_file(&other_name);
        write(path).map_err(|error| open_failed(path, &error))?;
    }
    Ok(())
}

/// Writes the number of this process into a file.
fn write(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o644);
    let mut file = options.open(path)?;
    file.write_all(format!("{}\n", std::process::id()).as_bytes())
}

fn open_failed(path: &Path, error: &io::Error) -> String {
    failure(&format!("open() \"{}\" failed", path.display()), error)
}

/// Whether a process runs. True for a process that this user may not signal, false for a zombie.
fn is_alive(pid: Pid) -> bool {
    let exists = !matches!(
        rustix::process::test_kill_process(pid),
        Err(rustix::io::Errno::SRCH)
    );
    let state = stat_fields(pid).and_then(|fields| fields.into_iter().next());
    exists && state.is_none_or(|state| state != "Z")
}

/// The fields of proc_pid_stat(5) from the third, the state, onwards. The second field, the name in
/// brackets, may contain spaces and brackets.
pub(crate) fn stat_fields(pid: Pid) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// The time at which a process started, from proc_pid_stat(5) and the time of the boot.
fn start_time(pid: Pid) -> Option<SystemTime> {
    // Field 22 in the manual, which counts from 1.
    let ticks: u64 = stat_fields(pid)?.get(19)?.parse().ok()?;
    let boot = fs::read_to_string("/proc/stat").ok()?;
    let boot = boot.lines().find_map(|line| line.strip_prefix("btime "))?;
    let per_second = rustix::param::clock_ticks_per_second();
    let seconds = boot
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_add(ticks.checked_div(per_second)?)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn file(name: &str, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn only_a_number_is_a_process() {
        let path = file("pid-number", "4711\r\n");
        assert_eq!(read(&path).unwrap().as_raw_pid(), 4711);
        for (text, shown) in [
            ("", ""),
            ("foo\n", "foo"),
            ("+1", "+1"),
            ("0", "0"),
            ("-1", "-1"),
        ] {
            fs::write(&path, text).unwrap();
            let expected = format!("invalid PID number \"{shown}\" in \"{}\"", path.display());
            assert_eq!(read(&path).unwrap_err().to_string(), expected);
        }
        fs::remove_file(&path).unwrap();
        let missing = read(&path).unwrap_err().to_string();
        assert!(
            missing.ends_with("failed (2: No such file or directory)"),
            "{missing}"
        );
    }

    #[test]
    fn it_appears_with_its_content() {
        let path = file("pid-create", "old");
        let written = PidFile::create(&path).unwrap();
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            format!("{}\n", std::process::id())
        );
        written.remove().unwrap();
        assert!(!path.exists());
        let error = PidFile::create(Path::new("/nonexistent-folder/pid")).unwrap_err();
        assert_eq!(
            error,
            "open() \"/nonexistent-folder/pid\" failed (2: No such file or directory)"
        );
    }

    #[test]
    fn it_is_put_aside_and_taken_back_unless_another_has_its_place() {
        let path = file("pid-aside", "");
        let aside = path.with_file_name(format!(
            "{}{OLD_SUFFIX}",
            path.file_name().unwrap().to_string_lossy()
        ));
        let ours = format!("{}\n", std::process::id());
        let ended = Pid::from_raw(4711);
        // The pid files that the new program has left behind, and what is left of this program's.
        for (place, left, is_ours) in [
            (None, true, true),
            (Some("4711\n"), true, true),
            (Some(""), true, true),
            (Some("4711\n"), false, true),
            (Some("4712\n"), true, false),
        ] {
            let mut written = PidFile::create(&path).unwrap();
            written.set_aside().unwrap();
            assert!(!path.exists() && aside.exists());
            if let Some(text) = place {
                fs::write(&path, text).unwrap();
            }
            if !left {
                fs::remove_file(&aside).unwrap();
            }
            written.take_back(ended).unwrap();
            let found = fs::read_to_string(&path).unwrap();
            assert_eq!(found == ours, is_ours, "{place:?}: {found}");
            assert_eq!(aside.exists(), !is_ours);
            written.remove().unwrap();
            assert_eq!(path.exists(), !is_ours);
            assert!(!aside.exists());
        }
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_live_process_is_respected_and_a_dead_one_is_not() {
        let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
        let path = file("pid-live", &format!("{}\n", sleeper.id()));
        let refused = check(&path).unwrap_err();
        assert!(refused.contains("(sleep), which is running"), "{refused}");

        // A file that is older than the process was left over by another process with the same
        // number.
        let old = SystemTime::now() - Duration::from_secs(3600);
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(old)
            .unwrap();
        assert!(check(&path).unwrap().is_none());

        // A killed process that nobody has waited for (a zombie) does not count as running.
        fs::write(&path, format!("{}\n", sleeper.id())).unwrap();
        assert!(check(&path).is_err());
        sleeper.kill().unwrap();
        let begin = std::time::Instant::now();
        while check(&path).is_err() {
            assert!(begin.elapsed() < Duration::from_secs(10));
            std::thread::yield_now();
        }
        sleeper.wait().unwrap();
        fs::write(&path, format!("{}\n", sleeper.id())).unwrap();
        assert!(check(&path).unwrap().is_none());
        fs::write(&path, format!("{}\n", std::process::id())).unwrap();
        assert!(check(&path).unwrap().is_none());
        fs::remove_file(&path).unwrap();
        assert!(check(&path).unwrap().is_none());
    }
}
