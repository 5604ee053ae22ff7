//! Finds out what the process is that a pid file names, and signals that process and no other.
//!
//! The number alone does not identify a process: another server may have written the file, or the
//! process may have ended and its number may have been assigned again. So a pidfd is opened
//! (pidfd_open(2)) before the process is examined, and the signal is sent through the pidfd: it
//! reaches the examined process or, if that has ended, no process.
//!
//! A process is a master of Tidegate if it runs this program's file or has the name that the
//! program gives itself, and has blocked every signal that a master reads. A master fulfils this
//! even if its file was replaced by a newer version or has another name. Worker processes and other
//! commands of this program do not.

use std::fmt::{self, Display};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::log::PROGRAM;
use crate::signals::{self, Signals};
use crate::title;

/// Maximum length of a name or command line in a message, in characters.
const SHOWN_MAX: usize = 60;

/// A running master of Tidegate.
#[derive(Debug)]
pub(crate) struct RunningMaster {
    pid: Pid,
    /// The pidfd; `None` if the kernel has none, or a system call filter forbids the call.
    handle: Option<OwnedFd>,
}

/// Why a process is not signalled.
#[derive(Debug)]
pub(crate) enum RunningError {
    /// There is no process with that number, or it has no pidfd.
    NoProcess(io::Error),
    /// `/proc` does not tell what the process is.
    Unknown(io::Error),
    /// The process runs another program, which has this name in `/proc`.
    Foreign(String),
    /// The process is a worker process; with its master, if known.
    Worker(Option<Pid>),
    /// The process runs this program, but is not a server; with its command line.
    Command(String),
}

impl Display for RunningError {
    /// The text that follows the number of the process in a message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunningError::NoProcess(error) => write!(f, "cannot be held: {error}"),
            RunningError::Unknown(error) => write!(f, "cannot be recognised: {error}"),
            RunningError::Foreign(name) => write!(f, "is \"{name}\" and not Tidegate"),
            RunningError::Worker(Some(master)) => {
                write!(
                    f,
                    "is a worker process of Tidegate, whose master is {master}"
                )
            }
            RunningError::Worker(None) => f.write_str("is a worker process of Tidegate"),
            RunningError::Command(line) => write!(f, "is \"{line}\", which is not a server"),
        }
    }
}

impl RunningMaster {
    /// The process with this number, if it is a master of Tidegate.
    pub(crate) fn find(pid: Pid) -> Result<RunningMaster, RunningError> {
        let handle = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => Some(handle),
            Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS) => None,
            Err(error) => return Err(RunningError::NoProcess(error.into())),
        };
        match recognise(pid) {
            Ok(()) => Ok(RunningMaster { pid, handle }),
            // The process may have ended while it was examined.
            Err(RunningError::Unknown(error)) if error.kind() == io::ErrorKind::NotFound => {
                Err(match rustix::process::test_kill_process(pid) {
                    Err(Errno::SRCH) => RunningError::NoProcess(Errno::SRCH.into()),
                    _ => RunningError::Unknown(error),
                })
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Sends the master a signal with a value.
    pub(crate) fn signal(&self, number: i32, value: i32) -> io::Result<()> {
        match &self.handle {
            Some(handle) => signals::send_to(handle, number, value),
            None => signals::send(self.pid, number, value),
        }
    }
}

/// Checks in `/proc` whether a process is a master of Tidegate.
fn recognise(pid: Pid) -> Result<(), RunningError> {
    let own = fs::read_link("/proc/self").map_err(RunningError::Unknown)?;
    if own != Path::new(&std::process::id().to_string()) {
        let text = "/proc is that of another pid namespace";
        return Err(RunningError::Unknown(io::Error::other(text)));
    }
    let status = Status::read(pid).map_err(RunningError::Unknown)?;
    if status.has_ended {
        return Err(RunningError::NoProcess(Errno::SRCH.into()));
    }
    let is_nginx_by_name = status.name == title::NGINX;
    let has_our_file = has_our_file(pid);
    if status.name != PROGRAM && !is_nginx_by_name && !has_our_file {
        return Err(RunningError::Foreign(printable(&status.name)));
    }
    let line = fs::read(format!("/proc/{pid}/cmdline")).map_err(RunningError::Unknown)?;
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    let words = words.strip_suffix(&[&b""[..]]).unwrap_or(&words);
    // A process with nginx's name may be nginx, which blocks no signal while it waits for one.
    let is_master = Signals::are_blocked(signals::MASTER, status.blocked);
    if is_nginx_by_name && !has_our_file && !is_master {
        return Err(RunningError::Foreign(printable(&status.name)));
    }
    let is_worker = |program| words == [title::title(program, title::WORKER).as_bytes()];
    if is_worker(PROGRAM) || is_worker(title::NGINX) {
        return Err(RunningError::Worker(status.parent));
    }
    if !is_master {
        let line = String::from_utf8_lossy(&words.join(&b' ')).into_owned();
        return Err(RunningError::Command(printable(&line)));
    }
    Ok(())
}

/// Whether a process runs the same file as this process. False also if neither root nor the user of
/// that process asks.
fn has_our_file(pid: Pid) -> bool {
    let identity = |path: &str| {
        let found = fs::metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    let ours = identity("/proc/self/exe");
    ours.is_some() && identity(&format!("/proc/{pid}/exe")) == ours
}

/// Fields of proc_pid_status(5).
struct Status {
    name: String,
    has_ended: bool,
    parent: Option<Pid>,
    /// The signals that the main thread of the process has blocked: signal N is bit N - 1.
    blocked: u64,
}

impl Status {
    fn read(pid: Pid) -> io::Result<Status> {
        let text = fs::read(format!("/proc/{pid}/status"))?;
        let text = String::from_utf8_lossy(&text);
        // The kernel escapes line feeds in the name.
        let field = |name: &str| {
            let of_name = |line: &'_ str| -> Option<String> {
                let value = line.strip_prefix(name)?.strip_prefix(":\t")?;
                Some(value.to_owned())
            };
            text.lines().find_map(of_name).unwrap_or_default()
        };
        Ok(Status {
            name: field("Name"),
            has_ended: field("State").starts_with(['Z', 'X']),
            parent: field("PPid").parse().ok().and_then(Pid::from_raw),
            blocked: u64::from_str_radix(&field("SigBlk"), 16).unwrap_or(0),
        })
    }
}

/// Makes the name or command line of another process fit for a line of the log.
fn printable(text: &str) -> String {
    let mut shown: String = text
        .chars()
        .take(SHOWN_MAX)
        .map(|one| {
            if one.is_control() || one == '"' {
                '?'
            } else {
                one
            }
        })
        .collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn pid(child: &Child) -> Pid {
        Pid::from_child(child)
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn another_program_is_named() {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        // Until execve(2) has given the child another name, the child still counts as this program.
        let comm = format!("/proc/{}/comm", child.id());
        while fs::read_to_string(&comm).unwrap() != "sleep\n" {
            std::thread::yield_now();
        }
        let refusal = RunningMaster::find(pid(&child)).unwrap_err();
        assert_eq!(refusal.to_string(), "is \"sleep\" and not Tidegate");
        end(child);
    }

    #[test]
    fn this_program_is_no_server_unless_its_signals_are_blocked() {
        let me = rustix::process::getpid();
        let refusal = RunningMaster::find(me).unwrap_err();
        let RunningError::Command(line) = &refusal else {
            panic!("{refusal:?}");
        };
        assert!(!line.is_empty());
    }

    #[test]
    fn a_process_that_has_ended_is_none() {
        let mut child = Command::new("true").spawn().unwrap();
        let ended = pid(&child);
        // The killed child still exists as a zombie, but does not count as a process.
        let refusal = loop {
            match RunningMaster::find(ended).unwrap_err() {
                RunningError::NoProcess(error) => break error,
                _ => std::thread::yield_now(),
            }
        };
        assert_eq!(refusal.raw_os_error(), Some(libc::ESRCH));
        child.wait().unwrap();
        let refusal = RunningMaster::find(ended).unwrap_err();
        assert!(matches!(&refusal, RunningError::NoProcess(error)
            if error.raw_os_error() == Some(libc::ESRCH)));
    }

    #[test]
    fn names_cannot_break_a_line() {
        assert_eq!(printable("a\nb\"c"), "a?b?c");
        assert_eq!(printable(&"x".repeat(80)).chars().count(), SHOWN_MAX + 1);
    }
}
