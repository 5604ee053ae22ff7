//! Tries the peers of a group for an HTTP request ([`::upstream::try_peers()`]): records the
//! attempts for `$upstream_*`, connects to a peer, and runs the [`Dialogue`] on the connection.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::upstream::connecting::{self, ConnectOptions, Connected};
use ::upstream::pool::{self, Connection, Made};
use ::upstream::{
    Answered, AttemptFailure, AttemptStart, Caller, ConnectionRoom, Peer, RetryPolicy, Unanswered,
};
use bytes::Bytes;
use engine::PooledFuture;
use engine::net::{Address, Segment};
use engine::select::{Either, either};
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::request::Request;
use http_client::{Acquired, LinkOptions};
use logs::{ErrorLog, Level, Subject, Subsystem};
use proto::method::Method;

use super::activity;
use super::attempts::{AskedFor, Attempt, Attempts, Began};
use super::connect_target::ConnectTarget;
use super::connection::{PoolContext, UpstreamConnection};
use super::failures::{AttemptError, client_left, note};
use super::family::Causes;
use super::ssl::{self, ResolvedTls};
use crate::upstream::{Selection, StickyRequest};

/// The response field that tells a client when to retry a refused request.
const RETRY_AFTER: &str = "Retry-After";

/// The exchange of one request and its response with a connected peer.
pub trait Dialogue {
    /// The response.
    type Answer;

    /// Sends the request on a connection and reads the response head.
    fn talk(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        peer: &mut UpstreamConnection,
    ) -> impl Future<Output = Result<Self::Answer, AttemptError>>;

    /// The status of a response, which `*_next_upstream` may count as a failure; `None` if the
    /// protocol has no status.
    fn status(&self, answer: &Self::Answer) -> Option<u16>;

    /// Whether the request can be sent to another peer after a part of it has been sent to a peer.
    fn can_be_repeated(&self) -> bool;

    /// The size of the request's head as HTTP/2 counts it, if peers have shared connections.
    fn head_size(&self) -> usize {
        0
    }

    /// Called when an attempt begins: the dialogue must reset the state of the attempt before.
    fn try_begins(&self) {}
}

/// The settings that are the same for every attempt of a request.
pub struct AttemptPlan<'a, C> {
    /// After which failures, and how often, the next peer is tried.
    pub(crate) tries: RetryPolicy,
    /// How peers are connected to.
    pub(crate) reach: &'a ConnectTarget,
    /// The dialogue to run with a peer.
    pub(crate) conversation: C,
    /// The pool of idle connections to the group's peers.
    pub(crate) home: &'a PoolContext,
}

impl<C> AttemptPlan<'_, C> {
    /// Takes an idle connection to this peer from the pool; `None` if there is none, or if
    /// connections are shared.
    fn kept(&self, address: &Address) -> Option<Box<Connection>> {
        let (reach, home) = (self.reach, self.home);
        if reach.is_shared {
            None
        } else {
            pool::take(&home.local, &home.group.shared, address, &reach.terms)
        }
    }

    /// Wraps a connection for a request.
    fn over(&self, connection: Box<Connection>) -> UpstreamConnection {
        UpstreamConnection::over(connection, self.tries.send_timeout, self.home.clone())
    }
}

/// Tries peers until one responds.
pub async fn try_peers<C: Dialogue>(
    request: &mut Request,
    exchange: &mut Exchange,
    selection: &mut Selection,
    asking: &AttemptPlan<'_, C>,
) -> Result<Result<(UpstreamConnection, C::Answer), Unanswered>, Abort> {
    let (peers, sticking) = selection.parts();
    let mut asker = RequestCaller {
        request,
        reach: asking.reach,
        sticking,
    };
    let asked = ::upstream::try_peers(&mut asker, exchange, peers, asking).await;
    if !matches!(asked, Ok(Ok(_))) {
        // Learns the session unless the last attempt has failed, so that it stays bound to a peer
        // that is not to blame.
        drop(selection.at_end(request));
    }
    asked.map(|answered| {
        answered.map(|answered| {
            let Answered {
                mut connection,
                answer,
                lease,
                admitted,
            } = answered;
            connection.lease = lease;
            connection.admitted = admitted;
            (connection, answer)
        })
    })
}

/// The proxied request, as a [`Caller`] of the loop over peers.
struct RequestCaller<'a> {
    request: &'a mut Request,
    reach: &'a ConnectTarget,
    /// The request's sticky session, if the group has them.
    sticking: Option<&'a mut StickyRequest>,
}

impl Subject for RequestCaller<'_> {
    #[inline]
    fn admits(&self, level: Level) -> bool {
        self.request.admits(level)
    }

    fn with_log(&self, write: &mut dyn FnMut(&Arc<ErrorLog>)) {
        self.request.with_log(write);
    }

    fn is_debugged(&self) -> bool {
        self.request.is_debugged()
    }

    fn subsystem(&self) -> Subsystem {
        self.request.subsystem()
    }

    fn serial(&self) -> Option<u64> {
        self.request.serial()
    }

    fn doing(&self) -> &str {
        self.request.doing()
    }

    fn describe(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.request.describe(out)
    }
}

impl RequestCaller<'_> {
    /// Notes that a connection was available at once.
    fn connected_at_once(&mut self) {
        note(self.request, |attempt, _| {
            attempt.connect_time = Some(Duration::ZERO)
        });
    }

    /// Records an attempt at the peer or the group of this name.
    fn enter(&mut self, attempt: Attempt, is_at_peer: bool) {
        let attempts = Attempts::enter(self.request);
        let mut seen = attempts.borrow_mut();
        seen.asked_for = Some(AskedFor {
            scheme: self.reach.scheme,
            peer: attempt.peer.clone(),
            uri: self.reach.uri.clone(),
        });
        seen.began = Began::now();
        if is_at_peer {
            seen.answer = None; // the head is that of the previous peer
        }
        seen.attempts.push(attempt);
    }
}

impl Caller for RequestCaller<'_> {
    type Client = Exchange;

    type Gone = Abort;

    fn gone(client: &mut Exchange) -> impl Future<Output = Abort> {
        client.client_gone()
    }

    fn left(&mut self, client: &Exchange, gone: Abort, doing: &'static str) -> Abort {
        client_left(self.request, client, &gone, doing)
    }

    fn wanted(&self) -> Option<Bytes> {
        self.sticking.as_ref()?.wanted(self.request)
    }

    fn chosen(&mut self, peer: &Peer) {
        if let Some(sticking) = &mut self.sticking {
            sticking.asks(self.request, peer.id.clone());
        }
    }

    fn peer_failed(&mut self) {
        if let Some(sticking) = &mut self.sticking {
            sticking.has_failed();
        }
    }

    fn begins(&mut self) {
        self.request.response.remove(RETRY_AFTER.as_bytes());
    }

    fn try_begins(&mut self, begun: AttemptStart<'_>) {
        let attempt = Attempt {
            peer: begun.name.clone(),
            queue_time: begun.waited,
            ..Attempt::default()
        };
        self.enter(attempt, begun.address.is_some());
        if let Some(address) = begun.address {
            logs::error!(self.request, Debug, "http upstream connect: {address}");
        }
    }

    fn turned_away(&mut self, group: &Bytes, status: u16, waited: Option<Duration>) {
        let attempt = Attempt {
            peer: group.clone(),
            status,
            queue_time: waited,
            response_time: Some(Duration::ZERO),
            ..Attempt::default()
        };
        self.enter(attempt, false);
    }

    fn come_again(&mut self, after: Duration) {
        let whole = after.as_millis().div_ceil(1000).max(1);
        self.request.response.set(RETRY_AFTER, whole.to_string());
    }

    fn try_failed(&mut self, failure: &AttemptFailure) {
        if failure.cause == Causes::TIMEOUT {
            let doing = failure.doing;
            logs::error!(
                self.request,
                Error,
                "upstream timed out (110: Connection timed out) {doing}"
            );
        }
        note(self.request, |attempt, began| {
            attempt.response_time = began.elapsed();
            attempt.status = failure.status;
        });
    }

    fn head_time(&self) -> Option<Duration> {
        let attempts = Attempts::of(self.request)?.borrow();
        let attempt = attempts.attempts.last()?;
        Some(attempt.header_time.unwrap_or_default())
    }

    fn changes_something(&self) -> bool {
        matches!(
            self.request.method,
            Method::Post | Method::Lock | Method::Patch
        )
    }
}

impl<'a, C: Dialogue> ::upstream::PeerProtocol<RequestCaller<'a>> for AttemptPlan<'_, C> {
    type Connection = UpstreamConnection;

    type Answer = C::Answer;

    const READING: &'static str = activity::READING;

    fn tries(&self) -> &RetryPolicy {
        &self.tries
    }

    fn try_begins(&self) {
        self.conversation.try_begins();
    }

    async fn connect(
        &self,
        asker: &mut RequestCaller<'a>,
        exchange: &mut Exchange,
        address: &Address,
        room: ConnectionRoom,
    ) -> Result<(UpstreamConnection, bool), AttemptError> {
        let head_size = self.conversation.head_size();
        connect(asker, exchange, address, self, room, head_size).await
    }

    async fn talk(
        &self,
        asker: &mut RequestCaller<'a>,
        exchange: &mut Exchange,
        peer: &mut UpstreamConnection,
    ) -> Result<C::Answer, AttemptError> {
        self.conversation.talk(asker.request, exchange, peer).await
    }

    fn status(&self, answer: &C::Answer) -> Option<u16> {
        self.conversation.status(answer)
    }

    fn can_be_repeated(&self) -> bool {
        self.conversation.can_be_repeated()
    }
}

/// Connects to a given peer for a request of Tidegate's own, such as a health check.
pub(super) async fn connect_on_own_account(
    request: &mut Request,
    address: &Address,
    asking: &AttemptPlan<'_, ()>,
) -> Result<UpstreamConnection, AttemptError> {
    let mut asker = RequestCaller {
        request,
        reach: asking.reach,
        sticking: None,
    };
    let mut sink = Exchange::sink();
    let room = ConnectionRoom::default();
    let connected = connect(&mut asker, &mut sink, address, asking, room, 0).await;
    connected.map(|(peer, _)| peer)
}

/// Connects to a peer, takes a pooled connection, or takes a stream of a shared one. The flag says
/// whether the connection was idle, so that the peer may have closed it meanwhile; a shared
/// connection with other requests in flight was not idle.
async fn connect<C>(
    asker: &mut RequestCaller<'_>,
    exchange: &mut Exchange,
    address: &Address,
    asking: &AttemptPlan<'_, C>,
    room: ConnectionRoom,
    head_size: usize,
) -> Result<(UpstreamConnection, bool), AttemptError> {
    if !asking.reach.is_shared {
        return connect_exclusive(asker, exchange, address, asking, room).await;
    }
    // In memory of its own, so that the future of an HTTP/1 request is not larger for it.
    PooledFuture::new(connect_shared(
        asker, exchange, address, asking, room, head_size,
    ))
    .await
}

/// Gets a stream to a peer whose connections are shared (HTTP/2).
async fn connect_shared<C>(
    asker: &mut RequestCaller<'_>,
    exchange: &mut Exchange,
    address: &Address,
    asking: &AttemptPlan<'_, C>,
    room: ConnectionRoom,
    head_size: usize,
) -> Result<(UpstreamConnection, bool), AttemptError> {
    let home = asking.home;
    let group = &home.group.shared;
    let options = LinkOptions {
        local: &home.local,
        group,
        address,
        terms: &asking.reach.terms,
        head_size,
    };
    let acquiring = http_client::acquire(asker, exchange, &asking.tries, &options);
    let permit = match acquiring.await? {
        Acquired::Joined { stream, was_idle } => {
            asker.connected_at_once();
            return Ok((UpstreamConnection::on(stream, home.clone()), was_idle));
        }
        Acquired::Anew(permit) => permit,
    };
    let connecting = connect_exclusive(asker, exchange, address, asking, room);
    let (peer, _) = connecting.await?;
    let Some(transport) = peer.into_transport() else {
        return Err(AttemptError::Refused(500)); // unreachable: the connection is not shared
    };
    let stream = permit.begin(transport, group);
    Ok((UpstreamConnection::on(stream, home.clone()), false))
}

/// Connects to a peer with a connection that serves only this request. The flag says whether the
/// connection came from the pool. If the peer's listen backlog is full, waits until it has room,
/// unless the request can be sent to another peer.
async fn connect_exclusive<C>(
    asker: &mut RequestCaller<'_>,
    exchange: &mut Exchange,
    address: &Address,
    asking: &AttemptPlan<'_, C>,
    room: ConnectionRoom,
) -> Result<(UpstreamConnection, bool), AttemptError> {
    // Taking a pooled connection does not wait, so the client need not be watched.
    if let Some(connection) = asking.kept(address) {
        asker.connected_at_once();
        return Ok((asking.over(connection), true));
    }
    // In a box of its own, so that the future of a request with a pooled connection is not larger
    // for it.
    Box::pin(connect_anew(asker, exchange, address, asking, room)).await
}

/// Connects to a peer if the pool has no idle connection to that peer.
async fn connect_anew<C>(
    asker: &mut RequestCaller<'_>,
    exchange: &mut Exchange,
    address: &Address,
    asking: &AttemptPlan<'_, C>,
    room: ConnectionRoom,
) -> Result<(UpstreamConnection, bool), AttemptError> {
    let (tries, reach) = (&asking.tries, asking.reach);
    let deadline = engine::now() + tries.connect_timeout;
    let way = ConnectOptions {
        address,
        socket: &reach.socket,
        deadline,
        tries,
        room,
    };
    let kept = || asking.kept(address);
    let connecting = connecting::connect(asker, exchange, &way, kept);
    let stream = match connecting.await? {
        Connected::Kept(connection) => {
            asker.connected_at_once();
            return Ok((asking.over(connection), true));
        }
        Connected::Anew(stream) => stream,
    };
    let request = &mut *asker.request;
    if request.plan.core.tcp_nodelay && matches!(address, Address::Inet(_)) {
        stream.set_nodelay(true);
    }
    let made = Made::now(address.clone(), reach.terms.clone());
    let peer = asking.over(Connection::new(stream.into(), made));
    if !reach.introduction.is_empty() {
        peer.stream()
            .push(Segment::Bytes(reach.introduction.clone()));
        let length = reach.introduction.len() as u64;
        note(request, |attempt, _| attempt.bytes_sent = length);
    }
    if let Some(secured) = &reach.secured {
        secure(request, exchange, tries, &peer, secured, deadline).await?;
    }
    note(request, |attempt, began| {
        attempt.connect_time = began.elapsed()
    });
    Ok((peer, false))
}

/// Performs the TLS handshake; fails if the client leaves meanwhile.
async fn secure(
    request: &mut Request,
    exchange: &mut Exchange,
    tries: &RetryPolicy,
    peer: &UpstreamConnection,
    secured: &ResolvedTls,
    deadline: Instant,
) -> Result<(), AttemptError> {
    let shaking = ssl::do_handshake(request, peer.stream(), secured, deadline);
    if tries.ignore_client_abort {
        return shaking.await;
    }
    match either(shaking, exchange.client_gone()).await {
        Either::First(shaken) => shaken,
        Either::Second(abort) => {
            Err(client_left(request, exchange, &abort, ssl::SHAKING_HANDS).into())
        }
    }
}
