//! The body of an answer: its stream tells where it ends, and has its trailers.

use std::rc::Rc;

use engine::Buffer;
use http::response::Field;

use super::flow::{End, Flow};
use crate::passing::body::{Framed, Framing};

/// What tells the end of a body.
pub(crate) struct StreamBody(pub(super) Rc<Flow>);

impl Framing for StreamBody {
    fn next(&mut self, received: &mut Buffer) -> Framed {
        Framed::Bytes(std::mem::take(received).into_bytes())
    }

    fn closed(&mut self) -> Result<(), String> {
        match self.0.end() {
            Some(End::Whole) => Ok(()),
            end => Err(self.0.words(end.unwrap_or(End::Whole))),
        }
    }

    fn whole(&mut self, _: &mut Buffer) -> Option<bool> {
        self.0.is_whole().then_some(true)
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
