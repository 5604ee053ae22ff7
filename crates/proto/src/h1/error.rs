//! Why a request head is invalid: one variant per cause, with nginx's status and log message.

use super::field::{Field, InvalidLine};
use crate::Span;

/// An error in a request head. Every error is the client's fault, and the connection is closed
/// after the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// The method contains a byte other than capital letters, `_` and `-`, or is all of the line.
    InvalidMethod,
    /// The request line is malformed: target, spacing, protocol name or line break.
    InvalidRequest,
    /// The major version is above 1.
    InvalidVersion,
    /// A line without a version, and with a method other than GET.
    InvalidMethodInHttp09,
    /// The target cannot be normalised (see [`crate::uri::BadUri`]).
    InvalidUri,
    /// The host of an absolute target is malformed.
    InvalidHostInRequestLine,
    /// The request line does not fit into a buffer.
    LineTooLong,
    /// A header line is malformed.
    InvalidHeader(InvalidLine),
    /// A header line does not fit into a buffer, or all buffers are full. Holds the part received.
    HeaderTooLong(Span),
    /// All buffers are full before the first header line.
    RequestTooLarge,
    /// More header lines than `max_headers`.
    TooManyHeaders,
    /// `Host` occurs twice.
    DuplicateHost {
        /// The repeated field.
        field: Field,
        /// The field that it repeats.
        previous: Field,
    },
    /// The value of `Host` is malformed.
    InvalidHost,
    /// The server's name differs from the one in the TLS handshake.
    Misdirected,
    /// A header field occurs twice that must be unique (see [`crate::header::KnownSet::UNIQUE`]).
    DuplicateHeader {
        /// The repeated field.
        field: Field,
        /// The field that it repeats.
        previous: Field,
    },
}

/// Maximum bytes of a header line in a log message, as in nginx: 2048 bytes less 300.
const LOGGED_LINE_MAX: usize = 2048 - 300;

impl HeadError {
    /// The status of the response. 494 stands for nginx's 400 with the text "Request Header Or
    /// Cookie Too Large", which `error_page 494` can catch.
    pub fn status(&self) -> u16 {
        match self {
            HeadError::InvalidVersion => 505,
            HeadError::LineTooLong => 414,
            HeadError::Misdirected => 421,
            HeadError::HeaderTooLong(_)
            | HeadError::RequestTooLarge
            | HeadError::TooManyHeaders => 494,
            _ => 400,
        }
    }

    /// The log message, at level `info`. `bytes` are those that were parsed.
    pub fn log_text(&self, bytes: &[u8]) -> Vec<u8> {
        match self {
            HeadError::InvalidMethod => b"client sent invalid method".to_vec(),
            HeadError::InvalidRequest | HeadError::InvalidUri => {
                b"client sent invalid request".to_vec()
            }
            HeadError::InvalidVersion => b"client sent invalid version".to_vec(),
            HeadError::InvalidMethodInHttp09 => {
                b"client sent invalid method in HTTP/0.9 request".to_vec()
            }
            HeadError::InvalidHostInRequestLine => {
                b"client sent invalid host in request line".to_vec()
            }
            HeadError::LineTooLong => b"client sent too long URI".to_vec(),
            HeadError::InvalidHeader(line) => {
                line.log_text("client sent invalid header line", bytes)
            }
            HeadError::HeaderTooLong(line) => {
                let line = line.of(bytes);
                let shown = line.get(..LOGGED_LINE_MAX).unwrap_or(line);
                [b"client sent too long header line: \"", shown, b"...\""].concat()
            }
            HeadError::RequestTooLarge => b"client sent too large request".to_vec(),
            HeadError::TooManyHeaders => b"client sent too many header lines".to_vec(),
            HeadError::DuplicateHost { field, previous } => {
                duplicate("host header", field, previous, bytes)
            }
            HeadError::InvalidHost => b"client sent invalid host header".to_vec(),
            HeadError::Misdirected => {
                b"client attempted to request the server name different from the one that was negotiated".to_vec()
            }
            HeadError::DuplicateHeader { field, previous } => {
                duplicate("header line", field, previous, bytes)
            }
        }
    }
}

fn duplicate(what: &str, field: &Field, previous: &Field, bytes: &[u8]) -> Vec<u8> {
    [
        b"client sent duplicate ",
        what.as_bytes(),
        b": \"",
        field.name(bytes),
        b": ",
        field.value(bytes),
        b"\", previous value: \"",
        previous.name(bytes),
        b": ",
        previous.value(bytes),
        b"\"",
    ]
    .concat()
}
