//! The connection handler of addresses that speak memcached's protocols: a task a connection.

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use engine::net::{Address, DatagramSocket};
use framework::connection_handler::{
    Accepted, ConnectionHandler, ListenerId, ReceivedDatagram, ServedConnection,
};
use framework::generation::GenerationView;
use framework::workers::Worker;
use framework::zone::Zone;
use logs::ErrorLog;
use rules::access::Access;
use rules::access_log::AccessLogs;
use rules::limit_conn::LimitConn;
use rules::session_zones::MeteredSession;
use transport::Transport;
use transport::client::Client;
use variables::Table;

use crate::auth::ServerAuth;
use crate::cache::{Cache, ThreadContext};
use crate::connections::{ConnectionRecord, ConnectionState, shown_number};
use crate::counts::Counter;
use crate::datagrams;
use crate::dialogue::{Dialogue, NextAction};
use crate::output::{OUTPUT_MAX, Output};
use crate::session::{CloseReason, Session, Traffic};
use crate::tls::{ClientTls, ShakingClient};
use crate::watch::{EventKind, EventKinds, Origin, Watcher, Watchers};
use crate::zone::ZonedCache;

/// What a client is told that is one too many.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// A client that takes nothing of its answers for so long is closed.
const SEND_TIMEOUT: Duration = Duration::from_secs(300);

/// Most datagrams that wait for the end of a turn.
const UNSENT_MAX: usize = 64;

/// How often a watcher's lines are sent.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);

/// What of a configuration is this protocol's.
#[derive(Default)]
pub struct MemcachedPart {
    /// Its servers, each at one address.
    pub servers: Vec<Arc<Server>>,
    /// Variables of sessions.
    pub(crate) variables: Table<Session>,
}

impl MemcachedPart {
    /// Servers that have neither logs of sessions nor limits with variables.
    #[must_use]
    pub fn of_servers(servers: Vec<Server>) -> MemcachedPart {
        MemcachedPart {
            servers: servers.into_iter().map(Arc::new).collect(),
            variables: Table::default(),
        }
    }
}

/// One address, and the cache that answers there.
pub struct Server {
    /// The socket of the server.
    pub listener: ListenerId,
    /// The cache of the server.
    pub cache: CacheOf,
    /// Which clients are let in.
    pub access: Arc<Access>,
    /// Clients speak TLS, if they do.
    pub tls: Option<ClientTls>,
    /// The log of the server; none where there is only standard error.
    pub error_log: Option<Arc<ErrorLog>>,
    /// How clients say who they are, where a configuration says it.
    pub(crate) auth: Option<Arc<ServerAuth>>,
    /// What is written of a session when it ends.
    pub(crate) access_logs: Option<Arc<AccessLogs<Session>>>,
    /// How many connections there may be.
    pub(crate) limit_conn: Option<Arc<LimitConn<Session>>>,
    /// The zone that its sessions are counted in, if any, by its number.
    pub(crate) status_zone: Option<usize>,
}

impl Server {
    /// A server that lets everybody in and says nothing of its sessions.
    #[must_use]
    pub fn new(listener: ListenerId, cache: CacheOf, tls: Option<ClientTls>) -> Server {
        Server {
            listener,
            cache,
            access: Arc::new(Access::default()),
            tls,
            error_log: None,
            auth: None,
            access_logs: None,
            limit_conn: None,
            status_zone: None,
        }
    }

    /// Whether anything is known of its sessions but what they carry.
    fn has_sessions(&self) -> bool {
        self.access_logs.is_some() || self.limit_conn.is_some()
    }
}

/// Where a server's cache comes from.
pub enum CacheOf {
    /// The process has one.
    Process(Arc<Cache>),
    /// A zone of the configuration.
    Zone(Arc<Zone<ZonedCache>>),
}

impl CacheOf {
    fn get(&self) -> Arc<Cache> {
        match self {
            CacheOf::Process(cache) => Arc::clone(cache),
            CacheOf::Zone(zone) => zone.state().cache(zone.settings()),
        }
    }
}

impl MemcachedPart {
    fn server(&self, listener: &ListenerId) -> Option<&Arc<Server>> {
        self.servers
            .iter()
            .find(|server| server.listener == *listener)
    }
}

/// The connection handler of a thread.
#[must_use]
pub fn handler() -> Rc<dyn ConnectionHandler> {
    Rc::new(Memcached::default())
}

#[derive(Default)]
struct Memcached {
    /// What commands of this thread have at hand, for each cache that has had a client here.
    shared: RefCell<Vec<Rc<ThreadContext>>>,
    unsent: Rc<UnsentDatagrams>,
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

fn has_listener_in(local: &GenerationView, listener: &ListenerId) -> bool {
    part(local).is_some_and(|part| part.server(listener).is_some())
}

impl ConnectionHandler for Memcached {
    fn connected(&self, accepted: Accepted) {
        let local = accepted.worker.current();
        let Some(part) = part(&local) else {
            return;
        };
        let Some(server) = part.server(&accepted.listener) else {
            return;
        };
        let Accepted {
            worker,
            stream,
            listener,
            serial,
            mut handed,
        } = accepted;
        let client = Client::arrived(listener, serial, handed.as_deref_mut());
        let transport = Transport::of(stream, handed.as_deref_mut());
        let connection = Rc::new(Connection {
            client,
            transport,
            worker: Rc::clone(&worker),
            is_idle: Cell::new(true),
            traffic: Traffic::default(),
        });
        let metered = server.status_zone;
        let metered = metered.map(|zone| MeteredSession::begin(&local, zone));
        let has_sessions = server.has_sessions();
        let session = has_sessions.then(|| Session::new(&connection, &local, server));
        let mut books = SessionBooks { metered, session };
        if !server.access.is_empty() && server.access.denies(connection.peer()) == Some(true) {
            let (peer, address) = (connection.peer(), connection.client.listening());
            logs::event!(
                Error,
                "access forbidden by rule, client: {peer}, server: {address}"
            );
            return books.close(&connection, CloseReason::Forbidden);
        }
        let shared = self.shared(&server.cache.get());
        shared.cache.accepted.fetch_add(1, Ordering::Relaxed);
        let open = OpenConnection::new(&shared.cache);
        let most = shared.cache.settings.connections_max;
        let is_over = most.is_some_and(|most| open.number > most);
        if is_over || !books.is_within_limits() {
            shared.counts.add(Counter::Rejected, 1);
            // Who is to shake hands would not understand it.
            if server.tls.is_none() {
                connection
                    .transport
                    .push(bytes::Bytes::from_static(TOO_MANY));
                connection.traffic.send(TOO_MANY.len());
            }
            books.close(&connection, CloseReason::TooMany);
            if let Ok(connection) = Rc::try_unwrap(connection) {
                connection.transport.finish(); // nobody else has it yet
            }
            return;
        }
        let server = Arc::clone(server);
        let registered = worker.register(&connection);
        engine::spawn(async move {
            let _open = open;
            let reason = serve(&connection, &shared, &server).await;
            books.close(&connection, reason);
            let _ = registered; // it leaves the books with this task
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
        let shared = self.shared(&server.cache.get());
        shared.connection.set(0);
        let (socket, datagram) = (&received.socket, &received.datagram);
        let mut count = 0_usize;
        datagrams::answer(&datagram.bytes, &shared, shared.cache.moment(), |bytes| {
            // Where too many wait already for the network, the client asks again.
            socket.push(datagram.with(bytes));
            count += 1;
            // A long answer would fill the queue of the socket by itself.
            if count.is_multiple_of(UNSENT_MAX) {
                socket.start_send();
            }
        });
        self.unsent.send_soon(socket, count);
    }

    fn has_listener(&self, local: &GenerationView, listener: &ListenerId) -> bool {
        has_listener_in(local, listener)
    }

    fn rejection_message(&self) -> &'static [u8] {
        TOO_MANY
    }

    /// What belongs to a cache that nobody else has any more ends with it.
    fn forget(&self) {
        let mut all = self.shared.borrow_mut();
        all.retain(|shared| Arc::strong_count(&shared.cache) > 1);
    }
}

/// Datagrams that wait for the end of a turn of the loop, so that one call takes those of many
/// requests.
#[derive(Default)]
struct UnsentDatagrams {
    sockets: RefCell<Vec<Rc<DatagramSocket>>>,
    /// How many datagrams wait, over all sockets.
    count: Cell<usize>,
    /// Whether the end of a turn is heeded.
    is_hooked: Cell<bool>,
}

impl UnsentDatagrams {
    /// Has so many datagrams that were pushed leave at the end of the turn, or now if many wait.
    fn send_soon(self: &Rc<UnsentDatagrams>, socket: &Rc<DatagramSocket>, datagrams: usize) {
        if datagrams == 0 {
            return;
        }
        let mut sockets = self.sockets.borrow_mut();
        if !sockets.iter().any(|known| Rc::ptr_eq(known, socket)) {
            sockets.push(Rc::clone(socket));
        }
        drop(sockets);
        self.count.set(self.count.get() + datagrams);
        if self.count.get() >= UNSENT_MAX {
            self.send();
        } else if !self.is_hooked.replace(true) {
            let unsent = Rc::clone(self);
            engine::on_turn_end(move || unsent.send());
        }
    }

    fn send(&self) {
        if self.count.take() > 0 {
            for socket in self.sockets.borrow_mut().drain(..) {
                socket.start_send();
            }
        }
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

/// A client's connection.
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) transport: Transport,
    worker: Rc<Worker>,
    is_idle: Cell<bool>,
    pub(crate) traffic: Traffic,
}

impl Connection {
    /// The client's address.
    pub(crate) fn peer(&self) -> &Address {
        self.client.peer(|| self.transport.peer())
    }

    /// The address that the client has connected to.
    pub(crate) fn local(&self) -> &Address {
        self.client.local(|| self.transport.local())
    }
}

/// Where a connection is counted and logged.
struct SessionBooks {
    metered: Option<MeteredSession>,
    session: Option<Session>,
}

impl SessionBooks {
    fn is_within_limits(&mut self) -> bool {
        let session = self.session.as_mut();
        session.is_none_or(Session::is_within_limits)
    }

    /// The connection has ended.
    fn close(self, connection: &Connection, reason: CloseReason) {
        let traffic = &connection.traffic;
        if let Some(mut session) = self.session {
            session.end(reason);
        }
        if let Some(metered) = self.metered {
            metered.end(reason.status(), traffic.received.get(), traffic.sent.get());
        }
    }
}

impl ServedConnection for Connection {
    fn serial(&self) -> u64 {
        self.client.serial
    }

    fn has_listener_in(&self, next: &GenerationView) -> bool {
        has_listener_in(next, &self.client.listener)
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
            self.transport.shutdown_read();
        }
    }

    fn close_reading(&self) {
        self.transport.shutdown_read();
    }

    fn abort(&self) {
        self.transport.shutdown();
    }

    // The cache is the same for all generations.
    fn pin_generation(&self, _: &Rc<GenerationView>) {}
}

/// Serves a connection from its begin to its end.
async fn serve(connection: &Connection, shared: &ThreadContext, server: &Server) -> CloseReason {
    let (client, transport) = (&connection.client, &connection.transport);
    transport.set_send_timeout(SEND_TIMEOUT);
    let (peer, local) = (connection.peer().clone(), connection.local().clone());
    let cache = &shared.cache;
    // Who has shaken hands with the connection handler that has passed the connection need not do
    // so again.
    let tls = server.tls.as_ref().filter(|_| !transport.is_secure());
    let now = cache.seconds(engine::now());
    let record = Arc::new(ConnectionRecord::new(peer, local, now));
    cache.sockets.open(client.serial, &record);
    let watchers = &cache.gone.watchers;
    let number = shown_number(client.serial);
    if watchers.want(EventKind::Connections) {
        let origin = Origin(&record.peer);
        let line = format_args!("type=conn_new {origin} cfd={number}");
        watchers.tell(EventKind::Connections, line);
    }
    let mut reason = CloseReason::Error;
    let admitted = match tls {
        None => true,
        Some(tls) => {
            let shaking = ShakingClient {
                client,
                transport,
                tls,
                counts: connection.worker.counts(),
                generation: connection.worker.current(),
                error_log: server.error_log.as_ref(),
            };
            shaking.do_handshake(shared).await
        }
    };
    if admitted {
        reason = serve_commands(connection, shared, server, &record).await;
    }
    if transport.is_secure() {
        transport.shutdown_write(); // the client is told that no more comes
    }
    cache.sockets.close(client.serial);
    if watchers.want(EventKind::Connections) {
        let (origin, reason) = (Origin(&record.peer), reason.name());
        let line = format_args!("type=conn_close {origin} reason={reason} cfd={number}");
        watchers.tell(EventKind::Connections, line);
    }
    reason
}

/// Answers commands until either side closes.
async fn serve_commands(
    connection: &Connection,
    shared: &ThreadContext,
    server: &Server,
    record: &ConnectionRecord,
) -> CloseReason {
    let Connection {
        client,
        transport,
        worker,
        is_idle,
        traffic,
    } = connection;
    let mut dialogue = Dialogue::with_auth(server.auth.clone());
    let mut out = Output::default();
    let idle_timeout = shared.cache.settings.idle_timeout;
    loop {
        let received = match receive(transport, &dialogue, idle_timeout).await {
            Ok(received) if !received.is_empty() => received,
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                shared.counts.add(Counter::IdleKicks, 1);
                return CloseReason::IdleTimeout;
            }
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                shared.counts.add(Counter::TlsErrors, 1);
                return CloseReason::Error;
            }
            _ if worker.is_ending(client.serial) => return CloseReason::Shutdown,
            _ => return CloseReason::Normal,
        };
        is_idle.set(false);
        shared.counts.add(Counter::BytesRead, received.len() as u64);
        traffic.receive(received.len());
        let mut input: &[u8] = &received;
        loop {
            let moment = shared.cache.moment();
            shared.connection.set(client.serial);
            let next = dialogue.take(input, shared, moment, &mut out);
            input = &[];
            record.note(dialogue.shown_state(), moment.now);
            shared.counts.add(Counter::BytesWritten, out.len() as u64);
            traffic.send(out.len());
            traffic.commands.set(dialogue.commands_total);
            traffic.protocol.set(dialogue.protocol());
            out.take().for_each(|piece| transport.push(piece));
            let limit = match next {
                NextAction::Receive if transport.send_soon() <= OUTPUT_MAX => break,
                NextAction::Receive => OUTPUT_MAX,
                _ => 0,
            };
            if transport.drained(limit).await.is_err() {
                return CloseReason::Normal;
            }
            match next {
                NextAction::Receive => break,
                // Others have their turn, however quickly this client reads.
                NextAction::Send => engine::yield_now().await,
                NextAction::Close => return CloseReason::Normal,
                NextAction::CloseFaulty => return CloseReason::Error,
                NextAction::Watch(kinds) => {
                    return watch(connection, shared, record, kinds).await;
                }
            }
        }
        is_idle.set(dialogue.is_idle());
        if worker.is_ending(client.serial) && dialogue.is_idle() {
            let _ = transport.drained(0).await;
            return CloseReason::Shutdown;
        }
    }
}

/// Tells a client what happens, until it leaves.
async fn watch(
    connection: &Connection,
    shared: &ThreadContext,
    record: &ConnectionRecord,
    kinds: EventKinds,
) -> CloseReason {
    let Connection {
        client,
        transport,
        worker,
        is_idle,
        traffic,
    } = connection;
    let watchers = &shared.cache.gone.watchers;
    let Some(watcher) = watchers.add(kinds) else {
        let line = b"WATCHER_TOO_MANY log watcher limit reached\r\n";
        transport.push(bytes::Bytes::from_static(line));
        let _ = transport.drained(0).await;
        return CloseReason::Normal;
    };
    let watching = Watching { watchers, watcher };
    record.note(ConnectionState::Watch, shared.cache.seconds(engine::now()));
    transport.push(bytes::Bytes::from_static(b"OK\r\n"));
    is_idle.set(true); // it may be closed at any time
    loop {
        transport.send_soon();
        // What a watcher says has no meaning; that it leaves has.
        match transport.recv(Some(engine::now() + WATCH_INTERVAL)).await {
            Ok(received) if received.is_empty() => return CloseReason::Normal,
            Err(error) if error.kind() != ErrorKind::TimedOut => return CloseReason::Normal,
            _ => {}
        }
        if worker.is_ending(client.serial) {
            return CloseReason::Shutdown;
        }
        if transport.backlog() == 0 {
            let lines = watching.watcher.take();
            shared.counts.add(Counter::BytesWritten, lines.len() as u64);
            traffic.send(lines.len());
            if !lines.is_empty() {
                transport.push(bytes::Bytes::from(lines));
            }
        }
    }
}

/// A watcher, for as long as its connection is open.
struct Watching<'a> {
    watchers: &'a Watchers,
    watcher: Arc<Watcher>,
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.watchers.remove(&self.watcher);
    }
}

/// What the client sends next. Nothing where it sends nothing more.
async fn receive(
    transport: &Transport,
    dialogue: &Dialogue,
    idle_timeout: Option<Duration>,
) -> std::io::Result<engine::Buffer> {
    if dialogue.is_idle() {
        let deadline = idle_timeout.map(|timeout| engine::now() + timeout);
        transport.recv_idle(deadline.into()).await
    } else {
        transport.recv(None).await
    }
}
