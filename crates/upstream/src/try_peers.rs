//! The loop over the peers of a group, for any protocol: a peer is chosen, connected to and asked;
//! if that fails, the next peer is tried, if permitted (nginx's `ngx_http_upstream_next`). Failures
//! are logged here, in nginx's words; the [`Caller`] records the attempts.
//!
//! ```text
//! admission ─▶ turn ─▶ choose ─▶ connect ─▶ talk ─▶ judge ─▶ answered
//!                ▲                  │         │
//!                └── may_try_next ◀─┴─────────┘ failed
//! ```

use std::time::{Duration, Instant};

use engine::net::Address;
use engine::select::{Either, either};
use logs::Printable;

use crate::admission::{self, Admission};
use crate::caller::{
    AttemptError, AttemptFailure, AttemptStart, Caller, ConnectionRoom, PeerProtocol, RetryPolicy,
    Unanswered,
};
use crate::causes::Causes;
use crate::gate::Admitted;
use crate::lease::Lease;
use crate::outliers::{Cause, PutOut};
use crate::queue::QueueTicket;
use crate::selection::Selection;

/// The phrase that says in log lines that a connection to a peer was being made.
pub const CONNECTING: &str = "while connecting to upstream";

/// The response of a peer.
pub struct Answered<P, A> {
    /// The connection to the peer.
    pub connection: P,
    /// The response.
    pub answer: A,
    /// The lease of the peer, which counts as a request of the peer until it is dropped.
    pub lease: Option<Lease>,
    /// Counts the request as in flight to the group until it is dropped; `None` if the group has no
    /// limit.
    pub admitted: Option<Admitted>,
}

/// The outer error is a client that has disconnected; the inner error says why no peer has
/// responded.
pub type TryResult<C, A> = Result<
    Result<
        Answered<<A as PeerProtocol<C>>::Connection, <A as PeerProtocol<C>>::Answer>,
        Unanswered,
    >,
    <C as Caller>::Gone,
>;

/// Tries peers until one responds.
///
/// # Errors
/// If the client has left.
pub async fn try_peers<C: Caller, A: PeerProtocol<C>>(
    caller: &mut C,
    client: &mut C::Client,
    selection: &mut Selection,
    asking: &A,
) -> TryResult<C, A> {
    let tries = asking.tries();
    caller.begins();
    let mut passage = match admission::admit(caller, client, tries, selection).await {
        Ok(passage) => passage,
        Err(AttemptError::Aborted(gone)) => return Err(gone),
        Err(AttemptError::Refused(status)) => return Ok(Err(Unanswered::of_ours(status))),
        Err(AttemptError::Failed(failure)) => return Ok(Err(failure.into())),
    };
    let began = engine::now();
    loop {
        match attempt(caller, client, selection, asking, began, &mut passage).await {
            Ok((connection, answer)) => {
                if let Some(admitted) = &mut passage.admitted {
                    admitted.answered(engine::now());
                }
                if let Some(status) = asking.status(&answer) {
                    judge::<C, A>(caller, selection, status);
                }
                let mut lease = selection.answered();
                if let Some(lease) = &mut lease
                    && let Some(time) = caller.head_time()
                {
                    lease.head_came(time);
                }
                return Ok(Ok(Answered {
                    connection,
                    answer,
                    lease,
                    admitted: passage.admitted,
                }));
            }
            Err(AttemptError::Failed(failure)) => {
                note_failure(caller, selection, &failure);
                if failure.is_of_others && tries.next_upstream_tries == 0 {
                    selection.try_once_more();
                }
                let goes_on =
                    failure.again || may_try_next(caller, selection, asking, &failure, began);
                if goes_on {
                    continue;
                }
                if let Some(admitted) = &mut passage.admitted
                    && failure.cause == Causes::TIMEOUT
                {
                    admitted.answered(engine::now());
                }
                return Ok(Err(failure.into()));
            }
            Err(AttemptError::Refused(status)) => return Ok(Err(Unanswered::of_ours(status))),
            Err(AttemptError::Aborted(gone)) => return Err(gone),
        }
    }
}

/// Waits for `work`, unless the client disconnects before it ends. `doing` is the phrase for the
/// log line about the disconnect.
///
/// # Errors
/// If the client has left.
pub async fn unless_gone<C: Caller, T>(
    caller: &mut C,
    client: &mut C::Client,
    ignores_client: bool,
    doing: &'static str,
    work: impl Future<Output = T>,
) -> Result<T, C::Gone> {
    if ignores_client {
        return Ok(work.await);
    }
    match either(work, C::gone(client)).await {
        Either::First(done) => Ok(done),
        Either::Second(gone) => Err(caller.left(client, gone, doing)),
    }
}

/// Counts a failed attempt at the peer, and logs the effects.
fn note_failure<C: Caller>(caller: &mut C, selection: &mut Selection, failure: &AttemptFailure) {
    let doing = failure.doing;
    let now = engine::now();
    if failure.cause != Causes::NO_LIVE {
        caller.peer_failed();
    }
    if failure.is_busy {
        selection.let_off();
    } else if failure.cause.is_harmless() {
        selection.passed_by(now);
    } else if failure.cause != Causes::NO_LIVE {
        let name = selection.given().map(|given| given.name.clone());
        let failed = selection.failed(now);
        if failed.disabled {
            logs::error!(caller, Warn, "upstream server temporarily disabled {doing}");
        }
        if let Some(put_out) = failed.put_out {
            tell_put_out(caller, &name.unwrap_or_default(), put_out, doing);
        }
    }
    if failure.kept && failure.cause == Causes::ERROR {
        selection.try_once_more();
    }
    caller.try_failed(failure);
}

/// Counts the status of a response for outlier detection, if the response goes to the client.
fn judge<C: Caller, A: PeerProtocol<C>>(caller: &C, selection: &Selection, status: u16) {
    let is_well = !matches!(status, 502..=504);
    if let Some(put_out) = selection.judge(engine::now(), is_well)
        && let Some(given) = selection.given()
    {
        tell_put_out(caller, &given.name, put_out, A::READING);
    }
}

fn tell_put_out<C: Caller>(caller: &C, name: &[u8], put_out: PutOut, doing: &str) {
    let PutOut { time, cause } = put_out;
    let cause = match cause {
        Cause::InARow(failures) => format!("{failures} failures in a row"),
        Cause::Share(failures, requests) => format!("{failures} of {requests} requests failed"),
    };
    logs::error!(
        caller,
        Warn,
        "upstream server {} put out for {} ms: {cause} {doing}",
        Printable(name),
        time.as_millis()
    );
}

/// Whether the next peer is tried after this failure (nginx's `ngx_http_upstream_next`). Takes a
/// retry out of the group's budget, if it has one.
fn may_try_next<C: Caller, A: PeerProtocol<C>>(
    caller: &C,
    selection: &Selection,
    asking: &A,
    failure: &AttemptFailure,
    began: Instant,
) -> bool {
    let tries = asking.tries();
    let mut cause = failure.cause;
    if failure.sent && caller.changes_something() {
        cause = cause.with(Causes::NON_IDEMPOTENT);
    }
    let timeout = tries.next_upstream_timeout;
    let now = engine::now();
    let may = selection.tries_left() > 0
        && tries.next_upstream.contains(cause)
        && (asking.can_be_repeated() || !failure.sent)
        && (timeout.is_zero() || now.saturating_duration_since(began) < timeout);
    // A request on a reused connection that has ended is repeated without a retry from the budget.
    if !may || (failure.kept && failure.cause == Causes::ERROR) || selection.may_retry(now) {
        return may;
    }
    logs::error!(
        caller,
        Warn,
        "retry budget of upstream \"{}\" is spent, no other server is tried {}",
        Printable(&selection.group().name),
        failure.doing
    );
    false
}

/// One attempt: chooses a peer, connects to it and exchanges request and response.
async fn attempt<C: Caller, A: PeerProtocol<C>>(
    caller: &mut C,
    client: &mut C::Client,
    selection: &mut Selection,
    asking: &A,
    began: Instant,
    passage: &mut Admission,
) -> Result<(A::Connection, A::Answer), AttemptError<C::Gone>> {
    asking.try_begins();
    let tries = asking.tries();
    let mut waited = wait_for_turn(caller, client, tries, selection).await?;
    if let Some(before) = passage.waited.take() {
        waited.time = Some(waited.time.unwrap_or_default() + before);
    }
    let address = choose(caller, selection, &waited)?;
    let room = ConnectionRoom {
        unheard: selection.unheard(),
        goes_elsewhere: matches!(address, Address::Unix(_))
            && tries.next_upstream.contains(Causes::ERROR)
            && selection.has_others(engine::now()),
    };
    let connected = asking.connect(caller, client, &address, room);
    let (mut connection, kept) = connected.await?;
    selection.connected();
    let asked = asking.talk(caller, client, &mut connection).await;
    let answer = asked.map_err(|error| match error {
        // If nothing was sent, `talk` itself has set whether the end of a reused connection is to
        // blame.
        AttemptError::Failed(failure) => AttemptError::Failed(AttemptFailure {
            kept: kept && failure.sent || failure.kept,
            ..failure
        }),
        error => error,
    })?;
    if let Some(status) = asking.status(&answer)
        && let Some(given) = selection.given()
    {
        given.state().answers.note_status(status);
    }
    // A response with a status that counts as a failure is dropped while another peer can be tried.
    if let Some(status) = asking.status(&answer)
        && let Some(cause) = Causes::of_status(status)
        && selection.tries_left() > 1
    {
        let failure = AttemptFailure {
            sent: true,
            kept,
            again: true,
            ..AttemptFailure::new(cause, status, A::READING)
        };
        if may_try_next(caller, selection, asking, &failure, began) {
            return Err(AttemptError::Failed(failure));
        }
    }
    Ok((connection, answer))
}

/// The wait of an attempt for a peer.
#[derive(Default)]
struct Waited {
    /// How long the request waited; `None` if it did not wait.
    time: Option<Duration>,
    /// Whether no peer became available in time, or the queue was full. The request must not get a
    /// peer then, because it would overtake requests that still wait.
    in_vain: bool,
}

/// Chooses the caller's preferred peer if it is available, otherwise another peer. Returns whether
/// a peer was chosen.
fn choose_next<C: Caller>(caller: &mut C, selection: &mut Selection) -> bool {
    selection.want(caller.wanted());
    match selection.next(engine::now()) {
        Some(peer) => {
            caller.chosen(peer);
            true
        }
        None => false,
    }
}

/// Waits until a peer may be available, if the group has a queue and this is the first attempt.
async fn wait_for_turn<C: Caller>(
    caller: &mut C,
    client: &mut C::Client,
    tries: &RetryPolicy,
    selection: &mut Selection,
) -> Result<Waited, AttemptError<C::Gone>> {
    let Some(timeout) = selection.queue_timeout() else {
        return Ok(Waited::default());
    };
    if !selection.has_to_wait() && choose_next(caller, selection) {
        return Ok(Waited::default());
    }
    match selection.wait() {
        // Boxed, so that the futures of requests that do not wait stay small.
        Some(place) => Box::pin(wait(caller, client, tries, selection, place, timeout)).await,
        None => Ok(Waited {
            time: None,
            in_vain: true,
        }),
    }
}

/// Waits in the queue until called and a peer is available.
async fn wait<C: Caller>(
    caller: &mut C,
    client: &mut C::Client,
    tries: &RetryPolicy,
    selection: &mut Selection,
    place: QueueTicket,
    timeout: Duration,
) -> Result<Waited, AttemptError<C::Gone>> {
    let began = engine::now();
    let waiting = async {
        loop {
            place.called().await;
            selection.begin_again();
            if choose_next(caller, selection) {
                return;
            }
        }
    };
    let waiting = either(waiting, engine::sleep(timeout));
    let ended = if tries.ignore_client_abort {
        Ok(waiting.await)
    } else {
        match either(waiting, C::gone(client)).await {
            Either::First(ended) => Ok(ended),
            Either::Second(gone) => Err(gone),
        }
    };
    let in_vain = !selection.is_given();
    drop(place);
    match ended {
        Ok(_) => Ok(Waited {
            time: Some(engine::now().saturating_duration_since(began)),
            in_vain,
        }),
        Err(gone) => Err(caller.left(client, gone, CONNECTING).into()),
    }
}

/// Returns the address of the peer for this attempt, which was chosen during the wait or is chosen
/// now.
fn choose<C: Caller>(
    caller: &mut C,
    selection: &mut Selection,
    waited: &Waited,
) -> Result<Address, AttemptError<C::Gone>> {
    let is_chosen = selection.is_given() || (!waited.in_vain && choose_next(caller, selection));
    let is_back = is_chosen && selection.is_back();
    let peer = selection.given();
    let address = peer.map(|peer| peer.address.clone());
    caller.try_begins(AttemptStart {
        name: peer.map_or(&selection.group().name, |peer| &peer.name),
        address: address.as_ref(),
        waited: waited.time,
    });
    if is_back {
        logs::error!(
            caller,
            Notice,
            "upstream server is asked again, its time as an outlier is over {CONNECTING}"
        );
    }
    address.ok_or_else(|| {
        logs::error!(caller, Error, "no live upstreams {CONNECTING}");
        let load = selection.load().filter(|_| waited.in_vain);
        if let Some(load) = &load {
            admission::come_again(caller, selection, load);
        }
        let status = if load.is_some() { 503 } else { 502 };
        AttemptError::Failed(AttemptFailure::new(Causes::NO_LIVE, status, CONNECTING))
    })
}

#[cfg(test)]
mod tests;
