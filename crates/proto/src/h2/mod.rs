//! HTTP/2 (RFC 9113): bytes of a connection go in, what they say comes out.
//!
//! [`connection`] is the machine that reads (frames about streams and the connection in `signals`),
//! [`sending`] the same that sends; [`request`] makes heads of header blocks, [`hpack`] reads and
//! writes these. [`client`] is the other role's machine, whose heads [`response`] reads; `testing`
//! has both talk to each other. Each violation has the error code that the RFC names ([`error`]),
//! each thing that costs us more than the other end a limit ([`meter`]).
//!
//! Not here: sockets, the time, and what a request is answered with. The RFCs to read first are
//! 9113, 7541 (HPACK), 9218 (priorities) and 8441 (CONNECT with a protocol).

pub mod client;
pub mod connection;
pub mod error;
pub mod frame;
pub mod hpack;
mod incoming;
pub mod meter;
pub mod priority;
pub mod request;
pub mod response;
pub mod sending;
pub mod settings;
mod signals;
pub mod stream;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod window;

pub use client::Client;
pub use connection::{Connection, Event, Heads, Limits};
pub use error::{ErrorCode, StreamFault, Violation};
