//! How a queue learns of received frames: by interrupts, or by busy polling.
//!
//! | | `balanced` | `latency` |
//! |---|---|---|
//! | frames are fetched from the card | by the kernel, after an interrupt | by the thread (`SO_BUSY_POLL`) |
//! | the thread, with nothing to do | sleeps | polls again |
//! | interrupts of the card | on | deferred while the thread polls (`SO_PREFER_BUSY_POLL`) |
//!
//! The thread recognizes the profile by its socket's options, which the privileged process has set.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use super::netlink::Interface;

/// How a queue learns of received frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Interrupts, after which the kernel handles as many frames at once as its budget permits.
    #[default]
    Balanced,
    /// Busy polling: the thread never sleeps.
    Latency,
}

/// Busy polling time of one call, in microseconds. With any value but 0, calls on a non-blocking
/// socket poll once.
const BUSY_POLL_US: libc::c_int = 20;

/// Maximum number of frames per poll.
const BUSY_POLL_BUDGET: libc::c_int = 64;

/// Interrupts stay off for this many polls without a frame, and a timer of this many nanoseconds
/// replaces them in case the thread stops polling. The odd nanosecond distinguishes these settings
/// from an administrator's, for [`reset_left_over`].
const SETTINGS: [(&str, &str); 2] = [
    ("napi_defer_hard_irqs", "2"),
    ("gro_flush_timeout", "200001"),
];

/// The kernel's default of both settings.
const DEFAULT: &str = "0";

/// Sets a socket option of the level `SOL_SOCKET`.
fn set(socket: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the call reads the value within its length before it returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Enables busy polling on a socket.
///
/// # Errors
/// The kernel's, with the name of the option: the kernel was built without busy polling, or is
/// older than 5.11.
pub(super) fn poll_busily(socket: impl AsFd) -> Result<(), (&'static str, io::Error)> {
    let socket = socket.as_fd();
    for (name, option, value) in [
        ("SO_PREFER_BUSY_POLL", libc::SO_PREFER_BUSY_POLL, 1),
        (
            "SO_BUSY_POLL_BUDGET",
            libc::SO_BUSY_POLL_BUDGET,
            BUSY_POLL_BUDGET,
        ),
        ("SO_BUSY_POLL", libc::SO_BUSY_POLL, BUSY_POLL_US),
    ] {
        set(socket, option, value).map_err(|error| (name, error))?;
    }
    Ok(())
}

/// Whether a socket busy-polls.
pub(super) fn is_polled(socket: impl AsFd) -> bool {
    let mut value: libc::c_int = 0;
    let mut length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel writes at most the given length, which is the value's.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BUSY_POLL,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    result == 0 && value > 0
}

/// The guard of an interface with deferred interrupts; dropping it restores the previous settings.
#[derive(Debug, Default)]
pub(super) struct DeferredInterrupts {
    /// The files of the changed settings, with their previous values.
    before: Vec<(PathBuf, String)>,
}

impl DeferredInterrupts {
    /// Defers interrupts of an interface.
    ///
    /// # Errors
    /// A sentence about the setting that failed; interrupts are unchanged then.
    pub(super) fn new(interface: &Interface) -> Result<DeferredInterrupts, String> {
        let folder =
            folder_of(interface).ok_or("/sys is not that of the interface's network namespace")?;
        let mut deferred = DeferredInterrupts::default();
        for (name, value) in SETTINGS {
            let path = folder.join(name);
            let failed = |error: io::Error| format!("{}: {error}", path.display());
            let before = fs::read_to_string(&path).map_err(failed)?;
            fs::write(&path, value).map_err(failed)?;
            deferred.before.push((path, before.trim().to_owned()));
        }
        Ok(deferred)
    }
}

/// The files of an interface's settings; `None` if those in /sys belong to another network
/// namespace.
fn folder_of(interface: &Interface) -> Option<PathBuf> {
    let folder = Path::new("/sys/class/net").join(&interface.name);
    let index = fs::read_to_string(folder.join("ifindex")).ok()?;
    (index.trim().parse() == Ok(interface.index)).then_some(folder)
}

/// Sets an interface back to the kernel's defaults if a privileged process that was killed has left
/// our settings there. Only the process that has the interface's filter may call this, since the
/// settings are in use otherwise.
pub(super) fn reset_left_over(interface: &Interface) {
    let Some(folder) = folder_of(interface) else {
        return;
    };
    let are_ours = SETTINGS.iter().all(|(name, value)| {
        let found = fs::read_to_string(folder.join(name));
        found.is_ok_and(|found| found.trim() == *value)
    });
    if are_ours {
        for (name, _) in SETTINGS {
            // Both files have just been read; on an interface that is gone nothing is left over.
            let _ = fs::write(folder.join(name), DEFAULT);
        }
    }
}

impl Drop for DeferredInterrupts {
    fn drop(&mut self) {
        for (path, before) in &self.before {
            // Nothing needs restoring on an interface that no longer exists.
            let _ = fs::write(path, before);
        }
    }
}
