//! Answers that are laid out: what is kept of one, and whether it may be given again.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

use crate::request::upstream_report::UpstreamReport;
use crate::response::Response;
use crate::response::prebuilt::{DatedResponse, Key, PrebuiltEncoding, ResponseForm};

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
    /// What `$upstream_*` tell of it.
    pub(super) upstream: Option<Rc<dyn UpstreamReport>>,
    pub(super) written: Vec<LaidOutForm>,
}

/// One form of it.
pub(super) struct LaidOutForm {
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
        let place = 2 * size_of::<(Key, RecalledAnswer)>() + FIELD_COST;
        let laid = match &self.state {
            State::Declined => 0,
            State::Laid(laid) => laid.cost(),
        };
        place + key.1.len() + laid
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
        self.content_type.len() + 2 * heads + written
    }

    pub(super) fn form_of(
        &mut self,
        encoding: PrebuiltEncoding,
        form: ResponseForm,
    ) -> Option<&mut LaidOutForm> {
        let mut written = self.written.iter_mut();
        written.find(|written| written.encoding == encoding && written.form == form)
    }
}
