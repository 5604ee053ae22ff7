//! The interface between the loop over peers and a protocol: [`Caller`] is the request or session
//! that is proxied, [`PeerProtocol`] how a peer is talked to.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use engine::net::{Address, SocketOptions};
use logs::Subject;

use crate::causes::Causes;
use crate::peer::Peer;
use crate::try_peers::CONNECTING;

/// The request or session that is proxied, which log lines are about.
pub trait Caller: Subject {
    /// The client, borrowed separately: the loop watches for its disconnect while it waits for
    /// peers.
    type Client;

    /// How the client has disconnected.
    type Gone;

    /// Waits until the client has disconnected.
    fn gone(client: &mut Self::Client) -> impl Future<Output = Self::Gone>;

    /// Called when the client has disconnected during this activity, which ends the current
    /// attempt.
    fn left(&mut self, client: &Self::Client, gone: Self::Gone, doing: &'static str) -> Self::Gone;

    /// The id of the preferred peer ([`Peer::id`]), for stickiness. Called before each attempt.
    fn wanted(&self) -> Option<Bytes> {
        None
    }

    /// Called when this peer has been chosen.
    fn chosen(&mut self, _: &Peer) {}

    /// Called when the chosen peer has failed.
    fn peer_failed(&mut self) {}

    /// Called before the first attempt: results of earlier attempts must be reset.
    fn begins(&mut self) {}

    /// Called when an attempt at a peer begins.
    fn try_begins(&mut self, attempt: AttemptStart<'_>);

    /// Called when the group refuses the request, after this time in the queue. Ends the attempt.
    fn turned_away(&mut self, group: &Bytes, status: u16, waited: Option<Duration>);

    /// Suggests a time for `Retry-After`.
    fn come_again(&mut self, _: Duration) {}

    /// Called when connecting to the peer has timed out, before the failure is counted.
    fn connecting_timed_out(&self) {}

    /// The activity in log lines about a connection that has failed after `connect()` returned.
    fn connecting(&self) -> &'static str {
        CONNECTING
    }

    /// Called when an attempt has failed and its failure has been counted.
    fn try_failed(&mut self, failure: &AttemptFailure);

    /// The time from the begin of the attempt to the response head, if the protocol has one.
    fn head_time(&self) -> Option<Duration> {
        None
    }

    /// Whether the request is non-idempotent, so that a retry could have its effect twice.
    fn changes_something(&self) -> bool {
        false
    }
}

/// The begin of an attempt.
pub struct AttemptStart<'a> {
    /// The address of the peer as it is displayed, or the name of the group if no peer is left.
    pub name: &'a Bytes,
    /// The address of the peer; `None` if no peer is left.
    pub address: Option<&'a Address>,
    /// How long the request has waited in the queue, if it has.
    pub waited: Option<Duration>,
}

/// How peers are talked to; the same for every peer that is tried.
pub trait PeerProtocol<C: Caller> {
    /// A connection to a peer.
    type Connection;

    /// The response of a peer.
    type Answer;

    /// The activity when the status of a response has been received, for log lines.
    const READING: &'static str;

    /// The timeouts and the retry limits.
    fn tries(&self) -> &RetryPolicy;

    /// Called when an attempt begins: state of the attempt before must be reset.
    fn try_begins(&self) {}

    /// Connects to a peer, or takes a connection from the pool. The flag says whether the
    /// connection was idle in the pool, so that the peer may have closed it meanwhile.
    fn connect(
        &self,
        caller: &mut C,
        client: &mut C::Client,
        address: &Address,
        room: ConnectionRoom,
    ) -> impl Future<Output = Result<(Self::Connection, bool), AttemptError<C::Gone>>>;

    /// Sends the request to the peer and reads the response.
    fn talk(
        &self,
        caller: &mut C,
        client: &mut C::Client,
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<Self::Answer, AttemptError<C::Gone>>>;

    /// The status of a response that may count as a failure.
    fn status(&self, _: &Self::Answer) -> Option<u16> {
        None
    }

    /// Whether the request can be sent to another peer after a part of it has been sent to this
    /// one.
    fn can_be_repeated(&self) -> bool;
}

/// The timeouts and retry limits of proxying, for any protocol.
#[derive(Clone, Copy)]
pub struct RetryPolicy {
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long a peer may read nothing.
    pub send_timeout: Duration,
    /// The request continues even if the client has disconnected.
    pub ignore_client_abort: bool,
    /// The failures after which the next peer is tried.
    pub next_upstream: Causes,
    /// The limit of attempts; 0 is no limit.
    pub next_upstream_tries: usize,
    /// The time limit of all attempts; zero is no limit.
    pub next_upstream_timeout: Duration,
}

/// Load of a peer, for the wait for its listen backlog. Only used for Unix sockets, since only
/// their `connect()` fails when the backlog is full.
#[derive(Clone, Copy, Default)]
pub struct ConnectionRoom {
    /// Requests that the peer has not answered yet.
    pub unheard: usize,
    /// If this peer's backlog is full, the request goes to another peer instead of waiting.
    pub goes_elsewhere: bool,
}

/// The settings of a connection's socket.
#[derive(Default)]
pub struct Socket {
    /// The options of the socket.
    pub options: SocketOptions,
    /// The local address as it is configured, for log lines.
    pub name: Bytes,
}

/// Why an attempt failed.
#[derive(Debug)]
pub struct AttemptFailure {
    /// The cause, for `*_next_upstream`.
    pub cause: Causes,
    /// The status to answer with if no other peer is tried.
    pub status: u16,
    /// The activity during which it failed, for log lines.
    pub doing: &'static str,
    /// Whether a part of the request may have reached the peer.
    pub sent: bool,
    /// Whether the connection was idle in the pool before, so that the peer may have closed it
    /// before the request arrived.
    pub kept: bool,
    /// Another peer is tried in any case.
    pub again: bool,
    /// The peer was too busy to accept the request, which does not count as its failure.
    pub is_busy: bool,
    /// Another request on the shared connection may have caused its end: one further attempt does
    /// not count, unless attempts are limited.
    pub is_of_others: bool,
}

impl AttemptFailure {
    /// A failure before anything was sent.
    pub fn new(cause: Causes, status: u16, doing: &'static str) -> AttemptFailure {
        AttemptFailure {
            cause,
            status,
            doing,
            sent: false,
            kept: false,
            again: false,
            is_busy: false,
            is_of_others: false,
        }
    }

    /// The failure of a connection that has broken or timed out.
    pub fn of_connection(error: &io::Error, doing: &'static str) -> AttemptFailure {
        if error.kind() == io::ErrorKind::TimedOut {
            AttemptFailure::new(Causes::TIMEOUT, 504, doing)
        } else {
            AttemptFailure::new(Causes::ERROR, 502, doing)
        }
    }
}

/// How an attempt ends without a response.
#[derive(Debug)]
pub enum AttemptError<G> {
    /// Another peer may be tried.
    Failed(AttemptFailure),
    /// The request is answered with this status, without trying other peers.
    Refused(u16),
    /// The client has disconnected.
    Aborted(G),
}

impl<G> From<G> for AttemptError<G> {
    fn from(gone: G) -> AttemptError<G> {
        AttemptError::Aborted(gone)
    }
}

/// No peer has responded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// The status to answer with.
    pub status: u16,
    /// The cause of the last failure; `None` if no peer is to blame.
    pub cause: Option<Causes>,
}

impl Unanswered {
    /// A failure of our own, for which no peer is to blame.
    pub fn of_ours(status: u16) -> Unanswered {
        Unanswered {
            status,
            cause: None,
        }
    }
}

impl From<AttemptFailure> for Unanswered {
    fn from(failure: AttemptFailure) -> Unanswered {
        Unanswered {
            status: failure.status,
            cause: Some(failure.cause),
        }
    }
}
