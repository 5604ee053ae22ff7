//! The interface between the loop over peers and a protocol: [`Caller`] is the request or session
//! that is proxied, [`PeerProtocol`] connects to a peer and exchanges request and response.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use engine::net::{Address, SocketOptions};
use logs::Subject;

use crate::causes::Causes;
use crate::peer::Peer;
use crate::try_peers::CONNECTING;

/// The request or session that is proxied. Log lines are written on its behalf.
pub trait Caller: Subject {
    /// The client, borrowed separately: the loop watches for its disconnect while it waits for
    /// peers.
    type Client;

    /// How the client has disconnected.
    type Gone;

    /// Waits until the client has disconnected.
    fn gone(client: &mut Self::Client) -> impl Future<Output = Self::Gone>;

    /// Called when the client has disconnected, which ends the current attempt. `doing` is the
    /// interrupted activity, for log lines.
    fn left(&mut self, client: &Self::Client, gone: Self::Gone, doing: &'static str) -> Self::Gone;

    /// The id of the preferred peer ([`Peer::id`]), for stickiness. Called before each attempt.
    fn wanted(&self) -> Option<Bytes> {
        None
    }

    /// Called when this peer has been chosen.
    fn chosen(&mut self, _: &Peer) {}

    /// Called when the chosen peer has failed.
    fn peer_failed(&mut self) {}

    /// Called before the first attempt. Must reset the results of an earlier call of `try_peers`.
    fn begins(&mut self) {}

    /// Called when an attempt at a peer begins.
    fn try_begins(&mut self, attempt: AttemptStart<'_>);

    /// Called when the group's concurrency limit refuses the request; `waited` is the time in the
    /// queue. No peer is tried.
    fn turned_away(&mut self, group: &Bytes, status: u16, waited: Option<Duration>);

    /// Suggests a time for `Retry-After`.
    fn come_again(&mut self, _: Duration) {}

    /// Called when connecting to the peer has timed out, before the failure is counted.
    fn connecting_timed_out(&self) {}

    /// The phrase for log lines about a connection that failed after `connect()` returned.
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

/// An attempt at a peer that begins.
pub struct AttemptStart<'a> {
    /// The address of the peer as `$upstream_addr` shows it, or the name of the group if no peer is
    /// left.
    pub name: &'a Bytes,
    /// The address of the peer; `None` if no peer is left.
    pub address: Option<&'a Address>,
    /// How long the request waited in the group's queues, if it waited.
    pub waited: Option<Duration>,
}

/// The protocol between the proxy and the peers; one value serves all attempts of a request.
pub trait PeerProtocol<C: Caller> {
    /// A connection to a peer.
    type Connection;

    /// The response of a peer.
    type Answer;

    /// The phrase for log lines about a response whose status has been received.
    const READING: &'static str;

    /// The timeouts and the retry limits.
    fn tries(&self) -> &RetryPolicy;

    /// Called when an attempt begins. Must reset the state of the previous attempt.
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

    /// The status of a response, if the protocol has one; it may count as a failure.
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
    /// How long sending may make no progress.
    pub send_timeout: Duration,
    /// Whether the request continues if the client has disconnected.
    pub ignore_client_abort: bool,
    /// The failures after which the next peer is tried.
    pub next_upstream: Causes,
    /// The limit of attempts; 0 is no limit.
    pub next_upstream_tries: usize,
    /// The time limit of all attempts; zero is no limit.
    pub next_upstream_timeout: Duration,
}

/// How to proceed if a peer's listen backlog is full. Only used for Unix sockets, since only their
/// `connect()` fails when the backlog is full.
#[derive(Clone, Copy, Default)]
pub struct ConnectionRoom {
    /// Requests that the peer has not answered yet.
    pub unheard: usize,
    /// Whether the request goes to another peer, instead of waiting, if this peer's backlog is
    /// full.
    pub goes_elsewhere: bool,
}

/// The configured options of the sockets that connect to peers.
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
    /// The phrase that says in log lines during which activity the attempt failed.
    pub doing: &'static str,
    /// Whether a part of the request may have reached the peer.
    pub sent: bool,
    /// Whether the connection was idle in the pool before, so that the peer may have closed it
    /// before the request arrived.
    pub kept: bool,
    /// Whether another peer is tried without asking `may_try_next`, which has permitted it already.
    pub again: bool,
    /// Whether the peer was too busy to accept the request, which does not count as a failure of
    /// the peer.
    pub is_busy: bool,
    /// Whether another request on the shared connection may have caused the end of the connection.
    /// If so, and if attempts are not limited, this attempt does not count.
    pub is_of_others: bool,
}

impl AttemptFailure {
    /// A failure before any part of the request was sent.
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
