//! The states of a stream in its thread's [`table`](super::table), each of which changes by itself.

use crate::engine::CloseMode;

/// What a stream's owner has said.
///
/// ```text
///           finish                everything sent, or the send timeout
///   Held ───────────▶ Finishing ───────────────────────────────────────▶ Dropped
///     └─────────────────── drop, reset, a send that has closed ─────────────▲
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HandleState {
    Held,
    /// The handle is gone; the socket closes when everything is sent.
    Finishing {
        /// The peer has said that it sends nothing more.
        peer_is_done: bool,
    },
    /// The handle is gone, and what is queued need not be sent.
    Dropped,
}

impl HandleState {
    pub(super) fn is_finishing(self) -> bool {
        matches!(self, HandleState::Finishing { .. })
    }

    /// How a send that takes everything ends.
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

/// Whether a stream's socket is closed. A send that ends with the close skips `Closing`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketState {
    Open,
    /// The close is in flight.
    Closing,
    Closed,
}

/// What keeps the next bytes of a stream from leaving. All but `Idle` end by themselves, in `Idle`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SendState {
    Idle,
    /// A send is in flight.
    InFlight,
    /// The send in flight ends with the close of the socket, so nobody else may close it before it
    /// has come back.
    LastInFlight,
    /// A pool thread reads the next range of a file into memory.
    Warming,
    /// A chunk of a file was sent; the rest waits for the next turn of the loop.
    NextTurn,
}

impl SendState {
    pub(super) fn is_in_flight(self) -> bool {
        matches!(self, SendState::InFlight | SendState::LastInFlight)
    }
}

/// What has come from a stream's peer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReceiveState {
    Nothing,
    Bytes,
    /// The peer sends nothing more.
    Ended,
}
