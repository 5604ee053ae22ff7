//! Why an exchange cannot go on.

use std::io;

/// Why an exchange cannot go on. The response, if one has begun, stays incomplete.
#[derive(Debug)]
pub enum Abort {
    /// The client left, or its connection failed.
    Closed(io::Error),
    /// The client was too slow in taking bytes.
    TimedOut,
    /// The client was too slow in giving the request's body.
    BodyTimedOut,
    /// A file could not be read while it was being sent.
    File(io::Error),
    /// A file became shorter while it was being sent.
    FileTruncated,
    /// The upstream's response ended before its announced end; already logged.
    Upstream,
    /// The upstream's response breaks framing, or could not be kept, or the request's body has been
    /// broken off beside it; already logged, if there is anything to be said of it.
    UpstreamFraming,
    /// A filter cannot go on with the body; already logged.
    Filter,
    /// The client's body breaks framing.
    BadBody(&'static str),
    /// The client's body is longer than `client_max_body_size`, by a chunk of so many bytes behind
    /// those received.
    BodyTooLarge {
        /// Bytes of the body that came before the chunk.
        received: u64,
        /// The chunk's size, as far as it has not come.
        chunk: u64,
    },
    /// Something of ours failed; the words are for the log.
    Internal(&'static str),
    /// The request, or a subrequest whose response is wanted within its own, ended with a status
    /// that has no response: 408, 444 or 499.
    Unanswered(u16),
    /// A handler wants the connection closed without an answer; already logged.
    Silently,
    /// A tunnel ended as tunnels do.
    Ended,
}

impl From<io::Error> for Abort {
    fn from(error: io::Error) -> Abort {
        match error.kind() {
            io::ErrorKind::TimedOut => Abort::TimedOut,
            io::ErrorKind::UnexpectedEof => Abort::FileTruncated,
            _ => Abort::Closed(error),
        }
    }
}
