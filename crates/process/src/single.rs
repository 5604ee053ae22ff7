//! A server of one process, without master, bundle or reload: going to the background, another
//! user, a pid file, and the signals that end it.

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::daemon;
use crate::identity::{self, Identity};
use crate::pid_file::{self, PidFile};
use crate::signals::Signals;

/// Lets this process end and goes on in a child of it. The error is the call that failed.
///
/// Must be called while the process has one thread.
pub fn to_background() -> Result<(), String> {
    daemon::daemonize()
}

/// Runs as this user for good. The error is the call that failed.
pub fn become_user(identity: &Identity) -> Result<(), String> {
    identity.assume()
}

/// Allows so many open files, or as many as the system lets it have. The error is the call that
/// failed.
pub fn raise_open_files(wanted: Option<u64>) -> Result<(), String> {
    identity::raise_open_files(wanted)
}

/// A pid file, which is removed with this.
#[derive(Debug)]
pub struct WrittenPidFile(PidFile);

impl WrittenPidFile {
    /// Writes it. The error says why not: it may name a process that lives.
    pub fn create(path: &Path) -> Result<WrittenPidFile, String> {
        pid_file::check(path)?;
        PidFile::create(path).map(WrittenPidFile)
    }
}

impl Drop for WrittenPidFile {
    fn drop(&mut self) {
        // Who may write it may not be who may remove it; a next start knows that its process is
        // gone.
        let _ = self.0.remove();
    }
}

/// SIGINT, SIGTERM and SIGUSR1, which do nothing by themselves while this lives, and SIGHUP, which
/// does nothing at all.
#[derive(Debug)]
pub struct Endings(Signals);

/// How the process is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEnd {
    /// SIGINT or SIGTERM: the process ends at once.
    Now,
    /// SIGUSR1: the process ends when clients have left.
    Graceful,
}

impl Endings {
    /// Takes the signals. Must be called while the process has one thread.
    ///
    /// # Errors
    /// Those of `signalfd()`.
    pub fn take() -> io::Result<Endings> {
        let numbers = [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGHUP];
        Signals::block(&numbers).map(Endings)
    }

    /// Waits for one, but not for longer than this.
    pub fn wait(&self, at_most: Duration) -> Option<ProcessEnd> {
        let mut descriptors = [PollFd::new(&self.0, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(at_most.subsec_nanos()),
        };
        // An interruption is a wait that was short.
        let _ = poll(&mut descriptors, Some(&timeout));
        while let Some(received) = self.0.next() {
            match received.number {
                libc::SIGINT | libc::SIGTERM => return Some(ProcessEnd::Now),
                libc::SIGUSR1 => return Some(ProcessEnd::Graceful),
                _ => {}
            }
        }
        None
    }
}
