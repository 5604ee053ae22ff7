//! Byte streams in both directions: the client's end of an upgraded exchange, of any protocol, and
//! the upstream's end to which it is joined.

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

/// A stream of bytes in both directions, which may be used at the same time.
pub trait Duplex {
    /// Receives at least one byte; empty once the peer has ended its direction. Cancel-safe:
    /// dropping the wait loses no bytes.
    ///
    /// # Errors
    /// `TimedOut` at `deadline`; errors of the connection.
    fn recv(&self, deadline: Option<Instant>) -> impl Future<Output = io::Result<Bytes>>;

    /// Queues bytes for the peer.
    fn push(&self, bytes: Bytes);

    /// Sends as much of the queue as the peer accepts, without waiting.
    fn start_send(&self);

    /// Bytes that are queued and not sent.
    fn backlog(&self) -> usize;

    /// Waits until at most `limit` bytes are queued.
    ///
    /// # Errors
    /// `TimedOut` if the peer has read nothing for the send timeout; errors of the connection.
    fn drained(&self, limit: usize) -> impl Future<Output = io::Result<()>>;

    /// Sets for how long the peer may read nothing.
    fn set_send_timeout(&self, timeout: Duration);

    /// Sends small segments at once (`TCP_NODELAY`).
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

/// The client's end of an upgraded exchange (`101`, or CONNECT).
pub struct Upgraded(Carrier);

/// The connection or stream that carries the bytes.
enum Carrier {
    /// A whole HTTP/1 connection, and the bytes that were received after the request.
    H1(Rc<Connection>, Cell<Buffer>),
    /// A stream of an HTTP/2 connection.
    H2(Tunnel),
}

/// Forwards a call to the carrier.
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
    /// The client's end of an HTTP/1 connection; `received` are the bytes received after the
    /// request.
    pub fn h1(connection: &Rc<Connection>, received: Buffer) -> Upgraded {
        Upgraded(Carrier::H1(Rc::clone(connection), Cell::new(received)))
    }

    /// Whether the two directions end separately. With HTTP/2 they do: a client that has ended its
    /// direction still waits for bytes, since the last bytes of a WebSocket and END_STREAM are in
    /// one frame. With HTTP/1 the end of the client's bytes ends both directions, as in nginx.
    pub fn ends_by_halves(&self) -> bool {
        matches!(self.0, Carrier::H2(_))
    }

    /// The client's end of an HTTP/2 stream.
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
