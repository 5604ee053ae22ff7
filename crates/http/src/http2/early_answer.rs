//! Ends a stream whose response is complete although its request is incomplete or malformed: the
//! server resets the stream.
//!
//! Clients such as curl up to 7.88 lose a response if they read its end and the reset of its stream
//! at once. So the reset is sent a moment later, in another TLS record. nginx sends the reset in a
//! separate write, which is sufficient with TLS but not in plaintext.
//!
//! Data that the client sends before the reset is discarded and returns no flow-control credit, so
//! the client can send at most the rest of the stream's window. If the client ends its request in
//! this time, no reset is sent.

use std::future::poll_fn;
use std::time::Duration;

use engine::select::{Either, either};
use proto::h2::ErrorCode;

use crate::http2::stream::{Flow, SharedConnection};
use crate::logging;

/// Time between the end of a response and the reset of its stream.
const RESET_DELAY: Duration = Duration::from_millis(50);

/// The part of a request that is left when its response is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestRest {
    /// Nothing: the request or its stream has ended.
    None,
    /// A rest of the body, which is not read.
    Unwanted,
    /// The request was malformed; further frames are ignored.
    Malformed,
}

/// Waits until a stream whose response has been given to the transport may be released. A stream
/// that has not ended by then is reset when it is released.
pub(super) async fn settle_rest_of_request(
    shared: &SharedConnection,
    flow: &Flow,
    rest: RequestRest,
) {
    let is_delayed = match rest {
        RequestRest::None => false,
        RequestRest::Unwanted => true,
        // A client that has ended its request regards the stream as closed when the response is
        // complete, and opens another in its place. So there is only a delay while at most half of
        // the permitted streams are open. The same is true if the client ends the request
        // meanwhile, which is not noticed.
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

/// Waits between the end of a response and the reset of its stream, unless the stream ends by
/// itself.
async fn set_apart(shared: &SharedConnection, flow: &Flow, is_over: impl Fn(&Flow) -> bool) {
    loop {
        let sent_before = shared.sent();
        let over = poll_fn(|context| {
            flow.poll_received(context.waker(), |flow| is_over(flow).then_some(()))
        });
        match either(over, engine::sleep(RESET_DELAY)).await {
            // No part of a body has been sent since, and bytes are still queued, so the client has
            // not read the end of the response yet: wait again.
            Either::Second(()) if shared.has_backlog() && shared.sent() == sent_before => {}
            _ => return,
        }
    }
}
