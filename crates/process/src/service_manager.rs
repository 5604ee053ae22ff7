//! The service manager that has started this program (systemd), where it wants to know how the
//! server does: sd_notify(3), a datagram for each message to the socket that `NOTIFY_SOCKET` names.
//!
//! | message | when |
//! |---|---|
//! | `READY=1` | the first worker serves; a reload has ended, well or not |
//! | `RELOADING=1`, `MONOTONIC_USEC` | a reload begins |
//! | `STOPPING=1` | the server ends, and no other program goes on in its place |
//! | `MAINPID` | the server ends, and the one that follows it is the service from then on |
//! | `WATCHDOG=1` | twice in the time that `WATCHDOG_USEC` says, as long as the master does its rounds |
//!
//! Nothing is waited for: a manager that does not listen loses the message.

use std::ffi::OsStr;
use std::fmt::Write;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use rustix::process::Pid;

/// What the program that follows this one needs of the environment to be the service itself.
pub(crate) const VARIABLES: [&str; 2] = [SOCKET, WATCHDOG];

const SOCKET: &str = "NOTIFY_SOCKET";
const WATCHDOG: &str = "WATCHDOG_USEC";
/// Whose watchdog it is, where that is not every process of the service.
const WATCHDOG_PID: &str = "WATCHDOG_PID";

#[derive(Debug)]
pub(crate) struct ServiceManager {
    socket: UnixDatagram,
    is_reloading: bool,
    watchdog: Option<Watchdog>,
}

/// How often a sign of life is sent, and when the next is due.
#[derive(Debug)]
struct Watchdog {
    interval: Duration,
    due: Instant,
}

impl ServiceManager {
    /// Who has started this program, where that wants to be told; the error says why it will not
    /// be.
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

    pub(crate) fn ready(&self) {
        self.tell("READY=1");
    }

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

    /// No reload is under way any more.
    pub(crate) fn reloaded(&mut self) {
        if std::mem::take(&mut self.is_reloading) {
            self.ready();
        }
    }

    pub(crate) fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// The server ends, and another process goes on.
    pub(crate) fn followed_by(&self, pid: Pid) {
        self.tell(&format!("MAINPID={pid}"));
    }

    /// When a sign of life is due.
    pub(crate) fn watchdog_due(&self) -> Option<Instant> {
        self.watchdog.as_ref().map(|watchdog| watchdog.due)
    }

    /// Gives one where it is due.
    pub(crate) fn feed_watchdog(&mut self, now: Instant) {
        if let Some(watchdog) = self.watchdog.as_mut().filter(|one| one.due <= now) {
            watchdog.due = now + watchdog.interval;
            self.tell("WATCHDOG=1");
        }
    }

    fn tell(&self, text: &str) {
        // A manager that has gone, or does not read, has nobody to hear of that.
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
