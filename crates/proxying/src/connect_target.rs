//! The parameters of connections to the peers of a request.

use ::upstream::Socket;
use bytes::Bytes;

use super::ssl::ResolvedTls;

/// The parameters of connections to the peers of a request.
pub struct ConnectTarget {
    /// The scheme of URLs in log lines.
    pub scheme: &'static [u8],
    /// The URI of the request, which log lines show behind the peer's address.
    pub uri: Bytes,
    /// Options of the socket.
    pub socket: Socket,
    /// The TLS settings, if the peers use TLS; boxed, since few do.
    pub secured: Option<Box<ResolvedTls>>,
    /// The bytes that precede the first request on a new connection: a PROXY protocol header, or
    /// none.
    pub introduction: Bytes,
    /// Whether requests share connections (HTTP/2).
    pub is_shared: bool,
    /// The terms on which another request may reuse the connection: see `connection::terms`.
    pub terms: Bytes,
}
