//! USR2: another program, or a newer version of this one, takes this one's place without a
//! connection refused.
//!
//! The file that this program was started by is started anew, with the same arguments, and finds
//! the listening sockets by their numbers ([`inherited`]): that is how nginx does it, so either may
//! follow the other. Both serve then, the pid file of the older one has `.oldbin` behind its name,
//! and QUIT to the older one ends the change. Where the newer one ends before that, the older one
//! has its pid file back and goes on alone.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::Pid;

use super::Master;
use crate::inherited;
use crate::log::Level;

/// What the master knows of programs before and behind it.
pub(crate) struct Upgrade {
    /// What this program was started by.
    command_line: Vec<OsString>,
    /// Whether it has gone to the background. Who waits for a program in the foreground would take
    /// its end for that of the server.
    in_background: bool,
    /// The program that has handed its sockets on to this one; our parent as long as it lives.
    handed_on_by: Option<Pid>,
    /// The program that this one has handed its sockets on to.
    new_binary: Option<Pid>,
}

impl Upgrade {
    pub(crate) fn new(
        command_line: Vec<OsString>,
        in_background: bool,
        handed_on_by: Option<Pid>,
    ) -> Upgrade {
        Upgrade {
            command_line,
            in_background,
            handed_on_by,
            new_binary: None,
        }
    }

    /// Whether a process is the program that follows.
    pub(super) fn is_by(&self, pid: Pid) -> bool {
        self.new_binary == Some(pid)
    }

    /// Whether another program listens by the same sockets, one before this or one behind.
    fn shares_sockets(&self) -> bool {
        self.new_binary.is_some() || self.has_older()
    }

    fn has_older(&self) -> bool {
        self.handed_on_by.is_some() && rustix::process::getppid() == self.handed_on_by
    }
}

impl Master {
    /// Whether USR2 has an effect: where the program runs in the background in its processes, and
    /// no other change is under way, as with nginx.
    pub(super) fn may_upgrade(&self) -> bool {
        let upgrade = &self.upgrade;
        let is_server = upgrade.in_background || upgrade.handed_on_by.is_some();
        is_server && self.own_process && self.stop.is_none() && !upgrade.shares_sockets()
    }

    /// Starts the program that follows.
    pub(super) fn upgrade(&mut self) {
        if !self.may_upgrade() {
            return;
        }
        self.log.notice("changing binary");
        if let Err(text) = self.pid_file.set_aside(true) {
            self.log.write(Level::Alert, text);
            return;
        }
        let sockets: Vec<RawFd> = self
            .generation
            .descriptors
            .listeners()
            .map(AsRawFd::as_raw_fd)
            .collect();
        let Some((program, arguments)) = self.upgrade.command_line.split_first() else {
            return self.take_pid_file_back();
        };
        let value = inherited::value(self.generation.descriptors.listeners());
        let mut command = Command::new(program);
        command.args(arguments).env(inherited::VARIABLE, value);
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
                let pid = Pid::from_child(&process);
                self.log
                    .notice(format_args!("start new binary process {pid}"));
                self.upgrade.new_binary = Some(pid);
            }
            Err(error) => {
                let call = format!("execve() \"{}\" failed", program.display());
                let text = crate::log::failure(&call, &error);
                self.log.write(Level::Alert, text);
                self.take_pid_file_back();
            }
        }
    }

    /// A process has ended that is no worker: where it was the program that follows, this one goes
    /// on alone.
    pub(super) fn upgrade_ended(&mut self, pid: Pid) {
        if self.upgrade.is_by(pid) {
            self.upgrade.new_binary = None;
            self.take_pid_file_back();
        }
    }

    fn take_pid_file_back(&mut self) {
        if let Err(text) = self.pid_file.set_aside(false) {
            self.log.write(Level::Alert, text);
        }
    }

    /// Closes the listeners; the files of Unix sockets stay where another program listens by them.
    pub(super) fn close_listeners(&mut self) {
        let descriptors = &mut self.generation.descriptors;
        if self.upgrade.shares_sockets() {
            descriptors.leave_listeners();
        } else {
            descriptors.close_listeners(&self.log);
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
