//! A client's connection as requests see it: its stream, its generation, the virtual servers of its
//! address.
//!
//! The [connection task](crate::h1::connection_task) reads its requests and serves them.

use std::cell::{Cell, OnceCell, RefCell};
use std::num::NonZeroU32;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use engine::net::Address;
use framework::connection_handler::Accepted;
use framework::counters::ThreadCounters;
use framework::generation::GenerationView;
use framework::workers::Worker;
use logs::ErrorLog;
use proto::h1::{self, HeadError};
use transport::Transport;
use transport::client::Client;
use transport::incoming::Incoming;

use crate::config::address::AddressServers;
use crate::config::plan::Server;
use crate::http2::stream::SharedConnection;
use crate::request::Request;
use crate::thread_state::HttpThreadState;

/// A client's connection as requests see it.
pub struct Connection {
    /// The client: its addresses and the time at which it connected.
    pub client: Client,
    /// The byte stream, in the clear or through TLS.
    pub stream: Transport,
    /// How many requests have begun on the connection.
    pub requests: Cell<u64>,
    /// The thread that serves the connection.
    pub worker: Rc<Worker>,
    /// The connection's place in the thread's list of connections, plus 1, so that `None` needs no
    /// extra memory.
    place: Cell<Option<NonZeroU32>>,
    /// Whether `TCP_NODELAY` has been set.
    pub nodelay: Cell<bool>,
    /// Whether a complete response is queued whose sending has not started.
    finished: Cell<bool>,
    /// Whether the connection is in lingering close: it only waits for the client to read the rest
    /// of the response.
    lingers: Cell<bool>,
    /// `keepalive_timeout` and `keepalive_min_timeout` of the last request's plan, in milliseconds.
    /// 32 bits each, since there are many idle connections.
    keepalive_ms: Cell<(u32, u32)>,
    /// State that few connections have.
    rare: OnceCell<Box<Rare>>,
    /// Whether the client spoke plain HTTP to a port for TLS, so that its request gets an error
    /// page.
    pub plain_on_secure_port: Cell<bool>,
    /// The virtual servers of the connection's address, in the generation that was used last.
    servers: RefCell<Option<Servers>>,
    /// The error log of the connection's last request, for errors before the next request.
    error_log: Cell<Option<Arc<ErrorLog>>>,
}

/// State that few connections have, in a box of its own so that the others are small.
#[derive(Default)]
struct Rare {
    /// The generation that the connection keeps using, if a reload has removed the connection's
    /// listener.
    kept: OnceCell<Rc<GenerationView>>,
    /// The HTTP/2 connection that the streams of this connection share.
    http2: OnceCell<Weak<SharedConnection>>,
    /// The name of the connection in log lines, if Tidegate itself makes its request (an internal
    /// request).
    internal_request: OnceCell<Arc<str>>,
}

/// The virtual servers of a connection in one generation.
struct Servers {
    /// The number of the generation.
    generation: u64,
    /// The servers of the address that the client connected to.
    address: Arc<AddressServers>,
    /// The server that the client named by SNI. Looked up again in each generation, since a reload
    /// may have added the server.
    named: Option<Arc<Server>>,
}

impl Servers {
    /// The server that requests begin under.
    fn first(&self) -> &Arc<Server> {
        self.named.as_ref().unwrap_or(&self.address.default)
    }
}

impl Connection {
    /// Makes the state of a connection that has just been accepted.
    pub fn new(accepted: Accepted) -> Connection {
        let Accepted {
            worker,
            stream,
            listener,
            serial,
            mut handed,
        } = accepted;
        Connection {
            client: Client::arrived(listener, serial, handed.as_deref_mut()),
            stream: Transport::of(stream, handed.as_deref_mut()),
            requests: Cell::new(0),
            worker,
            place: Cell::new(None),
            nodelay: Cell::new(false),
            finished: Cell::new(false),
            lingers: Cell::new(false),
            keepalive_ms: Cell::new((0, 0)),
            rare: OnceCell::new(),
            plain_on_secure_port: Cell::new(false),
            servers: RefCell::new(None),
            error_log: Cell::new(None),
        }
    }

    /// Replaces the socket's addresses by `peer` and `local`, for the requests that `tidegate
    /// explain` makes up.
    #[must_use]
    pub fn with_addresses(self, peer: Address, local: Address) -> Connection {
        Connection {
            client: self.client.with_addresses(peer, local),
            ..self
        }
    }

    /// The rare state, which is created at the first use.
    fn rare(&self) -> &Rare {
        self.rare.get_or_init(Box::default)
    }

    /// Notes that the connection speaks HTTP/2.
    pub fn speaks_http2(&self, shared: &Rc<SharedConnection>) {
        let _ = self.rare().http2.set(Rc::downgrade(shared)); // called once
    }

    /// Marks the connection as one of an internal request, and sets its name in log lines.
    pub(crate) fn mark_internal(&self, about: Arc<str>) {
        let _ = self.rare().internal_request.set(about); // called once
    }

    /// The name of the connection in log lines, if its request is an internal one.
    pub(crate) fn internal_request(&self) -> Option<&str> {
        self.rare
            .get()?
            .internal_request
            .get()
            .map(|about| &**about)
    }

    /// The HTTP/2 connection that the streams share; `None` for HTTP/1, and after the HTTP/2
    /// connection has ended.
    pub fn http2(&self) -> Option<Rc<SharedConnection>> {
        self.rare.get()?.http2.get()?.upgrade()
    }

    /// Counts a request that begins, and returns its sequence number on the connection, from 1.
    pub fn count_request(&self) -> u64 {
        let number = self.requests.get() + 1;
        self.requests.set(number);
        self.worker.counts().requests.add(1);
        number
    }

    /// Notes that a complete response is queued, which is sent before the connection waits for
    /// anything.
    pub fn finish_response(&self) {
        self.finished.set(true);
    }

    /// Sends the complete responses that are queued, and the bytes queued behind them. Returns how
    /// many bytes remain unsent; 0 if no complete response was queued.
    pub(crate) fn send_finished(&self) -> usize {
        if self.finished.take() {
            self.stream.send_soon()
        } else {
            0
        }
    }

    /// Lingering close: reads and discards what the client still sends, so that a TCP reset does
    /// not destroy the rest of the response. Ends after `time`, or after `timeout` without another
    /// byte. As in nginx, the connection counts as idle meanwhile and may be closed to make room,
    /// and a thread that ends waits for the connection.
    pub(crate) async fn linger(&self, time: Duration, timeout: Duration) {
        if self.stream.drained(0).await.is_err() {
            return;
        }
        self.stream.shutdown_write();
        self.stream.drop_received();
        self.lingers.set(true);
        self.set_idle(true);
        let end = engine::now() + time;
        loop {
            let deadline = (engine::now() + timeout).min(end);
            match self.stream.recv(Some(deadline)).await {
                Ok(received) if !received.is_empty() => {}
                _ => return,
            }
        }
    }

    /// Whether the connection is in lingering close: it only waits for the client to read the rest
    /// of the response.
    pub(crate) fn lingers(&self) -> bool {
        self.lingers.get()
    }

    /// Sets the connection's `keepalive_timeout` and `keepalive_min_timeout`; at most 49 days are
    /// kept.
    pub fn keep_for(&self, timeout: Duration, min_timeout: Duration) {
        let ms = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        self.keepalive_ms.set((ms(timeout), ms(min_timeout)));
    }

    /// How long the connection may be idle, and for how much of this time it must not be closed to
    /// make room.
    pub(crate) fn idle_time(&self) -> (Duration, Duration) {
        let (timeout, min_timeout) = self.keepalive_ms.get();
        let duration = |ms: u32| Duration::from_millis(ms.into());
        (duration(timeout), duration(min_timeout))
    }

    /// Sets whether the connection is idle, that is, waits for something that the client need not
    /// send, such as the next request. An idle connection may be closed to make room.
    pub fn set_idle(&self, idle: bool) {
        if let Some(place) = self.place() {
            self.worker.set_idle(place, idle);
        }
    }

    /// The connection's place in the thread's list of connections, once it has one.
    pub fn place(&self) -> Option<u32> {
        self.place.get().map(|place| place.get() - 1)
    }

    /// Sets the connection's place in the thread's list of connections.
    pub fn set_place(&self, place: u32) {
        self.place.set(NonZeroU32::new(place.wrapping_add(1)));
    }

    /// The address of the client.
    pub fn peer(&self) -> &Address {
        self.client.peer(|| self.stream.peer())
    }

    /// Whether `debug_connection` names the client, so that all logs get all debug lines about the
    /// connection.
    #[inline]
    pub fn is_debugged(&self) -> bool {
        self.client.is_debugged(|| {
            let http = HttpThreadState::of(&self.generation());
            let named = &http.debug_connections.0;
            !named.is_empty() && named.contains(self.peer())
        })
    }

    /// The address that the client connected to.
    pub fn local(&self) -> &Address {
        self.client.local(|| self.stream.local())
    }

    /// The generation that serves the connection's next request.
    pub fn generation(&self) -> Rc<GenerationView> {
        let kept = self.rare.get().and_then(|rare| rare.kept.get());
        let kept = kept.map(Rc::clone);
        kept.unwrap_or_else(|| self.worker.current())
    }

    /// How long the client may take to send its first byte.
    pub fn first_byte_timeout(&self) -> Duration {
        let first = self.first_server(&self.generation());
        first.map_or(Duration::from_secs(60), |first| {
            first.core.client_header_timeout
        })
    }

    /// Makes the connection keep using a generation, since the next generation does not have the
    /// connection's listener. The connection ends with its next response.
    pub fn pin_generation(&self, local: &Rc<GenerationView>) {
        let _ = self.rare().kept.set(Rc::clone(local)); // only the first call counts
    }

    /// Whether the connection ends with its next response: its thread is ending, or a reload has
    /// set a deadline.
    pub fn is_ending(&self) -> bool {
        self.worker.is_ending(self.client.serial)
    }

    /// Whether the connection ends while it waits for a request: its thread is ending, or a reload
    /// has set a deadline.
    pub fn closes_idle(&self) -> bool {
        self.worker.closes_idle(self.client.serial)
    }

    /// Whether a reload has removed the connection's listener.
    pub fn has_lost_listener(&self) -> bool {
        self.rare
            .get()
            .is_some_and(|rare| rare.kept.get().is_some())
    }

    /// Keeps the error log of a request that has ended, for errors before the next request.
    pub(crate) fn keep_error_log(&self, request: &Request) {
        let log = request.error_log();
        let kept = self.error_log.take();
        let same = kept.filter(|kept| Arc::ptr_eq(kept, log));
        self.error_log.set(same.or_else(|| Some(Arc::clone(log))));
    }

    /// The error log of the connection's last request; before the first, that of the address's
    /// default server.
    pub fn error_log(&self) -> Option<Arc<ErrorLog>> {
        let kept = self.error_log.take();
        self.error_log.set(kept.clone());
        kept.or_else(|| {
            let first = self.first_server(&self.worker.current())?;
            Some(Arc::clone(&first.plan.error_log))
        })
    }

    /// Calls `look` with the virtual servers of the address that the client connected to.
    pub fn with_servers<R>(
        &self,
        local: &GenerationView,
        look: impl FnOnce(&AddressServers) -> R,
    ) -> Option<R> {
        self.find_servers(local)?;
        let servers = self.servers.borrow();
        servers.as_ref().map(|servers| look(&servers.address))
    }

    /// The server of requests whose host is not known yet: the server that the client named by SNI,
    /// else the default server of the address.
    pub fn first_server(&self, local: &GenerationView) -> Option<Arc<Server>> {
        self.with_first_server(local, Arc::clone)
    }

    /// Calls `look` with the server of requests whose host is not known yet.
    pub fn with_first_server<R>(
        &self,
        local: &GenerationView,
        look: impl FnOnce(&Arc<Server>) -> R,
    ) -> Option<R> {
        self.find_servers(local)?;
        let servers = self.servers.borrow();
        servers.as_ref().map(|servers| look(servers.first()))
    }

    /// Parses a head from all bytes that have been received of it. `limits` are those of the [first
    /// server](Self::first_server). Once the head has named the host of another server, that
    /// server's limits apply.
    pub fn parse_head(
        &self,
        local: &GenerationView,
        limits: &h1::Limits,
        bytes: &[u8],
        head: &mut h1::Head,
    ) -> Result<Option<usize>, HeadError> {
        h1::parse_head_for(bytes, limits, head, |host| {
            if self.is_misdirected(local, host) {
                return Err(HeadError::Misdirected);
            }
            let changed = self.with_servers(local, |servers| servers.head_limits_after(host));
            Ok(changed.flatten())
        })
    }

    /// Whether a request for `host` (empty if it names none) is misdirected: the client named
    /// another host by SNI, and the server of `host` asks for client certificates.
    pub(crate) fn is_misdirected(&self, local: &GenerationView, host: &[u8]) -> bool {
        let session = self.stream.session();
        let Some(negotiated) = session.and_then(|session| session.server_name.as_ref()) else {
            return false;
        };
        if negotiated.eq_ignore_ascii_case(host) || self.find_servers(local).is_none() {
            return false;
        }
        let servers = self.servers.borrow();
        let named = servers.as_ref().filter(|servers| servers.named.is_some());
        named.is_some_and(|servers| servers.address.wants_certificates(host))
    }

    /// Looks up the virtual servers in a generation, unless they are cached.
    fn find_servers(&self, local: &GenerationView) -> Option<()> {
        let generation = local.generation.number;
        let known = self.servers.borrow();
        if known
            .as_ref()
            .is_some_and(|known| known.generation == generation)
        {
            return Some(());
        }
        drop(known);
        let http = HttpThreadState::of(local);
        let bound = http.binding(&self.client.listener)?;
        let address = if bound.specific.is_empty() {
            Arc::clone(&bound.servers)
        } else {
            bound.servers_for(self.local())
        };
        let session = self.stream.session();
        let name = session.and_then(|session| session.server_name.as_ref());
        let named = match name {
            Some(name) => address.names.find_name(name).ok()?,
            None => None,
        };
        *self.servers.borrow_mut() = Some(Servers {
            generation,
            address,
            named,
        });
        Some(())
    }

    /// Drops the cached virtual servers, because the client's SNI has become known.
    pub fn forget_servers(&self) {
        *self.servers.borrow_mut() = None;
    }

    /// Whether prebuilt responses may answer the connection's requests, and a head that equals the
    /// last one need not be parsed.
    pub fn takes_shortcuts(&self) -> bool {
        let session = self.stream.session();
        !self.plain_on_secure_port.get()
            && !self.is_debugged()
            && !session.is_some_and(|session| session.asks_for_certificate())
    }
}

impl Incoming for Connection {
    fn client(&self) -> &Client {
        &self.client
    }

    fn transport(&self) -> &Transport {
        &self.stream
    }

    fn counts(&self) -> &ThreadCounters {
        self.worker.counts()
    }

    fn generation(&self) -> Rc<GenerationView> {
        Connection::generation(self)
    }

    fn set_idle(&self, idle: bool) {
        Connection::set_idle(self, idle);
    }
}

/// A request's reference to its connection. A request in the pool has none.
#[derive(Clone, Default)]
pub struct ConnectionHandle(Option<Rc<Connection>>);

impl ConnectionHandle {
    /// A reference to this connection.
    pub fn new(connection: &Rc<Connection>) -> ConnectionHandle {
        ConnectionHandle(Some(Rc::clone(connection)))
    }

    /// Drops the reference.
    pub fn release(&mut self) {
        self.0 = None;
    }

    /// The connection as a shared pointer; `None` in the pool.
    pub fn shared(&self) -> Option<&Rc<Connection>> {
        self.0.as_ref()
    }
}

impl std::ops::Deref for ConnectionHandle {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        let held = self.0.as_deref();
        // invariant: the pool takes the connection away when nobody can reach the request
        held.expect("a request in use holds its connection")
    }
}
