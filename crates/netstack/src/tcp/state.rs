//! The states of a connection (RFC 9293, section 3.3.2), each with what it needs and nothing else.
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
//! An RST that holds leads from everywhere but `TimeWait` to `Closed` (`input.rs`), which lasts
//! until the application has let go of the connection and then is nothing again. LISTEN is no state
//! of a connection here.

use std::time::Duration;

use super::handshake::{SynReceived, SynSent};
use super::inbox::{Inbox, InboxMemory};
use super::time_wait::TimeWait;
use super::{Connection, Effects, Outgoing, Settings};
use crate::wire::tcp::Segment;

/// A connection by what it waits for.
#[derive(Debug)]
pub(crate) enum State {
    /// For the other end's SYN, after ours.
    SynSent(SynSent),
    /// For the acknowledgment of our SYN.
    SynReceived(SynReceived),
    /// For data and the end of both directions.
    Synchronized(Box<Connection>),
    /// For segments that are still on their way to have died.
    TimeWait(TimeWait),
    /// For the application to let go of it.
    Closed(Reason, Inbox),
}

impl State {
    /// Reads a word of each part that a segment of a standing connection needs.
    pub(crate) fn touch(&self) -> usize {
        match self {
            State::Synchronized(connection) => connection.touch(),
            _ => 0,
        }
    }

    /// Takes a segment; its data are kept in `memory` as far as that has room.
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

    /// Does what has become due.
    pub(crate) fn handle_timeout(&mut self, now: Duration, settings: &Settings) -> Effects {
        match self {
            State::SynSent(state) => state.handle_timeout(now, settings),
            State::SynReceived(state) => state.handle_timeout(now, settings),
            State::Synchronized(connection) => connection.handle_timeout(now),
            State::TimeWait(state) => state.handle_timeout(now),
            State::Closed(..) => Effects::default(),
        }
    }

    /// The next segment to send, or `None` when there is none for now.
    pub(crate) fn poll_segment(&mut self, now: Duration, settings: &Settings) -> Option<Outgoing> {
        match self {
            State::SynSent(state) => state.poll_segment(now, settings),
            State::SynReceived(state) => state.poll_segment(now, settings),
            State::Synchronized(connection) => connection.poll_segment(now),
            State::TimeWait(state) => state.poll_segment(now),
            State::Closed(..) => None,
        }
    }

    /// The next time at which something is to happen.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match self {
            State::SynSent(state) => state.deadline(),
            State::SynReceived(state) => state.deadline(),
            State::Synchronized(connection) => connection.deadline(),
            State::TimeWait(state) => Some(state.deadline()),
            State::Closed(..) => None,
        }
    }

    /// Bytes that have come and wait for the application.
    pub(crate) fn unread(&self) -> usize {
        match self {
            State::SynSent(_) | State::SynReceived(_) => 0,
            State::Synchronized(connection) => connection.inbox.len(),
            State::TimeWait(state) => state.inbox.len(),
            State::Closed(_, inbox) => inbox.len(),
        }
    }

    /// Memory that the state takes beside itself.
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
    /// Both ends have finished.
    Finished,
    /// The other end has reset it.
    Reset,
    /// No socket listens at the peer's port.
    Refused,
    /// Nothing was heard for too long (RFC 9293, section 3.8.3, R2).
    TimedOut,
    /// Nobody answers for the address of the next hop.
    Unreachable,
    /// This end has aborted it.
    Aborted,
}

/// The states in which both ends know each other's sequence numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Both directions are open.
    Established,
    /// We have finished and wait for the acknowledgment of that.
    FinWait1,
    /// We have finished, and the other end may still send.
    FinWait2,
    /// The other end has finished, and we may still send.
    CloseWait,
    /// Both have finished; we wait for the acknowledgment of ours, and have acknowledged theirs.
    Closing,
    /// Both have finished, they first; we wait for the acknowledgment of ours.
    LastAck,
}

/// Where a connection goes from a [`Phase`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transition {
    Phase(Phase),
    TimeWait,
    Closed(Reason),
}

impl Phase {
    /// The application has finished.
    pub(crate) fn on_finish(self) -> Phase {
        match self {
            Phase::Established => Phase::FinWait1,
            Phase::CloseWait => Phase::LastAck,
            finished => finished,
        }
    }

    /// The other end's FIN has been taken, and everything before it.
    pub(crate) fn on_fin(self) -> Transition {
        match self {
            Phase::Established => Transition::Phase(Phase::CloseWait),
            Phase::FinWait1 => Transition::Phase(Phase::Closing),
            Phase::FinWait2 => Transition::TimeWait,
            ended => Transition::Phase(ended),
        }
    }

    /// Our FIN has been acknowledged.
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

    /// Whether the other end may still send.
    pub(crate) fn may_receive(self) -> bool {
        matches!(self, Phase::Established | Phase::FinWait1 | Phase::FinWait2)
    }
}
