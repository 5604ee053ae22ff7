//! How a queue learns that frames have come: by the card's interrupts, or by asking all the time.
//!
//! | | `balanced` | `latency` |
//! |---|---|---|
//! | frames are fetched from the card | by the kernel, after an interrupt | by the thread (`SO_BUSY_POLL`) |
//! | the thread, with nothing to do | sleeps | asks again |
//! | interrupts of the card | on | put off while the thread asks (`SO_PREFER_BUSY_POLL`) |
//!
//! The thread knows it by its socket, whose options the privileged process has set.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use super::netlink::Interface;

/// How a queue learns that frames have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Interrupts, after which the kernel takes so many frames at once as its budget permits.
    #[default]
    Balanced,
    /// Busy polling: the thread never sleeps.
    Latency,
}

/// How long one call asks the card, in microseconds. Any number but 0 has the calls of a socket
/// that does not wait ask once.
const BUSY_POLL_US: libc::c_int = 20;

/// Frames that one call takes from the card at most.
const BUSY_POLL_BUDGET: libc::c_int = 64;

/// Interrupts stay off for so many rounds without a frame, and a timer of so many nanoseconds
/// stands in for them, should the thread not ask for as long.
const SETTINGS: [(&str, &str); 2] = [
    ("napi_defer_hard_irqs", "2"),
    ("gro_flush_timeout", "200000"),
];

fn set(socket: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the value is read for its length before the call returns.
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

/// Has the calls of a socket ask the card.
///
/// # Errors
/// The kernel's, with the option: it was built without busy polling, or is older than 5.11.
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

/// Whether the calls of a socket ask the card.
pub(super) fn is_polled(socket: impl AsFd) -> bool {
    let mut value: libc::c_int = 0;
    let mut length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel writes no more than the length says, which is the value's.
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

/// An interface whose interrupts are put off; as before with the end of this.
#[derive(Debug, Default)]
pub(super) struct DeferredInterrupts {
    before: Vec<(PathBuf, String)>,
}

impl DeferredInterrupts {
    /// Puts interrupts of an interface off.
    ///
    /// # Errors
    /// A sentence about what cannot be set: then the card interrupts as before.
    pub(super) fn new(interface: &Interface) -> Result<DeferredInterrupts, String> {
        let folder = Path::new("/sys/class/net").join(&interface.name);
        let index = fs::read_to_string(folder.join("ifindex")).unwrap_or_default();
        if index.trim().parse() != Ok(interface.index) {
            return Err("/sys is not that of the interface's network namespace".to_owned());
        }
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

impl Drop for DeferredInterrupts {
    fn drop(&mut self) {
        for (path, before) in &self.before {
            // An interface that has gone needs nothing.
            let _ = fs::write(path, before);
        }
    }
}
