//! A descriptor that is kept for the moment when there is no other left: with it a waiting client
//! can be told so.
//!
//! Without one, `accept()` fails and the client hangs until its own patience ends. What the client
//! is told, and when, is decided in the rooms above.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use crate::sys;

/// Bytes of a request that are read away, so that closing does not reset the connection before its
/// client has read.
pub(crate) const READ_AWAY_MAX: usize = 4096;

/// The descriptor, while it is not in use.
#[derive(Debug, Default)]
pub(crate) struct Reserve(Option<OwnedFd>);

impl Reserve {
    /// Takes a descriptor, unless it has one, if there is one.
    pub(crate) fn fill(&mut self) {
        if self.0.is_none() {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            self.0 = rustix::fs::open("/dev/null", flags, Mode::empty()).ok();
        }
    }

    /// Accepts the connection that has waited for longest with the reserve, sends it `answer` and
    /// closes it. False when there was none, or the reserve is empty.
    pub(crate) fn turn_away(&mut self, listener: BorrowedFd<'_>, answer: &[u8]) -> bool {
        let Some(reserve) = self.0.take() else {
            self.fill();
            return false;
        };
        drop(reserve);
        // The descriptor is there for this one call, unless another thread was quicker.
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

/// Nothing is waited for: a client that cannot take the few bytes at once gets none.
fn say(client: &impl AsFd, answer: &[u8]) {
    let mut request = [0; READ_AWAY_MAX];
    let _ = rustix::net::recv(client, &mut request, RecvFlags::DONTWAIT);
    let _ = rustix::net::send(client, answer, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    let _ = rustix::net::shutdown(client, Shutdown::Write);
}
