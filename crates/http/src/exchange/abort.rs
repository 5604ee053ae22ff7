//! The reasons for which an exchange is aborted.

use std::io;

/// The reason for which an exchange is aborted. The response, if one has begun, stays incomplete.
#[derive(Debug)]
pub enum Abort {
    /// The client left, or its connection failed.
    Closed(io::Error),
    /// The client was too slow to read the response.
    TimedOut,
    /// The client was too slow to send the request's body.
    BodyTimedOut,
    /// A file could not be read while it was being sent.
    File(io::Error),
    /// A file became shorter while it was being sent.
    FileTruncated,
    /// The upstream's response ended before its announced length; already logged.
    Upstream,
    /// The upstream's response is malformed or could not be stored, or sending the request's body
    /// to the upstream has failed; already logged, if there is anything to log.
    UpstreamFraming,
    /// A filter cannot continue the body; already logged.
    Filter,
    /// The client's body has malformed framing.
    BadBody(&'static str),
    /// The client's body exceeds `client_max_body_size` with a chunk that has not been received
    /// completely.
    BodyTooLarge {
        /// Bytes of the body that were received before the chunk.
        received: u64,
        /// Bytes of the chunk that have not been received.
        chunk: u64,
    },
    /// An internal fault; the text is for the log.
    Internal(&'static str),
    /// The request, or a subrequest whose response is included in it, ended with 408, 444 or 499,
    /// for which no response is sent.
    Unanswered(u16),
    /// A handler closes the connection without a response; the reason is already logged.
    Silently,
    /// A tunnel ended normally.
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
