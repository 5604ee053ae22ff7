//! A session before its content: the interface that reception of the PROXY protocol header and the
//! TLS handshake use.

use std::cell::RefCell;
use std::fmt::{self, Write};
use std::rc::Rc;
use std::sync::Arc;

use framework::counters::ThreadCounters;
use framework::generation::GenerationView;
use logs::{ErrorLog, Level, Subject, Subsystem};
use transport::Transport;
use transport::client::Client;
use transport::incoming::Incoming;

use crate::plan::Server;
use crate::session::Session;

/// A session before any bytes of its client are processed. Its error log lines state the action
/// themselves.
pub(crate) struct IncomingSession<'a> {
    pub(crate) session: &'a Session,
    transport: &'a Transport,
    /// The server whose logs are used: the server with the requested name, once the client has
    /// requested one.
    server: RefCell<Arc<Server>>,
}

impl<'a> IncomingSession<'a> {
    pub(crate) fn new(session: &'a Session, transport: &'a Transport) -> IncomingSession<'a> {
        IncomingSession {
            session,
            transport,
            server: RefCell::new(Arc::clone(&session.server)),
        }
    }

    /// Logs to this server's logs from now on.
    pub(crate) fn log_as(&self, server: &Arc<Server>) {
        *self.server.borrow_mut() = Arc::clone(server);
    }

    /// The server whose logs are used.
    pub(crate) fn into_server(self) -> Arc<Server> {
        self.server.into_inner()
    }
}

impl Subject for IncomingSession<'_> {
    fn admits(&self, level: Level) -> bool {
        let error_log = Arc::clone(&self.server.borrow().error_log);
        error_log.admits(level, Subsystem::Stream) || Subject::is_debugged(self)
    }

    fn with_log(&self, write: &mut dyn FnMut(&Arc<ErrorLog>)) {
        let error_log = Arc::clone(&self.server.borrow().error_log);
        write(&error_log);
    }

    fn is_debugged(&self) -> bool {
        Subject::is_debugged(self.session)
    }

    fn subsystem(&self) -> Subsystem {
        Subsystem::Stream
    }

    fn serial(&self) -> Option<u64> {
        self.session.serial()
    }

    fn describe(&self, out: &mut dyn Write) -> fmt::Result {
        self.session.describe(out)
    }
}

impl Incoming for IncomingSession<'_> {
    fn client(&self) -> &Client {
        &self.session.connection.client
    }

    fn transport(&self) -> &Transport {
        self.transport
    }

    fn counts(&self) -> &ThreadCounters {
        self.session.connection.worker.counts()
    }

    fn generation(&self) -> Rc<GenerationView> {
        Rc::clone(&self.session.generation)
    }

    // A session over TCP is never closed to make room for another.
    fn set_idle(&self, _: bool) {}
}
