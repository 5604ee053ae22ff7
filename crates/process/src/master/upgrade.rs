//! USR2: another program, or a newer version of this one, takes over without refusing a connection;
//! and WINCH, which makes the old program stop accepting while both run.
//!
//! The file from which this program was started is started again with the same arguments, and
//! inherits the listening sockets by number ([`inherited`]). nginx does the same, so either program
//! may follow the other. Then both serve, the older one's pid file has the suffix `.oldbin`, and
//! QUIT to the older one completes the upgrade. If the newer program ends before it, the older
//! program restores its pid file and continues alone.
//!
//! ```text
//!              USR2                 WINCH                    QUIT
//!   (alone) ──────────▶ (both serve) ────▶ (the new serves) ──────▶ the new one is alone
//!      ▲                    │  ▲   HUP           │  │
//!      │                    │  └─────────────────┘  │
//!      └────────────────────┴───────────────────────┘ the new one has ended
//! ```
#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use rustix::process::{Pid, PidfdFlags};

use super::child::Role;
use super::{Master, reload};
use crate::descriptors::remove_socket;
use crate::log::{Level, Log};
use crate::predecessor::Predecessor;
use crate::reply::Reply;
use crate::{environment, inherited, service_manager, state};

/// Log message for USR2 if another program already shares the sockets, as in nginx.
const IGNORED: &str = "the changing binary signal is ignored: you should shutdown or terminate \
                       before either old or new binary's process";

/// Log message for USR2 if the program runs in the foreground.
const IGNORED_IN_FOREGROUND: &str = "the changing binary signal is ignored: who has started this \
                                     server in the foreground waits for its end";

/// The reply to a reload that WINCH aborts.
const STOPS_ACCEPTING: &str = "[emerg] the server stops accepting connections and does not reload";

/// How this program was started.
pub(crate) enum Origin {
    /// By a command that waits for the program's end.
    Foreground,
    /// By a command that has put the program into the background.
    Background,
    /// By a service manager, which is notified of a new main process.
    Service,
    /// By USR2 to the program before this one.
    HandedOn(UpgradeParent),
}

/// The program that has handed its sockets over to this one. As long as it lives, it is the parent
/// process.
pub(crate) struct UpgradeParent {
    pid: Option<Pid>,
    /// Readable when that program has ended.
    end: Option<OwnedFd>,
    /// Files of the Unix sockets that the program has handed over.
    socket_files: Vec<PathBuf>,
    /// The socket on which to ask the program for the state of its zones; `None` after the
    /// question.
    state: Option<OwnedFd>,
}

impl UpgradeParent {
    /// The parent of this process, which has handed over sockets with these files, and the socket
    /// on which to ask for the state of its zones.
    pub(crate) fn parent(socket_files: Vec<PathBuf>, state: Option<OwnedFd>) -> UpgradeParent {
        let pid = rustix::process::getppid();
        let end = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        UpgradeParent {
            pid,
            end,
            socket_files,
            state,
        }
    }
}

/// What the master knows of the program before it (`origin`) and the program after it
/// (`new_binary`).
pub(crate) struct Upgrade {
    /// The command line of this program.
    command_line: Vec<OsString>,
    origin: Origin,
    /// The program to which this one has handed its sockets over.
    new_binary: Option<Pid>,
    /// The socket on which the new program asks for the state of zones, until it has done so.
    question: Option<OwnedFd>,
    /// Whether WINCH has told workers to end, and none is to be started.
    has_stopped_accepting: bool,
    /// Files of Unix sockets that this program has closed but another may still have: the last
    /// program to end removes them.
    left_files: Vec<PathBuf>,
}

impl Upgrade {
    /// `left_files`: files of Unix sockets that were handed over although the configuration does
    /// not need them.
    pub(crate) fn new(
        command_line: Vec<OsString>,
        origin: Origin,
        left_files: Vec<PathBuf>,
    ) -> Upgrade {
        Upgrade {
            command_line,
            origin,
            new_binary: None,
            question: None,
            has_stopped_accepting: false,
            left_files,
        }
    }

    /// Whether a process is the new program.
    pub(super) fn is_by(&self, pid: Pid) -> bool {
        self.new_binary == Some(pid)
    }

    /// The new program, if it exists.
    pub(super) fn new_binary(&self) -> Option<Pid> {
        self.new_binary
    }

    /// Whether the new program exists.
    pub(super) fn has_new_binary(&self) -> bool {
        self.new_binary.is_some()
    }

    /// A descriptor that is readable when the new program asks for the state of zones, or has
    /// closed the socket without asking.
    pub(super) fn question(&self) -> Option<BorrowedFd<'_>> {
        self.question.as_ref().map(AsFd::as_fd)
    }

    /// Asks the program before this one for the state of its zones. `None` after the first call,
    /// and if there is no such program or it has no state: then zones begin empty.
    pub(super) fn state_of_older(&mut self, log: &Log) -> Option<Rc<OwnedFd>> {
        let Origin::HandedOn(older) = &mut self.origin else {
            return None;
        };
        let socket = older.state.take()?;
        match state::ask(&socket) {
            Ok(state) => state.map(Rc::new),
            Err(error) => {
                let call = "the state of zones was not handed over";
                log.write(Level::Warn, crate::log::failure(call, &error));
                None
            }
        }
    }

    /// Records that workers are started again.
    pub(super) fn accepts_again(&mut self) {
        self.has_stopped_accepting = false;
    }

    /// A descriptor that is readable when the older program has ended; `None` once its end has been
    /// handled.
    pub(super) fn end_of_older(&self) -> Option<BorrowedFd<'_>> {
        match &self.origin {
            Origin::HandedOn(older) => older.end.as_ref().map(AsFd::as_fd),
            Origin::Foreground | Origin::Background | Origin::Service => None,
        }
    }

    /// Whether another program, older or newer, shares the sockets.
    fn shares_sockets(&self) -> bool {
        self.has_new_binary() || self.older().is_some()
    }

    /// Whether another program accepts connections in the place of this one.
    pub(super) fn another_accepts(&self) -> bool {
        let older = self.older().and_then(|older| older.pid);
        self.has_new_binary() || older.is_some_and(|pid| Predecessor::find(pid).is_none())
    }

    /// The older program, as long as it lives.
    fn older(&self) -> Option<&UpgradeParent> {
        match &self.origin {
            Origin::HandedOn(older) => {
                let parent = rustix::process::getppid();
                (parent.is_some() && parent == older.pid).then_some(older)
            }
            Origin::Foreground | Origin::Background | Origin::Service => None,
        }
    }

    /// Whether another program may listen on the socket of this file.
    fn shares(&self, file: &PathBuf) -> bool {
        let is_inherited = |older: &UpgradeParent| older.socket_files.contains(file);
        self.has_new_binary() || self.older().is_some_and(is_inherited)
    }

    /// Whether the program does not run in the foreground. USR2 and WINCH have no effect on a
    /// foreground program: whoever waits for its end would take that for the end of the server, and
    /// a terminal sends WINCH when its size changes.
    fn is_by_itself(&self) -> bool {
        !matches!(self.origin, Origin::Foreground)
    }
}

impl Master {
    /// Whether USR2 has an effect: as in nginx, if the program runs in the background with worker
    /// processes, and no other upgrade is in progress. An older program that has been told to quit
    /// does not count: its last request may take hours.
    pub(super) fn may_upgrade(&self) -> bool {
        self.may_stop_accepting() && !self.upgrade.another_accepts()
    }

    /// Whether WINCH has an effect.
    pub(super) fn may_stop_accepting(&self) -> bool {
        self.own_process && self.stop.is_none() && self.upgrade.is_by_itself()
    }

    /// Starts the new program.
    pub(super) fn upgrade(&mut self) {
        if !self.may_upgrade() {
            let text = if self.upgrade.is_by_itself() {
                IGNORED
            } else {
                IGNORED_IN_FOREGROUND
            };
            return self.log.write(Level::Crit, text);
        }
        self.log.notice("changing binary");
        // The older program may remove, at its end, the pid file that this one is about to rename.
        let older = self.upgrade.older().and_then(|older| older.pid);
        self.predecessor = older
            .and_then(Predecessor::find)
            .or(self.predecessor.take());
        if let Err(text) = self.pid_file.set_aside() {
            self.log.write(Level::Alert, text);
            return;
        }
        match self.start_new_binary() {
            Ok(pid) => {
                self.log
                    .notice(format_args!("start new binary process {pid}"));
                self.upgrade.new_binary = Some(pid);
            }
            Err(text) => {
                self.log.write(Level::Alert, text);
                self.take_pid_file_back(None);
            }
        }
    }

    /// Starts this program's command line again, with the listening sockets; the error is the line
    /// for the log.
    fn start_new_binary(&mut self) -> Result<Pid, String> {
        let (program, arguments) = self
            .upgrade
            .command_line
            .split_first()
            .ok_or("this program does not know what it was started by")?;
        let descriptors = &self.generation.descriptors;
        let mut sockets: Vec<RawFd> = descriptors.listeners().map(AsRawFd::as_raw_fd).collect();
        let mut command = Command::new(located(program));
        command.arg0(program).args(arguments);
        environment::give(&mut command, &self.generation.needs.master.environment);
        command.env(
            inherited::VARIABLE,
            inherited::value(descriptors.listeners()),
        );
        let activated = inherited::value(descriptors.activated(self.application));
        if !activated.is_empty() {
            command.env(inherited::ACTIVATED, activated);
        }
        // If there is no socket, the new program begins with empty zones.
        let (question, theirs) = state::pair().ok().unzip();
        if let Some(socket) = &theirs {
            command.env(state::VARIABLE, state::value(socket));
            sockets.push(socket.as_raw_fd());
        }
        for name in service_manager::VARIABLES {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        let keep_open = move || {
            for socket in &sockets {
                // SAFETY: takes numbers only, and the master holds the sockets until the new
                // process has started.
                if unsafe { libc::fcntl(*socket, libc::F_SETFD, 0) } != 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: between fork and exec nothing is done but a system call for each socket.
        unsafe { command.pre_exec(keep_open) };
        match command.spawn() {
            Ok(process) => {
                self.upgrade.question = question;
                Ok(Pid::from_child(&process))
            }
            Err(error) => {
                let call = format!("execve() \"{}\" failed", program.display());
                Err(crate::log::failure(&call, &error))
            }
        }
    }

    /// Handles the end of a process that is not a worker. If it was the new program, this program
    /// continues alone, and starts a worker if WINCH had ended the workers.
    pub(super) fn upgrade_ended(&mut self, pid: Pid) {
        if !self.upgrade.is_by(pid) {
            return;
        }
        self.upgrade.new_binary = None;
        self.upgrade.question = None;
        self.take_pid_file_back(Some(pid));
        if self.stop.is_none() {
            self.accept_again();
        }
    }

    /// Tells the serving worker to save its state for the new program, which asks for it once it is
    /// ready.
    pub(super) fn hand_over_state(&mut self) {
        let Some(socket) = self.upgrade.question.take() else {
            return;
        };
        match state::is_asked(&socket) {
            Ok(true) => {
                // Without an answer the new program sees the socket closed, and continues without
                // the state.
                if let Some(file) = self.save_state()
                    && let Err(error) = state::answer(&socket, file.as_fd())
                {
                    let call = "the state of zones was not handed over";
                    let text = crate::log::failure(call, &error);
                    self.log.write(Level::Warn, text);
                }
            }
            Ok(false) => self.upgrade.question = Some(socket),
            Err(_) => {}
        }
    }

    fn take_pid_file_back(&mut self, ended: Option<Pid>) {
        if let Err(text) = self.pid_file.take_back(ended) {
            self.log.write(Level::Alert, text);
        }
    }

    /// WINCH: completes every request and accepts no new connections, which wait in the sockets'
    /// queues if no other program accepts them. The master stays.
    pub(super) fn stop_accepting(&mut self) {
        if !self.may_stop_accepting() {
            return;
        }
        self.upgrade.has_stopped_accepting = true;
        let errors = [STOPS_ACCEPTING.to_owned()];
        if self.reload.is_some() {
            self.fail_reload(&errors);
        }
        reload::answer(std::mem::take(&mut self.unanswered), &errors);
        self.lookup = None;
        self.drain_workers();
    }

    /// Starts a worker if WINCH has ended the previous workers. Returns whether WINCH had.
    fn accept_again(&mut self) -> bool {
        let has_stopped = std::mem::take(&mut self.upgrade.has_stopped_accepting);
        if has_stopped {
            self.start_worker();
        }
        has_stopped
    }

    /// HUP while both programs run: as in nginx, the older one serves again with its current
    /// configuration, because the configuration files may already be written for the newer program.
    pub(super) fn serve_again(&mut self, replies: Vec<Reply>) {
        let is_serving = |child: &super::Child| child.role == Role::Serving;
        if self.accept_again() || !self.children.iter().any(is_serving) {
            self.unanswered.extend(replies);
        } else {
            replies.into_iter().for_each(Reply::committed);
        }
    }

    pub(super) fn close_listeners(&mut self) {
        let files = self.generation.descriptors.close_listeners();
        self.remove_files(files);
    }

    /// Removes the files of closed Unix sockets, once no other program listens on them.
    pub(super) fn remove_files(&mut self, files: Vec<PathBuf>) {
        let (left, removed): (Vec<_>, Vec<_>) = files
            .into_iter()
            .partition(|file| self.upgrade.shares(file));
        for file in removed {
            remove_socket(&file, &self.log);
        }
        self.upgrade.left_files.extend(left);
    }

    /// Removes the files that were left to another program, if that program has ended and nothing
    /// listens on them.
    pub(super) fn remove_left_files(&mut self) {
        if self.upgrade.older().is_none()
            && let Origin::HandedOn(older) = &mut self.upgrade.origin
        {
            older.end = None;
        }
        if self.upgrade.shares_sockets() {
            return;
        }
        for file in std::mem::take(&mut self.upgrade.left_files) {
            let listens = self.generation.descriptors.socket_files().contains(&file);
            if !listens && has_no_listener(&file) {
                remove_socket(&file, &self.log);
            }
        }
    }

    /// Writes the pid file again after the previous server has removed it at its end.
    pub(super) fn follow_predecessor(&mut self) {
        if let Some(predecessor) = self.predecessor.take_if(|one| one.has_ended())
            && let Err(text) = self.pid_file.keep()
        {
            let pid = predecessor.pid;
            self.log
                .write(Level::Alert, format_args!("after the end of {pid}: {text}"));
        }
    }
}

/// Finds the path of a program that may have been started by its name alone. The environment of the
/// new program may have no PATH.
fn located(program: &OsStr) -> PathBuf {
    let is_path = program.as_encoded_bytes().contains(&b'/');
    let folders = std::env::var_os("PATH").filter(|_| !is_path);
    let folders = folders.unwrap_or_default();
    let mut places = std::env::split_paths(&folders).map(|folder| folder.join(program));
    let found = places.find(|place| place.is_file());
    found.unwrap_or_else(|| Path::new(program).to_owned())
}

/// Whether a Unix socket's file exists on which nothing listens.
fn has_no_listener(file: &Path) -> bool {
    let connected = UnixStream::connect(file);
    connected.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}
