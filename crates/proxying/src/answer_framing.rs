//! Framing of response bodies by protocols other than HTTP/1.

use bytes::Bytes;
use engine::Buffer;
use http::response::Field;
use http::response::source::BodyError;
use http_client::ReceivedBytes;
use logs::Level;

/// Decodes the framing of one body.
pub trait AnswerFraming {
    /// Takes the next part of the body from the received bytes, which are not empty.
    fn next(&mut self, received: &mut Buffer) -> FramedPart;

    /// Called when the upstream has closed the connection: `Ok` if that ends the body, else what to
    /// log about the incomplete body.
    fn closed(&mut self) -> Result<(), (BodyError, String)>;

    /// Whether the upstream has broken off the body after the received bytes.
    fn is_broken_off(&self) -> bool {
        false
    }

    /// If the whole body was received in one piece and there is nothing to log, leaves only the
    /// body in `received` and returns whether the connection may serve another request. Otherwise
    /// changes nothing.
    fn whole(&mut self, received: &mut Buffer) -> Option<bool> {
        let _ = received;
        None
    }

    /// The received bytes of a response that shares its connection, for `$upstream_*`.
    fn received(&self) -> Option<ReceivedBytes> {
        None
    }

    /// Takes the trailers of a complete body.
    fn trailers(&mut self) -> Vec<Field> {
        Vec::new()
    }
}

/// The next part of a framed body.
pub enum FramedPart {
    /// A piece of the body.
    Bytes(Bytes),
    /// No bytes until more is received.
    Nothing,
    /// A line for the error log, without the activity at its end.
    Told(Level, String),
    /// The response is complete.
    End {
        /// Whether the connection may serve another request.
        may_reuse: bool,
    },
    /// The response is broken off; the text for the error log also lacks the activity.
    Broken(BodyError, String),
}
