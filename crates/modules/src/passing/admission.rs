//! How a request is let through to a group that bounds how many are under way (`concurrency_limit`): at once, or when it is its turn,
//! or not at all. Once for a request, however many peers are tried.

use std::time::Duration;

use ::upstream::{Admitted, Entry, Load};
use engine::select::{Either, either};
use http::exchange::Exchange;
use http::log;
use http::request::Request;

use super::attempts::{AskedFor, Attempt, Attempts, Began};
use super::tries::{AttemptError, CONNECTING, Reach, Tries, client_left};
use crate::upstream::Selection;

/// What a request is answered with that is not let through, beside a time after which it may come again.
const STATUS: u16 = 503;

const RETRY_AFTER: &str = "Retry-After";

/// The latest that a client is told to come again: what is known of a longer time is worth nothing.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// A request that has been let through.
#[derive(Default)]
pub(super) struct Passage {
    /// `None` where nothing is bounded.
    pub(super) admitted: Option<Admitted>,
    /// How long it has waited, if it has.
    pub(super) waited: Option<Duration>,
}

/// Lets a request through, when it is its turn. What was said of an earlier pass, that it may come again later, holds no more.
pub(super) async fn admit(
    request: &mut Request,
    exchange: &mut Exchange,
    tries: &Tries,
    reach: &Reach,
    selection: &Selection,
) -> Result<Passage, AttemptError> {
    request.response.remove(RETRY_AFTER.as_bytes());
    let began = engine::now();
    let mut waiting = match selection.enter(began) {
        None => return Ok(Passage::default()),
        Some(Entry::Admitted(admitted)) => {
            return Ok(Passage {
                admitted: Some(admitted),
                waited: None,
            });
        }
        Some(Entry::Refused(load)) => {
            let wait = match load.wait {
                Some(wait) => format!(", it would take {} s", seconds(wait)),
                None => String::new(),
            };
            return Err(refuse(request, reach, selection, &load, None, &wait));
        }
        Some(Entry::Waiting(waiting)) => waiting,
    };
    let time_out = engine::sleep(selection.waiting_time());
    let turn = either(waiting.admitted(), time_out);
    let ended = match tries.ignore_client_abort {
        true => turn.await,
        false => match either(turn, exchange.client_gone()).await {
            Either::First(ended) => ended,
            Either::Second(abort) => {
                drop(waiting);
                return Err(client_left(request, exchange, &abort, CONNECTING).into());
            }
        },
    };
    let waited = engine::now().saturating_duration_since(began);
    match ended {
        Either::First(admitted) => Ok(Passage {
            admitted: Some(admitted),
            waited: Some(waited),
        }),
        Either::Second(()) => {
            let load = waiting.expire();
            let wait = format!(", it has waited for {} s", seconds(waited));
            Err(refuse(
                request,
                reach,
                selection,
                &load,
                Some(waited),
                &wait,
            ))
        }
    }
}

/// Answers that there is too much to do, and when there may be less.
fn refuse(
    request: &mut Request,
    reach: &Reach,
    selection: &Selection,
    load: &Load,
    waited: Option<Duration>,
    wait: &str,
) -> AttemptError {
    let name = selection.group_name();
    let attempts = Attempts::enter(request);
    let mut seen = attempts.borrow_mut();
    seen.asked_for = Some(AskedFor {
        scheme: reach.scheme,
        peer: name.clone(),
        uri: reach.uri.clone(),
    });
    seen.began = Began::now();
    seen.attempts.push(Attempt {
        peer: name.clone(),
        status: STATUS,
        queue_time: waited,
        response_time: Some(Duration::ZERO),
        ..Attempt::default()
    });
    drop(seen);
    log::error!(
        request,
        Error,
        "upstream \"{}\" has {} requests under way and {} waiting{wait}, refused {CONNECTING}",
        log::Printable(&name),
        load.under_way,
        load.waiting
    );
    come_again(request, selection, load);
    AttemptError::Refused(STATUS)
}

/// Tells the client when those have been served who wait now.
pub(super) fn come_again(request: &mut Request, selection: &Selection, load: &Load) {
    let wait = load.wait.unwrap_or_else(|| selection.waiting_time());
    let wait = wait.min(RETRY_AFTER_MAX);
    let whole = wait.as_millis().div_ceil(1000).max(1);
    request.response.set(RETRY_AFTER, whole.to_string());
}

/// With a digit behind the point.
fn seconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64())
}
