//! HTTP/1.0, HTTP/1.1 and the single-line requests of HTTP/0.9 (RFC 9112): heads, body framing and
//! the chunked coding, as strict and as lenient as nginx.
//!
//! [`parse_head`] parses a request's head from the bytes received so far. [`Head`] stores the
//! position, so that every byte is read only once, however the input is split, and an error is
//! reported as soon as its byte arrives, as in nginx. Then [`body_length`] determines the framing
//! of the body, and [`chunked`] decodes a chunked body. [`response`] parses an upstream's response.
//!
//! Not here: sockets, timeouts, limits on bodies, and the meaning of requests.

mod body;
pub mod chunked;
mod error;
mod field;
mod head;
mod lines;
mod request_line;
pub mod response;
mod scan;

pub use body::{BodyLength, FramingError, body_length};
pub use error::HeadError;
pub use field::{Field, InvalidLine};
pub use head::{Connection, Head, Limits, ServerName, parse_head, parse_head_for};

/// The HTTP/1 versions that a server treats differently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// A request line without a version; the response is a body without a head.
    #[default]
    Http09,
    /// `HTTP/1.0`.
    Http10,
    /// `HTTP/1.1` and any higher minor version.
    Http11,
}

impl Version {
    fn from_numbers(major: u16, minor: u16) -> Version {
        match (major, minor) {
            (0, _) => Version::Http09,
            (1, 0) => Version::Http10,
            _ => Version::Http11,
        }
    }
}

#[cfg(test)]
mod tests;
