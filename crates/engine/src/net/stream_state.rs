//! The state machines of a stream in its thread's [`table`](super::table). They are independent of
//! each other.

use crate::engine::CloseMode;

/// What the owner of a stream has requested.
///
/// ```text
///           finish                everything sent, or the send timeout
///   Held ───────────▶ Finishing ───────────────────────────────────────▶ Dropped
///     └─────────────────── drop, reset, a send that has closed ─────────────▲
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HandleState {
    Held,
    /// The handle is dropped; the socket closes when all data has been sent.
    Finishing {
        /// The peer has announced that it sends nothing more.
        peer_is_done: bool,
    },
    /// The handle is dropped, and queued data need not be sent.
    Dropped,
}

impl HandleState {
    pub(super) fn is_finishing(self) -> bool {
        matches!(self, HandleState::Finishing { .. })
    }

    /// How a send that completes closes the socket.
    pub(super) fn close_mode(self) -> CloseMode {
        match self {
            HandleState::Held | HandleState::Dropped => CloseMode::Never,
            HandleState::Finishing {
                peer_is_done: false,
            } => CloseMode::Careful,
            HandleState::Finishing { peer_is_done: true } => CloseMode::Quick,
        }
    }
}

/// Whether a stream's socket is closed. A send that also closes the socket skips `Closing`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketState {
    Open,
    /// The close is in flight.
    Closing,
    Closed,
}

/// Why the next bytes of a stream cannot be sent now. Every state but `Idle` ends on its own, in
/// `Idle`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SendState {
    Idle,
    /// A send is in flight.
    InFlight,
    /// The send in flight also closes the socket, so no other close may be issued before it
    /// completes.
    LastInFlight,
    /// A pool thread is reading the next range of a file into memory.
    Warming,
    /// A chunk of a file was sent; the rest is sent in the next turn of the loop.
    NextTurn,
}

impl SendState {
    pub(super) fn is_in_flight(self) -> bool {
        matches!(self, SendState::InFlight | SendState::LastInFlight)
    }
}

/// What was last received from a stream's peer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReceiveState {
    Nothing,
    Bytes,
    /// The end of input.
    Ended,
}
