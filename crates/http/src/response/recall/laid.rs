//! Responses that a scope's content handler has in memory, serialized, and whether they are still
//! current.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

use crate::request::upstream_report::UpstreamReport;
use crate::response::prebuilt::{
    CachedValue, DatedResponse, EvictionTurn, Key, PrebuiltEncoding, ResponseForm,
};
use crate::response::{Response, last_modified};

/// Checks whether a response is still current.
pub trait ValidityCheck {
    /// Whether the content handler would still give this response. Called for each hit, so it must
    /// not write memory that other threads use.
    fn is_current(&self) -> bool;

    /// The version of the response: no other state of it has the same version.
    fn version(&self) -> u128;

    /// Counts a use of the response, without writing memory that other threads use.
    fn count(&self);
}

/// What is kept for a key of a content handler: its response, or that requests take the normal
/// path.
pub struct RecalledAnswer {
    /// Checks whether the response is still current.
    pub(super) standing: Box<dyn ValidityCheck>,
    /// The version of the response from which the forms were serialized.
    pub(super) version: u128,
    /// The time at which the response expires, by the wall clock.
    pub(super) until: Duration,
    pub(super) state: State,
}

pub(super) enum State {
    /// Requests for the key take the normal path.
    Declined,
    Laid(Laid),
}

/// A serialized response.
pub(super) struct Laid {
    pub(super) status: u16,
    pub(super) content_type: Bytes,
    /// The body's length before the filters, if the head has a length.
    pub(super) length: Option<u64>,
    pub(super) validators: KeptValidators,
    /// The record that the variables `$upstream_*` read.
    pub(super) upstream: Option<Rc<dyn UpstreamReport>>,
    /// The forms that have been serialized.
    pub(super) written: Vec<LaidOutForm>,
}

/// The validators with which the conditions of requests are compared.
pub(super) struct KeptValidators {
    pub(super) last_modified: Option<i64>,
    pub(super) etag: Option<Bytes>,
    /// Whether the content handler has evaluated the conditions itself.
    pub(super) are_judged: bool,
}

impl KeptValidators {
    /// The validators of a response's head before the filters.
    pub(super) fn of(response: &Response) -> KeptValidators {
        KeptValidators {
            last_modified: last_modified(response),
            etag: response.field(b"ETag").cloned(),
            are_judged: response.conditions_evaluated,
        }
    }
}

/// The kind of the response that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerShape {
    Whole,
    /// 304: the client already has the representation.
    Unmodified,
}

/// One serialized form of the response.
pub(super) struct LaidOutForm {
    pub(super) shape: AnswerShape,
    pub(super) encoding: PrebuiltEncoding,
    pub(super) form: ResponseForm,
    /// The serialized response.
    pub(super) dated: DatedResponse,
    /// Whether the body is one chunk over HTTP/1, since the head does not name its length.
    pub(super) chunked: bool,
    /// The response's head for logs, if logs use it.
    pub(super) logged_response: Option<Response>,
}

/// Upper bound of the bytes that a field of a head occupies in addition to its text.
const FIELD_COST: usize = 128;

impl RecalledAnswer {
    /// Upper bound of the bytes of memory that the response occupies, including its key.
    pub(crate) fn cost(&self, key: &Key) -> usize {
        // A table that has just grown is half empty.
        let place = 2
            * (size_of::<(Key, CachedValue<RecalledAnswer>)>() + size_of::<EvictionTurn>())
            + FIELD_COST;
        let laid = match &self.state {
            State::Declined => 0,
            State::Laid(laid) => laid.cost(),
        };
        place + 2 * key.1.len() + laid // the eviction order has a copy of the key
    }
}

impl Laid {
    fn cost(&self) -> usize {
        let of = |written: &LaidOutForm| {
            let logged_response = written
                .logged_response
                .as_ref()
                .map_or(0, |logged_response| {
                    size_of::<Response>() + logged_response.fields.len() * FIELD_COST
                });
            size_of::<LaidOutForm>()
                + written.dated.head_length
                + written.dated.bytes.len()
                + logged_response
        };
        let written: usize = self.written.iter().map(of).sum();
        // The record of the upstream holds a copy of the head.
        let heads = self
            .written
            .first()
            .map_or(0, |first| first.dated.head_length);
        let etag = self.validators.etag.as_ref().map_or(0, Bytes::len);
        self.content_type.len() + etag + 2 * heads + written
    }

    /// The serialized form for these properties, if there is one.
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
