//! The two things that protocols know of a connection: its client, and a transport for its bytes.
//!
//! A [`client::Client`] describes the peer; it carries no bytes. A [`Transport`] carries the bytes
//! of a client or an upstream, unencrypted or through TLS ([`tls`]). Also here is everything that
//! precedes a protocol: the `listen` directive ([`listen`]), the PROXY protocol header
//! ([`proxy_protocol`]), the handshake, and names that are resolved while requests are served
//! ([`resolver`]).
//!
//! This crate knows no protocol and no server: a connection handler says which servers its clients
//! may ask for ([`tls::handshake::ServerSelector`]).

pub mod client;
pub mod incoming;
pub mod listen;
pub mod proxy_protocol;
pub mod resolver;
pub mod tls;
pub mod transport;

pub use self::transport::Transport;
