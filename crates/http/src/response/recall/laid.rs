//! Answers that are laid out: what is kept of one, and whether it may be given again.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

use crate::request::upstream_report::UpstreamReport;
use crate::response::prebuilt::{
    DatedResponse, EvictionTurn, Key, Placed, PrebuiltEncoding, ResponseForm,
};
use crate::response::{Response, last_modified};

/// Tells whether an answer may be given again.
pub trait Standing {
    /// Whether the content would still give it. Asked for each hit: it writes nothing that other
    /// threads read or write.
    fn stands(&self) -> bool;

    /// Something that no other state of the same answer has.
    fn version(&self) -> u128;

    /// Counts that it has been given, in the same way.
    fn count(&self);
}

/// What is kept of an answer.
pub struct RecalledAnswer {
    pub(super) standing: Box<dyn Standing>,
    pub(super) version: u128,
    pub(super) until: Duration,
    pub(super) state: State,
}

pub(super) enum State {
    /// It takes the long way.
    Declined,
    Laid(Laid),
}

/// An answer that is laid out.
pub(super) struct Laid {
    pub(super) status: u16,
    pub(super) content_type: Bytes,
    /// As its maker has made it, if the head says it.
    pub(super) length: Option<u64>,
    pub(super) validators: KeptValidators,
    /// What `$upstream_*` tell of it.
    pub(super) upstream: Option<Rc<dyn UpstreamReport>>,
    pub(super) written: Vec<LaidOutForm>,
}

/// What conditions of requests are compared with.
pub(super) struct KeptValidators {
    pub(super) last_modified: Option<i64>,
    pub(super) etag: Option<Bytes>,
    /// The content has looked at the conditions by itself.
    pub(super) are_judged: bool,
}

impl KeptValidators {
    /// The validators of a response head before the filters.
    pub(super) fn of(response: &Response) -> KeptValidators {
        KeptValidators {
            last_modified: last_modified(response),
            etag: response.field(b"ETag").cloned(),
            are_judged: response.conditions_judged,
        }
    }
}

/// What is given of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerShape {
    Whole,
    /// 304: the client has it.
    Unmodified,
}

/// One form of the response.
pub(super) struct LaidOutForm {
    pub(super) shape: AnswerShape,
    pub(super) encoding: PrebuiltEncoding,
    pub(super) form: ResponseForm,
    pub(super) dated: DatedResponse,
    pub(super) chunked: bool,
    /// The head for logs that tell of it.
    pub(super) told: Option<Response>,
}

/// Bytes that a field of a head takes beside its text, or a few more.
const FIELD_COST: usize = 128;

impl RecalledAnswer {
    /// Bytes that it takes with its key, or a few more.
    pub(crate) fn cost(&self, key: &Key) -> usize {
        // A table that has just grown is half empty.
        let place = 2 * (size_of::<(Key, Placed<RecalledAnswer>)>() + size_of::<EvictionTurn>())
            + FIELD_COST;
        let laid = match &self.state {
            State::Declined => 0,
            State::Laid(laid) => laid.cost(),
        };
        place + 2 * key.1.len() + laid // its key stands in the order as well
    }
}

impl Laid {
    fn cost(&self) -> usize {
        let of = |written: &LaidOutForm| {
            let told = written.told.as_ref().map_or(0, |told| {
                size_of::<Response>() + told.fields.len() * FIELD_COST
            });
            size_of::<LaidOutForm>() + written.dated.head_length + written.dated.bytes.len() + told
        };
        let written: usize = self.written.iter().map(of).sum();
        // What upstreams tell holds the head as it was stored.
        let heads = self
            .written
            .first()
            .map_or(0, |first| first.dated.head_length);
        let etag = self.validators.etag.as_ref().map_or(0, Bytes::len);
        self.content_type.len() + etag + 2 * heads + written
    }

    pub(super) fn form_of(
        &mut self,
        shape: AnswerShape,
        encoding: PrebuiltEncoding,
        form: ResponseForm,
    ) -> Option<&mut LaidOutForm> {
        let mut written = self.written.iter_mut();
        written.find(|written| {
            (written.shape, written.encoding, written.form) == (shape, encoding, form)
        })
    }
}
