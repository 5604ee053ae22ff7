//! Who is at the other end of a connection, and the bytes to and from there.
//!
//! A [`client::Client`] is what every protocol knows of the other side; it carries no bytes. A
//! [`Transport`] carries them, a client's or an upstream's, in the clear or through TLS ([`tls`]).
//! What comes before a protocol is here, too: the line that says where to listen ([`listen`]), the
//! header of the PROXY protocol ([`proxy_protocol`]), the handshake; and so are names that are
//! looked up while requests are served ([`resolver`]).
//!
//! No protocol is known here, and no server: a door tells what its clients may ask for
//! ([`tls::handshake::ServerSelector`]).

pub mod client;
pub mod incoming;
pub mod listen;
pub mod proxy_protocol;
pub mod resolver;
pub mod tls;
pub mod transport;

pub use self::transport::Transport;
