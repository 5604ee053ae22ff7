//! Peers that do worse than the others of their group are put out for a while, and for longer each
//! time: nginx does not have it.
//!
//! ```text
//!                 failures in a row, or a share of the interval's requests
//! (is asked) ────────────────────────────────────────────────────────────▶ (put out)
//!     ▲                                                                        │
//!     └────────────────────── time × how often of late ────────────────────────┘
//! ```
//!
//! It stands beside `max_fails`, which goes by itself. What all of a group suffer from is no peer's
//! fault: of those that stand beside each other no more than a share is put out at a time, and
//! never all.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use framework::handover::{StateReader, StateWriter, Unfit};

use crate::moment::Moment;

/// When a peer is put out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outliers {
    /// After so many failures in a row; 0 is never.
    pub errors: u64,
    /// Where so many of a hundred requests fail within [`Outliers::interval`]; 0 is never.
    pub ratio: u64,
    /// How long requests count for [`Outliers::ratio`].
    pub interval: Duration,
    /// How long it is out the first time.
    pub time: Duration,
    /// How many of a hundred peers may be out at the same time.
    pub max: u64,
}

/// A peer has been put out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutOut {
    /// For how long the peer is put out.
    pub time: Duration,
    /// What it was put out for.
    pub cause: Cause,
}

/// What a peer is put out for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// So many failures one after the other.
    InARow(u64),
    /// So many failures among so many requests of one interval.
    Share(u64, u64),
}

/// A share means something among so many requests at least.
const REQUESTS_MIN: u64 = 10;

/// A peer is out for no longer than so many times the first time.
const REPEATS_MAX: u64 = 10;

/// What a peer is judged by, over all threads and reloads.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    in_a_row: AtomicU64,
    /// When the interval began, and what it has seen since.
    interval: Moment,
    requests: AtomicU64,
    failures: AtomicU64,
    /// Until when it is out, or was the last time.
    until: Moment,
    /// Whether it is known that it is back.
    is_back: AtomicBool,
    /// How often it has been put out of late.
    repeats: AtomicU64,
}

impl Standing {
    fn numbers(&self) -> [&AtomicU64; 4] {
        [
            &self.in_a_row,
            &self.requests,
            &self.failures,
            &self.repeats,
        ]
    }

    /// Writes it for the process that follows.
    pub(crate) fn save(&self, now: u64, out: &mut StateWriter) {
        for number in self.numbers() {
            out.number(number.load(Ordering::Relaxed));
        }
        out.number(u64::from(self.is_back.load(Ordering::Relaxed)));
        self.interval.save(now, out);
        self.until.save(now, out);
    }

    /// Goes on with what another process has written.
    pub(crate) fn read(&self, now: u64, saved: &mut StateReader<'_>) -> Result<(), Unfit> {
        for number in self.numbers() {
            number.store(saved.count()?, Ordering::Relaxed);
        }
        self.is_back.store(saved.number()? == 1, Ordering::Relaxed);
        self.interval.read(now, saved)?;
        self.until.read(now, saved)
    }

    /// Whether it is out now.
    pub(crate) fn is_out(&self, now: u64) -> bool {
        self.until.get() > now
    }

    /// Whether it is asked again for the first time: `true` once.
    pub(crate) fn comes_back(&self, now: u64) -> bool {
        let until = self.until.get();
        until > 0 && until <= now && !self.is_back.swap(true, Ordering::Relaxed)
    }

    /// A request has been answered.
    pub(crate) fn succeed(&self, now: u64, outliers: &Outliers) {
        if self.in_a_row.load(Ordering::Relaxed) > 0 {
            self.in_a_row.store(0, Ordering::Relaxed);
        }
        self.count(now, outliers);
    }

    /// A request has failed: what the peer is to be put out for.
    pub(crate) fn fail(&self, now: u64, outliers: &Outliers) -> Option<Cause> {
        let in_a_row = self.in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
        let requests = self.count(now, outliers);
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if outliers.errors > 0 && in_a_row >= outliers.errors {
            return Some(Cause::InARow(in_a_row));
        }
        let share = requests.saturating_mul(outliers.ratio);
        let is_share =
            outliers.ratio > 0 && requests >= REQUESTS_MIN && failures.saturating_mul(100) >= share;
        is_share.then_some(Cause::Share(failures, requests))
    }

    /// Counts a request of the interval; how many there are.
    fn count(&self, now: u64, outliers: &Outliers) -> u64 {
        let began = self.interval.get();
        let age = u128::from(now.saturating_sub(began));
        if (began == 0 || age >= outliers.interval.as_millis())
            && self.interval.set_from(began, now)
        {
            self.requests.store(0, Ordering::Relaxed);
            self.failures.store(0, Ordering::Relaxed);
        }
        self.requests.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Puts it out, for how long. Each time of [`Outliers::time`] in which it was not out makes up
    /// for one before.
    pub(crate) fn put_out(&self, now: u64, outliers: &Outliers) -> Duration {
        let time = outliers.time.as_millis().max(1);
        let spent = u128::from(now.saturating_sub(self.until.get())) / time;
        let before = self.repeats.load(Ordering::Relaxed);
        let before = before.saturating_sub(u64::try_from(spent).unwrap_or(u64::MAX));
        let repeats = (before + 1).min(REPEATS_MAX);
        self.repeats.store(repeats, Ordering::Relaxed);
        let out = outliers
            .time
            .saturating_mul(u32::try_from(repeats).unwrap_or(u32::MAX));
        let millis = u64::try_from(out.as_millis()).unwrap_or(u64::MAX);
        self.until.set(now.saturating_add(millis));
        self.is_back.store(false, Ordering::Relaxed);
        self.in_a_row.store(0, Ordering::Relaxed);
        self.requests.store(0, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
        out
    }
}
