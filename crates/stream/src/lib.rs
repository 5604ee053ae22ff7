//! The TCP and UDP proxy: the `stream` block, and a session for each client.
//!
//! Read in this order: `session::serve` is a session's way from its connection to its log line;
//! `proxy/` asks the peers of a group and `proxy/relay.rs` carries bytes between both ends;
//! `compile.rs` makes servers of the block. [`part::STREAM`] is what the rest of the server sees.
//!
//! Deliberately not here: `allow` and `deny`, formats of logs, `map` and its like, which any
//! protocol has (`rules`, `variables`), and which peer is asked (`upstream`).

mod address;
mod compile;
mod connection;
mod datagram_end;
mod datagrams;
mod door;
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
