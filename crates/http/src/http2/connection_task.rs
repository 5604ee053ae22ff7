//! The task of a client's HTTP/2 connection.
//!
//! This task reads frames, answers requests with prebuilt responses, and sends the frames of all
//! streams in turn. Every other request has a task of its own (`serve`), which shares the
//! connection ([`SharedConnection`]). A request's stream counts as open until its task has ended.
//!
//! The task stops reading from a client that does not read the replies to its frames, and sends no
//! prebuilt response at once while earlier responses are queued. So the queue for a client is
//! bounded, whatever the client requests.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use engine::Buffer;
use framework::generation::GenerationView;
use framework::panics;
use proto::h1::{self, BodyLength};
use proto::h2::connection::Heads;
use proto::h2::frame::PREFACE;
use proto::h2::request::{HeadFault, NamedRules, RequestMetadata, Rules};
use proto::h2::{ErrorCode, Event, Limits, Violation};
use proto::head::Head;
use transport::tls::server::HTTP2;

use crate::config::core::LingeringClose;
use crate::config::plan::Server;
use crate::connection::Connection;
use crate::exchange::Exchange;
use crate::exchange::abort::Abort;
use crate::exchange::sender::Wire;
use crate::h1::connection_task::{log_ignored_lines, note_abort, note_panic};
use crate::h1::exchange::ConnectionOutcome;
use crate::http2::early_answer::{self, RequestRest};
use crate::http2::exchange::H2;
use crate::http2::stream::{Flow, Flushed, IN_TRANSPORT_MAX, SharedConnection};
use crate::http2::tunnel;
use crate::logging;
use crate::logging::request_log;
use crate::request::Request;
use crate::request::phases;
use crate::request::pool;
use crate::response::error_page::answer;
use crate::response::prebuilt::answering;
use crate::response::prebuilt::answering::ResponseSink;
use crate::response::prebuilt::{DatedResponse, ResponseForm};

/// Queued bytes of control frames (SETTINGS and PING acknowledgements, resets) at which the task
/// stops reading from the client.
const CONTROL_MAX: usize = 64 * 1024;

/// Bytes queued in the transport at which the task stops reading from the client. Without control
/// frames, the transport holds less: at most [`IN_TRANSPORT_MAX`] and one part of a body.
const BACKLOG_MAX: usize = IN_TRANSPORT_MAX + 2 * CONTROL_MAX;

/// How long the task waits for more parts of responses, which are likely to be queued in a moment,
/// before it sends the queue.
const PATIENCE: Duration = Duration::from_millis(1);

/// How long the task discards what a client still sends after a connection error.
const LINGERING_TIME: Duration = Duration::from_secs(1);

/// How long a client may take to acknowledge the first GOAWAY before new streams are refused.
const CONFIRMING_TIME: Duration = Duration::from_secs(1);

/// The buffers into which heads are decoded. They are swapped with the buffers of the request.
#[derive(Default)]
struct Scratch {
    head: Head,
    bytes: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Why the task was woken.
enum WakeReason {
    Received(io::Result<Buffer>),
    /// A stream has something to send, or the transport can take more bytes.
    Notified,
    /// The client has read nothing for `send_timeout`.
    SendTimedOut,
}

/// How a connection ends.
enum ConnectionEnd {
    /// The client has closed the connection, or it is broken.
    Gone,
    /// The connection ends in order, with no open stream.
    Done,
    /// The connection ends in order, but without lingering: the client has closed its side, or
    /// there is no time.
    Closed,
    /// The client has not sent the rest of a frame in time.
    TimedOut,
    /// The client has broken the protocol.
    Violated(Violation),
}

/// The protocol that a plaintext client speaks.
pub enum DetectedProtocol {
    /// HTTP/1, with the bytes received.
    Http1(Buffer),
    /// HTTP/2, and how the connection has ended.
    Ended(ConnectionOutcome),
}

/// Whether the handshake has agreed on HTTP/2.
pub fn is_agreed(connection: &Connection) -> bool {
    let session = connection.stream.session();
    session.is_some_and(|session| session.with(|agreed| agreed.protocol.as_deref() == Some(HTTP2)))
}

/// Whether the first bytes of a plaintext client may be the HTTP/2 preface, and the server speaks
/// HTTP/2.
pub fn is_spoken(connection: &Connection, input: &[u8]) -> bool {
    let length = input.len().min(PREFACE.len());
    input.get(..length) == PREFACE.get(..length)
        && !connection.stream.is_secure()
        && connection.with_servers(&connection.generation(), |servers| {
            !servers.protocols.ssl && (servers.protocols.http2 || servers.default.core.http2.on)
        }) == Some(true)
}

/// Serves a client whose first bytes may be the preface.
pub async fn begin_in_clear(connection: &Rc<Connection>, first: Buffer) -> DetectedProtocol {
    let mut input = first;
    let deadline = connection.client.started() + connection.first_byte_timeout();
    while input.len() < PREFACE.len() {
        match connection.stream.recv(Some(deadline)).await {
            Ok(more) if !more.is_empty() => {
                input = Buffer::copy_of(&[&*input, &*more].concat());
            }
            // The task of HTTP/1 receives the end or the error again, and handles it.
            _ => return DetectedProtocol::Http1(input),
        }
        if !is_spoken(connection, &input) {
            return DetectedProtocol::Http1(input);
        }
    }
    DetectedProtocol::Ended(serve_connection(connection, input).await)
}

/// Serves the requests of a connection until it ends; `first` are the bytes received so far.
pub async fn serve_connection(connection: &Rc<Connection>, first: Buffer) -> ConnectionOutcome {
    let local = connection.generation();
    let Some(server) = connection.first_server(&local) else {
        return ConnectionOutcome::Drop;
    };
    let limits = Limits {
        streams_max: server.core.http2.streams_max,
        stream_window: server.core.http2.window,
        block_size_max: rules_of(&server).head_size_max,
        extended_connect: true,
    };
    if server.plan.core.tcp_nodelay && !connection.nodelay.replace(true) {
        connection.stream.set_nodelay(true);
    }
    connection
        .stream
        .set_send_timeout(server.plan.core.send_timeout);
    drop((server, local));
    let shared = Rc::new(SharedConnection::new(connection, limits));
    connection.speaks_http2(&shared);
    let end = Http2Connection::new(&shared).run_connection(first).await;
    let after = close_connection(&shared, end).await;
    shared.end_all_streams();
    // The tasks of requests end before the connection is dropped.
    poll_fn(|context| {
        while shared.with(|machine| machine.live()) > 0 {
            if !shared.is_called(context.waker()) {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    })
    .await;
    if shared.has_been_busy() {
        engine::note_freed();
    }
    after
}

/// Sends GOAWAY with the reason, and lingers until the client has read it.
///
/// Closing the socket while bytes of the client, such as a WINDOW_UPDATE, are unread in the kernel
/// would cause a TCP reset. The reset would destroy the part of the response that the client has
/// not read.
async fn close_connection(shared: &Rc<SharedConnection>, end: ConnectionEnd) -> ConnectionOutcome {
    let (time, timeout) = match end {
        ConnectionEnd::Gone => return ConnectionOutcome::Drop,
        ConnectionEnd::Closed | ConnectionEnd::Done => {
            shared.with(|machine| machine.send_goaway());
            match lingering_of(&shared.connection) {
                Some(lingering) if matches!(end, ConnectionEnd::Done) => lingering,
                _ => {
                    shared.flush_now();
                    return ConnectionOutcome::CLOSE;
                }
            }
        }
        ConnectionEnd::TimedOut => {
            logging::client::http2_timed_out(&shared.connection);
            shared.with(|machine| machine.fail(ErrorCode::ProtocolError));
            (LINGERING_TIME, LINGERING_TIME)
        }
        ConnectionEnd::Violated(violation) => {
            logging::client::http2_violation(&shared.connection, &violation);
            shared.with(|machine| machine.fail(violation.code()));
            (LINGERING_TIME, LINGERING_TIME)
        }
    };
    shared.flush_now();
    shared.end_all_streams();
    shared.connection.linger(time, timeout).await;
    ConnectionOutcome::Drop
}

/// `lingering_time` and `lingering_timeout`, if the connection lingers.
fn lingering_of(connection: &Connection) -> Option<(Duration, Duration)> {
    let server = connection.first_server(&connection.generation())?;
    let core = &server.plan.core;
    (core.lingering_close != LingeringClose::Off)
        .then_some((core.lingering_time, core.lingering_timeout))
}

/// The rules that a server has for heads.
fn rules_of(server: &Server) -> Rules {
    rules_within(&server.core.head_limits())
}

/// The highest `max_headers` of the servers of the address, since a head may name any of them.
/// `None`: all servers have the same rules.
fn named_fields_max(connection: &Connection, local: &GenerationView) -> Option<usize> {
    let differing = connection.with_servers(local, |servers| {
        servers.head_limits_differ.then_some(servers.headers_max)
    });
    differing.flatten()
}

/// The rules for the rest of a head that names this host; `None` if they are the rules that already
/// apply.
fn rules_after(connection: &Connection, local: &GenerationView, host: &[u8]) -> Option<Rules> {
    if connection.is_misdirected(local, host) {
        return None; // the request will be refused
    }
    let changed = connection.with_servers(local, |servers| servers.head_limits_after(host));
    changed.flatten().as_ref().map(rules_within)
}

/// The rules for heads that these limits imply.
fn rules_within(limits: &h1::Limits) -> Rules {
    Rules {
        field_size_max: limits.large_buffer_size,
        head_size_max: limits
            .large_buffer_size
            .saturating_mul(limits.large_buffers),
        fields_max: limits.headers_max,
        ignore_invalid: limits.ignore_invalid_headers,
        underscores: limits.underscores_in_headers,
        merge_slashes: limits.merge_slashes,
        extended_connect: true,
    }
}

struct Http2Connection<'a> {
    shared: &'a Rc<SharedConnection>,
    input: Buffer,
    /// The offset in `input` of the first byte that has not been read.
    at: usize,
    /// The time since which no stream has been open; `None` while a stream is open.
    idle_since: Option<Instant>,
    /// The time since which a frame has been incomplete; `None` if no frame is, or if the frame has
    /// timed out.
    within_frame_since: Option<Instant>,
    /// The time at which the first GOAWAY was sent, which announces the end of the connection.
    announced: Option<Instant>,
    /// Whether the incomplete frame has timed out and was given up, without an end of the
    /// connection.
    is_late: bool,
    /// The value of [`SharedConnection::endings`] when the task last yielded to the tasks of ended
    /// streams.
    ended_at_yield: u64,
}

/// How far the received bytes were processed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadProgress {
    All,
    /// The rest must wait until the client has read the replies to its frames.
    AwaitsClient,
    /// The rest must wait until the tasks of ended streams have run.
    AwaitsTasks,
}

impl<'a> Http2Connection<'a> {
    fn new(shared: &'a Rc<SharedConnection>) -> Http2Connection<'a> {
        Http2Connection {
            shared,
            input: Buffer::default(),
            at: 0,
            idle_since: None,
            within_frame_since: Some(engine::now()),
            announced: None,
            is_late: false,
            ended_at_yield: 0,
        }
    }

    /// Processes input and sends output until the connection must end.
    async fn run_connection(&mut self, first: Buffer) -> ConnectionEnd {
        self.input = first;
        // The time since which the task has been waiting for responses that may queue more in a
        // moment.
        let mut waits_since = None;
        loop {
            let read = match self.read() {
                Ok(read) => read,
                Err(violation) => return ConnectionEnd::Violated(violation),
            };
            let is_patient = waits_since.is_none_or(|since| engine::now() - since < PATIENCE);
            let flushed = self.shared.flush(is_patient);
            if self.ends() {
                return ConnectionEnd::Done;
            }
            if flushed == Flushed::ForNow || read == ReadProgress::AwaitsTasks {
                waits_since.get_or_insert_with(engine::now);
                engine::yield_now().await;
                continue;
            }
            waits_since = None;
            let is_read_paused = read == ReadProgress::AwaitsClient;
            let is_full = flushed == Flushed::Full;
            let woken = match self.wait(is_read_paused, is_full).await {
                Some(woken) => woken,
                None => return ConnectionEnd::Done,
            };
            match woken {
                WakeReason::Received(Ok(buffer)) if !buffer.is_empty() => {
                    self.set_idle(false);
                    self.input = buffer;
                    self.at = 0;
                }
                WakeReason::Received(Ok(_)) => {
                    let unfinished = self.within_frame_since.is_some() || self.shared.is_serving();
                    logging::client::http2_closed(&self.shared.connection, unfinished);
                    // Tidegate itself may have shut down the reading side, to make room. The client
                    // still gets the bytes that have been sent.
                    return ConnectionEnd::Closed;
                }
                WakeReason::Received(Err(error)) if error.kind() == ErrorKind::TimedOut => {
                    return match self.within_frame_since {
                        Some(_) if self.shared.with(|machine| machine.time_out_frame()) => {
                            logging::client::http2_timed_out(&self.shared.connection);
                            self.within_frame_since = None;
                            self.is_late = true;
                            continue;
                        }
                        Some(_) => ConnectionEnd::TimedOut,
                        None => ConnectionEnd::Done,
                    };
                }
                WakeReason::Received(Err(error)) => {
                    logging::client::http2_broken(&self.shared.connection, &error);
                    return ConnectionEnd::Gone;
                }
                WakeReason::SendTimedOut => return ConnectionEnd::Gone,
                WakeReason::Notified => {}
            }
        }
    }

    fn connection(&self) -> &'a Rc<Connection> {
        &self.shared.connection
    }

    /// The number of open streams.
    fn live(&self) -> usize {
        self.shared.with(|machine| machine.live())
    }

    /// Whether the connection ends in order: the end was announced, and no stream is open.
    /// Announces the end if the thread is ending or the connection has lost its listener.
    fn ends(&mut self) -> bool {
        let connection = self.connection();
        let must_end = connection.is_ending() || connection.has_lost_listener();
        match self.announced {
            None if must_end => {
                self.announced = Some(engine::now());
                // Streams that the client opens before it has received the GOAWAY are still served.
                self.shared.with(|machine| machine.announce_end());
                self.shared.flush_now();
            }
            // The client has had enough time to acknowledge the announcement.
            Some(at) if engine::now() - at >= CONFIRMING_TIME => {
                self.shared.with(|machine| machine.send_goaway());
            }
            _ => {}
        }
        self.shared.with(|machine| machine.is_going_away()) && self.live() == 0 && !self.has_input()
    }

    fn has_input(&self) -> bool {
        self.at < self.input.len()
    }

    /// Processes the received bytes.
    fn read(&mut self) -> Result<ReadProgress, Violation> {
        if !self.has_input() {
            return Ok(ReadProgress::All);
        }
        let second = engine::uptime().as_secs() as u32;
        let input = std::mem::take(&mut self.input);
        let mut scratch = SCRATCH.take();
        let read = self.read_input(&input, second, &mut scratch);
        SCRATCH.set(scratch);
        if self.at < input.len() {
            self.input = input;
        }
        let (within, within_late) = self
            .shared
            .with(|machine| (machine.is_within_frame(), machine.is_within_late()));
        self.is_late &= within_late;
        self.within_frame_since = match (within && !self.is_late, self.within_frame_since) {
            (false, _) => None,
            (true, None) => Some(engine::now()),
            (true, since) => since,
        };
        read
    }

    /// Processes the frames in `input` from the offset `at` on. `second` is the current uptime in
    /// seconds.
    fn read_input(
        &mut self,
        input: &Buffer,
        second: u32,
        scratch: &mut Scratch,
    ) -> Result<ReadProgress, Violation> {
        let connection = Rc::clone(self.connection());
        let mut local = connection.generation();
        let Some(mut server) = connection.first_server(&local) else {
            return Ok(ReadProgress::All);
        };
        let mut rules = rules_of(&server);
        let mut fields_max = named_fields_max(&connection, &local);
        let mut in_transport = connection.stream.backlog();
        loop {
            if self.is_read_paused(in_transport) {
                return Ok(ReadProgress::AwaitsClient);
            }
            in_transport = 0;
            // A client may open a stream as soon as it has received the end of another, or has
            // itself reset another.
            let endings = self.shared.endings();
            if self.shared.is_full_of_ended() && self.ended_at_yield != endings {
                self.ended_at_yield = endings;
                return Ok(ReadProgress::AwaitsTasks);
            }
            let mut at = self.at;
            let of_host = |host: &[u8]| rules_after(&connection, &local, host);
            let event = self.shared.with(|machine| {
                let mut heads = Heads {
                    head: &mut scratch.head,
                    bytes: &mut scratch.bytes,
                    rules: &rules,
                    named: fields_max.map(|fields_max| NamedRules {
                        fields_max,
                        of_host: &of_host,
                    }),
                };
                machine.handle(input, &mut at, second, &mut heads)
            });
            self.at = at;
            let Some(event) = event? else {
                return Ok(ReadProgress::All);
            };
            match event {
                Event::Head {
                    stream,
                    ends,
                    asked,
                } => {
                    if !Rc::ptr_eq(&local, &connection.generation()) {
                        local = connection.generation();
                        server = connection.first_server(&local).unwrap_or(server);
                        rules = rules_of(&server);
                        fields_max = named_fields_max(&connection, &local);
                    }
                    self.begin(&local, &server, stream, ends, asked, scratch);
                }
                Event::Data {
                    stream,
                    start,
                    length,
                    ends,
                } => {
                    if let Some(flow) = self.flow(stream) {
                        let bytes = input.get(start..start + length).unwrap_or_default();
                        flow.receive(bytes, ends);
                        if ends {
                            self.shared.note_request_ended(&flow);
                        }
                    }
                }
                Event::Reset {
                    stream,
                    fault,
                    code,
                } => {
                    let flow = self.flow(stream);
                    let is_answered = flow.as_ref().is_some_and(|flow| flow.has_ended());
                    match fault {
                        Some(fault) => logging::client::http2_fault(&connection, &fault),
                        // Clients reset a stream without an error to say that the rest of the
                        // request will not be sent, after they have the response.
                        None if is_answered => {}
                        None => logging::client::http2_reset(&connection, stream, code),
                    }
                    if let Some(flow) = flow {
                        self.shared.lose(&flow);
                    }
                }
                Event::Malformed { stream, fault } => {
                    match self.flow(stream) {
                        // The reader of the body reports the fault.
                        Some(flow) => flow.receive_fault(fault),
                        None => logging::client::http2_fault(&connection, &fault),
                    }
                }
                Event::Refused(fault) => logging::client::http2_fault(&connection, &fault),
                // Streams that the client has already opened are still served.
                Event::GoAway(_) => self.shared.with(|machine| machine.send_goaway()),
                Event::Pong => {
                    if self.announced.is_some() {
                        self.shared.with(|machine| machine.send_goaway());
                    }
                }
            }
        }
    }

    fn flow(&self, stream: u32) -> Option<Rc<Flow>> {
        self.shared.with(|machine| {
            let stream = machine.stream(stream)?;
            Some(Rc::clone(&stream.user))
        })
    }

    /// Whether no more frames are processed for now, because the client reads too slowly.
    fn is_read_paused(&self, in_transport: usize) -> bool {
        let waiting = self.shared.waiting();
        let control = self.shared.with(|machine| machine.control_length());
        if waiting + control < CONTROL_MAX && in_transport < BACKLOG_MAX {
            return false;
        }
        // Moves the waiting frames to the transport, and sends as many bytes as the kernel accepts.
        self.shared.flush_now();
        self.shared.connection.stream.start_send() >= IN_TRANSPORT_MAX
    }

    /// Begins a request whose head has been received: answers it at once, or spawns its task.
    fn begin(
        &mut self,
        local: &Rc<GenerationView>,
        server: &Arc<Server>,
        stream: u32,
        ends: bool,
        asked: Result<RequestMetadata, HeadFault>,
        scratch: &mut Scratch,
    ) {
        // A request that is answered at once never counts as open, but it ends the idle time too.
        self.idle_since = None;
        let connection = self.connection();
        let mut request = pool::take(local, connection, server);
        request
            .client_mut()
            .swap_fields(&mut scratch.bytes, &mut scratch.head);
        let core = &server.plan.core;
        // The request is counted here, since several heads may be processed before any of their
        // tasks run.
        request.count();
        let requests = connection.requests.get();
        let age = engine::uptime().saturating_sub(connection.client.accepted());
        if core.keepalive_timeout.is_zero()
            || requests >= core.keepalive_requests
            || age > core.keepalive_time
        {
            self.shared.with(|machine| machine.send_goaway());
        }
        if let Some(watched) = connection.worker.watched() {
            watched.begins(connection.client.serial);
        }
        let protocol = asked.ok().and_then(|asked| asked.protocol);
        let is_without_body = |asked: RequestMetadata| {
            asked.content_length.unwrap_or_default() == 0 && protocol.is_none()
        };
        if ends && asked.is_ok_and(is_without_body) {
            let mut at_once = StreamSink {
                shared: self.shared,
                stream,
            };
            if answering::respond_through(&mut request, &mut at_once).is_some() {
                pool::give_back(request);
                return;
            }
        }
        let priority = self.shared.priority_of(&request);
        let length = match protocol {
            None => asked.ok().and_then(|asked| asked.content_length),
            Some(_) => None, // the stream carries tunnel data, not a body
        };
        let flow = Rc::new(Flow::new(stream));
        if ends || asked.is_err() {
            flow.receive_nothing();
        }
        self.shared
            .with(|machine| machine.open(stream, ends, length, priority, Rc::clone(&flow)));
        self.shared.note_live();
        if asked.is_err_and(HeadFault::is_malformed) {
            self.shared.with(|machine| machine.ignore_rest(stream));
        }
        engine::spawn(serve(Rc::clone(self.shared), flow, request, ends, asked));
    }

    /// Waits for the next event. `None` if the connection is to be closed because it has been idle
    /// for too long.
    async fn wait(&mut self, is_read_paused: bool, is_full: bool) -> Option<WakeReason> {
        let shared = self.shared;
        let stream = &shared.connection.stream;
        let live = self.live();
        let deadline = match (self.within_frame_since, live) {
            (Some(since), _) => Some(since + self.header_timeout()),
            (None, 0) => {
                self.set_idle(true);
                let since = *self.idle_since.get_or_insert_with(engine::now);
                match self.announced {
                    Some(at) => Some(at + CONFIRMING_TIME),
                    None => Some(since + self.idle_timeout()),
                }
            }
            _ => None,
        };
        if live > 0 || self.within_frame_since.is_some() {
            self.idle_since = None;
        }
        let mut receiving = pin!(stream.recv_idle(deadline.into()));
        let mut draining = pin!(stream.drained(IN_TRANSPORT_MAX / 2));
        let has_backlog = stream.backlog() > 0;
        let woken = poll_fn(|context| {
            if shared.is_called(context.waker()) {
                return Poll::Ready(WakeReason::Notified);
            }
            if (is_full || is_read_paused || has_backlog)
                && let Poll::Ready(drained) = draining.as_mut().poll(context)
            {
                match drained {
                    Err(_) => return Poll::Ready(WakeReason::SendTimedOut),
                    Ok(()) if is_full || is_read_paused => {
                        return Poll::Ready(WakeReason::Notified);
                    }
                    Ok(()) => {}
                }
            }
            if is_read_paused {
                Poll::Pending
            } else {
                receiving.as_mut().poll(context).map(WakeReason::Received)
            }
        })
        .await;
        Some(woken)
    }

    fn header_timeout(&self) -> Duration {
        let connection = self.connection();
        let server = connection.first_server(&connection.generation());
        server.map_or(Duration::from_secs(60), |server| {
            server.core.client_header_timeout
        })
    }

    fn idle_timeout(&self) -> Duration {
        let connection = self.connection();
        if connection.requests.get() == 0 && !self.is_late {
            return self.header_timeout();
        }
        let server = connection.first_server(&connection.generation());
        server.map_or(Duration::from_secs(75), |server| {
            server.plan.core.keepalive_timeout
        })
    }

    fn set_idle(&self, idle: bool) {
        self.connection().set_idle(idle);
    }
}

/// Sends prebuilt responses on a stream.
struct StreamSink<'a> {
    shared: &'a Rc<SharedConnection>,
    stream: u32,
}

impl ResponseSink for StreamSink<'_> {
    fn form(&self, _: &Request, _: bool) -> Option<ResponseForm> {
        Some(ResponseForm::Http2)
    }

    fn suits(&self, request: &Request) -> bool {
        is_spoken_by(request)
    }

    fn takes(&self, length: usize) -> bool {
        self.shared.with(|machine| machine.can_send_at_once(length))
    }

    fn send(&mut self, request: &Request, response: &DatedResponse) {
        let block = response.bytes.get(..response.head_length);
        let body = response.bytes.get(response.head_length..);
        let has_left = self.shared.answer(
            self.stream,
            block.unwrap_or_default(),
            body.unwrap_or_default(),
            request.plan.core.http2_chunk_size,
        );
        debug_assert!(has_left, "`takes` has said that it would");
    }
}

/// Releases a stream when its task ends, even by a panic.
struct StreamGuard {
    shared: Rc<SharedConnection>,
    flow: Rc<Flow>,
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.shared.release(&self.flow);
    }
}

/// The task of one request.
async fn serve(
    shared: Rc<SharedConnection>,
    flow: Rc<Flow>,
    mut request: Box<Request>,
    ends: bool,
    asked: Result<RequestMetadata, HeadFault>,
) {
    let place = StreamGuard { shared, flow };
    let served = {
        let mut served = pin!(serve_one(&place, &mut request, ends, asked));
        panics::catch(served.as_mut()).await
    };
    match served {
        Ok(rest) => {
            place.shared.connection.keep_error_log(&request);
            pool::give_back(request);
            early_answer::settle_rest_of_request(&place.shared, &place.flow, rest).await;
        }
        Err(panicked) => {
            note_panic(&mut request, &panicked);
            request_log::log(&mut request);
        }
    }
}

/// Serves one request, including its log phase. Returns which rest of the request is left.
async fn serve_one(
    place: &StreamGuard,
    request: &mut Request,
    ends: bool,
    asked: Result<RequestMetadata, HeadFault>,
) -> RequestRest {
    let StreamGuard { shared, flow } = place;
    let connection = &shared.connection;
    if let Some(watched) = connection.worker.watched() {
        let client = &request.client;
        watched.is_at(connection.client.serial, client.request_line());
    }
    let asks_for_tunnel = asked.is_ok_and(|asked| asked.protocol.is_some());
    let mut exchange = Exchange::h2(H2::new(shared, flow, asks_for_tunnel));
    let outcome = match begin(connection, request, ends, asked) {
        // The reset was received together with the head: no work is begun that would have to be
        // undone (CVE-2023-44487).
        Ok(()) if flow.is_gone() => Err(Abort::Closed(ErrorKind::ConnectionReset.into())),
        Ok(()) => phases::handle(request, &mut exchange).await,
        Err((text, status)) => {
            request.activity.doing = crate::request::activity::READING_HEADERS;
            if !text.is_empty() {
                logs::error!(request, Info, "{}", logs::Printable(&text));
            }
            answer::refuse(request, &mut exchange, status).await
        }
    };
    if let Err(abort) = &outcome {
        note_abort(request, abort);
    }
    let mut is_reset = false;
    if let Some(mut h2) = exchange.into_h2() {
        let was_tunnel = matches!(outcome, Err(Abort::Ended));
        if was_tunnel {
            h2.finish();
        }
        let complete = was_tunnel
            || outcome.is_ok() && (request.sent.complete || request.response.header_only);
        let ended = if complete {
            h2.ended().await
        } else {
            Err(ErrorKind::Other.into())
        };
        if let Err(error) = ended {
            request.sent.complete &= !complete;
            let late = error.kind() == ErrorKind::TimedOut;
            is_reset = match &outcome {
                // nginx resets these streams with the code for a timeout, too.
                Err(Abort::TimedOut | Abort::BodyTimedOut | Abort::Unanswered(444)) => {
                    h2.break_off(true)
                }
                Err(Abort::Unanswered(_)) => h2.break_off(false),
                // A response has failed midway: the client first gets the part that is queued.
                _ => {
                    let is_stuck = late || h2.emptied().await.is_err();
                    h2.break_off(is_stuck)
                }
            };
        }
        // Bytes that are still queued were not sent. After a timeout the sender has already
        // subtracted them.
        let waiting = match &outcome {
            Err(Abort::TimedOut) => 0,
            _ => flow.queued(),
        };
        request.sent.take_back(waiting + flow.lost());
    }
    request.body.note_received(flow.uploaded());
    let is_malformed = match asked {
        Ok(_) if asks_for_tunnel => false,
        Ok(asked) => flow.is_malformed() || ends && asked.content_length > Some(0),
        Err(fault) => fault.is_malformed(),
    };
    if let Some(fault) = flow.take_fault() {
        logging::client::http2_fault(connection, &fault);
    }
    request_log::log(request);
    // A reset must not be answered with another reset (RFC 9113, section 5.4.2).
    if flow.is_gone() || is_reset {
        RequestRest::None
    } else if is_malformed {
        RequestRest::Malformed
    } else if flow.has_come() {
        RequestRest::None
    } else {
        RequestRest::Unwanted
    }
}

/// Whether HTTP/2 is enabled for the server that the request names, or for the address.
fn is_spoken_by(request: &Request) -> bool {
    request.server.core.http2.on || {
        let connection = &request.connection;
        let of_address = connection.with_servers(&request.local, |servers| servers.protocols.http2);
        of_address == Some(true)
    }
}

/// Prepares a request from its decoded head: host, virtual server and URI, and the body's length.
fn begin(
    connection: &Rc<Connection>,
    request: &mut Request,
    ends: bool,
    asked: Result<RequestMetadata, HeadFault>,
) -> Result<(), (Vec<u8>, u16)> {
    log_ignored_lines(request, false);
    let asked = match asked {
        Ok(asked) => asked,
        Err(fault) => {
            request.begin_refused();
            return Err((fault.words(&request.client.bytes), fault.status()));
        }
    };
    request.begin()?;
    log_ignored_lines(request, true);
    if connection.is_misdirected(&request.local, &request.client.host) {
        request.choose_negotiated_server();
        let text = b"client attempted to request the server name different from the one that was negotiated";
        return Err((text.to_vec(), 421));
    }
    if !is_spoken_by(request) {
        let text = b"client attempted to request the server name for which the negotiated protocol is disabled";
        return Err((text.to_vec(), 421));
    }
    let length = match (ends, asked.content_length) {
        // What the client sends on the stream is tunnel data, not a body.
        _ if asked.protocol.is_some() => {
            tunnel::ask_by_key(request);
            BodyLength::None
        }
        // nginx's text for a client that announces a body and sends none.
        (true, Some(1..)) => {
            return Err((b"client prematurely closed stream".to_vec(), 400));
        }
        (true, None) => BodyLength::None,
        (_, Some(0)) => BodyLength::Length(0),
        (false, Some(length)) => BodyLength::Length(length),
        (false, None) => BodyLength::Chunked,
    };
    request.body.begin(length, 0);
    Ok(())
}
