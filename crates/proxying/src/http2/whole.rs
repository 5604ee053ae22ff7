//! Reads a whole response for probes, which evaluate it afterwards.

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

/// Reads the next part of a response's body; `None` at its end. Every failure but a passed deadline
/// has been logged.
pub async fn read_part(
    request: &Request,
    peer: &mut UpstreamConnection,
    deadline: Instant,
) -> Result<Option<Bytes>, WholeReadError> {
    match poll_fn(|context| peer.poll_recv(Some(deadline), context)).await {
        Ok(buffer) if buffer.is_empty() => {
            let closed = peer.shared().map(|stream| StreamBody::of(stream).closed());
            match closed {
                Some(Err((_, text))) => {
                    logs::error!(request, Error, "{text} {READING_BODY}");
                    Err(WholeReadError { timed_out: false })
                }
                _ => Ok(None),
            }
        }
        Ok(buffer) => Ok(Some(buffer.into_bytes())),
        Err(error) => {
            failed(request, &error, "recv()", READING_BODY);
            let timed_out = error.kind() == std::io::ErrorKind::TimedOut;
            Err(WholeReadError { timed_out })
        }
    }
}

/// Why the rest of a body cannot be read.
#[derive(Clone, Copy, Debug)]
pub struct WholeReadError {
    /// Whether the deadline has passed, which is not logged yet.
    pub timed_out: bool,
}

/// The trailers of a response that has been read to its end.
pub fn trailers(peer: &mut UpstreamConnection) -> Vec<Field> {
    let stream = peer.shared();
    stream.map_or(Vec::new(), |stream| StreamBody::of(stream).trailers())
}
