//! The common part of the modules for application protocols that derive from the Common Gateway
//! Interface: FastCGI, uwsgi and SCGI.
//!
//! `params` encodes a request. `unframed` is the common part of uwsgi and SCGI, whose responses
//! have no frames. Servers are chosen and responses are buffered and delivered as for `proxy_pass`
//! (crate `proxying`).

pub(crate) mod params;
pub(crate) mod unframed;

use base::pieces::Pieces;
use bytes::Bytes;

/// A request as peers receive it.
pub(crate) struct Outgoing {
    /// Everything that precedes the body.
    pub(crate) head: Bytes,
    /// The client gets no body of the response.
    pub(crate) is_head: bool,
    /// With `is_head`: the response's body is read nevertheless, to be stored in the cache.
    pub(crate) reads_body_of_head: bool,
    /// The received part of a streamed body; `None` for a body that was read completely, so that it
    /// can be sent again.
    pub(crate) begun: Option<Pieces>,
}
