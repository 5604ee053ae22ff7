//! Limits how many requests of all threads are in flight to a group, and queues the others.
//!
//! ```text
//!              fewer than the limit are in flight
//!  (a request) ────────────────────────────────────────────────────▶ Admitted ── dropped ──▶ (the first in the queue is admitted)
//!      │  more                      a place is free, it is first          ▲
//!      ├──────────────▶ Waiting ──────────────────────────────────────────┘
//!      │                   └─ dropped: the client has left, or a timeout ──▶ (gone)
//!      └──────────────▶ Refused: the queue is full, or the turn would come too late
//! ```
//!
//! When a request ends, the first request in the queue is admitted at once, so that no later
//! request can overtake it. However a request ends, its [`Admitted`] or [`WaitingRequest`] is
//! dropped exactly once, so the number of requests in flight is always correct.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use engine::select::{Either, either};

use crate::limiter::{Limiter, LimiterSample};
use crate::moment::since_beginning;
use crate::wait_queue::WaitQueue;

/// How many requests may be in flight to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    /// A fixed number of requests.
    Fixed(usize),
    /// An adaptive limit, computed from measured response times.
    Adaptive,
}

/// The limits of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Maximum number of requests in the queue.
    pub length: usize,
    /// The longest expected wait; a request that would wait longer is refused at once.
    pub expected_max: Duration,
}

/// The configuration of a gate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The version of the group that has these terms; a later configuration has a greater version.
    pub(crate) version: u64,
    pub(crate) concurrency: Concurrency,
    pub(crate) patience: Patience,
}

/// The state of a gate at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that may be in flight now; `None` if unlimited.
    pub limit: Option<usize>,
    /// Requests in flight.
    pub under_way: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// Requests refused so far.
    pub refused: u64,
    /// Requests that have timed out in the queue so far.
    pub expired: u64,
    /// How long a new request would wait; `None` if it would not wait, or if that is not known.
    pub wait: Option<Duration>,
}

/// How often a waiting request checks the limit without being woken: a response becomes a stream,
/// which frees room, merely by the passing of time (see [`Answering`]).
const LOOK: Duration = Duration::from_secs(1);

/// The concurrency limit of a group. Every request to the group must enter the gate.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<Core>);

/// The waker of a waiting request, once it has been polled.
type Sleeper = Option<Waker>;

#[derive(Debug, Default)]
struct Core {
    /// The version of the group that has set the limit; a later configuration has a greater
    /// version.
    version: u64,
    limit: Limit,
    under_way: usize,
    /// The requests in flight whose responses are being received, for an adaptive limit.
    answering: Answering,
    line: WaitQueue<Sleeper>,
    refused: u64,
    expired: u64,
}

#[derive(Debug, Default)]
enum Limit {
    #[default]
    None,
    Fixed(usize),
    Adaptive(Limiter),
}

/// What happens to a new request.
#[derive(Debug)]
pub enum Entry {
    /// The request goes on at once.
    Admitted(Admitted),
    /// The request waits in the queue.
    Waiting(WaitingRequest),
    /// The request is refused.
    Refused(Load),
}

/// Numbers of requests in flight, by the second in which their response heads came. A response that
/// takes longer than [`ANSWERING_SECONDS`] counts as a stream, and its request no longer counts as
/// in flight: the server of a stream mostly waits, so a few streams would use up an adaptive limit
/// without any load.
#[derive(Debug, Default)]
struct Answering {
    counts: [usize; ANSWERING_SECONDS],
    /// The second of the last call of `advance`.
    second: u64,
}

/// A response that takes longer than this many seconds is a stream.
const ANSWERING_SECONDS: usize = 3;

impl Answering {
    /// Advances the time to `second`, and returns how many responses have become streams since the
    /// last call.
    fn advance(&mut self, second: u64) -> usize {
        let passed = second.saturating_sub(self.second);
        self.second = self.second.max(second);
        let passed = usize::try_from(passed).unwrap_or(ANSWERING_SECONDS);
        let mut streams = 0;
        for ago in 0..passed.min(ANSWERING_SECONDS) as u64 {
            let place = slot(self.second.saturating_sub(ago));
            streams += self.counts.get_mut(place).map_or(0, std::mem::take);
        }
        streams
    }

    /// The number of responses whose heads came in `second`; `None` if they have become streams.
    fn of(&mut self, second: u64) -> Option<&mut usize> {
        let is_past = second + ANSWERING_SECONDS as u64 <= self.second;
        self.counts.get_mut(slot(second)).filter(|_| !is_past)
    }
}

fn slot(second: u64) -> usize {
    (second % ANSWERING_SECONDS as u64) as usize
}

impl Core {
    fn limit(&self) -> usize {
        match &self.limit {
            Limit::None => usize::MAX,
            Limit::Fixed(limit) => *limit,
            Limit::Adaptive(limiter) => limiter.limit(),
        }
    }

    /// Admits waiting requests as far as the limit allows, and updates the service rate. Appends
    /// the wakers of the admitted requests to `woken`.
    fn settle(&mut self, now: Duration, woken: &mut Vec<Waker>) {
        let streams = self.answering.advance(now.as_secs());
        self.under_way = self.under_way.saturating_sub(streams);
        let others_wait = !self.line.is_empty() && self.under_way >= self.limit();
        if let Limit::Adaptive(limiter) = &mut self.limit {
            limiter.look(now, others_wait);
        }
        let mut limit = self.limit();
        while self.under_way < limit
            && let Some(sleeper) = self.line.call()
        {
            self.under_way += 1;
            woken.extend(sleeper);
            limit = self.limit();
        }
        let is_busy = self.under_way >= limit;
        self.line.pace().advance(now, is_busy);
    }

    /// Begins the measurement of an admitted request.
    fn begin(&mut self, now: Duration) -> Option<LimiterSample> {
        match &mut self.limit {
            Limit::Adaptive(limiter) => Some(limiter.begin(now, self.under_way)),
            Limit::None | Limit::Fixed(_) => None,
        }
    }

    fn load(&self) -> Load {
        Load {
            limit: match self.limit() {
                usize::MAX => None,
                limit => Some(limit),
            },
            under_way: self.under_way,
            waiting: self.line.len(),
            refused: self.refused,
            expired: self.expired,
            wait: (self.line.wait()).filter(|_| self.under_way >= self.limit()),
        }
    }

    fn set(&mut self, now: Duration, version: u64, concurrency: Option<Concurrency>) {
        if version <= self.version {
            return;
        }
        self.version = version;
        self.limit = match (concurrency, std::mem::take(&mut self.limit)) {
            (None, _) => Limit::None,
            (Some(Concurrency::Fixed(limit)), _) => Limit::Fixed(limit),
            (Some(Concurrency::Adaptive), Limit::Adaptive(limiter)) => Limit::Adaptive(limiter),
            (Some(Concurrency::Adaptive), _) => Limit::Adaptive(Limiter::new(now)),
        };
    }
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, Core> {
        // No critical section can panic half-way, so a poisoned lock is still consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `act` on the current state, and then admits waiting requests as far as the limit
    /// allows.
    fn with<R>(&self, now: Duration, act: impl FnOnce(&mut Core) -> R) -> R {
        let mut woken = Vec::new();
        let mut core = self.lock();
        core.settle(now, &mut woken);
        let done = act(&mut core);
        core.settle(now, &mut woken);
        drop(core);
        woken.into_iter().for_each(Waker::wake);
        done
    }

    /// Sets the limit of a configuration, unless a later configuration has set a limit already.
    pub(crate) fn set(&self, now: Instant, version: u64, concurrency: Option<Concurrency>) {
        let now = since_beginning(now);
        self.with(now, |core| core.set(now, version, concurrency));
    }

    /// Admits, queues or refuses a new request. `terms` are those of the configuration by which the
    /// request is served.
    pub(crate) fn enter(self: &Arc<Gate>, now: Instant, terms: &Terms) -> Entry {
        self.enter_at(since_beginning(now), terms)
    }

    fn enter_at(self: &Arc<Gate>, now: Duration, terms: &Terms) -> Entry {
        let patience = terms.patience;
        self.with(now, |core| {
            core.set(now, terms.version, Some(terms.concurrency));
            if core.under_way < core.limit() && core.line.is_empty() {
                core.under_way += 1;
                let begun = core.begin(now);
                return Entry::Admitted(Admitted::new(self, now, begun));
            }
            core.line.pace().advance(now, true);
            let is_known = match &core.limit {
                Limit::Adaptive(limiter) => limiter.is_settled(),
                Limit::None | Limit::Fixed(_) => true,
            };
            let has_room = core.line.len() < patience.length
                && core.line.has_room(0, patience.expected_max, is_known);
            if !has_room {
                core.refused += 1;
                return Entry::Refused(core.load());
            }
            Entry::Waiting(WaitingRequest {
                gate: Arc::clone(self),
                number: core.line.join(None),
                is_over: false,
            })
        })
    }

    pub(crate) fn load(&self) -> Load {
        self.lock().load()
    }
}

/// An admitted request, which counts as in flight until this is dropped.
#[derive(Debug)]
pub struct Admitted {
    gate: Arc<Gate>,
    since: Duration,
    /// The measurement for an adaptive limit, until the response head has come.
    begun: Option<LimiterSample>,
    /// The second in which the response head came, if the limit is adaptive. The response becomes a
    /// stream some seconds later.
    answered_in: Option<u64>,
    is_over: bool,
}

impl Admitted {
    fn new(gate: &Arc<Gate>, since: Duration, begun: Option<LimiterSample>) -> Admitted {
        Admitted {
            gate: Arc::clone(gate),
            since,
            begun,
            answered_in: None,
            is_over: false,
        }
    }

    /// Ends the measurement: the response head has come, or the request has timed out.
    pub fn answered(&mut self, now: Instant) {
        self.answered_at(since_beginning(now));
    }

    fn answered_at(&mut self, now: Duration) {
        let Some(begun) = self.begun.take() else {
            return;
        };
        let time = now.saturating_sub(self.since);
        let second = now.as_secs();
        self.answered_in = self.gate.with(now, |core| {
            let Limit::Adaptive(limiter) = &mut core.limit else {
                return None;
            };
            limiter.answered(now, begun, time);
            core.under_way = core
                .under_way
                .saturating_sub(core.answering.advance(second));
            *core.answering.of(second)? += 1;
            Some(second)
        });
    }

    fn end(&mut self, now: Duration) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        let answered_in = self.answered_in;
        self.gate.with(now, |core| {
            core.line.pace().served();
            match answered_in.map(|second| core.answering.of(second)) {
                // The response has become a stream, so the request has left `under_way` already.
                Some(None) => return,
                Some(Some(count)) => *count = count.saturating_sub(1),
                None => {}
            }
            core.under_way = core.under_way.saturating_sub(1);
        });
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.end(since_beginning(engine::now()));
    }
}

/// A request in the queue. Dropping it leaves the queue.
#[derive(Debug)]
pub struct WaitingRequest {
    gate: Arc<Gate>,
    number: u64,
    /// Whether nothing is left to do at the drop: `admitted` has returned, or the request has left
    /// the queue.
    is_over: bool,
}

impl WaitingRequest {
    /// Waits until the request is admitted.
    pub async fn admitted(&mut self) -> Admitted {
        loop {
            let turn = poll_fn(|context| self.poll_at(since_beginning(engine::now()), context));
            match either(turn, engine::sleep(LOOK)).await {
                Either::First(admitted) => return admitted,
                Either::Second(()) => self.look(since_beginning(engine::now())),
            }
        }
    }

    /// If this is the first request in the queue, checks whether time alone has made room.
    fn look(&self, now: Duration) {
        if self.gate.lock().line.is_first(self.number) {
            self.gate.with(now, |_| ());
        }
    }

    fn poll_at(&mut self, now: Duration, context: &mut Context<'_>) -> Poll<Admitted> {
        let mut core = self.gate.lock();
        if let Some(sleeper) = core.line.at(self.number) {
            *sleeper = Some(context.waker().clone());
            return Poll::Pending;
        }
        self.is_over = true;
        let begun = core.begin(now);
        drop(core);
        Poll::Ready(Admitted::new(&self.gate, now, begun))
    }

    /// Counts the request as timed out, and removes it from the queue. Returns the state before the
    /// removal.
    pub fn expire(self) -> Load {
        let mut core = self.gate.lock();
        core.expired += 1;
        let load = core.load();
        drop(core);
        load
    }

    fn end(&mut self, now: Duration) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        self.gate.with(now, |core| {
            if core.line.cancel(self.number).is_none() {
                // The request was admitted, but dropped before `admitted` returned.
                core.under_way = core.under_way.saturating_sub(1);
            }
        });
    }
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        self.end(since_beginning(engine::now()));
    }
}

#[cfg(test)]
mod tests;
