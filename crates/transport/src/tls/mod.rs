//! TLS for connections of clients (certificates, handshakes, sessions and their variables), and for
//! connections to upstreams ([`upstream`]).
//!
//! <https://nginx.org/en/docs/http/ngx_http_ssl_module.html>; RFC 8446 (TLS 1.3), 5246 (TLS 1.2).
//! rustls implements the protocol, and aws-lc the cryptography. This module connects them with
//! directives, connections and logs. Read [`settings`] for the directives, [`server`] for what they
//! compile to, [`handshake`] for the handshake of a connection, [`session`] for its records, and
//! [`kernel`] for encryption in the kernel.
//!
//! Not here: versions before TLS 1.2, renegotiation, DHE, keys in OpenSSL engines or stores.

pub mod agreed;
pub mod certificates;
pub mod chain;
pub mod commands;
mod compression;
pub mod dynamic;
pub mod files;
pub mod handshake;
mod ja4;
pub mod kernel;
pub mod key_log;
mod lenient_sni;
pub mod messages;
pub mod names;
pub mod ocsp;
pub mod pem;
pub mod resumption;
pub mod server;
pub mod session;
pub mod settings;
pub mod standalone;
pub mod stapling;
pub mod suites;
pub mod told;
pub mod upstream;
pub mod variables;
pub mod verify;

use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;

/// All algorithms that the program supports. Servers and upstreams select from them.
pub fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
}
