//! The ClientHello, the first message of a TLS client, before the server selects a certificate.
//!
//! RFC 8446 sections 4.1.2 and 5.1, RFC 6066 section 3 (`server_name`), RFC 7301 (ALPN). The server
//! needs the name and the protocols of a ClientHello to select a virtual server, and variables show
//! the client's offer. rustls performs the handshake, and parses and validates the same bytes
//! again. This module rejects only bytes that can never become a ClientHello, and records that must
//! not arrive before the server's reply, because that reply is costly.

mod client_hello;
pub mod preread;
mod server_hello;

pub use client_hello::{
    ClientHello, HELLO_SIZE_MAX, HelloError, HelloScan, HelloSearch, Values, check_following,
    is_grease, show_server_name,
};
pub use server_hello::session_number;
