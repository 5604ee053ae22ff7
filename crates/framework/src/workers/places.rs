//! The `worker_connections` limit of a thread: which connections take a place, and which are closed
//! to make room.
//!
//! As in nginx, a place is taken by every client connection and every outgoing connection to an
//! upstream. A request that [shares](super::sharing) an upstream connection also takes a place.
//! Otherwise a request that is proxied back to its own server would take places until none is left
//! for clients. When few places are free, the connections that have been idle longest are closed,
//! whether to clients or to upstreams.
//!
//! A few places are reserved for clients ([`Worker::outgoing_max`]), so that other clients are
//! still served while such a loop of requests unwinds.

use std::cell::Cell;
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use base::level::Level;
use base::slab::Key;

use super::{Worker, worker};
use crate::connection_handler::ServedConnection;

/// Idle connections are closed when at most one place in this many is free (nginx's
/// `ngx_drain_connections()`).
const SCARCE_SHARE: usize = 16;

/// Maximum number of places that are reserved for clients. Below this maximum, one place in
/// [`SCARCE_SHARE`] is reserved.
const LEFT_TO_CLIENTS_MAX: usize = 16;

/// How many idle connections are closed at once to make room for new ones (nginx's 32).
const REUSED_MAX: usize = 32;

/// How long a new outgoing connection waits for idle connections to close, and an accepted client
/// for any connection to close.
const ROOM_WAIT: Duration = Duration::from_millis(10);

/// Interval between two checks for a free place meanwhile.
const ROOM_LOOK: Duration = Duration::from_millis(1);

/// How long a client counts as new after its connection was accepted.
const SILENCE_MIN: Duration = Duration::from_millis(100);

/// Minimum interval between two log lines about a shortage.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// The holder of a place.
pub(super) enum Occupant {
    /// A client connection, and the time from which it has the place.
    Client(Weak<dyn ServedConnection>, Instant),
    /// An idle upstream connection, by its owner's key. It is counted among the thread's outgoing
    /// connections.
    Spare(Weak<dyn Spare>, Key),
}

impl Occupant {
    /// The client connection, if it is one.
    pub(super) fn client(&self) -> Option<Rc<dyn ServedConnection>> {
        match self {
            Occupant::Client(client, _) => client.upgrade(),
            Occupant::Spare(..) => None,
        }
    }
}

/// The idle connections that are not closed to make room.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EvictionExemption {
    Nobody,
    /// Clients that have only just connected, since their request is probably on its way.
    NewClients,
}

/// An owner of idle connections, such as the pool of upstream connections.
pub trait Spare {
    /// Closes the connection with this key to make room for others.
    fn close(&self, key: Key);
}

/// The thread has `worker_connections` connections, and none of them is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyConnections {
    connections_max: usize,
    /// Whether to log the shortage: at most once a second, since shortages come in bursts.
    pub should_log: bool,
}

impl fmt::Display for TooManyConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} worker_connections are not enough",
            self.connections_max
        )
    }
}

impl Worker {
    /// Checks whether there is a place for an accepted client. If all places are taken, waits up to
    /// `ROOM_WAIT` for connections to close. Meanwhile another thread may accept the next clients.
    pub(super) async fn has_room_for_client(&self) -> Result<(), TooManyConnections> {
        let scarce = self.connections_max / SCARCE_SHARE;
        self.make_room(scarce, EvictionExemption::NewClients);
        let until = engine::now() + ROOM_WAIT;
        while self.taken() >= self.connections_max {
            if engine::now() >= until {
                return Err(self.shortage());
            }
            self.make_room(scarce, EvictionExemption::Nobody);
            engine::sleep(ROOM_LOOK).await;
        }
        Ok(())
    }

    /// Whether a UDP client may start a session. Does not wait: idle sessions that were told to end
    /// keep their places until their tasks have ended, so the limit may be exceeded slightly.
    pub fn has_room_for_session(&self) -> bool {
        self.make_room(
            self.connections_max / SCARCE_SHARE,
            EvictionExemption::Nobody,
        );
        self.taken() < self.connections_max.saturating_add(REUSED_MAX)
    }

    /// Checks that the thread may open a connection. Waits only if idle connections are being
    /// closed.
    pub(super) async fn has_room_for_outgoing(&self) -> Result<(), TooManyConnections> {
        let outgoing_max = self.outgoing_max();
        // The order of the operations prevents an overflow: on a thread without clients,
        // `connections_max` is unlimited.
        let scarce = self.connections_max / SCARCE_SHARE + (self.connections_max - outgoing_max);
        let mut makes_room = self.make_room(scarce, EvictionExemption::NewClients);
        let until = engine::now() + ROOM_WAIT;
        while self.taken() >= outgoing_max {
            if !makes_room || engine::now() >= until {
                return Err(self.shortage());
            }
            engine::sleep(ROOM_LOOK).await;
            makes_room |= self.make_room(scarce, EvictionExemption::NewClients);
        }
        Ok(())
    }

    /// The number of taken places from which on no outgoing connection may be opened.
    fn outgoing_max(&self) -> usize {
        let left = (self.connections_max / SCARCE_SHARE).min(LEFT_TO_CLIENTS_MAX);
        self.connections_max - left
    }

    /// The number of places that are taken.
    fn taken(&self) -> usize {
        self.clients.get() + engine::net::outgoing() + self.sharing.get()
    }

    fn shortage(&self) -> TooManyConnections {
        TooManyConnections {
            connections_max: self.connections_max,
            should_log: is_due(&self.shortage_logged),
        }
    }

    /// Closes idle connections if `scarce` places or fewer are free. True if there were any to
    /// close.
    fn make_room(&self, scarce: usize, spared: EvictionExemption) -> bool {
        let free = self.connections_max.saturating_sub(self.taken());
        if free > scarce || !self.close_idlest(spared) {
            return false;
        }
        if is_due(&self.reuse_logged) {
            let most = self.connections_max;
            let text = "worker_connections are not enough, reusing connections";
            self.report(Level::Warn, format_args!("{most} {text}"));
        }
        true
    }

    /// Closes an eighth of the idle connections, those that have been idle longest. False if there
    /// is none.
    pub(super) fn close_idlest(&self, spared: EvictionExemption) -> bool {
        let idle = self.idle.borrow().len();
        let wanted = (idle / 8).clamp(1, REUSED_MAX);
        let mut closed = 0;
        for _ in 0..idle.min(REUSED_MAX) {
            let Some(place) = self.idle.borrow_mut().take_first() else {
                break;
            };
            if spared == EvictionExemption::NewClients && self.is_expected_to_ask(place) {
                self.idle.borrow_mut().enter(place);
                continue;
            }
            self.close_at(place);
            closed += 1;
            if closed == wanted {
                break;
            }
        }
        closed > 0
    }

    /// Whether the place belongs to a client that has only just connected and has sent nothing.
    fn is_expected_to_ask(&self, place: u32) -> bool {
        let places = self.places.borrow();
        match places.key_at(place).and_then(|key| places.get(key)) {
            Some(Occupant::Client(client, since)) => {
                engine::now().duration_since(*since) < SILENCE_MIN
                    && client
                        .upgrade()
                        .is_some_and(|client| !client.ends_when_idle())
            }
            Some(Occupant::Spare(..)) | None => false,
        }
    }

    fn close_at(&self, place: u32) {
        let places = self.places.borrow();
        match places.key_at(place).and_then(|key| places.get(key)) {
            Some(Occupant::Client(client, _)) => {
                let client = client.upgrade();
                drop(places);
                if let Some(client) = client {
                    self.counts.dropped.add(1);
                    client.close_reading();
                }
            }
            Some(Occupant::Spare(owner, key)) => {
                let (owner, key) = (owner.upgrade(), *key);
                drop(places);
                if let Some(owner) = owner {
                    owner.close(key);
                }
            }
            None => {}
        }
    }

    /// Registers a client connection with the thread, until the returned guard is dropped.
    pub fn register<T: ServedConnection + 'static>(
        self: &Rc<Worker>,
        tenant: &Rc<T>,
    ) -> Registered {
        let weak: Weak<T> = Rc::downgrade(tenant);
        let key = self
            .places
            .borrow_mut()
            .insert(Occupant::Client(weak, engine::now()));
        self.clients.set(self.clients.get() + 1);
        self.counts.active.add(1);
        Registered {
            worker: Rc::clone(self),
            key,
        }
    }

    /// Sets whether the connection at this place is idle and may be closed to make room.
    pub fn set_idle(&self, place: u32, idle: bool) {
        let mut queue = self.idle.borrow_mut();
        if idle {
            queue.enter(place)
        } else {
            queue.release(place)
        }
    }
}

/// Whether a line may be logged now: at most one per second.
fn is_due(logged: &Cell<Option<Instant>>) -> bool {
    let now = engine::now();
    let last = logged.get();
    let is_due = last.is_none_or(|last| now.duration_since(last) >= TOLD_EVERY);
    if is_due {
        logged.set(Some(now));
    }
    is_due
}

/// Unregisters a connection when its task ends, even by a panic.
pub struct Registered {
    worker: Rc<Worker>,
    key: Key,
}

impl Registered {
    /// The connection's place: its index among the connections of its thread.
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
        self.worker.places.borrow_mut().remove(self.key);
        self.worker.clients.set(self.worker.clients.get() - 1);
        self.worker.counts.active.subtract(1);
        self.worker.end_if_idle();
    }
}

/// Registers, until it is dropped, an idle upstream connection that may be closed to make room.
pub struct SpareEntry {
    worker: Rc<Worker>,
    key: Key,
}

impl SpareEntry {
    /// Registers a connection that has just become idle, with its owner's key. `None` on a thread
    /// without a worker.
    pub fn new(owner: &Rc<dyn Spare>, key: Key) -> Option<SpareEntry> {
        let worker = worker::of_thread()?;
        let occupant = Occupant::Spare(Rc::downgrade(owner), key);
        let key = worker.places.borrow_mut().insert(occupant);
        worker.set_idle(key.index, true);
        Some(SpareEntry { worker, key })
    }
}

impl Drop for SpareEntry {
    fn drop(&mut self) {
        self.worker.set_idle(self.key.index, false);
        self.worker.places.borrow_mut().remove(self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fmt::Arguments;
    use std::sync::Arc;

    use engine::net::{Address, Listener};
    use engine::sim::{self, Faults};

    use super::*;
    use crate::counters::Counters;
    use crate::generation::{Generation, GenerationView};
    use crate::report::ThreadReport;
    use crate::workers::{ConnectError, SharedRequests, connect};
    use crate::zone::Zones;

    #[derive(Debug)]
    struct Silent;

    impl ThreadReport for Silent {
        fn line(&self, _: Level, _: Arguments<'_>) {}

        fn thread_begins(&self) {}

        fn serves_by(&self, _: &Generation) {}

        fn thread_ends(&self) {}
    }

    /// The names of connections, in the order in which they were told to end.
    type Ended = Rc<RefCell<Vec<&'static str>>>;

    /// A connection of either kind that ends when it is told to.
    struct Idle {
        name: &'static str,
        ended: Ended,
        leaves: RefCell<Option<Registered>>,
        has_asked: bool,
    }

    impl Spare for Idle {
        fn close(&self, _: Key) {
            self.ended.borrow_mut().push(self.name);
        }
    }

    impl ServedConnection for Idle {
        fn serial(&self) -> u64 {
            0
        }

        fn has_listener_in(&self, _: &GenerationView) -> bool {
            true
        }

        fn place(&self) -> Option<u32> {
            self.leaves.borrow().as_ref().map(Registered::place)
        }

        fn ends_when_idle(&self) -> bool {
            self.has_asked
        }

        fn close_reading(&self) {
            self.ended.borrow_mut().push(self.name);
            self.leaves.take();
        }

        fn abort(&self) {}

        fn pin_generation(&self, _: &Rc<GenerationView>) {}
    }

    fn client(worker: &Rc<Worker>, name: &'static str, ended: &Ended, has_asked: bool) -> Rc<Idle> {
        let client = Rc::new(Idle {
            name,
            ended: Rc::clone(ended),
            leaves: RefCell::default(),
            has_asked,
        });
        client.leaves.replace(Some(worker.register(&client)));
        client
    }

    fn idle_client(worker: &Rc<Worker>, name: &'static str, ended: &Ended) -> Rc<Idle> {
        let client = client(worker, name, ended, true);
        worker.set_idle(client.place().unwrap(), true);
        client
    }

    const KEY: Key = Key {
        index: 7,
        generation: 3,
    };

    fn on_a_thread_with(connections: usize, test: impl AsyncFnOnce(Rc<Worker>, Address)) {
        let mut runtime = sim::runtime(1, Faults::default(), engine::Settings::default()).unwrap();
        let address = Address::Inet("10.0.0.1:80".parse().unwrap());
        let (socket, address) = sim::listen(address).unwrap();
        runtime.block_on(async {
            let _listener = Listener::new(socket).unwrap();
            let generation = Arc::new(Generation::new(Zones::default()));
            let counters = Arc::new(Counters::default());
            let worker = Worker::start(generation, connections, counters, Vec::new(), &Silent);
            test(Rc::clone(&worker), address).await;
            worker.quit();
            worker.end().await;
        });
    }

    async fn connected(address: &Address) -> Result<engine::net::Stream, TooManyConnections> {
        let deadline = engine::now() + Duration::from_secs(60);
        match connect(address, deadline).await {
            Ok(stream) => Ok(stream),
            Err(ConnectError::TooManyConnections(shortage)) => Err(shortage),
            Err(ConnectError::Failed(failed)) => panic!("{failed}"),
        }
    }

    #[test]
    fn what_the_thread_connects_to_takes_a_place_and_leaves_some_to_clients() {
        on_a_thread_with(64, async |worker, address| {
            let ended = Ended::default();
            let clients: Vec<_> = (0..50)
                .map(|_| client(&worker, "busy", &ended, true))
                .collect();
            let mut streams = Vec::new();
            for _ in 0..10 {
                streams.push(connected(&address).await.unwrap());
            }
            let before = engine::now();
            let shortage = connected(&address).await.unwrap_err();
            assert_eq!(shortage.to_string(), "64 worker_connections are not enough");
            assert!(shortage.should_log);
            assert!(
                !connected(&address).await.unwrap_err().should_log,
                "not twice a second"
            );
            assert_eq!(engine::now(), before, "at once");
            assert_eq!(worker.has_room_for_client().await, Ok(()));
            let others: Vec<_> = (0..4)
                .map(|_| client(&worker, "busy", &ended, true))
                .collect();
            assert!(
                worker.has_room_for_client().await.is_err(),
                "all 64 are taken"
            );
            drop(streams.pop());
            assert_eq!(worker.has_room_for_client().await, Ok(()));
            drop((clients, others));
            connected(&address).await.unwrap();
            assert!(ended.borrow().is_empty());
        });
    }

    /// A request takes a place if other requests use its connection, and gives the place back.
    #[test]
    fn requests_that_share_a_connection_take_a_place_each() {
        on_a_thread_with(16, async |worker, address| {
            let ended = Ended::default();
            let _stream = connected(&address).await.unwrap();
            let (shared, other) = (SharedRequests::begin(), SharedRequests::begin());
            for _ in 0..13 {
                shared.has_room().await.unwrap();
                shared.enter();
            }
            assert_eq!(worker.taken(), 13, "the first has the connection's");
            let _idle = idle_client(&worker, "idle", &ended);
            shared.has_room().await.unwrap();
            shared.enter();
            assert_eq!(*ended.borrow(), ["idle"], "it makes room");
            shared.has_room().await.unwrap();
            shared.enter();
            let before = engine::now();
            let shortage = shared.has_room().await.unwrap_err();
            assert_eq!(shortage.to_string(), "16 worker_connections are not enough");
            assert!(connected(&address).await.is_err());
            assert_eq!(engine::now(), before, "at once");
            other.has_room().await.unwrap();
            other.enter();
            assert_eq!(worker.taken(), 15, "nobody has shared that one before");
            other.release();
            for left in (0..15).rev() {
                shared.release();
                assert_eq!(worker.taken(), left.max(1));
            }
        });
    }

    #[test]
    fn the_idlest_make_room_whoever_made_them() {
        on_a_thread_with(16, async |worker, address| {
            let ended = Ended::default();
            let _first = idle_client(&worker, "first", &ended);
            let kept = |name| {
                let idle = Rc::new(Idle {
                    name,
                    ended: Rc::clone(&ended),
                    leaves: RefCell::default(),
                    has_asked: false,
                });
                let spare = Rc::clone(&idle) as Rc<dyn Spare>;
                (SpareEntry::new(&spare, KEY).unwrap(), idle)
            };
            let (_entry, _kept) = kept("kept");
            let (in_use, _) = kept("in use again");
            let _third = idle_client(&worker, "third", &ended);
            drop(in_use);
            let mut streams = Vec::new();
            for _ in 0..12 {
                streams.push(connected(&address).await.unwrap());
            }
            assert!(ended.borrow().is_empty());
            for told in [
                &["first"][..],
                &["first", "kept"],
                &["first", "kept", "third"],
            ] {
                streams.push(connected(&address).await.unwrap());
                assert_eq!(*ended.borrow(), told);
            }
            assert!(
                connected(&address).await.is_err(),
                "one place is for clients"
            );
        });
    }

    #[test]
    fn a_client_that_has_just_connected_has_time_for_its_request() {
        on_a_thread_with(2, async |worker, address| {
            let ended = Ended::default();
            let fresh = client(&worker, "fresh", &ended, false);
            worker.set_idle(fresh.place().unwrap(), true);
            let _stream = connected(&address).await.unwrap();
            assert!(connected(&address).await.is_err());
            assert!(ended.borrow().is_empty());
            engine::sleep(SILENCE_MIN).await;
            assert!(connected(&address).await.is_ok());
            assert_eq!(*ended.borrow(), ["fresh"]);
        });
    }
}
