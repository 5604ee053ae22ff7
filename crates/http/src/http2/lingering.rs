//! How a stream ends whose response is complete, and whose request is not or was malformed.
//!
//! Clients lose the response that find its end and the reset of its stream in one read, so some time lies between the two. What
//! they still send meanwhile is read away, as with HTTP/1: many send all of a body before they look at the response, and need
//! credit for it.

use std::future::poll_fn;
use std::time::Duration;

use engine::select::{Either, either};
use proto::h2::ErrorCode;

use crate::core::{Core, LingeringClose};
use crate::http2::stream::{Flow, Shared};
use crate::http2::upload::{self, READING_WINDOW};
use crate::log;

/// Time between a response and the reset of its stream where nothing else is waited for.
const RESET_DELAY: Duration = Duration::from_millis(20);

/// How a stream ends.
pub(super) enum Leaving {
    /// It has ended, or ends now.
    AtOnce,
    /// Its request was malformed.
    Malformed,
    /// Its request has not come to its end. What comes is read away for a while, where the configuration says so, and not longer
    /// than until nothing has come for another.
    Unread(Option<(Duration, Duration)>),
}

/// How long what a client sends is read away, in all and without another byte, where that is done.
pub(super) fn times_of(core: &Core) -> Option<(Duration, Duration)> {
    (core.lingering_close != LingeringClose::Off)
        .then_some((core.lingering_time, core.lingering_timeout))
}

/// Waits until a stream may be let go of, whose response has been given to the transport.
pub(super) async fn leave(shared: &Shared, flow: &Flow, leaving: Leaving) {
    match leaving {
        Leaving::AtOnce => {}
        Leaving::Malformed => {
            // Its client may take it for closed, and its place for free.
            let has_room = shared.with(|machine| machine.live() * 2 <= machine.streams_max());
            if has_room {
                engine::sleep(RESET_DELAY).await;
            }
            reset_malformed(shared, flow);
        }
        Leaving::Unread(times) => {
            if shared.lingers() {
                read_away(shared, flow, times).await;
                shared.lingers_no_more();
            }
        }
    }
}

/// Reads what still comes of a request, up to its end or that of its stream.
async fn read_away(shared: &Shared, flow: &Flow, times: Option<(Duration, Duration)>) {
    let (time, timeout) = times.unwrap_or((RESET_DELAY, RESET_DELAY));
    if times.is_some() {
        shared.with(|machine| machine.widen(flow.number, READING_WINDOW));
        shared.call();
    }
    let end = engine::now() + time;
    loop {
        let deadline = (engine::now() + timeout).min(end);
        let comes = poll_fn(|context| {
            flow.poll_received(context.waker(), |flow| {
                (flow.is_gone() || flow.is_readable()).then_some(())
            })
        });
        match either(comes, engine::sleep_until(deadline)).await {
            // The client cannot know yet that it has the response.
            Either::Second(()) if deadline < end && shared.has_backlog() => continue,
            Either::Second(()) => return,
            Either::First(()) if flow.is_gone() => return,
            Either::First(()) => {}
        }
        if let Some(fault) = flow.take_fault() {
            log::http2_fault(&shared.connection, &fault);
            return reset_malformed(shared, flow);
        }
        if let Some(part) = flow.take_received()
            && times.is_some()
        {
            upload::give_credit(shared, flow, part.len());
        }
        if flow.has_come() {
            return;
        }
    }
}

/// Resets a stream for its malformed request, behind the response.
fn reset_malformed(shared: &Shared, flow: &Flow) {
    if !flow.is_gone() {
        let code = ErrorCode::ProtocolError;
        shared.with(|machine| machine.reset_answered(flow.number, code));
        shared.call();
    }
}
