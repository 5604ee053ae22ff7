//! A client's HTTP/2 connection: as many concurrent requests as the connection may have streams,
//! each with its own times and outcome.
//!
//! ```text
//! a stream is free ─▶ (think time, or arrival) ─▶ send ─▶ head, body ─▶ complete ─▶ free again
//!                                                      └─ reset, timeout: counted ─▶ free again
//! ```
//!
//! [`proto::h2::client`] handles frames, flow control and the server's settings. All output that
//! the handling of one buffer causes, that is, requests, WINDOW_UPDATEs and acknowledgements, is
//! sent at the end of the turn. After a GOAWAY the remaining streams are completed, and requests
//! that the server has not processed are sent again on the next connection, like HTTP/1 requests
//! after `Connection: close`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::Buffer;
use engine::select::{Either, either};
use proto::h2::client::{Client as Machine, Event, Limits, RequestStart};
use proto::h2::response::ResponseFault;
use proto::h2::{ErrorCode, StreamFault, Violation};
use proto::header::KnownField;
use sha2::{Digest, Sha256};

use super::{BUFFERS_PER_TURN, Client, ClientOutcome, receive_failure};
use crate::connection::Connection;
use crate::grpc::{CallProgress, status_in};
use crate::plan::Plan;
use crate::response::{CompleteResponse, HEAD_BYTES_MAX};
use crate::run::Sample;
use crate::tally::RequestError;
use crate::tls::SessionProgress;

/// Generous limits, so that flow control never delays a response.
pub(crate) const LIMITS: Limits = Limits {
    stream_window: 1 << 30,
    stream_window_max: 1 << 30,
    head_size_max: HEAD_BYTES_MAX,
};

/// A request that was sent.
struct SentRequest {
    start: Instant,
    /// When it was sent, and how long connecting took if it is the connection's first request.
    sent: Instant,
    connect: Duration,
    /// When the first byte of the response arrived.
    begun: Option<Instant>,
    status: u16,
    /// Bytes of the response's body received so far.
    length: u64,
    digest: Option<Box<Sha256>>,
    /// The gRPC state of the response, if the request is a gRPC call.
    call: Option<CallProgress>,
    /// The part of the request's body that has not been sent yet.
    rest: Bytes,
}

/// The state of one connection.
struct Http2Connection {
    machine: Machine<SentRequest>,
    begin: Instant,
    /// Number of free streams.
    free: usize,
    /// When each stream in its think time becomes free.
    thinking: BinaryHeap<Reverse<Instant>>,
    /// The deadline of each response, in the order of the requests. Entries of streams that have
    /// ended are skipped.
    deadlines: VecDeque<(Instant, u32)>,
    /// The request that was sent last, if it has no drawn numbers and its encoding can thus be
    /// reused.
    last: Option<usize>,
    /// When bytes were last received.
    heard: Instant,
    /// Whether the server's limit of concurrent streams is known.
    are_streams_known: bool,
    /// The error code of the server's GOAWAY.
    error: Option<ErrorCode>,
    /// The `Server` field of the last response, if it is recorded.
    server: Vec<u8>,
}

/// The event that ended a wait.
enum ConnectionEvent {
    /// The start time of the next request, or `None` at the end of the run.
    Start(Option<Instant>),
    /// The think time of a stream has ended.
    ThinkTimeOver,
    Received(io::Result<Buffer>),
}

impl Http2Connection {
    fn new(streams: usize, now: Instant) -> Http2Connection {
        Http2Connection {
            machine: Machine::new(LIMITS),
            begin: now,
            free: streams,
            thinking: BinaryHeap::new(),
            deadlines: VecDeque::with_capacity(streams),
            last: None,
            heard: now,
            are_streams_known: false,
            error: None,
            server: Vec::new(),
        }
    }

    /// Frees the streams whose think time has ended.
    fn wake(&mut self, now: Instant) {
        while let Some(Reverse(due)) = self.thinking.peek()
            && *due <= now
        {
            self.thinking.pop();
            self.free += 1;
        }
    }

    /// The deadline of the oldest request in progress.
    fn deadline(&mut self) -> Option<Instant> {
        while let Some((deadline, stream)) = self.deadlines.front() {
            if self.machine.is_live(*stream) {
                return Some(*deadline);
            }
            self.deadlines.pop_front();
        }
        None
    }
}

impl Client {
    /// Runs the connection until it ends. The first request starts now.
    pub(super) async fn converse_http2(
        &mut self,
        plan: &Plan,
        connection: &Rc<Connection>,
        start: Instant,
        streams: usize,
    ) -> ClientOutcome {
        let mut now = Instant::now();
        let mut talk = Http2Connection::new(if plan.new_connections { 1 } else { streams }, now);
        self.ask(&mut talk, plan, start, now);
        let early = connection.take_early();
        if !early.is_empty()
            && let Some(end) = self.heard(&mut talk, plan, &early, now)
        {
            return end;
        }
        let mut buffers = 0;
        loop {
            self.start_requests(&mut talk, plan, now);
            self.transmit(&mut talk, connection);
            if talk.machine.live() == 0
                && let Some(end) = self.outcome_when_idle(&talk, plan)
            {
                return end;
            }
            let came = self.wait(&mut talk, plan, connection, now).await;
            now = Instant::now();
            let end = match came {
                ConnectionEvent::Start(start) => {
                    if let Some(start) = start {
                        self.ask(&mut talk, plan, start, now);
                    }
                    None
                }
                ConnectionEvent::ThinkTimeOver => None,
                ConnectionEvent::Received(Ok(buffer)) if buffer.is_empty() => {
                    Some(self.end_of_input_http2(&mut talk))
                }
                ConnectionEvent::Received(Ok(buffer)) => {
                    buffers += 1;
                    self.open_http2(&mut talk, plan, connection, buffer, now)
                }
                ConnectionEvent::Received(Err(error))
                    if error.kind() == io::ErrorKind::TimedOut =>
                {
                    self.late(&mut talk, plan, now)
                }
                ConnectionEvent::Received(Err(error)) => {
                    Some(self.lose(&mut talk, |_| receive_failure(&error)))
                }
            };
            if let Some(end) = end {
                // Sends a GOAWAY for a violation by the server, without waiting for it to be
                // delivered.
                self.transmit(&mut talk, connection);
                connection.start_send();
                return end;
            }
            if buffers >= BUFFERS_PER_TURN {
                buffers = 0;
                engine::yield_now().await;
            }
        }
    }

    /// Whether a connection without requests in progress ends now.
    fn outcome_when_idle(&self, talk: &Http2Connection, plan: &Plan) -> Option<ClientOutcome> {
        if self.thread.has_ended() {
            return Some(ClientOutcome::Finished);
        }
        let is_done = self.left == 0 || plan.new_connections || talk.machine.is_ending();
        is_done.then_some(ClientOutcome::Closed)
    }

    /// Waits for received bytes, a deadline, or the time to send a request.
    async fn wait(
        &self,
        talk: &mut Http2Connection,
        plan: &Plan,
        connection: &Connection,
        now: Instant,
    ) -> ConnectionEvent {
        let may_open = talk.machine.may_open();
        // A server that never allows a stream must also time out.
        let is_stuck = talk.machine.live() == 0 && talk.free > 0 && !may_open;
        let deadline = if is_stuck {
            Some(talk.heard.max(talk.begin) + plan.timeout)
        } else {
            talk.deadline()
        };
        let receive = connection.stream().recv_idle(deadline);
        let may_ask = may_open && self.left > 0 && !self.thread.has_ended();
        let came = if may_ask && talk.free > 0 && plan.arrivals.is_some() {
            match either(self.thread.start(&self.seat), receive).await {
                Either::First(start) => return ConnectionEvent::Start(start),
                Either::Second(came) => came,
            }
        } else if let Some(Reverse(due)) = talk.thinking.peek()
            && may_ask
        {
            let pause = due.saturating_duration_since(now);
            match either(engine::sleep(pause), receive).await {
                Either::First(()) => return ConnectionEvent::ThinkTimeOver,
                Either::Second(came) => came,
            }
        } else {
            receive.await
        };
        ConnectionEvent::Received(came)
    }

    /// Sends requests on all free streams, as far as the schedule and the server's limit allow.
    fn start_requests(&mut self, talk: &mut Http2Connection, plan: &Plan, now: Instant) {
        talk.wake(now);
        while talk.free > 0 && self.left > 0 && talk.machine.may_open() {
            let Some(start) = self.thread.try_start(now) else {
                return;
            };
            self.ask(talk, plan, start, now);
        }
    }

    /// Sends one request on a new stream. In the open loop, `start` may lie in the past, because no
    /// stream was free then.
    fn ask(&mut self, talk: &mut Http2Connection, plan: &Plan, start: Instant, now: Instant) {
        let place = self.next_request(plan.order);
        let thread = Rc::clone(&self.thread);
        let Some(request) = thread.requests(self.server).get(place) else {
            return;
        };
        let connect = std::mem::take(&mut self.connect);
        let body = thread.body(&mut self.random);
        let has_body = !body.is_empty();
        let asked = || SentRequest {
            start,
            sent: now,
            connect,
            begun: None,
            status: 0,
            length: 0,
            digest: plan.expect.sha256.map(|_| Box::default()),
            call: None,
            rest: body.clone(),
        };
        let again = if talk.last == Some(place) {
            talk.machine.open_again(asked())
        } else {
            None
        };
        let opened = again.or_else(|| {
            let copy;
            let bytes = if request.drawn.is_empty() {
                &request.bytes
            } else {
                copy = thread.varied(request, &mut self.random);
                &copy
            };
            let fields = request.fields.iter();
            let fields = fields.map(|(name, value)| (name.of(bytes), value.of(bytes)).into());
            let opening = RequestStart {
                ends: !has_body,
                is_head: request.is_head,
            };
            talk.machine.open(fields, opening, asked())
        });
        let Some(stream) = opened else {
            // The connection has begun to end: the request is sent on the next one.
            thread.give_back(start);
            return;
        };
        talk.last = request.drawn.is_empty().then_some(place);
        talk.free = talk.free.saturating_sub(1);
        talk.deadlines.push_back((now + plan.timeout, stream));
        self.left = self.left.saturating_sub(1);
        if has_body {
            talk.machine.wants_to_send(stream);
        }
    }

    /// Queues all output of the connection, which is sent at the end of the turn.
    fn transmit(&self, talk: &mut Http2Connection, connection: &Rc<Connection>) {
        while let Some((stream, allowed)) = talk.machine.turn() {
            let Some(asked) = talk.machine.user(stream) else {
                continue;
            };
            let part = asked.rest.split_to(allowed.min(asked.rest.len()));
            let ends = asked.rest.is_empty();
            talk.machine.put_data(stream, &part, ends, !ends);
        }
        let output = talk.machine.output();
        if !output.is_empty() {
            self.thread.send_copy(connection, output);
            talk.machine.clear_output();
        }
    }

    /// Handles a received buffer. `Some` ends the connection.
    fn open_http2(
        &mut self,
        talk: &mut Http2Connection,
        plan: &Plan,
        connection: &Connection,
        buffer: Buffer,
        now: Instant,
    ) -> Option<ClientOutcome> {
        let mut end = None;
        let opened = connection.open(buffer, |bytes| {
            if end.is_none() {
                end = self.heard(talk, plan, bytes, now);
            }
        });
        match (end, opened) {
            (Some(end), _) => Some(end),
            (None, Ok(SessionProgress::Open)) => match talk.deadline() {
                Some(deadline) if now > deadline => self.late(talk, plan, now),
                _ => None,
            },
            (None, Ok(SessionProgress::Ended)) => Some(self.end_of_input_http2(talk)),
            (None, Err(failure)) => Some(self.lose(talk, |_| failure)),
        }
    }

    /// Handles received bytes, after decryption. `Some` ends the connection.
    fn heard(
        &mut self,
        talk: &mut Http2Connection,
        plan: &Plan,
        bytes: &[u8],
        now: Instant,
    ) -> Option<ClientOutcome> {
        self.thread.received(bytes.len());
        talk.heard = now;
        let second = now.saturating_duration_since(talk.begin).as_secs() as u32;
        let mut at = 0;
        loop {
            match talk.machine.handle(bytes, &mut at, second) {
                Ok(Some(event)) => self.event(talk, plan, event, bytes, now),
                Ok(None) => break,
                Err(violation) => {
                    let failure = match violation {
                        _ if !talk.machine.has_begun() => RequestError::NoHttp2,
                        Violation::BlockTooLong | Violation::TooManyContinuations => {
                            RequestError::HeadTooLarge
                        }
                        _ => RequestError::Http2Violation,
                    };
                    talk.machine.fail(violation);
                    return Some(self.lose(talk, |_| failure));
                }
            }
        }
        if !talk.are_streams_known && talk.machine.has_begun() {
            talk.are_streams_known = true;
            self.thread.allowed(talk.machine.streams_max());
        }
        None
    }

    fn event(
        &mut self,
        talk: &mut Http2Connection,
        plan: &Plan,
        event: Event,
        bytes: &[u8],
        now: Instant,
    ) {
        match event {
            Event::Interim { stream } => self.begun(talk, stream, now),
            Event::Head { stream, ends } => {
                self.begun(talk, stream, now);
                let head = talk.machine.head();
                let status = head.status();
                let call = plan
                    .protocol
                    .is_grpc()
                    .then(|| CallProgress::new(head, ends));
                if plan.samples {
                    talk.server.clear();
                    let server = head.value(KnownField::Server).unwrap_or_default();
                    talk.server.extend_from_slice(server);
                }
                if let Some(asked) = talk.machine.user(stream) {
                    asked.status = status;
                    asked.call = call;
                }
                if ends {
                    self.complete_http2(talk, plan, stream, now);
                }
            }
            Event::Data {
                stream,
                start,
                length,
                ends,
            } => {
                if let Some(asked) = talk.machine.user(stream) {
                    let part = bytes.get(start..start + length).unwrap_or_default();
                    if let Some(call) = &mut asked.call {
                        call.data(asked.length, part);
                    }
                    asked.length += length as u64;
                    if let Some(digest) = &mut asked.digest {
                        digest.update(part);
                    }
                }
                if ends {
                    self.complete_http2(talk, plan, stream, now)
                } else {
                    talk.machine.consumed(stream, length)
                }
            }
            Event::Trailers { stream } => {
                let trailers = talk.machine.head();
                let status = plan.protocol.is_grpc().then(|| status_in(trailers));
                if let Some(status) = status
                    && let Some(asked) = talk.machine.user(stream)
                    && let Some(call) = &mut asked.call
                {
                    call.ends(status);
                }
                self.complete_http2(talk, plan, stream, now);
            }
            Event::Reset {
                stream,
                code,
                fault,
            } => {
                if let Some(asked) = talk.machine.release(stream) {
                    self.thread.fail(asked.start, reset_failure(code, fault));
                    self.free(talk, plan, now);
                }
            }
            Event::NotServed { stream } => {
                if let Some(asked) = talk.machine.release(stream) {
                    self.give_back_http2(plan, &asked);
                }
            }
            Event::GoAway(code) => {
                talk.error = (code != ErrorCode::NoError).then_some(code);
            }
            Event::Pong => {}
        }
    }

    /// Records the arrival of a response's first byte.
    fn begun(&self, talk: &mut Http2Connection, stream: u32, now: Instant) {
        if let Some(asked) = talk.machine.user(stream)
            && asked.begun.is_none()
        {
            asked.begun = Some(now);
            self.thread.first_byte(asked.start, now);
        }
    }

    fn complete_http2(
        &mut self,
        talk: &mut Http2Connection,
        plan: &Plan,
        stream: u32,
        now: Instant,
    ) {
        let Some(asked) = talk.machine.release(stream) else {
            return;
        };
        let digest = asked.digest.map(|digest| digest.finalize().into());
        let of_status = match asked.call {
            Some(call) => call.fault(asked.length, plan.expect.status.unwrap_or_default()),
            None => (!plan.expect.takes(asked.status)).then_some(RequestError::Status),
        };
        let of_body = (digest != plan.expect.sha256).then_some(RequestError::Digest);
        let response = CompleteResponse {
            status: asked.status,
            body: asked.length,
            closes: talk.machine.is_ending() || plan.new_connections,
            grpc_status: asked.call.and_then(|call| call.status()),
            failure: of_status.or(of_body),
        };
        let counts = self.thread.complete(asked.start, now, &response);
        if counts && !std::mem::replace(&mut self.used, true) {
            self.thread.used();
        }
        if counts && plan.samples {
            let begun = asked.begun.unwrap_or(now);
            let sample = Sample {
                wall: engine::wall(),
                connect: asked.connect,
                wait: begun.saturating_duration_since(asked.sent),
                total: now.saturating_duration_since(asked.start),
            };
            self.thread.keep(sample, &talk.server, &response);
        }
        self.free(talk, plan, now);
    }

    /// Frees a stream, after its think time if there is one. If every request has its own
    /// connection, the stream stays unused.
    fn free(&mut self, talk: &mut Http2Connection, plan: &Plan, now: Instant) {
        if plan.new_connections {
            return;
        }
        if plan.think_time.is_zero() {
            talk.free += 1;
        } else {
            talk.thinking.push(Reverse(now + self.pause(plan)))
        }
    }

    /// Fails requests whose deadline has passed. If nothing has been received since the oldest of
    /// them was sent, ends the connection.
    fn late(
        &mut self,
        talk: &mut Http2Connection,
        plan: &Plan,
        now: Instant,
    ) -> Option<ClientOutcome> {
        if talk.machine.live() == 0 {
            self.thread.note(RequestError::Timeout);
            return Some(ClientOutcome::Closed);
        }
        while let Some(deadline) = talk.deadline()
            && deadline <= now
            && let Some((_, stream)) = talk.deadlines.pop_front()
            && let Some(asked) = talk.machine.user(stream)
        {
            if talk.heard <= asked.sent {
                return Some(self.lose(talk, |_| RequestError::Timeout));
            }
            if let Some(asked) = talk.machine.release(stream) {
                self.thread.fail(asked.start, RequestError::Timeout);
                self.free(talk, plan, now);
            }
        }
        None
    }

    /// Handles the end of the server's data.
    fn end_of_input_http2(&self, talk: &mut Http2Connection) -> ClientOutcome {
        let error = talk.error;
        self.lose(talk, |asked| match (error, asked.begun) {
            (Some(_), _) => RequestError::GoAway,
            (None, None) => RequestError::ClosedEarly,
            (None, Some(_)) => RequestError::ClosedInBody,
        })
    }

    /// Fails all requests in progress.
    fn lose(
        &self,
        talk: &mut Http2Connection,
        failure: impl Fn(&SentRequest) -> RequestError,
    ) -> ClientOutcome {
        for (_, asked) in talk.machine.drain() {
            self.thread.fail(asked.start, failure(&asked));
        }
        ClientOutcome::Closed
    }

    /// Sends a request again that the server has not processed. In the open loop it fails instead,
    /// because its start time has passed.
    fn give_back_http2(&mut self, plan: &Plan, asked: &SentRequest) {
        if plan.arrivals.is_some() {
            self.thread.fail(asked.start, RequestError::ClosedEarly);
            return;
        }
        self.left = self.left.saturating_add(1);
        self.thread.give_back(asked.start);
    }
}

fn reset_failure(code: ErrorCode, fault: Option<StreamFault>) -> RequestError {
    match (fault, code) {
        (None, ErrorCode::RefusedStream) => RequestError::StreamRefused,
        (None, _) => RequestError::StreamReset,
        (Some(StreamFault::BodyLength(_)), _) => RequestError::WrongLength,
        (Some(StreamFault::BodyShort(_)), _) => RequestError::ClosedInBody,
        (Some(StreamFault::Response(_, ResponseFault::TooLarge)), _) => RequestError::HeadTooLarge,
        (Some(StreamFault::Response(..)), _) => RequestError::GarbageHead,
        (Some(_), _) => RequestError::Http2Violation,
    }
}
