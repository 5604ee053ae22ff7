//! Notifies the service manager (systemd) that has started this program of the server's state, if
//! the manager requests it: sd_notify(3). A message is a datagram to the socket that
//! `NOTIFY_SOCKET` names.
//!
//! | message | when |
//! |---|---|
//! | `READY=1` | the first worker serves; a reload has succeeded or failed |
//! | `RELOADING=1`, `MONOTONIC_USEC` | a reload begins |
//! | `STOPPING=1` | the server ends, and no other program replaces it |
//! | `MAINPID` | the server ends, and its successor, with this pid, is the service from then on |
//! | `WATCHDOG=1` | twice in the time that `WATCHDOG_USEC` says, as long as the master's loop runs |
//!
//! The master never waits for the manager: a message that the manager's socket does not take is
//! lost.

use std::ffi::OsStr;
use std::fmt::Write;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use rustix::process::Pid;

/// The variables that a new program needs in an upgrade (USR2) to notify the manager in place of
/// this program.
pub(crate) const VARIABLES: [&str; 2] = [SOCKET, WATCHDOG];

const SOCKET: &str = "NOTIFY_SOCKET";
const WATCHDOG: &str = "WATCHDOG_USEC";
/// The process that must send watchdog messages; if the variable is missing, any process of the
/// service may.
const WATCHDOG_PID: &str = "WATCHDOG_PID";

/// A service manager that requests notifications.
#[derive(Debug)]
pub(crate) struct ServiceManager {
    socket: UnixDatagram,
    is_reloading: bool,
    watchdog: Option<Watchdog>,
}

/// The interval of the watchdog messages, and the time of the next.
#[derive(Debug)]
struct Watchdog {
    interval: Duration,
    due: Instant,
}

impl ServiceManager {
    /// The manager that has started this program, if it requests notifications. The error is the
    /// line for the log.
    pub(crate) fn of_this_process() -> Result<Option<ServiceManager>, String> {
        let Some(name) = std::env::var_os(SOCKET).filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let socket = connect(&name).map_err(|error| {
            let call = format!("connect() to {SOCKET} \"{}\" failed", name.display());
            crate::log::failure(&call, &error)
        })?;
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let is_ours = number(WATCHDOG_PID).is_none_or(|pid| pid == u64::from(std::process::id()));
        let time = number(WATCHDOG).filter(|time| is_ours && *time > 0);
        let watchdog = time.map(|time| Watchdog {
            interval: Duration::from_micros(time) / 2,
            due: Instant::now(),
        });
        Ok(Some(ServiceManager {
            socket,
            is_reloading: false,
            watchdog,
        }))
    }

    /// Notifies the manager that the server serves.
    pub(crate) fn ready(&self) {
        self.tell("READY=1");
    }

    /// Notifies the manager that a reload begins.
    pub(crate) fn reloading(&mut self) {
        self.is_reloading = true;
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let mut text = "RELOADING=1\nMONOTONIC_USEC=".to_owned();
        let microseconds = now.tv_sec.saturating_mul(1_000_000);
        let microseconds = microseconds.saturating_add(now.tv_nsec / 1_000);
        // Writing to a string cannot fail.
        let _ = write!(text, "{microseconds}");
        self.tell(&text);
    }

    /// Notifies the manager of the end of a reload, if [`reloading`](ServiceManager::reloading) has
    /// announced one.
    pub(crate) fn reloaded(&mut self) {
        if std::mem::take(&mut self.is_reloading) {
            self.ready();
        }
    }

    /// Notifies the manager that the server is ending.
    pub(crate) fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// Notifies the manager that this process ends, and that process `pid` is the service from now
    /// on.
    pub(crate) fn followed_by(&self, pid: Pid) {
        self.tell(&format!("MAINPID={pid}"));
    }

    /// The time of the next watchdog message; `None` without a watchdog.
    pub(crate) fn watchdog_due(&self) -> Option<Instant> {
        self.watchdog.as_ref().map(|watchdog| watchdog.due)
    }

    /// Sends a watchdog message if its time has come.
    pub(crate) fn feed_watchdog(&mut self, now: Instant) {
        if let Some(watchdog) = self.watchdog.as_mut().filter(|one| one.due <= now) {
            watchdog.due = now + watchdog.interval;
            self.tell("WATCHDOG=1");
        }
    }

    fn tell(&self, text: &str) {
        // If the manager has ended or does not read, there is nobody to report that to.
        let _ = self.socket.send(text.as_bytes());
    }
}

fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
