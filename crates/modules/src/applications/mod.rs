//! What the modules share that ask applications by protocols made from the Common Gateway
//! Interface: FastCGI, uwsgi and SCGI.
//!
//! A request is told in `params`. Answers that have no frames, those of uwsgi and SCGI, are asked
//! for in `unframed`. Servers are chosen and tried, answers buffered and made the response as those
//! of `proxy_pass` are (`passing`).

pub(crate) mod params;
pub(crate) mod unframed;

use base::pieces::Pieces;
use bytes::Bytes;

/// A request as peers get it.
pub(crate) struct Outgoing {
    /// All that comes before its body.
    pub(crate) head: Bytes,
    /// The answer has no body that the client gets.
    pub(crate) is_head: bool,
    /// Such a body is read all the same, to be stored.
    pub(crate) reads_body_of_head: bool,
    /// What of its body has been read; `None` where that is the whole, so that it can be sent
    /// again.
    pub(crate) begun: Option<Pieces>,
}
