//! USR2: another program, or a newer version of this one, takes this one's place without a
//! connection refused; and WINCH, which has only the other one of both serve.
//!
//! The file that this program was started by is started anew, with the same arguments, and finds
//! the listening sockets by their numbers ([`inherited`]): that is how nginx does it, so either may
//! follow the other. Both serve then, the pid file of the older one has `.oldbin` behind its name,
//! and QUIT to the older one ends the change. Where the newer one ends before that, the older one
//! has its pid file back and goes on alone.
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

/// What is logged of USR2 where another program has the same sockets already, as with nginx.
const IGNORED: &str = "the changing binary signal is ignored: you should shutdown or terminate \
                       before either old or new binary's process";

/// What is logged of it where the program has not gone to the background.
const IGNORED_IN_FOREGROUND: &str = "the changing binary signal is ignored: who has started this \
                                     server in the foreground waits for its end";

/// What a reload is told that WINCH breaks off.
const STOPS_ACCEPTING: &str = "[emerg] the server stops accepting connections and does not reload";

/// How this program was started.
pub(crate) enum Origin {
    /// By a command that waits for its end.
    Foreground,
    /// By a command that has left it in the background.
    Background,
    /// By a service manager, which is told who follows it.
    Service,
    /// By USR2 to a program before it.
    HandedOn(Older),
}

/// The program that has handed its sockets on to this one: its parent as long as it lives.
pub(crate) struct Older {
    pid: Option<Pid>,
    /// Readable when it has ended.
    end: Option<OwnedFd>,
    /// Files of the Unix sockets that it has handed on.
    socket_files: Vec<PathBuf>,
    /// Whom to ask for the state of its zones, until that was done.
    state: Option<OwnedFd>,
}

impl Older {
    /// The parent of this process, which has handed on sockets with these files, and the socket by
    /// which it is asked for the state of its zones.
    pub(crate) fn parent(socket_files: Vec<PathBuf>, state: Option<OwnedFd>) -> Older {
        let pid = rustix::process::getppid();
        let end = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        Older {
            pid,
            end,
            socket_files,
            state,
        }
    }
}

/// What the master knows of programs before and behind it.
pub(crate) struct Upgrade {
    /// What this program was started by.
    command_line: Vec<OsString>,
    origin: Origin,
    /// The program that this one has handed its sockets on to.
    new_binary: Option<Pid>,
    /// Where that one asks for the state of zones, until it has done so.
    question: Option<OwnedFd>,
    /// Whether workers have been told by WINCH to end, and none is to be started.
    has_stopped_accepting: bool,
    /// Files of Unix sockets that this program has no more, but maybe another: the last one that
    /// ends removes them.
    left_files: Vec<PathBuf>,
}

impl Upgrade {
    /// `left_files` are those that were handed on without being needed.
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

    /// Whether a process is the program that follows.
    pub(super) fn is_by(&self, pid: Pid) -> bool {
        self.new_binary == Some(pid)
    }

    /// The program that follows, if it is there.
    pub(super) fn new_binary(&self) -> Option<Pid> {
        self.new_binary
    }

    /// Whether the program that follows is there.
    pub(super) fn has_new_binary(&self) -> bool {
        self.new_binary.is_some()
    }

    /// Readable when the program that follows asks for the state of zones, or never will.
    pub(super) fn question(&self) -> Option<BorrowedFd<'_>> {
        self.question.as_ref().map(AsFd::as_fd)
    }

    /// What the program before this one hands over: asked for once, for the first worker. The rest
    /// of what is known of zones is learned anew.
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

    /// Workers are started again.
    pub(super) fn accepts_again(&mut self) {
        self.has_stopped_accepting = false;
    }

    /// Readable when the program before this one has ended, until that has been noticed.
    pub(super) fn end_of_older(&self) -> Option<BorrowedFd<'_>> {
        match &self.origin {
            Origin::HandedOn(older) => older.end.as_ref().map(AsFd::as_fd),
            Origin::Foreground | Origin::Background | Origin::Service => None,
        }
    }

    /// Whether there is another program for the same sockets, one before this or one behind.
    fn shares_sockets(&self) -> bool {
        self.has_new_binary() || self.older().is_some()
    }

    /// Whether another program accepts connections in this one's place.
    pub(super) fn another_accepts(&self) -> bool {
        let older = self.older().and_then(|older| older.pid);
        self.has_new_binary() || older.is_some_and(|pid| Predecessor::find(pid).is_none())
    }

    /// The program before this one, as long as it lives.
    fn older(&self) -> Option<&Older> {
        match &self.origin {
            Origin::HandedOn(older) => {
                let parent = rustix::process::getppid();
                (parent.is_some() && parent == older.pid).then_some(older)
            }
            Origin::Foreground | Origin::Background | Origin::Service => None,
        }
    }

    /// Whether another program may listen by the socket of this file.
    fn shares(&self, file: &PathBuf) -> bool {
        let is_inherited = |older: &Older| older.socket_files.contains(file);
        self.has_new_binary() || self.older().is_some_and(is_inherited)
    }

    /// Whether the program runs for itself. Who waits for one in the foreground would take its end
    /// for that of the server, and a terminal whose size changes sends WINCH.
    fn is_by_itself(&self) -> bool {
        !matches!(self.origin, Origin::Foreground)
    }
}

impl Master {
    /// Whether USR2 has an effect: where the program runs in the background in its processes, and
    /// no other change is under way, as with nginx. An older program that has been told to quit is
    /// no reason to wait: its last request may take for hours.
    pub(super) fn may_upgrade(&self) -> bool {
        self.may_stop_accepting() && !self.upgrade.another_accepts()
    }

    /// Whether WINCH has an effect.
    pub(super) fn may_stop_accepting(&self) -> bool {
        self.own_process && self.stop.is_none() && self.upgrade.is_by_itself()
    }

    /// Starts the program that follows.
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
        // At its end it may remove the pid file that this one is about to put aside.
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

    /// Starts what this program was started by, with the sockets that listen; the error is the line
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
        // One that cannot ask learns what zones hold by itself.
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

    /// A process has ended that is no worker: where it was the program that follows, this one goes
    /// on alone, and serves again if it had left that to the other.
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

    /// Has the worker that serves write what it knows for the program that follows, which asks for
    /// that once it is ready.
    pub(super) fn hand_over_state(&mut self) {
        let Some(socket) = self.upgrade.question.take() else {
            return;
        };
        match state::is_asked(&socket) {
            Ok(true) => {
                // Without an answer it sees that the socket is closed, and goes on without.
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

    /// WINCH: every request to its end, and no new connections, which wait in the queues of the
    /// sockets where no other program takes them. The master stays.
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
        self.leave_workers();
    }

    /// Starts a worker where WINCH has ended those that were there; whether it has.
    fn accept_again(&mut self) -> bool {
        let has_stopped = std::mem::take(&mut self.upgrade.has_stopped_accepting);
        if has_stopped {
            self.start_worker();
        }
        has_stopped
    }

    /// HUP while both programs are there: the older one serves again by what it has, as with nginx.
    /// The files of the configuration may be the newer one's by then.
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

    /// Removes files of Unix sockets that were closed, once no other program listens by them.
    pub(super) fn remove_files(&mut self, files: Vec<PathBuf>) {
        let (left, removed): (Vec<_>, Vec<_>) = files
            .into_iter()
            .partition(|file| self.upgrade.shares(file));
        for file in removed {
            remove_socket(&file, &self.log);
        }
        self.upgrade.left_files.extend(left);
    }

    /// Removes the files that were left to another program, where that has ended and none listens
    /// by them.
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

    /// Has the pid file again that the server before this one has removed at its end.
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

/// Where a program lies that may have been started by its name alone. The environment that the
/// next one gets may have no PATH.
fn located(program: &OsStr) -> PathBuf {
    let is_path = program.as_encoded_bytes().contains(&b'/');
    let folders = std::env::var_os("PATH").filter(|_| !is_path);
    let folders = folders.unwrap_or_default();
    let mut places = std::env::split_paths(&folders).map(|folder| folder.join(program));
    let found = places.find(|place| place.is_file());
    found.unwrap_or_else(|| Path::new(program).to_owned())
}

/// Whether a file of a Unix socket is there by which no one listens.
fn has_no_listener(file: &Path) -> bool {
    let connected = UnixStream::connect(file);
    connected.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}
