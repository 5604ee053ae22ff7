//! A session: the state of one client's connection, from accept to its log line. [`phases`] has its
//! processing.

pub(crate) mod phases;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use engine::net::{Address, TcpInfo};
use framework::connection_handler::Accepted;
use framework::generation::GenerationView;
use proto::tls::ClientHello;
use proto::tls::preread::ClientHelloInfo;
use rules::access_log::Loggable;
use rules::limit_conn::{ConnectionCounting, ConnectionLimitState, LimitOutcome};
use rules::session_zones::{MeteredSession, SessionHandshake};
use transport::Transport;
use transport::client::{Client, HasClient};
use transport::listen::Protocols;
use transport::tls::session::Session as TlsSession;
use variables::{Captures, Context, Scratch, Values};

use crate::address::AddressServers;
use crate::connection::{ClientEnd, Connection};
use crate::plan::{Server, StreamLocal};
use crate::preread::seen::SeenConnect;
use crate::proxy::attempts::Attempt;

/// The final status of a session, as in `$status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// The session was served to its end.
    Ok = 200,
    /// The client has violated the protocol.
    BadRequest = 400,
    Forbidden = 403,
    /// An internal error.
    InternalServerError = 500,
    /// No peer could be connected to.
    BadGateway = 502,
    /// A limit of concurrent work is exceeded.
    ServiceUnavailable = 503,
}

impl Status {
    /// The status with this number; unknown numbers become an internal error.
    pub(crate) fn of(number: u16) -> Status {
        match number {
            200 => Status::Ok,
            400 => Status::BadRequest,
            403 => Status::Forbidden,
            502 | 504 => Status::BadGateway,
            503 => Status::ServiceUnavailable,
            _ => Status::InternalServerError,
        }
    }
}

/// The state of a session.
pub(crate) struct Session {
    pub(crate) connection: Rc<Connection>,
    /// The generation with which the session has started, which does not end before the session.
    pub(crate) generation: Rc<GenerationView>,
    pub(crate) stream: Rc<StreamLocal>,
    /// The servers of the listening address.
    pub(crate) servers: Arc<AddressServers>,
    /// The server that handles the session.
    pub(crate) server: Arc<Server>,
    /// The time of accept, or of the first datagram.
    pub(crate) began: Instant,
    /// Set when the session ends.
    pub(crate) status: Status,
    /// Bytes received from the client.
    pub(crate) received: Cell<u64>,
    /// Bytes sent to the client.
    pub(crate) sent: Cell<u64>,
    /// Attempts at upstream peers, the current one last.
    pub(crate) attempts: Vec<Attempt>,
    /// The current action, for the end of log lines: ` while …`.
    pub(crate) doing: &'static str,
    /// Whether the session is proxied, so that log lines contain byte counts.
    pub(crate) is_passed_on: bool,
    /// The client's address from a trusted proxy.
    pub(crate) realip_address: Option<Address>,
    /// Bytes that were read from the client and remain to be forwarded.
    pub(crate) preread: Cell<Bytes>,
    /// Number of bytes that the client sent in place of `preread`, if `mqtt_set_connect` has
    /// changed `preread`.
    pub(crate) preread_replaced: Cell<Option<u64>>,
    /// Whether the preread bytes have been counted.
    preread_counted: Cell<bool>,
    /// The client's handshake, if it was preread.
    pub(crate) preread_hello: Option<Box<ClientHelloInfo>>,
    /// An MQTT client's first packet, if it was preread.
    pub(crate) preread_connect: Option<Box<SeenConnect>>,
    /// Counts the session in its server's zone, if there is one.
    metered: Option<MeteredSession>,
    /// The session's places under connection limits.
    places: RefCell<ConnectionLimitState<Session>>,
    /// The client's ClientHello, during the handshake.
    pub(crate) hello: Option<Box<ClientHello>>,
    values: RefCell<Values>,
    captures: Captures,
    scratch: Scratch,
}

impl Session {
    /// A session that starts with the default server of its address.
    fn new(
        connection: Rc<Connection>,
        local: Rc<GenerationView>,
        stream: Rc<StreamLocal>,
        servers: Arc<AddressServers>,
    ) -> Session {
        Session {
            began: connection.client.started(),
            connection,
            generation: local,
            stream,
            server: Arc::clone(&servers.default),
            servers,
            status: Status::Ok,
            received: Cell::new(0),
            sent: Cell::new(0),
            attempts: Vec::new(),
            doing: " while initializing session",
            is_passed_on: false,
            realip_address: None,
            preread: Cell::default(),
            preread_replaced: Cell::new(None),
            preread_counted: Cell::new(false),
            preread_hello: None,
            preread_connect: None,
            metered: None,
            places: RefCell::default(),
            hello: None,
            values: RefCell::default(),
            captures: Captures::default(),
            scratch: Scratch::default(),
        }
    }

    /// A session without a client, for a check.
    pub(crate) fn without_client(
        accepted: Accepted,
        about: Arc<str>,
        server: &Arc<Server>,
    ) -> Box<Session> {
        let connection = Rc::new(Connection::without_client(accepted, about));
        let local = connection.generation();
        let stream = StreamLocal::of(&local);
        let servers = AddressServers {
            default: Arc::clone(server),
            names: None,
            protocols: Protocols::default(),
            header_per_datagram: false,
        };
        Box::new(Session::new(connection, local, stream, Arc::new(servers)))
    }

    /// A new session of the same client with this server, to evaluate variables in the names of its
    /// certificates during the handshake.
    pub(crate) fn beginning_of(&self, server: &Arc<Server>) -> Session {
        let (connection, servers) = (Rc::clone(&self.connection), Arc::clone(&self.servers));
        let (generation, stream) = (Rc::clone(&self.generation), Rc::clone(&self.stream));
        let session = Session::new(connection, generation, stream, servers);
        Session {
            server: Arc::clone(server),
            realip_address: self.realip_address.clone(),
            ..session
        }
    }

    /// Selects the server with this name (in lower case), if there is one.
    pub(crate) fn find_server(&mut self, name: &[u8]) {
        let servers = Arc::clone(&self.servers);
        if let Some(names) = &servers.names
            && let Ok(Some(server)) = names.find(name, self)
        {
            self.server = server;
            self.be_metered();
        }
    }

    /// Counts the session in its server's zone, and no longer in that of a previous server.
    fn be_metered(&mut self) {
        if let Some(before) = self.metered.take() {
            before.leave();
        }
        if let Some(zone) = self.server.status_zone {
            self.metered = Some(MeteredSession::begin(&self.generation, zone));
        }
    }

    /// Counts the outcome of the client's TLS handshake in the zone of its server.
    pub(crate) fn count_handshake(&self, outcome: SessionHandshake) {
        if let Some(metered) = &self.metered {
            metered.note_handshake(outcome);
        }
    }

    /// The client's address, or the address from a trusted proxy.
    pub(crate) fn peer(&self) -> &Address {
        let told = self.realip_address.as_ref();
        told.unwrap_or_else(|| self.connection.peer())
    }

    /// Counts the first datagram of a session over UDP; as in nginx, even if its content is not
    /// used.
    fn count_first(&self) {
        if let ClientEnd::Datagrams(end) = &self.connection.end {
            self.received.set(end.waiting() as u64);
        }
    }

    /// Discards the first datagram of a session over UDP whose content is not used, so that the
    /// datagram starts no other session.
    pub(crate) fn take_first(&self) {
        if let ClientEnd::Datagrams(end) = &self.connection.end {
            end.take();
        }
    }

    /// Whether bytes of a client over TCP are read before the session's content.
    pub(crate) fn has_been_read(&self) -> bool {
        let is_secure = self
            .connection
            .transport()
            .is_some_and(Transport::is_secure);
        let protocols = &self.servers.protocols;
        protocols.proxy_protocol || is_secure || !self.server.preread.is_off()
    }

    /// Counts the preread bytes as received, once.
    pub(crate) fn count_preread(&self) {
        if self.preread_counted.replace(true) {
            return;
        }
        let preread = self.preread.take();
        let length = preread.len() as u64;
        self.preread.set(preread);
        let received = self.preread_replaced.take().unwrap_or(length);
        self.received.set(self.received.get() + received);
    }
}

impl Context for Session {
    type Scope = StreamLocal;

    fn scope(&self) -> Rc<StreamLocal> {
        Rc::clone(&self.stream)
    }

    fn values(&self) -> &RefCell<Values> {
        &self.values
    }

    fn captures(&self) -> &Captures {
        &self.captures
    }

    fn captures_mut(&mut self) -> &mut Captures {
        &mut self.captures
    }

    fn scratch(&mut self) -> &mut Scratch {
        &mut self.scratch
    }

    fn peer(&self) -> &Address {
        Session::peer(self)
    }
}

impl HasClient for Session {
    fn client(&self) -> &Client {
        &self.connection.client
    }

    fn local(&self) -> &Address {
        self.connection.local()
    }

    fn session(&self) -> Option<&TlsSession> {
        self.connection.transport()?.session()
    }

    fn hello(&self) -> Option<&ClientHello> {
        let known = self.session().and_then(|session| session.hello.as_deref());
        self.hello.as_deref().or(known)
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        self.connection.transport()?.tcp_info()
    }
}

impl Session {
    /// The session's places under limits; the rest of the session is dropped.
    pub(crate) fn into_places(self: Box<Session>) -> ConnectionLimitState<Session> {
        self.places.into_inner()
    }
}

impl ConnectionCounting<Session> for Session {
    fn outcome(session: &Session) -> Option<LimitOutcome> {
        session.places.borrow().outcome
    }

    fn note(session: &Session, change: impl FnOnce(&mut ConnectionLimitState<Session>)) {
        change(&mut session.places.borrow_mut());
    }
}

impl Loggable for Session {
    /// Stream has no predefined log format.
    const COMBINED: Option<&'static str> = None;

    fn is_plain(name: &str) -> bool {
        matches!(
            name,
            "bytes_received"
                | "bytes_sent"
                | "msec"
                | "session_time"
                | "status"
                | "time_iso8601"
                | "time_local"
        )
    }

    // Sessions have no response head that a log line would have to wait for.
    fn is_early(_: &str) -> bool {
        true
    }

    fn root(&mut self) -> Option<std::path::PathBuf> {
        None
    }
}
