//! Reads a whole response before it is evaluated, for probes.

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

/// Reads the next part of a response's body; `None` at its end. A failure has been logged, unless
/// the deadline has passed.
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

/// Why there is no further part.
#[derive(Clone, Copy, Debug)]
pub struct WholeReadError {
    /// The deadline has passed, which has not been logged.
    pub timed_out: bool,
}

/// The trailers of a response that has been read to its end.
pub fn trailers(peer: &mut UpstreamConnection) -> Vec<Field> {
    let stream = peer.shared();
    stream.map_or(Vec::new(), |stream| StreamBody::of(stream).trailers())
}
