//! The reasons for the end of a stream.

use std::io;

use proto::h2::{ErrorCode, StreamFault, Violation};

/// Why a stream has ended.
#[derive(Clone, Copy, Debug)]
pub enum StreamEnd {
    /// The response is complete.
    Whole,
    /// The peer has reset the stream, or we have because of a fault of the peer.
    Reset(ErrorCode, Option<StreamFault>),
    /// The peer has not processed the request, and will not.
    NotServed(ErrorCode),
    /// We have reset the stream, because there were too many interim responses, or because they
    /// were not taken and exceeded their limit.
    TooManyInterim,
    /// The peer has violated the protocol, which ends the whole connection.
    Violated(Violation),
    /// The connection was closed, or failed with an error of this kind and system number.
    Lost(Option<io::ErrorKind>, Option<i32>),
}

impl StreamEnd {
    /// The end of the connection with this error.
    pub(crate) fn of_connection(error: Option<&io::Error>) -> StreamEnd {
        StreamEnd::Lost(
            error.map(io::Error::kind),
            error.and_then(io::Error::raw_os_error),
        )
    }

    /// The error of the connection, if there was one.
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
