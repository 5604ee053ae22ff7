//! Bytes both ways: what an exchange becomes once it is upgraded, whatever carried it, and what it is joined to.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::Buffer;
use engine::net::Segment;
use transport::Transport;

use crate::connection::Connection;

/// A stream of bytes both ways. Both ways may be used at the same time.
pub trait Duplex {
    /// What has come, at least a byte; empty once the other end sends no more. A wait that is given up loses nothing.
    ///
    /// # Errors
    /// `TimedOut` at `deadline`; those of the connection.
    fn recv(&self, deadline: Option<Instant>) -> impl Future<Output = io::Result<Buffer>>;

    /// Queues bytes for the other end.
    fn push(&self, bytes: Bytes);

    /// Lets what is queued leave as far as the other end takes it, without waiting.
    fn start_send(&self);

    /// Bytes that are queued and have not left.
    fn backlog(&self) -> usize;

    /// Waits until at most so many bytes are queued.
    ///
    /// # Errors
    /// `TimedOut` where the other end has taken nothing for the send timeout; those of the connection.
    fn drained(&self, limit: usize) -> impl Future<Output = io::Result<()>>;

    /// How long the other end may take nothing.
    fn set_send_timeout(&self, timeout: Duration);

    /// Has small stretches leave at once (`TCP_NODELAY`).
    fn set_nodelay(&self);
}

impl Duplex for Transport {
    fn recv(&self, deadline: Option<Instant>) -> impl Future<Output = io::Result<Buffer>> {
        Transport::recv(self, deadline)
    }

    fn push(&self, bytes: Bytes) {
        Transport::push(self, Segment::Bytes(bytes));
    }

    fn start_send(&self) {
        Transport::start_send(self);
    }

    fn backlog(&self) -> usize {
        Transport::backlog(self)
    }

    fn drained(&self, limit: usize) -> impl Future<Output = io::Result<()>> {
        Transport::drained(self, limit)
    }

    fn set_send_timeout(&self, timeout: Duration) {
        Transport::set_send_timeout(self, timeout);
    }

    fn set_nodelay(&self) {
        Transport::set_nodelay(self, true);
    }
}

/// The client's end of an upgraded exchange.
pub struct Upgraded(Carrier);

/// What carries its bytes.
enum Carrier {
    /// A whole connection, and what had been received behind the request.
    H1(Rc<Connection>, Cell<Buffer>),
}

impl Upgraded {
    /// A connection of HTTP/1, of which this much has been received behind the request.
    pub fn h1(connection: &Rc<Connection>, received: Buffer) -> Upgraded {
        Upgraded(Carrier::H1(Rc::clone(connection), Cell::new(received)))
    }

    fn transport(&self) -> &Transport {
        let Carrier::H1(connection, _) = &self.0;
        &connection.stream
    }
}

impl Duplex for Upgraded {
    async fn recv(&self, deadline: Option<Instant>) -> io::Result<Buffer> {
        let Carrier::H1(connection, received) = &self.0;
        let received = received.take();
        match received.is_empty() {
            true => connection.stream.recv(deadline).await,
            false => Ok(received),
        }
    }

    fn push(&self, bytes: Bytes) {
        Duplex::push(self.transport(), bytes);
    }

    fn start_send(&self) {
        Duplex::start_send(self.transport());
    }

    fn backlog(&self) -> usize {
        self.transport().backlog()
    }

    fn drained(&self, limit: usize) -> impl Future<Output = io::Result<()>> {
        Duplex::drained(self.transport(), limit)
    }

    fn set_send_timeout(&self, timeout: Duration) {
        self.transport().set_send_timeout(timeout);
    }

    fn set_nodelay(&self) {
        Duplex::set_nodelay(self.transport());
    }
}
