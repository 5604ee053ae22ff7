//! Worker threads: one engine each, accepting and serving; swapping generations, ending.
//!
//! Threads share generations, counters and logs and nothing else. Commands come from the
//! controlling thread as closures posted to each thread's engine.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::hash::Map;
use base::slab::{Key, Slab};
use engine::net::{BoundSocket, Listener, Stream};
use engine::{EngineKind, Event, Remote, Runtime};
use framework::counters::{Counters, ThreadCounters};
use framework::generation::{Generation, Local};
use framework::idle::IdleQueue;
use framework::watch::{self, Watch, Watched};

use crate::door::{Accepted, Door, Tenant};
use crate::listen::ListenerId;
use crate::log;
use crate::panics::{self, AbortOnPanic};

/// How long accepting pauses when the system or the limits refuse a connection (nginx's 500 ms).
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// How long a client waits in the queue for a descriptor before it is told that there is none. nginx
/// lets it wait for ever.
const QUEUE_TIME_MAX: Duration = Duration::from_secs(5);

/// How many clients are told so between two pauses.
const TURNED_AWAY_MAX: usize = 32;

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
    /// What makes the door of each thread.
    pub door: fn() -> Rc<dyn Door>,
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
    watch: Arc<Watch>,
    running: Arc<Running>,
}

/// Number of threads that run, and what tells that one has ended.
type Running = (Mutex<usize>, Condvar);

struct Thread {
    remote: Remote,
    handle: Option<JoinHandle<()>>,
}

/// Listening sockets; with `reuseport` several for one listener.
pub type Sockets = Vec<(ListenerId, Vec<BoundSocket>)>;

/// One of them: a listener, and the socket's number among those of the listener. Over reloads the
/// same names the same socket.
pub type SocketId = (ListenerId, usize);

/// Those of them that one thread accepts from.
pub type Share = Vec<(SocketId, BoundSocket)>;

impl Workers {
    /// Starts the threads on these sockets. Every thread is ready to accept when it returns.
    pub fn start(
        settings: &Settings,
        generation: &Arc<Generation>,
        sockets: &Sockets,
    ) -> std::io::Result<Workers> {
        panics::install_hook();
        let counters = Arc::new(Counters::default());
        counters.set_engine(settings.engine.to_string());
        let running: Arc<Running> = Arc::default();
        let mut workers = Workers {
            threads: Vec::new(),
            counters,
            watch: Arc::default(),
            running,
        };
        for index in 0..settings.threads.max(1) {
            let share = share(sockets, index, settings.threads.max(1))?;
            let thread = workers.spawn(settings, index, Arc::clone(generation), share)?;
            workers.threads.push(thread);
        }
        workers.watch();
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
        let watch = Arc::clone(&self.watch);
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
            let watched = Arc::new(Watched::new(runtime.pulse()));
            watch.add(index, Arc::clone(&watched));
            let _whole = AbortOnPanic;
            runtime.block_on(async {
                let worker = Worker::start(
                    generation,
                    settings.connections,
                    counters,
                    (settings.door)(),
                );
                worker.watched.set(watched).ok(); // nothing else sets it
                worker.listen(sockets);
                let _ = ready.send(Ok(remote));
                worker.end().await;
            });
            drop(runtime);
            log::end_thread();
            engine::finish_background();
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

    /// Starts the thread that looks after the others, as long as any of them runs.
    fn watch(&self) {
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
                        log::event!(Error, "{line}");
                    }
                }
            }
        };
        // Without it nothing is told about threads that stand still, and nothing else is missing.
        let _ = std::thread::Builder::new()
            .name("watch".to_owned())
            .spawn(body);
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
    for (id, several) in sockets {
        let single = several.len() == 1;
        for (number, socket) in several.iter().enumerate() {
            let mine = single
                || number % count == index
                || (several.len() < count && index % several.len() == number);
            if mine {
                share.push(((id.clone(), number), socket.try_clone()?));
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
    accepting: RefCell<Map<SocketId, Rc<Event>>>,
    /// Tasks that accept, those among them that are about to stop.
    accept_tasks: Cell<usize>,
    /// Takes what is accepted.
    door: Rc<dyn Door>,
    connections: RefCell<Slab<Weak<dyn Tenant>>>,
    /// Places of those that may be closed without loss.
    idle: RefCell<IdleQueue>,
    connections_max: usize,
    quitting: Cell<bool>,
    ended: Event,
    /// Nobody is waited for at the end.
    at_once: Cell<bool>,
    counters: Arc<Counters>,
    /// Its own part of them.
    counts: Arc<ThreadCounters>,
    turns_counted: Cell<bool>,
    warned: Cell<Option<Instant>>,
    /// When the last line about connections that cannot be accepted was written.
    refusal_logged: Cell<Option<Instant>>,
    /// Clients that were turned away since then.
    turned_away: Cell<usize>,
    watched: OnceCell<Arc<Watched>>,
}

impl Worker {
    /// The worker of this thread, whose runtime must exist. It holds at most `connections_max`
    /// connections, and serves when it [listens](Worker::listen).
    pub fn start(
        generation: Arc<Generation>,
        connections_max: usize,
        counters: Arc<Counters>,
        door: Rc<dyn Door>,
    ) -> Rc<Worker> {
        let counts = counters.join();
        let local = Local::new(generation, Arc::clone(&counts));
        let worker = Rc::new(Worker {
            current: RefCell::new(Rc::new(local)),
            accepting: RefCell::default(),
            accept_tasks: Cell::new(0),
            door,
            connections: RefCell::new(Slab::new()),
            idle: RefCell::default(),
            connections_max,
            quitting: Cell::new(false),
            ended: Event::new(),
            at_once: Cell::new(false),
            counts,
            turns_counted: Cell::new(false),
            counters,
            warned: Cell::new(None),
            refusal_logged: Cell::new(None),
            turned_away: Cell::new(0),
            watched: OnceCell::new(),
        });
        CURRENT.set(Some(Rc::clone(&worker)));
        log::set_main_of(&worker.current().generation);
        log::start_thread();
        worker.count_turns();
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
        self.door.forget();
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

    /// Where it notes what it is at, if anybody looks.
    pub fn watched(&self) -> Option<&Watched> {
        self.watched.get().map(|watched| &**watched)
    }

    /// Serves by this generation from the next request on, and listens on just these sockets.
    pub fn swap(self: &Rc<Worker>, generation: Arc<Generation>, sockets: Share) {
        log::set_main_of(&generation);
        let fresh = Rc::new(Local::new(generation, Arc::clone(&self.counts)));
        let old = std::mem::replace(&mut *self.current.borrow_mut(), fresh);
        self.count_turns();
        old.retire();
        self.door.forget();
        // A listener that stays goes on accepting: the same id is the same socket, so the new
        // descriptor is a copy. Stopping it would cost the connections that wait in it.
        let accepting = std::mem::take(&mut *self.accepting.borrow_mut());
        let (kept, gone): (Map<_, _>, Map<_, Rc<Event>>) = accepting
            .into_iter()
            .partition(|(id, _)| sockets.iter().any(|(wanted, _)| wanted == id));
        let fresh = sockets
            .into_iter()
            .filter(|(id, _)| !kept.contains_key(id))
            .collect();
        *self.accepting.borrow_mut() = kept;
        if !gone.is_empty() {
            self.leave_over(&old);
        }
        for event in gone.into_values() {
            event.set();
        }
        self.listen(fresh);
    }

    /// Counts turns of the loop from the first configuration on that asks for numbers.
    fn count_turns(&self) {
        let wanted = self.current.borrow().generation.counts_turns;
        if wanted && !self.turns_counted.replace(true) {
            let counts = Arc::clone(&self.counts);
            engine::on_turn_end(move || counts.turns.add(1));
        }
    }

    /// Connections whose listener is not in the new generation stay with the old one.
    fn leave_over(&self, old: &Rc<Local>) {
        let current = self.current();
        for connection in self.open_connections() {
            if !self.door.knows(&current, connection.listener()) {
                connection.stay_with(old);
            }
        }
    }

    /// Starts accepting from these sockets.
    pub fn listen(self: &Rc<Worker>, sockets: Share) {
        for (id, socket) in sockets {
            let listener = match Listener::new(socket) {
                Ok(listener) => listener,
                Err(error) => {
                    log::event!(Alert, "listening on {} failed: {error}", id.0.0);
                    continue;
                }
            };
            let stop = Rc::new(Event::new());
            self.accepting
                .borrow_mut()
                .insert(id.clone(), Rc::clone(&stop));
            self.accept_tasks.set(self.accept_tasks.get() + 1);
            engine::spawn(accept(Rc::clone(self), id.0, listener, stop));
        }
    }

    /// Accepts no new connections; closes idle ones, busy ones after their response.
    pub fn quit(self: &Rc<Worker>) {
        self.quitting.set(true);
        for (_, event) in self.accepting.borrow_mut().drain() {
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
            connection.abort();
        }
    }

    fn close_before(&self, accepted: Instant) {
        for connection in self.open_connections() {
            if connection.accepted() < accepted {
                connection.abort();
            }
        }
    }

    fn open_connections(&self) -> Vec<Rc<dyn Tenant>> {
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
        self.close_idlest();
    }

    /// Closes an eighth of the idle connections, those that have been idle for longest. False where
    /// none is idle.
    fn close_idlest(&self) -> bool {
        if self.idle.borrow().is_empty() {
            return false;
        }
        let count = (self.idle.borrow().len() / 8).clamp(1, REUSED_MAX);
        for _ in 0..count {
            let Some(place) = self.idle.borrow_mut().take_first() else {
                break;
            };
            if let Some(connection) = self.connection_at(place) {
                self.counts.dropped.add(1);
                connection.close_reading();
            }
        }
        true
    }

    fn connection_at(&self, place: u32) -> Option<Rc<dyn Tenant>> {
        let connections = self.connections.borrow();
        connections.get(connections.key_at(place)?)?.upgrade()
    }

    /// Enters a connection into the thread's books, until what comes back is dropped.
    pub fn register<T: Tenant + 'static>(self: &Rc<Worker>, tenant: &Rc<T>) -> Registered {
        let weak: Weak<T> = Rc::downgrade(tenant);
        let key = self.connections.borrow_mut().insert(weak);
        self.counts.active.add(1);
        Registered {
            worker: Rc::clone(self),
            key,
        }
    }

    /// Whether the connection at this place may be closed without loss, from now on.
    pub fn set_idle(&self, place: u32, idle: bool) {
        let mut queue = self.idle.borrow_mut();
        match idle {
            true => queue.enter(place),
            false => queue.leave(place),
        }
    }

    fn is_idle(&self, connection: &dyn Tenant) -> bool {
        let place = connection.place();
        place.is_some_and(|place| self.idle.borrow().contains(place))
    }

    /// A connection could not be accepted, as none could for this time. As with nginx, clients
    /// wait in the kernel's queue for a descriptor; but idle connections make room for them, and
    /// where all are busy for long, they are told.
    fn accept_failed(&self, listener: &Listener, error: &std::io::Error, lasting: Duration) {
        let descriptors = rustix::io::Errno::from_io_error(error).is_some_and(|errno| {
            matches!(errno, rustix::io::Errno::MFILE | rustix::io::Errno::NFILE)
        });
        if descriptors && !lasting.is_zero() && !self.close_idlest() && lasting >= QUEUE_TIME_MAX {
            let told = (0..TURNED_AWAY_MAX)
                .take_while(|_| listener.turn_away(self.door.turned_away()))
                .count();
            self.turned_away.set(self.turned_away.get() + told);
        }
        let now = engine::now();
        let last = self.refusal_logged.get();
        if last.is_some_and(|last| now.duration_since(last) < Duration::from_secs(1)) {
            return;
        }
        self.refusal_logged.set(Some(now));
        let error = log::Errno(error);
        match self.turned_away.take() {
            0 => log::event!(Crit, "accept4() failed {error}"),
            told => log::event!(Crit, "accept4() failed {error}, {told} clients turned away"),
        }
    }
}

/// Closes what is idle, once every request has been seen that came before the order to quit. As
/// with nginx, a connection whose first request is still on its way is not idle.
async fn close_idle(worker: Rc<Worker>) {
    engine::yield_now().await;
    for connection in worker.open_connections() {
        if worker.is_idle(&*connection) && connection.has_served() {
            connection.close_reading();
        }
    }
    worker.end_if_idle();
}

/// Accepts from one socket until told to stop; what was accepted by then is served.
async fn accept(worker: Rc<Worker>, id: ListenerId, listener: Listener, stop: Rc<Event>) {
    let mut failing_since: Option<Instant> = None;
    loop {
        let accepted = match engine::select::either(stop.wait(), listener.accept()).await {
            engine::select::Either::First(()) => break,
            engine::select::Either::Second(accepted) => accepted,
        };
        match accepted {
            Ok(stream) => {
                failing_since = None;
                take(&worker, &id, stream);
                while worker.connections.borrow().len() >= worker.connections_max {
                    worker.make_room();
                    engine::sleep(Duration::from_millis(10)).await;
                }
            }
            Err(error) if is_transient(&error) => {}
            Err(error) => {
                let now = engine::now();
                let since = *failing_since.get_or_insert(now);
                worker.accept_failed(&listener, &error, now.duration_since(since));
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
    worker.door.connected(Accepted {
        worker: Rc::clone(worker),
        stream,
        listener: id.clone(),
        serial,
    });
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

/// Takes a connection out of the thread's books when its task ends, also by a panic.
pub struct Registered {
    worker: Rc<Worker>,
    key: Key,
}

impl Registered {
    /// The connection's place among those of its thread.
    pub fn place(&self) -> u32 {
        self.key.index
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.worker.counts.panics.add(1);
        }
        self.worker.set_idle(self.key.index, false);
        self.worker.connections.borrow_mut().remove(self.key);
        self.worker.counts.active.subtract(1);
        self.worker.end_if_idle();
    }
}
