//! The compiled `stream` block: servers, and their addresses.

use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use framework::connection_handler::ListenerId;
use framework::generation::GenerationView;
use framework::network::DebugConnections;
use framework::slot::{Slot, ThreadGeneration, ThreadState};
use logs::ErrorLog;
use rules::access::Access;
use rules::access_log::AccessLogs;
use rules::limit_conn::LimitConn;
use rules::realip::ByHeader;
use transport::tls::dynamic::Dynamic;
use transport::tls::server::ServerTls;
use transport::tls::verify::Mode;
use variables::{Scope, Table};

use crate::address::Binding;
use crate::handover::Pass;
use crate::preread::Preread;
use crate::proxy::settings::Proxy;
use crate::returned::Return;
use crate::session::Session;
use crate::set::Assignments;

/// A server of the `stream` block.
pub(crate) struct Server {
    pub(crate) name: Bytes,
    pub(crate) error_log: Arc<ErrorLog>,
    pub(crate) access_logs: Arc<AccessLogs<Session>>,
    pub(crate) access: Arc<Access>,
    pub(crate) tcp_nodelay: bool,
    /// The server's TLS settings; `None` if no TLS handshake is possible.
    pub(crate) tls: Option<Arc<ServerTls>>,
    /// The server's certificates, if their names contain variables.
    pub(crate) certificates: Option<Arc<Dynamic<Session>>>,
    pub(crate) verify_client: Option<Mode>,
    pub(crate) real_ip: Arc<ByHeader>,
    pub(crate) assignments: Assignments,
    pub(crate) limit_conn: Arc<LimitConn<Session>>,
    pub(crate) proxy_protocol_timeout: Duration,
    pub(crate) preread: Preread,
    pub(crate) handshake_timeout: Duration,
    /// The index of the zone that counts the server's sessions, if any.
    pub(crate) status_zone: Option<usize>,
    pub(crate) content: Content,
}

/// The handler of a server's sessions.
pub(crate) enum Content {
    Return(Return),
    Proxy(Box<Proxy>),
    Pass(Pass),
    /// No handler: as in nginx, sessions are closed.
    Nothing,
}

/// The compiled `stream` block.
#[derive(Default)]
pub(crate) struct Stream {
    pub(crate) bindings: Vec<Binding>,
    pub(crate) variables: Table<Session>,
    pub(crate) debug_connections: Arc<DebugConnections>,
}

impl Stream {
    /// The servers of a listening socket; `None` if this configuration does not use the socket for
    /// `stream`.
    pub(crate) fn binding(&self, id: &ListenerId) -> Option<&Binding> {
        self.bindings.iter().find(|binding| binding.id == *id)
    }
}

/// A thread's handle of the `stream` block. Sessions share the handle by `Rc`, without a counter
/// that other threads change.
pub(crate) struct StreamLocal(Arc<Stream>);

impl StreamLocal {
    /// The handle of a thread and generation.
    pub(crate) fn of(local: &GenerationView) -> Rc<StreamLocal> {
        Rc::clone(&local.at(&STREAM).borrow().0)
    }
}

impl Deref for StreamLocal {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        &self.0
    }
}

impl Scope<Session> for StreamLocal {
    fn variables(&self) -> &Table<Session> {
        &self.0.variables
    }
}

static STREAM: Slot<Room, ThreadGeneration> = Slot::new();

/// The state of a thread and generation: its handle.
struct Room(Rc<StreamLocal>);

impl ThreadState for Room {
    fn begin(local: &GenerationView) -> Room {
        // A generation without a `stream` block has no servers.
        Room(Rc::new(StreamLocal(
            local.generation.part().unwrap_or_default(),
        )))
    }

    fn retire(&mut self) {}
}
