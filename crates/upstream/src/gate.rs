//! How many requests of all threads are under way towards a group, and those that wait until they
//! may be.
//!
//! ```text
//!              fewer than the limit are under way
//!  (a request) ────────────────────────────────────────────────────▶ Admitted ── dropped ──▶ (the first who waits is admitted)
//!      │  more                      one has ended, it is the first        ▲
//!      ├──────────────▶ Waiting ──────────────────────────────────────────┘
//!      │                   └─ dropped: its client has gone, or its time is over ──▶ (gone)
//!      └──────────────▶ Refusal: there is no room, or its turn would come too late
//! ```
//!
//! A place that has become free is given to the first who waits at once, so that no one who comes
//! later can have it. Whatever becomes of a request, an [`Admitted`] or a [`WaitingRequest`] is
//! dropped exactly once: the count always comes back.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use engine::select::{Either, either};

use crate::limiter::{Limiter, LimiterSample};
use crate::moment::since_beginning;
use crate::wait_queue::WaitQueue;

/// How many requests may be under way towards a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    /// Always so many requests at once.
    Fixed(usize),
    /// As many as answers come quickest with, by what is measured.
    Adaptive,
}

/// How a request waits until it may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The most that wait at a time.
    pub length: usize,
    /// One that would wait for longer, by what is known when it comes, does not begin to.
    pub expected_max: Duration,
}

/// What a configuration says of a gate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// A later configuration has a greater number.
    pub(crate) version: u64,
    pub(crate) concurrency: Concurrency,
    pub(crate) patience: Patience,
}

/// The numbers of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// The most that may be under way now; `None` where that is not bounded.
    pub limit: Option<usize>,
    /// Requests that have been let through and have not ended.
    pub under_way: usize,
    /// How many requests wait for a place.
    pub waiting: usize,
    /// Requests that were not let in, in all.
    pub refused: u64,
    /// Requests that have waited for too long, in all.
    pub expired: u64,
    /// How long one that comes now would wait; `None` where it would not, or that is not known.
    pub wait: Option<Duration>,
}

/// How often those who wait look by themselves: answers become streams by time alone, which calls
/// no one.
const LOOK: Duration = Duration::from_secs(1);

/// What all requests to a group go through that has a limit.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<Core>);

/// Whom to wake who waits, once it has been asked.
type Sleeper = Option<Waker>;

#[derive(Debug, Default)]
struct Core {
    /// Which configuration the limit is of: a later one has a greater number.
    version: u64,
    limit: Limit,
    under_way: usize,
    /// Those of them whose answers come, where the limit follows what is measured.
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

/// What comes of a request as it arrives.
#[derive(Debug)]
pub enum Entry {
    /// The request goes on at once.
    Admitted(Admitted),
    /// The request waits in the line.
    Waiting(WaitingRequest),
    /// It is not to wait.
    Refused(Load),
}

/// Requests by the second in which the heads of their answers came. Those that go on coming for
/// longer than a few seconds are streams: their servers wait more than they work, and if they
/// counted on, a few of them would take all of a measured limit.
#[derive(Debug, Default)]
struct Answering {
    counts: [usize; ANSWERING_SECONDS],
    /// The second that it is, or was when this was looked at.
    second: u64,
}

/// How many seconds an answer may come without being a stream.
const ANSWERING_SECONDS: usize = 3;

impl Answering {
    /// It is this second: how many have become streams.
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

    /// The count of those of a second, unless they have become streams.
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

    /// Lets those through who may go on, and notes how busy all are then. Those who are to be woken
    /// go to `woken`.
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

    /// One that is under way begins.
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
        // Nothing in these sections can panic half way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to it as it is at this moment, and then lets those through who may go on.
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

    /// The limit of a configuration that is in force now, unless that of a later one is.
    pub(crate) fn set(&self, now: Instant, version: u64, concurrency: Option<Concurrency>) {
        let now = since_beginning(now);
        self.with(now, |core| core.set(now, version, concurrency));
    }

    /// A request comes, of a configuration with this limit.
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

/// A request that has been let through, for as long as it is under way: it counts until this is
/// dropped.
#[derive(Debug)]
pub struct Admitted {
    gate: Arc<Gate>,
    since: Duration,
    /// What the limit is to learn of it, until its answer has come.
    begun: Option<LimiterSample>,
    /// When that came, in seconds, where it counts as a stream after a while.
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

    /// Its answer has come, or has been waited for in vain.
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
                // It counts no more.
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

/// A request that waits, in its place until this is dropped.
#[derive(Debug)]
pub struct WaitingRequest {
    gate: Arc<Gate>,
    number: u64,
    /// It has been let through, and that has been taken.
    is_over: bool,
}

impl WaitingRequest {
    /// Waits until it is let through.
    pub async fn admitted(&mut self) -> Admitted {
        loop {
            let turn = poll_fn(|context| self.poll_at(since_beginning(engine::now()), context));
            match either(turn, engine::sleep(LOOK)).await {
                Either::First(admitted) => return admitted,
                Either::Second(()) => self.look(since_beginning(engine::now())),
            }
        }
    }

    /// The first looks whether anything has changed by time alone.
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

    /// It has waited for too long.
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
                // It had been let through, and never knew.
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
