//! How protocols frame the bodies of their answers, where that is not HTTP/1's way.

use bytes::Bytes;
use engine::Buffer;
use http::response::Field;
use http::response::source::Break;
use http_client::ReceivedBytes;
use logs::Level;

/// A framing that is not HTTP's.
pub trait AnswerFraming {
    /// Takes what comes next of a body off what has been received, which is not empty.
    fn next(&mut self, received: &mut Buffer) -> Framed;

    /// The upstream sends nothing more: whether that is the end of the body, or what there is to
    /// log of one that has none.
    fn closed(&mut self) -> Result<(), (Break, String)>;

    /// Whether the upstream has broken it off behind what has been received.
    fn is_broken_off(&self) -> bool {
        false
    }

    /// Where a body has come whole in one piece, and there is nothing to log of it: leaves that
    /// piece alone in `received`, and tells whether the connection may serve another request. Else
    /// nothing has changed.
    fn whole(&mut self, received: &mut Buffer) -> Option<bool> {
        let _ = received;
        None
    }

    /// How much has come of an answer that shares its connection, for `$upstream_*`.
    fn received(&self) -> Option<ReceivedBytes> {
        None
    }

    /// The trailers behind a body that has come whole, once.
    fn trailers(&mut self) -> Vec<Field> {
        Vec::new()
    }
}

/// What is next in a body that lies in a framing.
pub enum Framed {
    /// A piece of the body.
    Bytes(Bytes),
    /// Nothing, as long as no more is received.
    Nothing,
    /// Something for the error log, but for where in the answer it was found.
    Told(Level, String),
    /// The response is complete.
    End {
        /// Whether the connection may serve another request.
        may_go_on: bool,
    },
    /// The response is broken off, with the log line in the same form.
    Broken(Break, String),
}
