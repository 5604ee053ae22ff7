//! The TCP and UDP proxy: the `stream` block, and a session for each client.
//!
//! Read in this order: `session::serve` handles a session from its connection to its log line;
//! `proxy/` connects to the peers of a group, and `proxy/relay.rs` forwards bytes in both
//! directions; `compile.rs` compiles the block to servers. [`part::STREAM`] is the interface to the
//! rest of the server.
//!
//! Deliberately not here: `allow` and `deny`, log formats, and `map` and similar directives, which
//! all protocols share (`rules`, `variables`), and the selection of peers (`upstream`).

mod address;
mod compile;
mod connection;
mod connection_handler;
mod datagram_end;
mod datagrams;
mod handover;
mod health_check;
mod incoming;
pub mod part;
mod plan;
mod preread;
mod proxy;
mod proxy_protocol;
mod returned;
mod session;
mod set;
mod subject;
mod tls;
mod upstream;
mod variables;
