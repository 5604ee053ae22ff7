//! A descriptor that is kept for the moment when there is no other left: with it a waiting client can be told so.
//!
//! Without one, `accept()` fails and the client hangs until its own patience ends. What the client is told, and when, is
//! decided in the rooms above.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags};

use super::Listener;

/// Bytes of a request that are read away, so that closing does not reset the connection before its client has read.
const READ_AWAY_MAX: usize = 4096;

/// The descriptor, while it is not in use.
#[derive(Debug, Default)]
pub struct Reserve(Option<OwnedFd>);

impl Reserve {
    /// Takes a descriptor, if there is one.
    #[must_use]
    pub fn new() -> Reserve {
        let mut reserve = Reserve(None);
        reserve.refill();
        reserve
    }

    /// Accepts the connection that has waited for longest with the reserve, sends it `answer` and closes it. False when
    /// there was none, or the reserve is empty.
    pub fn turn_away(&mut self, listener: &Listener, answer: &[u8]) -> bool {
        let Some(reserve) = self.0.take() else {
            self.refill();
            return false;
        };
        drop(reserve);
        let answered = listener
            .with_socket(|socket| {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                // The descriptor is there for this one call, unless another thread was quicker.
                rustix::net::accept_with(socket, flags)
            })
            .is_some_and(|accepted| accepted.is_ok_and(|client| say(&client, answer)));
        self.refill();
        answered
    }

    fn refill(&mut self) {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        self.0 = rustix::fs::open("/dev/null", flags, Mode::empty()).ok();
    }
}

/// Nothing is waited for: a client that cannot take the few bytes at once gets none.
fn say(client: &impl AsFd, answer: &[u8]) -> bool {
    let mut request = [0; READ_AWAY_MAX];
    let _ = rustix::net::recv(client, &mut request, RecvFlags::DONTWAIT);
    let _ = rustix::net::send(client, answer, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    let _ = rustix::net::shutdown(client, Shutdown::Write);
    true
}
