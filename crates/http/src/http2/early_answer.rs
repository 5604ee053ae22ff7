//! How a stream ends whose response is complete while its request is not, or was malformed: the
//! server resets it.
//!
//! Clients that find the end of a response and the reset of its stream in one read lose the
//! response; curl up to 7.88 is one. So the reset leaves apart, in another record and a moment
//! later: nginx sends it in a write of its own, which is enough with TLS, but not in the clear.
//!
//! What the client sends meanwhile is dropped and earns no credit, as it does behind the reset: the
//! rest of a stream's window is all that can come. A client that ends its request meanwhile hears
//! of no reset.

use std::future::poll_fn;
use std::time::Duration;

use engine::select::{Either, either};
use proto::h2::ErrorCode;

use crate::http2::stream::{Flow, SharedConnection};
use crate::logging;

/// Time between the end of a response and the reset of its stream.
const RESET_DELAY: Duration = Duration::from_millis(50);

/// What is left of a request whose response is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing: the request, or its stream, has ended.
    None,
    /// Parts of the body that nobody wants.
    Unwanted,
    /// The request was malformed; whatever comes is not looked at.
    Malformed,
}

/// Waits until a stream may be let go of whose response the transport has got. A stream that has
/// not ended by then is reset as it is released.
pub(super) async fn settle_rest_of_request(shared: &SharedConnection, flow: &Flow, rest: Rest) {
    let is_delayed = match rest {
        Rest::None => false,
        Rest::Unwanted => true,
        // A client that has ended its request takes the stream for closed with the response, and
        // its place for free: also where it does so meanwhile, of which nobody hears.
        Rest::Malformed => shared.with(|machine| {
            machine.is_rest_ignored(flow.number) && machine.live() * 2 <= machine.streams_max()
        }),
    };
    if is_delayed {
        let is_unwanted = rest == Rest::Unwanted;
        let is_over = |flow: &Flow| flow.is_gone() || is_unwanted && flow.has_come();
        shared.awaits_reset();
        set_apart(shared, flow, is_over).await;
        shared.resets();
    }
    if let Some(fault) = flow.take_fault() {
        logging::client::http2_fault(&shared.connection, &fault);
    }
    let is_malformed = rest == Rest::Malformed || flow.is_malformed();
    if is_malformed && rest != Rest::None && !flow.is_gone() {
        let code = ErrorCode::ProtocolError;
        shared.with(|machine| machine.reset_answered(flow.number, code));
        shared.call();
    }
}

/// Lets time pass between a response and the reset of its stream, unless the stream ends without
/// one.
async fn set_apart(shared: &SharedConnection, flow: &Flow, is_over: impl Fn(&Flow) -> bool) {
    loop {
        let sent_before = shared.sent();
        let over = poll_fn(|context| {
            flow.poll_received(context.waker(), |flow| is_over(flow).then_some(()))
        });
        match either(over, engine::sleep(RESET_DELAY)).await {
            // Nothing has been put between, and the client cannot have read the response yet.
            Either::Second(()) if shared.has_backlog() && shared.sent() == sent_before => {}
            _ => return,
        }
    }
}
