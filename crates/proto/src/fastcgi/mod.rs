//! FastCGI, the web server's side: encodes requests, and decodes responses.
//!
//! The specification is <https://fastcgi-archives.github.io/FastCGI_Specification.html>, whose
//! section numbers are cited below. The reference for framing, checks and log messages is
//! `ngx_http_fastcgi_module`. As in nginx, a connection carries one request at a time, with request
//! ID 1.
//!
//! A request consists of the head that [`RequestWriter`] writes, the body in records
//! ([`StdinFrame`]), and [`STDIN_END`]. [`Decoder`] decodes the response.
//!
//! Deliberately not here, as nginx lacks them as well: the other roles (authorizer, filter),
//! `FCGI_ABORT_REQUEST`, and management records (`FCGI_GET_VALUES`). If a request is aborted, its
//! connection is closed.

mod read;
mod write;

pub use read::{
    BodyLength, Decoded, Decoder, Event, Fault, ProtocolStatus, RequestEnd, stderr_text,
};
pub use write::{
    PARAMS_LENGTH_MAX, ParamsTooLong, RequestWriter, STDIN_END, STDIN_LENGTH_MAX, StdinFrame,
};

const VERSION: u8 = 1;

/// The request ID, high byte first.
const REQUEST_ID: [u8; 2] = [0, 1];

/// Length of a record's header, in bytes (section 3.3).
const HEADER_LENGTH: usize = 8;

/// Record types (section 8).
mod record {
    pub(super) const BEGIN_REQUEST: u8 = 1;
    pub(super) const END_REQUEST: u8 = 3;
    pub(super) const PARAMS: u8 = 4;
    pub(super) const STDIN: u8 = 5;
    pub(super) const STDOUT: u8 = 6;
    pub(super) const STDERR: u8 = 7;
}

#[cfg(test)]
mod tests;
