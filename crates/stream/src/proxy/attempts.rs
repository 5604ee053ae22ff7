//! Attempts of a session at upstream peers: for `$upstream_*` and log lines.

use std::cell::Cell;
use std::time::{Duration, Instant};

use bytes::Bytes;

/// One attempt at one peer.
pub(crate) struct Attempt {
    /// The peer's address, or the group's name if no peer was available.
    pub(crate) peer: Bytes,
    pub(crate) began: Instant,
    /// Time until the connection was established; `None` if it was not.
    pub(crate) connect_time: Option<Duration>,
    /// Time until the peer's first byte.
    pub(crate) first_byte_time: Cell<Option<Duration>>,
    /// Duration of the attempt, once it has ended.
    pub(crate) session_time: Option<Duration>,
    /// Bytes received from the peer.
    pub(crate) received: Cell<u64>,
    /// Bytes sent to the peer.
    pub(crate) sent: Cell<u64>,
}

impl Attempt {
    /// An attempt that starts now.
    pub(crate) fn at(peer: Bytes) -> Attempt {
        Attempt {
            peer,
            began: engine::now(),
            connect_time: None,
            first_byte_time: Cell::new(None),
            session_time: None,
            received: Cell::new(0),
            sent: Cell::new(0),
        }
    }

    /// The time since the attempt started.
    pub(crate) fn elapsed(&self) -> Duration {
        engine::now().saturating_duration_since(self.began)
    }
}
