//! One worker thread: its generation, its connections, and the sockets that it accepts from.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt::Arguments;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::hash::Map;
use base::level::Level;
use base::slab::Slab;
use engine::Event;
use engine::net::{Address, BoundSocket, DatagramSocket, Listener, SocketKind};

use super::accept::{Accepting, accept};
use super::places::Occupant;
use super::receive::{Membership, receive};
use super::siblings::Siblings;
use super::succession::Channel;
use super::{Share, SocketId};
use crate::connection_handler::{ConnectionHandler, ListenerId, ServedConnection};
use crate::counters::{Counters, ThreadCounters};
use crate::generation::{Generation, GenerationView};
use crate::idle::IdleQueue;
use crate::report::ThreadReport;
use crate::watch::ThreadStatus;

/// How often a thread that is ending checks whether all responses have been sent.
const FINISHING_LOOK: Duration = Duration::from_millis(10);

thread_local! {
    static CURRENT: RefCell<Option<Rc<Worker>>> = const { RefCell::new(None) };
}

/// The worker of this thread, if it has one.
pub(super) fn of_thread() -> Option<Rc<Worker>> {
    CURRENT.with_borrow(Clone::clone)
}

pub(super) fn with_worker(f: impl FnOnce(&Rc<Worker>)) {
    if let Some(worker) = of_thread() {
        f(&worker);
    }
}

/// One worker thread as its connections see it.
pub struct Worker {
    current: RefCell<Rc<GenerationView>>,
    accepting: RefCell<Map<SocketId, Rc<Accepting>>>,
    /// The number of accepting tasks, those that are stopping included.
    pub(super) accept_tasks: Cell<usize>,
    /// The connection handlers, each of which takes the connections of its addresses.
    pub(super) handlers: Vec<Rc<dyn ConnectionHandler>>,
    report: &'static dyn ThreadReport,
    /// The places of client connections and of idle upstream connections.
    pub(super) places: RefCell<Slab<Occupant>>,
    /// How many of the places belong to clients.
    pub(super) clients: Cell<usize>,
    /// Requests that share an upstream connection with an earlier request.
    pub(super) sharing: Cell<usize>,
    /// Background work in progress, which delays the end of the thread.
    pub(super) held: Cell<usize>,
    /// The places of idle connections, which may be closed to make room.
    pub(super) idle: RefCell<IdleQueue>,
    pub(super) connections_max: usize,
    quitting: Cell<bool>,
    /// Whether the thread is draining: idle connections may send one more request.
    draining: Cell<bool>,
    /// Connections with serial numbers up to this one have a deadline.
    limited_until: Cell<Option<u64>>,
    ended: Event,
    /// Whether the thread ends at once, without waiting for clients.
    at_once: Cell<bool>,
    pub(super) counters: Arc<Counters>,
    /// The thread's own part of the counters.
    pub(super) counts: Arc<ThreadCounters>,
    turns_counted: Cell<bool>,
    /// When closing idle connections was last logged.
    pub(super) reuse_logged: Cell<Option<Instant>>,
    /// When a shortage of `worker_connections` was last logged.
    pub(super) shortage_logged: Cell<Option<Instant>>,
    /// When a failed `accept4()` was last logged.
    pub(super) refusal_logged: Cell<Option<Instant>>,
    /// Number of clients that were turned away since `refusal_logged`.
    pub(super) turned_away: Cell<usize>,
    watched: OnceCell<Arc<ThreadStatus>>,
    /// The membership among the threads of the process; unset for a worker that is the only one.
    pub(super) membership: OnceCell<Membership>,
    /// The channel to the process that receives datagrams in place of this process.
    pub(super) successor: RefCell<Option<Arc<Channel>>>,
}

impl Worker {
    /// Creates the worker of this thread, whose runtime must exist. The worker has at most
    /// `connections_max` connections, including outgoing ones, and passes accepted connections to
    /// `handlers` once it [listens](Worker::listen).
    pub fn start(
        generation: Arc<Generation>,
        connections_max: usize,
        counters: Arc<Counters>,
        handlers: Vec<Rc<dyn ConnectionHandler>>,
        report: &'static dyn ThreadReport,
    ) -> Rc<Worker> {
        let counts = counters.join();
        let local = GenerationView::new(generation, Arc::clone(&counts));
        let worker = Rc::new(Worker {
            current: RefCell::new(Rc::new(local)),
            accepting: RefCell::default(),
            accept_tasks: Cell::new(0),
            handlers,
            report,
            places: RefCell::new(Slab::new()),
            clients: Cell::new(0),
            sharing: Cell::new(0),
            held: Cell::new(0),
            idle: RefCell::default(),
            connections_max,
            quitting: Cell::new(false),
            draining: Cell::new(false),
            limited_until: Cell::new(None),
            ended: Event::new(),
            at_once: Cell::new(false),
            counts,
            turns_counted: Cell::new(false),
            counters,
            reuse_logged: Cell::new(None),
            shortage_logged: Cell::new(None),
            refusal_logged: Cell::new(None),
            turned_away: Cell::new(0),
            watched: OnceCell::new(),
            membership: OnceCell::new(),
            successor: RefCell::default(),
        });
        CURRENT.set(Some(Rc::clone(&worker)));
        report.serves_by(&worker.current().generation);
        report.thread_begins();
        worker.count_turns();
        worker
    }

    /// Makes the worker a member of the threads of its process.
    pub(super) fn join(&self, siblings: Arc<Siblings>, number: usize) {
        let _ = self.membership.set(Membership::new(siblings, number)); // called once
    }

    /// Waits until the worker has [quit](Worker::quit) and nothing is left to serve, or until it
    /// was told to end at once.
    pub async fn end(&self) {
        self.ended.wait().await;
        // Slow clients may still be receiving the ends of their responses.
        while !self.at_once.get() && engine::net::finishing() > 0 {
            engine::sleep(FINISHING_LOOK).await;
        }
        self.accepting.borrow_mut().clear();
        self.current().retire_thread();
        self.forget();
        CURRENT.set(None);
    }

    /// Drops what connection handlers cache for the next connection.
    fn forget(&self) {
        for handler in &self.handlers {
            handler.forget();
        }
    }

    /// The generation for new requests.
    pub fn current(&self) -> Rc<GenerationView> {
        Rc::clone(&self.current.borrow())
    }

    /// Whether the connection of this number ends with its next response: the process is ending
    /// gracefully, or the connection has a [limit](Worker::limit_open).
    pub fn is_ending(&self, serial: u64) -> bool {
        self.quitting.get() || self.is_limited(serial)
    }

    /// Whether the connection of this number is closed while it waits for a request, instead of
    /// serving one more.
    pub fn closes_idle(&self, serial: u64) -> bool {
        self.is_ending(serial) && (!self.draining.get() || self.is_limited(serial))
    }

    fn is_limited(&self, serial: u64) -> bool {
        self.limited_until
            .get()
            .is_some_and(|until| serial <= until)
    }

    /// The counters of the process.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The counters of this thread.
    pub fn counts(&self) -> &ThreadCounters {
        &self.counts
    }

    /// Where the thread notes its current work for the watchdog, if it is watched.
    pub fn watched(&self) -> Option<&ThreadStatus> {
        self.watched.get().map(|watched| &**watched)
    }

    /// Serves new requests with this generation, and listens on exactly these sockets.
    pub fn swap(self: &Rc<Worker>, generation: Arc<Generation>, sockets: Share) {
        self.report.serves_by(&generation);
        let fresh = Rc::new(self.current().followed_by(generation));
        let old = std::mem::replace(&mut *self.current.borrow_mut(), fresh);
        self.count_turns();
        old.retire();
        self.forget();
        // A listener that both generations have continues to accept: as its id is the same, the new
        // descriptor is a duplicate of the same socket. Stopping it would lose the connections in
        // its backlog.
        let accepting = std::mem::take(&mut *self.accepting.borrow_mut());
        let (kept, gone): (Map<_, _>, Map<_, _>) = accepting
            .into_iter()
            .partition(|(id, _)| sockets.iter().any(|(wanted, _)| wanted == id));
        let fresh = sockets
            .into_iter()
            .filter(|(id, _)| !kept.contains_key(id))
            .collect();
        let is_elsewhere = self.find_handlers(&kept);
        *self.accepting.borrow_mut() = kept;
        if !gone.is_empty() || is_elsewhere {
            self.pin_leftovers(&old);
        }
        for accepting in gone.into_values() {
            accepting.stop.set();
        }
        self.listen(fresh);
    }

    /// Starts counting turns of the loop, with the first configuration that shows metrics.
    fn count_turns(&self) {
        let wanted = self.current.borrow().generation.counts_turns;
        if wanted && !self.turns_counted.replace(true) {
            let counts = Arc::clone(&self.counts);
            engine::on_turn_end(move || counts.turns.add(1));
        }
    }

    /// Keeps connections whose listener is not in the new generation with the old generation.
    fn pin_leftovers(&self, old: &Rc<GenerationView>) {
        let current = self.current();
        for connection in self.open_connections() {
            if !connection.has_listener_in(&current) {
                connection.pin_generation(old);
            }
        }
    }

    /// Starts accepting from these sockets.
    pub fn listen(self: &Rc<Worker>, sockets: Share) {
        let current = self.current();
        for (id, socket) in sockets {
            let Some(handler) = self.handler_of(&current, &id.0) else {
                let name = &id.0.0;
                self.report(Level::Alert, format_args!("nothing serves {name}"));
                continue;
            };
            let accepting = Rc::new(Accepting::new(handler));
            if let Err(error) = self.begin(&id, socket, Rc::clone(&accepting)) {
                let name = &id.0.0;
                let text = format_args!("listening on {name} failed: {error}");
                self.report(Level::Alert, text);
                continue;
            }
            self.accept_tasks.set(self.accept_tasks.get() + 1);
            self.accepting.borrow_mut().insert(id, accepting);
        }
    }

    /// Starts the task that accepts or receives from a socket.
    fn begin(
        self: &Rc<Worker>,
        id: &SocketId,
        socket: BoundSocket,
        accepting: Rc<Accepting>,
    ) -> io::Result<()> {
        let (worker, id) = (Rc::clone(self), id.0.clone());
        match socket.carries() {
            SocketKind::Streams => {
                let listener = Listener::new(socket)?;
                engine::spawn(accept(worker, id, listener, accepting));
            }
            SocketKind::Datagrams => {
                let socket = Rc::new(DatagramSocket::new(socket)?);
                let _ = accepting.datagrams.set(Rc::clone(&socket)); // not set before
                engine::spawn(receive(worker, id, socket, accepting));
            }
        }
        Ok(())
    }

    /// The connection handler of a listener in this generation.
    pub(super) fn handler_of(
        &self,
        local: &GenerationView,
        listener: &ListenerId,
    ) -> Option<Rc<dyn ConnectionHandler>> {
        let mut handlers = self.handlers.iter();
        handlers
            .find(|handler| handler.has_listener(local, listener))
            .map(Rc::clone)
    }

    /// The accepting socket of a listener, if this thread has one.
    pub(super) fn accepting_at(&self, listener: &ListenerId) -> Option<Rc<Accepting>> {
        let accepting = self.accepting.borrow();
        let found = accepting.iter().find(|((id, _), _)| id == listener);
        found.map(|(_, accepting)| Rc::clone(accepting))
    }

    /// The listener that would accept a connection to this address in a generation (of the address
    /// itself or a wildcard), and its connection handler.
    pub fn handler_to(
        &self,
        local: &GenerationView,
        to: &Address,
    ) -> Option<(ListenerId, Rc<dyn ConnectionHandler>)> {
        let any = match to {
            Address::Inet(SocketAddr::V4(at)) => Some((Ipv4Addr::UNSPECIFIED, at.port()).into()),
            Address::Inet(SocketAddr::V6(at)) => Some((Ipv6Addr::UNSPECIFIED, at.port()).into()),
            Address::Unix(_) => None,
        };
        let addresses = [Some(to.clone()), any.map(Address::Inet)];
        addresses.into_iter().flatten().find_map(|address| {
            let listener = ListenerId::of_address(&address, SocketKind::Streams);
            let handler = self.handler_of(local, &listener)?;
            Some((listener, handler))
        })
    }

    /// Gives the kept sockets the connection handlers that the current generation has for them.
    /// Returns whether any handler has changed.
    fn find_handlers(&self, kept: &Map<SocketId, Rc<Accepting>>) -> bool {
        let current = self.current();
        let mut is_another = false;
        for ((listener, _), accepting) in kept {
            if let Some(handler) = self.handler_of(&current, listener) {
                is_another |= accepting.change_handler(handler);
            }
        }
        is_another
    }

    /// Sets where the thread notes its current work for the watchdog.
    pub fn set_watch(&self, watched: Arc<ThreadStatus>) {
        self.watched.set(watched).ok(); // nothing else sets it
    }

    /// Logs a line about the process.
    pub(super) fn report(&self, level: Level, message: Arguments<'_>) {
        self.report.line(level, message);
    }

    /// Stops accepting. Closes idle connections at once, busy ones after their response.
    pub fn quit(self: &Rc<Worker>) {
        self.draining.set(false);
        self.stop();
    }

    /// Like [`quit`](Self::quit), but idle connections may send one more request, since a client
    /// may be about to do so. They are closed by their timeouts if none comes.
    pub fn drain(self: &Rc<Worker>) {
        self.draining.set(true);
        self.stop();
    }

    fn stop(self: &Rc<Worker>) {
        self.quitting.set(true);
        for (_, accepting) in self.accepting.borrow_mut().drain() {
            accepting.stop.set();
        }
        engine::spawn(close_idle(Rc::clone(self)));
        self.current().retire_thread();
        self.end_if_idle();
    }

    /// Ends the datagram sessions if this process is ending and no other process receives for them.
    pub(super) fn end_orphaned_sessions(self: &Rc<Worker>) {
        if self.quitting.get() && !self.has_successor() {
            engine::spawn(close_idle(Rc::clone(self)));
        }
    }

    /// Ends the connections that are open now: idle connections at once, busy connections after
    /// their response, and all of them after this time. Connections that are accepted later are not
    /// affected.
    pub fn limit_open(self: &Rc<Worker>, limit: Duration) {
        let until = self.counters.last_serial();
        self.limited_until.set(Some(until));
        let worker = Rc::clone(self);
        engine::spawn(async move {
            close_idle(Rc::clone(&worker)).await;
            engine::sleep(limit).await;
            for connection in worker.open_connections() {
                if connection.serial() <= until {
                    connection.abort();
                }
            }
        });
    }

    pub(super) fn terminate(&self) {
        self.at_once.set(true);
        self.ended.set();
    }

    /// Closes all connections that are still open after this time.
    pub(super) fn close_all_after(self: &Rc<Worker>, limit: Duration) {
        let worker = Rc::clone(self);
        engine::spawn(async move {
            engine::sleep(limit).await;
            worker.at_once.set(true);
            for connection in worker.open_connections() {
                connection.abort();
            }
            worker.end_if_idle();
        });
    }

    fn open_connections(&self) -> Vec<Rc<dyn ServedConnection>> {
        let places = self.places.borrow();
        let clients = places.iter().filter_map(|(_, occupant)| occupant.client());
        clients.collect()
    }

    pub(super) fn end_if_idle(&self) {
        if !self.quitting.get() || self.accept_tasks.get() > 0 {
            return;
        }
        if let Some(own) = self.membership.get() {
            own.stop_receiving();
        }
        if self.clients.get() > 0 {
            return;
        }
        let is_held = self.held.get() > 0 || self.answers_session_queries();
        if !is_held || self.at_once.get() {
            self.ended.set();
        }
    }

    fn is_idle(&self, connection: &dyn ServedConnection) -> bool {
        let place = connection.place();
        place.is_some_and(|place| self.idle.borrow().contains(place))
    }
}

/// Closes the idle ones among the connections that are to end. Before that, one turn of the event
/// loop handles requests that have arrived already. As with nginx, a connection whose first request
/// is still on its way is not idle.
async fn close_idle(worker: Rc<Worker>) {
    engine::yield_now().await;
    for connection in worker.open_connections() {
        if !worker.is_ending(connection.serial()) {
            continue;
        }
        connection.announce_end();
        let ends = worker.closes_idle(connection.serial()) && connection.ends_when_idle();
        if ends && worker.is_idle(&*connection) {
            connection.close_reading();
        }
    }
    worker.end_if_idle();
}
