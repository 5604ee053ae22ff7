//! Conditional requests: 304 and 412.
//!
//! RFC 9110, section 13. The order and the meaning of the conditions are nginx's
//! (<https://nginx.org/en/docs/http/ngx_http_core_module.html#if_modified_since>): a date must be
//! equal unless `if_modified_since before` is set, and if both `If-Modified-Since` and
//! `If-None-Match` are sent, both must hold.

use bytes::Bytes;
use proto::header::KnownField;
use proto::{date, etag};

use crate::config::core::IfModifiedSince;
use crate::config::plan_builder::PlanBuilder;
use crate::request::Request;
use crate::response::chain::{Chain, FilterRejection};
use crate::response::{Response, last_modified};

/// Registers the head filter with a plan.
pub fn register(plan: &mut PlanBuilder<'_>) -> Option<()> {
    plan.own_filter("NotModified", head);
    Some(())
}

/// Turns the response into a 304 if the client already has the representation, and rejects it with
/// 412 if a precondition fails.
fn head(request: &mut Request, _: &mut Chain) -> Result<(), FilterRejection> {
    let response = &request.response;
    if !request.is_main() || response.status != 200 || response.conditions_evaluated {
        return Ok(());
    }
    let conditions = Conditions::of(request);
    if conditions.is_empty() {
        return Ok(());
    }
    let response = &request.response;
    let tag = response.field(b"ETag").map(|tag| &tag[..]);
    let mode = request.plan.core.if_modified_since;
    match conditions.evaluate(last_modified(response), tag, mode) {
        ConditionResult::Send => Ok(()),
        ConditionResult::NotModified => {
            request.response.status = 304;
            forget_body(&mut request.response);
            Ok(())
        }
        ConditionResult::Failed => {
            request.response.clear();
            Err(FilterRejection::Status(412))
        }
    }
}

/// Evaluates the request's conditions, if any, for a representation that was last modified at
/// `time` and has the ETag `tag`.
pub fn verdict(request: &Request, time: Option<i64>, tag: Option<&[u8]>) -> ConditionResult {
    let mode = request.plan.core.if_modified_since;
    Conditions::of(request).evaluate(time, tag, mode)
}

/// The conditional fields of a request.
#[derive(Default)]
struct Conditions<'a> {
    /// The value of `If-Unmodified-Since`.
    unmodified_since: Option<&'a [u8]>,
    /// The value of `If-Match`.
    matching: Option<&'a [u8]>,
    /// The value of `If-Modified-Since`.
    modified_since: Option<&'a [u8]>,
    /// The value of `If-None-Match`.
    none_matching: Option<&'a [u8]>,
}

/// The result of evaluating the conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionResult {
    /// The representation is sent.
    Send,
    /// The client already has the representation: 304.
    NotModified,
    /// A precondition has failed: 412.
    Failed,
}

impl<'a> Conditions<'a> {
    fn of(request: &'a Request) -> Conditions<'a> {
        Conditions {
            unmodified_since: request.header(KnownField::IfUnmodifiedSince),
            matching: request.header(KnownField::IfMatch),
            modified_since: request.header(KnownField::IfModifiedSince),
            none_matching: request.header(KnownField::IfNoneMatch),
        }
    }

    fn is_empty(&self) -> bool {
        self.unmodified_since.is_none()
            && self.matching.is_none()
            && self.modified_since.is_none()
            && self.none_matching.is_none()
    }

    /// Evaluates the conditions for a representation that was last modified at `time` and has the
    /// ETag `tag`.
    fn evaluate(
        &self,
        time: Option<i64>,
        tag: Option<&[u8]>,
        mode: IfModifiedSince,
    ) -> ConditionResult {
        // nginx treats an invalid date as earlier than all others.
        let date = |value: &[u8]| date::parse_http(value).unwrap_or(-1);

        if let Some(value) = self.unmodified_since
            && time.is_none_or(|time| date(value) < time)
        {
            return ConditionResult::Failed;
        }
        if let Some(list) = self.matching
            && !etag::list_contains(list, tag, false)
        {
            return ConditionResult::Failed;
        }
        if self.modified_since.is_none() && self.none_matching.is_none() {
            return ConditionResult::Send;
        }
        if let Some(value) = self.modified_since {
            let unchanged = time.is_some_and(|time| match mode {
                IfModifiedSince::Off => false,
                IfModifiedSince::Exact => date(value) == time,
                IfModifiedSince::Before => date(value) >= time,
            });
            if !unchanged {
                return ConditionResult::Send;
            }
        }
        if let Some(list) = self.none_matching
            && !etag::list_contains(list, tag, true)
        {
            return ConditionResult::Send;
        }
        ConditionResult::NotModified
    }
}

/// Removes the fields that describe a body from the head of a 304. The fields that identify the
/// representation stay.
pub fn forget_body(response: &mut Response) {
    response.status_text = None;
    response.content_type = Bytes::new();
    response.content_type_parameters = Bytes::new();
    response.clear_content_length();
    response.clear_ranges();
    response.remove_coding();
    response.header_only = true;
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const LATER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";
    const TIME_AND_TAG: (Option<i64>, Option<&[u8]>) = (Some(784_111_777), Some(b"\"a\""));
    const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";

    fn response() -> Response {
        let mut response = Response {
            status: 200,
            last_modified: Some(784_111_777),
            ..Response::default()
        };
        response.add("ETag", "\"a\"");
        response
    }

    fn verdict(name: &str, value: &str, mode: IfModifiedSince) -> ConditionResult {
        let value = Some(value.as_bytes());
        let conditions = match name {
            "unmodified" => Conditions {
                unmodified_since: value,
                ..Conditions::default()
            },
            "match" => Conditions {
                matching: value,
                ..Conditions::default()
            },
            "modified" => Conditions {
                modified_since: value,
                ..Conditions::default()
            },
            _ => Conditions {
                none_matching: value,
                ..Conditions::default()
            },
        };
        conditions.evaluate(TIME_AND_TAG.0, TIME_AND_TAG.1, mode)
    }

    #[test]
    fn single_conditions() {
        use IfModifiedSince::{Before, Exact, Off};
        for (name, value, mode, expected) in [
            ("modified", TIME, Exact, ConditionResult::NotModified),
            ("modified", LATER, Exact, ConditionResult::Send),
            ("modified", EARLIER, Exact, ConditionResult::Send),
            ("modified", LATER, Before, ConditionResult::NotModified),
            ("modified", EARLIER, Before, ConditionResult::Send),
            ("modified", TIME, Off, ConditionResult::Send),
            ("modified", "nonsense", Exact, ConditionResult::Send),
            ("unmodified", TIME, Exact, ConditionResult::Send),
            ("unmodified", LATER, Exact, ConditionResult::Send),
            ("unmodified", EARLIER, Exact, ConditionResult::Failed),
            ("unmodified", "nonsense", Exact, ConditionResult::Failed),
            ("match", "\"a\"", Exact, ConditionResult::Send),
            ("match", "*", Exact, ConditionResult::Send),
            ("match", "W/\"a\"", Exact, ConditionResult::Failed),
            ("match", "\"b\"", Exact, ConditionResult::Failed),
            ("none", "\"a\"", Exact, ConditionResult::NotModified),
            ("none", "W/\"a\"", Exact, ConditionResult::NotModified),
            ("none", "\"b\", \"c\"", Exact, ConditionResult::Send),
            ("none", "*", Exact, ConditionResult::NotModified),
        ] {
            assert_eq!(verdict(name, value, mode), expected, "{name} {value}");
        }
    }

    #[test]
    fn both_must_hold() {
        let both = |list: &'static [u8], value: &'static str| {
            let conditions = Conditions {
                none_matching: Some(list),
                modified_since: Some(value.as_bytes()),
                ..Conditions::default()
            };
            conditions.evaluate(TIME_AND_TAG.0, TIME_AND_TAG.1, IfModifiedSince::Exact)
        };
        assert_eq!(both(b"\"a\"", TIME), ConditionResult::NotModified);
        assert_eq!(both(b"\"b\"", TIME), ConditionResult::Send);
        assert_eq!(both(b"\"a\"", LATER), ConditionResult::Send);
    }

    #[test]
    fn a_304_describes_no_body() {
        let mut response = response();
        response.content_type = "text/html".into();
        response.content_length = Some(5);
        response.allow_ranges = true;
        response.set_coding("gzip");
        forget_body(&mut response);
        assert_eq!(response.content_length, None);
        assert!(response.content_type.is_empty() && !response.allow_ranges && response.header_only);
        assert!(response.field(b"Content-Encoding").is_none());
        assert!(response.field(b"ETag").is_some());
        assert_eq!(response.last_modified, Some(784_111_777));
    }
}
