//! What a TLS client says first, before the server has chosen a certificate.
//!
//! RFC 8446 sections 4.1.2 and 5.1, RFC 6066 section 3 (`server_name`), RFC 7301 (ALPN). The server
//! needs the name and the protocols of a ClientHello to choose a virtual server, and variables show
//! what the client offers. The handshake itself is rustls's, which reads the same bytes again and
//! judges them; all that is refused here is what can never become a ClientHello, and what cannot
//! come before the server's answer, because that answer is costly.

mod client_hello;
pub mod preread;
mod server_hello;

pub use client_hello::{
    ClientHello, HELLO_SIZE_MAX, HelloError, HelloScan, HelloSearch, Values, check_following,
    is_grease, show_server_name,
};
pub use server_hello::session_number;
