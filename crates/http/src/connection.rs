//! A client's connection as requests see it: its bytes, its generation, the virtual servers of its
//! address.
//!
//! The [connection task](crate::h1::connection_task) reads its requests and serves them.

use std::cell::{Cell, OnceCell, RefCell};
use std::num::NonZeroU32;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use engine::net::Address;
use framework::counters::ThreadCounters;
use framework::door::Accepted;
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
    /// The client that has connected.
    pub client: Client,
    /// Its bytes, in the clear or through TLS.
    pub stream: Transport,
    /// Requests begun on it.
    pub requests: Cell<u64>,
    /// The thread that serves it.
    pub worker: Rc<Worker>,
    /// Its place in the thread's list of connections, plus one so that the option takes no room.
    place: Cell<Option<NonZeroU32>>,
    /// Whether `TCP_NODELAY` has been set.
    pub nodelay: Cell<bool>,
    /// Whether a response has been pushed whole and has not begun to leave.
    finished: Cell<bool>,
    /// Whether it only waits for its client to have read all that it was sent.
    lingers: Cell<bool>,
    /// How long it may be idle, by the plan of its last request, and how much of that it is not
    /// closed early, whatever happens; in milliseconds, for there are many idle connections.
    keepalive_ms: Cell<(u32, u32)>,
    /// What few connections have.
    rare: OnceCell<Box<Rare>>,
    /// The client spoke plain HTTP to a port for TLS: its request gets an error page.
    pub plain_on_secure_port: Cell<bool>,
    /// Virtual servers of its address in the generation used last.
    servers: RefCell<Option<Servers>>,
    /// The error log of its last request, for what happens until the next.
    error_log: Cell<Option<Arc<ErrorLog>>>,
}

/// What few connections have, so that the others are small.
#[derive(Default)]
struct Rare {
    /// The generation it stays with, once a reload has taken its listener away.
    kept: OnceCell<Rc<GenerationView>>,
    /// What its streams share, where it speaks HTTP/2.
    http2: OnceCell<Weak<SharedConnection>>,
    /// What log lines say of it, where it is no client's.
    internal_request: OnceCell<Arc<str>>,
}

/// The virtual servers of a connection in one generation.
struct Servers {
    generation: u64,
    address: Arc<AddressServers>,
    /// What the client named in the handshake. A reload may have added the server of a name that
    /// led nowhere then.
    named: Option<Arc<Server>>,
}

impl Servers {
    /// The one that requests begin under.
    fn first(&self) -> &Arc<Server> {
        self.named.as_ref().unwrap_or(&self.address.default)
    }
}

impl Connection {
    /// A connection just accepted.
    pub fn new(accepted: Accepted) -> Connection {
        let Accepted {
            worker,
            stream,
            listener,
            serial,
            mut handed,
        } = accepted;
        Connection {
            client: Client::arrived(listener, serial, handed.as_deref()),
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

    /// Replaces the addresses of the socket by these two, for imagined requests (`tidegate
    /// explain`).
    #[must_use]
    pub fn between(self, peer: Address, local: Address) -> Connection {
        Connection {
            client: self.client.between(peer, local),
            ..self
        }
    }

    fn rare(&self) -> &Rare {
        self.rare.get_or_init(Box::default)
    }

    /// Notes that it speaks HTTP/2, and what its streams share.
    pub fn speaks_http2(&self, shared: &Rc<SharedConnection>) {
        let _ = self.rare().http2.set(Rc::downgrade(shared)); // it speaks it once
    }

    /// It is no client's: log lines say this of it.
    pub(crate) fn be_internal_request(&self, about: Arc<str>) {
        let _ = self.rare().internal_request.set(about); // it is about one thing
    }

    /// What log lines say of it, where it is no client's.
    pub(crate) fn internal_request(&self) -> Option<&str> {
        self.rare
            .get()?
            .internal_request
            .get()
            .map(|about| &**about)
    }

    /// What its streams share, as long as it speaks HTTP/2.
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

    /// Notes that a response has been pushed whole: it leaves before the connection waits for
    /// anything.
    pub fn finish_response(&self) {
        self.finished.set(true);
    }

    /// Sends finished responses that have not left, and what was pushed behind them. How many bytes
    /// the client has not taken; 0 where nothing was finished.
    pub(crate) fn send_finished(&self) -> usize {
        if self.finished.take() {
            self.stream.send_soon()
        } else {
            0
        }
    }

    /// Lets the client read what it was sent before the socket is closed: what it still sends is
    /// read and dropped for so long in all, and so long without another byte, so that no reset
    /// destroys the rest. As in nginx it may be closed meanwhile to make room for others, and does
    /// not end earlier with its thread.
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

    /// Whether it only waits for its client to have read all that it was sent.
    pub(crate) fn lingers(&self) -> bool {
        self.lingers.get()
    }

    /// Sets how long it may be idle, and how much of that it is not closed early: 49 days at most.
    pub fn keep_for(&self, timeout: Duration, min_timeout: Duration) {
        let ms = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        self.keepalive_ms.set((ms(timeout), ms(min_timeout)));
    }

    /// How long it may be idle, and how much of that it is not closed early.
    pub(crate) fn idle_time(&self) -> (Duration, Duration) {
        let (timeout, min_timeout) = self.keepalive_ms.get();
        let duration = |ms: u32| Duration::from_millis(ms.into());
        (duration(timeout), duration(min_timeout))
    }

    /// Whether it waits for something that the client has not promised, such as the next request:
    /// it may then be closed without loss.
    pub fn set_idle(&self, idle: bool) {
        if let Some(place) = self.place() {
            self.worker.set_idle(place, idle);
        }
    }

    /// Its place among the connections of its thread, once it has one.
    pub fn place(&self) -> Option<u32> {
        self.place.get().map(|place| place.get() - 1)
    }

    /// Notes the connection's place in the list of idle ones.
    pub fn set_place(&self, place: u32) {
        self.place.set(NonZeroU32::new(place.wrapping_add(1)));
    }

    /// The client's address of the connection.
    pub fn peer(&self) -> &Address {
        self.client.peer(|| self.stream.peer())
    }

    /// Whether `debug_connection` names its client: then every log gets every line about it.
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

    /// The generation that serves its next request.
    pub fn generation(&self) -> Rc<GenerationView> {
        let kept = self.rare.get().and_then(|rare| rare.kept.get());
        let kept = kept.map(Rc::clone);
        kept.unwrap_or_else(|| self.worker.current())
    }

    /// How long its first byte may take.
    pub fn first_byte_timeout(&self) -> Duration {
        let first = self.first_server(&self.generation());
        first.map_or(Duration::from_secs(60), |first| {
            first.core.client_header_timeout
        })
    }

    /// Lets it stay with a generation, since the next one does not know its listener. It ends
    /// with its next response.
    pub fn stay_with(&self, local: &Rc<GenerationView>) {
        let _ = self.rare().kept.set(Rc::clone(local)); // it stays with the first
    }

    /// Whether it ends with its next response, since its thread ends or a reload has set a limit to
    /// it.
    pub fn is_ending(&self) -> bool {
        self.worker.is_ending(self.client.serial)
    }

    /// Whether it ends where it waits for a request, for the same reasons.
    pub fn ends_idle(&self) -> bool {
        self.worker.ends_idle(self.client.serial)
    }

    /// Whether a reload has taken its listener away.
    pub fn is_left_over(&self) -> bool {
        self.rare
            .get()
            .is_some_and(|rare| rare.kept.get().is_some())
    }

    /// Keeps the error log of a request that has ended for what happens until the next.
    pub(crate) fn keep_error_log(&self, request: &Request) {
        let log = request.error_log();
        let kept = self.error_log.take();
        let same = kept.filter(|kept| Arc::ptr_eq(kept, log));
        self.error_log.set(same.or_else(|| Some(Arc::clone(log))));
    }

    /// The error log of its last request, or of its address's default server before the first.
    pub fn error_log(&self) -> Option<Arc<ErrorLog>> {
        let kept = self.error_log.take();
        self.error_log.set(kept.clone());
        kept.or_else(|| {
            let first = self.first_server(&self.worker.current())?;
            Some(Arc::clone(&first.plan.error_log))
        })
    }

    /// Looks at the virtual servers of the address it came by, in its generation.
    pub fn with_servers<R>(
        &self,
        local: &GenerationView,
        look: impl FnOnce(&AddressServers) -> R,
    ) -> Option<R> {
        self.find_servers(local)?;
        let servers = self.servers.borrow();
        servers.as_ref().map(|servers| look(&servers.address))
    }

    /// The server that its requests begin under, before they name their host: the address's
    /// default, or what the client has named in the handshake.
    pub fn first_server(&self, local: &GenerationView) -> Option<Arc<Server>> {
        self.with_first_server(local, Arc::clone)
    }

    /// Looks at that server.
    pub fn with_first_server<R>(
        &self,
        local: &GenerationView,
        look: impl FnOnce(&Arc<Server>) -> R,
    ) -> Option<R> {
        self.find_servers(local)?;
        let servers = self.servers.borrow();
        servers.as_ref().map(|servers| look(servers.first()))
    }

    /// Reads a head from all that has been received of it: by `limits`, those of the server that
    /// the request begins under, and from the name of another server on by that one's.
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

    /// Whether a request for `host` (empty: it names none) comes by a connection whose handshake
    /// was with another name, where the host's server asks for certificates.
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

    /// Finds its servers in a generation, once.
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

    /// Looks for its servers anew: the client has named one.
    pub fn forget_servers(&self) {
        *self.servers.borrow_mut() = None;
    }

    /// Whether a response kept in memory may answer its requests, and a head that repeats
    /// another's need not be looked at again.
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

/// A request's hold on its connection. A request kept for reuse holds none.
#[derive(Clone, Default)]
pub struct ConnectionHandle(Option<Rc<Connection>>);

impl ConnectionHandle {
    /// Makes a handle that holds this connection.
    pub fn new(connection: &Rc<Connection>) -> ConnectionHandle {
        ConnectionHandle(Some(Rc::clone(connection)))
    }

    /// Lets go of it.
    pub fn release(&mut self) {
        self.0 = None;
    }

    /// The connection itself, for another holder.
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
