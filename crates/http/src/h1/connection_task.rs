//! The task of a client's HTTP/1 connection: reads heads, serves the requests in order, and keeps
//! the connection alive between requests.
//!
//! The future of [`serve`] lives as long as the connection, so it is small: while the connection is
//! idle it holds neither a buffer nor a request. A request that a prebuilt response can answer is
//! answered within this future; every other request gets a future of its own
//! (`serve_through_phases`).
//!
//! Responses to pipelined requests are gathered and sent together. They do not wait for anything
//! else: before the connection waits for input, an upstream, a disk or a timer, [`serve`] sends
//! them.

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
use crate::h1::exchange::{ConnectionOutcome, H1};
use crate::handshake::ConnectionServers;
use crate::http2;
use crate::http2::connection_task::DetectedProtocol;
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

/// Memory in bytes that queued responses of a pipelining client may occupy before the connection
/// waits for the client to read. The responses to a receive buffer full of browsers' requests for
/// small files fit, so that they are sent together.
const PIPELINE_BACKLOG_MAX: usize = 32 * 1024;

/// Estimated memory in bytes that a queued response occupies in addition to its bytes.
const RESPONSE_OVERHEAD: usize = 512;

/// How reading a head ended.
enum Head {
    /// The head is complete and parsed.
    Complete,
    /// The head equals, byte for byte, that of the request that the connection keeps.
    Repeated,
    /// The client has closed the connection, or `client_header_timeout` has passed.
    Gone { timed_out: bool },
    /// The bytes are not a valid request; the error's status is the response.
    Bad(HeadError),
}

/// Serves a connection from accept to close. The connection counts against `worker_connections`
/// until `registered` is dropped.
#[expect(
    clippy::manual_async_fn,
    reason = "an asynchronous function keeps its argument twice"
)]
pub fn serve(connection: Rc<Connection>, registered: Registered) -> impl Future<Output = ()> {
    async move {
        logging::debug::accepted(&connection);
        let after = {
            let mut conversation = pin!(serve_connection(&connection));
            poll_fn(|context| {
                if let Some(watched) = connection.worker.watched() {
                    watched.polls(connection.client.serial);
                }
                let polled = conversation.as_mut().poll(context);
                // Complete responses are sent before the connection waits for anything. Not before
                // a close, which itself sends everything that is queued.
                if !matches!(polled, Poll::Ready(ConnectionOutcome::Close { .. })) {
                    connection.send_finished();
                }
                polled
            })
            .await
        };
        // No variable holds the connection itself across an await: idle connections would need
        // memory for it twice.
        let shared = match Rc::try_unwrap(connection) {
            Ok(connection) => {
                // A slow client may still be receiving responses: the engine sends the rest, and
                // then closes.
                match after {
                    ConnectionOutcome::Close {
                        client_is_done: true,
                    } => connection.stream.finish_quickly(),
                    ConnectionOutcome::Close { .. } => connection.stream.finish(),
                    _ => {}
                }
                None
            }
            Err(connection) => Some(connection),
        };
        // A task that outlives its request, such as a background subrequest, still holds the
        // connection.
        if let Some(connection) = shared {
            Box::pin(part(connection, after)).await;
        }
        drop(registered);
    }
}

/// Closes the socket of a connection that other tasks still hold.
async fn part(connection: Rc<Connection>, after: ConnectionOutcome) {
    if matches!(after, ConnectionOutcome::Close { .. })
        && connection.stream.drained(0).await.is_ok()
    {
        connection.stream.shutdown_write();
    }
    connection.stream.shutdown();
}

/// Serves a connection's requests in order, and returns how the connection ends.
///
/// Every local variable here takes room in each idle connection, so the code that serves a request
/// is in other functions.
#[expect(
    clippy::manual_async_fn,
    reason = "an asynchronous function keeps its argument twice"
)]
fn serve_connection(connection: &Rc<Connection>) -> impl Future<Output = ConnectionOutcome> {
    async move {
        let Some(mut input) = preamble(connection).await else {
            return ConnectionOutcome::CLOSE;
        };
        if http2::connection_task::is_agreed(connection) {
            return Box::pin(http2::connection_task::serve_connection(connection, input)).await;
        }
        let mut pipelined = false;
        let mut queued: u16 = 0;
        loop {
            if input.is_empty() {
                // Give the empty buffer back to the pool before the wait.
                drop(std::mem::take(&mut input));
                match next_input(connection).await {
                    Some(buffer) => input = buffer,
                    None => return ConnectionOutcome::CLOSE,
                }
            }
            if connection.requests.get() == 0
                && http2::connection_task::is_spoken(connection, &input)
            {
                // A boxed future, so that HTTP/1 connections need no memory for it.
                let taken = std::mem::take(&mut input);
                match Box::pin(http2::connection_task::begin_in_clear(connection, taken)).await {
                    DetectedProtocol::Http1(received) => input = received,
                    DetectedProtocol::Ended(after) => return after,
                }
            }
            let ServeOutcome {
                after,
                was_read_separately,
            } = match serve_next(connection, &mut input, pipelined) {
                Ok(served) => served,
                Err(serving) => serving.await,
            };
            pipelined = !input.is_empty() && !was_read_separately;
            match after {
                ConnectionOutcome::KeepAlive => {}
                ConnectionOutcome::Close { .. } => {
                    if logs::has_unwritten() {
                        // The yield lets the log line be written before the client reads the end of
                        // the connection, as in nginx.
                        connection.finish_response();
                        engine::yield_now().await;
                    }
                    return after;
                }
                ConnectionOutcome::Drop => return after,
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
                    return ConnectionOutcome::Drop;
                }
            }
        }
    }
}

/// The outcome of serving a request.
struct ServeOutcome {
    /// What happens to the connection after the request.
    after: ConnectionOutcome,
    /// Whether nginx would have read the request separately from the bytes that follow (for
    /// `$pipe`).
    was_read_separately: bool,
}

/// The future of a request that cannot be answered at once.
type ServeFuture<'a> = PooledFuture<'a, ServeOutcome>;

/// Takes the next request from `input`. Answers it at once if a prebuilt response can answer it;
/// else returns the request's future.
fn serve_next<'a>(
    connection: &'a Rc<Connection>,
    input: &'a mut Buffer,
    pipelined: bool,
) -> Result<ServeOutcome, ServeFuture<'a>> {
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
                return Ok(ServeOutcome {
                    after: ConnectionOutcome::Drop,
                    was_read_separately: false,
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

/// Answers a request with a prebuilt response, if there is one.
#[inline]
fn answer_at_once(
    connection: &Connection,
    request: &mut Request,
    head: &Head,
    input: &mut Buffer,
) -> Option<ConnectionOutcome> {
    if let Some(watched) = connection.worker.watched() {
        watched.begins(connection.client.serial);
    }
    match head {
        Head::Complete => answering::respond(request, input),
        Head::Repeated => answering::respond_again(request, input),
        _ => None,
    }
}

/// Serves a request whose head has not been received completely.
async fn read_and_serve(
    connection: &Rc<Connection>,
    mut request: Box<Request>,
    input: &mut Buffer,
) -> ServeOutcome {
    let head = read_rest(connection, &mut request, input).await;
    match answer_at_once(connection, &mut request, &head, input) {
        Some(after) => settle(connection, request, Ok(after), input),
        // A boxed future, so that this future needs no memory for it while the head is received.
        None => PooledFuture::new(serve_on(connection, request, head, input)).await,
    }
}

/// Serves a request that no prebuilt response can answer, or responds to invalid bytes.
async fn serve_on(
    connection: &Rc<Connection>,
    mut request: Box<Request>,
    head: Head,
    input: &mut Buffer,
) -> ServeOutcome {
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

/// Puts a request that has ended back into the pool.
#[inline]
fn settle(
    connection: &Connection,
    request: Box<Request>,
    after: Result<ConnectionOutcome, panics::Panicked>,
    input: &Buffer,
) -> ServeOutcome {
    // For `$pipe`: nginx reads a body separately from the next request if the body was not received
    // with its head or did not fit into the rest of the head's buffer. The same is true of a head
    // that fills its buffer.
    let was_read_separately = !input.is_empty() && {
        let room = reading::head_buffer_room(&request);
        let with_head = request.body.received_with_head().min(room);
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
    ServeOutcome {
        after,
        was_read_separately,
    }
}

/// Receives the bytes that the address requires before the first request: a PROXY protocol header,
/// a TLS handshake. Returns the bytes received after them; `None` if the connection cannot go on.
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
    // Another connection handler may have done the TLS handshake before it handed the connection
    // over.
    if is_secure != Some(true) || connection.stream.is_secure() {
        return Some(received);
    }
    // A boxed future, so that idle connections need no memory for it.
    let names = ConnectionServers(connection);
    match Box::pin(handshake::accept(&names, received)).await {
        HandshakeStart::Secure => Some(Buffer::default()),
        HandshakeStart::Plain(received) => {
            connection.plain_on_secure_port.set(true);
            Some(received)
        }
        HandshakeStart::Ended => None,
    }
}

/// Ends a request whose handling has panicked. The request may be in any state, so it does not go
/// back to the pool.
fn abandon_after_panic(
    mut request: Box<Request>,
    panicked: &panics::Panicked,
) -> ConnectionOutcome {
    note_panic(&mut request, panicked);
    end(&mut request, &Ok(()), &ConnectionOutcome::Drop);
    ConnectionOutcome::CLOSE
}

/// Logs and counts a panic during a request.
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

/// Waits for the first bytes of the next request. `None` if the connection is to end: the client
/// closed it or was silent for too long, or the thread is shutting down.
#[expect(
    clippy::manual_async_fn,
    reason = "an asynchronous function keeps its argument twice"
)]
fn next_input(connection: &Rc<Connection>) -> impl Future<Output = Option<Buffer>> {
    async move {
        let received = match idle_wait(connection) {
            IdleWait::Ended => return None,
            IdleWait::Idle(wait) => {
                connection.worker.counts().waiting.add(1);
                wait_idle(connection, wait).await
            }
            // A boxed future, since this is rare and idle connections would need memory for it.
            IdleWait::Protected { protected, wait } => {
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

/// How a connection waits for the next request.
enum IdleWait {
    /// Not at all, since the connection is to end.
    Ended,
    /// For this time; the connection may be closed earlier to make room.
    Idle(Duration),
    /// For `wait`; during the first `protected` of it, the connection is not closed to make room.
    Protected { protected: Duration, wait: Duration },
}

fn idle_wait(connection: &Connection) -> IdleWait {
    if connection.requests.get() == 0 {
        let wait = connection.first_byte_timeout();
        let spent = engine::now().saturating_duration_since(connection.client.started());
        return IdleWait::Idle(wait.saturating_sub(spent));
    }
    let (wait, protected) = connection.idle_time();
    if !protected.is_zero() {
        return IdleWait::Protected { protected, wait };
    }
    if connection.closes_idle() {
        IdleWait::Ended
    } else {
        IdleWait::Idle(wait)
    }
}

/// Receives within `wait`. The connection counts as idle meanwhile.
fn wait_idle(connection: &Connection, wait: Duration) -> impl Future<Output = io::Result<Buffer>> {
    connection.set_idle(true);
    connection.stream.recv_idle(Deadline::within(wait))
}

/// Receives within `wait`. During the first `protected` of it, the connection does not count as
/// idle, so that the worker does not close it to make room.
async fn wait_protected(
    connection: &Connection,
    protected: Duration,
    wait: Duration,
) -> io::Result<Buffer> {
    let protected_until = Deadline::within(protected);
    let end = Deadline::within(wait);
    let received = connection.stream.recv_idle(protected_until).await;
    let timed_out = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
    if !received.as_ref().is_err_and(timed_out) || protected >= wait || connection.closes_idle() {
        return received;
    }
    connection.set_idle(true);
    connection.stream.recv_idle(end).await
}

/// Parses a head from the bytes of one receive. The bytes that a complete or invalid head consists
/// of are stored in the request.
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
        Ok(None) => &[], // `read_rest` stores the bytes
        Err(_) => bytes,
    };
    gathered.clear();
    gathered.extend_from_slice(kept);
    parsed
}

/// Receives until the head is complete. The bytes of the head are collected in the request; the
/// bytes after the head stay in `input`.
async fn read_rest(connection: &Connection, request: &mut Request, input: &mut Buffer) -> Head {
    let local = &Rc::clone(&request.local);
    let limits = request.server.core.head_limits();
    request.client_mut().bytes.clear();
    request.client_mut().bytes.extend_from_slice(input);
    let deadline = head_deadline(connection, local, request);
    let counts = connection.worker.counts();
    loop {
        counts.reading.add(1);
        *input = Buffer::empty(); // its bytes have been stored
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
            // Only empty lines have been received so far; a client may send any number of them.
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

/// The deadline for the rest of a head whose first bytes have been received. As in nginx, the first
/// head of a connection has `client_header_timeout` of the default server from the accept. A later
/// head has the timeout of the server that the head names, from its first byte.
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

/// Ends a request whose head was never completed: the request is logged as in nginx and gets no
/// response.
fn gone(connection: &Connection, request: &mut Request, timed_out: bool) -> ConnectionOutcome {
    log_ignored_lines(request, false);
    request.begin_refused();
    log_ignored_lines(request, true);
    logging::client::incomplete_head(connection, request, timed_out);
    request.response.status = if timed_out { 408 } else { 400 };
    end(request, &Ok(()), &ConnectionOutcome::Drop);
    if timed_out && request.plan.core.reset_timedout_connection {
        connection.stream.set_reset_on_drop();
        return ConnectionOutcome::Drop;
    }
    ConnectionOutcome::CLOSE
}

/// Answers an invalid head with its error status and ends the connection.
async fn refuse(
    connection: &Rc<Connection>,
    request: &mut Request,
    input: &mut Buffer,
    error: HeadError,
) -> ConnectionOutcome {
    let text = error.log_text(&request.client.bytes);
    log_ignored_lines(request, false);
    request.begin_refused();
    if matches!(error, HeadError::Misdirected) {
        request.choose_negotiated_server();
    }
    log_ignored_lines(request, true);
    // For log lines, including those about a missing error page.
    request.activity.doing = if request.client.has_request_line() {
        READING_HEADERS
    } else {
        request.reading_line()
    };
    if matches!(error, HeadError::LineTooLong) {
        // As in nginx, log lines show as much of the line as a buffer for long lines holds.
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

/// Serves a request through the phases.
async fn serve_through_phases(
    connection: &Rc<Connection>,
    request: &mut Request,
    input: &mut Buffer,
) -> ConnectionOutcome {
    // The phases may change everything that was derived from the head.
    request.repeatable = Repeatable::default();
    if let Some(watched) = connection.worker.watched() {
        let client = &request.client;
        watched.is_at(connection.client.serial, client.request_line());
    }
    let mut exchange = match begin(connection, request, input) {
        Ok(exchange) => exchange,
        // A boxed future, so that valid requests need no memory for it.
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
        Some(rest) => (ConnectionOutcome::KeepAlive, rest),
        // A future of its own, so that requests that wait need no memory for it.
        None => PooledFuture::new(finish_exchange(exchange, request, outcome.is_ok())).await,
    };
    end(request, &outcome, &after);
    *input = rest;
    after
}

/// Answers a request whose head is well-formed and is rejected nevertheless.
async fn refuse_begun(
    connection: &Rc<Connection>,
    request: &mut Request,
    input: &mut Buffer,
    (text, status): RejectedHead,
) -> ConnectionOutcome {
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

/// Ends the exchange, and returns whether the connection serves another request; see
/// [`H1::finish`].
async fn finish_exchange(
    exchange: Exchange,
    request: &mut Request,
    whole: bool,
) -> (ConnectionOutcome, Buffer) {
    match exchange.into_h1() {
        Some(h1) => h1.finish(request, whole).await,
        // Only exchanges of HTTP/1 are begun in this file.
        None => (ConnectionOutcome::Drop, Buffer::default()),
    }
}

/// Begins the exchange for a parsed head: determines the host, the virtual server, the URI and the
/// body's framing.
fn begin(
    connection: &Rc<Connection>,
    request: &mut Request,
    input: &mut Buffer,
) -> Result<Exchange, RejectedHead> {
    log_ignored_lines(request, false);
    request.begin()?;
    log_ignored_lines(request, true);
    if request.client.server_name().is_none() && connection.is_misdirected(&request.local, b"") {
        request.choose_negotiated_server();
        let error = HeadError::Misdirected;
        return Err((error.log_text(&request.client.bytes), error.status()));
    }
    let client = &request.client;
    let Some(head) = client.h1() else {
        return Err((Vec::new(), 400)); // only HTTP/1 requests are begun here
    };
    let length = match h1::body_length(head, &client.bytes, request.server.allows_connect) {
        Ok(length) => length,
        Err(error) => {
            let refusal = (error.log_text(head, &client.bytes), error.status());
            let in_chunks = request.header(KnownField::TransferEncoding).is_some();
            let has_length = request.header(KnownField::ContentLength).is_some();
            match error {
                FramingError::Trace(length) => request.body.begin(length, 0),
                // The framing itself was valid.
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

/// Logs the header lines that are ignored for their invalid names. Lines before the host go to the
/// log of the [first server](Connection::first_server). The others go to the log of the host's
/// server, by a second call with `is_chosen`.
pub(crate) fn log_ignored_lines(request: &Request, is_chosen: bool) {
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

/// Runs the log phase of a request: as in nginx, after the rest of the request's body has been
/// discarded, and after lingering close.
fn end(request: &mut Request, outcome: &Result<(), Abort>, after: &ConnectionOutcome) {
    let ends_here = match outcome {
        // The response was sent or abandoned: the client has left or timed out, gets no response,
        // or gets only a part of a response that an upstream or a filter has broken off.
        Ok(())
        | Err(
            Abort::Closed(_)
            | Abort::TimedOut
            | Abort::BodyTimedOut
            | Abort::Unanswered(_)
            | Abort::Silently
            | Abort::UpstreamFraming
            | Abort::Filter,
        ) => !matches!(after, ConnectionOutcome::KeepAlive),
        // As in nginx, the connection no longer counts as one that is kept alive.
        Err(_) => false,
    };
    if ends_here {
        request_log::log_with_connection(request)
    } else {
        request_log::log(request)
    }
}

/// Sets a status for the log if no response was completed.
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
