//! The loop over the peers of a group, whatever is said to them: one is chosen and connected to, the [`Conversation`] is had with it, and where that
//! comes to nothing the next one is asked, if it may be (nginx's `ngx_http_upstream_next`). What there is to log and to tell of each try
//! is done here.

use std::io;
use std::time::{Duration, Instant};

use ::upstream::pool::{self, Connection, Made};
use ::upstream::{Cause, PutOut};
use bytes::Bytes;
use engine::net::{Address, Segment};
use engine::select::{Either, either};
use http::exchange::{Abort, Exchange};
use http::log::{self, Level};
use http::request::Request;
use http::source::Told;
use proto::method::Method;

use super::admission::{self, Passage};
use super::attempts::{AskedFor, Attempt, Attempts, Began};
use super::connecting::{self, Connected, NotConnected, Way};
use super::connection::{Home, UpstreamConnection};
use super::family::Causes;
use super::http2::links::{self, Acquired};
use super::response;
use super::socket::{RequestSocket, note_shortage};
use super::ssl::{self, Secured};
use crate::upstream::Selection;

/// What is done first, as log lines say it.
pub(super) const CONNECTING: &str = "while connecting to upstream";

/// Why a try came to nothing.
pub(crate) struct Failure {
    pub(crate) cause: Causes,
    /// The status to answer with if no other peer is tried.
    pub(super) status: u16,
    /// What was being done, for log lines.
    pub(crate) doing: &'static str,
    /// Whether some of the request may have reached the peer.
    pub(super) sent: bool,
    /// Whether the connection had been kept, so that the peer may have closed it before it saw the request.
    pub(super) kept: bool,
    /// It has been decided already that another peer is tried.
    pub(super) again: bool,
    /// The peer had too much to do to take it, which is no failure of the peer.
    pub(crate) is_busy: bool,
    /// Others that shared the connection may be why it has ended: one more try does not count,
    /// where tries are not limited.
    pub(super) is_of_others: bool,
}

/// How a try ends without an answer.
pub(crate) enum AttemptError {
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
pub(crate) struct Tries {
    pub(crate) connect_timeout: Duration,
    pub(crate) send_timeout: Duration,
    pub(crate) ignore_client_abort: bool,
    /// After which failures the next peer is asked.
    pub(crate) next_upstream: Causes,
    /// 0 is no limit.
    pub(crate) next_upstream_tries: usize,
    /// Zero is no limit.
    pub(crate) next_upstream_timeout: Duration,
}

/// How a request reaches its peers.
pub(crate) struct Reach {
    /// How their URLs begin in log lines.
    pub(crate) scheme: &'static [u8],
    /// How they end.
    pub(crate) uri: Bytes,
    pub(crate) socket: RequestSocket,
    /// TLS, where peers speak it.
    pub(crate) secured: Option<Secured>,
    /// What each new connection begins with: a header of the PROXY protocol, or nothing.
    pub(crate) introduction: Bytes,
    /// Requests share connections, as streams of HTTP/2.
    pub(crate) is_shared: bool,
    /// What another request must agree on to use the same connection.
    pub(crate) terms: Bytes,
}

/// What is said to a peer once there is a connection to it, and what it answers.
pub(crate) trait Conversation {
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

    /// The size of the request's head as HTTP/2 counts it, where requests share connections.
    fn head_size(&self) -> usize {
        0
    }

    /// A try begins, which may come to nothing before anything is said: what is known of the one before is of no use any more.
    fn try_begins(&self) {}
}

/// All that is the same for each peer that a request tries.
pub(crate) struct Asking<'a, C> {
    pub(crate) tries: Tries,
    pub(crate) reach: &'a Reach,
    pub(crate) conversation: C,
    pub(crate) home: &'a Home,
}

/// No peer has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unanswered {
    /// The status to answer with.
    pub(crate) status: u16,
    /// How the last try has failed; `None` where that is not the peers' doing.
    pub(crate) cause: Option<Causes>,
}

impl Unanswered {
    /// It is not the peers' doing.
    pub(crate) fn of_ours(status: u16) -> Unanswered {
        Unanswered {
            status,
            cause: None,
        }
    }
}

impl From<Failure> for Unanswered {
    fn from(failure: Failure) -> Unanswered {
        Unanswered {
            status: failure.status,
            cause: Some(failure.cause),
        }
    }
}

/// Tries peers until one answers.
pub(crate) async fn ask<C: Conversation>(
    request: &mut Request,
    exchange: &mut Exchange,
    selection: &mut Selection,
    asking: &Asking<'_, C>,
) -> Result<Result<(UpstreamConnection, C::Answer), Unanswered>, Abort> {
    let (tries, reach) = (&asking.tries, asking.reach);
    let admitted = admission::admit(request, exchange, tries, reach, selection).await;
    let mut passage = match admitted {
        Ok(passage) => passage,
        Err(AttemptError::Aborted(abort)) => return Err(abort),
        Err(AttemptError::Refused(status)) => return Ok(Err(Unanswered::of_ours(status))),
        Err(AttemptError::Failed(failure)) => return Ok(Err(failure.into())),
    };
    let began = engine::now();
    loop {
        match attempt(request, exchange, selection, asking, began, &mut passage).await {
            Ok((mut peer, answer)) => {
                if let Some(admitted) = &mut passage.admitted {
                    admitted.answered(engine::now());
                }
                peer.admitted = passage.admitted;
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
                if failure.is_of_others && tries.next_upstream_tries == 0 {
                    selection.try_once_more();
                }
                let goes_on =
                    failure.again || may_try_next(request, selection, asking, &failure, began);
                if goes_on {
                    continue;
                }
                if let Some(admitted) = &mut passage.admitted
                    && failure.cause == Causes::TIMEOUT
                {
                    admitted.answered(engine::now());
                }
                return Ok(Err(failure.into()));
            }
            // No fault of the peer: the session is its all the same.
            Err(AttemptError::Refused(status)) => {
                drop(selection.at_end(request));
                return Ok(Err(Unanswered::of_ours(status)));
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
    if failure.is_busy {
        selection.let_off();
    } else if failure.cause.is_harmless() {
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
    note(request, |attempt, began| {
        attempt.response_time = began.elapsed();
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
    passage: &mut Passage,
) -> Result<(UpstreamConnection, C::Answer), AttemptError> {
    asking.conversation.try_begins();
    let mut waited = wait_for_turn(request, exchange, &asking.tries, selection).await?;
    if let Some(before) = passage.waited.take() {
        waited.time = Some(waited.time.unwrap_or_default() + before);
    }
    let address = choose(request, selection, asking.reach, &waited)?;
    log::error!(request, Debug, "http upstream connect: {address}");
    let unheard = selection.unheard();
    let goes_elsewhere =
        asking.tries.next_upstream.contains(Causes::ERROR) && selection.has_others(engine::now());
    let room = Room {
        head_size: asking.conversation.head_size(),
        unheard,
        goes_elsewhere,
    };
    let connected = connect(request, exchange, &address, asking, room);
    let (mut peer, kept) = connected.await?;
    selection.connected();
    let asked = asking.conversation.talk(request, exchange, &mut peer).await;
    let answer = asked.map_err(|error| match error {
        // What was not sent says by itself whether that counts.
        AttemptError::Failed(failure) => AttemptError::Failed(Failure {
            kept: kept && failure.sent || failure.kept,
            ..failure
        }),
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
            is_busy: false,
            is_of_others: false,
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
    let Some(timeout) = selection.queue_timeout() else {
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
    let waiting = either(waiting, engine::sleep(timeout));
    let ended = match tries.ignore_client_abort {
        true => Ok(waiting.await),
        false => match either(waiting, exchange.client_gone()).await {
            Either::First(ended) => Ok(ended),
            Either::Second(abort) => Err(abort),
        },
    };
    let in_vain = selection.given().is_none();
    drop(place);
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
    seen.began = Began::now();
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
        let load = selection.load().filter(|_| waited.in_vain);
        if let Some(load) = &load {
            admission::come_again(request, selection, load);
        }
        AttemptError::Failed(Failure {
            cause: Causes::NO_LIVE,
            status: if load.is_some() { 503 } else { 502 },
            doing: CONNECTING,
            sent: false,
            kept: false,
            again: false,
            is_busy: false,
            is_of_others: false,
        })
    })
}

/// What there is to know of the room that a request needs.
#[derive(Clone, Copy, Default)]
pub(crate) struct Room {
    /// See [`Conversation::head_size`].
    pub(crate) head_size: usize,
    /// How many requests the peer has that it has not heard.
    pub(crate) unheard: usize,
    /// The request goes to another peer where this one has no room.
    pub(crate) goes_elsewhere: bool,
}

/// Connects to a peer, or finds room on a connection that there is; whether that had been kept with nothing under way, so that the peer may have
/// closed it meanwhile. One with other requests on it is as good as a new one.
pub(crate) async fn connect<C>(
    request: &mut Request,
    exchange: &mut Exchange,
    address: &Address,
    asking: &Asking<'_, C>,
    room: Room,
) -> Result<(UpstreamConnection, bool), AttemptError> {
    if !asking.reach.is_shared {
        return connect_alone(request, exchange, address, asking, room).await;
    }
    let home = asking.home;
    let group = &home.group.shared;
    let acquiring = links::acquire(
        &home.local,
        group,
        address,
        &asking.reach.terms,
        room.head_size,
    );
    let acquiring = either(acquiring, engine::sleep(asking.tries.connect_timeout));
    let acquired = match asking.tries.ignore_client_abort {
        true => acquiring.await,
        false => match either(acquiring, exchange.client_gone()).await {
            Either::First(acquired) => acquired,
            Either::Second(abort) => {
                return Err(client_left(request, exchange, &abort, CONNECTING).into());
            }
        },
    };
    let permit = match acquired {
        Either::First(Ok(Acquired::Joined(stream))) => {
            note(request, |attempt, _| {
                attempt.connect_time = Some(Duration::ZERO)
            });
            let had_been_kept = stream.is_alone();
            return Ok((UpstreamConnection::on(stream, home.clone()), had_been_kept));
        }
        Either::First(Ok(Acquired::Anew(permit))) => permit,
        Either::First(Err(shortage)) => {
            note_shortage(request, shortage);
            return Err(AttemptError::Refused(500));
        }
        Either::Second(()) => {
            let error = io::ErrorKind::TimedOut.into();
            return Err(AttemptError::Failed(Failure {
                sent: false,
                ..failed(request, &error, "connect()", CONNECTING)
            }));
        }
    };
    let connecting = connect_alone(request, exchange, address, asking, room);
    let (peer, _) = connecting.await?;
    let Some(transport) = peer.into_transport() else {
        return Err(AttemptError::Refused(500)); // it has just been made for this request alone
    };
    let stream = permit.begin(transport, group);
    Ok((UpstreamConnection::on(stream, home.clone()), false))
}

/// Connects to a peer; whether that is by a connection that had been kept. Where the peer has no
/// room for one more it is waited for, or, if the request goes elsewhere then, not.
async fn connect_alone<C>(
    request: &mut Request,
    exchange: &mut Exchange,
    address: &Address,
    asking: &Asking<'_, C>,
    room: Room,
) -> Result<(UpstreamConnection, bool), AttemptError> {
    let (tries, reach, home) = (&asking.tries, asking.reach, asking.home);
    let over = |connection| UpstreamConnection::over(connection, tries.send_timeout, home.clone());
    let kept = || match reach.is_shared {
        true => None,
        false => pool::take(&home.local, &home.group.shared, address, &reach.terms),
    };
    // What is there needs no waiting, and so no look at the client.
    if let Some(connection) = kept() {
        return Ok(again(request, over(connection)));
    }
    let deadline = engine::now() + tries.connect_timeout;
    let way = Way {
        address,
        options: &reach.socket.options,
        deadline,
        timeout: tries.connect_timeout,
        unheard: room.unheard,
        goes_elsewhere: room.goes_elsewhere,
    };
    let connecting = connecting::connect(&way, kept);
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
        Ok(Connected::Kept(connection)) => Ok(again(request, over(connection))),
        Ok(Connected::Anew(stream)) => {
            if request.plan.core.tcp_nodelay && matches!(address, Address::Inet(_)) {
                stream.set_nodelay(true);
            }
            let made = Made::now(address.clone(), reach.terms.clone());
            let peer = over(Connection::new(stream.into(), made));
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
        Err(failure) => {
            let (is_busy, error) = match failure {
                NotConnected::Busy(error) => (true, error),
                NotConnected::Failed(failed) => match reach.socket.error_of_peer(request, failed) {
                    Some(error) => (false, error),
                    None => return Err(AttemptError::Refused(500)),
                },
            };
            Err(AttemptError::Failed(Failure {
                sent: false,
                is_busy,
                ..match address {
                    Address::Inet(_) => failed(request, &error, "connect()", CONNECTING),
                    Address::Unix(_) => not_connected(request, &error, address),
                }
            }))
        }
    }
}

/// A connection that had been kept, from the beginning or while this request waited, serves once more.
fn again(request: &mut Request, peer: UpstreamConnection) -> (UpstreamConnection, bool) {
    note(request, |attempt, _| {
        attempt.connect_time = Some(Duration::ZERO)
    });
    (peer, true)
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
    let is_common = matches!(
        error.raw_os_error(),
        Some(libc::ECONNREFUSED | libc::EAGAIN | libc::ECONNRESET)
    );
    if is_common || error.kind() == io::ErrorKind::TimedOut {
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
        is_busy: false,
        is_of_others: false,
    }
}

/// Writes down something of the try under way, with the time since it began.
pub(crate) fn note(request: &mut Request, write: impl FnOnce(&mut Attempt, Began)) {
    if let Some(attempts) = Attempts::of(request) {
        attempts.borrow_mut().note(write);
    }
}

/// A failure of the connection to a peer, logged in nginx's words; a time limit is logged when
/// its failure has been counted.
pub(crate) fn failed(
    request: &Request,
    error: &io::Error,
    call: &str,
    doing: &'static str,
) -> Failure {
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
        is_busy: false,
        is_of_others: false,
    }
}

/// The client closed its connection while the upstream was being asked.
pub(super) fn client_left(
    request: &mut Request,
    exchange: &Exchange,
    abort: &Abort,
    doing: &str,
) -> Abort {
    told_left(abort, doing).write(request);
    note(request, |attempt, began| {
        attempt.response_time = began.elapsed()
    });
    request.client_left(exchange)
}

/// What there is to log of a client that closed its connection.
pub(super) fn told_left(abort: &Abort, doing: &str) -> Told {
    const TEXT: &str = "client prematurely closed connection, so upstream connection is closed too";
    let text = match abort {
        Abort::Closed(error) if error.raw_os_error().is_some() => {
            format!("{TEXT} {} {doing}", log::Errno(error))
        }
        _ => format!("{TEXT} {doing}"),
    };
    Told::new(Level::Info, text)
}
