//! A server of one process, without master, bundle or reload: going to the background, another
//! user, a pid file, and the signals that end it.

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

/// Lets this process end and goes on in a child of it. The error is the call that failed.
///
/// Must be called while the process has one thread.
pub fn to_background() -> Result<(), String> {
    daemon::daemonize()
}

/// Runs as this user for good, if one is given, and confined. The error is the call that failed.
///
/// Must be called while the process has one thread.
pub fn confine_process(
    identity: Option<&Identity>,
    confinement: &Confinement,
) -> Result<Enforcement, String> {
    confinement::confine(confinement, || identity.map_or(Ok(()), Identity::assume))
}

/// Allows so many open files, or as many as the system lets it have. The error is the call that
/// failed.
pub fn raise_open_files(wanted: Option<u64>) -> Result<(), String> {
    identity::raise_open_files(wanted)
}

/// Locks all memory that the process has and will have, so that none is swapped out. The superuser
/// may always lock; anybody else only where the limit of locked memory is off, since memory beyond
/// it could not be had any more. The error is what stands against it.
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

/// Lets a core file be as large as the system allows. The error is the call that failed.
///
/// Must be called before the process becomes another user; [`keep_dumpable`] afterwards.
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

/// A process that has become another user leaves core files all the same. The error is the call
/// that failed.
pub fn keep_dumpable() -> Result<(), String> {
    set_dumpable_behavior(DumpableBehavior::Dumpable)
        .map_err(|error| crate::log::failure("prctl(PR_SET_DUMPABLE)", &error.into()))
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

/// SIGINT, SIGTERM, SIGUSR1 and SIGHUP, which do nothing by themselves while this lives; and what
/// threads of the process ask for.
#[derive(Debug)]
pub struct ExitRequests {
    signals: Signals,
    asked: Arc<ThreadExitRequest>,
}

/// What threads have asked for: a confined process cannot send itself a signal.
#[derive(Debug)]
struct ThreadExitRequest {
    ending: Mutex<Option<ProcessEnd>>,
    wake: OwnedFd,
}

/// Ends the process from any of its threads.
#[derive(Clone, Debug)]
pub struct ExitHandle(Arc<ThreadExitRequest>);

impl ExitHandle {
    /// Has the main thread end the process in this way.
    pub fn end(&self, ending: ProcessEnd) {
        *self.0.ending.lock().unwrap_or_else(PoisonError::into_inner) = Some(ending);
        // Only a counter that is full refuses, and that one wakes all the same.
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
    /// Takes the signals. Must be called while the process has one thread.
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

    /// For threads that end the process.
    pub fn ender(&self) -> ExitHandle {
        ExitHandle(Arc::clone(&self.asked))
    }

    /// Waits for one, but not for longer than this.
    pub fn wait(&self, at_most: Duration) -> Option<SignalMeaning> {
        let ExitRequests { signals, asked } = self;
        let mut descriptors = [signals.as_fd(), asked.wake.as_fd()]
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        let timeout = Timespec {
            tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(at_most.subsec_nanos()),
        };
        // An interruption is a wait that was short.
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
