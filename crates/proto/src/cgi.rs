//! What FastCGI, uwsgi and SCGI have in common, because they carry the same (RFC 3875, the Common Gateway Interface): the head of a
//! response.
//!
//! Not here: requests, and what either is carried in.

pub use crate::h1::response::cgi::{Form, parse};
