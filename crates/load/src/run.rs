//! A run: its threads, their shared state, its start and end.
//!
//! Every thread has its own runtime, connections and counters. The calling thread only waits,
//! reports progress, and stops the threads on request.

use std::cell::{Cell, RefCell, RefMut};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Barrier};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use engine::select::either;
use engine::{Alarm, EngineKind, Runtime, Settings, xdp};
use hdrhistogram::Histogram;

use crate::client::Client;
use crate::connection::Connection;
use crate::machine::{CpuClock, ThreadTimes};
use crate::plan::{Length, Plan, Request};
use crate::response::CompleteResponse;
use crate::schedule::{ArrivalWaiter, OpenLoop, Random, Weights};
use crate::tally::{RequestError, Tally, record};
use crate::tls::{HandshakeError, Mark, NegotiatedTls, Session, Tls};

/// The interval at which a thread publishes its progress and checks whether it should stop.
const TICK: Duration = Duration::from_millis(50);

/// The interval at which the caller gets progress reports and is asked whether to stop.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Length of an interval of the histogram log.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Size of a receive buffer on epoll, in bytes. Large buffers make large bodies cheaper; idle
/// connections hold none.
const BUFFER_SIZE: usize = 64 * 1024;

/// Size of an allocation for copies of requests, in bytes; it is freed when all of them have been
/// sent.
const COPIES_SIZE: usize = 64 * 1024;

/// Maximum number of distinct results of TLS handshakes that are recorded.
const AGREED_MAX: usize = 16;

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct RunResult {
    /// The counts of all threads.
    pub tally: Tally,
    /// When the measurement began, since 1970.
    pub began: Duration,
    /// Duration of the measurement: that of the longest thread or, for several processes, from the
    /// first start to the last end.
    pub elapsed: Duration,
    /// How long all processes measured simultaneously; `elapsed` if there is one process.
    pub together: Duration,
    /// Requests that were still in progress at the end.
    pub unfinished: u64,
    /// Requests of the open loop that never started, because no connection was free until the end.
    pub not_started: u64,
    /// Whether the run was interrupted.
    pub interrupted: bool,
    /// The processor use of each thread.
    pub busy: Vec<ThreadTimes>,
    /// Total times by seconds of the run, if the plan requests them.
    pub intervals: Vec<Histogram<u64>>,
    /// A sample of every complete response, if the plan requests them.
    pub samples: Vec<Sample>,
    /// The first response, if samples are recorded.
    pub first: Option<First>,
    /// Maximum number of concurrent requests, as the sum of the threads' maxima.
    pub parallel: u64,
    /// Number of sampled responses after which the connection stayed open.
    pub kept_alive: u64,
    /// Counts of connections.
    pub connections: Connections,
    /// The results of TLS handshakes, without duplicates, those of the first servers first.
    pub agreed: Vec<NegotiatedTls>,
    /// The error of the first failed TLS handshake; not saved in files.
    pub refusal: Option<String>,
    /// Segments with wrong checksums on connections that bypass the kernel; not saved in files.
    pub damaged_segments: u64,
    /// The lowest limit of concurrent streams set by a server, if it was below the plan's.
    pub streams_allowed: Option<u32>,
}

/// Counts of connections, as sums over the threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Maximum number of open connections.
    pub open_max: u64,
    /// Number of open connections at the end.
    pub open_at_end: u64,
    /// Number of connections with at least one complete response.
    pub used: u64,
}

/// The times of one request with a complete response.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// When the response was complete, since 1970.
    pub wall: Duration,
    /// How long connecting took, if the request was the connection's first.
    pub connect: Duration,
    /// The time from sending the request to the first byte of the response.
    pub wait: Duration,
    /// The time from the start, including connecting, to the end of the response.
    pub total: Duration,
}

/// Properties of the first response; recorded together with the samples.
#[derive(Clone, Debug, Default)]
pub struct First {
    /// The `Server` field.
    pub server: Vec<u8>,
    /// Length of the body, in bytes.
    pub length: u64,
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// The time since the threads started, including the warm-up.
    pub elapsed: Duration,
    /// Number of requests that have succeeded or failed since the warm-up.
    pub ended: u64,
    /// Number of them that failed.
    pub failed: u64,
    /// Number of failures because a connection could not be made, broke or stalled.
    pub broken: u64,
}

/// The progress that threads publish, and the signal to stop them.
struct RunProgress {
    stop: AtomicBool,
    ended: Vec<AtomicU64>,
    failed: Vec<AtomicU64>,
    broken: Vec<AtomicU64>,
    begin: Barrier,
}

impl RunProgress {
    fn new(threads: usize) -> RunProgress {
        let counters = || (0..threads).map(|_| AtomicU64::new(0)).collect();
        RunProgress {
            stop: AtomicBool::new(false),
            ended: counters(),
            failed: counters(),
            broken: counters(),
            begin: Barrier::new(threads),
        }
    }
}

/// The result of one thread.
struct ThreadResult {
    tally: Tally,
    elapsed: Duration,
    unfinished: u64,
    not_started: u64,
    busy: ThreadTimes,
    intervals: Vec<Histogram<u64>>,
    kept: RequestSamples,
    parallel: u64,
    connections: Connections,
    agreed: Vec<NegotiatedTls>,
    refusal: Option<String>,
    damaged_segments: u64,
    streams_allowed: Option<u32>,
}

/// Runs `plan`. `watch` gets the progress ten times a second; the run ends if it returns false.
///
/// # Errors
/// If threads or their engines cannot be created.
pub fn run(plan: &Arc<Plan>, mut watch: impl FnMut(Progress) -> bool) -> io::Result<RunResult> {
    let threads = plan.threads.clamp(1, plan.connections.max(1));
    let shared = Arc::new(RunProgress::new(threads));
    let begin = Instant::now();
    let (sender, receiver) = channel();
    for number in 0..threads {
        let (plan, shared, sender) = (Arc::clone(plan), Arc::clone(&shared), sender.clone());
        std::thread::Builder::new()
            .name(format!("load {number}"))
            .spawn(move || {
                let part = run_thread(&plan, &shared, number, threads);
                // The receiver waits for every thread, so sending fails only after an error of the
                // caller.
                let _ = sender.send(part);
            })?;
    }
    drop(sender);
    let mut interrupted = false;
    let parts = collect(&receiver, || {
        let sum = |counters: &[AtomicU64]| counters.iter().map(|c| c.load(Ordering::Relaxed)).sum();
        let progress = Progress {
            elapsed: begin.elapsed(),
            ended: sum(&shared.ended),
            failed: sum(&shared.failed),
            broken: sum(&shared.broken),
        };
        if !interrupted && !watch(progress) {
            interrupted = true;
            shared.stop.store(true, Ordering::Relaxed);
        }
    })?;
    if parts.len() < threads {
        return Err(io::Error::other("a thread of the load tester has failed"));
    }
    Ok(merge(parts, interrupted))
}

fn collect(
    receiver: &Receiver<io::Result<ThreadResult>>,
    mut tick: impl FnMut(),
) -> io::Result<Vec<ThreadResult>> {
    let mut parts = Vec::new();
    loop {
        match receiver.recv_timeout(PROGRESS_INTERVAL) {
            Ok(part) => parts.push(part?),
            Err(RecvTimeoutError::Timeout) => tick(),
            Err(RecvTimeoutError::Disconnected) => return Ok(parts),
        }
    }
}

fn merge(parts: Vec<ThreadResult>, interrupted: bool) -> RunResult {
    let mut outcome = RunResult {
        interrupted,
        ..RunResult::default()
    };
    for part in parts {
        outcome.elapsed = outcome.elapsed.max(part.elapsed);
        outcome.samples.extend(part.kept.samples);
        outcome.kept_alive += part.kept.alive;
        outcome.first = outcome.first.take().or(part.kept.first);
        outcome.add(RunResult {
            tally: part.tally,
            unfinished: part.unfinished,
            not_started: part.not_started,
            busy: vec![part.busy],
            parallel: part.parallel,
            connections: part.connections,
            agreed: part.agreed,
            refusal: part.refusal,
            damaged_segments: part.damaged_segments,
            streams_allowed: part.streams_allowed,
            ..RunResult::default()
        });
        for (second, interval) in part.intervals.into_iter().enumerate() {
            match outcome.intervals.get_mut(second) {
                Some(known) => known
                    .add(&interval)
                    .expect("all histograms have the same bounds"),
                None => outcome.intervals.push(interval),
            }
        }
    }
    outcome.together = outcome.elapsed;
    outcome.began = engine::wall().saturating_sub(outcome.elapsed);
    outcome
}

impl RunResult {
    /// Adds the counts of another process that sent load simultaneously. Durations and samples of
    /// single requests are not changed.
    pub(crate) fn add(&mut self, other: RunResult) {
        self.tally.add(&other.tally);
        self.unfinished += other.unfinished;
        self.not_started += other.not_started;
        self.interrupted |= other.interrupted;
        self.busy.extend(other.busy);
        self.parallel += other.parallel;
        self.kept_alive += other.kept_alive;
        self.connections.open_max += other.connections.open_max;
        self.connections.open_at_end += other.connections.open_at_end;
        self.connections.used += other.connections.used;
        self.refusal = self.refusal.take().or(other.refusal);
        self.damaged_segments += other.damaged_segments;
        let allowed = [self.streams_allowed, other.streams_allowed];
        self.streams_allowed = allowed.into_iter().flatten().min();
        for agreed in other.agreed {
            if !self.agreed.contains(&agreed) {
                self.agreed.push(agreed);
            }
        }
    }
}

fn run_thread(
    plan: &Arc<Plan>,
    shared: &RunProgress,
    number: usize,
    threads: usize,
) -> io::Result<ThreadResult> {
    let connections = share(plan.connections as u64, number, threads);
    let settings = Settings {
        connections: usize::try_from(connections).unwrap_or(usize::MAX),
        buffer_size: match plan.engine {
            EngineKind::Uring => Settings::default().buffer_size,
            EngineKind::Epoll | EngineKind::Xdp | EngineKind::Sim => BUFFER_SIZE,
        },
        ..Settings::default()
    };
    // Every thread must reach the barrier, even if its runtime could not be created.
    let runtime = Runtime::new(plan.engine, settings).and_then(|mut runtime| {
        let filter = match &plan.interface {
            Some(interface) => Some(runtime.block_on(async { pass_kernel_by(interface) })?),
            None => None,
        };
        Ok((runtime, filter))
    });
    shared.begin.wait();
    // The kernel keeps the filter while the thread has the queue that was opened with it.
    let (mut runtime, filter) = runtime?;
    let thread = Rc::new(Thread::new(plan, number, threads));
    let mut part = runtime.block_on(drive(Rc::clone(&thread), shared, number, threads));
    if let (Ok(part), Some(_)) = (&mut part, &filter) {
        part.damaged_segments = xdp::reports().iter().map(|queue| queue.damaged).sum();
    }
    // Dropping the runtime closes the connections.
    drop(runtime);
    part
}

/// Makes new connections of this thread use an interface directly, bypassing the kernel.
fn pass_kernel_by(interface: &str) -> io::Result<xdp::Filter> {
    let options = xdp::Options {
        interface: interface.to_owned(),
        mode: xdp::Mode::Auto,
        profile: xdp::Profile::Balanced,
        threads: 1,
        // Incoming packets are only responses to ports from which this thread has connected.
        bypasses_firewall: true,
        role: xdp::Role::Client,
    };
    let opened = xdp::open(&options).map_err(io::Error::other)?;
    for parts in opened.parts {
        xdp::attach(parts)?;
    }
    Ok(opened.filter)
}

/// The share of `all` for thread `number` of `of`.
fn share(all: u64, number: usize, of: usize) -> u64 {
    let (number, of) = (number as u64, of as u64);
    all / of + u64::from(number < all % of)
}

async fn drive(
    thread: Rc<Thread>,
    shared: &RunProgress,
    number: usize,
    threads: usize,
) -> io::Result<ThreadResult> {
    let plan = thread.plan();
    let sender = Rc::clone(&thread);
    engine::on_turn_end(move || sender.send_all());
    let mut place = 0_u32;
    for connection in (number..plan.connections).step_by(threads) {
        let client = Client::new(Rc::clone(&thread), connection);
        let delay = plan
            .ramp
            .mul_f64(connection as f64 / plan.connections as f64);
        place += 1;
        engine::spawn(async move {
            if !delay.is_zero() {
                engine::sleep(delay).await;
            }
            client.run().await;
        });
    }
    if place == 0 {
        thread.left.set(0);
    }
    if thread.pace.is_some() {
        let alarm = Alarm::new()?;
        let thread = Rc::clone(&thread);
        engine::spawn(async move {
            if let Some(pace) = &thread.pace {
                // If the alarm cannot be set, arrivals are taken only when a connection finishes a
                // request.
                let _ = pace.dispatch(&alarm).await;
            }
        });
    }
    if !plan.warmup.is_zero() {
        either(engine::sleep(plan.warmup), thread.stopped(shared, number)).await;
    }
    thread.begin_measuring();
    let watch = CpuClock::begin();
    let begin = thread.measured_from.get();
    either(thread.done(), thread.ticks(shared, number, begin)).await;
    thread.over.set(true);
    let busy = watch.end();
    let end = Instant::now();
    let tally = thread.tally.take();
    let ended = thread.counted.get();
    Ok(ThreadResult {
        elapsed: end - begin,
        unfinished: thread.started.get().saturating_sub(ended),
        not_started: thread.pace.as_ref().map_or(0, |pace| match plan.length {
            Length::Time(_) => pace.left_over(end),
            Length::Requests(_) | Length::Each(_) => 0,
        }),
        busy,
        intervals: thread.intervals.take().finish(),
        kept: thread.kept.take(),
        parallel: thread.parallel.get(),
        connections: thread.connections.get(),
        agreed: thread.agreed.take().kinds,
        refusal: thread.reason.take(),
        damaged_segments: 0,
        streams_allowed: thread.streams_allowed.get(),
        tally,
    })
}

/// The state that all connections of a thread share.
pub(crate) struct Thread {
    plan: Arc<Plan>,
    weights: PlanWeights,
    /// The requests of each server, copied for this thread, so that threads do not contend for the
    /// reference counters of [`Bytes`].
    requests: Vec<Vec<Request>>,
    /// The bodies of the plan, copied for this thread as well.
    bodies: Vec<Bytes>,
    /// The TLS settings of each server, if it uses TLS.
    tls: Vec<Option<Tls>>,
    agreed: RefCell<HandshakeResults>,
    /// The error of the first failed handshake.
    reason: RefCell<Option<String>>,
    /// A buffer for encrypted records.
    scratch: RefCell<BytesMut>,
    /// A buffer for copies of requests with drawn numbers.
    copies: RefCell<BytesMut>,
    streams_allowed: Cell<Option<u32>>,
    /// Connections with queued data, to be sent at the end of the turn.
    sending: RefCell<Vec<Rc<Connection>>>,
    connections: Cell<Connections>,
    tally: RefCell<Tally>,
    intervals: RefCell<Intervals>,
    kept: RefCell<RequestSamples>,
    /// Length of the first body.
    length: Cell<Option<u64>>,
    pace: Option<OpenLoop>,
    /// Requests that started earlier are not counted.
    measured_from: Cell<Instant>,
    measuring: Cell<bool>,
    /// Number of requests that may still be started.
    budget: Cell<u64>,
    /// Number of requests that must still succeed or fail.
    left: Cell<u64>,
    /// Number of requests started and finished since the warm-up.
    started: Cell<u64>,
    counted: Cell<u64>,
    /// Maximum number of concurrent requests.
    parallel: Cell<u64>,
    over: Cell<bool>,
    main: RefCell<Option<Waker>>,
}

/// The weights of the servers, and of each server's requests.
pub(crate) struct PlanWeights {
    pub(crate) servers: Weights,
    pub(crate) requests: Vec<Weights>,
}

impl PlanWeights {
    fn new(plan: &Plan) -> PlanWeights {
        let requests: Vec<Weights> = plan
            .servers
            .iter()
            .map(|server| Weights::new(server.requests.iter().map(|r| u64::from(r.weight))))
            .collect();
        PlanWeights {
            servers: Weights::new(requests.iter().map(Weights::total)),
            requests,
        }
    }
}

/// The recorded data of single requests.
#[derive(Default)]
struct RequestSamples {
    samples: Vec<Sample>,
    first: Option<First>,
    alive: u64,
}

/// The recorded results of TLS handshakes.
#[derive(Default)]
struct HandshakeResults {
    /// The mark of the last handshake with each server.
    last: Vec<Option<Mark>>,
    kinds: Vec<NegotiatedTls>,
}

impl HandshakeResults {
    /// Records a handshake. Most handshakes have the same result as the previous one.
    fn note(&mut self, server: usize, session: &Session) {
        if self.last.len() <= server {
            self.last.resize(server + 1, None);
        }
        // A resumed session of TLS 1.2 has no key exchange and would give incomplete information.
        if session.is_resumed() && !self.kinds.is_empty() {
            return;
        }
        let mark = Some(session.mark());
        if self.last.get(server) == Some(&mark) {
            return;
        }
        let agreed = session.agreed();
        if self.kinds.len() < AGREED_MAX && !self.kinds.contains(&agreed) {
            self.kinds.push(agreed);
        }
        if let Some(last) = self.last.get_mut(server) {
            *last = mark;
        }
    }
}

/// Total times by seconds of the run.
#[derive(Default)]
struct Intervals {
    begin: Option<Instant>,
    past: Vec<Histogram<u64>>,
    current: Option<Histogram<u64>>,
}

impl Intervals {
    fn record(&mut self, time: Duration) {
        if let Some(current) = &mut self.current {
            record(current, time);
        }
    }

    /// Starts a new interval if the current one has ended.
    fn turn(&mut self, now: Instant) {
        let (Some(begin), Some(current)) = (self.begin, &mut self.current) else {
            return;
        };
        while now.saturating_duration_since(begin) >= LOG_INTERVAL * (self.past.len() as u32 + 1) {
            self.past.push(current.clone());
            current.reset();
        }
    }

    fn finish(mut self) -> Vec<Histogram<u64>> {
        self.past
            .extend(self.current.filter(|current| !current.is_empty()));
        self.past
    }
}

impl Thread {
    fn new(plan: &Arc<Plan>, number: usize, threads: usize) -> Thread {
        let now = Instant::now();
        let pace = plan.arrivals.map(|arrivals| {
            let rate = arrivals.rate / threads as f64;
            let offset = number as f64 / arrivals.rate;
            let seed = plan.seed.wrapping_add(number as u64);
            OpenLoop::new(now, rate, arrivals.spacing, offset, seed)
        });
        let requests = match plan.length {
            Length::Time(_) => u64::MAX,
            Length::Requests(requests) => share(requests, number, threads),
            Length::Each(requests) => {
                share(plan.connections as u64, number, threads).saturating_mul(requests)
            }
        };
        let own = |request: &Request| Request {
            bytes: Bytes::copy_from_slice(&request.bytes),
            ..request.clone()
        };
        Thread {
            plan: Arc::clone(plan),
            weights: PlanWeights::new(plan),
            requests: plan
                .servers
                .iter()
                .map(|server| server.requests.iter().map(own).collect())
                .collect(),
            bodies: plan
                .bodies
                .iter()
                .map(|body| Bytes::copy_from_slice(body))
                .collect(),
            tls: plan
                .servers
                .iter()
                .map(|server| server.tls.as_ref().map(Tls::with_own_sessions))
                .collect(),
            agreed: RefCell::default(),
            reason: RefCell::default(),
            scratch: RefCell::default(),
            copies: RefCell::default(),
            streams_allowed: Cell::new(None),
            sending: RefCell::default(),
            connections: Cell::default(),
            tally: RefCell::default(),
            intervals: RefCell::default(),
            kept: RefCell::default(),
            length: Cell::new(None),
            pace,
            measured_from: Cell::new(now),
            measuring: Cell::new(false),
            budget: Cell::new(if plan.warmup.is_zero() {
                requests
            } else {
                u64::MAX
            }),
            left: Cell::new(requests),
            started: Cell::new(0),
            counted: Cell::new(0),
            parallel: Cell::new(0),
            over: Cell::new(false),
            main: RefCell::default(),
        }
    }

    pub(crate) fn weights(&self) -> &PlanWeights {
        &self.weights
    }

    pub(crate) fn plan(&self) -> Arc<Plan> {
        Arc::clone(&self.plan)
    }

    /// Waits until a connection may start a request, and returns the start time; `None` if the run
    /// has no more requests.
    pub(crate) async fn start(&self, seat: &ArrivalWaiter) -> Option<Instant> {
        if self.has_ended() {
            return None;
        }
        match &self.pace {
            None => self.spend(Instant::now()),
            Some(pace) => self.spend(pace.take(seat).await),
        }
    }

    /// The start time of a connection's next request, if it is not later than `now`.
    pub(crate) fn try_start(&self, now: Instant) -> Option<Instant> {
        if self.has_ended() {
            return None;
        }
        match &self.pace {
            None => self.spend(now),
            Some(pace) => self.spend(pace.try_take(now)?),
        }
    }

    fn spend(&self, start: Instant) -> Option<Instant> {
        if start >= self.measured_from.get() {
            let left = self.budget.get().checked_sub(1)?;
            self.budget.set(left);
            self.started.set(self.started.get() + 1);
            let parallel = self.started.get().saturating_sub(self.counted.get());
            self.parallel.set(self.parallel.get().max(parallel));
        }
        Some(start)
    }

    /// Whether no more requests may be started.
    pub(crate) fn has_ended(&self) -> bool {
        self.over.get() || self.budget.get() == 0
    }

    /// The requests for a server.
    pub(crate) fn requests(&self, server: usize) -> &[Request] {
        self.requests
            .get(server)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    /// The body of the next HTTP/2 request.
    pub(crate) fn body(&self, random: &mut Random) -> Bytes {
        let place = match self.bodies.len() {
            0 | 1 => 0,
            count => random.below(count as u64) as usize,
        };
        self.bodies.get(place).cloned().unwrap_or_default()
    }

    pub(crate) fn connected(&self, begin: Instant, time: Duration) {
        let mut connections = self.connections.get();
        connections.open_at_end += 1;
        connections.open_max = connections.open_max.max(connections.open_at_end);
        self.connections.set(connections);
        if self.counts(begin) {
            let mut tally = self.tally.borrow_mut();
            tally.connected += 1;
            record(&mut tally.connect, time);
        }
    }

    /// The TLS settings of a server; `None` without TLS.
    pub(crate) fn tls(&self, server: usize) -> Option<&Tls> {
        self.tls.get(server)?.as_ref()
    }

    /// Records a handshake that took `time`. `begin` is when connecting began.
    pub(crate) fn note_handshake(
        &self,
        server: usize,
        session: &Session,
        begin: Instant,
        time: Duration,
    ) {
        self.agreed.borrow_mut().note(server, session);
        if self.counts(begin) {
            let mut tally = self.tally.borrow_mut();
            record(&mut tally.handshake, time);
            if session.is_resumed() {
                tally.resumed_handshakes += 1;
            } else {
                tally.full_handshakes += 1;
            }
        }
    }

    /// Records a failed handshake.
    pub(crate) fn refused(&self, error: &HandshakeError) {
        let mut reason = self.reason.borrow_mut();
        if reason.is_none() {
            *reason = Some(error.to_string());
        }
    }

    /// Records a server's limit of concurrent streams.
    pub(crate) fn allowed(&self, streams: u32) {
        if (streams as usize) < self.plan.protocol.streams() {
            let least = self.streams_allowed.get().unwrap_or(streams).min(streams);
            self.streams_allowed.set(Some(least));
        }
    }

    /// Records the end of a connection.
    pub(crate) fn closed(&self) {
        let mut connections = self.connections.get();
        connections.open_at_end = connections.open_at_end.saturating_sub(1);
        self.connections.set(connections);
    }

    /// Records the first counted response of a connection.
    pub(crate) fn used(&self) {
        let mut connections = self.connections.get();
        connections.used += 1;
        self.connections.set(connections);
    }

    /// Queues `request` on `connection`; it is sent at the end of the turn.
    pub(crate) fn send(&self, connection: &Rc<Connection>, request: &Request, random: &mut Random) {
        if request.drawn.is_empty() {
            self.send_bytes(connection, &request.bytes)
        } else {
            self.send_bytes(connection, &self.varied(request, random))
        }
    }

    /// Queues a copy of `bytes` on `connection`; it is sent at the end of the turn.
    pub(crate) fn send_copy(&self, connection: &Rc<Connection>, bytes: &[u8]) {
        let copy = self.room_for(bytes).split().freeze();
        self.send_bytes(connection, &copy);
    }

    /// A buffer that contains only a copy of `bytes`.
    fn room_for(&self, bytes: &[u8]) -> RefMut<'_, BytesMut> {
        let mut copies = self.copies.borrow_mut();
        if copies.capacity() < bytes.len() {
            copies.reserve(COPIES_SIZE.max(bytes.len()));
        }
        copies.extend_from_slice(bytes);
        copies
    }

    /// A copy of a request with newly drawn numbers.
    pub(crate) fn varied(&self, request: &Request, random: &mut Random) -> Bytes {
        let mut copies = self.room_for(&request.bytes);
        for number in &request.drawn {
            number.draw(&mut copies, random);
        }
        copies.split().freeze()
    }

    fn send_bytes(&self, connection: &Rc<Connection>, bytes: &Bytes) {
        connection.push(&mut self.scratch.borrow_mut(), bytes);
        self.tally.borrow_mut().sent += bytes.len() as u64;
        let mut sending = self.sending.borrow_mut();
        // Pipelined requests are queued in sequence, and their connection needs only one entry.
        let is_last = |last: &Rc<Connection>| Rc::ptr_eq(last, connection);
        if !sending.last().is_some_and(is_last) {
            sending.push(Rc::clone(connection));
        }
    }

    /// Sends everything that was queued in this turn.
    fn send_all(&self) {
        for connection in self.sending.borrow_mut().drain(..) {
            // Without another reference, the connection has ended in the meantime.
            if Rc::strong_count(&connection) > 1 {
                connection.start_send();
            }
        }
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.tally.borrow_mut().bytes += bytes as u64;
    }

    pub(crate) fn first_byte(&self, start: Instant, now: Instant) {
        if self.counts(start) {
            let mut tally = self.tally.borrow_mut();
            record(&mut tally.first_byte, now.saturating_duration_since(start));
        }
    }

    pub(crate) fn complete(
        &self,
        start: Instant,
        now: Instant,
        response: &CompleteResponse,
    ) -> bool {
        if !self.counts(start) {
            return false;
        }
        let failure = response.failure.or_else(|| self.differs(response.body));
        let time = now.saturating_duration_since(start);
        let mut tally = self.tally.borrow_mut();
        tally.completed += 1;
        tally.body_bytes += response.body;
        tally.count_status(response.status);
        if let Some(status) = response.grpc_status {
            tally.count_grpc_status(status);
        }
        record(&mut tally.total, time);
        match failure {
            Some(failure) => tally.fail(failure),
            None => {
                tally.succeeded += 1;
                let limit = self.plan.expect.within;
                tally.good += u64::from(limit.is_none_or(|limit| time <= limit));
            }
        }
        drop(tally);
        self.intervals.borrow_mut().record(time);
        self.ended_one();
        true
    }

    /// An error if all bodies must have the same length and this one does not.
    fn differs(&self, length: u64) -> Option<RequestError> {
        let first = self.length.get().unwrap_or(length);
        self.length.set(Some(first));
        (self.plan.expect.same_length && length != first).then_some(RequestError::Differs)
    }

    /// Records the sample of a request.
    pub(crate) fn keep(&self, sample: Sample, server: &[u8], response: &CompleteResponse) {
        let mut kept = self.kept.borrow_mut();
        kept.samples.push(sample);
        kept.alive += u64::from(!response.closes);
        kept.first.get_or_insert_with(|| First {
            server: server.to_vec(),
            length: response.body,
        });
    }

    /// Counts a failed request that started at `start`.
    pub(crate) fn fail(&self, start: Instant, failure: RequestError) {
        if self.counts(start) {
            self.tally.borrow_mut().fail(failure);
            self.ended_one();
        }
    }

    /// Counts a failure that does not belong to a request.
    pub(crate) fn note(&self, failure: RequestError) {
        self.tally.borrow_mut().fail(failure);
    }

    /// Takes back a request that the server has not processed; it will be sent again.
    pub(crate) fn give_back(&self, start: Instant) {
        if self.counts(start) {
            self.budget.set(self.budget.get().saturating_add(1));
            self.started.set(self.started.get().saturating_sub(1));
        }
    }

    fn counts(&self, start: Instant) -> bool {
        start >= self.measured_from.get()
    }

    fn ended_one(&self) {
        if !self.measuring.get() {
            return;
        }
        self.counted.set(self.counted.get() + 1);
        self.left.set(self.left.get().saturating_sub(1));
        if self.left.get() == 0
            && let Some(main) = self.main.take()
        {
            main.wake();
        }
    }

    /// Ends the warm-up: resets the counters.
    fn begin_measuring(&self) {
        let now = Instant::now();
        if !self.plan.warmup.is_zero() {
            self.measured_from.set(now);
            self.budget.set(self.left.get());
            *self.tally.borrow_mut() = Tally::default();
            self.started.set(0);
            self.counted.set(0);
        }
        let mut intervals = self.intervals.borrow_mut();
        intervals.begin = Some(now);
        intervals.current = (self.plan.intervals).then(|| self.tally.borrow().total.clone());
        self.measuring.set(true);
    }

    /// Waits until all requests have succeeded or failed.
    async fn done(&self) {
        poll_fn(|context| {
            if self.left.get() == 0 {
                return Poll::Ready(());
            }
            *self.main.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Publishes the progress, until the end of the run or until it is stopped.
    async fn ticks(&self, shared: &RunProgress, number: usize, begin: Instant) {
        let end = match self.plan.length {
            Length::Time(length) => begin.checked_add(length),
            Length::Requests(_) | Length::Each(_) => None,
        };
        loop {
            let now = Instant::now();
            self.intervals.borrow_mut().turn(now);
            self.tell(shared, number);
            if shared.stop.load(Ordering::Relaxed) || end.is_some_and(|end| now >= end) {
                return;
            }
            let next = now + TICK;
            engine::sleep_until(end.map_or(next, |end| end.min(next))).await;
        }
    }

    /// Publishes the progress, until the run is stopped.
    async fn stopped(&self, shared: &RunProgress, number: usize) {
        while !shared.stop.load(Ordering::Relaxed) {
            self.tell(shared, number);
            engine::sleep(TICK).await;
        }
    }

    fn tell(&self, shared: &RunProgress, number: usize) {
        if !self.measuring.get() {
            return;
        }
        let tally = self.tally.borrow();
        for (counters, value) in [
            (&shared.broken, tally.broken()),
            (&shared.ended, tally.ended()),
            (&shared.failed, tally.failed()),
        ] {
            if let Some(counter) = counters.get(number) {
                counter.store(value, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::framed;
    use crate::machine;
    use crate::plan::{Arrivals, Protocol, RequestForm, Spacing, servers};
    use crate::target::Target;
    use crate::tls::{self, TlsFactory};
    use std::io::{BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// A server that answers everything it receives with one fixed response.
    fn server() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut input = [0; 4096];
                    while let Ok(1..) = stream.read(&mut input) {
                        let _ =
                            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc");
                    }
                });
            }
        });
        format!("http://{address}/")
    }

    /// An HTTP/2 server that answers each HEADERS frame; a gRPC server if `is_grpc`.
    fn server_http2(is_grpc: bool) -> String {
        use proto::h2::frame::{self, FrameHead, Kind};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serve = move |mut stream: TcpStream| -> Option<()> {
            let mut out = Vec::new();
            frame::put_settings(&mut out, &[]);
            stream.read_exact(&mut [0; frame::PREFACE.len()]).ok()?;
            let mut input = BufReader::new(stream.try_clone().ok()?);
            loop {
                let mut head = [0; frame::HEAD_LENGTH];
                if input.buffer().is_empty() {
                    stream.write_all(&out).ok()?;
                    out.clear();
                }
                input.read_exact(&mut head).ok()?;
                let head = FrameHead::read(&head);
                input.read_exact(&mut vec![0; head.length as usize]).ok()?;
                if head.kind == Kind::Headers && is_grpc {
                    let block = [
                        &b"\x88\x0f\x10\x10application/grpc"[..],
                        &b"\0\x0bgrpc-status\x010"[..],
                    ];
                    frame::put_header_block(&mut out, head.stream, block[0], false, 100);
                    frame::put_head(&mut out, Kind::Data, 0, head.stream, 8);
                    out.extend_from_slice(b"\0\0\0\0\x03abc");
                    frame::put_header_block(&mut out, head.stream, block[1], true, 100);
                } else if head.kind == Kind::Headers {
                    // `:status: 200` from the static table.
                    frame::put_header_block(&mut out, head.stream, &[0x88], false, 100);
                    frame::put_head(&mut out, Kind::Data, 1, head.stream, 3);
                    out.extend_from_slice(b"abc");
                }
            }
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || serve(stream));
            }
        });
        format!("http://{address}/")
    }

    fn plan(url: &str, requests: u64, arrivals: Option<Arrivals>, protocol: Protocol) -> Arc<Plan> {
        let form = RequestForm {
            method: "GET".to_owned(),
            fields: Vec::new(),
            body: None,
            close: false,
            sets: Vec::new(),
            varied: false,
            protocol,
        };
        Arc::new(Plan {
            servers: servers(
                &[(Target::parse(url, &[]).unwrap(), 1)],
                &form,
                &TlsFactory::new(tls::Settings::default()),
            )
            .unwrap(),
            length: Length::Requests(requests),
            protocol,
            bodies: match protocol {
                Protocol::Grpc { .. } => [&b"a"[..], b"bc"].map(|m| framed(m).unwrap()).into(),
                _ => Vec::new(),
            },
            arrivals,
            timeout: Duration::from_secs(30),
            ..machine::tests::plan(4)
        })
    }

    /// The number of allocations by a thread of the load tester while it sends this many requests.
    fn allocations(
        url: &str,
        requests: u64,
        arrivals: Option<Arrivals>,
        protocol: Protocol,
    ) -> u64 {
        let plan = plan(url, requests, arrivals, protocol);
        let shared = RunProgress::new(1);
        let counted = allocation_counter::measure(|| {
            let part = run_thread(&plan, &shared, 0, 1).unwrap();
            assert_eq!(part.tally.succeeded, requests);
        });
        counted.count_total
    }

    #[test]
    fn a_request_allocates_nothing() {
        let open = Arrivals {
            rate: 1e6,
            spacing: Spacing::Poisson,
        };
        for (url, protocol) in [
            (server(), Protocol::Http1),
            (server_http2(false), Protocol::Http2 { streams: 10 }),
            (server_http2(true), Protocol::Grpc { streams: 10 }),
        ] {
            for arrivals in [None, Some(open)] {
                let few = allocations(&url, 1_000, arrivals, protocol);
                let many = allocations(&url, 11_000, arrivals, protocol);
                println!("{protocol:?} {arrivals:?}: {few} {many}");
                // Queues may still grow during the run; the number of requests must not matter.
                assert!(
                    many < few + 100,
                    "{protocol:?} {arrivals:?}: {few}, then {many}"
                );
            }
        }
    }
}
