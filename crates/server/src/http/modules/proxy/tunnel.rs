//! Upgraded connections (WebSocket and others): bytes both ways until one side ends.

use std::sync::Arc;

use bytes::Bytes;
use engine::net::{Segment, Stream};
use engine::select::{Either, either};

use super::response::{self, Answer};
use super::{BACKLOG_MAX, Peer, Settings};
use crate::http::exchange::{Abort, Exchange};
use crate::http::request::{Request, Step};
use crate::log;

/// Answers 101 to the client and carries bytes both ways.
pub(super) async fn run(
    request: &mut Request,
    exchange: &mut Exchange,
    settings: &Arc<Settings>,
    peer: Peer,
    answer: Answer,
) -> Result<Step, Abort> {
    response::copy_for_upgrade(request, &answer);
    exchange.send_head(request)?;
    let Some(tunnel) = exchange.upgrade() else {
        return Ok(Step::Finish(502));
    };
    let client = &tunnel.connection.stream;
    let upstream = &peer.stream;
    client.set_send_timeout(request.plan.core.send_timeout);
    if request.plan.core.tcp_nodelay {
        client.set_nodelay(true);
    }
    client.push(Segment::Bytes(answer.rest.into_bytes()));
    client.start_send();
    upstream.push(Segment::Bytes(tunnel.received.into_bytes()));
    upstream.start_send();
    loop {
        let deadline = Some(engine::now() + settings.read_timeout);
        let (from_client, received) =
            match either(client.recv(deadline), upstream.recv(deadline)).await {
                Either::First(received) => (true, received),
                Either::Second(received) => (false, received),
            };
        let bytes = match received {
            Ok(buffer) if buffer.is_empty() => break,
            Ok(buffer) => buffer.into_bytes(),
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                log::error!(
                    request,
                    Error,
                    "upstream timed out (110: Connection timed out) while proxying upgraded connection"
                );
                break;
            }
            Err(_) => break,
        };
        let length = bytes.len() as u64;
        if !from_client {
            request.bytes_sent += length;
            request.body_bytes_sent += length;
        }
        if pass(if from_client { upstream } else { client }, bytes)
            .await
            .is_err()
        {
            break;
        }
    }
    // What one side sent before it ended still reaches the other.
    let _ = client.drained(0).await;
    let _ = upstream.drained(0).await;
    request.complete = true;
    Err(Abort::Ended)
}

async fn pass(to: &Stream, bytes: Bytes) -> std::io::Result<()> {
    to.push(Segment::Bytes(bytes));
    to.start_send();
    if to.backlog() > BACKLOG_MAX {
        to.drained(BACKLOG_MAX).await
    } else {
        Ok(())
    }
}
