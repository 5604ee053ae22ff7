//! The states of a connection (RFC 9293, section 3.3.2), each with exactly the data that it needs.
//!
//! ```text
//!            connect                                             listen (a `Listener`)
//!  (nothing) ───────▶ SynSent ──────── SYN ───────▶ SynReceived ◀──── SYN ──── (nothing)
//!                        │ SYN+ACK                      │ ACK                      │ ACK with
//!                        ▼                              ▼                          ▼ a cookie
//!     ┌─ Synchronized ────────────────────────────────────────────────────────────────────┐
//!     │                               Phase::Established                                  │
//!     │                  finish │                             │ FIN                        │
//!     │                         ▼                             ▼                            │
//!     │                     FinWait1 ── FIN ──▶ Closing     CloseWait                       │
//!     │       ACK of FIN │      │ FIN, ACK of FIN   │           │ finish                   │
//!     │                  ▼      │                   │           ▼                          │
//!     │              FinWait2   │                   │        LastAck                       │
//!     └────────────────│────────│───────────────────│───────────│──────────────────────────┘
//!                  FIN ▼        ▼        ACK of FIN ▼           ▼ ACK of FIN
//!                              TimeWait                       Closed
//!                                  │ two maximum segment lifetimes ▲
//!                                  └───────────────────────────────┘
//! ```
//!
//! A valid RST leads from every state but `TimeWait` to `Closed` (`input.rs`), which lasts until
//! the application has released the connection. LISTEN is not a state of a connection here.

use std::time::Duration;

use super::handshake::{SynReceived, SynSent};
use super::inbox::{Inbox, InboxMemory};
use super::time_wait::TimeWait;
use super::{Connection, Effects, Outgoing, Settings};
use crate::wire::tcp::Segment;

/// The state of a connection, by what it waits for.
#[derive(Debug)]
pub(crate) enum State {
    /// The peer's SYN, after ours.
    SynSent(SynSent),
    /// The acknowledgment of our SYN.
    SynReceived(SynReceived),
    /// Data, and the end of both directions.
    Synchronized(Box<Connection>),
    /// The expiry of old segments in the network.
    TimeWait(TimeWait),
    /// The release by the application.
    Closed(Reason, Inbox),
}

impl State {
    /// Reads a word of each part that a segment of an established connection needs, to prefetch it.
    pub(crate) fn touch(&self) -> usize {
        match self {
            State::Synchronized(connection) => connection.touch(),
            _ => 0,
        }
    }

    /// Handles a segment; its data are stored in `memory` as far as there is room.
    pub(crate) fn handle_segment(
        &mut self,
        now: Duration,
        settings: &Settings,
        segment: &Segment<'_>,
        memory: &mut InboxMemory,
    ) -> Effects {
        match self {
            State::SynSent(state) => state.handle_segment(now, settings, segment),
            State::SynReceived(state) => state.handle_segment(now, settings, segment, memory),
            State::Synchronized(connection) => connection.handle_segment(now, segment, memory),
            State::TimeWait(state) => state.handle_segment(now, segment),
            State::Closed(..) => Effects::default(),
        }
    }

    /// Handles expired timers.
    pub(crate) fn handle_timeout(&mut self, now: Duration, settings: &Settings) -> Effects {
        match self {
            State::SynSent(state) => state.handle_timeout(now, settings),
            State::SynReceived(state) => state.handle_timeout(now, settings),
            State::Synchronized(connection) => connection.handle_timeout(now),
            State::TimeWait(state) => state.handle_timeout(now),
            State::Closed(..) => Effects::default(),
        }
    }

    /// The next segment to send, or `None` if there is none now.
    pub(crate) fn poll_segment(&mut self, now: Duration, settings: &Settings) -> Option<Outgoing> {
        match self {
            State::SynSent(state) => state.poll_segment(now, settings),
            State::SynReceived(state) => state.poll_segment(now, settings),
            State::Synchronized(connection) => connection.poll_segment(now),
            State::TimeWait(state) => state.poll_segment(now),
            State::Closed(..) => None,
        }
    }

    /// The time of the next timer.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match self {
            State::SynSent(state) => state.deadline(),
            State::SynReceived(state) => state.deadline(),
            State::Synchronized(connection) => connection.deadline(),
            State::TimeWait(state) => Some(state.deadline()),
            State::Closed(..) => None,
        }
    }

    /// Received bytes that the application has not read.
    pub(crate) fn unread(&self) -> usize {
        match self {
            State::SynSent(_) | State::SynReceived(_) => 0,
            State::Synchronized(connection) => connection.inbox.len(),
            State::TimeWait(state) => state.inbox.len(),
            State::Closed(_, inbox) => inbox.len(),
        }
    }

    /// Heap memory of the state, in bytes.
    pub(crate) fn occupied(&self) -> usize {
        match self {
            State::SynSent(_) | State::SynReceived(_) => 0,
            State::Synchronized(connection) => size_of::<Connection>() + connection.occupied(),
            State::TimeWait(state) => state.inbox.occupied(),
            State::Closed(_, inbox) => inbox.occupied(),
        }
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Both ends have finished, in order.
    Finished,
    /// The peer has reset the connection.
    Reset,
    /// No socket listens at the peer's port.
    Refused,
    /// The peer has not responded for too long (RFC 9293, section 3.8.3, R2).
    TimedOut,
    /// The next hop's hardware address could not be resolved.
    Unreachable,
    /// The application has aborted the connection.
    Aborted,
}

/// The states in which both ends know each other's sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Both directions are open.
    Established,
    /// This end has finished, and waits for the acknowledgment.
    FinWait1,
    /// This end has finished, and the peer may still send.
    FinWait2,
    /// The peer has finished, and this end may still send.
    CloseWait,
    /// Both have finished; the peer's FIN is acknowledged, ours is not yet.
    Closing,
    /// Both have finished, the peer first; our FIN is not acknowledged yet.
    LastAck,
}

/// The successor of a [`Phase`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transition {
    Phase(Phase),
    TimeWait,
    Closed(Reason),
}

impl Phase {
    /// After the application has finished.
    pub(crate) fn on_finish(self) -> Phase {
        match self {
            Phase::Established => Phase::FinWait1,
            Phase::CloseWait => Phase::LastAck,
            finished => finished,
        }
    }

    /// After the peer's FIN, and everything before it, has been received.
    pub(crate) fn on_fin(self) -> Transition {
        match self {
            Phase::Established => Transition::Phase(Phase::CloseWait),
            Phase::FinWait1 => Transition::Phase(Phase::Closing),
            Phase::FinWait2 => Transition::TimeWait,
            ended => Transition::Phase(ended),
        }
    }

    /// After our FIN has been acknowledged.
    pub(crate) fn on_fin_acknowledged(self) -> Transition {
        match self {
            Phase::FinWait1 => Transition::Phase(Phase::FinWait2),
            Phase::Closing => Transition::TimeWait,
            Phase::LastAck => Transition::Closed(Reason::Finished),
            other => Transition::Phase(other),
        }
    }

    /// Whether the application may still send.
    pub(crate) fn may_send(self) -> bool {
        matches!(self, Phase::Established | Phase::CloseWait)
    }

    /// Whether the peer may still send.
    pub(crate) fn may_receive(self) -> bool {
        matches!(self, Phase::Established | Phase::FinWait1 | Phase::FinWait2)
    }
}
