//! How the client's body is framed on its way to a peer that has a connection for it alone, and how
//! much of it waits there.

use bytes::Bytes;
use engine::net::Segment;
use http::request::Request;
use proto::h1::chunked::{self, ChunkLine, DATA_END};
use transport::Transport;

/// Bytes queued for an upstream beyond which the client is not read on.
pub(super) const BACKLOG_MAX: usize = 32 * 1024;

/// How a protocol frames the client's body on its way to a peer.
pub trait BodyFraming {
    /// Queues parts of it; how many bytes that is.
    fn push(&self, stream: &Transport, parts: &[Bytes]) -> u64;

    /// Queues what ends it; how many bytes that is.
    fn end(&self, stream: &Transport) -> u64;
}

/// As the client frames its body.
pub fn as_it_came(request: &Request) -> &'static dyn BodyFraming {
    if request.body.chunked() {
        &InChunks
    } else {
        &Unframed
    }
}

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

/// What came at once is a chunk.
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
