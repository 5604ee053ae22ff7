//! One stream of a connection (RFC 9113, section 5.1), from its head until the caller releases it.
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
//! A stream counts against the limit of concurrent streams until the caller releases it: a client
//! that resets a stream cannot open another in its place before the work for it has ended.

use super::priority::Priority;

/// The state of a stream; `S` is the caller's data.
#[derive(Debug)]
pub struct Stream<S> {
    /// The caller's data.
    pub user: S,
    /// Whether the peer may still send on the stream.
    pub(super) receives: bool,
    /// Whether we may still send on the stream.
    pub(super) sends: bool,
    /// Bytes that we may send; negative after the peer has reduced its initial window.
    pub(super) send_window: i64,
    /// Bytes that the peer may send.
    pub(super) receive_window: u32,
    /// Target size of the receive window: how many bytes may arrive before the caller reads any.
    pub(super) window: u32,
    /// Received bytes that the caller has not consumed.
    pub(super) unread: u32,
    /// Bytes of the body that remain by Content-Length.
    pub(super) length_left: Option<u64>,
    pub(super) priority: Priority,
    /// Whether the stream is in the schedule, waiting for its turn to send.
    pub(super) scheduled: bool,
    /// Whether the caller has something to send.
    pub(super) has_more: bool,
}

impl<S> Stream<S> {
    /// Whether both halves are closed.
    pub fn is_closed(&self) -> bool {
        !self.receives && !self.sends
    }

    /// Whether the peer may still send on the stream.
    pub fn receives(&self) -> bool {
        self.receives
    }

    /// Whether we may still send on the stream.
    pub fn sends(&self) -> bool {
        self.sends
    }

    /// The priority of the response.
    pub fn priority(&self) -> Priority {
        self.priority
    }
}
