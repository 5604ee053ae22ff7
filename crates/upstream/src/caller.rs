//! On whose behalf peers are asked, and how: what the loop over peers knows of a protocol.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use engine::net::{Address, SocketOptions};
use logs::Subject;

use crate::causes::Causes;
use crate::peer::Peer;

/// Who asks: a request, a session. Log lines are about it.
pub trait Caller: Subject {
    /// The client, by a borrow of its own: whether it has gone is looked at while peers are waited
    /// for.
    type Client;

    /// How it has gone.
    type Gone;

    /// Waits until the client has gone.
    fn gone(client: &mut Self::Client) -> impl Future<Output = Self::Gone>;

    /// The client has gone while this was being done, and the try under way ends with that.
    fn left(&mut self, client: &Self::Client, gone: Self::Gone, doing: &'static str) -> Self::Gone;

    /// The peer that it wants, by its name ([`Peer::id`]): asked before each try.
    fn wanted(&self) -> Option<Bytes> {
        None
    }

    /// This peer has been chosen.
    fn chosen(&mut self, _: &Peer) {}

    /// The peer that was chosen has failed.
    fn peer_failed(&mut self) {}

    /// Peers are about to be asked: what was said of an earlier time holds no more.
    fn begins(&mut self) {}

    /// An attempt at a peer begins.
    fn try_begins(&mut self, attempt: AttemptStart<'_>);

    /// The group lets nobody in for now, which was found out after this time of waiting. The try
    /// that would have been is over.
    fn turned_away(&mut self, group: &Bytes, status: u16, waited: Option<Duration>);

    /// After this time there may be less to do.
    fn come_again(&mut self, _: Duration) {}

    /// The peer could not be connected to in time. The failure is counted next.
    fn connecting_timed_out(&self) {}

    /// The try is over, and its failure has been counted.
    fn try_failed(&mut self, failure: &AttemptFailure);

    /// The time from the beginning of the try to the head of the answer, where the answer has a
    /// head.
    fn head_time(&self) -> Option<Duration> {
        None
    }

    /// Whether what is asked may change something, so that asking twice may do it twice.
    fn changes_something(&self) -> bool {
        false
    }
}

/// A try that begins.
pub struct AttemptStart<'a> {
    /// The peer's address as it is shown, or the group's name where no peer is left.
    pub name: &'a Bytes,
    /// Where the peer is; `None` where none is left.
    pub address: Option<&'a Address>,
    /// How long the try has waited for its turn, if it has.
    pub waited: Option<Duration>,
}

/// What is the same for each peer that is tried, and how each is asked.
pub trait PeerProtocol<C: Caller> {
    /// What leads to a peer.
    type Connection;

    /// What comes of asking it.
    type Answer;

    /// What is being done when the status of an answer has come, as log lines say it.
    const READING: &'static str;

    /// For how long and how often peers are asked.
    fn tries(&self) -> &RetryPolicy;

    /// A try begins, which may come to nothing before anything is said: what is known of the one
    /// before is of no use any more.
    fn try_begins(&self) {}

    /// Connects to a peer, or takes a connection that there is; whether that had been kept with
    /// nothing under way, so that the peer may have closed it meanwhile.
    fn connect(
        &self,
        caller: &mut C,
        client: &mut C::Client,
        address: &Address,
        room: ConnectionRoom,
    ) -> impl Future<Output = Result<(Self::Connection, bool), AttemptError<C::Gone>>>;

    /// Has the dialogue with the peer.
    fn talk(
        &self,
        caller: &mut C,
        client: &mut C::Client,
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<Self::Answer, AttemptError<C::Gone>>>;

    /// The status of an answer that may be as bad as none.
    fn status(&self, _: &Self::Answer) -> Option<u16> {
        None
    }

    /// Whether it can begin anew with another peer though this one may have heard some of it.
    fn can_be_repeated(&self) -> bool;
}

/// For how long and how often peers are asked, whatever they are asked.
#[derive(Clone, Copy)]
pub struct RetryPolicy {
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long a peer may take nothing of what it is sent.
    pub send_timeout: Duration,
    /// Peers are asked to the end, whether or not the client has gone.
    pub ignore_client_abort: bool,
    /// After which failures the next peer is asked.
    pub next_upstream: Causes,
    /// 0 is no limit.
    pub next_upstream_tries: usize,
    /// Zero is no limit.
    pub next_upstream_timeout: Duration,
}

/// What there is to know of the room that a request needs at a peer. Only Unix sockets are waited
/// for, so that of others nothing is.
#[derive(Clone, Copy, Default)]
pub struct ConnectionRoom {
    /// How many requests the peer has that it has not heard.
    pub unheard: usize,
    /// The request goes to another peer where this one has no room.
    pub goes_elsewhere: bool,
}

/// What the socket of a connection is to be.
#[derive(Default)]
pub struct Socket {
    /// The options of the socket.
    pub options: SocketOptions,
    /// The local address as the configuration has it, for log lines.
    pub name: Bytes,
}

/// Why a try came to nothing.
#[derive(Debug)]
pub struct AttemptFailure {
    /// The kind of reason.
    pub cause: Causes,
    /// The status to answer with if no other peer is tried.
    pub status: u16,
    /// What was being done, for log lines.
    pub doing: &'static str,
    /// Whether some of the request may have reached the peer.
    pub sent: bool,
    /// Whether the connection had been kept, so that the peer may have closed it before it saw the
    /// request.
    pub kept: bool,
    /// It has been decided already that another peer is tried.
    pub again: bool,
    /// The peer had too much to do to take it, which is no failure of the peer.
    pub is_busy: bool,
    /// Others that shared the connection may be why it has ended: one more try does not count,
    /// where tries are not limited.
    pub is_of_others: bool,
}

impl AttemptFailure {
    /// A failure that nothing more is known of: nothing has been sent.
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

    /// That of a connection which has broken, or has been silent for too long.
    pub fn of_connection(error: &io::Error, doing: &'static str) -> AttemptFailure {
        if error.kind() == io::ErrorKind::TimedOut {
            AttemptFailure::new(Causes::TIMEOUT, 504, doing)
        } else {
            AttemptFailure::new(Causes::ERROR, 502, doing)
        }
    }
}

/// How a try ends without an answer.
#[derive(Debug)]
pub enum AttemptError<G> {
    /// Another peer may be tried.
    Failed(AttemptFailure),
    /// The caller is to be answered with this status, whatever other peers would say.
    Refused(u16),
    /// The client has gone.
    Aborted(G),
}

impl<G> From<G> for AttemptError<G> {
    fn from(gone: G) -> AttemptError<G> {
        AttemptError::Aborted(gone)
    }
}

/// No peer has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// The status to answer with.
    pub status: u16,
    /// How the last try has failed; `None` where that is not the peers' doing.
    pub cause: Option<Causes>,
}

impl Unanswered {
    /// It is not the peers' doing.
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
