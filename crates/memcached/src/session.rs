//! A session: what is known of one client's connection to a server of a configuration, for its log
//! line and its limits. Connections of a server that has neither have none.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use engine::net::{Address, TcpInfo};
use framework::address::append_address;
use framework::generation::GenerationView;
use framework::slot::{Slot, ThreadGeneration, ThreadState};
use logs::{ErrorLog, Level, Printable, Subject};
use rules::access_log::Loggable;
use rules::limit_conn::{self, ConnectionCounting, ConnectionLimitState, LimitOutcome};
use transport::client::{Client, HasClient};
use transport::tls::session::Session as TlsSession;
use transport::tls::settings::TlsProtocol;
use variables::write::{decimal, seconds, text};
use variables::{
    BuiltinVariable, Captures, Context, Evaluate, Find, Scope, Scratch, Table, Values, process,
};

use crate::cache::Protocol;
use crate::connection_handler::{Connection, MemcachedPart, Server};

/// Where the variables of sessions are found.
pub(crate) const VARIABLES: &[Find<Session>] = &[
    find,
    transport::client::find,
    transport::tls::variables::find,
    limit_conn::find::<Session, Session>,
    process::find,
];

/// Why a connection has ended, as watchers are told and logs say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// The client has left, or has said that it does.
    Normal,
    /// It does not speak the protocol, or has not been let in.
    Error,
    /// It has been idle for too long.
    IdleTimeout,
    /// The server ends.
    Shutdown,
    /// Its address is denied.
    Forbidden,
    /// There are as many connections as there may be.
    TooMany,
}

impl CloseReason {
    pub(crate) fn name(self) -> &'static str {
        match self {
            CloseReason::Normal => "normal",
            CloseReason::Error => "error",
            CloseReason::IdleTimeout => "idle_timeout",
            CloseReason::Shutdown => "shutdown",
            CloseReason::Forbidden => "forbidden",
            CloseReason::TooMany => "too_many",
        }
    }

    /// The same as `$status` says it, in the numbers of `stream`.
    pub(crate) fn status(self) -> u16 {
        match self {
            CloseReason::Normal | CloseReason::Shutdown => 200,
            CloseReason::Error => 400,
            CloseReason::Forbidden => 403,
            CloseReason::IdleTimeout => 408,
            CloseReason::TooMany => 503,
        }
    }
}

/// What a connection has carried so far.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Bytes received from the client.
    pub(crate) received: Cell<u64>,
    /// Bytes sent to the client.
    pub(crate) sent: Cell<u64>,
    /// Commands that have come.
    pub(crate) commands: Cell<u64>,
    /// What is spoken, once that is known.
    pub(crate) protocol: Cell<Option<Protocol>>,
}

impl Traffic {
    pub(crate) fn receive(&self, bytes: usize) {
        self.received.set(self.received.get() + bytes as u64);
    }

    pub(crate) fn send(&self, bytes: usize) {
        self.sent.set(self.sent.get() + bytes as u64);
    }
}

/// A client's connection from its begin to its log line.
pub(crate) struct Session {
    connection: Rc<Connection>,
    scope: Rc<MemcachedLocal>,
    server: Arc<Server>,
    began: Instant,
    reason: CloseReason,
    places: RefCell<ConnectionLimitState<Session>>,
    values: RefCell<Values>,
    captures: Captures,
    scratch: Scratch,
}

impl Session {
    pub(crate) fn new(
        connection: &Rc<Connection>,
        local: &GenerationView,
        server: &Arc<Server>,
    ) -> Session {
        Session {
            began: connection.client.started(),
            connection: Rc::clone(connection),
            scope: MemcachedLocal::of(local),
            server: Arc::clone(server),
            reason: CloseReason::Normal,
            places: RefCell::default(),
            values: RefCell::default(),
            captures: Captures::default(),
            scratch: Scratch::default(),
        }
    }

    /// Whether there may be one more connection by the server's limits.
    pub(crate) fn is_within_limits(&mut self) -> bool {
        let server = Arc::clone(&self.server);
        let limits = server.limit_conn.as_ref();
        limits.is_none_or(|limits| limits.enter::<Session>(self).is_ok())
    }

    /// Logs a session that has ended.
    pub(crate) fn end(&mut self, reason: CloseReason) {
        self.reason = reason;
        let server = Arc::clone(&self.server);
        if let Some(logs) = &server.access_logs {
            logs.write(self);
        }
    }
}

/// The variable of a name in lower case, without `$`.
fn find(name: &str) -> Option<BuiltinVariable<Session>> {
    let evaluate: Evaluate<Session> = match name {
        "bytes_received" => |session, out| decimal(session.traffic().received.get(), out),
        "bytes_sent" => |session, out| decimal(session.traffic().sent.get(), out),
        "close_reason" => |session, out| text(session.reason.name(), out),
        "commands" => |session, out| decimal(session.traffic().commands.get(), out),
        "protocol" => |session, out| match session.traffic().protocol.get() {
            Some(Protocol::Binary) => text("binary", out),
            Some(_) => text("text", out),
            None => false,
        },
        "session_time" => |session, out| {
            let time = engine::now().saturating_duration_since(session.began);
            seconds(time, out)
        },
        "status" => |session, out| decimal(u64::from(session.reason.status()), out),
        _ => return None,
    };
    Some(BuiltinVariable::computed(evaluate))
}

impl Session {
    fn traffic(&self) -> &Traffic {
        &self.connection.traffic
    }
}

impl Context for Session {
    type Scope = MemcachedLocal;

    fn scope(&self) -> Rc<MemcachedLocal> {
        Rc::clone(&self.scope)
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

impl HasClient for Session {
    fn client(&self) -> &Client {
        &self.connection.client
    }

    fn local(&self) -> &Address {
        self.connection.local()
    }

    fn session(&self) -> Option<&TlsSession> {
        self.connection.transport.session()
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        self.connection.transport.tcp_info()
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
    /// As in stream no format is there without being written.
    const COMBINED: Option<&'static str> = None;

    fn is_plain(name: &str) -> bool {
        matches!(
            name,
            "bytes_received"
                | "bytes_sent"
                | "close_reason"
                | "commands"
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

impl TlsProtocol for Session {
    const NAME: &'static str = "MEMCACHED";

    // What clients offer is ignored, as memcached does it.
    const ALPN: &'static [&'static [u8]] = &[];
}

impl Subject for Session {
    fn admits(&self, level: Level) -> bool {
        let log = self.server.error_log.as_ref();
        log.is_some_and(|log| log.admits(level, self.subsystem()))
    }

    fn with_log(&self, write: &mut dyn FnMut(&Arc<ErrorLog>)) {
        if let Some(log) = &self.server.error_log {
            write(log);
        }
    }

    fn serial(&self) -> Option<u64> {
        Some(self.connection.client.serial)
    }

    fn describe(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let mut client = Vec::new();
        append_address(self.connection.peer(), &mut client);
        let server = self.connection.client.listening();
        write!(out, ", client: {}, server: {server}", Printable(&client))
    }
}

/// The `memcached` block as one thread serves by it. Sessions hold it by `Rc`: no counter that
/// other threads touch is in their way.
pub(crate) struct MemcachedLocal(Arc<MemcachedPart>);

impl MemcachedLocal {
    /// That of a thread and generation.
    pub(crate) fn of(local: &GenerationView) -> Rc<MemcachedLocal> {
        Rc::clone(&local.at(&MEMCACHED).borrow().0)
    }
}

impl Deref for MemcachedLocal {
    type Target = MemcachedPart;

    fn deref(&self) -> &MemcachedPart {
        &self.0
    }
}

impl Scope<Session> for MemcachedLocal {
    fn variables(&self) -> &Table<Session> {
        &self.0.variables
    }
}

static MEMCACHED: Slot<Room, ThreadGeneration> = Slot::new();

struct Room(Rc<MemcachedLocal>);

impl ThreadState for Room {
    fn begin(local: &GenerationView) -> Room {
        // A generation without a `memcached` block has no servers.
        let part = local.generation.part().unwrap_or_default();
        Room(Rc::new(MemcachedLocal(part)))
    }

    fn retire(&mut self) {}
}
