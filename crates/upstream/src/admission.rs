//! Admission to a group with a limit of requests in flight (`concurrency_limit`): a request is
//! admitted at once, waits in the queue, or is refused. A request is admitted once, however many
//! peers are tried.

use std::time::{Duration, Instant};

use engine::select::{Either, either};
use logs::Printable;

use crate::caller::{AttemptError, Caller, RetryPolicy};
use crate::gate::{Admitted, Entry, Load, WaitingRequest};
use crate::selection::Selection;
use crate::try_peers::CONNECTING;

/// The status of a refused request, which is sent with `Retry-After`.
const STATUS: u16 = 503;

/// The longest `Retry-After`: estimates of longer waits are not reliable.
const COME_AGAIN_MAX: Duration = Duration::from_secs(60);

/// An admitted request.
#[derive(Default)]
pub(crate) struct Admission {
    /// Counts the request as in flight. `None` if the group has no limit.
    pub(crate) admitted: Option<Admitted>,
    /// How long the request waited in the queue, if it waited.
    pub(crate) waited: Option<Duration>,
}

/// Admits a request, or waits until it is admitted.
pub(crate) async fn admit<C: Caller>(
    caller: &mut C,
    client: &mut C::Client,
    tries: &RetryPolicy,
    selection: &Selection,
) -> Result<Admission, AttemptError<C::Gone>> {
    let began = engine::now();
    match selection.group().enter(began) {
        None => Ok(Admission::default()),
        Some(Entry::Admitted(admitted)) => Ok(Admission {
            admitted: Some(admitted),
            waited: None,
        }),
        Some(Entry::Refused(load)) => {
            let wait = match load.wait {
                Some(wait) => format!(", it would take {} s", seconds(wait)),
                None => String::new(),
            };
            Err(refuse(caller, selection, &load, None, &wait))
        }
        // Boxed, so that the futures of requests that do not wait stay small.
        Some(Entry::Waiting(waiting)) => {
            let waiting = wait(caller, client, tries, selection, waiting, began);
            Box::pin(waiting).await
        }
    }
}

/// Waits in the queue until the request is admitted.
async fn wait<C: Caller>(
    caller: &mut C,
    client: &mut C::Client,
    tries: &RetryPolicy,
    selection: &Selection,
    mut waiting: WaitingRequest,
    began: Instant,
) -> Result<Admission, AttemptError<C::Gone>> {
    let time_out = engine::sleep(selection.group().waiting_time());
    let turn = either(waiting.admitted(), time_out);
    let ended = if tries.ignore_client_abort {
        turn.await
    } else {
        match either(turn, C::gone(client)).await {
            Either::First(ended) => ended,
            Either::Second(gone) => {
                drop(waiting);
                return Err(caller.left(client, gone, CONNECTING).into());
            }
        }
    };
    let waited = engine::now().saturating_duration_since(began);
    match ended {
        Either::First(admitted) => Ok(Admission {
            admitted: Some(admitted),
            waited: Some(waited),
        }),
        Either::Second(()) => {
            let load = waiting.expire();
            let wait = format!(", it has waited for {} s", seconds(waited));
            Err(refuse(caller, selection, &load, Some(waited), &wait))
        }
    }
}

/// Refuses a request, and suggests a `Retry-After` for the response.
fn refuse<C: Caller>(
    caller: &mut C,
    selection: &Selection,
    load: &Load,
    waited: Option<Duration>,
    wait: &str,
) -> AttemptError<C::Gone> {
    let name = &selection.group().name;
    caller.turned_away(name, STATUS, waited);
    logs::error!(
        caller,
        Error,
        "upstream \"{}\" has {} requests under way and {} waiting{wait}, refused {CONNECTING}",
        Printable(name),
        load.under_way,
        load.waiting
    );
    come_again(caller, selection, load);
    AttemptError::Refused(STATUS)
}

/// Suggests as `Retry-After` the estimated time until the requests that wait now have been served.
pub(crate) fn come_again<C: Caller>(caller: &mut C, selection: &Selection, load: &Load) {
    let wait = load
        .wait
        .unwrap_or_else(|| selection.group().waiting_time());
    caller.come_again(wait.min(COME_AGAIN_MAX));
}

/// Formats a time in seconds with one decimal.
fn seconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64())
}
