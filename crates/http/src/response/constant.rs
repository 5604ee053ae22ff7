//! Answers that are the same for every plain request of a scope, such as those of `return` with a
//! text that has no variables.
//!
//! A module says so of the scope when it registers (`PlanBuilder::answers_constantly`). What the
//! long way has then sent to one client is kept, byte for byte, and sent to others for the rest of
//! the second that its Date names; the next second's first request takes the long way again. So
//! nothing of how such an answer is made is written down twice.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use proto::header::KnownField;

use crate::h1::exchange::{After, may_keep_alive};
use crate::module::{Prebuilt, PrebuiltEncoding};
use crate::request::Request;
use crate::response::error_page;
use crate::response::prebuilt::{self, DatedResponse, Forms, ResponseForm, ResponseSink};

/// Statuses of redirects and of answers with a text, and those whose short pages ask nothing more
/// of the connection.
const STATUSES: [u16; 15] = [
    200, 201, 202, 203, 204, 301, 302, 303, 307, 308, 401, 403, 404, 410, 418,
];

/// Fields that ask a condition of the response.
const CONDITIONS: [KnownField; 5] = [
    KnownField::IfMatch,
    KnownField::IfNoneMatch,
    KnownField::IfModifiedSince,
    KnownField::IfUnmodifiedSince,
    KnownField::IfRange,
];

/// The answer of one scope.
pub struct Constant {
    status: u16,
    content_type: Bytes,
    /// Whether another URI's name may give it another type.
    typed: bool,
    responses: Forms,
}

impl Constant {
    /// Bytes that it takes.
    pub fn cost(&self) -> usize {
        let sent = self.responses.iter().flatten();
        sent.map(|dated| dated.bytes.len()).sum::<usize>() + size_of::<Constant>()
    }
}

/// A constant answer while it is being sent the long way.
pub struct ConstantResponse {
    second: u64,
    head_length: usize,
    bytes: Vec<u8>,
}

impl ConstantResponse {
    /// That of a request, from its head on; `None` where it is not to be kept.
    pub fn begin(request: &Request, head: &[u8]) -> Option<Box<ConstantResponse>> {
        let response = &request.response;
        let length = match response.status {
            204 => 0,
            _ => response.content_length?,
        };
        let keeps = request.plan.phases.answers_constantly
            && request.plan.prebuilt
            && length <= prebuilt::FILE_SIZE_MAX
            && request.is_main()
            && !request.course.internal
            && STATUSES.contains(&response.status)
            && prebuilt::is_plain(request)
            && is_answered_alike(request, request.response.status)
            && !is_padded(request, request.response.status);
        keeps.then(|| {
            Box::new(ConstantResponse {
                second: engine::wall().as_secs(),
                head_length: head.len(),
                bytes: head.to_vec(),
            })
        })
    }

    /// Some of its body is sent.
    pub fn add(&mut self, body: &[u8]) {
        self.bytes.extend_from_slice(body);
    }

    /// It has been sent to its end.
    pub fn keep(self, request: &Request, form: ResponseForm) {
        let constant = Constant {
            status: request.response.status,
            content_type: request.response.content_type.clone(),
            typed: request.course.error_status == 0 && request.response.status != 204,
            responses: Forms::default(),
        };
        let dated = DatedResponse {
            second: self.second,
            head_length: self.head_length,
            bytes: self.bytes.into_boxed_slice().into(), // as long as it counts
        };
        let mut cache = request.http.prebuilt.borrow_mut();
        let mut kept = cache.take_constant(request.plan.id).unwrap_or(constant);
        if kept.content_type != request.response.content_type {
            kept.content_type = request.response.content_type.clone();
            kept.responses = Forms::default();
        }
        kept.responses[form as usize] = Some(dated);
        cache.insert_constant(request.plan.id, kept);
    }
}

/// Whether nothing in the scope tells requests apart but what [`prebuilt::respond`] looks at in any
/// case.
fn is_answered_alike(request: &Request, status: u16) -> bool {
    let plan = &request.plan;
    let has_condition = || CONDITIONS.iter().any(|field| request.client.has(*field));
    !plan.phases.endings_read_response
        && !plan.core.msie_refresh
        && !plan.error_pages.has(status)
        && !has_condition()
}

/// Whether an old browser gets a longer page.
fn is_padded(request: &Request, status: u16) -> bool {
    status >= 400 && error_page::is_padded(request)
}

/// Answers a plain request under a plan that always gives the same answer. `None`: take the long
/// way.
pub fn answer(request: &mut Request, to: &mut impl ResponseSink) -> Option<After> {
    let asks_to_stay = request.client.keeps_alive();
    let keep_alive = asks_to_stay && may_keep_alive(&request.connection, request);
    let form = to.form(request, keep_alive)?;
    let http = Rc::clone(&request.http);
    let cache = http.prebuilt.borrow();
    let kept = cache.constant(request.plan.id)?;
    let dated = kept.responses[form as usize].as_ref()?;
    if dated.second != engine::wall().as_secs()
        || !is_answered_alike(request, kept.status)
        || is_padded(request, kept.status)
    {
        return None;
    }
    if kept.typed && *request.plan.types.content_type(&request.uri) != kept.content_type {
        return None;
    }
    let prebuilt = Prebuilt {
        status: kept.status,
        content_type: &kept.content_type,
        length: Some((dated.bytes.len() - dated.head_length) as u64),
    };
    if !to.takes(dated.bytes.len() - dated.head_length)
        || prebuilt::permit(request, prebuilt) != Some(PrebuiltEncoding::Identity)
    {
        return None;
    }
    request.response.status = kept.status;
    to.send(request, dated);
    let after = prebuilt::send_prebuilt(request, dated, form);
    prebuilt::note_repeatable(request, dated, Duration::MAX, form);
    Some(after)
}
