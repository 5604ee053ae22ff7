//! A tunnel on an HTTP/2 stream (RFC 8441), which is an upgraded exchange.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::net::Segment;
use engine::select::{Either, either};
use proto::base64;
use proto::header::KnownField;

use crate::exchange::duplex::Duplex;
use crate::http2::stream::{Flow, SharedConnection};
use crate::http2::upload::READING_WINDOW;
use crate::request::Request;

/// The client's end of a tunnel on one stream. The client's END_STREAM ends only the client's
/// direction. Tidegate's END_STREAM is sent when the exchange ends.
pub struct Tunnel {
    shared: Rc<SharedConnection>,
    flow: Rc<Flow>,
    send_timeout: Cell<Duration>,
}

impl Tunnel {
    /// A tunnel on a stream whose response head has been sent.
    pub fn new(shared: &Rc<SharedConnection>, flow: &Rc<Flow>, send_timeout: Duration) -> Tunnel {
        shared.with(|machine| machine.widen(flow.number, READING_WINDOW));
        Tunnel {
            shared: Rc::clone(shared),
            flow: Rc::clone(flow),
            send_timeout: Cell::new(send_timeout),
        }
    }
}

impl Duplex for Tunnel {
    async fn recv(&self, deadline: Option<Instant>) -> io::Result<Bytes> {
        let received = poll_fn(|context| {
            self.flow.poll_received(context.waker(), |flow| {
                if flow.is_gone() {
                    return Some(Err(io::Error::from(io::ErrorKind::ConnectionReset)));
                }
                match flow.take_received() {
                    Some(part) => Some(Ok(part)),
                    None => flow.is_read().then(|| Ok(Bytes::new())),
                }
            })
        });
        let part = match deadline {
            None => received.await?,
            Some(deadline) => match either(received, engine::sleep_until(deadline)).await {
                Either::First(part) => part?,
                Either::Second(()) => return Err(io::ErrorKind::TimedOut.into()),
            },
        };
        self.shared
            .with(|machine| machine.consumed(self.flow.number, part.len()));
        self.shared.call();
        Ok(part)
    }

    fn push(&self, bytes: Bytes) {
        let length = bytes.len() as u64;
        self.shared.send(&self.flow, Segment::Bytes(bytes), length);
    }

    fn start_send(&self) {
        self.shared.call();
    }

    fn backlog(&self) -> usize {
        usize::try_from(self.flow.queued()).unwrap_or(usize::MAX)
    }

    fn drained(&self, limit: usize) -> impl Future<Output = io::Result<()>> {
        let look = move |flow: &Flow| (flow.queued() <= limit as u64).then_some(());
        self.shared.wait(&self.flow, self.send_timeout.get(), look)
    }

    fn set_send_timeout(&self, timeout: Duration) {
        self.send_timeout.set(timeout);
    }

    fn set_nodelay(&self) {
        // `tcp_nodelay` sets the option for the whole connection, whatever its streams carry.
    }
}

/// Adds a `Sec-WebSocket-Key`, which the upstream of a WebSocket requires and HTTP/2 clients do not
/// send (RFC 8441, section 5.1).
pub fn ask_by_key(request: &mut Request) {
    let is_websocket = request
        .header(KnownField::Upgrade)
        .is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"));
    if is_websocket {
        let mut bytes = [0; 16];
        // A key without random bytes is still valid, since it protects no secret.
        let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        let mut key = Vec::new();
        base64::encode(&bytes, &mut key);
        request.client_mut().add_field(b"Sec-WebSocket-Key", &key);
    }
}
