//! Carries bytes in both directions until one side ends: for upgraded connections (such as
//! WebSocket) and for `tunnel_pass`.
//!
//! As in nginx, the end of one direction ends both. Only the end of an HTTP/2 client's direction is
//! passed on to the upstream, which may still send.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::select::{Either, either};
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::exchange::duplex::Duplex;
use http::request::{Request, Step};
use http::response::output;
use proto::base64;
use proto::header::KnownField;
use sha1::{Digest, Sha1};

use super::connection::UpstreamConnection;
use super::response::{self, UpstreamResponse};
use super::settings::PassSettings;
use crate::activity::READING;
use crate::failures::note;
use crate::request_framing::BACKLOG_MAX;

/// The activity at the end of log lines.
const CARRYING: &str = "while proxying upgraded connection";

/// The GUID that is hashed together with a client's key (RFC 6455, section 1.3).
const WEBSOCKET: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The limits of a tunnel.
#[derive(Clone, Copy)]
pub struct TunnelLimits {
    /// The tunnel is closed if neither end sends anything for this long.
    pub read_timeout: Duration,
    /// Number of bytes queued for one side beyond which nothing is read from the other.
    pub backlog_max: usize,
}

/// Sends the 101 to the client, then carries bytes in both directions.
pub async fn upgrade(
    request: &mut Request,
    exchange: &mut Exchange,
    passing: &PassSettings,
    peer: UpstreamConnection,
    answer: UpstreamResponse,
) -> Result<Step, Abort> {
    if exchange.asks_for_tunnel() && !is_accepted(request, &answer) {
        logs::error!(
            request,
            Error,
            "upstream sent invalid \"Sec-WebSocket-Accept\" header {READING}"
        );
        return Ok(Step::Finish(502));
    }
    response::copy_for_upgrade(request, passing, &answer);
    let limits = TunnelLimits {
        read_timeout: passing.read_timeout,
        backlog_max: BACKLOG_MAX,
    };
    run(request, exchange, limits, peer, answer.rest.into_bytes()).await
}

/// Sends the head in `request.response` to the client, then carries bytes in both directions.
/// `received` are bytes that the peer has sent behind its response; they have already been counted.
pub async fn run(
    request: &mut Request,
    exchange: &mut Exchange,
    limits: TunnelLimits,
    mut peer: UpstreamConnection,
    received: Bytes,
) -> Result<Step, Abort> {
    if !request.is_main() {
        logs::error!(request, Error, "connection upgrade in subrequest");
        return Ok(Step::Finish(500));
    }
    // A tunnel may last for days, and must not occupy a place for concurrent requests.
    peer.admitted = None;
    peer.upload = None;
    if let Some(step) = output::respond_with_upgrade(request, exchange)? {
        return Ok(step);
    }
    let Some(client) = &exchange.upgrade() else {
        return Ok(Step::Finish(502));
    };
    let upstream = peer.stream();
    client.set_send_timeout(request.plan.core.send_timeout);
    if request.plan.core.tcp_nodelay {
        client.set_nodelay();
        Duplex::set_nodelay(upstream);
    }
    let counted = received.len() as u64;
    client.push(received);
    client.start_send();
    let active = Cell::new(engine::now());
    let way = |passed| TunnelDirection {
        limits,
        active: &active,
        passed: Cell::new(passed),
    };
    let (down, up) = (way(counted), way(0));
    let ended = either(down.carry(upstream, client), async {
        let ended = up.carry(client, upstream).await;
        if !(matches!(ended, CarryEnd::Said) && client.ends_by_halves()) {
            return ended;
        }
        // Bytes that were sent before the end are still delivered.
        if let Err(error) = upstream.drained(0).await {
            return CarryEnd::NotTaken(error);
        }
        upstream.shutdown_write();
        exchange.client_gone().await;
        CarryEnd::Said
    })
    .await;
    match &ended {
        Either::First(ended) => ended.tell(request, TunnelEnd::Upstream, TunnelEnd::Client),
        Either::Second(ended) => ended.tell(request, TunnelEnd::Client, TunnelEnd::Upstream),
    }
    // Bytes that one side sent before its end are still delivered to the other.
    let _ = client.drained(0).await;
    let _ = upstream.drained(0).await;
    let taken = down.passed.get().saturating_sub(client.backlog() as u64);
    request.sent.bytes += taken;
    request.sent.body_bytes += taken;
    request.sent.complete = true;
    let received = down.passed.get() - counted;
    let said = up.passed.get().saturating_sub(upstream.backlog() as u64);
    note(request, |attempt, began| {
        attempt.bytes_received += received;
        attempt.bytes_sent += said;
        attempt.response_time = began.elapsed();
    });
    Err(Abort::Ended)
}

/// Whether an upstream has accepted the key that was generated for an HTTP/2 client, since such a
/// client sends none (RFC 6455, section 4.2.2).
fn is_accepted(request: &Request, answer: &UpstreamResponse) -> bool {
    let Some(key) = request.header(KnownField::SecWebsocketKey) else {
        return true; // the protocol is not WebSocket
    };
    let mut hash = Sha1::new();
    hash.update(key);
    hash.update(WEBSOCKET);
    let mut expected = Vec::new();
    base64::encode(&hash.finalize(), &mut expected);
    let mut accepts = answer.head.counting().filter(|field| {
        field
            .name(&answer.head.bytes)
            .eq_ignore_ascii_case(b"Sec-WebSocket-Accept")
    });
    let first = accepts.next().map(|field| field.value(&answer.head.bytes));
    first == Some(&expected[..]) && accepts.next().is_none()
}

/// The two ends of a tunnel.
#[derive(Clone, Copy)]
enum TunnelEnd {
    Client,
    Upstream,
}

/// Why one direction has ended.
enum CarryEnd {
    /// The sender has ended its direction in order.
    Said,
    /// The connection of the sender has failed.
    Failed(io::Error),
    /// Neither direction has carried bytes for too long.
    Silence,
    /// The connection of the receiver has failed.
    NotTaken(io::Error),
}

impl CarryEnd {
    /// Logs the end in nginx's words, for the direction `from` one side `to` the other.
    fn tell(&self, request: &Request, from: TunnelEnd, to: TunnelEnd) {
        let (side, call, error) = match self {
            CarryEnd::Said => return,
            CarryEnd::Silence => return log_timeout(request, TunnelEnd::Upstream),
            CarryEnd::NotTaken(error) if error.kind() == ErrorKind::TimedOut => {
                return log_timeout(request, to);
            }
            CarryEnd::Failed(error) => (from, "recv()", error),
            CarryEnd::NotTaken(error) => (to, "send()", error),
        };
        if error.raw_os_error().is_none() {
            return; // a TLS error, which has been logged
        }
        let error = logs::Errno(error);
        match side {
            TunnelEnd::Client => logs::error!(request, Info, "{call} failed {error} {CARRYING}"),
            TunnelEnd::Upstream => logs::error!(request, Error, "{call} failed {error} {CARRYING}"),
        }
    }
}

/// Logs a timeout. As in nginx, the line is one of the client's connection, whichever side has
/// timed out.
fn log_timeout(request: &Request, side: TunnelEnd) {
    let who = match side {
        TunnelEnd::Client => "client",
        TunnelEnd::Upstream => "upstream",
    };
    logs::error!(
        request,
        Info,
        "{who} timed out (110: Connection timed out) {CARRYING}"
    );
}

/// One direction of a tunnel.
struct TunnelDirection<'a> {
    limits: TunnelLimits,
    /// When bytes were last carried in either direction.
    active: &'a Cell<Instant>,
    /// Bytes carried in this direction.
    passed: Cell<u64>,
}

impl TunnelDirection<'_> {
    /// Carries bytes until the sender ends or the receiver fails. A receiver that does not read
    /// stops only this direction.
    async fn carry(&self, from: &impl Duplex, to: &impl Duplex) -> CarryEnd {
        let TunnelLimits {
            read_timeout,
            backlog_max,
        } = self.limits;
        loop {
            let buffer = match from.recv(Some(self.active.get() + read_timeout)).await {
                Ok(buffer) if buffer.is_empty() => return CarryEnd::Said,
                Ok(buffer) => buffer,
                Err(error) if error.kind() != ErrorKind::TimedOut => {
                    return CarryEnd::Failed(error);
                }
                Err(_) if engine::now() < self.active.get() + read_timeout => {
                    continue; // the other direction was active meanwhile
                }
                Err(_) => return CarryEnd::Silence,
            };
            self.active.set(engine::now());
            self.passed.set(self.passed.get() + buffer.len() as u64);
            to.push(buffer);
            to.start_send();
            if to.backlog() > backlog_max {
                if let Err(error) = to.drained(backlog_max).await {
                    return CarryEnd::NotTaken(error);
                }
                self.active.set(engine::now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use http::testing::with_request;

    use super::*;

    /// A simulated end: the bytes that it will send, and the bytes that were sent to it. Queued
    /// bytes only count as sent when the queue is awaited.
    #[derive(Default)]
    struct End {
        sends: RefCell<VecDeque<&'static [u8]>>,
        given: RefCell<Vec<u8>>,
        queued: Cell<usize>,
        queued_max: Cell<usize>,
    }

    impl Duplex for End {
        async fn recv(&self, _: Option<Instant>) -> io::Result<Bytes> {
            let next = self.sends.borrow_mut().pop_front();
            Ok(Bytes::from_static(next.unwrap_or_default()))
        }

        fn push(&self, bytes: Bytes) {
            self.given.borrow_mut().extend_from_slice(&bytes);
            self.queued.set(self.queued.get() + bytes.len());
            self.queued_max
                .set(self.queued_max.get().max(self.queued.get()));
        }

        fn start_send(&self) {}

        fn backlog(&self) -> usize {
            self.queued.get()
        }

        async fn drained(&self, limit: usize) -> io::Result<()> {
            self.queued.set(self.queued.get().min(limit));
            Ok(())
        }

        fn set_send_timeout(&self, _: Duration) {}

        fn set_nodelay(&self) {}
    }

    #[test]
    fn any_two_streams_are_joined() {
        const PART: &[u8] = &[b'x'; 10_000];
        with_request(|_| {
            let (from, to) = (End::default(), End::default());
            from.sends.borrow_mut().extend([PART; 20]);
            let active = Cell::new(engine::now());
            let way = TunnelDirection {
                limits: TunnelLimits {
                    read_timeout: Duration::from_secs(60),
                    backlog_max: BACKLOG_MAX,
                },
                active: &active,
                passed: Cell::new(0),
            };
            let carried = way.carry(&from, &to);
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let carried = std::pin::pin!(carried).poll(&mut context);
            assert!(matches!(carried, std::task::Poll::Ready(CarryEnd::Said)));
            assert_eq!(way.passed.get(), 200_000);
            assert_eq!(to.given.borrow().len(), 200_000);
            // The sender waits for an end that accepts nothing.
            assert!(to.queued_max.get() <= BACKLOG_MAX + PART.len());
        });
    }
}
