//! Outlier detection (`eject_outliers`): ejects peers that fail more often than the others of their
//! group, for longer each time. nginx does not have it.
//!
//! ```text
//!                 failures in a row, or a share of the interval's requests
//! (is asked) ────────────────────────────────────────────────────────────▶ (put out)
//!     ▲                                                                        │
//!     └────────────────────── time × how often of late ────────────────────────┘
//! ```
//!
//! Independent of `max_fails`. A problem of the whole group is no peer's fault: at most a share of
//! the primary peers, and of the backup peers, is ejected at a time, and never all.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use framework::handover::{StateReader, StateWriter, Unfit};

use crate::moment::Moment;

/// When a peer is ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outliers {
    /// The peer is ejected after this many failures in a row; 0 turns this off.
    pub errors: u64,
    /// The peer is ejected if at least this percentage of its requests of an [`Outliers::interval`]
    /// fail; 0 turns this off.
    pub ratio: u64,
    /// The interval over which [`Outliers::ratio`] is measured.
    pub interval: Duration,
    /// How long the first ejection lasts; further ones last a multiple of it.
    pub time: Duration,
    /// Maximum percentage of the primary peers, and of the backup peers, that are ejected at the
    /// same time.
    pub max: u64,
}

/// A peer has been ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutOut {
    /// How long the ejection lasts.
    pub time: Duration,
    /// The cause of the ejection.
    pub cause: Cause,
}

/// The cause of an ejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// This many failures in a row.
    InARow(u64),
    /// This many failures among this many requests of one interval.
    Share(u64, u64),
}

/// [`Outliers::ratio`] only applies to intervals with at least this many requests.
const REQUESTS_MIN: u64 = 10;

/// An ejection lasts at most this multiple of [`Outliers::time`].
const REPEATS_MAX: u64 = 10;

/// The failures and ejections of a peer, shared by all threads and kept over reloads.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    in_a_row: AtomicU64,
    /// When the current interval began; `requests` and `failures` count since then.
    interval: Moment,
    requests: AtomicU64,
    failures: AtomicU64,
    /// When the current or last ejection ends.
    until: Moment,
    /// Whether the end of the last ejection has been reported.
    is_back: AtomicBool,
    /// Number of recent ejections: the factor of the last ejection's duration.
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

    /// Saves the counts for the next process.
    pub(crate) fn save(&self, now: u64, out: &mut StateWriter) {
        for number in self.numbers() {
            out.number(number.load(Ordering::Relaxed));
        }
        out.number(u64::from(self.is_back.load(Ordering::Relaxed)));
        self.interval.save(now, out);
        self.until.save(now, out);
    }

    /// Restores the counts that another process has saved.
    pub(crate) fn read(&self, now: u64, saved: &mut StateReader<'_>) -> Result<(), Unfit> {
        for number in self.numbers() {
            number.store(saved.count()?, Ordering::Relaxed);
        }
        self.is_back.store(saved.number()? == 1, Ordering::Relaxed);
        self.interval.read(now, saved)?;
        self.until.read(now, saved)
    }

    /// Whether the peer is ejected now.
    pub(crate) fn is_out(&self, now: u64) -> bool {
        self.until.get() > now
    }

    /// Whether the last ejection has ended; true only at the first call after the end, which logs
    /// it.
    pub(crate) fn comes_back(&self, now: u64) -> bool {
        let until = self.until.get();
        until > 0 && until <= now && !self.is_back.swap(true, Ordering::Relaxed)
    }

    /// Counts a successful request.
    pub(crate) fn succeed(&self, now: u64, outliers: &Outliers) {
        if self.in_a_row.load(Ordering::Relaxed) > 0 {
            self.in_a_row.store(0, Ordering::Relaxed);
        }
        self.count(now, outliers);
    }

    /// Counts a failed request, and returns the cause if the peer is to be ejected.
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

    /// Counts a request of the current interval, and returns the number of requests of the
    /// interval.
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

    /// Ejects the peer, and returns the duration of the ejection. Each [`Outliers::time`] that has
    /// passed since the last ejection reduces the number of recent ejections by one.
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
