//! The connection handler of HTTP: starts a connection task for each accepted connection.

use std::rc::Rc;

use framework::connection_handler::{Accepted, ConnectionHandler, ListenerId, ServedConnection};
use framework::generation::GenerationView;

use crate::connection::Connection;
use crate::h1::connection_task;
use crate::request::pool;
use crate::thread_state::HttpThreadState;

/// The response to clients that are refused because no file descriptor is left.
const TURNED_AWAY: &[u8] = b"HTTP/1.1 503 Service Temporarily Unavailable\r\n\
    Content-Length: 0\r\nConnection: close\r\n\r\n";

/// Makes the connection handler of a thread.
pub fn handler() -> Rc<dyn ConnectionHandler> {
    Rc::new(Http)
}

struct Http;

impl ConnectionHandler for Http {
    fn connected(&self, accepted: Accepted) {
        let worker = Rc::clone(&accepted.worker);
        let connection = Rc::new(Connection::new(accepted));
        let registered = worker.register(&connection);
        connection.set_place(registered.place());
        engine::spawn(connection_task::serve(connection, registered));
    }

    fn has_listener(&self, local: &GenerationView, listener: &ListenerId) -> bool {
        has_listener_in(local, listener)
    }

    fn rejection_message(&self) -> &'static [u8] {
        TURNED_AWAY
    }

    fn forget(&self) {
        pool::clear();
    }
}

fn has_listener_in(local: &GenerationView, listener: &ListenerId) -> bool {
    HttpThreadState::of(local).binding(listener).is_some()
}

impl ServedConnection for Connection {
    fn serial(&self) -> u64 {
        self.client.serial
    }

    fn has_listener_in(&self, next: &GenerationView) -> bool {
        has_listener_in(next, &self.client.listener)
    }

    fn place(&self) -> Option<u32> {
        Connection::place(self)
    }

    fn ends_when_idle(&self) -> bool {
        self.requests.get() > 0 && !self.lingers()
    }

    fn announce_end(&self) {
        if let Some(shared) = self.http2() {
            shared.call();
        }
    }

    fn close_reading(&self) {
        match self.http2() {
            // An HTTP/2 client gets a GOAWAY first, and its streams finish. A connection that is
            // closed to make room has no time for that.
            Some(shared) if self.is_ending() && !self.lingers() => shared.call(),
            _ => self.stream.shutdown_read(),
        }
    }

    fn abort(&self) {
        self.stream.shutdown();
    }

    fn pin_generation(&self, local: &Rc<GenerationView>) {
        Connection::pin_generation(self, local);
        self.announce_end();
    }
}
