//! Records a constant response, byte for byte, while it is sent by the normal path.

use proto::header::KnownField;

use crate::request::Request;
use crate::response::prebuilt::{Constant, DatedResponse, FILE_SIZE_MAX, Forms, ResponseForm};

/// The statuses of constant responses: redirects, texts, and built-in pages that do not close the
/// connection.
const STATUSES: [u16; 15] = [
    200, 201, 202, 203, 204, 301, 302, 303, 307, 308, 401, 403, 404, 410, 418,
];

/// The fields that make a request conditional.
const CONDITIONS: [KnownField; 5] = [
    KnownField::IfMatch,
    KnownField::IfNoneMatch,
    KnownField::IfModifiedSince,
    KnownField::IfUnmodifiedSince,
    KnownField::IfRange,
];

/// A constant response that is being recorded.
pub struct ConstantResponse {
    second: u64,
    head_length: usize,
    bytes: Vec<u8>,
}

impl ConstantResponse {
    /// Begins to record the response of a request with its head. `None` if the response must not be
    /// kept.
    pub fn begin(request: &Request, head: &[u8]) -> Option<Box<ConstantResponse>> {
        let response = &request.response;
        let length = match response.status {
            204 => 0,
            _ => response.content_length?,
        };
        let keeps = request.plan.phases.answers_constantly
            && request.plan.prebuilt
            && length <= FILE_SIZE_MAX
            && request.is_main()
            && !request.routing.internal
            && STATUSES.contains(&response.status)
            && request.client.is_plain()
            && is_request_independent(request, request.response.status)
            && !is_padded(request, request.response.status);
        keeps.then(|| {
            Box::new(ConstantResponse {
                second: engine::wall().as_secs(),
                head_length: head.len(),
                bytes: head.to_vec(),
            })
        })
    }

    /// Records a part of the body.
    pub fn add(&mut self, body: &[u8]) {
        self.bytes.extend_from_slice(body);
    }

    /// Keeps the recorded response, after it has been sent completely.
    pub fn keep(self, request: &Request, form: ResponseForm) {
        let constant = Constant {
            status: request.response.status,
            content_type: request.response.content_type.clone(),
            typed: request.routing.error_status == 0 && request.response.status != 204,
            responses: Forms::default(),
        };
        let dated = DatedResponse {
            second: self.second,
            head_length: self.head_length,
            bytes: self.bytes.into_boxed_slice().into(), // without spare capacity
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

/// Whether the response of the scope depends on nothing in a request except for what
/// [`respond`](super::answering::respond) always checks.
pub(super) fn is_request_independent(request: &Request, status: u16) -> bool {
    let plan = &request.plan;
    let has_condition = || CONDITIONS.iter().any(|field| request.client.has(*field));
    !plan.phases.endings_read_response
        && !plan.core.msie_refresh
        && !plan.error_pages.has(status)
        && !has_condition()
}

/// Whether the response is a page that `msie_padding` makes longer for this client.
pub(super) fn is_padded(request: &Request, status: u16) -> bool {
    status >= 400 && request.wants_padded_page()
}
