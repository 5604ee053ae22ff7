//! Bytes both ways: what an exchange becomes once it is upgraded, whatever carried it, and what it
//! is joined to.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::Buffer;
use engine::net::Segment;
use transport::Transport;

use crate::connection::Connection;
use crate::http2::tunnel::Tunnel;

/// A stream of bytes both ways. Both ways may be used at the same time.
pub trait Duplex {
    /// What has come, at least a byte; empty once the other end sends no more. A wait that is given
    /// up loses nothing.
    ///
    /// # Errors
    /// `TimedOut` at `deadline`; those of the connection.
    fn recv(&self, deadline: Option<Instant>) -> impl Future<Output = io::Result<Bytes>>;

    /// Queues bytes for the other end.
    fn push(&self, bytes: Bytes);

    /// Lets what is queued leave as far as the other end takes it, without waiting.
    fn start_send(&self);

    /// Bytes that are queued and have not left.
    fn backlog(&self) -> usize;

    /// Waits until at most so many bytes are queued.
    ///
    /// # Errors
    /// `TimedOut` where the other end has taken nothing for the send timeout; those of the
    /// connection.
    fn drained(&self, limit: usize) -> impl Future<Output = io::Result<()>>;

    /// How long the other end may take nothing.
    fn set_send_timeout(&self, timeout: Duration);

    /// Has small stretches leave at once (`TCP_NODELAY`).
    fn set_nodelay(&self);
}

impl Duplex for Transport {
    async fn recv(&self, deadline: Option<Instant>) -> io::Result<Bytes> {
        let received = Transport::recv(self, deadline).await?;
        Ok(received.into_bytes())
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
    /// A stream of a connection.
    H2(Tunnel),
}

/// Does the same with whatever carries the bytes.
macro_rules! on_carrier {
    ($self:ident, $end:ident => $does:expr) => {
        match &$self.0 {
            Carrier::H1(connection, _) => {
                let $end = &connection.stream;
                $does
            }
            Carrier::H2($end) => $does,
        }
    };
}

impl Upgraded {
    /// A connection of HTTP/1, of which this much has been received behind the request.
    pub fn h1(connection: &Rc<Connection>, received: Buffer) -> Upgraded {
        Upgraded(Carrier::H1(Rc::clone(connection), Cell::new(received)))
    }

    /// Whether a client that sends no more still waits for what comes: with HTTP/2 the last bytes
    /// of a WebSocket and the end stand in one frame. With HTTP/1 the end of its bytes is the end
    /// of both ways, as in nginx.
    pub fn ends_by_halves(&self) -> bool {
        matches!(self.0, Carrier::H2(_))
    }

    /// A stream of HTTP/2.
    pub fn h2(tunnel: Tunnel) -> Upgraded {
        Upgraded(Carrier::H2(tunnel))
    }
}

impl Duplex for Upgraded {
    async fn recv(&self, deadline: Option<Instant>) -> io::Result<Bytes> {
        if let Carrier::H1(_, received) = &self.0 {
            let received = received.take();
            if !received.is_empty() {
                return Ok(received.into_bytes());
            }
        }
        on_carrier!(self, end => Duplex::recv(end, deadline).await)
    }

    fn push(&self, bytes: Bytes) {
        on_carrier!(self, end => Duplex::push(end, bytes));
    }

    fn start_send(&self) {
        on_carrier!(self, end => Duplex::start_send(end));
    }

    fn backlog(&self) -> usize {
        on_carrier!(self, end => Duplex::backlog(end))
    }

    async fn drained(&self, limit: usize) -> io::Result<()> {
        on_carrier!(self, end => Duplex::drained(end, limit).await)
    }

    fn set_send_timeout(&self, timeout: Duration) {
        on_carrier!(self, end => Duplex::set_send_timeout(end, timeout));
    }

    fn set_nodelay(&self) {
        on_carrier!(self, end => Duplex::set_nodelay(end));
    }
}
