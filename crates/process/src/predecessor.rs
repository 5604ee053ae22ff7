//! A server that completes its last requests: the pid file still names it, but it does not listen
//! any more. A new server starts without waiting for its end, which may take as long as a download.
//!
//! When such a server ends, it may remove the pid file although the file names another process by
//! then: nginx does, and so did older versions of this program. So the master waits for its end,
//! and writes the file again.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags};

use crate::log::PROGRAM;
use crate::title::NGINX;

/// A server that completes its last requests and does not listen.
#[derive(Debug)]
pub(crate) struct Predecessor {
    pub(crate) pid: Pid,
    /// Readable when the server has ended.
    end: OwnedFd,
}

impl Predecessor {
    /// The process with this number, if it is a server that completes its last requests. `None` if
    /// it is not, or if that cannot be found out.
    pub(crate) fn find(pid: Pid) -> Option<Predecessor> {
        let end = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        let is_server = [PROGRAM, NGINX].contains(&name.trim_end());
        (is_server && !listens(pid).ok()?).then_some(Predecessor { pid, end })
    }

    /// Whether the server has ended.
    pub(crate) fn has_ended(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec};
        let mut polled = [PollFd::new(&self.end, PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }
}

impl AsFd for Predecessor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

/// Whether a process has a listening socket open.
fn listens(pid: Pid) -> io::Result<bool> {
    let mut sockets = HashSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        // A descriptor may have been closed meanwhile.
        let Ok(link) = fs::read_link(entry?.path()) else {
            continue;
        };
        let number = link.to_str().and_then(|link| link.strip_prefix("socket:["));
        let number = number.and_then(|link| link.strip_suffix(']'));
        sockets.extend(number.map(str::to_owned));
    }
    /// A table in `/proc/PID/net`: its name, the index of the field that tells whether a socket
    /// listens, the check of that field, and the index of the field with the socket's inode.
    struct Table(&'static str, usize, fn(&str) -> bool, usize);
    let tcp = |state: &str| state == "0A";
    let unix =
        |flags: &str| u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & 0x1_0000 != 0);
    for Table(name, state, is_listening, number) in [
        Table("tcp", 3, tcp, 9),
        Table("tcp6", 3, tcp, 9),
        Table("unix", 3, unix, 6),
    ] {
        // A kernel without IPv6 has no `tcp6`.
        let text = fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
        let holds = text.lines().any(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields.get(state).is_some_and(|state| is_listening(state))
                && fields
                    .get(number)
                    .is_some_and(|number| sockets.contains(*number))
        });
        if holds {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    #[test]
    fn sockets_that_listen_are_seen() {
        let me = rustix::process::getpid();
        let path = std::env::temp_dir().join(format!("tidegate-listens-{}", std::process::id()));
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(listens(me).unwrap());
        drop(tcp);
        let unix = UnixListener::bind(&path).unwrap();
        assert!(listens(me).unwrap());
        drop(unix);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn another_program_is_no_server() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        assert!(Predecessor::find(Pid::from_child(&child)).is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
