//! HTTP/2 (RFC 9113): both sides of a connection, without I/O. Received bytes go in, events and
//! bytes to send come out.
//!
//! The server side is [`connection`], which processes received frames (those about streams and the
//! connection are in `signals`), and [`sending`]; [`request`] turns header blocks into heads. The
//! client side is [`client`], whose response heads are read by [`response`]. [`hpack`] is the
//! header compression; `testing` connects both sides. [`error`] assigns an error code of the RFC to
//! each violation, and [`meter`] limits the rate of frames that cost us more than the peer.
//!
//! Not here: sockets, the time, and the handling of requests. The RFCs to read first are 9113, 7541
//! (HPACK), 9218 (priorities) and 8441 (extended CONNECT).

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
