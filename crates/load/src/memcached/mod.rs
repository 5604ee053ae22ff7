//! Load for memcached servers: gets and sets by one of memcached's three protocols.
//!
//! Each connection asks for one thing, waits for the whole answer, and asks for the next (the
//! closed loop). What a key's value is like follows from its number, so every answer is checked:
//! its key, its length and its end. `exchange.rs` has the bytes, `link.rs` what they go over,
//! `keys.rs` says which key is next, `report.rs` prints, and [`compare`] puts two servers side by
//! side.
//!
//! Not here: authentication, an open loop.

pub mod compare;
mod exchange;
mod keys;
mod link;
mod report;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::TcpStream;
use std::ops::RangeInclusive;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::net::Address;
use engine::{EngineKind, Runtime, Settings};
use hdrhistogram::Histogram;

use crate::machine::{Busy, CpuClock};
use crate::schedule::Random;
use crate::tally::{histogram, record};
use crate::tls::Tls;
use exchange::{AnswerProgress, AwaitedAnswer, Requests};
use keys::KeyChoice;
use link::{DATAGRAM_MAX, ServerSocket};

/// How often a thread is asked whether it is to stop.
const TICK: Duration = Duration::from_millis(50);

/// Shortest key: what numbers are told apart by.
pub const KEY_LENGTH_MIN: usize = 12;

/// Which of memcached's protocols is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemcachedProtocol {
    /// `get` and `set`.
    Text,
    /// `mg` and `ms`.
    Meta,
    /// Packets: Get, GetKQ with Noop behind them, Set.
    Binary,
}

/// What requests go over.
#[derive(Clone, Debug)]
pub enum Transport {
    /// A connection, in the clear.
    Stream,
    /// A connection through TLS.
    Tls(Tls),
    /// UDP: a request is one datagram.
    Datagrams,
}

/// How often each key is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Popularity {
    /// Each key is asked for as often as any other.
    Uniform,
    /// The nth as often as n to the power of minus this.
    Zipf(f64),
}

/// How long load is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemcachedLength {
    /// The run ends after this time.
    Time(Duration),
    /// The run ends after so many requests.
    Requests(u64),
}

/// The load that is sent to a memcached server.
#[derive(Clone, Debug)]
pub struct MemcachedPlan {
    /// The address of the server.
    pub address: Address,
    /// What it is spoken with over.
    pub transport: Transport,
    /// The protocol that is spoken with it.
    pub protocol: MemcachedProtocol,
    /// Connections that are open at the same time.
    pub connections: usize,
    /// Threads that send load.
    pub threads: usize,
    /// The kernel interface of the clients.
    pub engine: EngineKind,
    /// How long load is sent.
    pub length: MemcachedLength,
    /// Of so many gets and sets each is a get, and
    pub gets: u32,
    /// so many are sets.
    pub sets: u32,
    /// How many keys there are.
    pub keys: u64,
    /// Length of a key in bytes, at least [`KEY_LENGTH_MIN`].
    pub key_length: usize,
    /// Keys that one get asks for.
    pub keys_a_get: u32,
    /// Lengths of values: a key's is always the same.
    pub value: RangeInclusive<usize>,
    /// How often each key is asked for.
    pub popularity: Popularity,
    /// What sets say of when an item expires; 0 is never.
    pub expires: u32,
    /// All keys are set before anything is measured.
    pub fills: bool,
    /// How long an answer may take.
    pub timeout: Duration,
    /// Where random numbers start.
    pub seed: u64,
}

/// Times of requests, in nanoseconds.
pub type RequestTimes = Histogram<u64>;

/// The counts and times of a run against a memcached server.
#[derive(Clone, Debug)]
pub struct MemcachedResult {
    /// How long it was measured.
    pub elapsed: Duration,
    /// Gets that were answered as they should.
    pub gets: u64,
    /// Sets that were stored.
    pub sets: u64,
    /// Keys that those gets have asked for.
    pub keys_asked: u64,
    /// Those of them that had a value.
    pub hits: u64,
    /// Requests whose answer was no answer, or an error.
    pub wrong: u64,
    /// Requests whose connection broke or stalled, or could not be made.
    pub broken: u64,
    /// What the first wrong answer began with.
    pub first_wrong: Option<String>,
    /// Bytes of responses that were received.
    pub received: u64,
    /// Bytes that were sent.
    pub sent: u64,
    /// From sending a get to the end of its response, in nanoseconds.
    pub get_times: RequestTimes,
    /// From sending a set to the end of its response, in nanoseconds.
    pub set_times: RequestTimes,
    /// How busy each thread was.
    pub busy: Vec<Busy>,
    /// It was stopped before its end.
    pub interrupted: bool,
}

impl Default for MemcachedResult {
    fn default() -> MemcachedResult {
        MemcachedResult {
            elapsed: Duration::ZERO,
            gets: 0,
            sets: 0,
            keys_asked: 0,
            hits: 0,
            wrong: 0,
            broken: 0,
            first_wrong: None,
            received: 0,
            sent: 0,
            get_times: histogram(),
            set_times: histogram(),
            busy: Vec::new(),
            interrupted: false,
        }
    }
}

impl MemcachedResult {
    /// Gets and sets that went well.
    #[must_use]
    pub fn succeeded(&self) -> u64 {
        self.gets + self.sets
    }

    fn add(&mut self, other: MemcachedResult) {
        self.elapsed = self.elapsed.max(other.elapsed);
        self.gets += other.gets;
        self.sets += other.sets;
        self.keys_asked += other.keys_asked;
        self.hits += other.hits;
        self.wrong += other.wrong;
        self.broken += other.broken;
        self.first_wrong = self.first_wrong.take().or(other.first_wrong);
        self.received += other.received;
        self.sent += other.sent;
        for (all, times) in [
            (&mut self.get_times, &other.get_times),
            (&mut self.set_times, &other.set_times),
        ] {
            all.add(times).expect("all histograms have the same bounds");
        }
        self.busy.extend(other.busy);
    }
}

/// What threads share while they run.
struct RunShare {
    stop: AtomicBool,
    begin: Barrier,
    /// Requests that may still be started.
    budget: AtomicU64,
    /// Keys that are set before the measuring begins.
    next_key: AtomicU64,
}

/// See `plan`. `watch` is asked twenty times a second whether to go on.
///
/// # Errors
/// Where the server cannot be reached, or threads or their engines cannot be had.
pub fn run(plan: &MemcachedPlan, mut watch: impl FnMut() -> bool) -> io::Result<MemcachedResult> {
    match &plan.address {
        // Nothing tells whether anybody is there.
        _ if matches!(plan.transport, Transport::Datagrams) => {}
        Address::Inet(address) => TcpStream::connect_timeout(address, plan.timeout).map(drop)?,
        Address::Unix(path) => UnixStream::connect(path).map(drop)?,
    }
    let threads = plan.threads.clamp(1, plan.connections.max(1));
    let shared = Arc::new(RunShare {
        stop: AtomicBool::new(false),
        begin: Barrier::new(threads),
        budget: AtomicU64::new(match plan.length {
            MemcachedLength::Time(_) => u64::MAX,
            MemcachedLength::Requests(requests) => requests,
        }),
        next_key: AtomicU64::new(0),
    });
    let mut running = Vec::new();
    for number in 0..threads {
        let (plan, shared) = (Arc::new(plan.clone()), Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name(format!("load {number}"))
            .spawn(move || run_thread(&plan, &shared, number, threads))?;
        running.push(thread);
    }
    let mut result = MemcachedResult::default();
    while !running.iter().all(std::thread::JoinHandle::is_finished) {
        std::thread::sleep(TICK);
        if !result.interrupted && !watch() {
            result.interrupted = true;
            shared.stop.store(true, Ordering::Relaxed);
        }
    }
    for thread in running {
        let part = thread
            .join()
            .map_err(|_| io::Error::other("a thread of the load tester has failed"))?;
        result.add(part?);
    }
    Ok(result)
}

fn run_thread(
    plan: &Arc<MemcachedPlan>,
    shared: &Arc<RunShare>,
    number: usize,
    threads: usize,
) -> io::Result<MemcachedResult> {
    let connections = (number..plan.connections).step_by(threads);
    let settings = Settings {
        connections: connections.len(),
        ..Settings::default()
    };
    // The barrier is for all: who fails must come to it, too.
    let runtime = Runtime::new(plan.engine, settings);
    shared.begin.wait();
    if runtime.is_err() {
        shared.begin.wait(); // the others wait there, once their keys are set
    }
    let mut runtime = runtime?;
    let thread = Rc::new(Thread {
        plan: Arc::clone(plan),
        shared: Arc::clone(shared),
        result: RefCell::default(),
        left: Cell::new(connections.len()),
        is_over: Cell::new(false),
    });
    let result = runtime.block_on(drive(Rc::clone(&thread), connections.collect()));
    drop(runtime);
    Ok(result)
}

/// What the connections of a thread share.
struct Thread {
    plan: Arc<MemcachedPlan>,
    shared: Arc<RunShare>,
    result: RefCell<MemcachedResult>,
    /// Connections that still ask.
    left: Cell<usize>,
    is_over: Cell<bool>,
}

impl Thread {
    fn is_to_stop(&self) -> bool {
        self.is_over.get() || self.shared.stop.load(Ordering::Relaxed)
    }

    /// Waits until all connections have ended, or the time is over.
    async fn wait(&self, until: Option<Instant>) {
        while self.left.get() > 0 && !self.is_to_stop() {
            let now = Instant::now();
            match until {
                Some(until) if until <= now => break,
                Some(until) => engine::sleep(TICK.min(until - now)).await,
                None => engine::sleep(TICK).await,
            }
        }
    }
}

async fn drive(thread: Rc<Thread>, connections: Vec<usize>) -> MemcachedResult {
    let plan = Arc::clone(&thread.plan);
    if plan.fills {
        for _ in &connections {
            let thread = Rc::clone(&thread);
            engine::spawn(async move {
                Client::new(&thread, 0).fill().await;
                thread.left.set(thread.left.get() - 1);
            });
        }
        thread.wait(None).await;
        thread.left.set(connections.len());
    }
    // All begin to measure when the last key is there.
    thread.shared.begin.wait();
    let failed = std::mem::take(&mut *thread.result.borrow_mut());
    let begin = Instant::now();
    let watch = CpuClock::begin();
    for number in connections {
        let thread = Rc::clone(&thread);
        engine::spawn(async move {
            Client::new(&thread, number as u64 + 1).ask().await;
            thread.left.set(thread.left.get() - 1);
        });
    }
    let until = match plan.length {
        MemcachedLength::Time(time) => Some(begin + time),
        MemcachedLength::Requests(_) => None,
    };
    thread.wait(until).await;
    thread.is_over.set(true);
    let busy = watch.end();
    let mut result = thread.result.take();
    result.elapsed = begin.elapsed();
    result.busy = vec![busy];
    // What was wrong with filling is told, too.
    result.wrong += failed.wrong;
    result.broken += failed.broken;
    result.first_wrong = failed.first_wrong.or(result.first_wrong);
    result
}

/// One connection of the run, and what it has under way.
struct Client<'a> {
    thread: &'a Thread,
    link: Option<ServerSocket>,
    requests: Requests,
    keys: KeyChoice,
    random: Random,
    answer: AwaitedAnswer,
}

/// Why a request has no answer.
enum Failure {
    Wrong(String),
    Broken,
}

impl Client<'_> {
    fn new(thread: &Thread, number: u64) -> Client<'_> {
        let plan = &thread.plan;
        Client {
            thread,
            link: None,
            requests: Requests::new(plan),
            keys: KeyChoice::new(plan.keys, plan.popularity),
            random: Random::new(plan.seed.wrapping_mul(0x9e37_79b9).wrapping_add(number)),
            answer: AwaitedAnswer::default(),
        }
    }

    /// Sets all keys, with the other connections.
    async fn fill(mut self) {
        while !self.thread.is_to_stop() {
            let key = self.thread.shared.next_key.fetch_add(1, Ordering::Relaxed);
            if key >= self.thread.plan.keys {
                return;
            }
            let request = self.requests.set(key);
            if self.exchange(request, &[key], false).await.is_none() {
                return;
            }
        }
    }

    /// Gets and sets, until the time is over.
    async fn ask(mut self) {
        let plan = Arc::clone(&self.thread.plan);
        let all = u64::from(plan.gets) + u64::from(plan.sets);
        let mut keys = Vec::new();
        while !self.thread.is_to_stop() {
            let budget = &self.thread.shared.budget;
            let taken = budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
            if taken.is_err() {
                return;
            }
            let is_get = self.random.below(all) < u64::from(plan.gets);
            keys.clear();
            for _ in 0..if is_get { plan.keys_a_get } else { 1 } {
                keys.push(self.keys.next(&mut self.random));
            }
            let request = if is_get {
                self.requests.get(&keys)
            } else {
                self.requests.set(keys.first().copied().unwrap_or(0))
            };
            if self.exchange(request, &keys, is_get).await.is_none() {
                // Who is refused at once would fail a million times a second.
                engine::sleep(TICK).await;
            }
        }
    }

    /// Sends a request and waits for its answer, which is counted. Nothing where there is none.
    async fn exchange(&mut self, request: Bytes, keys: &[u64], is_get: bool) -> Option<()> {
        let begin = Instant::now();
        let length = request.len() as u64;
        let answered = self.answered(request, keys, is_get).await;
        if self.thread.is_over.get() {
            return None;
        }
        let mut result = self.thread.result.borrow_mut();
        result.sent += length;
        match answered {
            Ok((hits, bytes)) => {
                result.received += bytes;
                let time = begin.elapsed();
                if is_get {
                    result.gets += 1;
                    result.keys_asked += keys.len() as u64;
                    result.hits += hits;
                    record(&mut result.get_times, time);
                } else {
                    result.sets += 1;
                    record(&mut result.set_times, time);
                }
                Some(())
            }
            Err(failure) => {
                self.link = None;
                match failure {
                    Failure::Broken => result.broken += 1,
                    Failure::Wrong(text) => {
                        result.wrong += 1;
                        result.first_wrong.get_or_insert(text);
                    }
                }
                None
            }
        }
    }

    /// How many keys had a value, and how many bytes have come.
    async fn answered(
        &mut self,
        request: Bytes,
        keys: &[u64],
        is_get: bool,
    ) -> Result<(u64, u64), Failure> {
        let plan = &self.thread.plan;
        let deadline = Instant::now() + plan.timeout;
        if request.len() > DATAGRAM_MAX && matches!(plan.transport, Transport::Datagrams) {
            let text = "the request does not fit in a datagram";
            return Err(Failure::Wrong(text.to_owned()));
        }
        if self.link.is_none() {
            let link = ServerSocket::open(plan, deadline).await;
            self.link = Some(link.map_err(|_| Failure::Broken)?);
        }
        let Some(link) = &mut self.link else {
            return Err(Failure::Broken);
        };
        link.send(request);
        self.answer.begin(plan.protocol, is_get, keys.len());
        let (answer, requests) = (&mut self.answer, &self.requests);
        let (mut bytes, mut progress) = (0, AnswerProgress::More);
        loop {
            let received = link.receive(deadline, |part| {
                progress = match std::mem::replace(&mut progress, AnswerProgress::More) {
                    AnswerProgress::More => answer.take(part, keys, requests),
                    // Nothing may come behind an answer.
                    AnswerProgress::Done(_) if !part.is_empty() => {
                        AnswerProgress::Wrong(exchange::shown(part))
                    }
                    ended => ended,
                };
            });
            bytes += received.await.map_err(|_| Failure::Broken)?;
            match std::mem::replace(&mut progress, AnswerProgress::More) {
                AnswerProgress::More => {}
                AnswerProgress::Done(hits) => return Ok((hits, bytes)),
                AnswerProgress::Wrong(text) => return Err(Failure::Wrong(text)),
            }
        }
    }
}
