//! Upgraded connections (WebSocket and others): bytes both ways until one side ends.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::net::Segment;
use engine::select::{Either, either};

use super::response::{self, Answer};
use super::{BACKLOG_MAX, Peer, Settings};
use crate::http::exchange::{Abort, Exchange};
use crate::http::request::{Request, Step};
use crate::log;
use crate::transport::Transport;

/// Answers 101 to the client and carries bytes both ways.
pub(super) async fn run(
    request: &mut Request,
    exchange: &mut Exchange,
    settings: &Arc<Settings>,
    peer: Peer,
    answer: Answer,
) -> Result<Step, Abort> {
    response::copy_for_upgrade(request, settings, &answer);
    exchange.send_head(request)?;
    let Some(tunnel) = exchange.upgrade() else {
        return Ok(Step::Finish(502));
    };
    let client = &tunnel.connection.stream;
    let upstream = &peer.stream;
    client.set_send_timeout(request.plan.core.send_timeout);
    if request.plan.core.tcp_nodelay {
        client.set_nodelay(true);
        upstream.set_nodelay(true);
    }
    let passed = Cell::new(answer.rest.len() as u64);
    client.push(Segment::Bytes(answer.rest.into_bytes()));
    client.start_send();
    upstream.push(Segment::Bytes(tunnel.received.into_bytes()));
    upstream.start_send();
    let active = Cell::new(engine::now());
    let ended = either(
        carry(upstream, client, settings.read_timeout, &active, &passed),
        carry(
            client,
            upstream,
            settings.read_timeout,
            &active,
            &Cell::new(0),
        ),
    )
    .await;
    request.bytes_sent += passed.get();
    request.body_bytes_sent += passed.get();
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
    request.complete = true;
    Err(Abort::Ended)
}

/// Carries bytes one way until the sender ends or the receiver takes no more. Each way waits for its own receiver only, so
/// that one which does not read holds nothing else up. Silence in both ways for `timeout` ends it.
async fn carry(
    from: &Transport,
    to: &Transport,
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
        to.push(Segment::Bytes(buffer.into_bytes()));
        to.start_send();
        if to.backlog() > BACKLOG_MAX {
            if to.drained(BACKLOG_MAX).await.is_err() {
                return Ok(());
            }
            active.set(engine::now());
        }
    }
}
