//! One stream of a connection (RFC 9113, section 5.1), as long as someone keeps it.
//!
//! ```text
//!             HEADERS                 END_STREAM received
//!   idle ───────────────▶ open ───────────────────────────▶ half closed (remote)
//!                          │ END_STREAM sent                        │ END_STREAM sent
//!                          ▼                                        ▼
//!                 half closed (local) ──END_STREAM received──▶   closed ──▶ released by its user
//!                          └─────── RST_STREAM either way ─────────▲
//! ```
//!
//! A stream counts against the limit of those at once until its user has let go of it: a client
//! that resets a stream does not get its place back before the work for it has ended.

use super::priority::Priority;

/// What is known of a stream; `S` is what its user keeps of it.
#[derive(Debug)]
pub struct Stream<S> {
    /// What its user keeps.
    pub user: S,
    /// The other end may still send on it.
    pub(super) receives: bool,
    /// We may still send on it.
    pub(super) sends: bool,
    /// How many bytes we may send; below zero where the other end has made its windows smaller.
    pub(super) send_window: i64,
    /// How many bytes the other end may send.
    pub(super) receive_window: u32,
    /// How many bytes may come before any of them is read.
    pub(super) window: u32,
    /// Bytes that have come and not been given back as credit.
    pub(super) unread: u32,
    /// What is left of the announced length of the body.
    pub(super) length_left: Option<u64>,
    pub(super) priority: Priority,
    /// It waits for its turn to send.
    pub(super) scheduled: bool,
    /// It has something to send.
    pub(super) has_more: bool,
}

impl<S> Stream<S> {
    /// Whether neither end sends on it any more.
    pub fn is_closed(&self) -> bool {
        !self.receives && !self.sends
    }

    /// Whether the other end may still send on it.
    pub fn receives(&self) -> bool {
        self.receives
    }

    /// Whether we may still send on it.
    pub fn sends(&self) -> bool {
        self.sends
    }

    /// How urgent it is.
    pub fn priority(&self) -> Priority {
        self.priority
    }
}
