//! `proxy_pass`: requests passed on to another HTTP server.
//!
//! <https://nginx.org/en/docs/http/ngx_http_proxy_module.html>. Caching is not here. `serve` is the way of a proxied request;
//! `settings` declares the directives (`family`: those that other modules have too), `target` reads the URL, `head` writes the upstream's
//! request, `response` reads its answer (`answer` is its head), `cookies` rewrites what that sets, `body` streams it
//! (at its `pace`, with its `trailers`), `store` keeps it, `tunnel` carries upgraded
//! connections; `connection` is one to a server, `probe` asks one on our own account. Which server of a group is asked is the business of `upstream`.

pub mod answer;
pub mod attempts;
mod body;
mod buffers;
pub(crate) mod connection;
mod cookies;
pub(crate) mod family;
mod head;
mod pace;
pub mod probe;
mod response;
mod settings;
pub(crate) mod socket;
pub(crate) mod ssl;
pub(crate) mod store;
pub(crate) mod target;
mod trailers;
pub(crate) mod tunnel;
pub mod variables;

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::upstream::pool::{self, Connection, Made};
use ::upstream::{Cause, PutOut};
use base::pieces::Pieces;
use bytes::Bytes;
use engine::net::{Address, ConnectError, Segment};
use engine::select::{Either, either};
use http::body as request_body;
use http::doing::WHILE_SENDING_ON;
use http::exchange::{Abort, Exchange};
use http::log::{self, Level};
use http::module::{Handle, Ran};
use http::output::Body;
use http::request::{Request, Step};
use http::source::Told;
use proto::h1::response::ResponseBody;
use proto::header::Known;
use proto::method::Method;
use transport::Transport;

use crate::upstream::Selection;

pub use cookies::DIRECTIVES as COOKIE_DIRECTIVES;
pub use settings::{BUFFER_DIRECTIVES, DIRECTIVES, Proxy, Settings, check, content, survey};
pub use ssl::DIRECTIVES as SSL_DIRECTIVES;

use attempts::{AskedFor, Attempt, Attempts, ShownTarget, TARGET};
use body::UpstreamBody;
use connection::{Home, UpstreamConnection, ends_of, introduction, terms};
use family::Causes;
use response::UpstreamResponse;
use settings::HttpVersion;
use socket::RequestSocket;
use ssl::Secured;
use target::Scheme;

/// Bytes queued for an upstream beyond which the client is not read on.
const BACKLOG_MAX: usize = 32 * 1024;

/// What ends a chunked body.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// What is done first, as log lines say it.
const CONNECTING: &str = "while connecting to upstream";

/// What is done last.
const READING_BODY: &str = "while reading upstream";

/// What is done then, until the answer begins.
const SENDING: &str = "while sending request to upstream";

/// Why a try came to nothing.
pub(super) struct Failure {
    cause: Causes,
    /// The status to answer with if no other peer is tried.
    status: u16,
    /// What was being done, for log lines.
    doing: &'static str,
    /// Whether some of the request may have reached the peer.
    sent: bool,
    /// Whether the connection had been kept, so that the peer may have closed it before it saw the request.
    kept: bool,
    /// It has been decided already that another peer is tried.
    again: bool,
}

/// How a try ends without an answer.
pub(super) enum AttemptError {
    /// Another peer may be tried.
    Failed(Failure),
    /// The request is to be answered with this status, whatever other peers would say.
    Refused(u16),
    /// The client has gone.
    Aborted(Abort),
}

impl From<Abort> for AttemptError {
    fn from(abort: Abort) -> AttemptError {
        AttemptError::Aborted(abort)
    }
}

/// What a module says of asking upstreams, whatever it asks them.
#[derive(Clone, Copy)]
pub(super) struct Tries {
    pub(super) connect_timeout: Duration,
    pub(super) send_timeout: Duration,
    pub(super) ignore_client_abort: bool,
    /// After which failures the next peer is asked.
    pub(super) next_upstream: Causes,
    /// 0 is no limit.
    pub(super) next_upstream_tries: usize,
    /// Zero is no limit.
    pub(super) next_upstream_timeout: Duration,
}

/// How a request reaches its peers.
pub(super) struct Reach {
    /// How their URLs begin in log lines.
    pub(super) scheme: &'static [u8],
    /// How they end.
    pub(super) uri: Bytes,
    pub(super) socket: RequestSocket,
    /// TLS, where peers speak it.
    pub(super) secured: Option<Secured>,
    /// What each new connection begins with: a header of the PROXY protocol, or nothing.
    pub(super) introduction: Bytes,
    /// What another request must agree on to use the same connection.
    pub(super) terms: Bytes,
}

/// What is said to a peer once there is a connection to it, and what it answers.
pub(super) trait Conversation {
    /// What comes of it.
    type Answer;

    /// Has it.
    fn talk(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        peer: &mut UpstreamConnection,
    ) -> impl Future<Output = Result<Self::Answer, AttemptError>>;

    /// The status of an answer that may be as bad as none.
    fn status(&self, answer: &Self::Answer) -> Option<u16>;

    /// Whether it can begin anew with another peer though this one may have heard some of it.
    fn can_be_repeated(&self) -> bool;
}

/// All that is the same for each peer that a request tries.
pub(super) struct Asking<'a, C> {
    pub(super) tries: Tries,
    pub(super) reach: &'a Reach,
    pub(super) conversation: C,
    pub(super) home: &'a Rc<Home>,
}

/// A request as peers get it.
struct Outgoing {
    head: Bytes,
    /// Whether it asks for another protocol, as the client's does.
    upgrade: bool,
    /// What of its body has been read; `None` where that is the whole, so that it can be sent
    /// again.
    begun: Option<Pieces>,
}

/// A request of HTTP/1 and its answer.
struct HttpConversation<'a> {
    settings: &'a Settings,
    outgoing: &'a Outgoing,
}

impl Conversation for HttpConversation<'_> {
    type Answer = UpstreamResponse;

    /// Sends the request, reads the head of the answer.
    async fn talk(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        peer: &mut UpstreamConnection,
    ) -> Result<UpstreamResponse, AttemptError> {
        send(request, exchange, self.settings, peer, self.outgoing).await?;
        response::read(request, exchange, self.settings, peer).await
    }

    fn status(&self, answer: &UpstreamResponse) -> Option<u16> {
        Some(answer.head.status())
    }

    fn can_be_repeated(&self) -> bool {
        self.outgoing.begun.is_none()
    }
}

/// Passes a request on and gives the answer back.
impl Handle for Proxy {
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> Ran<'a> {
        request.start_background();
        Ran::wait(serve(request, exchange, self))
    }
}

async fn serve(
    request: &mut Request,
    exchange: &mut Exchange,
    proxy: &Proxy,
) -> Result<Step, Abort> {
    let settings = Arc::clone(&proxy.settings);
    let target = match proxy.target(request) {
        Ok(target) => target,
        Err(status) => {
            // Both variables are there, and empty.
            Attempts::enter(request);
            request.pass.enter(&TARGET);
            return Ok(Step::Finish(status));
        }
    };
    // HTTP/1.0 knows no chunks: the length of a body must be known before it is sent.
    let framed = !request.body.chunked() || settings.version == HttpVersion::Http11;
    let stream =
        !settings.request_buffering && settings.passes_body() && request.is_main() && framed;
    let read = match stream {
        true => request_body::read_at_hand(request, exchange).await,
        false => request_body::read(request, exchange).await.map(|()| None),
    };
    let begun = match read {
        Ok(begun) => begun,
        Err(failed) => {
            show(request, &target);
            return failed.map_or_else(Err, |status| Ok(Step::Finish(status)));
        }
    };
    begin(request, &target);
    pass_on(request, exchange, proxy, &target, begun).await
}

/// Ends what was asked of upstreams with a status; its page is what is being sent then.
pub(super) fn finish(request: &mut Request, status: u16) -> Step {
    request.activity.doing = WHILE_SENDING_ON;
    Step::Finish(status)
}

/// Asks upstreams, and makes their answer the response.
async fn pass_on(
    request: &mut Request,
    exchange: &mut Exchange,
    proxy: &Proxy,
    target: &target::Target,
    begun: Option<Pieces>,
) -> Result<Step, Abort> {
    let settings = Arc::clone(&proxy.settings);
    let buffered = begun.is_none();
    let secured = match (&proxy.tls, target.scheme) {
        (Some(tls), Scheme::Https) => match tls.prepare(request, target).await {
            Ok(secured) => Some(secured),
            Err(status) => return Ok(finish(request, status)),
        },
        _ => None,
    };
    let written = match head::write(request, proxy, target, buffered) {
        Ok(written) => written,
        Err(status) => return Ok(Step::Finish(status)),
    };
    let outgoing = Outgoing {
        head: written.head.clone(),
        upgrade: written.upgrade && request.header(Known::Upgrade).is_some(),
        begun,
    };
    let mut reach = Reach {
        scheme: target.scheme.text(),
        uri: written.head.slice(written.uri),
        socket: settings.socket.of_request(request),
        secured,
        introduction: introduction(settings.proxy_protocol, ends_of(request)),
        terms: Bytes::new(),
    };
    let ignore_abort = settings.ignore_client_abort;
    let group = match target::locate(request, exchange, &target.upstream, ignore_abort).await {
        Ok(Ok(group)) => group,
        Ok(Err(status)) => return Ok(finish(request, status)),
        Err(_) => {
            log::error!(request, Info, "client prematurely closed connection");
            return Err(request.client_left(exchange));
        }
    };
    reach.terms = terms(proxy, &group, &reach);
    let mut selection = group.select(request, settings.next_upstream_tries);
    let home = Rc::new(Home {
        local: Rc::clone(&request.local),
        group,
    });
    let asking = Asking {
        tries: settings.tries(),
        reach: &reach,
        conversation: HttpConversation {
            settings: &settings,
            outgoing: &outgoing,
        },
        home: &home,
    };
    let asked = ask(request, exchange, &mut selection, &asking).await?;
    let (mut peer, mut answer) = match asked {
        Ok(answered) => answered,
        Err(status) => return Ok(finish(request, status)),
    };
    let is_head = head::is_head(request, &settings);
    response::remember(request, &answer);
    if let Some(step) = response::intercept(request, &settings, &answer) {
        peer.at_end = selection.at_end(request);
        return Ok(leave(request, peer, &answer, is_head, step));
    }
    selection.head_came(request);
    if answer.head.is_upgrade() {
        peer.at_end = selection.at_end(request);
        return match outgoing.upgrade {
            true => tunnel::upgrade(request, exchange, &settings, peer, answer).await,
            false => Ok(response::refuse_upgrade(request)),
        };
    }
    let applied = response::apply(request, proxy, target, &answer);
    peer.at_end = selection.at_end(request);
    if let response::Applied::Step(step) = applied {
        return Ok(leave(request, peer, &answer, is_head, step));
    }
    if is_head && request.method != Method::Head && request.response.content_length.is_some() {
        // The client would wait for a body, and there is none to come.
        request.response.content_length = Some(0);
    }
    let framing = answer.head.body(is_head);
    let mut rest = std::mem::take(&mut answer.rest);
    let said_too_much = matches!(framing, ResponseBody::None) && !rest.is_empty();
    if said_too_much {
        // No client waits for what follows such a head, and nothing will look at it.
        let length = std::mem::take(&mut rest).len() as u64;
        if !is_head {
            note(request, |attempt, _| attempt.response_length = length);
            body::told_excess(READING_BODY).write(request);
        }
    }
    let holds = response::is_buffered(&settings, &answer);
    if !holds && request.method != Method::Head && !request.nesting.head_only {
        request.pacing.rate = Some(0); // what is not held back is not slowed down
    }
    let arrived = body::Arrived {
        rest,
        beyond: answer.beyond,
        may_go_on: answer.keeps_alive() && !said_too_much,
    };
    let rate = match holds && !request.nesting.head_only && request.method != Method::Head {
        true => settings
            .limit_rate
            .evaluate(request, response::WHILE_READING),
        false => 0,
    };
    let seen = Attempts::enter(request);
    let body = UpstreamBody::new(peer, seen, &settings, framing, arrived, holds, rate);
    Ok(Step::Respond(Body::Source(match &settings.store {
        Some(store) if holds && !is_head && answer.head.status() == 200 => {
            store.begin(request, response::last_modified(&answer), body)
        }
        _ => Box::new(body),
    })))
}

/// Goes on with something else than the answer, whose head alone was of use.
fn leave(
    request: &Request,
    peer: UpstreamConnection,
    answer: &UpstreamResponse,
    is_head: bool,
    step: Step,
) -> Step {
    if let Some(asked) = &request.upstream {
        asked.end();
    }
    if answer.ends_with_head(is_head) {
        peer.done(answer.keeps_alive());
    }
    step
}

/// Tells `$proxy_host` and `$proxy_port` of a request that is not passed on after all.
fn show(request: &mut Request, target: &target::Target) {
    Attempts::enter(request);
    *request.pass.enter(&TARGET) = ShownTarget::of(target);
}

/// Begins what `$upstream_*` tell: behind the tries of an earlier pass, if there was one.
fn begin(request: &mut Request, target: &target::Target) {
    Attempts::begin_anew(request);
    *request.pass.enter(&TARGET) = ShownTarget::of(target);
}

/// Tries peers until one answers. The inner error is a status to answer with.
pub(super) async fn ask<C: Conversation>(
    request: &mut Request,
    exchange: &mut Exchange,
    selection: &mut Selection,
    asking: &Asking<'_, C>,
) -> Result<Result<(UpstreamConnection, C::Answer), u16>, Abort> {
    let began = engine::now();
    loop {
        match attempt(request, exchange, selection, asking, began).await {
            Ok((mut peer, answer)) => {
                if let Some(status) = asking.conversation.status(&answer) {
                    judge(request, selection, status);
                }
                peer.lease = selection.answered();
                if let Some(lease) = &mut peer.lease {
                    note(request, |attempt, _| {
                        lease.head_came(attempt.header_time.unwrap_or_default())
                    });
                }
                return Ok(Ok((peer, answer)));
            }
            Err(AttemptError::Failed(failure)) => {
                note_failure(request, selection, &failure);
                let goes_on =
                    failure.again || may_try_next(request, selection, asking, &failure, began);
                if !goes_on {
                    return Ok(Err(failure.status));
                }
            }
            // No fault of the peer: the session is its all the same.
            Err(AttemptError::Refused(status)) => {
                drop(selection.at_end(request));
                return Ok(Err(status));
            }
            Err(AttemptError::Aborted(abort)) => {
                drop(selection.at_end(request));
                return Err(abort);
            }
        }
    }
}

/// Counts a failure against its peer, and logs what is known only now.
fn note_failure(request: &mut Request, selection: &mut Selection, failure: &Failure) {
    let doing = failure.doing;
    let now = engine::now();
    if failure.cause.is_harmless() {
        selection.passed_by(now);
    } else if failure.cause != Causes::NO_LIVE {
        let name = selection.given().map(|given| given.name);
        let failed = selection.failed(now);
        if failed.disabled {
            log::error!(
                request,
                Warn,
                "upstream server temporarily disabled {doing}"
            );
        }
        if let Some(put_out) = failed.put_out {
            tell_put_out(request, &name.unwrap_or_default(), put_out, doing);
        }
    }
    if failure.cause == Causes::TIMEOUT {
        log::error!(
            request,
            Error,
            "upstream timed out (110: Connection timed out) {doing}"
        );
    }
    if failure.kept && failure.cause == Causes::ERROR {
        selection.try_once_more();
    }
    note(request, |attempt, elapsed| {
        attempt.response_time = elapsed;
        attempt.status = failure.status;
    });
}

/// Judges a peer by the status of its answer, which goes to the client.
fn judge(request: &Request, selection: &Selection, status: u16) {
    let is_well = !matches!(status, 502..=504);
    if let Some(put_out) = selection.judge(engine::now(), is_well)
        && let Some(given) = selection.given()
    {
        tell_put_out(request, &given.name, put_out, response::READING);
    }
}

fn tell_put_out(request: &Request, name: &[u8], put_out: PutOut, doing: &str) {
    let PutOut { time, cause } = put_out;
    let cause = match cause {
        Cause::InARow(failures) => format!("{failures} failures in a row"),
        Cause::Share(failures, requests) => format!("{failures} of {requests} requests failed"),
    };
    log::error!(
        request,
        Warn,
        "upstream server {} put out for {} ms: {cause} {doing}",
        log::Printable(name),
        time.as_millis()
    );
}

/// Whether the next peer is asked after this failure (nginx's `ngx_http_upstream_next`), and the group's budget allows it.
fn may_try_next<C: Conversation>(
    request: &Request,
    selection: &Selection,
    asking: &Asking<'_, C>,
    failure: &Failure,
    began: Instant,
) -> bool {
    let changes_something = matches!(request.method, Method::Post | Method::Lock | Method::Patch);
    let cause = match failure.sent && changes_something {
        true => failure.cause.with(Causes::NON_IDEMPOTENT),
        false => failure.cause,
    };
    let timeout = asking.tries.next_upstream_timeout;
    let now = engine::now();
    let may = selection.tries_left() > 0
        && asking.tries.next_upstream.contains(cause)
        && (asking.conversation.can_be_repeated() || !failure.sent)
        && (timeout.is_zero() || now.saturating_duration_since(began) < timeout);
    // A connection that had been kept and has ended costs the peer nothing.
    if !may || (failure.kept && failure.cause == Causes::ERROR) || selection.may_retry(now) {
        return may;
    }
    log::error!(
        request,
        Warn,
        "retry budget of upstream \"{}\" is spent, no other server is tried {}",
        log::Printable(&selection.group_name()),
        failure.doing
    );
    false
}

/// One try: connects to a peer and talks to it.
async fn attempt<C: Conversation>(
    request: &mut Request,
    exchange: &mut Exchange,
    selection: &mut Selection,
    asking: &Asking<'_, C>,
    began: Instant,
) -> Result<(UpstreamConnection, C::Answer), AttemptError> {
    let (tries, home) = (&asking.tries, asking.home);
    let waited = wait_for_turn(request, exchange, tries, selection).await?;
    let address = choose(request, selection, asking.reach, &waited)?;
    log::error!(request, Debug, "http upstream connect: {address}");
    let group = &home.group.shared;
    let (mut peer, kept) = match pool::take(&home.local, group, &address, &asking.reach.terms) {
        Some(connection) => {
            note(request, |attempt, _| {
                attempt.connect_time = Some(Duration::ZERO)
            });
            let home = Rc::clone(home);
            let send_timeout = tries.send_timeout;
            let peer = UpstreamConnection::over(connection, send_timeout, home);
            (peer, true)
        }
        None => (connect(request, exchange, &address, asking).await?, false),
    };
    let asked = asking.conversation.talk(request, exchange, &mut peer).await;
    let answer = asked.map_err(|error| match error {
        AttemptError::Failed(failure) => AttemptError::Failed(Failure { kept, ..failure }),
        error => error,
    })?;
    // An answer that is as bad as none counts as none while there is another peer to try.
    if let Some(status) = asking.conversation.status(&answer)
        && let Some(cause) = Causes::of_status(status)
        && selection.tries_left() > 1
    {
        let failure = Failure {
            cause,
            status,
            doing: response::READING,
            sent: true,
            kept,
            again: true,
        };
        if may_try_next(request, selection, asking, &failure, began) {
            return Err(AttemptError::Failed(failure));
        }
    }
    Ok((peer, answer))
}

/// How a request has waited for a peer.
#[derive(Default)]
struct Waited {
    /// How long, if it has.
    time: Option<Duration>,
    /// There was none in time, or no room to wait: it gets none now, before those who go on waiting.
    in_vain: bool,
}

/// Waits until a peer may be asked, where the group has requests wait and this is the first try.
async fn wait_for_turn(
    request: &mut Request,
    exchange: &mut Exchange,
    tries: &Tries,
    selection: &mut Selection,
) -> Result<Waited, AttemptError> {
    let Some(queueing) = selection.queueing() else {
        return Ok(Waited::default());
    };
    let began = engine::now();
    if !selection.has_to_wait() && selection.next(request, began).is_some() {
        return Ok(Waited::default());
    }
    let Some(place) = selection.wait() else {
        return Ok(Waited {
            time: None,
            in_vain: true,
        });
    };
    let waiting = async {
        loop {
            place.called().await;
            selection.begin_again();
            if selection.next(request, engine::now()).is_some() {
                return;
            }
        }
    };
    let waiting = either(waiting, engine::sleep(queueing.timeout));
    let ended = match tries.ignore_client_abort {
        true => Ok(waiting.await),
        false => match either(waiting, exchange.client_gone()).await {
            Either::First(ended) => Ok(ended),
            Either::Second(abort) => Err(abort),
        },
    };
    let in_vain = selection.given().is_none();
    if !in_vain {
        place.served();
    }
    match ended {
        Ok(_) => Ok(Waited {
            time: Some(engine::now().saturating_duration_since(began)),
            in_vain,
        }),
        Err(abort) => Err(client_left(request, exchange, &abort, CONNECTING).into()),
    }
}

/// Chooses the peer of the next try, for which the request has waited so.
fn choose(
    request: &mut Request,
    selection: &mut Selection,
    reach: &Reach,
    waited: &Waited,
) -> Result<Address, AttemptError> {
    let now = engine::now();
    let chosen = match selection.given() {
        Some(given) => Some(given),
        None if waited.in_vain => None,
        None => selection.next(request, now),
    };
    let is_back = chosen.is_some() && selection.is_back();
    let (address, name) = match chosen {
        Some(peer) => (Some(peer.address), peer.name),
        None => (None, selection.group_name()),
    };
    let attempts = Attempts::enter(request);
    let mut seen = attempts.borrow_mut();
    seen.asked_for = Some(AskedFor {
        scheme: reach.scheme,
        peer: name.clone(),
        uri: reach.uri.clone(),
    });
    seen.started = Some(now);
    if address.is_some() {
        seen.answer = None; // it is of the peer before
    }
    seen.attempts.push(Attempt {
        peer: name,
        queue_time: waited.time,
        ..Attempt::default()
    });
    drop(seen);
    if is_back {
        log::error!(
            request,
            Notice,
            "upstream server is asked again, its time as an outlier is over {CONNECTING}"
        );
    }
    address.ok_or_else(|| {
        log::error!(request, Error, "no live upstreams {CONNECTING}");
        AttemptError::Failed(Failure {
            cause: Causes::NO_LIVE,
            status: 502,
            doing: CONNECTING,
            sent: false,
            kept: false,
            again: false,
        })
    })
}

async fn connect<C>(
    request: &mut Request,
    exchange: &mut Exchange,
    address: &Address,
    asking: &Asking<'_, C>,
) -> Result<UpstreamConnection, AttemptError> {
    let (tries, reach) = (&asking.tries, asking.reach);
    let deadline = engine::now() + tries.connect_timeout;
    let options = &reach.socket.options;
    let connecting = engine::net::connect_with(address, options, Some(deadline));
    let connected = if tries.ignore_client_abort {
        connecting.await
    } else {
        match either(connecting, exchange.client_gone()).await {
            Either::First(connected) => connected,
            Either::Second(abort) => {
                return Err(client_left(request, exchange, &abort, CONNECTING).into());
            }
        }
    };
    match connected {
        Ok(stream) => {
            if request.plan.core.tcp_nodelay && matches!(address, Address::Inet(_)) {
                stream.set_nodelay(true);
            }
            let connection = Connection {
                transport: stream.into(),
                made: Made::now(address.clone(), reach.terms.clone()),
            };
            let home = Rc::clone(asking.home);
            let peer = UpstreamConnection::over(connection, tries.send_timeout, home);
            if !reach.introduction.is_empty() {
                peer.stream.push(Segment::Bytes(reach.introduction.clone()));
                let length = reach.introduction.len() as u64;
                note(request, |attempt, _| attempt.bytes_sent = length);
            }
            if let Some(secured) = &reach.secured {
                secure(request, exchange, tries, &peer, secured, deadline).await?;
            }
            note(request, |attempt, elapsed| attempt.connect_time = elapsed);
            Ok(peer)
        }
        Err(error) if reach.socket.is_refused(request, &error) => Err(AttemptError::Refused(500)),
        Err(ConnectError { error, .. }) => Err(AttemptError::Failed(Failure {
            sent: false,
            ..match address {
                Address::Inet(_) => failed(request, &error, "connect()", CONNECTING),
                Address::Unix(_) => not_connected(request, &error, address),
            }
        })),
    }
}

/// Makes a connection secure, unless the client leaves meanwhile.
async fn secure(
    request: &mut Request,
    exchange: &mut Exchange,
    tries: &Tries,
    peer: &UpstreamConnection,
    secured: &Secured,
    deadline: Instant,
) -> Result<(), AttemptError> {
    let shaking = ssl::shake_hands(request, peer, secured, deadline);
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

/// A Unix socket that cannot be connected to. That no server listens on it is common; that there is no
/// socket is a mistake.
fn not_connected(request: &Request, error: &io::Error, address: &Address) -> Failure {
    if let Some(libc::ECONNREFUSED | libc::EAGAIN | libc::ECONNRESET) = error.raw_os_error() {
        return failed(
            request,
            error,
            &format!("connect() to {address}"),
            CONNECTING,
        );
    }
    let error = log::Errno(error);
    log::error!(
        request,
        Crit,
        "connect() to {address} failed {error} {CONNECTING}"
    );
    Failure {
        cause: Causes::ERROR,
        status: 502,
        doing: CONNECTING,
        sent: false,
        kept: false,
        again: false,
    }
}

/// Sends head and body. A peer that answers or closes meanwhile gets no more of the body; what it
/// has said shows when the answer is read.
async fn send(
    request: &mut Request,
    exchange: &mut Exchange,
    settings: &Settings,
    peer: &mut UpstreamConnection,
    outgoing: &Outgoing,
) -> Result<(), AttemptError> {
    let mut sent = outgoing.head.len() as u64;
    peer.stream.push(Segment::Bytes(outgoing.head.clone()));
    peer.asked = true;
    let pushed = match &outgoing.begun {
        _ if !settings.passes_body() => Ok(()),
        None => push_stored_body(request, exchange, settings, peer, &mut sent).await,
        Some(begun) => stream_body(request, exchange, settings, peer, begun, &mut sent).await,
    };
    note(request, |attempt, _| attempt.bytes_sent += sent);
    pushed?;
    peer.stream.start_send();
    wait_for_peer(request, exchange, settings, peer).await
}

/// Passes the client's body on as it comes, and adds the number of bytes to `sent`. What comes with the body's end leaves
/// together with it.
async fn stream_body(
    request: &mut Request,
    exchange: &mut Exchange,
    settings: &Settings,
    peer: &mut UpstreamConnection,
    begun: &[Bytes],
    sent: &mut u64,
) -> Result<(), AttemptError> {
    // Small parts must not wait until the peer has confirmed those before them.
    peer.stream.set_nodelay(request.plan.core.tcp_nodelay);
    *sent += push_parts(request, &peer.stream, begun);
    let mut parts = Pieces::new();
    loop {
        peer.stream.start_send();
        parts.clear();
        let reading = request_body::read_some(request, exchange, &mut parts);
        let ended = match either(reading, peer.stream.recv(None)).await {
            Either::First(read) => read.map_err(|refused| match refused {
                Ok(status) => AttemptError::Refused(status),
                Err(abort) => AttemptError::Aborted(body_broken_off(request, abort)),
            })?,
            Either::Second(early) => {
                peer.early = Some(early);
                peer.asked = false;
                return Ok(());
            }
        };
        *sent += push_parts(request, &peer.stream, &parts);
        if ended {
            break;
        }
        wait_for_peer(request, exchange, settings, peer).await?;
        if peer.early.is_some() {
            peer.asked = false;
            return Ok(());
        }
    }
    if request.body.chunked() {
        peer.stream
            .push(Segment::Bytes(Bytes::from_static(LAST_CHUNK)));
        *sent += LAST_CHUNK.len() as u64;
    }
    Ok(())
}

/// The client left while its body was being passed on: what it sent was no whole request.
fn body_broken_off(request: &mut Request, abort: Abort) -> Abort {
    let Abort::Closed(_) = &abort else {
        return abort;
    };
    log::error!(
        request,
        Info,
        "client prematurely closed connection {SENDING}"
    );
    note(request, |attempt, elapsed| attempt.response_time = elapsed);
    request.response.status = 400;
    Abort::Silently
}

/// Waits while the peer has too much to take already, and has not answered.
async fn wait_for_peer(
    request: &mut Request,
    exchange: &mut Exchange,
    settings: &Settings,
    peer: &mut UpstreamConnection,
) -> Result<(), AttemptError> {
    if peer.stream.backlog() <= BACKLOG_MAX || peer.early.is_some() {
        return Ok(());
    }
    let taken = either(peer.stream.drained(BACKLOG_MAX), peer.stream.recv(None));
    let taken = if settings.ignore_client_abort {
        taken.await
    } else {
        match either(taken, exchange.client_gone()).await {
            Either::First(taken) => taken,
            Either::Second(abort) => {
                return Err(client_left(request, exchange, &abort, SENDING).into());
            }
        }
    };
    match taken {
        Either::First(Err(error)) if error.kind() == io::ErrorKind::TimedOut => Err(
            AttemptError::Failed(failed(request, &error, "send()", SENDING)),
        ),
        Either::First(_) => Ok(()),
        Either::Second(early) => {
            peer.early = Some(early);
            Ok(())
        }
    }
}

/// What came of a streamed body at once, framed as the client framed it: one chunk.
fn push_parts(request: &Request, stream: &Transport, parts: &[Bytes]) -> u64 {
    let length = parts.iter().map(|part| part.len() as u64).sum();
    let chunked = request.body.chunked() && length > 0;
    let line = proto::h1::chunked::ChunkLine::new(length);
    if chunked {
        stream.push(Segment::Bytes(Bytes::copy_from_slice(line.as_bytes())));
    }
    for part in parts {
        stream.push(Segment::Bytes(part.clone()));
    }
    if !chunked {
        return length;
    }
    stream.push(Segment::Bytes(Bytes::from_static(b"\r\n")));
    length + line.as_bytes().len() as u64 + 2
}

/// Sends a body that has been read as a whole, and adds the number of its bytes to `sent`. Of one that an upstream before this
/// one was given as it came nothing is left.
async fn push_stored_body(
    request: &mut Request,
    exchange: &mut Exchange,
    settings: &Settings,
    peer: &mut UpstreamConnection,
    sent: &mut u64,
) -> Result<(), AttemptError> {
    if let Some(parts) = request.body.in_memory() {
        for part in parts {
            *sent += part.len() as u64;
            peer.stream.push(Segment::Bytes(part.clone()));
        }
    } else if let Some(file) = request.body.file().cloned() {
        let length = request.body.received();
        if peer.stream.is_secure() {
            push_file(request, exchange, settings, peer, &file, length).await?;
        } else {
            peer.stream.push(Segment::File {
                file,
                offset: 0,
                length,
            });
        }
        *sent += length;
    }
    Ok(())
}

/// Sends a file through TLS, as fast as the peer takes it.
async fn push_file(
    request: &mut Request,
    exchange: &mut Exchange,
    settings: &Settings,
    peer: &mut UpstreamConnection,
    file: &engine::file::File,
    length: u64,
) -> Result<(), AttemptError> {
    let mut offset = 0;
    while offset < length && peer.early.is_none() {
        let wanted = (length - offset).min(BACKLOG_MAX as u64) as usize;
        let read = match file.read_at(offset, wanted).await {
            Ok(read) if !read.is_empty() => read,
            Ok(_) => return Err(AttemptError::Refused(500)), // the file is the request's alone
            Err(error) => {
                let error = log::Errno(&error);
                log::error!(request, Crit, "pread() failed {error} {SENDING}");
                return Err(AttemptError::Refused(500));
            }
        };
        offset += read.len() as u64;
        peer.stream.push(Segment::Bytes(read));
        peer.stream.start_send();
        wait_for_peer(request, exchange, settings, peer).await?;
    }
    peer.asked = offset == length;
    Ok(())
}

/// Writes down something of the try under way, with the time since it began.
pub(super) fn note(request: &mut Request, write: impl FnOnce(&mut Attempt, Option<Duration>)) {
    if let Some(attempts) = Attempts::of(request) {
        attempts.borrow_mut().note(write);
    }
}

/// A failure of the connection to a peer, logged in nginx's words; a time limit is logged when
/// its failure has been counted.
fn failed(request: &Request, error: &io::Error, call: &str, doing: &'static str) -> Failure {
    let timed_out = error.kind() == io::ErrorKind::TimedOut;
    if error.kind() == io::ErrorKind::InvalidData {
        log::error!(request, Error, "SSL_read() failed (SSL: {error}) {doing}");
    } else if !timed_out {
        let error = log::Errno(error);
        log::error!(request, Error, "{call} failed {error} {doing}");
    }
    let (cause, status) = match timed_out {
        true => (Causes::TIMEOUT, 504),
        false => (Causes::ERROR, 502),
    };
    Failure {
        cause,
        status,
        doing,
        sent: true,
        kept: false,
        again: false,
    }
}

/// The client closed its connection while the upstream was being asked.
fn client_left(request: &mut Request, exchange: &Exchange, abort: &Abort, doing: &str) -> Abort {
    told_left(abort, doing).write(request);
    note(request, |attempt, elapsed| attempt.response_time = elapsed);
    request.client_left(exchange)
}

/// What there is to log of a client that closed its connection.
fn told_left(abort: &Abort, doing: &str) -> Told {
    const TEXT: &str = "client prematurely closed connection, so upstream connection is closed too";
    let text = match abort {
        Abort::Closed(error) if error.raw_os_error().is_some() => {
            format!("{TEXT} {} {doing}", log::Errno(error))
        }
        _ => format!("{TEXT} {doing}"),
    };
    Told::new(Level::Info, text)
}
