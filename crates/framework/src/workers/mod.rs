//! Worker threads: starting them, swapping their generation, stopping them. Each thread has one
//! engine, accepts connections and serves them.
//!
//! Threads share only generations, counters, logs, and the queues of datagrams for other threads
//! (`siblings`). Commands come from the controlling thread as closures posted to each thread's
//! engine.

mod accept;
mod outgoing;
mod places;
mod receive;
mod sharing;
mod siblings;
mod succession;
mod work_guard;
mod worker;

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::level::Level;
use engine::net::{BoundSocket, SocketKind, steering};
use engine::{EngineKind, Remote, Runtime};

use crate::connection_handler::{ConnectionHandler, ListenerId};
use crate::counters::Counters;
use crate::display::Errno;
use crate::generation::Generation;
use crate::panics::{self, AbortOnPanic};
use crate::report::ThreadReport;
use crate::watch::{self, ThreadStatus, ThreadWatch};

pub use outgoing::{ConnectError, connect, connect_datagrams, connect_with};
pub use places::{Registered, Spare, SpareEntry, TooManyConnections};
pub use receive::DatagramSession;
pub use sharing::SharedRequests;
use siblings::Siblings;
use succession::Channel;
pub use work_guard::WorkGuard;
pub use worker::Worker;
use worker::with_worker;

/// How long a reload waits for the threads to take the new generation.
const SWAP_WAIT: Duration = Duration::from_secs(1);

/// Settings of the worker threads, from the configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The engine to use.
    pub engine: EngineKind,
    /// How many threads serve connections.
    pub threads: usize,
    /// Makes the connection handlers of a thread, one for each protocol.
    pub handlers: fn() -> Vec<Rc<dyn ConnectionHandler>>,
    /// Where threads write log lines.
    pub report: &'static dyn ThreadReport,
    /// `worker_connections`: connections that one thread may hold at most.
    pub connections: usize,
    /// `multi_accept`: whether a thread accepts all pending connections in one turn.
    pub multi_accept: bool,
    /// `worker_cpu_affinity`: the CPUs of each thread; empty if threads are not bound.
    pub affinity: Vec<Vec<usize>>,
}

/// All worker threads of the process.
pub struct Workers {
    threads: Vec<Thread>,
    engine: engine::EngineKind,
    counters: Arc<Counters>,
    watch: Arc<ThreadWatch>,
    running: Arc<RunningThreads>,
    siblings: Arc<Siblings>,
}

/// The number of running threads, and a condition variable that is notified when one ends.
type RunningThreads = (Mutex<usize>, Condvar);

struct Thread {
    remote: Remote,
    handle: Option<JoinHandle<()>>,
}

/// The listening sockets of the process; with `reuseport` a listener has several.
pub type Sockets = Vec<(ListenerId, Vec<BoundSocket>)>;

/// Identifies a listening socket: its listener, and its index among the sockets of that listener.
/// The id stays the same over reloads.
pub type SocketId = (ListenerId, usize);

/// The listening sockets that one thread accepts from.
pub type Share = Vec<(SocketId, BoundSocket)>;

impl Workers {
    /// Starts the threads on these sockets. Returns once every thread is ready to accept.
    pub fn start(
        settings: &Settings,
        generation: &Arc<Generation>,
        sockets: &Sockets,
    ) -> std::io::Result<Workers> {
        panics::install_hook();
        let counters = Arc::new(Counters::default());
        counters.set_engine(settings.engine.to_string());
        let running: Arc<RunningThreads> = Arc::default();
        let mut workers = Workers {
            threads: Vec::new(),
            engine: settings.engine,
            counters,
            watch: Arc::default(),
            running,
            siblings: Arc::default(),
        };
        for index in 0..settings.threads.max(1) {
            let share = share(sockets, index, settings.threads.max(1))?;
            let thread = workers.spawn(settings, index, Arc::clone(generation), share)?;
            workers.threads.push(thread);
        }
        let remotes = workers.threads.iter().map(|thread| thread.remote.clone());
        workers.siblings.set_threads(remotes);
        workers.watch(settings.report);
        Ok(workers)
    }

    /// The engine of the threads.
    #[must_use]
    pub fn engine(&self) -> engine::EngineKind {
        self.engine
    }

    fn spawn(
        &self,
        settings: &Settings,
        index: usize,
        generation: Arc<Generation>,
        sockets: Share,
    ) -> std::io::Result<Thread> {
        let alive = RunningThread::new(&self.running);
        let counters = Arc::clone(&self.counters);
        let settings = settings.clone();
        let (watch, siblings) = (Arc::clone(&self.watch), Arc::clone(&self.siblings));
        let (ready, started) = std::sync::mpsc::channel();
        let body = move || {
            let _alive = alive;
            if let Some(cpus) = settings
                .affinity
                .get(index % settings.affinity.len().max(1))
            {
                bind_to_cpus(cpus, settings.report);
            }
            let engine_settings = engine::Settings {
                connections: settings.connections,
                multi_accept: settings.multi_accept,
                ..engine::Settings::default()
            };
            let mut runtime = match Runtime::new(settings.engine, engine_settings) {
                Ok(runtime) => runtime,
                Err(error) => {
                    let _ = ready.send(Err(error));
                    return;
                }
            };
            let remote = runtime.remote();
            let watched = Arc::new(ThreadStatus::new(runtime.pulse()));
            watch.add(index, Arc::clone(&watched));
            let _whole = AbortOnPanic;
            runtime.block_on(async {
                let worker = Worker::start(
                    generation,
                    settings.connections,
                    counters,
                    (settings.handlers)(),
                    settings.report,
                );
                worker.set_watch(watched);
                worker.join(siblings, index);
                worker.listen(sockets);
                let _ = ready.send(Ok(remote));
                worker.end().await;
            });
            drop(runtime);
            watch.remove(index);
            settings.report.thread_ends();
            let unfinished = engine::finish_background();
            for task in &unfinished {
                let text = format_args!("the process does not wait any longer for {task}");
                settings.report.line(Level::Error, text);
            }
            if !unfinished.is_empty() {
                settings.report.thread_ends(); // writes the lines above
            }
        };
        let handle = std::thread::Builder::new()
            .name(format!("worker {index}"))
            .spawn(body)?;
        let remote = started
            .recv()
            .map_err(|_| std::io::Error::other("a worker thread did not start"))??;
        Ok(Thread {
            remote,
            handle: Some(handle),
        })
    }

    /// Starts the watchdog thread, which logs workers that are stuck. It ends with the last worker.
    fn watch(&self, report: &'static dyn ThreadReport) {
        let (watch, running) = (Arc::clone(&self.watch), Arc::clone(&self.running));
        let body = move || {
            let (running, ended) = &*running;
            let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
            while *running > 0 {
                let (waited, timeout) = ended
                    .wait_timeout(running, watch::LOOK)
                    .unwrap_or_else(PoisonError::into_inner);
                running = waited;
                if timeout.timed_out() {
                    for line in watch.look() {
                        report.line(Level::Error, format_args!("{line}"));
                    }
                }
            }
        };
        // If the watchdog cannot start, only its log lines are missing: serve without it.
        let _ = std::thread::Builder::new()
            .name("watch".to_owned())
            .spawn(body);
    }

    /// The counters of the process.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The sockets that each thread accepts from, for [`Workers::swap`]. Fails if the process runs
    /// out of file descriptors.
    pub fn shares(&self, sockets: &Sockets) -> std::io::Result<Vec<Share>> {
        let count = self.threads.len();
        (0..count)
            .map(|index| share(sockets, index, count))
            .collect()
    }

    /// Makes every thread serve new requests with this generation and listen on exactly these
    /// sockets. Returns when all threads have switched, or after `SWAP_WAIT`; a busy thread
    /// switches later. With a limit, connections that are open now are closed
    /// ([`Worker::limit_open`]).
    pub fn swap(&self, generation: &Arc<Generation>, shares: Vec<Share>, limit: Option<Duration>) {
        steer(&shares);
        let (done, swapped) = std::sync::mpsc::channel();
        for (thread, share) in self.threads.iter().zip(shares) {
            let generation = Arc::clone(generation);
            let done = done.clone();
            thread.remote.post(Box::new(move || {
                with_worker(|worker| {
                    worker.swap(generation, share);
                    if let Some(limit) = limit {
                        worker.limit_open(limit);
                    }
                });
                let _ = done.send(()); // fails if `swap` has stopped waiting
            }));
        }
        drop(done);
        let end = Instant::now() + SWAP_WAIT;
        let left = || end.saturating_duration_since(Instant::now());
        while swapped.recv_timeout(left()).is_ok() {}
    }

    /// Runs a job on a thread and returns the result. `None` if there is no such thread, if it has
    /// ended, or if it is busy for longer than `SWAP_WAIT`.
    pub fn on_thread<R: Send + 'static>(
        &self,
        index: usize,
        job: impl FnOnce() -> R + Send + 'static,
    ) -> Option<R> {
        let thread = self.threads.get(index)?;
        let (done, outcome) = std::sync::mpsc::channel();
        thread.remote.post(Box::new(move || {
            let _ = done.send(job()); // fails if `on_thread` has stopped waiting
        }));
        outcome.recv_timeout(SWAP_WAIT).ok()
    }

    /// Stops accepting. Idle connections are closed at once, busy connections after their response,
    /// and all remaining connections when `limit` has passed.
    pub fn quit(&self, limit: Option<Duration>) {
        self.stop(Worker::quit, limit);
    }

    /// Like [`Workers::quit`], but idle connections may send one more request.
    pub fn drain(&self, limit: Option<Duration>) {
        self.stop(Worker::drain, limit);
    }

    /// Takes over from the processes at the other ends of these channels, which keep their datagram
    /// sessions. Must be called before the threads listen.
    pub fn succeed(&self, channels: Vec<OwnedFd>) {
        let channels = channels.into_iter().map(Channel::new).collect();
        self.siblings.succeed(channels);
    }

    /// Announces that the process at the other end of the channel is about to take over: the
    /// datagram sessions of this process continue after it was told to end.
    pub fn prepare_succession(&self, channel: OwnedFd) {
        let channel = Channel::new(channel);
        self.siblings.add_successor(&channel);
        let (siblings, told) = (Arc::clone(&self.siblings), Arc::clone(&channel));
        let alive = RunningThread::new(&self.running);
        let body = move || {
            let _alive = alive;
            siblings.answer_successor(&told);
        };
        let started = std::thread::Builder::new()
            .name("successor".to_owned())
            .spawn(body);
        if started.is_err() {
            // Nobody answers: sessions end with this process.
            self.siblings.lose(&channel);
        }
    }

    fn stop(&self, how: fn(&Rc<Worker>), limit: Option<Duration>) {
        for thread in &self.threads {
            thread.remote.post(Box::new(move || {
                with_worker(|worker| {
                    how(worker);
                    if let Some(limit) = limit {
                        worker.close_all_after(limit);
                    }
                });
            }));
        }
        self.siblings.leave();
    }

    /// Ends all threads at once and aborts the requests in progress.
    pub fn terminate(&self) {
        self.siblings.finish();
        for thread in &self.threads {
            thread
                .remote
                .post(Box::new(|| with_worker(|worker| worker.terminate())));
        }
    }

    /// Waits until every thread has ended and written its log lines.
    pub fn wait(&self) {
        let (running, ended) = &*self.running;
        let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
        while *running > 0 {
            running = ended.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.terminate();
        for handle in self.threads.drain(..).filter_map(|thread| thread.handle) {
            // A thread that panicked has been reported by the panic hook.
            let _ = handle.join();
        }
    }
}

/// The sockets that thread `index` of `count` accepts from. All threads share the single socket of
/// a listener without `reuseport`. With `reuseport` the sockets are dealt out: with more sockets
/// than threads a thread gets several, with fewer sockets than threads the threads share them.
fn share(sockets: &Sockets, index: usize, count: usize) -> std::io::Result<Share> {
    let mut share = Share::new();
    for (id, several) in sockets {
        let single = several.len() == 1;
        for (number, socket) in several.iter().enumerate() {
            let is_own = single
                || number % count == index
                || (several.len() < count && index % several.len() == number);
            if is_own {
                share.push(((id.clone(), number), socket.try_clone()?));
            }
        }
    }
    Ok(share)
}

/// Makes the kernel deliver the datagrams of a client to the client's thread. If the kernel does
/// not, because another program has bound the sockets, threads pass the datagrams on.
fn steer(shares: &[Share]) {
    // The first thread has the first socket of every address.
    for ((id, number), socket) in shares.iter().take(1).flatten() {
        if *number == 0 && socket.carries() == SocketKind::Datagrams {
            let ids = shares.iter().flatten().map(|(id, _)| id);
            let numbers = ids.filter(|(other, _)| other == id);
            let sockets = numbers.map(|(_, number)| number + 1).max().unwrap_or(1);
            let count = sockets.min(shares.len());
            let _ = steering::steer(socket, count as u32);
        }
    }
}

/// Counts a thread as running until the value is dropped, which also happens after a panic.
struct RunningThread(Arc<RunningThreads>);

impl RunningThread {
    fn new(running: &Arc<RunningThreads>) -> RunningThread {
        *running.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        RunningThread(Arc::clone(running))
    }
}

impl Drop for RunningThread {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.1.notify_all();
    }
}

/// Binds the calling thread to these CPUs. Logs if the machine has none of them.
fn bind_to_cpus(cpus: &[usize], report: &dyn ThreadReport) {
    let mut set = rustix::thread::CpuSet::new();
    for cpu in cpus {
        if *cpu < rustix::thread::CpuSet::MAX_CPU {
            set.set(*cpu);
        }
    }
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        let error = error.into();
        let error = Errno(&error);
        report.line(
            Level::Alert,
            format_args!("sched_setaffinity() failed {error}"),
        );
    }
}
