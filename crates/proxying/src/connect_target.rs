//! The parameters of connections to a request's peers.

use ::upstream::Socket;
use bytes::Bytes;

use super::ssl::ResolvedTls;

/// The parameters of connections to a request's peers.
pub struct ConnectTarget {
    /// The scheme of URLs in log lines.
    pub scheme: &'static [u8],
    /// The URI that log lines show behind the peer's address.
    pub uri: Bytes,
    /// Options of the socket.
    pub socket: Socket,
    /// TLS settings, if peers speak TLS; boxed, since few do.
    pub secured: Option<Box<ResolvedTls>>,
    /// The bytes in front of the first request of a new connection: a PROXY protocol header, or
    /// none.
    pub introduction: Bytes,
    /// Whether requests share connections (HTTP/2).
    pub is_shared: bool,
    /// The terms on which another request may reuse the connection.
    pub terms: Bytes,
}
