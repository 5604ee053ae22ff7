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

    /// The files that the master reads: those of the disk, unless the program replaces some.
    fn files(&self) -> Box<dyn Files + '_> {
        Box::new(Disk)
    }

    /// Compiles a configuration, and returns what a worker needs for it, or all errors. Runs in the
    /// master at start, with `-t`, and on every reload.
    ///
    /// Must not leave a thread running: the master may fork after it. Files that the worker will
    /// want to read must be read through `files`; they are in the bundle then.
    fn examine(
        &self,
        loaded: &Loaded,
        files: &dyn Files,
        options: &Options,
    ) -> Result<Needs, Vec<Diagnostic>>;

    /// The group of a listening socket that another program has handed on, and the file that it
    /// made when it was bound: as [`NeedKind::Listener`] has them. None where no configuration
    /// could need such a socket.
    fn inherited(&self, _socket: &OwnedFd) -> Option<(String, Option<PathBuf>)> {
        None
    }

    /// Called in the master when its first worker serves. Must not block: the master does nothing
    /// else meanwhile.
    fn serving(&self) {}

    /// The serving half, made once in a worker process before its first [`WorkerProcess::prepare`].
    fn worker(&self, events: Events) -> Box<dyn WorkerProcess>;
}

/// The serving half, driven by the thread that talks to the master. All calls come from that one
/// thread, one after another.
pub trait WorkerProcess {
    /// Compiles a bundle and keeps the result aside; nothing that is served changes. The error's
    /// lines are logged and printed by `-s reload`.
    ///
    /// The bundle's descriptors are all that its configuration names, so those that this worker
    /// already has come a second time.
    fn prepare(&mut self, bundle: Bundle) -> Result<(), String>;

    /// Serves by the generation prepared last. When the last request of the replaced generation has
    /// ended, calls [`Events::generation_finished`].
    fn commit(&mut self);

    /// Whether threads that serve use io_uring. Asked once, when the first configuration has been
    /// prepared: no thread can begin to use it afterwards.
    fn uses_io_uring(&self) -> bool;

    /// Discards the generation prepared last.
    fn abandon(&mut self);

    /// New descriptors of logs that were opened again, by key: those of the generation in force,
    /// and of every one that it has replaced and that still has requests. Never comes between
    /// `prepare` and `commit`. Keys that this worker does not know are to be dropped.
    fn reopened(&mut self, logs: HashMap<String, OwnedFd>);

    /// Devices that only this worker process has, by key; it serves through them too from now on.
    /// After an error, whose lines are logged, it serves without.
    fn devices(&mut self, _devices: HashMap<String, OwnedFd>) -> Result<(), String> {
        Ok(())
    }

    /// Notes for monitoring that a reload has failed: the generation in force stays. Called after
    /// [`WorkerProcess::abandon`] if one had been prepared.
    fn reload_failed(&mut self) {}

    /// Serializes the state for the worker that follows, which may be another version of the
    /// program.
    fn save(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// Restores the state that another worker has saved, for the first configuration. Called before
    /// the first [`prepare`](WorkerProcess::prepare). The state is not trusted.
    fn go_on(&mut self, _state: Vec<u8>) {}

    /// This worker is to take the place of others, to which these sockets lead; what is said there
    /// is the program's own. Comes before the first [`prepare`](WorkerProcess::prepare).
    fn succeed(&mut self, _channels: Vec<OwnedFd>) {}

    /// A worker, to which the socket leads, is about to take the place of this one.
    fn be_followed(&mut self, _channel: OwnedFd) {}

    /// Ends gracefully: stops accepting, closes idle connections, waits for requests, writes the
    /// logs, and then calls [`Events::drained`].
    fn quit(&mut self);

    /// Like [`quit`](WorkerProcess::quit), for when another program accepts in this one's place:
    /// idle connections may be served once more, so that no request is lost that is on its way.
    /// `quit` may follow.
    fn drain(&mut self) {
        self.quit();
    }

    /// Ends everything at once and writes the logs; the process exits when this returns.
    fn terminate(&mut self);
}

/// The resources that a configuration needs.
pub struct Needs {
    /// The settings of the master itself.
    pub master: MasterSettings,
    /// Descriptors that the master opens and passes on.
    pub descriptors: Vec<Need>,
    /// Devices that only one worker process can have.
    pub devices: Vec<Device>,
    /// Directories that must exist before workers start, owned by the user they run as.
    pub directories: Vec<PathBuf>,
    /// Warnings and notices of the compilation.
    pub diagnostics: Vec<Diagnostic>,
    /// The lines whose change needs a new worker process.
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
    /// `env`: what of the environment a worker process gets, as `NAME` or `NAME=VALUE`.
    pub environment: Vec<String>,
    /// The `error_log` lines of the main level.
    pub error_logs: Vec<LogTarget>,
    /// What the worker process may do; no effect without a separate process.
    pub confinement: Confinement,
}

/// One `error_log` line of the main level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTarget {
    /// The place that the lines go to.
    pub place: LogPlace,
    /// Lines of this level and above are written.
    pub level: Level,
}

/// Where an `error_log` of the main level writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogPlace {
    /// Lines go to standard error.
    Stderr,
    /// The descriptor with this key.
    Descriptor(String),
    /// Lines go to a syslog server.
    Syslog(syslog::Destination),
}

/// One descriptor that a configuration needs.
pub struct Need {
    /// What it is, for instance `listen 127.0.0.1:8080` or `log /var/log/x`: over a reload the
    /// same key keeps the same descriptor, unless it is that of a log that can be opened again.
    pub key: String,
    /// Whether a listener or a log is needed.
    pub kind: NeedKind,
    /// Opens what is needed, in the master.
    pub open: Box<dyn Fn() -> Result<OwnedFd, OpenError>>,
    /// Finds out whether it could be opened, for `-t`: makes nothing, changes nothing, and takes
    /// nothing from a server that has it open.
    pub probe: Box<dyn Fn() -> Result<(), OpenError>>,
    /// What is done to it where it is open already; nothing for most.
    pub kept: Option<DescriptorUpdate>,
}

/// What one worker process alone can have, such as a receive queue of a network card. It is opened
/// for a worker that serves, and the master keeps none of the descriptors: the kernel lets go of it
/// whenever that process ends. Meanwhile, and where it cannot be opened, workers serve without it.
pub struct Device {
    /// Whether the server must not start without it.
    pub is_required: bool,
    /// Opens what is needed, in the master.
    pub open: Box<dyn Fn() -> Result<OpenDevice, DeviceError>>,
    /// Has it be used as this configuration says, by the worker that has it; what is to be said
    /// about that.
    pub follow: Box<dyn Fn() -> Vec<(Level, String)>>,
    /// Has what is new go elsewhere: the worker that has it is about to end.
    pub release: Box<dyn Fn()>,
}

/// A device that was opened.
#[derive(Debug)]
pub struct OpenDevice {
    /// What the worker gets, by keys that are the program's own.
    pub descriptors: Vec<(String, OwnedFd)>,
    /// What is to be said about it.
    pub notes: Vec<(Level, String)>,
}

/// Why a device could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceError {
    /// The words for the log.
    pub text: String,
    /// Whether it may be different in a while, because another program has it.
    pub is_passing: bool,
}

/// What a reload does to a descriptor that it keeps, because the configuration may ask for
/// something else of it than it was opened with. Both calls return what failed, for the log; no
/// failure stops the reload, as with nginx.
pub struct DescriptorUpdate {
    /// Before others of its group are opened. It must not change what is served: the reload may
    /// still come to nothing.
    pub before: Adjust,
    /// When the configuration is in force.
    pub after: Adjust,
}

/// Does something to an open descriptor; what failed comes back.
pub type Adjust = Box<dyn Fn(&OwnedFd) -> Vec<String>>;

/// What a descriptor is to the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NeedKind {
    /// A listening socket with its options.
    Listener {
        /// The file of a Unix socket, removed when the socket is closed for good.
        socket_file: Option<PathBuf>,
        /// What the sockets of one address have in common (`reuseport`). As long as any of them
        /// is needed, those that are open stay: connections wait in the queue of each, and would
        /// be lost with it.
        group: String,
    },
    /// A log file that is appended to.
    Log {
        /// Whether USR1 and a reload open it again: true of files, not of standard error.
        can_be_reopened: bool,
    },
}

/// The key of one socket of a listener, which its group and its number make.
pub fn listener_key(group: &str, number: usize) -> String {
    format!("{group} #{number}")
}

/// Why a descriptor could not be opened, in nginx's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// Another process has the address, if it is one of a network: worth another try, and no error
    /// in a test.
    AddressInUse(String, Option<SocketAddr>),
    /// A port that is not for this user.
    PortNotPermitted(String),
    /// Any other failure of opening.
    Failed(String),
}

impl OpenError {
    /// The words for the log.
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
    /// The whole line as written; two equal texts ask for the same.
    pub text: String,
    /// Where it stands, `FILE:LINE`.
    pub place: String,
}

impl Needs {
    /// The first line in which `self` differs from `running` in a way that asks for a new worker
    /// process: the name of its directive and where it stands (or stood).
    pub(crate) fn forcing_line<'a>(&'a self, running: &'a Needs) -> Option<&'a NewProcessLine> {
        let missing_in = |needs: &Needs, line: &NewProcessLine| {
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
