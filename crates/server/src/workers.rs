//! Worker threads: one engine each, accepting and serving; swapping generations, ending.
//!
//! Threads share generations, counters and logs and nothing else. Commands come from the
//! controlling thread as closures posted to each thread's engine.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::hash::Map;
use base::slab::{Key, Slab};
use engine::net::{Listener, Stream};
use engine::{EngineKind, Event, Remote, Runtime};

use crate::counters::{Counters, ThreadCounters};
use crate::generation::{Generation, Local};
use crate::http::connection::{self, Connection};
use crate::http::pool;
use crate::listen::ListenerId;
use crate::log;
use crate::panics::{self, AbortOnPanic};

/// How long accepting pauses when the system or the limits refuse a connection (nginx's 500 ms).
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// How many idle connections are closed at once to make room for new ones (nginx's 32).
const REUSED_MAX: usize = 32;

/// How long a reload waits for a thread to take the new generation.
const SWAP_WAIT: Duration = Duration::from_secs(1);

/// How often a thread that is to end looks whether its clients have taken everything.
const FINISHING_LOOK: Duration = Duration::from_millis(10);

/// What threads are started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The engine to use.
    pub engine: EngineKind,
    /// Number of threads.
    pub threads: usize,
    /// `worker_connections`: connections that one thread may hold.
    pub connections: usize,
    /// `multi_accept`.
    pub multi_accept: bool,
    /// CPU of each thread, if they are to be bound (`worker_cpu_affinity`).
    pub affinity: Vec<Vec<usize>>,
}

/// All worker threads of the process.
pub struct Workers {
    threads: Vec<Thread>,
    counters: Arc<Counters>,
    running: Arc<Running>,
}

/// Number of threads that run, and what tells that one has ended.
type Running = (Mutex<usize>, Condvar);

struct Thread {
    remote: Remote,
    handle: Option<JoinHandle<()>>,
}

/// Descriptors of listening sockets; with `reuseport` several for one listener.
pub type Sockets = Vec<(ListenerId, Vec<OwnedFd>)>;

/// Those of them that one thread accepts from.
pub type Share = Vec<(ListenerId, OwnedFd)>;

impl Workers {
    /// Starts the threads on these sockets. Every thread is ready to accept when it returns.
    pub fn start(
        settings: &Settings,
        generation: &Arc<Generation>,
        sockets: &Sockets,
    ) -> std::io::Result<Workers> {
        panics::install_hook();
        let counters = Arc::new(Counters::default());
        let running: Arc<Running> = Arc::default();
        let mut workers = Workers {
            threads: Vec::new(),
            counters,
            running,
        };
        for index in 0..settings.threads.max(1) {
            let share = share(sockets, index, settings.threads.max(1))?;
            let thread = workers.spawn(settings, index, Arc::clone(generation), share)?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    fn spawn(
        &self,
        settings: &Settings,
        index: usize,
        generation: Arc<Generation>,
        sockets: Share,
    ) -> std::io::Result<Thread> {
        let alive = Alive::new(&self.running);
        let counters = Arc::clone(&self.counters);
        let settings = settings.clone();
        let (ready, started) = std::sync::mpsc::channel();
        let body = move || {
            let _alive = alive;
            if let Some(cpus) = settings
                .affinity
                .get(index % settings.affinity.len().max(1))
            {
                bind_to_cpus(cpus);
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
            let _whole = AbortOnPanic;
            runtime.block_on(run(&settings, generation, sockets, counters, || {
                let _ = ready.send(Ok(remote));
            }));
            drop(runtime);
            log::flush_all();
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

    /// Counters of the process.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// What each thread accepts from, for [`Workers::swap`]. Fails for want of descriptors.
    pub fn shares(&self, sockets: &Sockets) -> std::io::Result<Vec<Share>> {
        let count = self.threads.len();
        (0..count)
            .map(|index| share(sockets, index, count))
            .collect()
    }

    /// Every thread serves by this generation from its next request on, and listens on just
    /// these sockets. All do when it returns, unless one is busy for longer than `SWAP_WAIT`.
    pub fn swap(&self, generation: &Arc<Generation>, shares: Vec<Share>) {
        let (done, swapped) = std::sync::mpsc::channel();
        for (thread, share) in self.threads.iter().zip(shares) {
            let generation = Arc::clone(generation);
            let done = done.clone();
            thread.remote.post(Box::new(move || {
                with_worker(|worker| worker.swap(generation, share));
                let _ = done.send(()); // nobody waits any more if it took long
            }));
        }
        drop(done);
        let end = Instant::now() + SWAP_WAIT;
        let left = || end.saturating_duration_since(Instant::now());
        while swapped.recv_timeout(left()).is_ok() {}
    }

    /// No new connections; idle ones are closed, busy ones after their response.
    pub fn quit(&self) {
        for thread in &self.threads {
            thread
                .remote
                .post(Box::new(|| with_worker(|worker| worker.quit())));
        }
    }

    /// Ends at once.
    pub fn terminate(&self) {
        for thread in &self.threads {
            thread
                .remote
                .post(Box::new(|| with_worker(|worker| worker.terminate())));
        }
    }

    /// Closes the connections that are still open (`worker_shutdown_timeout` has passed).
    pub fn close_connections(&self) {
        for thread in &self.threads {
            thread
                .remote
                .post(Box::new(|| with_worker(|worker| worker.close_all())));
        }
    }

    /// Closes the connections accepted before `accepted_before` (a reload under
    /// `worker_shutdown_timeout`).
    pub fn close_connections_before(&self, accepted_before: Instant) {
        for thread in &self.threads {
            thread.remote.post(Box::new(move || {
                with_worker(|worker| worker.close_before(accepted_before));
            }));
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

/// The sockets that one of `count` threads accepts from. A listener without `reuseport` is
/// shared by all; of several sockets each goes to one thread, surplus ones are adopted.
fn share(sockets: &Sockets, index: usize, count: usize) -> std::io::Result<Share> {
    let mut share = Share::new();
    for (id, descriptors) in sockets {
        let single = descriptors.len() == 1;
        for (number, descriptor) in descriptors.iter().enumerate() {
            let mine = single
                || number % count == index
                || (descriptors.len() < count && index % descriptors.len() == number);
            if mine {
                share.push((id.clone(), descriptor.try_clone()?));
            }
        }
    }
    Ok(share)
}

/// Counts a thread as running for as long as it lives, however it ends.
struct Alive(Arc<Running>);

impl Alive {
    fn new(running: &Arc<Running>) -> Alive {
        *running.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Alive(Arc::clone(running))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.1.notify_all();
    }
}

/// Binds the thread to these CPUs; a mask that the machine does not have is logged.
fn bind_to_cpus(cpus: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    for cpu in cpus {
        if *cpu < rustix::thread::CpuSet::MAX_CPU {
            set.set(*cpu);
        }
    }
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        log::event!(
            Alert,
            "sched_setaffinity() failed {}",
            log::Errno(&error.into())
        );
    }
}

/// A worker thread from start to end.
async fn run(
    settings: &Settings,
    generation: Arc<Generation>,
    sockets: Share,
    counters: Arc<Counters>,
    ready: impl FnOnce(),
) {
    let worker = Worker::start(generation, settings.connections, counters);
    worker.listen(sockets);
    ready();
    worker.end().await;
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Worker>>> = const { RefCell::new(None) };
}

fn with_worker(f: impl FnOnce(&Rc<Worker>)) {
    if let Some(worker) = CURRENT.with_borrow(Clone::clone) {
        f(&worker);
    }
}

/// One worker thread as its connections see it.
pub struct Worker {
    current: RefCell<Rc<Local>>,
    accepting: RefCell<Map<ListenerId, Vec<Rc<Event>>>>,
    /// Tasks that accept, those among them that are about to stop.
    accept_tasks: Cell<usize>,
    connections: RefCell<Slab<Weak<Connection>>>,
    connections_max: usize,
    quitting: Cell<bool>,
    ended: Event,
    /// Nobody is waited for at the end.
    at_once: Cell<bool>,
    counters: Arc<Counters>,
    /// Its own part of them.
    counts: Arc<ThreadCounters>,
    warned: Cell<Option<Instant>>,
}

impl Worker {
    /// The worker of this thread, whose runtime must exist. It holds at most `connections_max`
    /// connections, and serves when it [listens](Worker::listen).
    pub fn start(
        generation: Arc<Generation>,
        connections_max: usize,
        counters: Arc<Counters>,
    ) -> Rc<Worker> {
        let worker = Rc::new(Worker {
            current: RefCell::new(Rc::new(Local::new(generation))),
            accepting: RefCell::default(),
            accept_tasks: Cell::new(0),
            connections: RefCell::new(Slab::new()),
            connections_max,
            quitting: Cell::new(false),
            ended: Event::new(),
            at_once: Cell::new(false),
            counts: counters.join(),
            counters,
            warned: Cell::new(None),
        });
        CURRENT.set(Some(Rc::clone(&worker)));
        log::set_main(Arc::clone(&worker.current().generation.error_log));
        log::start_thread();
        worker
    }

    /// Waits until the worker has [quit](Worker::quit) and nothing is left to serve, or until it
    /// was told to end at once.
    pub async fn end(&self) {
        self.ended.wait().await;
        // Slow clients may still be taking the ends of their responses.
        while !self.at_once.get() && engine::net::finishing() > 0 {
            engine::sleep(FINISHING_LOOK).await;
        }
        self.accepting.borrow_mut().clear();
        pool::clear();
        CURRENT.set(None);
    }

    /// The generation that serves requests beginning now.
    pub fn current(&self) -> Rc<Local> {
        Rc::clone(&self.current.borrow())
    }

    /// Whether the process is ending gracefully.
    pub fn quitting(&self) -> bool {
        self.quitting.get()
    }

    /// The counters of the process.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What this thread counts.
    pub fn counts(&self) -> &ThreadCounters {
        &self.counts
    }

    /// How long the first byte of a new connection may take.
    pub fn first_byte_timeout(&self, connection: &Connection) -> Duration {
        let local = connection.generation();
        let timeout =
            connection.with_servers(&local, |servers| servers.default.core.client_header_timeout);
        timeout.unwrap_or(Duration::from_secs(60))
    }

    /// Serves by this generation from the next request on, and listens on just these sockets.
    pub fn swap(self: &Rc<Worker>, generation: Arc<Generation>, sockets: Share) {
        log::set_main(Arc::clone(&generation.error_log));
        let fresh = Rc::new(Local::new(generation));
        let old = std::mem::replace(&mut *self.current.borrow_mut(), fresh);
        old.retired.set(true);
        old.hot.borrow_mut().clear();
        old.files.borrow_mut().clear();
        pool::clear();
        // A listener that stays goes on accepting: the same id is the same socket, so the new
        // descriptor is a copy. Stopping it would cost the connections that wait in it.
        let mut wanted: Map<&ListenerId, usize> = Map::default();
        for (id, _) in &sockets {
            *wanted.entry(id).or_default() += 1;
        }
        let accepting = std::mem::take(&mut *self.accepting.borrow_mut());
        let (kept, gone): (Map<_, _>, Map<_, Vec<Rc<Event>>>) = accepting
            .into_iter()
            .partition(|(id, events)| wanted.get(id) == Some(&events.len()));
        let fresh = sockets
            .into_iter()
            .filter(|(id, _)| !kept.contains_key(id))
            .collect();
        *self.accepting.borrow_mut() = kept;
        if !gone.is_empty() {
            self.leave_over(&old);
        }
        for event in gone.into_values().flatten() {
            event.set();
        }
        self.listen(fresh);
    }

    /// Connections whose listener is not in the new generation stay with the old one.
    fn leave_over(&self, old: &Rc<Local>) {
        let current = self.current();
        for connection in self.open_connections() {
            if current
                .generation
                .http
                .binding(&connection.listener)
                .is_none()
            {
                connection.stay_with(old);
            }
        }
    }

    /// Starts accepting from these sockets.
    pub fn listen(self: &Rc<Worker>, sockets: Share) {
        for (id, descriptor) in sockets {
            let listener = match Listener::new(descriptor) {
                Ok(listener) => listener,
                Err(error) => {
                    log::event!(Alert, "listening on {} failed: {error}", id.0);
                    continue;
                }
            };
            let stop = Rc::new(Event::new());
            self.accepting
                .borrow_mut()
                .entry(id.clone())
                .or_default()
                .push(Rc::clone(&stop));
            self.accept_tasks.set(self.accept_tasks.get() + 1);
            engine::spawn(accept(Rc::clone(self), id, listener, stop));
        }
    }

    /// Accepts no new connections; closes idle ones, busy ones after their response.
    pub fn quit(self: &Rc<Worker>) {
        self.quitting.set(true);
        for event in self
            .accepting
            .borrow_mut()
            .drain()
            .flat_map(|(_, events)| events)
        {
            event.set();
        }
        engine::spawn(close_idle(Rc::clone(self)));
        self.end_if_idle();
    }

    fn terminate(&self) {
        self.at_once.set(true);
        self.ended.set();
    }

    fn close_all(&self) {
        self.at_once.set(true);
        for connection in self.open_connections() {
            connection.stream.abort();
        }
    }

    fn close_before(&self, accepted: Instant) {
        for connection in self.open_connections() {
            if connection.started < accepted {
                connection.stream.abort();
            }
        }
    }

    fn open_connections(&self) -> Vec<Rc<Connection>> {
        self.connections
            .borrow()
            .iter()
            .filter_map(|(_, weak)| weak.upgrade())
            .collect()
    }

    fn end_if_idle(&self) {
        let is_idle = self.accept_tasks.get() == 0 && self.connections.borrow().is_empty();
        if self.quitting.get() && is_idle {
            self.ended.set();
        }
    }

    /// Closes the connections that have been idle for longest to make room, as nginx does: those
    /// that are kept alive, and those that have never sent anything.
    fn make_room(&self) {
        let now = engine::now();
        if self
            .warned
            .get()
            .is_none_or(|last| now.duration_since(last) >= Duration::from_secs(1))
        {
            self.warned.set(Some(now));
            log::event!(
                Warn,
                "{} worker_connections are not enough, reusing connections",
                self.connections_max
            );
        }
        let mut idle: Vec<(Instant, Rc<Connection>)> = self
            .open_connections()
            .into_iter()
            .filter_map(|connection| Some((connection.idle_since.get()?, connection)))
            .collect();
        idle.sort_unstable_by_key(|(since, _)| *since);
        let count = (idle.len() / 8).clamp(1, REUSED_MAX);
        for (_, connection) in idle.iter().take(count) {
            self.counts.dropped.add(1);
            connection.stream.shutdown_read();
        }
    }
}

/// Closes what is idle, once every request has been seen that came before the order to quit. As
/// with nginx, a connection whose first request is still on its way is not idle.
async fn close_idle(worker: Rc<Worker>) {
    engine::yield_now().await;
    for connection in worker.open_connections() {
        if connection.idle_since.get().is_some() && connection.requests.get() > 0 {
            connection.stream.shutdown_read();
        }
    }
    worker.end_if_idle();
}

/// Accepts from one socket until told to stop; what was accepted by then is served.
async fn accept(worker: Rc<Worker>, id: ListenerId, listener: Listener, stop: Rc<Event>) {
    loop {
        let accepted = match engine::select::either(stop.wait(), listener.accept()).await {
            engine::select::Either::First(()) => break,
            engine::select::Either::Second(accepted) => accepted,
        };
        match accepted {
            Ok(stream) => {
                take(&worker, &id, stream);
                while worker.connections.borrow().len() >= worker.connections_max {
                    worker.make_room();
                    engine::sleep(Duration::from_millis(10)).await;
                }
            }
            Err(error) if is_transient(&error) => {}
            Err(error) => {
                log::event!(Crit, "accept4() failed {}", log::Errno(&error));
                engine::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    listener.stop();
    while let Ok(stream) = listener.accept().await {
        take(&worker, &id, stream);
    }
    worker.accept_tasks.set(worker.accept_tasks.get() - 1);
    worker.end_if_idle();
}

/// Serves an accepted connection.
fn take(worker: &Rc<Worker>, id: &ListenerId, stream: Stream) {
    let serial = worker.counters.next_serial();
    worker.counts.accepted.add(1);
    let connection = Rc::new(Connection::new(
        stream,
        serial,
        id.clone(),
        Rc::clone(worker),
    ));
    let key = worker
        .connections
        .borrow_mut()
        .insert(Rc::downgrade(&connection));
    worker.counts.active.add(1);
    engine::spawn(lifetime(
        connection,
        Registered {
            worker: Rc::clone(worker),
            key,
        },
    ));
}

/// Errors of accept that concern one client only.
fn is_transient(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::ConnectionAborted
            | std::io::ErrorKind::WouldBlock
            | std::io::ErrorKind::Interrupted
    )
}

async fn lifetime(connection: Rc<Connection>, _registered: Registered) {
    connection::serve(connection).await;
}

/// Takes a connection out of the thread's books when its task ends, also by a panic.
struct Registered {
    worker: Rc<Worker>,
    key: Key,
}

impl Drop for Registered {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.worker.counts.panics.add(1);
        }
        self.worker.connections.borrow_mut().remove(self.key);
        self.worker.counts.active.subtract(1);
        self.worker.end_if_idle();
    }
}
