//! The state of a peer, shared by all threads.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use framework::handover::{StateReader, StateWriter, Unfit};

use crate::answers::Answers;
use crate::in_flight::InFlight;
use crate::latency::Latency;
use crate::moment::{Moment, average, millis};
use crate::outage::Outages;
use crate::outliers::Standing;
use crate::slow_start::WHOLE;

/// The state of a peer. Several threads write it, so a reader may see values of different moments.
/// Decisions that depend on several values are made under the lock of the group.
#[derive(Debug, Default)]
pub struct State {
    /// The number that identifies the peer in its group in the API, assigned on demand.
    pub(crate) number: OnceLock<u64>,
    /// The current weight of smooth weighted round robin, times [`WHOLE`]: grows by the effective
    /// weight in each round, and the peer with the largest current weight is chosen.
    current_weight: AtomicI64,
    /// The amount by which failures have reduced the effective weight; decreases by one each round.
    penalty: AtomicI64,
    /// Requests in flight.
    connections: AtomicUsize,
    /// Requests in flight without any response yet. Only counted for Unix sockets, to estimate the
    /// wait for their listen backlog.
    unheard: AtomicUsize,
    fails: AtomicU64,
    /// When the peer last failed.
    failed_at: Moment,
    /// When the peer last failed, or last got a trial request after that.
    checked_at: Moment,
    /// When the peer last became available again; never if it has always been available.
    recovered_at: Moment,
    /// Total of requests.
    requests: AtomicU64,
    /// Total of failed attempts.
    failures: AtomicU64,
    /// How often failed attempts have made the peer unavailable.
    outages: AtomicU64,
    /// Moving average of the time until the response head, in milliseconds.
    header_time: AtomicU64,
    /// Moving average of the time until the response was complete, in milliseconds.
    response_time: AtomicU64,
    /// Counters of the responses.
    pub answers: Answers,
    pub(crate) in_flight: InFlight,
    /// The latency that `p2c` compares.
    pub(crate) latency: Latency,
    /// When the peer was unavailable or unhealthy.
    pub(crate) outages_seen: Outages,
    /// The counts for outlier detection.
    pub(crate) standing: Standing,
}

impl State {
    /// The counters that the next process adopts.
    fn kept_numbers(&self) -> [&AtomicU64; 6] {
        [
            &self.fails,
            &self.requests,
            &self.failures,
            &self.outages,
            &self.header_time,
            &self.response_time,
        ]
    }

    /// Saves the state for the next process.
    pub(crate) fn save(&self, now: u64, out: &mut StateWriter) {
        out.optional(self.number.get(), |out, number| out.number(*number));
        for weight in [&self.current_weight, &self.penalty] {
            out.number(weight.load(Ordering::Relaxed).cast_unsigned());
        }
        for number in self.kept_numbers() {
            out.number(number.load(Ordering::Relaxed));
        }
        for moment in [&self.failed_at, &self.checked_at, &self.recovered_at] {
            moment.save(now, out);
        }
        self.outages_seen.save(now, out);
        self.standing.save(now, out);
    }

    /// Restores the state that another process has saved; `now` is the time of this process.
    pub(crate) fn read(now: u64, saved: &mut StateReader<'_>) -> Result<State, Unfit> {
        let mut state = State::default();
        if let Some(number) = saved.optional(StateReader::number)? {
            state.number = OnceLock::from(number);
        }
        for weight in [&state.current_weight, &state.penalty] {
            weight.store(saved.number()?.cast_signed(), Ordering::Relaxed);
        }
        state.penalty.fetch_max(0, Ordering::Relaxed);
        for number in state.kept_numbers() {
            number.store(saved.count()?, Ordering::Relaxed);
        }
        for moment in [&state.failed_at, &state.checked_at, &state.recovered_at] {
            moment.read(now, saved)?;
        }
        state.outages_seen.restore(now, saved)?;
        state.standing.read(now, saved)?;
        Ok(state)
    }

    /// Requests in flight.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Requests in flight without any response yet; only counted for Unix sockets.
    pub fn unheard(&self) -> usize {
        self.unheard.load(Ordering::Relaxed)
    }

    /// Adds a request without a response (`true`), or removes one that has got its response or has
    /// ended.
    pub(crate) fn note_unheard(&self, is_one_more: bool) {
        if is_one_more {
            self.unheard.fetch_add(1, Ordering::Relaxed)
        } else {
            self.unheard.fetch_sub(1, Ordering::Relaxed)
        };
    }

    /// Requests in flight whose time `least_time … inflight` has not measured yet; 0 with other
    /// methods.
    pub fn unanswered(&self) -> u64 {
        self.in_flight.requests.load(Ordering::Relaxed)
    }

    /// The number of failed attempts that count for `max_fails`.
    pub fn fails(&self) -> u64 {
        self.fails.load(Ordering::Relaxed)
    }

    /// Total of requests.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Total of failed attempts.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// How often failed attempts have made the peer unavailable.
    pub fn outages(&self) -> u64 {
        self.outages.load(Ordering::Relaxed)
    }

    /// Resets the totals to zero.
    pub fn reset(&self, now: Instant) {
        for count in [&self.requests, &self.failures, &self.outages] {
            count.store(0, Ordering::Relaxed);
        }
        self.answers.reset();
        self.outages_seen.reset(millis(now));
    }

    /// When the peer last became available again; never if it has always been available.
    pub(crate) fn recovered_at(&self) -> Option<u64> {
        Some(self.recovered_at.get()).filter(|at| *at > 0)
    }

    /// Notes that the peer is available again.
    pub(crate) fn recover(&self, at: u64) {
        self.recovered_at.set(at);
    }

    /// The moving averages of the time until the response head and until the complete response, in
    /// milliseconds.
    pub fn times(&self) -> (u64, u64) {
        let [header, response] =
            [&self.header_time, &self.response_time].map(|time| time.load(Ordering::Relaxed));
        (header, response)
    }

    /// Whether the last failure or trial is longer ago than `fail_timeout`, so that failures no
    /// longer count and the next request is a trial.
    pub(crate) fn is_stale(&self, now: u64, fail_timeout: Duration) -> bool {
        let checked = self.checked_at.get();
        checked == 0 || u128::from(now.saturating_sub(checked)) > fail_timeout.as_millis()
    }

    /// When the failures stop counting, if no further failure follows; at most `now`.
    pub(crate) fn counts_until(&self, now: u64, fail_timeout: Duration) -> u64 {
        let timeout = u64::try_from(fail_timeout.as_millis()).unwrap_or(u64::MAX);
        self.checked_at.get().saturating_add(timeout).min(now)
    }

    /// The time since the last failure or trial of the peer, in milliseconds; `None` if there was
    /// none.
    pub(crate) fn unchecked_for(&self, now: u64) -> Option<u64> {
        let checked = self.checked_at.get();
        (checked > 0).then(|| now.saturating_sub(checked))
    }

    /// Assigns a request to the peer. If the last failure or trial is longer ago than
    /// `fail_timeout`, the request is the peer's trial; returns the time of that last failure or
    /// trial.
    pub(crate) fn begin(&self, now: u64, fail_timeout: Duration) -> Option<u64> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.answers.note_request(now);
        let is_trial = self.is_stale(now, fail_timeout);
        let checked = self.checked_at.get();
        is_trial.then(|| {
            self.outages_seen.end(self.counts_until(now, fail_timeout));
            self.checked_at.set(now);
            checked
        })
    }

    /// Undoes the trial that began at the time `at` and had no result, so that the next request
    /// becomes the trial. `before` is the time that [`State::begin`] has returned.
    pub(crate) fn take_back_trial(&self, at: u64, before: u64) {
        self.checked_at.set_from(at, before);
    }

    /// Counts the end of a request.
    pub(crate) fn give_back(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a failure. Returns whether the peer is unavailable now.
    pub(crate) fn fail(&self, now: u64, weight: i64, max_fails: u64) -> bool {
        let fails = self.fails.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.failed_at.set(now);
        self.checked_at.set(now);
        let Some(share) = i64::try_from(max_fails)
            .ok()
            .and_then(|fails| weight.checked_div(fails))
        else {
            return false;
        };
        let penalty = self.penalty.load(Ordering::Relaxed);
        let penalty = penalty.saturating_add(share).min(weight);
        self.penalty.store(penalty, Ordering::Relaxed);
        let is_out = fails >= max_fails;
        if is_out {
            self.outages.fetch_add(1, Ordering::Relaxed);
            self.outages_seen.begin(now);
        }
        is_out
    }

    /// Clears the failures if a trial has followed the last failure. If the failures had made the
    /// peer unavailable, the peer counts as available since that trial.
    pub(crate) fn succeed(&self, max_fails: u64) {
        let tried_again = self.checked_at.get();
        if self.failed_at.get() < tried_again {
            let fails = self.fails.swap(0, Ordering::Relaxed);
            if max_fails > 0 && fails >= max_fails {
                self.recover(tried_again);
                self.outages_seen.end(tried_again);
            }
        }
    }

    /// Clears the failures.
    pub(crate) fn forgive(&self) {
        if self.fails() > 0 {
            self.fails.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the weight minus the penalty, and reduces the penalty by one.
    fn take_effective_weight(&self, weight: i64) -> i64 {
        let penalty = self.penalty.load(Ordering::Relaxed).min(weight);
        if penalty > 0 {
            self.penalty.store(penalty - 1, Ordering::Relaxed);
        }
        weight - penalty
    }

    /// Increases the current weight in a round in which the peer may be chosen, by `share` of its
    /// weight (in parts of [`WHOLE`]). Returns the increase, and the current weight.
    pub(crate) fn grow(&self, weight: i64, share: i64) -> (i64, i64) {
        let by = self.take_effective_weight(weight).saturating_mul(share);
        let current = self.current_weight.load(Ordering::Relaxed);
        let current = current.saturating_add(by);
        self.current_weight.store(current, Ordering::Relaxed);
        (by, current)
    }

    /// Whether the current weight is at or below `-by`, after the peer was chosen out of turn.
    pub(crate) fn has_overdrawn(&self, by: i64) -> bool {
        self.current_weight.load(Ordering::Relaxed) <= -by.saturating_mul(WHOLE)
    }

    /// Reduces the current weight of the chosen peer by the sum of all increases in its round.
    pub(crate) fn pay(&self, total: i64) {
        let current = self.current_weight.load(Ordering::Relaxed);
        let current = current.saturating_sub(total);
        self.current_weight.store(current, Ordering::Relaxed);
    }

    /// Adds the time until a response head to the average.
    pub(crate) fn note_header_time(&self, millis: u64) {
        average(&self.header_time, millis);
    }

    /// Adds the time of a complete response to the average.
    pub(crate) fn note_response_time(&self, millis: u64) {
        average(&self.response_time, millis);
    }
}
