//! A value, and the lines after it.

use engine::Buffer;
use http::h1::intake::take_front;
use http::response::source::BodyError;
use logs::Level;
use proto::memcached::{Body, INVALID_TRAILER};

use proxying::answer_framing::{AnswerFraming, FramedPart};

/// The rest of a value.
pub(super) struct Value {
    body: Body,
    /// The bytes after the value are invalid, which has been logged.
    is_faulty: bool,
}

impl Value {
    /// A value of this length in bytes.
    pub(super) fn new(length: u64) -> Value {
        Value {
            body: Body::new(length),
            is_faulty: false,
        }
    }

    /// The value is complete, but invalid bytes follow: nginx then ends the response as if they
    /// were valid.
    fn invalid(&mut self) -> FramedPart {
        self.is_faulty = true;
        FramedPart::Told(Level::Error, INVALID_TRAILER.to_owned())
    }
}

impl AnswerFraming for Value {
    fn next(&mut self, received: &mut Buffer) -> FramedPart {
        if self.is_faulty {
            return FramedPart::End { may_reuse: false };
        }
        while !received.is_empty() {
            let Ok(decoded) = self.body.decode(received) else {
                return self.invalid();
            };
            if !decoded.data.is_empty() {
                return FramedPart::Bytes(take_front(received, decoded.consumed));
            }
            received.advance(decoded.consumed);
            if decoded.done {
                if received.is_empty() {
                    return FramedPart::End { may_reuse: true };
                } else {
                    return self.invalid();
                }
            }
        }
        FramedPart::Nothing
    }

    fn whole(&mut self, received: &mut Buffer) -> Option<bool> {
        let length = usize::try_from(self.body.remaining()).ok()?;
        let mut body = self.body.clone();
        let mut at = 0;
        loop {
            let decoded = body.decode(received.get(at..)?).ok()?;
            at += decoded.consumed;
            if decoded.done {
                if at == received.len() {
                    break;
                } else {
                    return None;
                }
            } else if decoded.consumed == 0 {
                return None;
            }
        }
        received.truncate(length);
        Some(true)
    }

    fn closed(&mut self) -> Result<(), (BodyError, String)> {
        let text = "upstream prematurely closed connection".to_owned();
        Err((BodyError::Unfinished, text))
    }
}
