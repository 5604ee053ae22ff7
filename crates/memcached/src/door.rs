//! The door of addresses that speak memcached's protocols: a task a connection.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use engine::net::{Address, Stream};
use framework::door::{Accepted, Door, ListenerId, ReceivedDatagram, Tenant};
use framework::generation::GenerationView;
use framework::workers::{Registered, Worker};
use framework::zone::Zone;
use rules::access::Access;

use crate::cache::{Cache, ThreadContext};
use crate::counts::Counter;
use crate::datagrams;
use crate::dialogue::{Dialogue, NextAction};
use crate::output::{OUTPUT_MAX, Output};
use crate::zone::ZonedCache;

/// What a client is told that is one too many.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// A client that takes nothing of its answers for so long is closed.
const SEND_TIMEOUT: Duration = Duration::from_secs(300);

/// What of a configuration is this protocol's.
pub struct MemcachedPart {
    /// Its servers, each at one address.
    pub servers: Vec<Server>,
}

/// One address, and the cache that answers there.
pub struct Server {
    /// The socket of the server.
    pub listener: ListenerId,
    /// The cache of the server.
    pub cache: CacheOf,
    /// Which clients are let in.
    pub access: Arc<Access>,
}

/// Where a server's cache comes from.
pub enum CacheOf {
    /// The process has one.
    Process(Arc<Cache>),
    /// A zone of the configuration.
    Zone(Arc<Zone<ZonedCache>>),
}

impl CacheOf {
    /// The cache, which the threads of this worker serve.
    fn get(&self, worker: &Worker) -> Arc<Cache> {
        match self {
            CacheOf::Process(cache) => Arc::clone(cache),
            CacheOf::Zone(zone) => {
                let threads = worker.counters().threads();
                zone.state().cache(*zone.settings(), threads)
            }
        }
    }
}

impl MemcachedPart {
    fn server(&self, listener: &ListenerId) -> Option<&Server> {
        self.servers
            .iter()
            .find(|server| server.listener == *listener)
    }
}

/// The door of a thread.
#[must_use]
pub fn door() -> Rc<dyn Door> {
    Rc::new(Memcached::default())
}

#[derive(Default)]
struct Memcached {
    /// What commands of this thread have at hand, for each cache that has had a client here.
    shared: RefCell<Vec<Rc<ThreadContext>>>,
}

impl Memcached {
    fn shared(&self, cache: &Arc<Cache>) -> Rc<ThreadContext> {
        let mut all = self.shared.borrow_mut();
        let mut known = all.iter();
        if let Some(known) = known.find(|shared| Arc::ptr_eq(&shared.cache, cache)) {
            return Rc::clone(known);
        }
        let shared = Rc::new(ThreadContext::new(Arc::clone(cache)));
        all.push(Rc::clone(&shared));
        shared
    }
}

fn part(local: &GenerationView) -> Option<Arc<MemcachedPart>> {
    local.generation.part::<MemcachedPart>()
}

fn is_known(local: &GenerationView, listener: &ListenerId) -> bool {
    part(local).is_some_and(|part| part.server(listener).is_some())
}

impl Door for Memcached {
    fn connected(&self, accepted: Accepted) {
        let Some(part) = part(&accepted.worker.current()) else {
            return;
        };
        let Some(server) = part.server(&accepted.listener) else {
            return;
        };
        let handed = accepted.handed.as_deref();
        if handed.is_some_and(|handed| handed.over.is_some()) {
            let address = accepted.listener.address();
            logs::event!(Error, "a connection of TLS was passed, server: {address}");
            return;
        }
        if !server.access.is_empty() {
            let own = || accepted.stream.peer();
            let client = handed.map_or_else(own, |handed| handed.peer.clone());
            if server.access.denies(&client) == Some(true) {
                let address = accepted.listener.address();
                logs::event!(
                    Error,
                    "access forbidden by rule, client: {client}, server: {address}"
                );
                return;
            }
        }
        let shared = self.shared(&server.cache.get(&accepted.worker));
        shared.cache.accepted.fetch_add(1, Ordering::Relaxed);
        let open = OpenConnection::new(&shared.cache);
        let most = shared.cache.settings.connections_max;
        if most.is_some_and(|most| open.number > most) {
            shared.counts.add(Counter::Rejected, 1);
            accepted.stream.push(bytes::Bytes::from_static(TOO_MANY));
            accepted.stream.finish();
            return;
        }
        let worker = Rc::clone(&accepted.worker);
        let connection = Rc::new(Connection {
            accepted,
            is_idle: Cell::new(true),
        });
        let registered = worker.register(&connection);
        engine::spawn(async move {
            let _open = open;
            serve(&connection, &registered, &shared).await;
        });
    }

    fn received(&self, received: ReceivedDatagram) {
        let Some(part) = part(&received.worker.current()) else {
            return;
        };
        let Some(server) = part.server(&received.listener) else {
            return;
        };
        let client = received.datagram.peer.map(Address::Inet);
        if client.is_some_and(|client| server.access.denies(&client) == Some(true)) {
            return; // a line for each would be a weapon: senders of datagrams may be made up
        }
        let shared = self.shared(&server.cache.get(&received.worker));
        let (socket, datagram) = (&received.socket, &received.datagram);
        datagrams::answer(&datagram.bytes, &shared, shared.cache.moment(), |bytes| {
            // Where too many wait already for the network, the client asks again.
            socket.push(datagram.with(bytes));
        });
        socket.start_send();
    }

    fn knows(&self, local: &GenerationView, listener: &ListenerId) -> bool {
        is_known(local, listener)
    }

    fn turned_away(&self) -> &'static [u8] {
        TOO_MANY
    }

    /// What belongs to a cache that nobody else has any more ends with it.
    fn forget(&self) {
        let mut all = self.shared.borrow_mut();
        all.retain(|shared| Arc::strong_count(&shared.cache) > 1);
    }
}

/// A connection among those that are open.
struct OpenConnection {
    cache: Arc<Cache>,
    /// How many there were then, this one among them.
    number: usize,
}

impl OpenConnection {
    fn new(cache: &Arc<Cache>) -> OpenConnection {
        let count: &AtomicUsize = &cache.connections;
        OpenConnection {
            number: count.fetch_add(1, Ordering::Relaxed) + 1,
            cache: Arc::clone(cache),
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.cache.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Connection {
    accepted: Accepted,
    is_idle: Cell<bool>,
}

impl Tenant for Connection {
    fn serial(&self) -> u64 {
        self.accepted.serial
    }

    fn is_known(&self, next: &GenerationView) -> bool {
        is_known(next, &self.accepted.listener)
    }

    // Clients keep connections for good: none is closed to make room for others.
    fn place(&self) -> Option<u32> {
        None
    }

    fn ends_when_idle(&self) -> bool {
        true
    }

    fn announce_end(&self) {
        if self.is_idle.get() {
            self.accepted.stream.shutdown_read();
        }
    }

    fn close_reading(&self) {
        self.accepted.stream.shutdown_read();
    }

    fn abort(&self) {
        self.accepted.stream.abort();
    }

    // The cache is the same for all generations.
    fn stay_with(&self, _: &Rc<GenerationView>) {}
}

/// Serves a connection until either side closes it.
async fn serve(connection: &Connection, registered: &Registered, shared: &ThreadContext) {
    let accepted = &connection.accepted;
    let stream = &accepted.stream;
    stream.set_send_timeout(SEND_TIMEOUT);
    let mut conversation = Dialogue::new();
    let mut out = Output::default();
    let idle_timeout = shared.cache.settings.idle_timeout;
    while let Some(received) = receive(stream, &conversation, idle_timeout).await {
        connection.is_idle.set(false);
        shared.counts.add(Counter::BytesRead, received.len() as u64);
        let mut input: &[u8] = &received;
        loop {
            let moment = shared.cache.moment();
            let next = conversation.take(input, shared, moment, &mut out);
            input = &[];
            shared.counts.add(Counter::BytesWritten, out.len() as u64);
            out.take().for_each(|piece| stream.push(piece));
            match next {
                NextAction::Close => return end(stream).await,
                NextAction::Receive if stream.send_soon() <= OUTPUT_MAX => break,
                NextAction::Receive => {
                    if stream.drained(OUTPUT_MAX).await.is_err() {
                        return;
                    }
                    break;
                }
                NextAction::Send => {
                    if stream.drained(0).await.is_err() {
                        return;
                    }
                    // Others have their turn, however quickly this client reads.
                    engine::yield_now().await;
                }
            }
        }
        connection.is_idle.set(conversation.is_idle());
        if accepted.worker.is_ending(accepted.serial) && conversation.is_idle() {
            return end(stream).await;
        }
    }
    let _ = registered; // it leaves the books with this task
}

/// What the client sends next. Nothing where it sends nothing more.
async fn receive(
    stream: &Stream,
    conversation: &Dialogue,
    idle_timeout: Option<Duration>,
) -> Option<engine::Buffer> {
    let received = if conversation.is_idle() {
        let deadline = idle_timeout.map(|timeout| engine::now() + timeout);
        stream.recv_idle(deadline).await
    } else {
        stream.recv(None).await
    };
    received.ok().filter(|received| !received.is_empty())
}

/// Sends what is left, then the connection closes with its task.
async fn end(stream: &Stream) {
    let _ = stream.drained(0).await;
}
