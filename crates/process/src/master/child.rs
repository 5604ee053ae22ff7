//! A worker in the master's view: a process, or a thread of the master.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::application::Application;
use crate::control::{self, Command, MasterEnd};
use crate::environment;
use crate::title;
use crate::worker;

/// Time limit for a worker to compile its first bundle.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// The purpose of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Compiles the generation in force, to serve with it.
    Starting,
    /// Compiles a reload's generation, in a new process.
    Candidate,
    /// Serves with the generation in force.
    Serving,
    /// Has been told to end, and completes its requests.
    Leaving,
}

/// A worker process, or a worker thread of the master.
pub(super) struct Child {
    pub(super) id: u64,
    /// `None` for a thread.
    pub(super) pid: Option<Pid>,
    /// `None` once the other end is closed.
    pub(super) control: Option<MasterEnd>,
    pub(super) role: Role,
    /// The last generation that the master told the worker to serve with.
    pub(super) generation: Option<u64>,
    pub(super) started: Instant,
}

impl Child {
    /// Starts a process: this program again, with the control channel as its standard input. For
    /// `environment` see [`MasterSettings::environment`].
    ///
    /// [`MasterSettings::environment`]: crate::MasterSettings::environment
    pub(super) fn process(role: Role, environment: &[String]) -> io::Result<Child> {
        let (control, theirs) = control::pair()?;
        let mut command = std::process::Command::new("/proc/self/exe");
        environment::give(&mut command, environment);
        command
            .arg0(title::title(title::program_name(), title::WORKER))
            .stdin(Stdio::from(theirs));
        let process = command.spawn()?;
        Ok(Child::new(Some(Pid::from_child(&process)), control, role))
    }

    /// Starts a thread of this process.
    pub(super) fn thread(role: Role, application: &'static dyn Application) -> io::Result<Child> {
        let (control, theirs) = control::pair()?;
        let body = move || worker::run_in_thread(application, theirs);
        std::thread::Builder::new()
            .name("worker".to_owned())
            .spawn(body)?;
        Ok(Child::new(None, control, role))
    }

    fn new(pid: Option<Pid>, control: MasterEnd, role: Role) -> Child {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Child {
            id,
            pid,
            control: Some(control),
            role,
            generation: None,
            started: Instant::now(),
        }
    }

    /// Sends a command to the worker.
    pub(super) fn send(&mut self, command: Command<Rc<OwnedFd>>) {
        if let Some(control) = &mut self.control {
            control.send(command);
        }
    }

    /// Tells the worker to serve with the generation that it has prepared.
    pub(super) fn serve_by(&mut self, generation: u64) {
        self.role = Role::Serving;
        self.generation = Some(generation);
        self.send(Command::Commit { generation });
    }

    /// Tells the worker to end, by this command.
    pub(super) fn end(&mut self, command: Command<Rc<OwnedFd>>) {
        self.role = Role::Leaving;
        self.send(command);
    }

    /// Signals a process; a thread cannot be signalled.
    pub(super) fn kill(&self, signal: Signal) {
        if let Some(pid) = self.pid {
            // The process may have ended already.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// The deadline by which a starting worker must be ready.
    pub(super) fn ready_deadline(&self) -> Option<Instant> {
        (self.role == Role::Starting).then(|| self.started + READY_LIMIT)
    }

    pub(super) fn name(&self) -> String {
        match self.pid {
            Some(pid) => format!("worker process {pid}"),
            None => "worker thread".to_owned(),
        }
    }
}
