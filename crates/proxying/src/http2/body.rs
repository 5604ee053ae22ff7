//! The body of a response on an HTTP/2 stream. The stream determines the end of the body and
//! provides the trailers.

use std::rc::Rc;

use engine::Buffer;
use http::response::Field;
use http::response::source::BodyError;
use http_client::{ReceivedBytes, StreamEnd, StreamFlow, StreamHandle};

use crate::answer_framing::{AnswerFraming, FramedPart};

/// The stream of a response, as the framing of its body.
pub struct StreamBody(pub(super) Rc<StreamFlow>);

impl StreamBody {
    /// The body of the response on this stream.
    pub(super) fn of(stream: &StreamHandle) -> StreamBody {
        StreamBody(Rc::clone(stream.flow()))
    }
}

impl AnswerFraming for StreamBody {
    fn next(&mut self, received: &mut Buffer) -> FramedPart {
        FramedPart::Bytes(std::mem::take(received).into_bytes())
    }

    fn closed(&mut self) -> Result<(), (BodyError, String)> {
        let end = self.0.end().unwrap_or(StreamEnd::Whole);
        match end {
            StreamEnd::Whole => Ok(()),
            StreamEnd::Lost(..) => Err((BodyError::Unfinished, self.0.words(end))),
            _ => Err((BodyError::Reset, self.0.words(end))),
        }
    }

    fn is_broken_off(&self) -> bool {
        let end = self.0.end();
        end.is_some_and(|end| !matches!(end, StreamEnd::Whole | StreamEnd::Lost(..)))
    }

    fn whole(&mut self, _: &mut Buffer) -> Option<bool> {
        self.0.is_whole().then_some(true)
    }

    fn received(&self) -> Option<ReceivedBytes> {
        Some(self.0.received())
    }

    fn trailers(&mut self) -> Vec<Field> {
        let Some(trailers) = self.0.take_trailers() else {
            return Vec::new();
        };
        let bytes = engine::share_bytes(trailers.bytes);
        let fields = trailers.head.fields().iter();
        fields
            .map(|field| Field {
                name: bytes.slice(field.name.range()),
                value: bytes.slice(field.value.range()),
            })
            .collect()
    }
}
