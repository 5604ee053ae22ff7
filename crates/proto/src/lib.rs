//! Protocols without I/O and without a clock: parsers take bytes and return values or errors.
//!
//! All data from peers are parsed in this crate: HTTP/1 ([`h1`]), HTTP/2 ([`h2`]), heads that
//! arrive as fields instead of lines ([`head`]), request targets ([`uri`]), host names ([`host`]),
//! byte ranges ([`range`]), dates ([`date`]), entity tags ([`etag`]), content codings ([`accept`]),
//! Base64 ([`base64`]), the PROXY protocol ([`proxy_protocol`]), a TLS ClientHello ([`tls`]), an
//! MQTT client's CONNECT ([`mqtt`]), DNS responses ([`dns`]), and the index of MP4 files ([`mp4`]).
//! [`fastcgi`], [`uwsgi`] and [`scgi`], which share [`cgi`], and [`memcached`] are the protocols of
//! applications.
//! The reference for which input is accepted or refused is nginx 1.31. The RFCs to read first are
//! 9110 (semantics), 9112 (HTTP/1.1), 9113 (HTTP/2) and 3986 (URIs).
//!
//! Deliberately not here: sockets, files, time, configuration, logging. Errors provide the log
//! message and the status of the response; the server writes them.

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
/// Parsers return spans instead of slices, so that the caller may move the bytes to another buffer
/// while the result stays valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Span {
    /// The span from `start` up to, but not including, `end`. Offsets of 4 GiB or more do not
    /// occur: every parser limits its input first.
    pub fn new(start: usize, end: usize) -> Span {
        Span {
            start: start as u32,
            end: end as u32,
        }
    }

    /// The bytes of the span; empty if the span does not lie within `bytes`.
    pub fn of(self, bytes: &[u8]) -> &[u8] {
        bytes
            .get(self.start as usize..self.end as usize)
            .unwrap_or_default()
    }

    /// The span as a range of indexes.
    pub fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }

    /// Length in bytes.
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// Whether the span is empty.
    pub fn is_empty(self) -> bool {
        self.end <= self.start
    }
}
