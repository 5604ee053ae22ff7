//! The task of a client's HTTP/1 connection: reads heads, serves the requests in order, keeps the
//! connection alive between them.
//!
//! The future of [`serve`] lives as long as the connection, so it is small: while the
//! connection is idle it holds neither a buffer nor a request. A request that the memory cache
//! can answer is answered right here; every other gets a future of its own for as long as it
//! lasts (`serve_through_phases`).
//!
//! Finished responses gather while further requests stand ready, so that those of a client that
//! pipelines leave in one send. They wait for nothing else: whatever the connection is about to
//! wait for (input, an upstream, a disk, a timer), [`serve`] sends them first.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use engine::{Buffer, Deadline, PooledFuture};
use framework::generation::GenerationView;
use framework::panics;
use framework::workers::Registered;
use proto::h1::{self, BodyLength, FramingError, HeadError};
use proto::header::KnownField;
use transport::proxy_protocol;
use transport::tls::handshake::{self, HandshakeStart};

use crate::connection::Connection;
use crate::exchange::Exchange;
use crate::exchange::abort::Abort;
use crate::h1::exchange::{After, H1};
use crate::handshake::ServersOf;
use crate::http2;
use crate::http2::connection_task::Begins;
use crate::logging;
use crate::logging::request_log;
use crate::logging::subject::HeadUpTo;
use crate::request::Request;
use crate::request::activity::READING_HEADERS;
use crate::request::body::reading;
use crate::request::head::RejectedHead;
use crate::request::phases;
use crate::request::pool;
use crate::request::state::Repeatable;
use crate::response::error_page::answer;
use crate::response::prebuilt::answering;

/// Memory that responses of a pipelining client may occupy before we wait for it to read, in bytes.
/// As much as a full receive buffer of browsers' requests asks for in small files, so that these
/// leave in one send.
const PIPELINE_BACKLOG_MAX: usize = 32 * 1024;

/// What a queued response occupies beside its bytes.
const RESPONSE_OVERHEAD: usize = 512;

/// How reading a head ended.
enum Head {
    /// It is complete and parsed.
    Complete,
    /// It is the head of the request that was kept, byte for byte.
    Repeated,
    /// The client left, or was silent for too long.
    Gone { timed_out: bool },
    /// It is no request; to be answered with the error's status.
    Bad(HeadError),
}

/// Serves a connection from accept to close. It counts as one of its thread for as long as it is
/// `registered`.
#[expect(
    clippy::manual_async_fn,
    reason = "an asynchronous function keeps its argument twice"
)]
pub fn serve(connection: Rc<Connection>, registered: Registered) -> impl Future<Output = ()> {
    async move {
        logging::debug::accepted(&connection);
        let after = {
            let mut conversation = pin!(converse(&connection));
            poll_fn(|context| {
                if let Some(watched) = connection.worker.watched() {
                    watched.polls(connection.client.serial);
                }
                let polled = conversation.as_mut().poll(context);
                // Whatever it waits for now, or how it ends: finished responses leave first. Where
                // the end itself sends what is left, they leave with that.
                if !matches!(polled, Poll::Ready(After::Close { .. })) {
                    connection.send_finished();
                }
                polled
            })
            .await
        };
        // The connection itself is in no variable while something is awaited here: idle connections
        // would need room for it twice.
        let shared = match Rc::try_unwrap(connection) {
            Ok(connection) => {
                // A slow client may still be taking responses: the rest of sending, and then
                // closing, is the engine's.
                match after {
                    After::Close {
                        client_is_done: true,
                    } => connection.stream.finish_quickly(),
                    After::Close { .. } => connection.stream.finish(),
                    _ => {}
                }
                None
            }
            Err(connection) => Some(connection),
        };
        // Something that outlives its request still knows the client by it.
        if let Some(connection) = shared {
            Box::pin(part(connection, after)).await;
        }
        drop(registered);
    }
}

/// Ends a connection that others still hold, as its client sees it.
async fn part(connection: Rc<Connection>, after: After) {
    if matches!(after, After::Close { .. }) && connection.stream.drained(0).await.is_ok() {
        connection.stream.shutdown_write();
    }
    connection.stream.shutdown();
}

/// Serves a connection's requests, in order; how it ends.
///
/// What stands here takes room in every idle connection, so what is only for requests is in
/// functions of their own.
#[expect(
    clippy::manual_async_fn,
    reason = "an asynchronous function keeps its argument twice"
)]
fn converse(connection: &Rc<Connection>) -> impl Future<Output = After> {
    async move {
        let Some(mut input) = preamble(connection).await else {
            return After::CLOSE;
        };
        if http2::connection_task::is_agreed(connection) {
            return Box::pin(http2::connection_task::converse(connection, input)).await;
        }
        let mut pipelined = false;
        let mut queued: u16 = 0;
        loop {
            if input.is_empty() {
                // What was read to its end goes back to the pool before the wait.
                drop(std::mem::take(&mut input));
                match next_input(connection).await {
                    Some(buffer) => input = buffer,
                    None => return After::CLOSE,
                }
            }
            if connection.requests.get() == 0
                && http2::connection_task::is_spoken(connection, &input)
            {
                // A box of its own, so that connections of HTTP/1 need no room for it.
                let taken = std::mem::take(&mut input);
                match Box::pin(http2::connection_task::begin_in_clear(connection, taken)).await {
                    Begins::Http1(received) => input = received,
                    Begins::Ended(after) => return after,
                }
            }
            let Served { after, read_apart } = match serve_next(connection, &mut input, pipelined) {
                Ok(served) => served,
                Err(serving) => serving.await,
            };
            pipelined = !input.is_empty() && !read_apart;
            match after {
                After::KeepAlive => {}
                After::Close { .. } => {
                    if logs::has_unwritten() {
                        // A client that reads to the end finds its line in the log, as with nginx.
                        connection.finish_response();
                        engine::yield_now().await;
                    }
                    return after;
                }
                After::Drop => return after,
            }
            connection.finish_response();
            let backlog = if !input.is_empty() {
                connection.stream.backlog()
            } else {
                connection.send_finished()
            };
            queued = match backlog {
                0 => 0,
                _ => queued.saturating_add(1),
            };
            if backlog + usize::from(queued) * RESPONSE_OVERHEAD > PIPELINE_BACKLOG_MAX {
                queued = 0;
                input.fit();
                if connection.stream.drained(0).await.is_err() {
                    return After::Drop;
                }
            }
        }
    }
}

/// What became of a request.
struct Served {
    after: After,
    /// Whether it was read without what follows it.
    read_apart: bool,
}

/// A request that takes longer, with all that it needs until it has been served.
type Serving<'a> = PooledFuture<'a, Served>;

/// Begins the request that `input` begins with, and answers it at once if that can be done.
fn serve_next<'a>(
    connection: &'a Rc<Connection>,
    input: &'a mut Buffer,
    pipelined: bool,
) -> Result<Served, Serving<'a>> {
    let local = connection.generation();
    let repeated = if connection.takes_shortcuts() {
        pool::repeated(input, &local, connection)
    } else {
        None
    };
    let (mut request, head) = match repeated {
        Some((request, length)) => {
            input.advance(length);
            (request, Head::Repeated)
        }
        None => {
            let first = |first: &_| pool::take(&local, connection, first);
            let Some(mut request) = connection.with_first_server(&local, first) else {
                return Ok(Served {
                    after: After::Drop,
                    read_apart: false,
                });
            };
            let head = match parse(connection, &local, &mut request, input) {
                Ok(Some(length)) => {
                    input.advance(length);
                    Head::Complete
                }
                Ok(None) => {
                    request.arrival.pipelined = pipelined;
                    return Err(PooledFuture::new(read_and_serve(
                        connection, request, input,
                    )));
                }
                Err(error) => Head::Bad(error),
            };
            (request, head)
        }
    };
    request.arrival.pipelined = pipelined;
    match answer_at_once(connection, &mut request, &head, input) {
        Some(after) => Ok(settle(connection, request, Ok(after), input)),
        None => Err(PooledFuture::new(serve_on(
            connection, request, head, input,
        ))),
    }
}

/// Answers a request from memory, if it can be.
#[inline]
fn answer_at_once(
    connection: &Connection,
    request: &mut Request,
    head: &Head,
    input: &mut Buffer,
) -> Option<After> {
    if let Some(watched) = connection.worker.watched() {
        watched.begins(connection.client.serial);
    }
    match head {
        Head::Complete => answering::respond(request, input),
        Head::Repeated => answering::respond_again(request, input),
        _ => None,
    }
}

/// Serves a request whose head is still coming.
async fn read_and_serve(
    connection: &Rc<Connection>,
    mut request: Box<Request>,
    input: &mut Buffer,
) -> Served {
    let head = read_rest(connection, &mut request, input).await;
    match answer_at_once(connection, &mut request, &head, input) {
        Some(after) => settle(connection, request, Ok(after), input),
        // A box of its own, so that a head that comes slowly needs no room for it.
        None => PooledFuture::new(serve_on(connection, request, head, input)).await,
    }
}

/// Serves a request that cannot be answered from memory, or is none.
async fn serve_on(
    connection: &Rc<Connection>,
    mut request: Box<Request>,
    head: Head,
    input: &mut Buffer,
) -> Served {
    let after = match head {
        Head::Complete | Head::Repeated => {
            let mut served = pin!(serve_through_phases(connection, &mut request, input));
            panics::catch(served.as_mut()).await
        }
        Head::Gone { timed_out } => Ok(gone(connection, &mut request, timed_out)),
        Head::Bad(error) => {
            let mut refused = Box::pin(refuse(connection, &mut request, input, error));
            panics::catch(refused.as_mut()).await
        }
    };
    settle(connection, request, after, input)
}

/// Puts a request away that has ended.
#[inline]
fn settle(
    connection: &Connection,
    request: Box<Request>,
    after: Result<After, panics::Panicked>,
    input: &Buffer,
) -> Served {
    // A body that did not come with its head, or did not fit beside it, was read without what
    // follows it, were this nginx, and so was a head that fills its buffer: `$pipe`.
    let read_apart = !input.is_empty() && {
        let room = reading::room_beside_head(&request);
        let with_head = request.body.came_with_head().min(room);
        let fills_buffer = room == 0 && !request.arrival.pipelined;
        fills_buffer || request.body.announced() > with_head as u64
    };
    let after = match after {
        Ok(after) => {
            connection.keep_error_log(&request);
            pool::give_back(request);
            after
        }
        Err(panicked) => abandon_after_panic(request, &panicked),
    };
    Served { after, read_apart }
}

/// What comes before the first request, where the address asks for it; then the bytes that have
/// come behind it. `None`: the connection cannot go on.
async fn preamble(connection: &Rc<Connection>) -> Option<Buffer> {
    let asked = connection.with_servers(&connection.generation(), |servers| {
        let length_max = if servers.protocols.ssl {
            proxy_protocol::LENGTH_MAX
        } else {
            servers.default.core.head_limits().buffer_size
        };
        servers.protocols.proxy_protocol.then_some(length_max)
    });
    let received = match asked.flatten() {
        Some(length_max) => {
            let deadline = connection.client.started() + connection.first_byte_timeout();
            let header = proxy_protocol::receive(&**connection, length_max, deadline);
            Box::pin(header).await.ok()?
        }
        None => Buffer::default(),
    };
    let local = connection.generation();
    let is_secure = connection.with_servers(&local, |servers| servers.protocols.ssl);
    // Another door may have shaken hands before it handed the connection over.
    if is_secure != Some(true) || connection.stream.is_secure() {
        return Some(received);
    }
    // A box of its own, so that idle connections need no room for it.
    let names = ServersOf(connection);
    match Box::pin(handshake::accept(&names, received)).await {
        HandshakeStart::Secure => Some(Buffer::default()),
        HandshakeStart::Plain(received) => {
            connection.plain_on_secure_port.set(true);
            Some(received)
        }
        HandshakeStart::Ended => None,
    }
}

/// The end of a request that has met a bug of ours. It may be in any state, so it is not kept.
fn abandon_after_panic(mut request: Box<Request>, panicked: &panics::Panicked) -> After {
    note_panic(&mut request, panicked);
    end(&mut request, &Ok(()), &After::Drop);
    After::CLOSE
}

/// Writes down that a request has met a bug of ours.
pub(crate) fn note_panic(request: &mut Request, panicked: &panics::Panicked) {
    let panics::Panicked { place, message } = panicked;
    request.connection.worker.counts().panics.add(1);
    logs::error!(
        request,
        Alert,
        "panicked at {place}: {message}: the request is lost"
    );
    if request.response.status == 0 {
        request.response.status = 500;
    }
}

/// Waits for the first bytes of the next request. `None` ends the
/// connection: the client closed, was silent for too long, or we are shutting down.
#[expect(
    clippy::manual_async_fn,
    reason = "an asynchronous function keeps its argument twice"
)]
fn next_input(connection: &Rc<Connection>) -> impl Future<Output = Option<Buffer>> {
    async move {
        let received = match patience(connection) {
            Patience::Ended => return None,
            Patience::Idle(wait) => {
                connection.worker.counts().waiting.add(1);
                wait_idle(connection, wait).await
            }
            // Rare, so that idle connections need no room for it.
            Patience::Protected { protected, wait } => {
                connection.worker.counts().waiting.add(1);
                Box::pin(wait_protected(connection, protected, wait)).await
            }
        };
        connection.worker.counts().waiting.subtract(1);
        connection.set_idle(false);
        let first = connection.requests.get() == 0;
        match received {
            Ok(buffer) if !buffer.is_empty() => Some(buffer),
            Ok(_) => {
                logging::client::connection_closed(connection, first);
                None
            }
            Err(error) => {
                logging::client::connection_closed_early(connection, &error, first);
                None
            }
        }
    }
}

/// How long a connection waits for the next request.
enum Patience {
    /// Not at all: it is to end.
    Ended,
    /// For so long, unless it is closed to make room.
    Idle(Duration),
    /// For `wait`, and is not closed early for the time of `protected`.
    Protected { protected: Duration, wait: Duration },
}

fn patience(connection: &Connection) -> Patience {
    if connection.requests.get() == 0 {
        let wait = connection.first_byte_timeout();
        let spent = engine::now().saturating_duration_since(connection.client.started());
        return Patience::Idle(wait.saturating_sub(spent));
    }
    let (wait, protected) = connection.idle_time();
    if !protected.is_zero() {
        return Patience::Protected { protected, wait };
    }
    if connection.ends_idle() {
        Patience::Ended
    } else {
        Patience::Idle(wait)
    }
}

/// Receives within `wait`. Meanwhile the connection counts as idle.
fn wait_idle(connection: &Connection, wait: Duration) -> impl Future<Output = io::Result<Buffer>> {
    connection.set_idle(true);
    connection.stream.recv_idle(Deadline::within(wait))
}

/// Receives within `wait`. For the time of `protected` the connection does not count as idle, so
/// that its worker does not close it.
async fn wait_protected(
    connection: &Connection,
    protected: Duration,
    wait: Duration,
) -> io::Result<Buffer> {
    let protected_until = Deadline::within(protected);
    let end = Deadline::within(wait);
    let received = connection.stream.recv_idle(protected_until).await;
    let timed_out = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
    if !received.as_ref().is_err_and(timed_out) || protected >= wait || connection.ends_idle() {
        return received;
    }
    connection.set_idle(true);
    connection.stream.recv_idle(end).await
}

fn parse(
    connection: &Connection,
    local: &GenerationView,
    request: &mut Request,
    bytes: &[u8],
) -> Result<Option<usize>, HeadError> {
    let limits = request.server.core.head_limits();
    let (gathered, head) = request.client_mut().h1_mut();
    let parsed = connection.parse_head(local, &limits, bytes, head);
    let kept = match parsed {
        Ok(Some(length)) => bytes.get(..length).unwrap_or_default(),
        Ok(None) => &[], // `read_rest` gathers them
        Err(_) => bytes,
    };
    gathered.clear();
    gathered.extend_from_slice(kept);
    parsed
}

/// Reads on until the head is complete. Its bytes gather in the request; what follows the head
/// stays in `input`.
async fn read_rest(connection: &Connection, request: &mut Request, input: &mut Buffer) -> Head {
    let local = &Rc::clone(&request.local);
    let limits = request.server.core.head_limits();
    request.client_mut().bytes.clear();
    request.client_mut().bytes.extend_from_slice(input);
    let deadline = head_deadline(connection, local, request);
    let counts = connection.worker.counts();
    loop {
        counts.reading.add(1);
        *input = Buffer::empty(); // it is among the head's bytes
        let received = connection.stream.recv(Some(deadline)).await;
        counts.reading.subtract(1);
        *input = match received {
            Ok(buffer) if buffer.is_empty() => return Head::Gone { timed_out: false },
            Ok(buffer) => buffer,
            Err(error) => {
                return Head::Gone {
                    timed_out: error.kind() == std::io::ErrorKind::TimedOut,
                };
            }
        };
        let (bytes, head) = request.client_mut().h1_mut();
        if !head.has_begun() && bytes.len() >= limits.buffer_size {
            // So far there are only empty lines, of which a client may send any number.
            bytes.clear();
            head.clear();
        }
        let before = bytes.len();
        bytes.extend_from_slice(input);
        match connection.parse_head(local, &limits, bytes, head) {
            Ok(None) => {}
            Ok(Some(length)) => {
                bytes.truncate(length);
                input.advance(length.saturating_sub(before));
                return Head::Complete;
            }
            Err(error) => return Head::Bad(error),
        }
    }
}

/// When a head must be complete of which the first bytes have come. As with nginx, the time of a
/// connection's first head begins with the connection and is the default server's; that of a later
/// one begins with its bytes, and is that of the server that they name.
fn head_deadline(connection: &Connection, local: &GenerationView, request: &Request) -> Instant {
    let first = &request.server;
    if connection.requests.get() == 0 {
        return connection.client.started() + first.core.client_header_timeout;
    }
    let client = &request.client;
    let named = client.server_name().and_then(|server| {
        let host = server.name.of(&client.bytes);
        connection.with_servers(local, |servers| servers.reader_of(host))?
    });
    engine::now() + named.as_ref().unwrap_or(first).core.client_header_timeout
}

/// A request whose head never came: logged as nginx does, without an answer.
fn gone(connection: &Connection, request: &mut Request, timed_out: bool) -> After {
    tell_ignored(request, false);
    request.begin_refused();
    tell_ignored(request, true);
    logging::client::incomplete_head(connection, request, timed_out);
    request.response.status = if timed_out { 408 } else { 400 };
    end(request, &Ok(()), &After::Drop);
    if timed_out && request.plan.core.reset_timedout_connection {
        connection.stream.reset_when_dropped();
        return After::Drop;
    }
    After::CLOSE
}

/// Answers something that is no request and ends the connection.
async fn refuse(
    connection: &Rc<Connection>,
    request: &mut Request,
    input: &mut Buffer,
    error: HeadError,
) -> After {
    let text = error.log_text(&request.client.bytes);
    tell_ignored(request, false);
    request.begin_refused();
    if matches!(error, HeadError::Misdirected) {
        request.choose_negotiated_server();
    }
    tell_ignored(request, true);
    // Where it leads to an error page that is not there, too.
    request.activity.doing = if request.client.has_request_line() {
        READING_HEADERS
    } else {
        request.reading_line()
    };
    if matches!(error, HeadError::LineTooLong) {
        // Logs show what a buffer for long lines holds, as nginx's do.
        let room = request.server.core.head_limits().large_buffer_size;
        let (bytes, head) = request.client_mut().h1_mut();
        bytes.truncate(head.leading().saturating_add(room));
    }
    logs::error!(request, Info, "{}", logs::Printable(&text));
    let version = request.client.version();
    let mut exchange = Exchange::h1(H1::refused(
        connection,
        version,
        BodyLength::None,
        std::mem::take(input),
    ));
    let outcome = answer::refuse(request, &mut exchange, error.status()).await;
    let (after, _) = finish_exchange(exchange, request, outcome.is_ok()).await;
    end(request, &outcome, &after);
    after
}

/// Serves a request through the phases, with a future of its own.
async fn serve_through_phases(
    connection: &Rc<Connection>,
    request: &mut Request,
    input: &mut Buffer,
) -> After {
    // The long way may change all that was made of the head.
    request.repeatable = Repeatable::default();
    if let Some(watched) = connection.worker.watched() {
        let client = &request.client;
        watched.is_at(connection.client.serial, client.request_line());
    }
    let mut exchange = match begin(connection, request, input) {
        Ok(exchange) => exchange,
        // A box of its own, so that what is served needs no room for it.
        Err(refusal) => return Box::pin(refuse_begun(connection, request, input, refusal)).await,
    };
    let outcome = phases::handle(request, &mut exchange).await;
    if let Err(abort) = &outcome {
        if !exchange.has_sent_head() {
            request.keepalive.on = exchange.keeps_alive(request);
        }
        note_abort(request, abort);
        exchange.take_back(request);
    }
    let (after, rest) = match exchange.finish_at_once(request, outcome.is_ok()) {
        Some(rest) => (After::KeepAlive, rest),
        // Memory of its own, so that requests that wait need no room for it.
        None => PooledFuture::new(finish_exchange(exchange, request, outcome.is_ok())).await,
    };
    end(request, &outcome, &after);
    *input = rest;
    after
}

/// Answers a request whose head has been parsed and cannot be served.
async fn refuse_begun(
    connection: &Rc<Connection>,
    request: &mut Request,
    input: &mut Buffer,
    (text, status): RejectedHead,
) -> After {
    request.activity.doing = request.reading();
    if !text.is_empty() {
        logs::error!(request, Info, "{}", logs::Printable(&text));
    }
    let input = std::mem::take(input);
    let version = request.client.version();
    let length = request.body.framing();
    let mut exchange = Exchange::h1(H1::refused(connection, version, length, input));
    let outcome = answer::refuse(request, &mut exchange, status).await;
    let (after, _) = finish_exchange(exchange, request, outcome.is_ok()).await;
    end(request, &outcome, &after);
    after
}

/// Leaves the connection to the next request, or says that there is none; see [`H1::finish`].
async fn finish_exchange(
    exchange: Exchange,
    request: &mut Request,
    whole: bool,
) -> (After, Buffer) {
    match exchange.into_h1() {
        Some(h1) => h1.finish(request, whole).await,
        None => (After::Drop, Buffer::default()), // no exchange of another kind is begun here
    }
}

/// From a parsed head to an exchange: host, virtual server and URI, the body's framing.
fn begin(
    connection: &Rc<Connection>,
    request: &mut Request,
    input: &mut Buffer,
) -> Result<Exchange, RejectedHead> {
    tell_ignored(request, false);
    request.begin()?;
    tell_ignored(request, true);
    if request.client.server_name().is_none() && connection.is_misdirected(&request.local, b"") {
        request.choose_negotiated_server();
        let error = HeadError::Misdirected;
        return Err((error.log_text(&request.client.bytes), error.status()));
    }
    let client = &request.client;
    let Some(head) = client.h1() else {
        return Err((Vec::new(), 400)); // no other protocol begins here
    };
    let length = match h1::body_length(head, &client.bytes, request.server.allows_connect) {
        Ok(length) => length,
        Err(error) => {
            let refusal = (error.log_text(head, &client.bytes), error.status());
            let in_chunks = request.header(KnownField::TransferEncoding).is_some();
            let has_length = request.header(KnownField::ContentLength).is_some();
            match error {
                FramingError::Trace(length) => request.body.begin(length, 0),
                // Here the framing was found good.
                FramingError::Connect | FramingError::ConnectWithBody
                    if in_chunks || has_length =>
                {
                    request.body.note_refused_head(in_chunks);
                }
                FramingError::LengthAndChunked | FramingError::UnknownTransferEncoding
                    if has_length =>
                {
                    request.body.note_refused_head(false);
                }
                _ => {}
            }
            return Err(refusal);
        }
    };
    request.body.begin(length, input.len());
    Ok(Exchange::h1(H1::new(
        connection,
        request,
        length,
        std::mem::take(input),
    )))
}

/// Writes down which header lines are left out for their names: those before the host is named in
/// the log of the server that the request begins under, and once the host has chosen the server
/// (`is_chosen`) the others in that one's.
pub(crate) fn tell_ignored(request: &Request, is_chosen: bool) {
    let client = &request.client;
    let ignored = client.ignored();
    if ignored.is_empty() {
        return;
    }
    let named = client.server_name().map(|server| server.name.start);
    let what = match client.h1() {
        Some(_) => "header line",
        None => "header",
    };
    for line in ignored {
        if named.is_some_and(|named| named < line.start) == is_chosen {
            let text = logs::Printable(line.of(&client.bytes));
            let text = format_args!("client sent invalid {what}: \"{text}\"{READING_HEADERS}");
            logs::write(&HeadUpTo(request, *line), logs::Level::Info, text);
        }
    }
}

/// What is written down of a request that has ended: as in nginx, once the rest of its body has
/// been read away and its client has been waited for.
fn end(request: &mut Request, outcome: &Result<(), Abort>, after: &After) {
    let ends_here = match outcome {
        // Answered, or given up: the client has left or was waited for in vain, or gets no answer,
        // or no more of one that an upstream or a filter has broken.
        Ok(())
        | Err(
            Abort::Closed(_)
            | Abort::TimedOut
            | Abort::BodyTimedOut
            | Abort::Unanswered(_)
            | Abort::Silently
            | Abort::UpstreamFraming
            | Abort::Filter,
        ) => !matches!(after, After::KeepAlive),
        // As in nginx no other request was awaited any more.
        Err(_) => false,
    };
    if ends_here {
        request_log::log_with_connection(request)
    } else {
        request_log::log(request)
    }
}

/// A status for the log where no response was completed.
pub(crate) fn note_abort(request: &mut Request, abort: &Abort) {
    logging::client::abort(request, abort);
    match abort {
        Abort::Closed(_) if request.response.status == 0 => request.response.status = 499,
        Abort::TimedOut | Abort::BodyTimedOut if request.response.status == 0 => {
            request.response.status = 408;
        }
        _ if request.response.status == 0 => request.response.status = 500,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of the future that a function of two arguments gives.
    fn future_size<A, B, F: Future>(_: fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    /// The size of the future that a function of four arguments gives.
    fn size_of_served<A, B, C, D, F: Future>(_: fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_request_that_waits_is_small() {
        let size = size_of_served(serve_on);
        assert!(size <= 2048, "{size}");
    }

    #[test]
    fn an_idle_connection_is_small() {
        assert!(future_size(serve) <= 152, "{}", future_size(serve));
        assert!(
            size_of::<Connection>() <= 176,
            "{}",
            size_of::<Connection>()
        );
    }
}
