//! A client of a run: connects, sends requests, checks the responses, and reconnects after the
//! server closes the connection.
//!
//! ```text
//! wait for a start ─▶ connect (and shake hands) ─▶ send ─▶ receive ─┬─ complete ─▶ next start, on this connection or a new one
//!        ▲                │                       │
//!        └────────────────┴── failure: counted ◀──┘
//! ```
//!
//! The output of all connections is sent together at the end of a turn (`Thread::send_all`): first
//! all available input is received, which keeps the recorded times exact, and a sleeping server is
//! woken once instead of for every request.

pub(crate) mod http2;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use engine::net;
use engine::select::{Either, either};

use crate::connection::Connection;
use crate::plan::{Length, Order, Plan, Protocol};
use crate::response::{CompleteResponse, Reader};
use crate::run::{Sample, Thread};
use crate::schedule::{ArrivalWaiter, Random};
use crate::tally::RequestError;
use crate::tls::{SessionProgress, do_handshake};

/// The pause after a failed attempt to connect, which avoids a busy loop while the server is down.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Maximum number of buffers that a connection receives in a turn before others get theirs.
const BUFFERS_PER_TURN: u32 = 64;

/// A request that was sent.
struct Pending {
    start: Instant,
    /// The deadline of the response.
    deadline: Instant,
    is_head: bool,
    /// When it was sent, and how long connecting took if it is the connection's first request.
    sent: Instant,
    connect: Duration,
    /// When the first byte of the response arrived.
    begun: Option<Instant>,
}

/// A client of a run, with one connection at a time.
pub(crate) struct Client {
    thread: Rc<Thread>,
    /// The index of the server in the plan.
    server: usize,
    source: Option<IpAddr>,
    random: Random,
    /// The client's place in the queue for arrivals of the open loop.
    seat: ArrivalWaiter,
    /// The index of the next request in the list, for [`Order::InTurn`].
    place: usize,
    reader: Reader,
    pending: VecDeque<Pending>,
    /// How long connecting took; reset when the first request is sent.
    connect: Duration,
    /// Whether a response of this connection has been counted since the warm-up.
    used: bool,
    /// How many more requests the client may send.
    left: u64,
}

/// Why a connection ended.
enum ClientOutcome {
    /// The connection was closed or is unusable; the client may connect again.
    Closed,
    /// The run has ended for this client.
    Finished,
}

impl Client {
    /// The client with this number among all clients of the run.
    pub(crate) fn new(thread: Rc<Thread>, number: usize) -> Client {
        let plan = thread.plan();
        let server = number % plan.servers.len();
        Client {
            server,
            place: first_place(&plan, server, number),
            source: plan
                .sources
                .get(number % plan.sources.len().max(1))
                .copied(),
            random: Random::new(plan.seed ^ (number as u64 + 1)),
            seat: ArrivalWaiter::default(),
            reader: Reader::new(plan.expect, plan.samples),
            pending: VecDeque::with_capacity(plan.pipeline),
            connect: Duration::ZERO,
            used: false,
            left: match plan.length {
                Length::Each(requests) => requests,
                Length::Time(_) | Length::Requests(_) => u64::MAX,
            },
            thread,
        }
    }

    /// Runs until the end of the run, or until all requests of this client have been sent.
    pub(crate) async fn run(mut self) {
        let plan = self.thread.plan();
        while self.left > 0
            && let Some(start) = self.thread.start(&self.seat).await
        {
            self.pending.clear();
            self.reader.restart();
            self.used = false;
            if plan.new_connections && plan.servers.len() > 1 {
                self.server = self.next_server(&plan);
            }
            match self.connect(&plan).await {
                Ok(connection) => {
                    let connection = Rc::new(connection);
                    let end = match plan.protocol {
                        Protocol::Http1 => self.converse(&plan, &connection, start).await,
                        Protocol::Http2 { streams } | Protocol::Grpc { streams } => {
                            self.converse_http2(&plan, &connection, start, streams)
                                .await
                        }
                    };
                    connection.close();
                    self.thread.closed();
                    if let ClientOutcome::Finished = end {
                        return;
                    }
                }
                Err(failure) => {
                    self.left = self.left.saturating_sub(1);
                    self.thread.fail(start, failure);
                    engine::sleep(RETRY_PAUSE).await;
                }
            }
            if !plan.think_time.is_zero() {
                engine::sleep(self.pause(&plan)).await;
            }
        }
    }

    /// Connects and, if TLS is used, performs the handshake.
    async fn connect(&mut self, plan: &Plan) -> Result<Connection, RequestError> {
        let begin = Instant::now();
        let address = &plan.servers[self.server].address;
        let source = self.source.map(|address| SocketAddr::new(address, 0));
        let deadline = begin + plan.timeout;
        let stream = net::connect(address, source, Some(deadline)).await;
        let stream = stream.map_err(|error| connect_failure(&error))?;
        stream.set_nodelay(true);
        stream.set_send_timeout(plan.timeout);
        self.connect = begin.elapsed();
        self.thread.connected(begin, self.connect);
        let Some(tls) = self.thread.tls(self.server) else {
            return Ok(Connection::new(stream, None));
        };
        match do_handshake(tls, &stream, deadline).await {
            Ok(session) => {
                let time = begin.elapsed();
                let handshake = time.saturating_sub(self.connect);
                self.connect = time;
                self.thread
                    .note_handshake(self.server, &session, begin, handshake);
                Ok(Connection::new(stream, Some(session)))
            }
            Err(error) => {
                self.thread.closed();
                self.thread.refused(&error);
                Err(error.failure)
            }
        }
    }

    /// The server of the next connection, if each connection is for one request.
    fn next_server(&mut self, plan: &Plan) -> usize {
        match plan.order {
            Order::InTurn => {
                let server = self.place % plan.servers.len();
                self.place = self.place.wrapping_add(1);
                server
            }
            Order::Random => self.thread.weights().servers.pick(&mut self.random),
        }
    }

    /// Runs the connection until it ends. The first request starts now.
    async fn converse(
        &mut self,
        plan: &Plan,
        connection: &Rc<Connection>,
        start: Instant,
    ) -> ClientOutcome {
        let mut now = Instant::now();
        self.send(plan, connection, start, now);
        let mut buffers = 0;
        loop {
            self.fill(plan, connection, now);
            let Some(front) = self.pending.front() else {
                match self.idle(plan, connection).await {
                    Some(start) => {
                        now = Instant::now();
                        self.send(plan, connection, start, now);
                    }
                    None if self.thread.has_ended() => return ClientOutcome::Finished,
                    None => return ClientOutcome::Closed,
                }
                continue;
            };
            let deadline = front.deadline;
            let received = connection.stream().recv_idle(Some(deadline)).await;
            now = Instant::now();
            match received {
                Ok(buffer) if buffer.is_empty() => return self.end_of_input(plan, connection, now),
                Ok(buffer) => {
                    let mut end = None;
                    let opened = connection.open(buffer, |bytes| {
                        if end.is_none() {
                            end = self.received(plan, bytes, now);
                        }
                    });
                    match (end, opened) {
                        (Some(end), _) => return end,
                        (None, Ok(SessionProgress::Open)) => {}
                        (None, Ok(SessionProgress::Ended)) => {
                            return self.end_of_input(plan, connection, now);
                        }
                        (None, Err(failure)) => {
                            self.fail_pending(failure);
                            return ClientOutcome::Closed;
                        }
                    }
                    if self.pending.front().is_some() && now > deadline {
                        self.fail_pending(RequestError::Timeout);
                        return ClientOutcome::Closed;
                    }
                    buffers += 1;
                    if buffers % BUFFERS_PER_TURN == 0 {
                        engine::yield_now().await;
                    }
                }
                Err(error) => {
                    self.fail_pending(receive_failure(&error));
                    return ClientOutcome::Closed;
                }
            }
        }
    }

    /// Handles the end of the server's data.
    fn end_of_input(
        &mut self,
        plan: &Plan,
        connection: &Connection,
        now: Instant,
    ) -> ClientOutcome {
        if self.pending.is_empty() {
            return ClientOutcome::Closed;
        }
        match self.reader.end() {
            // The end of the connection delimits the body. Over TLS without close_notify, an
            // attacker may have caused the end.
            Ok(_) if !connection.may_end() => self.fail_pending(RequestError::ClosedInBody),
            Ok(response) => self.complete(plan, response, now),
            Err(failure) => self.fail_pending(failure),
        }
        self.give_back(plan);
        ClientOutcome::Closed
    }

    /// Handles received bytes and completes responses. `Some` ends the connection.
    fn received(&mut self, plan: &Plan, mut bytes: &[u8], now: Instant) -> Option<ClientOutcome> {
        self.thread.received(bytes.len());
        while !bytes.is_empty() {
            let Some(front) = self.pending.front_mut() else {
                // More bytes than requested: the last response was longer than its head announced.
                self.thread.note(RequestError::WrongLength);
                return Some(ClientOutcome::Closed);
            };
            if front.begun.is_none() {
                front.begun = Some(now);
                self.thread.first_byte(front.start, now);
            }
            let is_head = front.is_head;
            match self.reader.advance(bytes, is_head) {
                Ok((used, Some(response))) => {
                    bytes = bytes.get(used..).unwrap_or_default();
                    // If there is only one request in progress, the surplus must belong to its
                    // response, which is counted as failed.
                    let surplus = !bytes.is_empty() && self.pending.len() == 1;
                    self.complete(
                        plan,
                        if surplus {
                            wrong_length(response)
                        } else {
                            response
                        },
                        now,
                    );
                    if surplus {
                        return Some(ClientOutcome::Closed);
                    }
                    if response.closes || plan.new_connections {
                        self.give_back(plan);
                        return Some(ClientOutcome::Closed);
                    }
                }
                Ok((_, None)) => return None,
                Err(failure) => {
                    self.fail_pending(failure);
                    return Some(ClientOutcome::Closed);
                }
            }
        }
        None
    }

    fn complete(&mut self, plan: &Plan, response: CompleteResponse, now: Instant) {
        if let Some(pending) = self.pending.pop_front() {
            let counts = self.thread.complete(pending.start, now, &response);
            if counts && !std::mem::replace(&mut self.used, true) {
                self.thread.used();
            }
            if counts && plan.samples {
                let begun = pending.begun.unwrap_or(now);
                let sample = Sample {
                    wall: engine::wall(),
                    connect: pending.connect,
                    wait: begun.saturating_duration_since(pending.sent),
                    total: now.saturating_duration_since(pending.start),
                };
                self.thread.keep(sample, self.reader.server(), &response);
            }
        }
    }

    /// Fails all requests in progress with this error.
    fn fail_pending(&mut self, failure: RequestError) {
        for pending in self.pending.drain(..) {
            self.thread.fail(pending.start, failure);
        }
    }

    /// Sends pipelined requests again that the server has not processed, because it announced the
    /// end of the connection. In the open loop they fail instead, because their start times have
    /// passed.
    fn give_back(&mut self, plan: &Plan) {
        if plan.arrivals.is_some() {
            self.fail_pending(RequestError::ClosedEarly);
        }
        for pending in self.pending.drain(..) {
            self.left = self.left.saturating_add(1);
            self.thread.give_back(pending.start);
        }
    }

    /// Waits for the next start while the connection is idle. `None` at the end of the run, or when
    /// the server closes the connection or sends data.
    async fn idle(&mut self, plan: &Plan, connection: &Connection) -> Option<Instant> {
        if self.left == 0 {
            return None;
        }
        if plan.think_time.is_zero() && plan.arrivals.is_none() {
            return self.thread.start(&self.seat).await;
        }
        let pause = self.pause(plan);
        let (thread, seat) = (Rc::clone(&self.thread), self.seat.clone());
        let start = async {
            if !plan.think_time.is_zero() {
                engine::sleep(pause).await;
            }
            thread.start(&seat).await
        };
        match either(start, connection.surplus()).await {
            Either::First(start) => start,
            Either::Second(came) => {
                if came {
                    self.thread.note(RequestError::WrongLength);
                }
                None
            }
        }
    }

    /// Sends requests until the pipeline is full.
    fn fill(&mut self, plan: &Plan, connection: &Rc<Connection>, now: Instant) {
        if plan.new_connections || !plan.think_time.is_zero() {
            return;
        }
        while self.pending.len() < plan.pipeline && self.left > 0 {
            let Some(start) = self.thread.try_start(now) else {
                return;
            };
            self.send(plan, connection, start, now);
        }
    }

    /// The think time before the next request.
    fn pause(&mut self, plan: &Plan) -> Duration {
        if plan.random_think_time {
            plan.think_time.mul_f64(self.random.fraction())
        } else {
            plan.think_time
        }
    }

    /// The index of the next request for the server.
    fn next_request(&mut self, order: Order) -> usize {
        let count = self.thread.requests(self.server).len();
        match order {
            _ if count < 2 => 0,
            Order::InTurn => {
                let place = self.place % count;
                self.place = self.place.wrapping_add(1);
                place
            }
            Order::Random => {
                let weights = self.thread.weights().requests.get(self.server);
                weights.map_or(0, |weights| weights.pick(&mut self.random))
            }
        }
    }

    /// Queues one request, which is sent at the end of the turn. In the open loop, `start` may lie
    /// in the past, because no connection was free then.
    fn send(&mut self, plan: &Plan, connection: &Rc<Connection>, start: Instant, now: Instant) {
        let place = self.next_request(plan.order);
        let Some(request) = self.thread.requests(self.server).get(place) else {
            return;
        };
        self.left = self.left.saturating_sub(1);
        self.pending.push_back(Pending {
            start,
            deadline: now + plan.timeout,
            sent: now,
            connect: std::mem::take(&mut self.connect),
            is_head: request.is_head,
            begun: None,
        });
        self.thread.send(connection, request, &mut self.random);
    }
}

/// Where a client starts in the list, so that the clients together cover the whole list from the
/// beginning.
fn first_place(plan: &Plan, server: usize, number: usize) -> usize {
    let list = if plan.new_connections && plan.servers.len() > 1 {
        plan.servers.len()
    } else {
        plan.servers[server].requests.len()
    };
    (number + 1) * (list / plan.connections.max(1))
}

fn wrong_length(response: CompleteResponse) -> CompleteResponse {
    CompleteResponse {
        failure: Some(RequestError::WrongLength),
        ..response
    }
}

fn connect_failure(error: &io::Error) -> RequestError {
    use io::ErrorKind;
    match error.kind() {
        ErrorKind::ConnectionRefused | ErrorKind::NotFound => RequestError::Refused,
        ErrorKind::TimedOut => RequestError::ConnectTimeout,
        ErrorKind::ConnectionReset => RequestError::Reset,
        _ if is_local(error) => RequestError::Local,
        _ => RequestError::Connect,
    }
}

fn receive_failure(error: &io::Error) -> RequestError {
    match error.kind() {
        io::ErrorKind::TimedOut => RequestError::Timeout,
        _ if is_local(error) => RequestError::Local,
        _ => RequestError::Reset,
    }
}

/// Whether a resource of this machine is exhausted. `EAGAIN` does not count: for Unix sockets it
/// means that the server's backlog is full.
fn is_local(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let known = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::ADDRNOTAVAIL,
        Errno::NOBUFS,
        Errno::NOMEM,
        // fs.epoll.max_user_watches
        Errno::NOSPC,
    ];
    known
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
