//! Load for proxies of TCP and UDP, whose server behind says everything back: `bench tcp` and
//! `bench udp`.
//!
//! Each client sends a message, waits until the same bytes have come back, and sends the next (the
//! closed loop); every byte is checked. `clients.rs` are the clients, `serve.rs` is a server that
//! says everything back, `report.rs` prints.
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

use crate::machine::{Busy, CpuClock};
use crate::tally::histogram;

pub use serve::{EchoServer, serve};

/// How often a thread is asked whether it is to stop.
const TICK: Duration = Duration::from_millis(50);

/// The shortest message: its number.
pub const SIZE_MIN: usize = 8;

/// The traffic that each client makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EchoWork {
    /// One message after the other over a kept connection.
    Messages,
    /// A connection for each message.
    Connections,
    /// As many bytes as go over a kept connection, in pieces of a message's size.
    Throughput,
    /// One datagram after the other from a kept socket.
    Datagrams,
    /// A socket for each datagram.
    Sockets,
}

/// How long load is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EchoLength {
    /// The run ends after this time.
    Time(Duration),
    /// The run ends after so many messages.
    Messages(u64),
}

/// The load that is sent.
#[derive(Clone, Debug)]
pub struct EchoPlan {
    /// The proxy, or a server.
    pub address: Address,
    /// The traffic that each client makes.
    pub work: EchoWork,
    /// Clients at the same time.
    pub clients: usize,
    /// Threads that send load.
    pub threads: usize,
    /// The kernel interface of the clients.
    pub engine: EngineKind,
    /// How long load is sent.
    pub length: EchoLength,
    /// Bytes of a message, at least [`SIZE_MIN`].
    pub size: usize,
    /// How long a message may take to come back.
    pub timeout: Duration,
}

/// The counts and times of a run.
#[derive(Clone, Debug)]
pub struct EchoResult {
    /// How long it was measured.
    pub elapsed: Duration,
    /// Messages that have come back.
    pub messages: u64,
    /// Messages in whose place other bytes came.
    pub wrong: u64,
    /// Messages whose connection broke or stalled, or could not be made.
    pub broken: u64,
    /// Datagrams that did not come back in time.
    pub lost: u64,
    /// Bytes of messages that were received.
    pub received: u64,
    /// Bytes that were sent.
    pub sent: u64,
    /// From the sending of a message, or from connecting for it, until all of it was back, in
    /// nanoseconds.
    pub times: Histogram<u64>,
    /// How busy each thread was.
    pub busy: Vec<Busy>,
    /// It was stopped before its end.
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

/// What threads share while they run.
struct RunShare {
    stop: AtomicBool,
    begin: Barrier,
    /// Messages that may still be sent.
    budget: AtomicU64,
}

/// See `plan`. `watch` is asked twenty times a second whether to go on.
///
/// # Errors
/// Where threads or their engines cannot be had.
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
    // The barrier is for all: who fails must come to it, too.
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

/// What the clients of a thread share.
struct Thread {
    plan: Arc<EchoPlan>,
    shared: Arc<RunShare>,
    result: RefCell<EchoResult>,
    /// Clients that still send.
    left: Cell<usize>,
    is_over: Cell<bool>,
}

impl Thread {
    fn is_to_stop(&self) -> bool {
        self.is_over.get() || self.shared.stop.load(Ordering::Relaxed)
    }

    /// Takes the right to send another message, if there is one.
    fn take_message(&self) -> bool {
        let budget = &self.shared.budget;
        let taken = budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            left.checked_sub(1)
        });
        taken.is_ok() && !self.is_to_stop()
    }

    /// Waits until all clients have ended, or the time is over.
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
