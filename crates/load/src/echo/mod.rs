//! Load for TCP and UDP proxies in front of an echo server: `bench tcp` and `bench udp`.
//!
//! Each client sends a message, waits for the echo, and sends the next message (closed loop). Every
//! byte is verified. `clients.rs` has the clients, `serve.rs` an echo server, `report.rs` the
//! output.
//!
//! Not here: TLS, an open loop.

mod clients;
mod report;
mod serve;

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use engine::net::Address;
use engine::{EngineKind, Runtime, Settings};
use hdrhistogram::Histogram;

use crate::machine::{CpuClock, ThreadTimes};
use crate::tally::histogram;

pub use serve::{EchoServer, serve};

/// The interval at which threads check whether they should stop.
const TICK: Duration = Duration::from_millis(50);

/// Minimum length of a message, in bytes: its number.
pub const SIZE_MIN: usize = 8;

/// The kind of traffic of each client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EchoTraffic {
    /// Messages in sequence over a persistent connection.
    Messages,
    /// A new connection for each message.
    Connections,
    /// A continuous stream of bytes over a persistent connection, written in pieces of a message's
    /// size.
    Throughput,
    /// Datagrams in sequence from one socket.
    Datagrams,
    /// A new socket for each datagram.
    Sockets,
}

/// The length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EchoLength {
    /// The run ends after this time.
    Time(Duration),
    /// The run ends after this number of messages.
    Messages(u64),
}

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct EchoPlan {
    /// The address of the proxy or of an echo server.
    pub address: Address,
    /// The kind of traffic of each client.
    pub work: EchoTraffic,
    /// Number of concurrent clients.
    pub clients: usize,
    /// Number of threads that send load.
    pub threads: usize,
    /// The engine of the clients.
    pub engine: EngineKind,
    /// The length of the run.
    pub length: EchoLength,
    /// Length of a message in bytes, at least [`SIZE_MIN`].
    pub size: usize,
    /// Time limit for the echo of a message.
    pub timeout: Duration,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct EchoResult {
    /// Duration of the measurement.
    pub elapsed: Duration,
    /// Messages that were echoed correctly.
    pub messages: u64,
    /// Messages whose echo differed.
    pub wrong: u64,
    /// Messages whose connection failed, stalled or could not be made.
    pub broken: u64,
    /// Datagrams that were not echoed in time.
    pub lost: u64,
    /// Bytes of echoes received.
    pub received: u64,
    /// Bytes of messages sent.
    pub sent: u64,
    /// Times from the sending of a message, or from connecting for it, to the end of its echo, in
    /// nanoseconds.
    pub times: Histogram<u64>,
    /// The processor use of each thread.
    pub busy: Vec<ThreadTimes>,
    /// Whether the run was interrupted.
    pub interrupted: bool,
}

impl Default for EchoResult {
    fn default() -> EchoResult {
        EchoResult {
            elapsed: Duration::ZERO,
            messages: 0,
            wrong: 0,
            broken: 0,
            lost: 0,
            received: 0,
            sent: 0,
            times: histogram(),
            busy: Vec::new(),
            interrupted: false,
        }
    }
}

impl EchoResult {
    fn add(&mut self, other: EchoResult) {
        self.elapsed = self.elapsed.max(other.elapsed);
        self.messages += other.messages;
        self.wrong += other.wrong;
        self.broken += other.broken;
        self.lost += other.lost;
        self.received += other.received;
        self.sent += other.sent;
        let added = self.times.add(&other.times);
        added.expect("all histograms have the same bounds");
        self.busy.extend(other.busy);
    }
}

/// The state that the threads of a run share.
struct RunShare {
    stop: AtomicBool,
    begin: Barrier,
    /// Number of messages that may still be sent.
    budget: AtomicU64,
}

/// Runs `plan`. `watch` is called twenty times a second; the run ends if it returns false.
///
/// # Errors
/// If threads or their engines cannot be created.
pub fn run(plan: &EchoPlan, mut watch: impl FnMut() -> bool) -> io::Result<EchoResult> {
    let threads = plan.threads.clamp(1, plan.clients.max(1));
    let shared = Arc::new(RunShare {
        stop: AtomicBool::new(false),
        begin: Barrier::new(threads),
        budget: AtomicU64::new(match plan.length {
            EchoLength::Time(_) => u64::MAX,
            EchoLength::Messages(messages) => messages,
        }),
    });
    let mut running = Vec::new();
    for number in 0..threads {
        let (plan, shared) = (Arc::new(plan.clone()), Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name(format!("load {number}"))
            .spawn(move || run_thread(&plan, &shared, number, threads))?;
        running.push(thread);
    }
    let mut result = EchoResult::default();
    while !running.iter().all(std::thread::JoinHandle::is_finished) {
        std::thread::sleep(TICK);
        if !result.interrupted && !watch() {
            result.interrupted = true;
            shared.stop.store(true, Ordering::Relaxed);
        }
    }
    for thread in running {
        let part = thread.join();
        let failed = |_| io::Error::other("a thread of the load tester has failed");
        result.add(part.map_err(failed)??);
    }
    Ok(result)
}

fn run_thread(
    plan: &Arc<EchoPlan>,
    shared: &Arc<RunShare>,
    number: usize,
    threads: usize,
) -> io::Result<EchoResult> {
    let clients = (number..plan.clients).step_by(threads);
    let settings = Settings {
        connections: clients.len(),
        ..Settings::default()
    };
    // Every thread must reach the barrier, even if its runtime could not be created.
    let runtime = Runtime::new(plan.engine, settings);
    shared.begin.wait();
    let mut runtime = runtime?;
    let thread = Rc::new(Thread {
        plan: Arc::clone(plan),
        shared: Arc::clone(shared),
        result: RefCell::default(),
        left: Cell::new(clients.len()),
        is_over: Cell::new(false),
    });
    let result = runtime.block_on(drive(Rc::clone(&thread), clients.collect()));
    drop(runtime);
    Ok(result)
}

/// The state that the clients of a thread share.
struct Thread {
    plan: Arc<EchoPlan>,
    shared: Arc<RunShare>,
    result: RefCell<EchoResult>,
    /// Number of clients that are still running.
    left: Cell<usize>,
    is_over: Cell<bool>,
}

impl Thread {
    fn is_to_stop(&self) -> bool {
        self.is_over.get() || self.shared.stop.load(Ordering::Relaxed)
    }

    /// Takes one message from the budget; false if there is none left or the run ends.
    fn take_message(&self) -> bool {
        let budget = &self.shared.budget;
        let taken = budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            left.checked_sub(1)
        });
        taken.is_ok() && !self.is_to_stop()
    }

    /// Waits until all clients have ended, or until the given time.
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

async fn drive(thread: Rc<Thread>, clients: Vec<usize>) -> EchoResult {
    let begin = Instant::now();
    let watch = CpuClock::begin();
    for number in clients {
        let thread = Rc::clone(&thread);
        engine::spawn(async move {
            clients::run(&thread, number).await;
            thread.left.set(thread.left.get() - 1);
        });
    }
    let until = match thread.plan.length {
        EchoLength::Time(time) => Some(begin + time),
        EchoLength::Messages(_) => None,
    };
    thread.wait(until).await;
    thread.is_over.set(true);
    let busy = watch.end();
    let mut result = thread.result.take();
    result.elapsed = begin.elapsed();
    result.busy = vec![busy];
    result
}
