//! Protocols without I/O and without a clock: bytes go in, values and errors come out.
//!
//! What a peer sends is read here and nowhere else: HTTP/1 heads and bodies ([`h1`]), HTTP/2
//! ([`h2`]), heads that come as fields ([`head`]), request targets ([`uri`]), host names
//! ([`host`]), byte ranges ([`range`]), dates ([`date`]), entity tags ([`etag`]), content codings
//! ([`accept`]), Base64 ([`base64`]), what proxies tell of clients ([`proxy_protocol`]), what a TLS
//! client says first ([`tls`]), an MQTT client's CONNECT ([`mqtt`]) and answers of name servers
//! ([`dns`]). What is said to applications is written here: [`fastcgi`], [`uwsgi`]
//! and [`scgi`], which share [`cgi`], and [`memcached`].
//! The reference for what is accepted and what is refused is nginx 1.31; the RFCs to read first are
//! 9110 (semantics), 9112 (HTTP/1.1), 9113 (HTTP/2) and 3986 (URIs).
//!
//! Deliberately not here: sockets, files, time, configuration, logging. Errors carry the words for
//! the log and the status for the response; who writes them is the server's business.

#![warn(clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::indexing_slicing, reason = "a test may panic"))]

pub mod accept;
pub mod base64;
mod byte_table;
pub mod cgi;
pub mod date;
pub mod dns;
pub mod etag;
pub mod fastcgi;
pub mod h1;
pub mod h2;
pub mod head;
pub mod header;
pub mod host;
pub mod memcached;
pub mod method;
pub mod mp4;
pub mod mqtt;
pub mod proxy_protocol;
pub mod range;
pub mod scgi;
pub mod status;
pub mod tls;
pub mod uri;
pub mod uwsgi;

/// A range of offsets into bytes that the caller holds.
///
/// Parsers answer in spans so that the bytes may lie in any buffer, and move, while their meaning
/// stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Span {
    /// The span from `start` up to, not including, `end`. Offsets above 4 GiB do not occur: every
    /// parser here limits its input first.
    pub fn new(start: usize, end: usize) -> Span {
        Span {
            start: start as u32,
            end: end as u32,
        }
    }

    /// The bytes it denotes; empty where the span does not lie within `bytes`.
    pub fn of(self, bytes: &[u8]) -> &[u8] {
        bytes
            .get(self.start as usize..self.end as usize)
            .unwrap_or_default()
    }

    /// The range of bytes in the buffer.
    pub fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }

    /// The number of bytes in the span.
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// Whether it holds no byte.
    pub fn is_empty(self) -> bool {
        self.end <= self.start
    }
}
