//! Responses that are the same for every plain request of a scope, such as those of `return` with a
//! text without variables.
//!
//! A module declares this for the scope when it registers (`PlanBuilder::answers_constantly`). The
//! response that the normal path has sent to one client is recorded, byte for byte. It is sent to
//! other clients for the rest of the second that its Date names. The first request of the next
//! second takes the normal path again. So there is only one implementation of such a response.

use std::rc::Rc;
use std::time::Duration;

use crate::h1::exchange::{ConnectionOutcome, may_keep_alive};
use crate::module::Prebuilt;
use crate::request::Request;
use crate::response::prebuilt::PrebuiltEncoding;
use crate::response::prebuilt::answering;
use crate::response::prebuilt::answering::ResponseSink;
use crate::response::prebuilt::recording::{is_padded, is_request_independent};

/// Answers a plain request of a plan that has a constant response. `None` if the request must take
/// the normal path.
pub fn answer(request: &mut Request, to: &mut impl ResponseSink) -> Option<ConnectionOutcome> {
    let asks_to_stay = request.client.keeps_alive();
    let keep_alive = asks_to_stay && may_keep_alive(&request.connection, request);
    let form = to.form(request, keep_alive)?;
    let http = Rc::clone(&request.http);
    let cache = http.prebuilt.borrow();
    let kept = cache.constant(request.plan.id)?;
    let dated = kept.responses[form as usize].as_ref()?;
    if dated.second != engine::wall().as_secs()
        || !is_request_independent(request, kept.status)
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
        || answering::permit(request, prebuilt) != Some(PrebuiltEncoding::Identity)
    {
        return None;
    }
    request.response.status = kept.status;
    to.send(request, dated);
    let after = answering::send_prebuilt(request, dated, form);
    answering::note_repeatable(request, dated, Duration::MAX, form);
    Some(after)
}
