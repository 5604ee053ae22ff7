//! The framing of a request's body on a connection to a peer, other than HTTP/2, and the limit of
//! queued bytes.

use bytes::Bytes;
use engine::net::Segment;
use http::request::Request;
use proto::h1::chunked::{self, ChunkLine, DATA_END};
use transport::Transport;

/// Number of bytes queued for an upstream beyond which no more is read from the client.
pub(super) const BACKLOG_MAX: usize = 32 * 1024;

/// The framing of a request's body for a peer.
pub trait BodyFraming {
    /// Queues parts of the body. Returns the bytes that were queued.
    fn push(&self, stream: &Transport, parts: &[Bytes]) -> u64;

    /// Queues the end of the body. Returns the bytes that were queued.
    fn end(&self, stream: &Transport) -> u64;
}

/// The framing that the client has used: chunked, or by a length.
pub fn client_framing(request: &Request) -> &'static dyn BodyFraming {
    if request.body.chunked() {
        &InChunks
    } else {
        &Unframed
    }
}

/// No framing: the head of the request states the length.
struct Unframed;

impl BodyFraming for Unframed {
    fn push(&self, stream: &Transport, parts: &[Bytes]) -> u64 {
        for part in parts {
            stream.push(Segment::Bytes(part.clone()));
        }
        length_of(parts)
    }

    fn end(&self, _: &Transport) -> u64 {
        0
    }
}

/// Chunked transfer coding: all parts of one call become one chunk.
struct InChunks;

impl BodyFraming for InChunks {
    fn push(&self, stream: &Transport, parts: &[Bytes]) -> u64 {
        let length = length_of(parts);
        if length == 0 {
            return 0;
        }
        let line = ChunkLine::new(length);
        stream.push(Segment::Bytes(Bytes::copy_from_slice(line.as_bytes())));
        let pushed = Unframed.push(stream, parts);
        stream.push(Segment::Bytes(Bytes::from_static(DATA_END)));
        pushed + (line.as_bytes().len() + DATA_END.len()) as u64
    }

    fn end(&self, stream: &Transport) -> u64 {
        stream.push(Segment::Bytes(Bytes::from_static(chunked::LAST)));
        chunked::LAST.len() as u64
    }
}

fn length_of(parts: &[Bytes]) -> u64 {
    parts.iter().map(|part| part.len() as u64).sum()
}
