//! The time that a peer needs until the head of a response, for `p2c`.
//!
//! The average is that of Finagle's `p2c` ("peak EWMA"): a longer time replaces the average at
//! once, and shorter times reduce it gradually.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The time after which an average without new values has decayed to 1/e.
const DECAY: Duration = Duration::from_secs(5);

/// A failed attempt counts as a response after at least this time.
const FAILURE: Duration = Duration::from_secs(1);

/// The average time until the head of a response: microseconds in the upper half, and in the lower
/// half the time of the last update, in milliseconds of [`millis`](crate::moment::millis) modulo
/// 2³². 0 before the first response.
#[derive(Debug, Default)]
pub(crate) struct Latency(AtomicU64);

impl Latency {
    /// Notes a response head that came `after` the begin of the attempt.
    pub(crate) fn note(&self, now: u64, after: Duration) {
        let after = as_micros(after);
        self.update(now, |known, since| match known {
            Some(known) if after < known => {
                let weight = weight_after(since);
                f64::from(known) * weight + f64::from(after) * (1.0 - weight)
            }
            _ => f64::from(after),
        });
    }

    /// Notes an attempt that failed `after` its begin.
    pub(crate) fn note_failure(&self, now: u64, after: Duration) {
        self.note(now, after.max(FAILURE));
    }

    /// Notes a request that was cancelled `after` its begin, without a response head. Only counts
    /// if it took longer than the average, since the head would have come later still.
    pub(crate) fn note_at_least(&self, now: u64, after: Duration) {
        if self.look(now) < Some(f64::from(as_micros(after))) {
            self.note(now, after);
        }
    }

    /// The expected time until a response head, in microseconds; `None` before the first response.
    /// Decays while no responses come.
    pub(crate) fn look(&self, now: u64) -> Option<f64> {
        let (known, since) = unpack(self.0.load(Ordering::Relaxed), now);
        known.map(|known| f64::from(known) * weight_after(since))
    }

    fn update(&self, now: u64, new: impl Fn(Option<u32>, Duration) -> f64) {
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |packed| {
                let (known, since) = unpack(packed, now);
                // `as` saturates at 32 bits. At least 1, because 0 means that no time is known.
                let micros = (new(known, since) as u32).max(1);
                Some(u64::from(micros) << 32 | now & LOWER)
            });
    }
}

const LOWER: u64 = u32::MAX as u64;

/// The average and its age.
fn unpack(packed: u64, now: u64) -> (Option<u32>, Duration) {
    let micros = u32::try_from(packed >> 32).unwrap_or(u32::MAX);
    let since = now.wrapping_sub(packed) & LOWER;
    ((micros > 0).then_some(micros), Duration::from_millis(since))
}

fn weight_after(since: Duration) -> f64 {
    (-since.as_secs_f64() / DECAY.as_secs_f64()).exp()
}

fn as_micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn micros(latency: &Latency, now: u64) -> u64 {
        latency.look(now).unwrap() as u64
    }

    #[test]
    fn bad_news_count_at_once_and_good_ones_by_and_by() {
        let latency = Latency::default();
        assert_eq!(latency.look(7), None);
        latency.note(1000, 10 * MS);
        assert_eq!(micros(&latency, 1000), 10_000);
        latency.note(1000, 100 * MS);
        assert_eq!(micros(&latency, 1000), 100_000);
        // Without a time difference nothing decays; after 5 s the old value counts 1/e.
        latency.note(1000, 10 * MS);
        assert_eq!(micros(&latency, 1000), 100_000);
        latency.note(6000, 10 * MS);
        assert_eq!(micros(&latency, 6000), 43_109);
        // The same without new values.
        assert_eq!(micros(&latency, 11_000), 15_858);
    }

    #[test]
    fn failures_and_requests_that_were_given_up_count() {
        let latency = Latency::default();
        latency.note(1000, MS);
        latency.note_at_least(1000, MS / 2);
        assert_eq!(micros(&latency, 1000), 1000);
        latency.note_at_least(1000, 300 * MS);
        assert_eq!(micros(&latency, 1000), 300_000);
        latency.note_failure(1000, MS);
        assert_eq!(micros(&latency, 1000), 1_000_000);
        latency.note_failure(1000, 3000 * MS);
        assert_eq!(micros(&latency, 1000), 3_000_000);
        // Larger values than 32 bits are limited.
        latency.note(1000, Duration::from_secs(1 << 40));
        assert_eq!(micros(&latency, 1000), u64::from(u32::MAX));
    }

    #[test]
    fn moments_wrap() {
        let latency = Latency::default();
        let late = u64::from(u32::MAX) - 999;
        latency.note(late, 100 * MS);
        assert_eq!(micros(&latency, late + 5000), 36_787);
    }
}
