//! HTTP/1.0, 1.1 and the single line of 0.9 (RFC 9112): heads, body framing and chunks, with
//! nginx's ideas of what is acceptable.
//!
//! A head is read by [`parse_head`] from the bytes received so far. It remembers in [`Head`] how
//! far it came, so every byte is looked at once however the segments fall, and a fault is reported
//! with the byte that makes it, as nginx does. Afterwards [`body_length`] says how the body is
//! framed, and [`chunked`] decodes one in chunks. [`response`] is the same for the other side, an
//! upstream's answer.
//!
//! Not here: reading, waiting, limits on bodies, and what a request means.

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

/// The versions of HTTP/1 that differ in what a server does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// A request line without a version; the answer is a body without a head.
    #[default]
    Http09,
    /// The version `HTTP/1.0` of a message.
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
