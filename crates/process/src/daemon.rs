//! Daemonizes, as nginx does: one fork, a new session, no terminal. Standard error stays open until
//! the log replaces it.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io;

/// Continues in a child, and ends this process with code 0. The error is the failed call, in
/// nginx's words.
///
/// Must be called while the process has one thread: the child would miss the others.
pub(crate) fn daemonize() -> Result<(), String> {
    let failed = |call: &str, error: io::Error| crate::log::failure(call, &error);
    // SAFETY: the process has one thread (said above), so the child is whole.
    match unsafe { libc::fork() } {
        -1 => return Err(failed("fork() failed", io::Error::last_os_error())),
        0 => {}
        // SAFETY: ends the process without running its exit handlers (atexit(3)), which the child
        // runs later.
        _ => unsafe { libc::_exit(0) },
    }
    rustix::process::setsid().map_err(|error| failed("setsid() failed", error.into()))?;
    rustix::process::umask(rustix::fs::Mode::empty());
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(|error| failed("open(\"/dev/null\") failed", error))?;
    rustix::stdio::dup2_stdin(&null).map_err(|error| failed("dup2(STDIN) failed", error.into()))?;
    rustix::stdio::dup2_stdout(&null).map_err(|error| failed("dup2(STDOUT) failed", error.into()))
}
