//! One connection of a run: connects, asks, checks, and begins anew when the server closes.
//!
//! ```text
//! wait for a start ─▶ connect (and shake hands) ─▶ send ─▶ receive ─┬─ complete ─▶ next start, on this connection or a new one
//!        ▲                │                       │
//!        └────────────────┴── failure: counted ◀──┘
//! ```
//!
//! What all connections of a turn have to send leaves at its end (`Thread::send_all`): first
//! everything is received that is there, which keeps its times exact, and a server that sleeps is
//! woken once rather than for every request.

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
use crate::schedule::{Random, Seat};
use crate::tally::RequestError;
use crate::tls::{SessionProgress, shake_hands};

/// How long a connection pauses after an attempt that failed: a server that is away is not asked by
/// a busy loop.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Buffers received in one turn before other connections get theirs.
const BUFFERS_PER_TURN: u32 = 64;

/// A request that was sent.
struct Pending {
    start: Instant,
    /// When its response must be complete.
    deadline: Instant,
    is_head: bool,
    /// When it was sent, and how long its connection had taken if it is the first on it.
    sent: Instant,
    connect: Duration,
    /// When its response began.
    begun: Option<Instant>,
}

/// One connection, and the ones that follow it.
pub(crate) struct Client {
    thread: Rc<Thread>,
    /// Which server of the plan.
    server: usize,
    source: Option<IpAddr>,
    random: Random,
    /// Where it waits for the moments of the open loop.
    seat: Seat,
    /// The place of the next request in the list of [`Order::InTurn`].
    place: usize,
    reader: Reader,
    pending: VecDeque<Pending>,
    /// How long connecting took, until the first request is sent.
    connect: Duration,
    /// Whether a response has come on this connection since the warm-up.
    used: bool,
    /// How many more requests it may send.
    left: u64,
}

/// What became of a connection.
enum ClientOutcome {
    /// It was closed in an orderly way, or is of no further use; begin anew.
    Closed,
    /// No more requests are to be sent.
    Finished,
}

impl Client {
    /// Connection number `number` of the whole run.
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
            seat: Seat::default(),
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

    /// Goes on until the run ends or no more requests are to be sent.
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

    /// A connection on which the first request can be sent.
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
        match shake_hands(tls, &stream, deadline).await {
            Ok(session) => {
                let time = begin.elapsed();
                let handshake = time.saturating_sub(self.connect);
                self.connect = time;
                self.thread
                    .shook_hands(self.server, &session, begin, handshake);
                Ok(Connection::new(stream, Some(session)))
            }
            Err(error) => {
                self.thread.closed();
                self.thread.refused(&error);
                Err(error.failure)
            }
        }
    }

    /// Whom the next connection is for, where it is for one request.
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

    /// Everything that happens on one connection, whose first request starts now.
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

    /// The server has ended its side.
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
            // Only the end says how long the body is, and an attacker could have made that end.
            Ok(_) if !connection.may_end() => self.fail_pending(RequestError::ClosedInBody),
            Ok(response) => self.complete(plan, response, now),
            Err(failure) => self.fail_pending(failure),
        }
        self.give_back(plan);
        ClientOutcome::Closed
    }

    /// Bytes came: the responses that they complete. `Some` ends the connection.
    fn received(&mut self, plan: &Plan, mut bytes: &[u8], now: Instant) -> Option<ClientOutcome> {
        self.thread.received(bytes.len());
        while !bytes.is_empty() {
            let Some(front) = self.pending.front_mut() else {
                // More than was asked for: the last response was longer than its head said.
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
                    // Counted with the response it belongs to, where it is plain that it does.
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

    /// All requests under way are lost: the first for a reason of its own, the others with it.
    fn fail_pending(&mut self, failure: RequestError) {
        for pending in self.pending.drain(..) {
            self.thread.fail(pending.start, failure);
        }
    }

    /// The server has announced the end of the connection: what was pipelined behind its last
    /// response was never looked at and is asked again, except in the open loop, where its moment
    /// has passed.
    fn give_back(&mut self, plan: &Plan) {
        if plan.arrivals.is_some() {
            self.fail_pending(RequestError::ClosedEarly);
        }
        for pending in self.pending.drain(..) {
            self.left = self.left.saturating_add(1);
            self.thread.give_back(pending.start);
        }
    }

    /// Waits for the next start while the connection has nothing to do. `None` when the run ends or
    /// the server closes.
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

    /// Sends as many more requests as may be under way.
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

    /// How long to think before the next request.
    fn pause(&mut self, plan: &Plan) -> Duration {
        if plan.random_think_time {
            plan.think_time.mul_f64(self.random.fraction())
        } else {
            plan.think_time
        }
    }

    /// Which of the server's requests comes next.
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

    /// Sends one request at the end of this turn. In the open loop its start may be long ago,
    /// because no connection was free.
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

/// Where connection `number` begins in the list, so that all of it is asked for from the beginning.
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

/// Whether this machine ran out of something. `EAGAIN` is a Unix socket's way to say that the
/// server's queue is full, so it is none.
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
