//! Upgraded connections (WebSocket and others): bytes both ways until one side ends.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::select::{Either, either};
use http::exchange::duplex::Duplex;
use http::exchange::{Abort, Exchange};
use http::log;
use http::request::{Request, Step};
use proto::base64;
use proto::header::Known;
use sha1::{Digest, Sha1};

use super::response::{self, READING, UpstreamResponse};
use super::{BACKLOG_MAX, Settings, UpstreamConnection};

/// What a key is hashed with (RFC 6455, section 1.3).
const WEBSOCKET: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Answers 101 to the client and carries bytes both ways.
pub(super) async fn run(
    request: &mut Request,
    exchange: &mut Exchange,
    settings: &Arc<Settings>,
    peer: UpstreamConnection,
    answer: UpstreamResponse,
) -> Result<Step, Abort> {
    if exchange.asks_for_tunnel() && !is_accepted(request, &answer) {
        log::error!(
            request,
            Error,
            "upstream sent invalid \"Sec-WebSocket-Accept\" header {READING}"
        );
        return Ok(Step::Finish(502));
    }
    response::copy_for_upgrade(request, settings, &answer);
    exchange.send_head(request)?;
    let Some(client) = &exchange.upgrade() else {
        return Ok(Step::Finish(502));
    };
    let upstream = &peer.stream;
    client.set_send_timeout(request.plan.core.send_timeout);
    if request.plan.core.tcp_nodelay {
        client.set_nodelay();
        Duplex::set_nodelay(upstream);
    }
    let passed = Cell::new(answer.rest.len() as u64);
    client.push(answer.rest.into_bytes());
    client.start_send();
    let active = Cell::new(engine::now());
    let ended = either(
        carry(upstream, client, settings.read_timeout, &active, &passed),
        async {
            let said = Cell::new(0);
            carry(client, upstream, settings.read_timeout, &active, &said).await?;
            if !client.ends_by_halves() {
                return Ok(());
            }
            // What it has asked last is still answered.
            upstream.drained(0).await?;
            upstream.shutdown_write();
            exchange.client_gone().await;
            Ok(())
        },
    )
    .await;
    request.sent.bytes += passed.get();
    request.sent.body_bytes += passed.get();
    let (Either::First(ended) | Either::Second(ended)) = ended;
    if ended.is_err_and(|error| error.kind() == std::io::ErrorKind::TimedOut) {
        log::error!(
            request,
            Error,
            "upstream timed out (110: Connection timed out) while proxying upgraded connection"
        );
    }
    // What one side sent before it ended still reaches the other.
    let _ = client.drained(0).await;
    let _ = upstream.drained(0).await;
    request.sent.complete = true;
    Err(Abort::Ended)
}

/// Whether an upstream has answered the key that we have made up for a client that knows of none (RFC 6455, section 4.2.2).
fn is_accepted(request: &Request, answer: &UpstreamResponse) -> bool {
    let Some(key) = request.header(Known::SecWebsocketKey) else {
        return true; // another protocol
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

/// Carries bytes one way until the sender ends or the receiver takes no more. Each way waits for its own receiver only, so
/// that one which does not read holds nothing else up. Silence in both ways for `timeout` ends it.
async fn carry(
    from: &impl Duplex,
    to: &impl Duplex,
    timeout: Duration,
    active: &Cell<Instant>,
    passed: &Cell<u64>,
) -> std::io::Result<()> {
    loop {
        let buffer = match from.recv(Some(active.get() + timeout)).await {
            Err(error)
                if error.kind() == std::io::ErrorKind::TimedOut
                    && engine::now() < active.get() + timeout =>
            {
                continue; // the other way was active meanwhile
            }
            received => received?,
        };
        if buffer.is_empty() {
            return Ok(());
        }
        active.set(engine::now());
        passed.set(passed.get() + buffer.len() as u64);
        to.push(buffer);
        to.start_send();
        if to.backlog() > BACKLOG_MAX {
            if to.drained(BACKLOG_MAX).await.is_err() {
                return Ok(());
            }
            active.set(engine::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::io;

    use bytes::Bytes;
    use http::testing::with_request;

    use super::*;

    /// An end that is no connection: what it will send, and what it has been given. It takes what is queued when it is
    /// waited for.
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
            let (active, passed) = (Cell::new(engine::now()), Cell::new(0));
            let timeout = Duration::from_secs(60);
            let carried = carry(&from, &to, timeout, &active, &passed);
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let carried = std::pin::pin!(carried).poll(&mut context);
            assert!(matches!(carried, std::task::Poll::Ready(Ok(()))));
            assert_eq!(passed.get(), 200_000);
            assert_eq!(to.given.borrow().len(), 200_000);
            // An end that takes nothing is waited for.
            assert!(to.queued_max.get() <= BACKLOG_MAX + PART.len());
        });
    }
}
