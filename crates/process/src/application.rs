//! The contract between this crate and the program that serves: [`Application`] says what a
//! configuration needs, [`WorkerProcess`] runs it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use conf::{Diagnostic, Disk, Files, Loaded, Registry};

use crate::bundle::Bundle;
use crate::confinement::Confinement;
use base::syslog;

use crate::log::Level;
use crate::options::Options;
use crate::worker::Events;

/// The program that the master runs: compiles configurations and makes workers.
///
/// The master calls [`examine`](Application::examine), the worker process calls
/// [`worker`](Application::worker); with `master_process off` both happen in one process, on
/// two threads, hence `Sync`.
pub trait Application: Sync {
    /// The first line of the log: name and version.
    fn banner(&self) -> String;

    /// All directives of the program.
    fn registry(&self) -> &Registry;

    /// The files that the master reads: those on disk, unless the program replaces some.
    fn files(&self) -> Box<dyn Files + '_> {
        Box::new(Disk)
    }

    /// Compiles a configuration, and returns what a worker needs for it, or all errors. Runs in the
    /// master at start, with `-t`, and on every reload.
    ///
    /// Must not leave a thread running: the master may fork after it. Files that the worker will
    /// read must be read through `files`, which puts them into the bundle.
    fn examine(
        &self,
        loaded: &Loaded,
        files: &dyn Files,
        options: &Options,
    ) -> Result<RequiredResources, Vec<Diagnostic>>;

    /// The group of a listening socket that another program has handed over, and the file that its
    /// bind created: as in [`NeedKind::Listener`]. `None` if no configuration could need such a
    /// socket.
    fn inherited(&self, _socket: &OwnedFd) -> Option<(String, Option<PathBuf>)> {
        None
    }

    /// Called in the master once its first worker serves. Must not block, because the master does
    /// nothing else meanwhile.
    fn serving(&self) {}

    /// The serving half, made once in a worker process before its first [`WorkerProcess::prepare`].
    fn worker(&self, events: Events) -> Box<dyn WorkerProcess>;
}

/// The serving half, driven by the thread that talks to the master. All calls come from that one
/// thread, one after another.
pub trait WorkerProcess {
    /// Compiles a bundle and keeps the result for [`commit`](WorkerProcess::commit); serving does
    /// not change. The error's lines are logged and printed by `-s reload`.
    ///
    /// The bundle has all descriptors of its configuration, including duplicates of those that this
    /// worker already has.
    fn prepare(&mut self, bundle: Bundle) -> Result<(), String>;

    /// Serves with the generation prepared last. When the last request of the replaced generation
    /// has ended, calls [`Events::generation_finished`].
    fn commit(&mut self);

    /// Whether serving threads use io_uring. Called once, when the first configuration has been
    /// prepared: no thread can start to use io_uring afterwards.
    fn uses_io_uring(&self) -> bool;

    /// Discards the generation prepared last.
    fn abandon(&mut self);

    /// New descriptors of reopened logs, by key: those of the current generation, and of every
    /// replaced one that still has requests. Never called between `prepare` and `commit`. Unknown
    /// keys must be ignored.
    fn reopened(&mut self, logs: HashMap<String, OwnedFd>);

    /// Hands over devices that only this worker process has, by key; the worker uses them from now
    /// on. After an error, whose lines are logged, it serves without the devices.
    fn devices(&mut self, _devices: HashMap<String, OwnedFd>) -> Result<(), String> {
        Ok(())
    }

    /// Records for monitoring that a reload has failed: the generation in force stays. Called after
    /// [`WorkerProcess::abandon`] if a generation had been prepared.
    fn reload_failed(&mut self) {}

    /// Serializes the state for the next worker, which may be another version of the program.
    fn save(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// Restores the state that another worker has saved, for the first configuration. Called before
    /// the first [`prepare`](WorkerProcess::prepare). The state is not trusted.
    fn go_on(&mut self, _state: Vec<u8>) {}

    /// Announces that this worker takes over from the workers at the other ends of these sockets;
    /// the messages on them are up to the program. Called before the first
    /// [`prepare`](WorkerProcess::prepare).
    fn succeed(&mut self, _channels: Vec<OwnedFd>) {}

    /// Announces that the worker at the other end of the socket is about to take over from this
    /// one.
    fn prepare_succession(&mut self, _channel: OwnedFd) {}

    /// Ends gracefully: stops accepting, closes idle connections, waits for requests, writes the
    /// logs, and then calls [`Events::drained`].
    fn quit(&mut self);

    /// Like [`quit`](WorkerProcess::quit), but another program accepts connections from now on:
    /// idle connections may be served once more, so that no request on its way is lost. `quit` may
    /// follow.
    fn drain(&mut self) {
        self.quit();
    }

    /// Ends everything at once and writes the logs; the process exits when this returns.
    fn terminate(&mut self);
}

/// The resources that a configuration needs.
pub struct RequiredResources {
    /// The settings of the master itself.
    pub master: MasterSettings,
    /// Descriptors that the master opens and passes on.
    pub descriptors: Vec<RequiredDescriptor>,
    /// Devices that only one worker process can use.
    pub devices: Vec<Device>,
    /// Directories that must exist before workers start, owned by the workers' user.
    pub directories: Vec<PathBuf>,
    /// Warnings and notices of the compilation.
    pub diagnostics: Vec<Diagnostic>,
    /// The lines whose change requires a new worker process.
    pub new_process_lines: Vec<NewProcessLine>,
}

/// The settings of the master itself.
#[derive(Clone, Debug)]
pub struct MasterSettings {
    /// `daemon`: run in the background.
    pub daemon: bool,
    /// `master_process`: serve in a separate process.
    pub master_process: bool,
    /// The pid file (`pid`), absolute or below the prefix.
    pub pid: PathBuf,
    /// `user`: the identity of the worker process; `None` if the master has no privilege to change
    /// it.
    pub identity: Option<crate::identity::Identity>,
    /// `worker_rlimit_nofile`: both limits of open files for the worker process.
    pub open_files_max: Option<u64>,
    /// `worker_priority`: the worker process's nice value; 0 leaves it as it is.
    pub priority: i32,
    /// `worker_rlimit_core`: both limits of a core file for the worker process, in bytes.
    pub core_size_max: Option<u64>,
    /// `working_directory` of the worker process.
    pub working_directory: Option<PathBuf>,
    /// `env`: the environment of a worker process, as `NAME` or `NAME=VALUE`.
    pub environment: Vec<String>,
    /// The `error_log` lines of the main level.
    pub error_logs: Vec<LogTarget>,
    /// The permissions of the worker process; no effect without a separate process.
    pub confinement: Confinement,
}

/// One `error_log` line of the main level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTarget {
    /// The destination of the lines.
    pub place: ErrorLogDestination,
    /// Lines of this level and above are written.
    pub level: Level,
}

/// Where an `error_log` of the main level writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorLogDestination {
    /// Lines go to standard error.
    Stderr,
    /// The descriptor with this key.
    Descriptor(String),
    /// Lines go to a syslog server.
    Syslog(syslog::Destination),
}

/// One descriptor that a configuration needs.
pub struct RequiredDescriptor {
    /// Identifies the need, for instance `listen 127.0.0.1:8080` or `log /var/log/x`: over a reload
    /// the same key keeps the same descriptor, unless the log can be reopened.
    pub key: String,
    /// Whether a listener or a log is needed.
    pub kind: NeedKind,
    /// Opens the descriptor, in the master.
    pub open: Box<dyn Fn() -> Result<OwnedFd, OpenError>>,
    /// Checks for `-t` whether the descriptor could be opened: creates and changes nothing, and
    /// does not disturb a server that has it open.
    pub probe: Box<dyn Fn() -> Result<(), OpenError>>,
    /// How a reload updates the descriptor if it is already open; `None` for most.
    pub kept: Option<DescriptorUpdate>,
}

/// A resource that only one worker process can have, such as a receive queue of a network card. It
/// is opened for a serving worker, and the master keeps none of the descriptors, so the kernel
/// releases the resource whenever that process ends. Workers serve without the resource until it is
/// opened, and if it cannot be opened.
pub struct Device {
    /// Whether the server must not start without the device.
    pub is_required: bool,
    /// Opens the device, in the master.
    pub open: Box<dyn Fn() -> Result<OpenDevice, DeviceError>>,
    /// Opens parts of a device that the worker with the device does not have yet: parts that did
    /// not exist before, or that this configuration is the first to use.
    pub open_more: Box<dyn Fn() -> Result<OpenDevice, DeviceError>>,
    /// Applies this configuration to a device that a worker already uses; returns messages for the
    /// log.
    pub follow: Box<dyn Fn() -> Vec<(Level, String)>>,
    /// Directs new connections away from the device, because the worker that uses it is about to
    /// end.
    pub release: Box<dyn Fn()>,
}

/// A device that was opened.
#[derive(Debug)]
pub struct OpenDevice {
    /// The descriptors for the worker, by keys that the program chooses.
    pub descriptors: Vec<(String, OwnedFd)>,
    /// Messages for the log.
    pub notes: Vec<(Level, String)>,
}

/// Why a device could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceError {
    /// The text for the log.
    pub text: String,
    /// Whether a later attempt may succeed, because another program has the device now.
    pub is_passing: bool,
}

/// How a reload updates a descriptor that it keeps, because the configuration may require other
/// settings than those it was opened with. Both functions return failures for the log; no failure
/// stops the reload, as with nginx.
pub struct DescriptorUpdate {
    /// Runs before the other sockets of the descriptor's group are opened. Must not affect serving,
    /// because the reload may still fail.
    pub before: Adjust,
    /// Runs when the configuration is in force.
    pub after: Adjust,
}

/// Changes an open descriptor; returns failures.
pub type Adjust = Box<dyn Fn(&OwnedFd) -> Vec<String>>;

/// The kind of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NeedKind {
    /// A listening socket with its options.
    Listener {
        /// The file of a Unix socket, removed when the socket is closed for good.
        socket_file: Option<PathBuf>,
        /// Identifies the sockets of one address (`reuseport`). As long as any of them is needed,
        /// all open ones stay open: each has a queue of connections, which would be lost with it.
        group: String,
    },
    /// A log file that is appended to.
    Log {
        /// Whether USR1 and a reload reopen it: true for files, not for standard error.
        can_be_reopened: bool,
    },
}

/// The key of one socket of a listener, made of its group and its number.
pub fn listener_key(group: &str, number: usize) -> String {
    format!("{group} #{number}")
}

/// Why a descriptor could not be opened, in nginx's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// Another process has the address: the text for the log, and the address if it is a network
    /// address, not the path of a Unix socket. A start tries again; `-t` reports no error, since
    /// the running server may have the address.
    AddressInUse(String, Option<SocketAddr>),
    /// The user may not bind this port.
    PortNotPermitted(String),
    /// Any other failure of opening.
    Failed(String),
}

impl OpenError {
    /// The text for the log.
    pub fn text(&self) -> &str {
        match self {
            OpenError::AddressInUse(text, _)
            | OpenError::PortNotPermitted(text)
            | OpenError::Failed(text) => text,
        }
    }
}

/// A directive that is fixed for the life of a worker process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewProcessLine {
    /// The name of the directive.
    pub name: String,
    /// The whole line as written; equal texts have equal meaning.
    pub text: String,
    /// The position of the line, `FILE:LINE`.
    pub place: String,
}

impl RequiredResources {
    /// The first line that requires a new worker process because `running` does not have it or, if
    /// there is no such line, the first line of `running` that `self` does not have.
    pub(crate) fn forcing_line<'a>(
        &'a self,
        running: &'a RequiredResources,
    ) -> Option<&'a NewProcessLine> {
        let missing_in = |needs: &RequiredResources, line: &NewProcessLine| {
            !needs
                .new_process_lines
                .iter()
                .any(|other| other.name == line.name && other.text == line.text)
        };
        let added = self
            .new_process_lines
            .iter()
            .find(|line| missing_in(running, line));
        added.or_else(|| {
            running
                .new_process_lines
                .iter()
                .find(|line| missing_in(self, line))
        })
    }
}
