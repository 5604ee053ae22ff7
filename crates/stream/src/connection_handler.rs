//! The connection handler of the `stream` block's addresses.

use std::rc::Rc;

use engine::Buffer;
use engine::net::Datagram;
use framework::connection_handler::{
    Accepted, ConnectionHandler, DatagramSessions, ListenerId, ReceivedDatagram,
};
use framework::generation::GenerationView;

use crate::connection::Connection;
use crate::datagrams::Sessions;
use crate::plan::StreamLocal;
use crate::session::phases;

/// The connection handler of a thread.
pub(crate) fn handler() -> Rc<dyn ConnectionHandler> {
    Rc::new(StreamHandler::default())
}

#[derive(Default)]
struct StreamHandler {
    /// The sessions over UDP.
    sessions: Rc<Sessions>,
}

impl ConnectionHandler for StreamHandler {
    fn connected(&self, accepted: Accepted) {
        let worker = Rc::clone(&accepted.worker);
        let connection = Rc::new(Connection::new(accepted));
        let registered = worker.register(&connection);
        engine::spawn(phases::serve(connection, registered, None));
    }

    fn received(&self, received: ReceivedDatagram) {
        self.sessions.begin(received);
    }

    fn datagram_sessions(&self) -> Option<&dyn DatagramSessions> {
        Some(self)
    }

    fn has_listener(&self, local: &GenerationView, listener: &ListenerId) -> bool {
        StreamLocal::of(local).binding(listener).is_some()
    }

    // No message would be understood by clients of every protocol.
    fn rejection_message(&self) -> &'static [u8] {
        b""
    }

    fn forget(&self) {}
}

impl DatagramSessions for StreamHandler {
    fn give(
        &self,
        listener: &ListenerId,
        datagram: Datagram<Buffer>,
    ) -> Result<(), Datagram<Buffer>> {
        self.sessions.give(listener, datagram)
    }
}
