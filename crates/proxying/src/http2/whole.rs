//! An answer of which all is read before anything is made of it: what probes ask for.

use std::future::poll_fn;
use std::time::Instant;

use bytes::Bytes;
use http::request::Request;
use http::response::Field;

use super::body::StreamBody;
use crate::READING_BODY;
use crate::answer_framing::AnswerFraming;
use crate::connection::UpstreamConnection;
use crate::failures::failed;

/// The next part of the body of an answer on a stream; `None` at its end. Why there is none has
/// been logged.
pub async fn read_part(
    request: &Request,
    peer: &mut UpstreamConnection,
    deadline: Instant,
) -> Result<Option<Bytes>, NotRead> {
    match poll_fn(|context| peer.poll_recv(Some(deadline), context)).await {
        Ok(buffer) if buffer.is_empty() => {
            let closed = peer.shared().map(|stream| StreamBody::of(stream).closed());
            match closed {
                Some(Err((_, text))) => {
                    logs::error!(request, Error, "{text} {READING_BODY}");
                    Err(NotRead { timed_out: false })
                }
                _ => Ok(None),
            }
        }
        Ok(buffer) => Ok(Some(buffer.into_bytes())),
        Err(error) => {
            failed(request, &error, "recv()", READING_BODY);
            let timed_out = error.kind() == std::io::ErrorKind::TimedOut;
            Err(NotRead { timed_out })
        }
    }
}

/// Why there is no further part.
#[derive(Clone, Copy, Debug)]
pub struct NotRead {
    /// That has not been logged: the deadline was over.
    pub timed_out: bool,
}

/// The trailers behind an answer that has been read to its end.
pub fn trailers(peer: &mut UpstreamConnection) -> Vec<Field> {
    let stream = peer.shared();
    stream.map_or(Vec::new(), |stream| StreamBody::of(stream).trailers())
}
