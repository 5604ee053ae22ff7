//! Functions for a server that is a single process, without master, bundle and reload: daemonizing,
//! changing the user, the pid file, and the signals that end the process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, poll};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit,
};

use crate::confinement::{self, Confinement, Enforcement};
use crate::daemon;
use crate::identity::{self, Identity};
use crate::pid_file::{self, PidFile};
use crate::signals::Signals;

/// Ends this process and continues in its child. The error is the failed call.
///
/// Must be called while the process has one thread.
pub fn to_background() -> Result<(), String> {
    daemon::daemonize()
}

/// Changes the process permanently to this user, if there is a user, and confines it. The error is
/// the failed call.
///
/// Must be called while the process has one thread.
pub fn confine_process(
    identity: Option<&Identity>,
    confinement: &Confinement,
) -> Result<Enforcement, String> {
    confinement::confine(confinement, || identity.map_or(Ok(()), Identity::assume))
}

/// Raises the limit of open files to `wanted` or, if that is `None`, as far as the system allows.
/// The error is the failed call.
pub fn raise_open_files(wanted: Option<u64>) -> Result<(), String> {
    identity::raise_open_files(wanted)
}

/// Locks all present and future memory of the process, so that none of it is swapped out. For
/// another user than root this requires an unlimited RLIMIT_MEMLOCK: with a limit, later
/// allocations could fail. The error is the failed call or the limit.
///
/// Must be called before the process becomes another user.
pub fn lock_memory() -> Result<(), String> {
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    if crate::identity::is_superuser() {
        setrlimit(Resource::Memlock, unlimited)
            .map_err(|error| crate::log::failure("setrlimit(RLIMIT_MEMLOCK)", &error.into()))?;
    } else if let Some(limit) = getrlimit(Resource::Memlock).current {
        return Err(format!(
            "the limit of locked memory is {limit} bytes (ulimit -l)"
        ));
    }
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)
        .map_err(|error| crate::log::failure("mlockall()", &error.into()))
}

/// Raises the size limit of core files as far as the system allows. The error is the failed call.
///
/// Must be called before the process changes its user. Call [`keep_dumpable`] after the change.
pub fn allow_core_files() -> Result<(), String> {
    let failed =
        |error: rustix::io::Errno| crate::log::failure("setrlimit(RLIMIT_CORE)", &error.into());
    let maximum = getrlimit(Resource::Core).maximum;
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    let current = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Core, unlimited)
        .or_else(|_| setrlimit(Resource::Core, current))
        .map_err(failed)
}

/// Lets the kernel write core files although the process has changed its user. The error is the
/// failed call.
pub fn keep_dumpable() -> Result<(), String> {
    set_dumpable_behavior(DumpableBehavior::Dumpable)
        .map_err(|error| crate::log::failure("prctl(PR_SET_DUMPABLE)", &error.into()))
}

/// A pid file, which is removed when the value is dropped.
#[derive(Debug)]
pub struct WrittenPidFile(PidFile);

impl WrittenPidFile {
    /// Writes the pid file. The error is the line for the log: the file names a running process, or
    /// cannot be written.
    pub fn create(path: &Path) -> Result<WrittenPidFile, String> {
        pid_file::check(path)?;
        PidFile::create(path).map(WrittenPidFile)
    }
}

impl Drop for WrittenPidFile {
    fn drop(&mut self) {
        // A process that has changed its user may not be permitted to remove the file. The next
        // start notices that the process has ended.
        let _ = self.0.remove();
    }
}

/// Requests to end the process: SIGINT, SIGTERM, SIGUSR1 and SIGHUP (to read files again), which
/// have no effect of their own while this value exists, and requests of the process's threads.
#[derive(Debug)]
pub struct ExitRequests {
    signals: Signals,
    asked: Arc<ThreadExitRequest>,
}

/// A request of a thread to end the process, which does not depend on signals.
#[derive(Debug)]
struct ThreadExitRequest {
    ending: Mutex<Option<ProcessEnd>>,
    wake: OwnedFd,
}

/// Lets any thread end the process.
#[derive(Clone, Debug)]
pub struct ExitHandle(Arc<ThreadExitRequest>);

impl ExitHandle {
    /// Requests the main thread to end the process in this way.
    pub fn end(&self, ending: ProcessEnd) {
        *self.0.ending.lock().unwrap_or_else(PoisonError::into_inner) = Some(ending);
        // Only a full counter refuses a write, and a full counter is readable anyway.
        let _ = rustix::io::write(&self.0.wake, &1_u64.to_ne_bytes());
    }
}

/// How the process is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEnd {
    /// SIGINT or SIGTERM: the process ends at once.
    Now,
    /// SIGUSR1: the process ends when clients have left.
    Graceful,
}

/// An order that a signal has given the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalMeaning {
    /// The process is to end.
    End(ProcessEnd),
    /// SIGHUP: files are to be read again.
    ReadAgain,
}

impl ExitRequests {
    /// Blocks the signals. Must be called while the process has one thread.
    ///
    /// # Errors
    /// Those of `signalfd()` and `eventfd()`.
    pub fn take() -> io::Result<ExitRequests> {
        let numbers = [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGHUP];
        let signals = Signals::block(&numbers)?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let ending = Mutex::default();
        Ok(ExitRequests {
            signals,
            asked: Arc::new(ThreadExitRequest { ending, wake }),
        })
    }

    /// A handle for threads that may end the process.
    pub fn ender(&self) -> ExitHandle {
        ExitHandle(Arc::clone(&self.asked))
    }

    /// Waits for a request or a signal, at most this long. `None` if neither has come.
    pub fn wait(&self, at_most: Duration) -> Option<SignalMeaning> {
        let ExitRequests { signals, asked } = self;
        let mut descriptors = [signals.as_fd(), asked.wake.as_fd()]
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        let timeout = Timespec {
            tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(at_most.subsec_nanos()),
        };
        // An interrupted wait counts as a short wait.
        let _ = poll(&mut descriptors, Some(&timeout));
        let _ = rustix::io::read(&asked.wake, &mut [0_u8; 8]);
        let ending = asked
            .ending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(ending) = ending {
            return Some(SignalMeaning::End(ending));
        }
        while let Some(received) = signals.next() {
            match received.number {
                libc::SIGINT | libc::SIGTERM => return Some(SignalMeaning::End(ProcessEnd::Now)),
                libc::SIGHUP => return Some(SignalMeaning::ReadAgain),
                libc::SIGUSR1 => return Some(SignalMeaning::End(ProcessEnd::Graceful)),
                _ => {}
            }
        }
        None
    }
}
