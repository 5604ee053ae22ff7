//! The client's body on its way to a peer: as it comes, or once it has been read whole.

use std::io;

use bytes::Bytes;
use engine::net::Segment;
use engine::select::{Either, either};
use http::body as request_body;
use http::exchange::{Abort, Exchange};
use http::log;
use http::request::Request;
use transport::Transport;

use super::connection::UpstreamConnection;
use super::settings::Passing;
use super::tries::{AttemptError, client_left, failed, note};
use base::pieces::Pieces;

/// Bytes queued for an upstream beyond which the client is not read on.
pub(super) const BACKLOG_MAX: usize = 32 * 1024;

/// What ends a chunked body.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// What is done then, until the answer begins.
pub(crate) const SENDING: &str = "while sending request to upstream";

/// How a protocol frames the client's body on its way to a peer.
pub(crate) trait BodyFraming {
    /// Queues parts of it; how many bytes that is.
    fn push(&self, request: &Request, stream: &Transport, parts: &[Bytes]) -> u64;

    /// Queues what ends it; how many bytes that is.
    fn end(&self, request: &Request, stream: &Transport) -> u64;
}

/// As the client framed it: what came at once is a chunk where that sends chunks.
pub(crate) struct AsItCame;

impl BodyFraming for AsItCame {
    fn push(&self, request: &Request, stream: &Transport, parts: &[Bytes]) -> u64 {
        push_parts(request, stream, parts)
    }

    fn end(&self, request: &Request, stream: &Transport) -> u64 {
        if !request.body.chunked() {
            return 0;
        }
        stream.push(Segment::Bytes(Bytes::from_static(LAST_CHUNK)));
        LAST_CHUNK.len() as u64
    }
}

/// Passes the client's body on as it comes, and adds the number of bytes to `sent`. What comes with the body's end leaves
/// together with it.
pub(crate) async fn stream_body(
    request: &mut Request,
    exchange: &mut Exchange,
    passing: &Passing,
    peer: &mut UpstreamConnection,
    begun: &[Bytes],
    framing: &impl BodyFraming,
    sent: &mut u64,
) -> Result<(), AttemptError> {
    // Small parts must not wait until the peer has confirmed those before them.
    peer.stream().set_nodelay(request.plan.core.tcp_nodelay);
    *sent += framing.push(request, peer.stream(), begun);
    let mut parts = Pieces::new();
    loop {
        peer.stream().start_send();
        parts.clear();
        let reading = request_body::read_some(request, exchange, &mut parts);
        let ended = match either(reading, peer.stream().recv(None)).await {
            Either::First(read) => read.map_err(|refused| match refused {
                Ok(status) => AttemptError::Refused(status),
                Err(abort) => AttemptError::Aborted(body_broken_off(request, abort)),
            })?,
            Either::Second(early) => {
                peer.early = Some(early);
                peer.asked = false;
                return Ok(());
            }
        };
        *sent += framing.push(request, peer.stream(), &parts);
        if ended {
            break;
        }
        wait_for_peer(request, exchange, passing, peer).await?;
        if peer.early.is_some() {
            peer.asked = false;
            return Ok(());
        }
    }
    *sent += framing.end(request, peer.stream());
    Ok(())
}

/// The client left while its body was being passed on: what it sent was no whole request.
pub(super) fn body_broken_off(request: &mut Request, abort: Abort) -> Abort {
    let Abort::Closed(_) = &abort else {
        return abort;
    };
    log::error!(
        request,
        Info,
        "client prematurely closed connection {SENDING}"
    );
    note(request, |attempt, began| {
        attempt.response_time = began.elapsed()
    });
    request.response.status = 400;
    Abort::Silently
}

/// Waits while the peer has too much to take already, and has not answered.
pub(crate) async fn wait_for_peer(
    request: &mut Request,
    exchange: &mut Exchange,
    passing: &Passing,
    peer: &mut UpstreamConnection,
) -> Result<(), AttemptError> {
    if peer.stream().backlog() <= BACKLOG_MAX || peer.early.is_some() {
        return Ok(());
    }
    let taken = either(peer.stream().drained(BACKLOG_MAX), peer.stream().recv(None));
    let taken = if passing.tries.ignore_client_abort {
        taken.await
    } else {
        match either(taken, exchange.client_gone()).await {
            Either::First(taken) => taken,
            Either::Second(abort) => {
                return Err(client_left(request, exchange, &abort, SENDING).into());
            }
        }
    };
    match taken {
        Either::First(Err(error)) if error.kind() == io::ErrorKind::TimedOut => Err(
            AttemptError::Failed(failed(request, &error, "send()", SENDING)),
        ),
        Either::First(_) => Ok(()),
        Either::Second(early) => {
            peer.early = Some(early);
            Ok(())
        }
    }
}

/// What came of a streamed body at once, framed as the client framed it: one chunk.
fn push_parts(request: &Request, stream: &Transport, parts: &[Bytes]) -> u64 {
    let length = parts.iter().map(|part| part.len() as u64).sum();
    let chunked = request.body.chunked() && length > 0;
    let line = proto::h1::chunked::ChunkLine::new(length);
    if chunked {
        stream.push(Segment::Bytes(Bytes::copy_from_slice(line.as_bytes())));
    }
    for part in parts {
        stream.push(Segment::Bytes(part.clone()));
    }
    if !chunked {
        return length;
    }
    stream.push(Segment::Bytes(Bytes::from_static(b"\r\n")));
    length + line.as_bytes().len() as u64 + 2
}

/// Sends a body that has been read as a whole, and adds the number of its bytes to `sent`. Of one that an upstream before this
/// one was given as it came nothing is left.
pub(crate) async fn push_stored_body(
    request: &mut Request,
    exchange: &mut Exchange,
    passing: &Passing,
    peer: &mut UpstreamConnection,
    sent: &mut u64,
) -> Result<(), AttemptError> {
    if let Some(parts) = request.body.in_memory() {
        for part in parts {
            *sent += part.len() as u64;
            peer.stream().push(Segment::Bytes(part.clone()));
        }
    } else if let Some(file) = request.body.file().cloned() {
        let length = request.body.received();
        if peer.stream().is_secure() {
            push_file(request, exchange, passing, peer, &file, length).await?;
        } else {
            peer.stream().push(Segment::File {
                file,
                offset: 0,
                length,
            });
        }
        *sent += length;
    }
    Ok(())
}

/// Sends a file through TLS, as fast as the peer takes it.
async fn push_file(
    request: &mut Request,
    exchange: &mut Exchange,
    passing: &Passing,
    peer: &mut UpstreamConnection,
    file: &engine::file::File,
    length: u64,
) -> Result<(), AttemptError> {
    let mut offset = 0;
    while offset < length && peer.early.is_none() {
        let wanted = (length - offset).min(BACKLOG_MAX as u64) as usize;
        let read = match file.read_at(offset, wanted).await {
            Ok(read) if !read.is_empty() => read,
            Ok(_) => return Err(AttemptError::Refused(500)), // the file is the request's alone
            Err(error) => {
                let error = log::Errno(&error);
                log::error!(request, Crit, "pread() failed {error} {SENDING}");
                return Err(AttemptError::Refused(500));
            }
        };
        offset += read.len() as u64;
        peer.stream().push(Segment::Bytes(read));
        peer.stream().start_send();
        wait_for_peer(request, exchange, passing, peer).await?;
    }
    peer.asked = offset == length;
    Ok(())
}
