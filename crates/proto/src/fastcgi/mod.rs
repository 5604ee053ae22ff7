//! FastCGI, the web server's side: a request is written, and what the application sends is read.
//!
//! <https://fastcgi-archives.github.io/FastCGI_Specification.html> is the specification, whose
//! sections are named below; the reference for framing, checks and words is
//! `ngx_http_fastcgi_module`. As in nginx there is one request on a connection at a time, whose
//! number is 1.
//!
//! A request is the head that [`RequestWriter`] writes, then the body in records ([`StdinFrame`]),
//! then [`STDIN_END`]. What comes back is read by [`Decoder`].
//!
//! Deliberately not here: the other roles (authorizer, filter), `FCGI_ABORT_REQUEST`, and what is
//! asked of an application beside requests (`FCGI_GET_VALUES`), none of which nginx has; an
//! application whose request is given up sees its connection closed.

mod read;
mod write;

pub use read::{
    BodyLength, Decoded, Decoder, Event, Fault, ProtocolStatus, RequestEnd, stderr_text,
};
pub use write::{
    PARAMS_LENGTH_MAX, ParamsTooLong, RequestWriter, STDIN_END, STDIN_LENGTH_MAX, StdinFrame,
};

const VERSION: u8 = 1;

/// The number of the request, high byte first.
const REQUEST_ID: [u8; 2] = [0, 1];

/// Bytes of a record before its content (section 3.3).
const HEADER_LENGTH: usize = 8;

/// Kinds of records (section 8).
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
