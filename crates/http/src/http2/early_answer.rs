//! Ends a stream whose response is complete although its request is incomplete or malformed: the
//! server resets the stream.
//!
//! Clients such as curl up to 7.88 lose a response if they read its end and the reset of its stream
//! at once. So the reset is sent in another TLS record and a moment later. nginx sends the reset in
//! a separate write, which is sufficient with TLS but not in the clear.
//!
//! Data that the client sends meanwhile is discarded and returns no flow-control credit, as after
//! the reset, so a client can only send the rest of the stream's window. If the client ends its
//! request meanwhile, no reset is sent.

use std::future::poll_fn;
use std::time::Duration;

use engine::select::{Either, either};
use proto::h2::ErrorCode;

use crate::http2::stream::{Flow, SharedConnection};
use crate::logging;

/// Time between the end of a response and the reset of its stream.
const RESET_DELAY: Duration = Duration::from_millis(50);

/// The rest of a request whose response is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestRest {
    /// None: the request or its stream has ended.
    None,
    /// A rest of the body that is not read.
    Unwanted,
    /// The request was malformed; further frames are ignored.
    Malformed,
}

/// Waits until the stream of a response that is in the transport may be released. A stream that has
/// not ended by then is reset on its release.
pub(super) async fn settle_rest_of_request(
    shared: &SharedConnection,
    flow: &Flow,
    rest: RequestRest,
) {
    let is_delayed = match rest {
        RequestRest::None => false,
        RequestRest::Unwanted => true,
        // A client that has ended its request takes the stream for closed when it has the response,
        // and its place among the concurrent streams for free. The same holds if the client ends
        // the request meanwhile, which is not noticed.
        RequestRest::Malformed => shared.with(|machine| {
            machine.is_rest_ignored(flow.number) && machine.live() * 2 <= machine.streams_max()
        }),
    };
    if is_delayed {
        let is_unwanted = rest == RequestRest::Unwanted;
        let is_over = |flow: &Flow| flow.is_gone() || is_unwanted && flow.has_come();
        shared.awaits_reset();
        set_apart(shared, flow, is_over).await;
        shared.resets();
    }
    if let Some(fault) = flow.take_fault() {
        logging::client::http2_fault(&shared.connection, &fault);
    }
    let is_malformed = rest == RequestRest::Malformed || flow.is_malformed();
    if is_malformed && rest != RequestRest::None && !flow.is_gone() {
        let code = ErrorCode::ProtocolError;
        shared.with(|machine| machine.reset_answered(flow.number, code));
        shared.call();
    }
}

/// Waits between a response and the reset of its stream, unless the stream ends by itself.
async fn set_apart(shared: &SharedConnection, flow: &Flow, is_over: impl Fn(&Flow) -> bool) {
    loop {
        let sent_before = shared.sent();
        let over = poll_fn(|context| {
            flow.poll_received(context.waker(), |flow| is_over(flow).then_some(()))
        });
        match either(over, engine::sleep(RESET_DELAY)).await {
            // No other frame has been sent in between, and the client cannot have read the response
            // yet.
            Either::Second(()) if shared.has_backlog() && shared.sent() == sent_before => {}
            _ => return,
        }
    }
}
