//! Converts errors of our own TCP stack to those that kernel sockets report.

use std::io;

use netstack::tcp::{CallError, Reason};

/// The I/O error for a failed call.
pub(crate) fn error_of(error: CallError) -> io::Error {
    io::Error::from_raw_os_error(match error {
        CallError::Unknown | CallError::Connecting => libc::ENOTCONN,
        CallError::Finished => libc::EPIPE,
        CallError::Ended(reason) => errno(reason),
    })
}

/// The errno for the reason why a connection ended.
pub(crate) fn errno(reason: Reason) -> i32 {
    match reason {
        Reason::Finished => libc::EPIPE,
        Reason::Reset | Reason::Aborted => libc::ECONNRESET,
        Reason::Refused => libc::ECONNREFUSED,
        Reason::TimedOut => libc::ETIMEDOUT,
        Reason::Unreachable => libc::EHOSTUNREACH,
    }
}
