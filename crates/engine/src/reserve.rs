//! A reserve descriptor for when the process has no other left: with it a waiting client can be
//! sent an error response.
//!
//! Without a descriptor `accept()` fails, and the client hangs until its own timeout. The caller
//! decides what to send and when.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use crate::sys;

/// Bytes of a request that are read and discarded, so that the close does not reset the connection
/// before the client has read the response.
pub(crate) const READ_AWAY_MAX: usize = 4096;

/// The reserve descriptor, unless it is in use.
#[derive(Debug, Default)]
pub(crate) struct Reserve(Option<OwnedFd>);

impl Reserve {
    /// Opens the reserve descriptor if there is none and the system has one left.
    pub(crate) fn fill(&mut self) {
        if self.0.is_none() {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            self.0 = rustix::fs::open("/dev/null", flags, Mode::empty()).ok();
        }
    }

    /// Accepts the oldest waiting connection with the reserve descriptor, sends `answer` and closes
    /// the connection. False if no connection waits, or there is no reserve.
    pub(crate) fn shed_connection(&mut self, listener: BorrowedFd<'_>, answer: &[u8]) -> bool {
        let Some(reserve) = self.0.take() else {
            self.fill();
            return false;
        };
        drop(reserve);
        // The descriptor is free for this one call, unless another thread takes it first.
        let answered = match sys::accept(listener) {
            Ok((client, _)) => {
                say(&client, answer);
                true
            }
            Err(_) => false,
        };
        self.fill();
        answered
    }
}

/// Sends `answer` without waiting. A client whose socket cannot take the few bytes at once gets
/// none of them.
fn say(client: &impl AsFd, answer: &[u8]) {
    let mut request = [0; READ_AWAY_MAX];
    let _ = rustix::net::recv(client, &mut request, RecvFlags::DONTWAIT);
    let _ = rustix::net::send(client, answer, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    let _ = rustix::net::shutdown(client, Shutdown::Write);
}
