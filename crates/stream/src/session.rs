//! A session: what becomes of one client's connection, from accept to its log line.
//!
//! nginx's phases, as far as they have something to do: access, ssl, content, log.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use engine::Buffer;
use engine::net::{Address, TcpInfo};
use framework::generation::Local;
use framework::workers::Registered;
use logs::Printable;
use proto::tls::ClientHello;
use rules::access_log::Logged;
use transport::client::{Client, OfClient};
use transport::tls::session::Session as TlsSession;
use variables::{Captures, Context, Scratch, Values};

use crate::address::AddressServers;
use crate::connection::{ClientEnd, Connection};
use crate::datagrams::Listed;
use crate::plan::{Content, Server, StreamLocal};
use crate::proxy::attempts::Attempt;
use crate::subject::WithoutFields;
use crate::{proxy, returned, tls};

/// How a session has ended, as `$status` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// It was served to its end.
    Ok = 200,
    /// Access was denied.
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
            403 => Status::Forbidden,
            502 | 504 => Status::BadGateway,
            503 => Status::ServiceUnavailable,
            _ => Status::InternalServerError,
        }
    }
}

/// One client's session.
pub(crate) struct Session {
    pub(crate) connection: Rc<Connection>,
    /// The one that the session has begun by, which does not end before it.
    pub(crate) generation: Rc<Local>,
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
        session.status = run(&mut session, &mut listed)
            .await
            .unwrap_or_else(|status| status);
        log(&mut session);
        if let Some(transport) = session.connection.transport() {
            transport.announce_end();
        }
    }
    drop(registered);
    // Only now may a session of the same client begin, whose first datagram has come already.
    drop(listed);
}

/// Goes through the phases; how the session ends, early or not.
async fn run(session: &mut Session, listed: &mut Option<Listed>) -> Result<Status, Status> {
    session.greet();
    if session.server.access.denies(session.connection.peer()) == Some(true) {
        logs::error!(session, Error, "access forbidden by rule");
        session.take_first();
        return Err(Status::Forbidden);
    }
    if session.servers.protocols.ssl {
        tls::accept(session, Buffer::empty()).await?;
    }
    let server = Arc::clone(&session.server);
    Ok(match &server.content {
        Content::Return(text) => returned::serve(session, text).await,
        Content::Proxy(settings) => proxy::serve(session, settings, listed).await,
        Content::Nothing => Status::InternalServerError,
    })
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
        local: Rc<Local>,
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
            hello: None,
            values: RefCell::default(),
            captures: Captures::default(),
            scratch: Scratch::default(),
        }
    }

    /// A session of the same client with a server, of which no more is known than at its beginning.
    pub(crate) fn beginning_of(&self, server: &Arc<Server>) -> Session {
        let (connection, servers) = (Rc::clone(&self.connection), Arc::clone(&self.servers));
        let (generation, stream) = (Rc::clone(&self.generation), Rc::clone(&self.stream));
        let session = Session::new(connection, generation, stream, servers);
        Session {
            server: Arc::clone(server),
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
        }
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
        self.connection.peer()
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
