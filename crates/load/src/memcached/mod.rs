//! Load for memcached servers: gets and sets in one of memcached's three protocols.
//!
//! Each connection sends a request, waits for the complete response, and sends the next request
//! (closed loop). The length of a value is derived from its key, so that every response can be
//! verified: its key, its length and its end. `exchange.rs` encodes requests and parses responses,
//! `link.rs` is the transport, `keys.rs` chooses keys, and `report.rs` prints.
//!
//! Not here: authentication, an open loop.

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

use crate::machine::{CpuClock, ThreadTimes};
use crate::schedule::Random;
use crate::tally::{histogram, record};
use crate::tls::Tls;
use exchange::{AnswerProgress, AwaitedAnswer, Requests};
use keys::KeyChoice;
use link::{DATAGRAM_MAX, ServerSocket};

/// The interval at which threads check whether they should stop.
const TICK: Duration = Duration::from_millis(50);

/// Minimum length of a key, in bytes, so that it can contain its number.
pub const KEY_LENGTH_MIN: usize = 12;

/// The protocol between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemcachedProtocol {
    /// `get` and `set`.
    Text,
    /// `mg` and `ms`.
    Meta,
    /// Binary packets: Get for one key, GetKQ followed by Noop for several, and Set.
    Binary,
}

/// The transport of requests and responses.
#[derive(Clone, Debug)]
pub enum Transport {
    /// A connection without TLS.
    Stream,
    /// A connection with TLS.
    Tls(Tls),
    /// UDP: each request is one datagram.
    Datagrams,
}

/// The distribution of requests over keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Popularity {
    /// All keys are equally likely.
    Uniform,
    /// Zipf's distribution: the probability of the nth key is proportional to n to the power of
    /// minus this exponent.
    Zipf(f64),
}

/// The length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemcachedLength {
    /// The run ends after this time.
    Time(Duration),
    /// The run ends after this number of requests.
    Requests(u64),
}

/// The parameters of a run against a memcached server.
#[derive(Clone, Debug)]
pub struct MemcachedPlan {
    /// The address of the server.
    pub address: Address,
    /// The transport.
    pub transport: Transport,
    /// The protocol.
    pub protocol: MemcachedProtocol,
    /// Number of concurrent connections.
    pub connections: usize,
    /// Number of threads that send load.
    pub threads: usize,
    /// The engine of the clients.
    pub engine: EngineKind,
    /// The length of the run.
    pub length: MemcachedLength,
    /// The weight of gets among requests.
    pub gets: u32,
    /// The weight of sets among requests.
    pub sets: u32,
    /// Number of keys.
    pub keys: u64,
    /// Length of a key in bytes, at least [`KEY_LENGTH_MIN`].
    pub key_length: usize,
    /// Number of keys per get.
    pub keys_a_get: u32,
    /// Range of the lengths of values, in bytes. A key's value always has the same length.
    pub value: RangeInclusive<usize>,
    /// The distribution of requests over keys.
    pub popularity: Popularity,
    /// The expiration time in sets; 0 means never.
    pub expires: u32,
    /// Whether all keys are set before the measurement.
    pub fills: bool,
    /// Time limit for a response.
    pub timeout: Duration,
    /// The seed of the random numbers.
    pub seed: u64,
}

/// Times of requests, in nanoseconds.
pub type RequestTimes = Histogram<u64>;

/// The result of a run against a memcached server.
#[derive(Clone, Debug)]
pub struct MemcachedResult {
    /// Duration of the measurement.
    pub elapsed: Duration,
    /// Gets with a correct response.
    pub gets: u64,
    /// Sets that were stored.
    pub sets: u64,
    /// Number of keys in the successful gets.
    pub keys_asked: u64,
    /// Number of these keys that had a value.
    pub hits: u64,
    /// Requests with an invalid response or an error.
    pub wrong: u64,
    /// Requests whose connection failed, stalled or could not be made.
    pub broken: u64,
    /// The start of the first wrong response.
    pub first_wrong_answer: Option<String>,
    /// Bytes of responses received.
    pub received: u64,
    /// Bytes of requests sent.
    pub sent: u64,
    /// Times from sending a get to the end of its response, in nanoseconds.
    pub get_times: RequestTimes,
    /// Times from sending a set to the end of its response, in nanoseconds.
    pub set_times: RequestTimes,
    /// The processor use of each thread.
    pub busy: Vec<ThreadTimes>,
    /// Whether the run was interrupted.
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
            first_wrong_answer: None,
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
    /// Number of successful gets and sets.
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
        self.first_wrong_answer = self.first_wrong_answer.take().or(other.first_wrong_answer);
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

/// The state that the threads of a run share.
struct RunShare {
    stop: AtomicBool,
    begin: Barrier,
    /// Number of requests that may still be started.
    budget: AtomicU64,
    /// The next key to set before the measurement.
    next_key: AtomicU64,
}

/// Runs `plan`. `watch` is called twenty times a second; the run ends if it returns false.
///
/// # Errors
/// If the server cannot be reached, or threads or their engines cannot be created.
pub fn run(plan: &MemcachedPlan, mut watch: impl FnMut() -> bool) -> io::Result<MemcachedResult> {
    match &plan.address {
        // UDP offers no way to check whether a server is listening.
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
    // Every thread must reach the barrier, even if its runtime could not be created.
    let runtime = Runtime::new(plan.engine, settings);
    shared.begin.wait();
    if runtime.is_err() {
        shared.begin.wait(); // the other threads wait here again after setting their keys
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

/// The state that the connections of a thread share.
struct Thread {
    plan: Arc<MemcachedPlan>,
    shared: Arc<RunShare>,
    result: RefCell<MemcachedResult>,
    /// Number of connections that are still running.
    left: Cell<usize>,
    is_over: Cell<bool>,
}

impl Thread {
    fn is_to_stop(&self) -> bool {
        self.is_over.get() || self.shared.stop.load(Ordering::Relaxed)
    }

    /// Waits until all connections have ended, or until the given time.
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
    // All threads begin to measure after the last key has been set.
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
    // Failures while setting the keys are reported as well.
    result.wrong += failed.wrong;
    result.broken += failed.broken;
    result.first_wrong_answer = failed.first_wrong_answer.or(result.first_wrong_answer);
    result
}

/// A client with one connection at a time, and its request in progress.
struct Client<'a> {
    thread: &'a Thread,
    link: Option<ServerSocket>,
    requests: Requests,
    keys: KeyChoice,
    random: Random,
    answer: AwaitedAnswer,
}

/// Why a request failed.
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

    /// Sets keys, together with the other connections, until all are set.
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

    /// Sends gets and sets until the end of the run.
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
                // Avoids a busy loop while connections are refused.
                engine::sleep(TICK).await;
            }
        }
    }

    /// Sends a request, waits for the response and counts it. `None` if it failed or the run has
    /// ended.
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
                        result.first_wrong_answer.get_or_insert(text);
                    }
                }
                None
            }
        }
    }

    /// Sends a request and waits for the response. Returns the number of keys with a value, and the
    /// number of bytes received.
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
                    // Bytes after the end of the response are an error.
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
