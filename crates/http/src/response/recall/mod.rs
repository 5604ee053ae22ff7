//! Responses that a scope's content handler has in memory, such as hits of a cache, sent without
//! the normal path.
//!
//! The content handler of such a scope implements [`Recall`]: it makes the key of a request's
//! response, and makes the head of a response in memory with the code of the normal path. The
//! response is then serialized once, head and body. It is sent to each client with an equivalent
//! request for the rest of the second that its Date names, as long as the response is
//! [current](ValidityCheck). Each thread keeps its own serialized responses, among the prebuilt
//! ones, so that a hit touches no memory that another thread writes. As for prebuilt responses,
//! access rules run, modules are asked first, and every request that is not plain takes the normal
//! path.

pub mod laid;

use std::rc::Rc;

use bytes::Bytes;
use proto::header::KnownField;

use crate::h1::exchange::{ConnectionOutcome, may_keep_alive};
use crate::module::{Prebuilt, Recall, RecalledResponse};
use crate::request::Request;
use crate::request::state::Pacing;
use crate::response::chain::Chain;
use crate::response::not_modified::{self, ConditionResult};
use crate::response::prebuilt::answering::{self, ResponseSink};
use crate::response::prebuilt::{Key, PrebuiltCache, PrebuiltEncoding, ResponseForm};
use crate::response::recall::laid::{
    AnswerShape, KeptValidators, Laid, LaidOutForm, RecalledAnswer, State, ValidityCheck,
};

/// The statuses of responses that neither depend on the request nor change the connection.
const STATUSES: [u16; 3] = [200, 404, 410];

/// The fields that request a part of the response, or make it conditional on no change.
const OF_PARTS_AND_PRECONDITIONS: [KnownField; 4] = [
    KnownField::Range,
    KnownField::IfRange,
    KnownField::IfMatch,
    KnownField::IfUnmodifiedSince,
];

/// The fields that name the representation that the client already has.
const OF_WHAT_CLIENTS_HAVE: [KnownField; 2] =
    [KnownField::IfNoneMatch, KnownField::IfModifiedSince];

/// The fields that the content handler may rewrite for each request.
const REWRITTEN: [&[u8]; 3] = [b"Set-Cookie", b"Location", b"Refresh"];

/// Answers a plain GET whose plan is known from the content handler's memory. `None` if the request
/// must take the normal path.
pub fn answer(request: &mut Request, to: &mut impl ResponseSink) -> Option<ConnectionOutcome> {
    let mut asks_less = OF_PARTS_AND_PRECONDITIONS.iter();
    if asks_less.any(|field| request.client.has(*field)) || !answering::permit_request(request) {
        return None;
    }
    let asks_to_stay = request.client.keeps_alive();
    let keep_alive = asks_to_stay && may_keep_alive(&request.connection, request);
    let form = to.form(request, keep_alive)?;
    let http = Rc::clone(&request.http);
    let recall = http.plan(request.plan.id).phases.recall.as_deref()?;
    let mut key = (request.plan.id, http.prebuilt.borrow_mut().take_scratch());
    request.routing.recalled = true;
    let after = if recall.key(request, &mut key.1) {
        let mut cache = http.prebuilt.borrow_mut();
        match give_again(request, &mut cache, &key, form, to) {
            RecallOutcome::Answer(after) => Some(after),
            RecallOutcome::Nothing => None,
            RecallOutcome::Unknown => {
                drop(cache); // the evaluation of variables may borrow the cache
                lay_out(request, recall, &key, form, to)
            }
        }
    } else {
        None
    };
    http.prebuilt.borrow_mut().give_back(key.1);
    if after.is_none() {
        forget(request);
    }
    after
}

impl Laid {
    /// The properties of the response, or of the 304 in its place.
    fn prebuilt(&self, shape: AnswerShape) -> Prebuilt<'_> {
        match shape {
            AnswerShape::Whole => Prebuilt {
                status: self.status,
                content_type: &self.content_type,
                length: self.length,
            },
            AnswerShape::Unmodified => Prebuilt {
                status: 304,
                content_type: &self.content_type,
                length: None,
            },
        }
    }
}

/// Whether the response or a 304 is to be sent, by these validators. `None` if the client's
/// conditions need the normal path.
fn shape(request: &Request, status: u16, validators: &KeptValidators) -> Option<AnswerShape> {
    let mut fields = OF_WHAT_CLIENTS_HAVE.iter();
    if status != 200 || !fields.any(|field| request.client.has(*field)) {
        return Some(AnswerShape::Whole);
    }
    if validators.are_judged {
        return None;
    }
    let (time, tag) = (validators.last_modified, validators.etag.as_deref());
    match not_modified::verdict(request, time, tag) {
        ConditionResult::Send => Some(AnswerShape::Whole),
        ConditionResult::NotModified => Some(AnswerShape::Unmodified),
        ConditionResult::Failed => None,
    }
}

/// Restores the state that the request had when it was received, for the normal path.
fn forget(request: &mut Request) {
    request.routing.recalled = false;
    request.upstream = None;
    request.pacing = Pacing::default();
    request.response.clear();
}

/// The result of looking up a serialized response.
enum RecallOutcome {
    Answer(ConnectionOutcome),
    /// The request must take the normal path.
    Nothing,
    /// The response is not serialized in this form, or is no longer current.
    Unknown,
}

/// Sends a response that has been serialized in this second, if it may answer the request.
fn give_again(
    request: &mut Request,
    cache: &mut PrebuiltCache,
    key: &Key,
    form: ResponseForm,
    to: &mut impl ResponseSink,
) -> RecallOutcome {
    let Some(answer) = cache.recalled(key) else {
        return if cache.is_used_often(key) {
            RecallOutcome::Unknown
        } else {
            RecallOutcome::Nothing
        };
    };
    if engine::wall() >= answer.until || !answer.standing.is_current() {
        cache.take_recalled(key);
        return RecallOutcome::Unknown;
    }
    let State::Laid(laid) = &mut answer.state else {
        return RecallOutcome::Nothing;
    };
    let Some(shape) = shape(request, laid.status, &laid.validators) else {
        return RecallOutcome::Nothing;
    };
    let prebuilt = laid.prebuilt(shape);
    let status = prebuilt.status;
    let Some(encoding) = answering::permit(request, prebuilt) else {
        return RecallOutcome::Nothing;
    };
    let upstream = laid.upstream.clone();
    let Some(written) = laid.form_of(shape, encoding, form) else {
        return RecallOutcome::Unknown;
    };
    if written.dated.second != engine::wall().as_secs() {
        return RecallOutcome::Unknown;
    }
    let logs_response = request.plan.phases.endings_read_response;
    // Encoding sets the log variables of the encoder, so an encoded response is made again.
    if logs_response && encoding != PrebuiltEncoding::Identity {
        return RecallOutcome::Unknown;
    }
    if written.chunked && !form.takes_unknown(request) {
        return RecallOutcome::Nothing;
    }
    if !to.takes(written.dated.bytes.len() - written.dated.head_length) {
        return RecallOutcome::Nothing;
    }
    request.upstream = upstream;
    request.response.status = status;
    if let Some(logged_response) = &mut written.logged_response {
        std::mem::swap(&mut request.response, logged_response);
    }
    let after = send(request, written, to);
    if let Some(logged_response) = &mut written.logged_response {
        std::mem::swap(&mut request.response, logged_response);
        request.response.status = status;
    }
    answer.standing.count();
    RecallOutcome::Answer(after)
}

/// Sends a serialized form, and ends the request.
fn send(
    request: &mut Request,
    written: &LaidOutForm,
    to: &mut impl ResponseSink,
) -> ConnectionOutcome {
    to.send(request, &written.dated);
    request.sent.chunked = written.chunked;
    answering::send_prebuilt(request, &written.dated, written.form)
}

/// Lets the content handler make the response, serializes it in this form, sends it and keeps it.
fn lay_out(
    request: &mut Request,
    recall: &dyn Recall,
    key: &Key,
    form: ResponseForm,
    to: &mut impl ResponseSink,
) -> Option<ConnectionOutcome> {
    let RecalledResponse {
        standing,
        until,
        body,
    } = recall.recall(request, &key.1)?;
    let http = Rc::clone(&request.http);
    let decline = |standing: Box<dyn ValidityCheck>| {
        let answer = RecalledAnswer {
            version: standing.version(),
            standing,
            until,
            state: State::Declined,
        };
        let mut cache = http.prebuilt.borrow_mut();
        cache.take_recalled(key);
        cache.insert_recalled(key.clone(), answer);
        None
    };
    let Some(body) = body.filter(|body| is_plain(request, body)) else {
        return decline(standing);
    };
    let (status, length) = (request.response.status, request.response.content_length);
    let mut laid = Laid {
        status,
        content_type: request.response.content_type.clone(),
        length,
        validators: KeptValidators::of(&request.response),
        upstream: request.upstream.clone(),
        written: Vec::new(),
    };
    let shape = shape(request, status, &laid.validators)?;
    let encoding = answering::permit(request, laid.prebuilt(shape))?;
    if encoding != PrebuiltEncoding::Identity
        && (length.is_none() || shape == AnswerShape::Unmodified)
    {
        return None; // encoded for each response
    }
    let Ok(mut chain) = Chain::of_response(request) else {
        return decline(standing);
    };
    let is_unmodified = shape == AnswerShape::Unmodified;
    if !chain.is_plain() || chain.has_trailers() || request.response.header_only != is_unmodified {
        return decline(standing);
    }
    let encoded = answering::encoded(request, &mut chain, encoding)?;
    let body = match shape {
        AnswerShape::Whole => encoded.unwrap_or(body),
        AnswerShape::Unmodified => Bytes::new(),
    };
    let is_unknown = request.response.content_length.is_none() && !is_unmodified;
    if is_unknown && !form.takes_unknown(request) || !to.takes(body.len()) {
        return None;
    }
    let dated = answering::write(request, &body, engine::wall().as_secs(), form);
    let logs_response = request.plan.phases.endings_read_response;
    let written = LaidOutForm {
        shape,
        encoding,
        form,
        chunked: is_unknown && form != ResponseForm::Http2,
        dated,
        logged_response: logs_response.then(|| request.response.clone()),
    };
    let after = send(request, &written, to);
    standing.count();
    let mut cache = http.prebuilt.borrow_mut();
    // Forms that were serialized from the same version stay valid.
    if let Some(kept) = cache.take_recalled(key)
        && kept.version == standing.version()
        && let State::Laid(kept) = kept.state
    {
        laid.written = kept.written;
        laid.written.retain(|other| {
            let is_current = other.dated.second == written.dated.second;
            is_current && (other.shape, other.encoding, other.form) != (shape, encoding, form)
        });
    }
    laid.written.push(written);
    let answer = RecalledAnswer {
        version: standing.version(),
        standing,
        until,
        state: State::Laid(laid),
    };
    cache.insert_recalled(key.clone(), answer);
    Some(after)
}

/// Whether the head is the same for all requests with this key.
fn is_plain(request: &Request, body: &Bytes) -> bool {
    let response = &request.response;
    let is_whole = response
        .content_length
        .is_none_or(|length| length == body.len() as u64);
    let mut fields = response.fields.iter();
    is_whole
        && STATUSES.contains(&response.status)
        && response.location.is_none()
        && response.location_field.is_none()
        && !response.is_coded()
        && !response.header_only
        && response.trailers.is_empty()
        && !response.expect_trailers
        && request.pacing.rate.is_none()
        && request.pacing.rate_after.is_none()
        && fields.all(|field| {
            let mut rewritten = REWRITTEN.iter();
            !rewritten.any(|name| field.name.eq_ignore_ascii_case(name))
        })
}
