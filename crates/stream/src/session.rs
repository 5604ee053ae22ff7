//! A session: what becomes of one client's connection, from accept to its log line.
//!
//! nginx's phases: post-accept and preaccess (`set_real_ip_from`, `set`, `limit_conn`), access,
//! ssl, preread, content, log.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use engine::Buffer;
use engine::net::{Address, TcpInfo};
use framework::door::Accepted;
use framework::generation::GenerationView;
use framework::workers::Registered;
use logs::Printable;
use proto::tls::ClientHello;
use proto::tls::preread::Seen;
use rules::access_log::Logged;
use rules::limit_conn::{ConnectionCounting, LimitOutcome, Places};
use rules::session_zones::MeteredSession;
use transport::Transport;
use transport::client::{Client, OfClient};
use transport::listen::Protocols;
use transport::tls::session::Session as TlsSession;
use variables::{Captures, Context, Scratch, Values};

use crate::address::AddressServers;
use crate::connection::{ClientEnd, Connection};
use crate::datagrams::Listed;
use crate::handover::{self, Handover};
use crate::plan::{Content, Server, StreamLocal};
use crate::proxy::attempts::Attempt;
use crate::proxy_protocol::SessionRealIp;
use crate::subject::WithoutFields;
use crate::{proxy, proxy_protocol, returned, tls};

/// How a session has ended, as `$status` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// It was served to its end.
    Ok = 200,
    /// The client has not kept to what is spoken.
    BadRequest = 400,
    Forbidden = 403,
    /// Something of ours has failed.
    InternalServerError = 500,
    /// No peer could be connected to.
    BadGateway = 502,
    /// More is to be done than may be at a time.
    ServiceUnavailable = 503,
}

impl Status {
    /// That of a number: what is no other's is a fault of ours.
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

pub(crate) struct Session {
    pub(crate) connection: Rc<Connection>,
    /// The one that the session has begun by, which does not end before it.
    pub(crate) generation: Rc<GenerationView>,
    pub(crate) stream: Rc<StreamLocal>,
    /// Those of the address that it came by.
    pub(crate) servers: Arc<AddressServers>,
    /// The one of them that serves it.
    pub(crate) server: Arc<Server>,
    pub(crate) began: Instant,
    /// Set when the session ends.
    pub(crate) status: Status,
    /// Bytes received from the client.
    pub(crate) received: Cell<u64>,
    /// Bytes sent to the client.
    pub(crate) sent: Cell<u64>,
    /// Tries at upstream peers, the one under way last.
    pub(crate) attempts: Vec<Attempt>,
    /// What is being done, as log lines end: ` while …`.
    pub(crate) doing: &'static str,
    /// The client's address as a trusted proxy has told it.
    pub(crate) told_peer: Option<Address>,
    /// What was read of the client and is still to be passed on.
    pub(crate) preread: Cell<Bytes>,
    /// What was seen of the client's handshake, where it is left to others.
    pub(crate) preread_hello: Option<Box<Seen>>,
    /// The place that it has among the sessions of its server's zone, if there is one.
    metered: Option<MeteredSession>,
    /// The places that it has under limits.
    places: RefCell<Places<Session>>,
    /// What the client has offered in its handshake, as long as that goes on.
    pub(crate) hello: Option<Box<ClientHello>>,
    values: RefCell<Values>,
    captures: Captures,
    scratch: Scratch,
}

/// Serves a connection from accept to close. The connection counts as one of its thread for as long
/// as it is `registered`, and further datagrams of its client come to it while it is `listed`.
pub(crate) async fn serve(
    connection: Rc<Connection>,
    registered: Registered,
    mut listed: Option<Listed>,
) {
    let local = connection.generation();
    let stream = StreamLocal::of(&local);
    if let Some(binding) = stream.binding(&connection.client.listener) {
        let servers = binding.servers_for(|| connection.local().clone());
        let mut session = Box::new(Session::new(connection, local, Rc::clone(&stream), servers));
        match run(&mut session, &mut listed).await {
            Ok(SessionOutcome::Passed(passage)) => pass(session, passage),
            Ok(SessionOutcome::Ended(status)) | Err(status) => end(&mut session, status),
        }
    }
    drop(registered);
    // Only now may a session of the same client begin, whose first datagram has come already.
    drop(listed);
}

/// What has become of a session.
enum SessionOutcome {
    Ended(Status),
    /// Its connection goes to another door.
    Passed(Handover),
}

/// Logs a session that has ended, and tells its client.
fn end(session: &mut Session, status: Status) {
    session.status = status;
    log(session);
    if let Some(metered) = session.metered.take() {
        metered.end(status as u16, session.received.get(), session.sent.get());
    }
    if let Some(transport) = session.connection.transport() {
        transport.announce_end();
    }
}

/// Has a session's connection go to another door, which logs what becomes of it.
fn pass(session: Box<Session>, passage: Handover) {
    let peer = session.peer().clone();
    let connection = Rc::clone(&session.connection);
    drop(session);
    if let Ok(connection) = Rc::try_unwrap(connection) {
        handover::hand_over(connection, peer, passage);
    }
}

/// Goes through the phases; the error is a session that has ended early.
async fn run(session: &mut Session, listed: &mut Option<Listed>) -> Result<SessionOutcome, Status> {
    session.greet();
    session.be_metered();
    let mut received = Buffer::empty();
    if session.servers.protocols.proxy_protocol {
        received = proxy_protocol::read(session).await?;
    }
    if let Err(status) = check(session) {
        session.take_first();
        return Err(status);
    }
    let is_secure = session
        .connection
        .transport()
        .is_some_and(Transport::is_secure);
    // Another door may have shaken hands before it handed the connection over.
    if session.servers.protocols.ssl && !is_secure {
        tls::accept(session, std::mem::take(&mut received)).await?;
    }
    let server = Arc::clone(&session.server);
    if server.preread.is_off() {
        session.preread.set(received.into_bytes());
    } else {
        server.preread.look(session, received).await?;
    }
    let server = Arc::clone(&session.server);
    let status = match &server.content {
        Content::Return(text) => returned::serve(session, text).await,
        Content::Proxy(settings) => proxy::serve(session, settings, listed).await,
        Content::Pass(pass) => return handover::find(session, pass).map(SessionOutcome::Passed),
        Content::Nothing => Status::InternalServerError,
    };
    Ok(SessionOutcome::Ended(status))
}

/// Whether the session may go on, as far as that is known before its client has said anything.
///
/// # Errors
/// How it ends where it may not.
fn check(session: &mut Session) -> Result<(), Status> {
    let server = Arc::clone(&session.server);
    if !server.real_ip.is_off() && session.connection.client.told().is_some() {
        server.real_ip.apply::<Session, SessionRealIp>(session);
    }
    server.assignments.apply(session);
    if server.limit_conn.enter::<Session>(session).is_err() {
        return Err(Status::ServiceUnavailable);
    }
    if server.access.denies(session.peer()) == Some(true) {
        logs::error!(session, Error, "access forbidden by rule");
        return Err(Status::Forbidden);
    }
    Ok(())
}

/// Writes the session's line to each access log.
fn log(session: &mut Session) {
    session.doing = " while logging session";
    let server = Arc::clone(&session.server);
    server.access_logs.write(session);
}

impl Session {
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
            told_peer: None,
            preread: Cell::default(),
            preread_hello: None,
            metered: None,
            places: RefCell::default(),
            hello: None,
            values: RefCell::default(),
            captures: Captures::default(),
            scratch: Scratch::default(),
        }
    }

    /// A session that no client has begun, as a server's are.
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
        };
        Box::new(Session::new(connection, local, stream, Arc::new(servers)))
    }

    /// A session of the same client with a server, of which no more is known than at its beginning.
    pub(crate) fn beginning_of(&self, server: &Arc<Server>) -> Session {
        let (connection, servers) = (Rc::clone(&self.connection), Arc::clone(&self.servers));
        let (generation, stream) = (Rc::clone(&self.generation), Rc::clone(&self.stream));
        let session = Session::new(connection, generation, stream, servers);
        Session {
            server: Arc::clone(server),
            told_peer: self.told_peer.clone(),
            ..session
        }
    }

    /// The server that a name in lower case leads to, if any does, serves the session from now on.
    pub(crate) fn find_server(&mut self, name: &[u8]) {
        let servers = Arc::clone(&self.servers);
        if let Some(names) = &servers.names
            && let Ok(Some(server)) = names.find(name, self)
        {
            self.server = server;
            self.be_metered();
        }
    }

    /// Counts the session among those of its server's zone, and no longer among those of another.
    fn be_metered(&mut self) {
        if let Some(before) = self.metered.take() {
            before.leave();
        }
        if let Some(zone) = self.server.status_zone {
            self.metered = Some(MeteredSession::begin(&self.generation, zone));
        }
    }

    /// The client's address, or the one that a trusted proxy has told.
    pub(crate) fn peer(&self) -> &Address {
        let told = self.told_peer.as_ref();
        told.unwrap_or_else(|| self.connection.peer())
    }

    /// Says who has connected, and sets what holds for the whole connection.
    fn greet(&self) {
        if self.server.tcp_nodelay
            && matches!(self.connection.peer(), Address::Inet(_))
            && let Some(transport) = self.connection.transport()
        {
            transport.set_nodelay(true);
        }
        let udp = match self.connection.end {
            ClientEnd::Stream(_) => "",
            ClientEnd::Datagrams(_) => "udp ",
        };
        logs::error!(
            &WithoutFields(self),
            Info,
            "{udp}client {} connected to {}",
            Printable(self.connection.peer().to_string().as_bytes()),
            self.connection.client.listening()
        );
    }

    /// Takes the datagram that the session began with, where nothing is done with what it says.
    pub(crate) fn take_first(&self) {
        if let ClientEnd::Datagrams(end) = &self.connection.end
            && let Some(bytes) = end.take()
        {
            self.received.set(self.received.get() + bytes.len() as u64);
        }
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

impl OfClient for Session {
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

impl ConnectionCounting<Session> for Session {
    fn outcome(session: &Session) -> Option<LimitOutcome> {
        session.places.borrow().outcome
    }

    fn note(session: &Session, change: impl FnOnce(&mut Places<Session>)) {
        change(&mut session.places.borrow_mut());
    }
}

impl Logged for Session {
    /// Stream has no format that is there without being written.
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

    // There is no head of a response whose coming a line would have to wait for.
    fn is_early(_: &str) -> bool {
        true
    }

    fn root(&mut self) -> Option<std::path::PathBuf> {
        None
    }
}
