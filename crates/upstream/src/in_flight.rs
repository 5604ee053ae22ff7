//! Requests that wait for their answers, as `least_time … inflight` goes by them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::moment::average;

/// What `least_time … inflight` counts of requests that have not been answered.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// How many there are.
    pub requests: AtomicU64,
    /// When that changed last.
    pub changed_at: AtomicU64,
    /// Milliseconds that they had been waiting for in all by then.
    pub waited: AtomicU64,
    /// Their time, as an average that forgets.
    pub time: AtomicU64,
}

impl InFlight {
    /// One more is waited for.
    pub(crate) fn begin(&self, now: u64) {
        self.settle(now);
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// One has been answered, or given up, after so many milliseconds.
    pub(crate) fn end(&self, now: u64, after: u64) {
        self.settle(now);
        let waited = self.waited.load(Ordering::Relaxed);
        let rest = match self.requests.load(Ordering::Relaxed) {
            0 | 1 => 0,
            _ => waited.saturating_sub(after),
        };
        self.waited.store(rest, Ordering::Relaxed);
        let requests = self.requests.load(Ordering::Relaxed);
        self.requests
            .store(requests.saturating_sub(1), Ordering::Relaxed);
    }

    /// Counts what those that are waited for have waited since the number changed last.
    fn settle(&self, now: u64) {
        let requests = self.requests.load(Ordering::Relaxed);
        let since = now.saturating_sub(self.changed_at.load(Ordering::Relaxed));
        if requests > 0 {
            self.waited
                .fetch_add(since.saturating_mul(requests), Ordering::Relaxed);
        }
        self.changed_at.store(now, Ordering::Relaxed);
    }

    /// Takes in how long those have been waiting that are waited for; the average after that,
    /// `None` where there are none.
    pub(crate) fn look(&self, now: u64) -> Option<u64> {
        let requests = self.requests.load(Ordering::Relaxed);
        let waited = self.waited.load(Ordering::Relaxed).checked_div(requests)?;
        let since = now.saturating_sub(self.changed_at.load(Ordering::Relaxed));
        average(&self.time, waited.saturating_add(since));
        Some(self.time.load(Ordering::Relaxed))
    }
}
