//! Tidegate's own responses to gRPC calls: they have a gRPC status in addition to, or instead of,
//! the HTTP status.
//!
//! Tidegate itself responds to a call if no server does, if a limit refuses the call, or if the
//! configuration returns a response. Such a response has no error page, but `grpc-status` and
//! `grpc-message` in its head, which ends the response as trailers would ("Trailers-Only"). The
//! HTTP status is nginx's, for `error_page`, logs and clients that look only at it; with
//! `grpc_errors grpc` it is 200, as from a gRPC server.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use framework::slot::{Slot, SlotValue};
use http::request::Request;
use http::response::Field;
use http::response::chain::{Chain, FilterRejection, HeadFilter};
use http::response::source::BodyError;
use http::slots::RequestLifetime;
use proto::h2::ErrorCode;

use super::call;
use super::web::Web;
use proxying::http2::dialogue::BodyFault;

/// The field or trailer with a call's status.
pub(super) const STATUS: &[u8] = b"grpc-status";

/// The field or trailer with the status message.
const MESSAGE: &[u8] = b"grpc-message";

/// A status code and its message.
pub(super) type Status = (u16, &'static [u8]);

/// The status of a call whose deadline has passed.
pub(super) const LATE: Status = (status::DEADLINE_EXCEEDED, b"deadline exceeded");

/// Names of status codes, <https://grpc.github.io/grpc/core/md_doc_statuscodes.html>.
mod status {
    pub(super) const CANCELLED: u16 = 1;
    pub(super) const UNKNOWN: u16 = 2;
    pub(super) const DEADLINE_EXCEEDED: u16 = 4;
    pub(super) const PERMISSION_DENIED: u16 = 7;
    pub(super) const RESOURCE_EXHAUSTED: u16 = 8;
    pub(super) const UNIMPLEMENTED: u16 = 12;
    pub(super) const INTERNAL: u16 = 13;
    pub(super) const UNAVAILABLE: u16 = 14;
    pub(super) const UNAUTHENTICATED: u16 = 16;
}

/// The causes of a call's failure, as far as they are known, and the gRPC status of an aborted
/// response.
#[derive(Debug, Default)]
struct CallStatus {
    /// The deadline of the call has passed.
    is_late: bool,
    /// The code with which the last server that was tried has reset the stream, if so.
    reset: Option<ErrorCode>,
    /// The status with which the response body was aborted.
    ended: SharedStatusCode,
}

/// The status of a call whose response was aborted.
pub(super) type SharedStatusCode = Rc<Cell<Option<u16>>>;

impl SlotValue for CallStatus {
    fn reset(&mut self) {
        self.is_late = false;
        self.reset = None;
        match Rc::get_mut(&mut self.ended) {
            Some(ended) => ended.set(None),
            None => self.ended = Rc::default(),
        }
    }
}

static OF_REQUEST: Slot<CallStatus, RequestLifetime> = Slot::new();

/// Records that the deadline of a call has passed.
pub(super) fn note_deadline(request: &mut Request) {
    request.own.enter(&OF_REQUEST).is_late = true;
}

/// Records that no server has answered a call, and the code with which the last server has reset
/// its stream, if so.
pub(super) fn note_reset(request: &mut Request, code: Option<ErrorCode>) {
    request.own.enter(&OF_REQUEST).reset = code;
}

/// The cell in which the response body records its abort.
pub(super) fn ended_of(request: &mut Request) -> SharedStatusCode {
    Rc::clone(&request.own.enter(&OF_REQUEST).ended)
}

/// The status of a call whose response was aborted.
pub(super) fn status_of_broken(request: &Request) -> Option<u16> {
    request.own.get(&OF_REQUEST)?.ended.get()
}

/// The response filter of a scope with `grpc_pass`.
#[derive(Debug)]
pub(super) struct Errors {
    /// Whether the HTTP status is 200.
    pub(super) as_grpc: bool,
}

impl HeadFilter for Errors {
    fn applies_to(&self, request: &Request) -> bool {
        request.is_main() && request.routing.error_status >= 300 && call::is_call(request)
    }

    fn head(self: Arc<Self>, request: &mut Request, _: &mut Chain) -> Result<(), FilterRejection> {
        let has_status = |field: &Field| field.name.eq_ignore_ascii_case(STATUS);
        if request.response.fields.iter().any(has_status) {
            return Ok(()); // the configuration has set a status
        }
        let http = request.response.status;
        let (status, message) = of_http(request, http);
        let media_type = match Web::of(request) {
            Some(web) => web.media_type(),
            None => Bytes::from_static(call::MEDIA_TYPE),
        };
        let response = &mut request.response;
        response.content_type = media_type;
        response.content_type_parameters = Bytes::new();
        response.charset = Bytes::new();
        response.content_length = Some(0);
        response.header_only = true;
        response
            .fields
            .extend(fields(status, Bytes::from_static(message)));
        if self.as_grpc {
            response.status = 200;
            response.status_text = None;
        }
        Ok(())
    }
}

/// The gRPC status and message for an HTTP status: gRPC's own mapping, refined by the causes that
/// are known here.
fn of_http(request: &mut Request, http: u16) -> Status {
    let known = request.own.get(&OF_REQUEST);
    let is_late = known.is_some_and(|known| known.is_late);
    let reset = known.and_then(|known| known.reset);
    let was_passed_on = request.upstream.is_some();
    match http {
        504 if is_late => LATE,
        502 if let Some(code) = reset => of_code(code),
        503 if !was_passed_on => (status::RESOURCE_EXHAUSTED, b"too many requests"),
        http => of_status(http),
    }
}

/// The gRPC status and message that follow from the HTTP status alone.
fn of_status(http: u16) -> Status {
    match http {
        400 => (status::INTERNAL, b"bad request"),
        401 => (status::UNAUTHENTICATED, b"unauthenticated"),
        403 => (status::PERMISSION_DENIED, b"permission denied"),
        404 => (status::UNIMPLEMENTED, b"not found"),
        413 => (status::RESOURCE_EXHAUSTED, b"message is too large"),
        429 => (status::RESOURCE_EXHAUSTED, b"too many requests"),
        408 => (status::UNAVAILABLE, b"request timed out"),
        502..=504 => (status::UNAVAILABLE, b"upstream is unavailable"),
        _ => (status::UNKNOWN, b"unknown error"),
    }
}

/// The status of a call whose response is aborted midway.
pub(super) fn of_broken(outcome: &BodyFault, broken: BodyError) -> Status {
    if let Some(http) = outcome.refused() {
        return of_status(http);
    }
    match (outcome.reset(), broken) {
        (Some(code), _) => of_code(code),
        (None, BodyError::Unfinished | BodyError::Reset) => of_status(502),
        (None, _) => (status::INTERNAL, b"upstream sent an invalid answer"),
    }
}

/// The status of a stream that the server has reset, as gRPC clients map it
/// (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md#errors>).
fn of_code(code: ErrorCode) -> Status {
    match code {
        ErrorCode::RefusedStream => (status::UNAVAILABLE, b"upstream refused the stream"),
        ErrorCode::Cancel => (status::CANCELLED, b"upstream cancelled the stream"),
        ErrorCode::EnhanceYourCalm => (status::RESOURCE_EXHAUSTED, b"upstream has too much to do"),
        ErrorCode::InadequateSecurity => {
            (status::PERMISSION_DENIED, b"upstream wants better security")
        }
        _ => (status::INTERNAL, b"upstream reset the stream"),
    }
}

/// The fields of a status, for a head or trailers.
pub(super) fn fields(status: u16, message: Bytes) -> [Field; 2] {
    let field = |name: &'static [u8], value: Bytes| Field {
        name: Bytes::from_static(name),
        value,
    };
    [
        field(STATUS, status.to_string().into()),
        field(MESSAGE, message),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md#errors>.
    #[test]
    fn codes_of_streams_have_statuses() {
        for (number, expected) in [
            (0, 13),
            (1, 13),
            (2, 13),
            (3, 13),
            (4, 13),
            (6, 13),
            (7, 14),
            (8, 1),
            (9, 13),
            (10, 13),
            (11, 8),
            (12, 7),
        ] {
            let (status, _) = of_code(ErrorCode::from_number(number));
            assert_eq!(status, expected, "{number}");
        }
    }
}
