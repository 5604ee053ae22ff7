//! How a request reaches its peers.

use ::upstream::Socket;
use bytes::Bytes;

use super::ssl::Secured;

/// What connections to a request's peers are made by.
pub struct ConnectTarget {
    /// How their URLs begin in log lines.
    pub scheme: &'static [u8],
    /// The URI that log lines show behind the peer's address.
    pub uri: Bytes,
    /// Options of the socket.
    pub socket: Socket,
    /// TLS, where peers speak it; in a box, as few do.
    pub secured: Option<Box<Secured>>,
    /// What each new connection begins with: a header of the PROXY protocol, or nothing.
    pub introduction: Bytes,
    /// Requests share connections, as streams of HTTP/2.
    pub is_shared: bool,
    /// What another request must agree on to use the same connection.
    pub terms: Bytes,
}
