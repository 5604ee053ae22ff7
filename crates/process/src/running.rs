//! A process that a pid file names: what it is, and how to signal it and nothing else.
//!
//! A number says nothing of what it belongs to: another server may have written the file, or its
//! process may have ended and the number been given away. So a process is held (pidfd_open(2))
//! before it is looked at, and signalled through what is held: while that lives its number means no
//! other process, and once it has ended the signal goes nowhere.
//!
//! A master of Tidegate is known by what makes it one: it is this program, by its file or by the
//! name that it gives itself, and it has every signal blocked that it reads. That holds when the
//! file was replaced by a newer version or has another name, and is true neither of a worker
//! process nor of another command of this program.

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

/// How much of a command line is shown, in characters.
const SHOWN_MAX: usize = 60;

/// A master of Tidegate that runs.
#[derive(Debug)]
pub(crate) struct RunningMaster {
    pid: Pid,
    /// What holds the process; none where the kernel or a filter of system calls has no such thing.
    handle: Option<OwnedFd>,
}

/// Why a process is not signalled.
#[derive(Debug)]
pub(crate) enum RunningError {
    /// There is none of that number, or it cannot be held.
    NoProcess(io::Error),
    /// It cannot be told what it is.
    Unknown(io::Error),
    /// Another program; the name that it has in `/proc`.
    Foreign(String),
    /// A worker process, with its master.
    Worker(Option<Pid>),
    /// This program, with a command line that is not a server's.
    Command(String),
}

impl Display for RunningError {
    /// What the process is, to follow its number.
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
    /// Holds the process of a number, if it is a master of Tidegate.
    pub(crate) fn find(pid: Pid) -> Result<RunningMaster, RunningError> {
        let handle = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => Some(handle),
            Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS) => None,
            Err(error) => return Err(RunningError::NoProcess(error.into())),
        };
        match recognise(pid) {
            Ok(()) => Ok(RunningMaster { pid, handle }),
            // It has ended while it was looked at.
            Err(RunningError::Unknown(error)) if error.kind() == io::ErrorKind::NotFound => {
                Err(match rustix::process::test_kill_process(pid) {
                    Err(Errno::SRCH) => RunningError::NoProcess(Errno::SRCH.into()),
                    _ => RunningError::Unknown(error),
                })
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Sends it a signal with a value.
    pub(crate) fn signal(&self, number: i32, value: i32) -> io::Result<()> {
        match &self.handle {
            Some(handle) => signals::send_to(handle, number, value),
            None => signals::send(self.pid, number, value),
        }
    }
}

/// Whether a process is a master of Tidegate, as far as `/proc` tells.
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
    // Under nginx's name may stand nginx, which has no signal blocked while it waits for one.
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

/// Whether a process runs the very file that this one does. Only its user and root may see that.
fn has_our_file(pid: Pid) -> bool {
    let identity = |path: &str| {
        let found = fs::metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    let ours = identity("/proc/self/exe");
    ours.is_some() && identity(&format!("/proc/{pid}/exe")) == ours
}

/// What proc_pid_status(5) says of a process.
struct Status {
    name: String,
    has_ended: bool,
    parent: Option<Pid>,
    /// The signals that its main thread has blocked, as a bit each.
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

/// A text of another process's, for one line of a log.
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
        // Before execve(2) has given the child its name the child still is this program.
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
        // Not waited for, it is there still, and yet no process any more.
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
