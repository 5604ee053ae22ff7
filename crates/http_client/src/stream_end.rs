//! How streams end.

use std::io;

use proto::h2::{ErrorCode, StreamFault, Violation};

/// How a stream has ended.
#[derive(Clone, Copy, Debug)]
pub enum StreamEnd {
    /// The answer has come whole.
    Whole,
    /// The peer has reset it; or we have, for what the peer did on it.
    Reset(ErrorCode, Option<StreamFault>),
    /// The peer has not looked at the request and never will.
    NotServed(ErrorCode),
    /// We have reset it: there were more interim heads than come before any answer, or nobody has
    /// taken them.
    TooManyInterim,
    /// The peer has done wrong what ends the whole connection.
    Violated(Violation),
    /// The connection was closed, or broke by this error.
    Lost(Option<io::ErrorKind>, Option<i32>),
}

impl StreamEnd {
    /// The connection has ended so.
    pub(crate) fn of_connection(error: Option<&io::Error>) -> StreamEnd {
        StreamEnd::Lost(
            error.map(io::Error::kind),
            error.and_then(io::Error::raw_os_error),
        )
    }

    /// The error by which the connection broke, if it did.
    pub fn error(self) -> Option<io::Error> {
        match self {
            StreamEnd::Lost(Some(kind), code) => Some(match code {
                Some(code) => io::Error::from_raw_os_error(code),
                None => kind.into(),
            }),
            _ => None,
        }
    }
}
