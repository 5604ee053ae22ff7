//! The body of an answer: its stream tells where it ends, and has its trailers.

use std::rc::Rc;

use engine::Buffer;
use http::response::Field;
use http::source::Break;

use super::flow::{End, Flow};
use crate::passing::body::{Framed, Framing, Received};

/// What tells the end of a body.
pub(crate) struct StreamBody(pub(super) Rc<Flow>);

impl Framing for StreamBody {
    fn next(&mut self, received: &mut Buffer) -> Framed {
        Framed::Bytes(std::mem::take(received).into_bytes())
    }

    fn closed(&mut self) -> Result<(), (Break, String)> {
        let end = self.0.end().unwrap_or(End::Whole);
        match end {
            End::Whole => Ok(()),
            End::Lost(..) => Err((Break::Unfinished, self.0.words(end))),
            _ => Err((Break::Reset, self.0.words(end))),
        }
    }

    fn is_broken_off(&self) -> bool {
        let end = self.0.end();
        end.is_some_and(|end| !matches!(end, End::Whole | End::Lost(..)))
    }

    fn whole(&mut self, _: &mut Buffer) -> Option<bool> {
        self.0.is_whole().then_some(true)
    }

    fn received(&self) -> Option<Received> {
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
