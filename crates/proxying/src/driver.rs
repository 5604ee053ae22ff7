//! Proxies a request to an upstream and delivers the response, for any upstream protocol.
//! [`Protocol`] defines the steps in which protocols differ.
//!
//! ```text
//! target ─▶ body ─▶ TLS ─▶ head ─▶ peers are asked ─▶ intercept ─▶ upgrade ─▶ apply ─▶ deliver
//!                 ▲          ▲                  ▲                                  ▲         ▲
//!              look_up  CacheLookup         replace                       decide_storing  keep
//! ```
//!
//! The names below the arrows are the hooks of the [`cache`]: `look_up` may answer before peers are
//! asked, the `CacheLookup` changes the request's head (conditions, ranges), `replace` may
//! serve a stale entry in place of a failure, `decide_storing` decides by the response's head
//! whether to store it, and `keep` stores the body while it is delivered. Steps that a protocol
//! does not need cost nothing, since `Protocol` is static dispatch.

use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use base::pieces::Pieces;
use bytes::Bytes;
use engine::PooledFuture;
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::module::MaybeFuture;
use http::request::body::reading;
use http::request::interrupt::Interrupt;
use http::request::{Request, Step};
use rules::upstream::socket::SocketSettings;

use super::answer::AnswerHead;
use super::attempts::Attempts;
use super::cache::{self, StaleTrigger};
use super::connection::{PoolContext, UpstreamConnection, introduction};
use super::deliver::Delivery;
use super::destination::PeerTarget;
use super::finish;
use super::locate::{Upstream, locate};
use super::peer_attempts::{AttemptPlan, Dialogue, try_peers};
use super::response::refuse_upgrade;
use super::rewriting::{Rewrite, Unchanged};
use super::settings::PassSettings;
use super::ssl::{self, ResolvedTls, UpstreamTls};
use crate::cache::{AnswerRules, CacheLookup};
use crate::connect_target::ConnectTarget;
use crate::upstream::{self, Group};
use ::upstream::{RetryPolicy, Unanswered};

/// The target of a proxied request: the servers, and how they are reached.
pub trait Target {
    /// The group of servers, or the name to be resolved.
    fn upstream(&self) -> &Upstream;

    /// The scheme of the servers' URLs, for log lines.
    fn scheme(&self) -> &'static [u8];

    /// The server name for TLS, if the scheme has TLS.
    fn secure_name(&self) -> Option<&Bytes>;
}

impl<T: Target> Target for Arc<T> {
    fn upstream(&self) -> &Upstream {
        T::upstream(self)
    }

    fn scheme(&self) -> &'static [u8] {
        T::scheme(self)
    }

    fn secure_name(&self) -> Option<&Bytes> {
        T::secure_name(self)
    }
}

impl Target for PeerTarget {
    fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    fn scheme(&self) -> &'static [u8] {
        self.scheme.text.as_bytes()
    }

    fn secure_name(&self) -> Option<&Bytes> {
        self.scheme.is_secure.then_some(&self.address)
    }
}

/// How much of a request's body is read before a peer is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyReading {
    /// Nothing: the body is not passed on.
    None,
    /// The whole body, so that it can be sent again to another peer.
    Whole,
    /// The received part; the rest is passed on as it arrives.
    Received,
}

impl BodyReading {
    /// The reading of a body that is streamed to peers, or not.
    pub fn of_stream(stream: bool) -> BodyReading {
        if stream {
            BodyReading::Received
        } else {
            BodyReading::Whole
        }
    }
}

/// The settings for connecting to peers.
pub struct PeerOptions<'a> {
    /// The errors and statuses after which the next server is tried, and the limits of tries.
    pub tries: RetryPolicy,
    /// Options of the sockets to the peers.
    pub socket: &'a SocketSettings<Request>,
    /// The TLS settings, if the scheme may have TLS.
    pub tls: Option<&'a UpstreamTls>,
    /// Whether requests share connections (HTTP/2).
    pub is_shared: bool,
}

impl<'a> PeerOptions<'a> {
    /// Options without TLS and without shared connections.
    pub fn in_the_clear(passing: &'a PassSettings) -> PeerOptions<'a> {
        PeerOptions {
            tries: passing.tries,
            socket: &passing.socket,
            tls: None,
            is_shared: false,
        }
    }
}

/// The steps of one protocol, with the settings of one scope.
#[expect(
    async_fn_in_trait,
    reason = "a request stays on its thread, so that nobody asks for Send"
)]
pub trait Protocol {
    /// The destination of a request, and other data that is known before the body is read.
    type Target: Target;

    /// The request as it is sent to peers.
    type Outgoing;

    /// The dialogue with a peer.
    type Dialogue<'a>: Dialogue<Answer = Self::Answer>
    where
        Self: 'a;

    /// The response of a peer, as the dialogue returns it.
    type Answer;

    /// The settings for connecting to peers.
    fn peer_options(&self) -> PeerOptions<'_>;

    /// Finds the target of a request; the error is the status of the response.
    fn find(&self, request: &mut Request) -> Result<Self::Target, u16>;

    /// Called if there is no target. `$upstream_*` variables then exist, but are empty.
    fn not_found(&self, request: &mut Request) {
        Attempts::enter(request);
    }

    /// How much of the request's body is read first.
    fn reading(&self, request: &Request, target: &Self::Target) -> BodyReading;

    /// Makes the target available to variables, even if the request is not passed on.
    fn show(&self, _: &mut Request, _: &Self::Target) {}

    /// Called before the request is passed on: begins a new history of attempts, behind those of an
    /// earlier proxy pass.
    fn begin(&self, request: &mut Request, _: &Self::Target) {
        Attempts::begin_anew(request);
    }

    /// The settings for responses, if the scope may have a cache.
    fn cached(&self) -> Option<&Arc<PassSettings>> {
        None
    }

    /// The default cache key.
    fn cache_key(&self, _: &mut Request, _: &Self::Target) -> Vec<u8> {
        Vec::new()
    }

    /// How fields of a cached response are rewritten.
    fn rewriting(&self) -> &dyn Rewrite {
        &Unchanged
    }

    /// Writes the request for peers; the error is the status of the response. `begun` is the
    /// received part of a streamed body. The cache lookup may make the request conditional or
    /// change its range.
    async fn write(
        &self,
        request: &mut Request,
        target: &Self::Target,
        begun: Option<Pieces>,
        lookup: Option<&CacheLookup>,
    ) -> Result<Self::Outgoing, u16>;

    /// The URI of the request, for log lines.
    fn uri(_: &Self::Outgoing) -> Bytes {
        Bytes::new()
    }

    /// The bytes that precede the first request on a connection, such as a PROXY protocol header.
    fn introduction(&self, _: &Request) -> Bytes {
        introduction(None, None)
    }

    /// The terms on which another request may reuse or share the connection.
    fn terms(&self, group: &Group, reach: &ConnectTarget) -> Bytes;

    /// The dialogue with a peer.
    fn dialogue<'a>(
        &'a self,
        target: &'a Self::Target,
        outgoing: &'a Self::Outgoing,
    ) -> Self::Dialogue<'a>;

    /// Ends the request with this status, since no peer has responded.
    fn unanswered(&self, request: &mut Request, _: &Self::Outgoing, status: u16) -> Step {
        finish(request, status)
    }

    /// The head of a response; `None` if responses of the protocol have no head. The head may be
    /// intercepted, and is copied to the client's response.
    fn head(_: &Self::Answer) -> Option<&AnswerHead> {
        None
    }

    /// How the head is copied to the client's response; `None` if responses have no head.
    fn delivery(&self, _: &Self::Outgoing) -> Option<Delivery<'_>> {
        None
    }

    /// Handles a response that switches protocols, even if the client has not requested that.
    async fn upgrade(
        &self,
        request: &mut Request,
        _: &mut Exchange,
        _: &Self::Outgoing,
        peer: UpstreamConnection,
        _: Self::Answer,
    ) -> Result<Step, Abort> {
        drop(peer);
        Ok(refuse_upgrade(request))
    }

    /// Called if the response is not delivered to the client, since another response is sent
    /// instead.
    fn hand_over(&self, peer: UpstreamConnection, _: Self::Answer, _: &Self::Outgoing) {
        drop(peer);
    }

    /// Delivers the response of the upstream to the client. The head, if there is one, has been
    /// copied to the client's response.
    fn deliver<'a>(
        &'a self,
        request: &'a mut Request,
        exchange: &'a mut Exchange,
        sent: &SentRequest<Self::Target, Self::Outgoing>,
        peer: UpstreamConnection,
        answer: Self::Answer,
    ) -> MaybeFuture<'a>;
}

/// A request as it is sent to peers, and its target.
pub struct SentRequest<T, O> {
    /// The target of the request.
    pub target: T,
    /// The request as the protocol has written it.
    pub outgoing: O,
}

/// Proxies a request.
pub async fn pass_on<P: Protocol>(
    request: &mut Request,
    exchange: &mut Exchange,
    protocol: &P,
) -> Result<Step, Abort> {
    let target = match protocol.find(request) {
        Ok(target) => target,
        Err(status) => {
            protocol.not_found(request);
            return Ok(Step::Finish(status));
        }
    };
    let read = match protocol.reading(request, &target) {
        BodyReading::None => Ok(None),
        BodyReading::Received => PooledFuture::new(reading::read_received(request, exchange)).await,
        BodyReading::Whole => reading::read(request, exchange).await.map(|()| None),
    };
    let begun = match read {
        Ok(begun) => begun,
        Err(interrupt) => {
            protocol.show(request, &target);
            return interrupt.into_step();
        }
    };
    let lookup = match look_up(request, exchange, protocol, &target).await? {
        ControlFlow::Continue(lookup) => lookup,
        ControlFlow::Break(step) => return Ok(step),
    };
    protocol.begin(request, &target);
    if let Some(lookup) = &lookup {
        lookup.note_status(request);
    }
    let secured = match secure(request, protocol, &target).await {
        Ok(secured) => secured,
        Err(status) => return Ok(finish(request, status)),
    };
    let outgoing = match protocol
        .write(request, &target, begun, lookup.as_deref())
        .await
    {
        Ok(outgoing) => outgoing,
        Err(status) => return Ok(Step::Finish(status)),
    };
    let sent = SentRequest { target, outgoing };
    ask_peers(request, exchange, protocol, &sent, lookup, secured).await
}

/// The hook `look_up`: looks the request up in the cache, if the scope has one. A returned step
/// ends the request without asking peers.
async fn look_up<P: Protocol>(
    request: &mut Request,
    exchange: &mut Exchange,
    protocol: &P,
    target: &P::Target,
) -> Result<ControlFlow<Step, Option<Box<CacheLookup>>>, Abort> {
    let Some(rules) = answer_rules(protocol) else {
        return Ok(ControlFlow::Continue(None));
    };
    let Some(cache) = &rules.passing.cache else {
        return Ok(ControlFlow::Continue(None));
    };
    protocol.show(request, target);
    let default_key = |request: &mut Request| protocol.cache_key(request, target);
    PooledFuture::new(cache::look_up(
        request,
        exchange,
        &rules,
        cache,
        default_key,
    ))
    .await
}

/// The settings of responses, if the scope may have a cache.
fn answer_rules<P: Protocol>(protocol: &P) -> Option<AnswerRules<'_>> {
    Some(AnswerRules {
        passing: protocol.cached()?,
        rewriting: protocol.rewriting(),
    })
}

/// Prepares TLS, if the peers of the target speak it.
async fn secure<P: Protocol>(
    request: &mut Request,
    protocol: &P,
    target: &P::Target,
) -> Result<Option<Box<ResolvedTls>>, u16> {
    match (protocol.peer_options().tls, target.secure_name()) {
        (Some(tls), Some(name)) => {
            let secured = Box::pin(ssl::prepare(tls, request, name)).await;
            secured.map(|secured| Some(Box::new(secured)))
        }
        _ => Ok(None),
    }
}

/// Asks the servers of the target until one responds.
async fn ask_peers<P: Protocol>(
    request: &mut Request,
    exchange: &mut Exchange,
    protocol: &P,
    sent: &SentRequest<P::Target, P::Outgoing>,
    mut lookup: Option<Box<CacheLookup>>,
    secured: Option<Box<ResolvedTls>>,
) -> Result<Step, Abort> {
    let PeerOptions {
        tries,
        socket,
        is_shared,
        ..
    } = protocol.peer_options();
    let mut reach = ConnectTarget {
        scheme: sent.target.scheme(),
        uri: P::uri(&sent.outgoing),
        socket: socket.evaluate(request),
        secured,
        introduction: protocol.introduction(request),
        is_shared,
        terms: Bytes::new(),
    };
    let located = sent.target.upstream();
    // A response that is to be stored is received completely even if the client leaves.
    exchange.set_outlives_client(lookup.as_deref().is_some_and(CacheLookup::may_store));
    let located = match located {
        Upstream::Group(group) => Ok(Arc::clone(group)),
        // Boxed, since the case is rare and other requests need no memory for it; so are the cases
        // below.
        Upstream::Name { .. } => {
            Box::pin(locate(
                request,
                exchange,
                located,
                tries.ignore_client_abort,
            ))
            .await
        }
    };
    let group = match located {
        Ok(group) => group,
        Err(Interrupt::Status(status)) => {
            exchange.set_outlives_client(false);
            let unanswered = Unanswered::of_ours(status);
            let failed = fail(request, protocol, &sent.outgoing, lookup, unanswered);
            return Ok(Box::pin(failed).await);
        }
        Err(Interrupt::Abort(_)) => {
            logs::error!(request, Info, "client prematurely closed connection");
            return Err(request.client_left(exchange));
        }
    };
    reach.terms = protocol.terms(&group, &reach);
    let mut selection = upstream::select(&group, request, tries.next_upstream_tries);
    let home = PoolContext {
        local: Rc::clone(&request.local),
        group,
    };
    let asking = AttemptPlan {
        tries,
        reach: &reach,
        conversation: protocol.dialogue(&sent.target, &sent.outgoing),
        home: &home,
    };
    let asked = try_peers(request, exchange, &mut selection, &asking).await?;
    exchange.set_outlives_client(false);
    drop(asking);
    let (mut peer, answer) = match asked {
        Ok(answered) => answered,
        Err(unanswered) => {
            let failed = fail(request, protocol, &sent.outgoing, lookup, unanswered);
            return Ok(Box::pin(failed).await);
        }
    };
    let delivery = protocol.delivery(&sent.outgoing);
    let (Some(delivery), Some(head)) = (delivery, P::head(&answer)) else {
        selection.head_came(request);
        peer.at_end = selection.at_end(request);
        return match protocol.deliver(request, exchange, sent, peer, answer) {
            MaybeFuture::Now(delivered) => delivered,
            MaybeFuture::Wait(delivered) => delivered.await,
        };
    };
    if lookup.is_some() {
        let instead = StaleTrigger::Answer(head);
        let replaced = replace(request, protocol, lookup.as_deref_mut(), instead);
        if let Some(step) = Box::pin(replaced).await {
            protocol.hand_over(peer, answer, &sent.outgoing);
            return Ok(step);
        }
    }
    let mut step = delivery.intercept(request, &mut selection, &mut peer, head);
    if step.is_none() && head.is_upgrade() {
        if let Some(lookup) = &mut lookup {
            lookup.refuse();
        }
        peer.at_end = selection.at_end(request);
        let upgrade = protocol.upgrade(request, exchange, &sent.outgoing, peer, answer);
        return Box::pin(upgrade).await;
    }
    step = step.or_else(|| delivery.apply(request, &mut selection, &mut peer, head));
    if let (Some(lookup), Some(passing)) = (&mut lookup, protocol.cached()) {
        let heeding = lookup.decide_storing(request, passing, head, step.as_ref());
        heeding.await;
    }
    if let Some(step) = step {
        if let Some(asked) = &request.upstream {
            asked.end();
        }
        protocol.hand_over(peer, answer, &sent.outgoing);
        return Ok(step);
    }
    let delivered = match protocol.deliver(request, exchange, sent, peer, answer) {
        MaybeFuture::Now(delivered) => delivered?,
        MaybeFuture::Wait(delivered) => delivered.await?,
    };
    Ok(match (lookup, protocol.cached()) {
        (Some(lookup), Some(passing)) => lookup.keep(request, passing, delivered),
        _ => delivered,
    })
}

/// The hook `replace`: the cache may replace a failure or a response by a stale entry.
async fn replace<P: Protocol>(
    request: &mut Request,
    protocol: &P,
    lookup: Option<&mut CacheLookup>,
    instead: StaleTrigger<'_>,
) -> Option<Step> {
    let (lookup, rules) = (lookup?, answer_rules(protocol)?);
    lookup.serve_stale(request, &rules, instead).await
}

/// Ends a request for which no peer has responded.
async fn fail<P: Protocol>(
    request: &mut Request,
    protocol: &P,
    outgoing: &P::Outgoing,
    mut lookup: Option<Box<CacheLookup>>,
    unanswered: Unanswered,
) -> Step {
    let Unanswered { status, cause } = unanswered;
    if let Some(cause) = cause {
        let instead = StaleTrigger::Failure(cause);
        let replaced = replace(request, protocol, lookup.as_deref_mut(), instead).await;
        if let Some(step) = replaced {
            return step;
        }
    }
    if let (Some(lookup), Some(passing)) = (lookup, protocol.cached()) {
        lookup.fail(passing, status);
    }
    protocol.unanswered(request, outgoing, status)
}
