//! Requests that wait for their responses, for `least_time … inflight`.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::moment::average;

/// The measurements of `least_time … inflight` for requests without a response.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// The number of requests without a response.
    pub requests: AtomicU64,
    /// When `waited` was last updated, in milliseconds of [`millis`](crate::moment::millis).
    pub changed_at: AtomicU64,
    /// The sum of the waiting times of these requests until `changed_at`, in milliseconds.
    pub waited: AtomicU64,
    /// The moving average of their mean waiting time, in milliseconds.
    pub time: AtomicU64,
}

impl InFlight {
    /// Counts another request.
    pub(crate) fn begin(&self, now: u64) {
        self.settle(now);
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a request that has got its response or was cancelled after `after` milliseconds.
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

    /// Adds the time since the last update to the sum of the waiting times.
    fn settle(&self, now: u64) {
        let requests = self.requests.load(Ordering::Relaxed);
        let since = now.saturating_sub(self.changed_at.load(Ordering::Relaxed));
        if requests > 0 {
            self.waited
                .fetch_add(since.saturating_mul(requests), Ordering::Relaxed);
        }
        self.changed_at.store(now, Ordering::Relaxed);
    }

    /// Adds the current mean waiting time to the average, and returns the average; `None` if no
    /// request waits.
    pub(crate) fn look(&self, now: u64) -> Option<u64> {
        let requests = self.requests.load(Ordering::Relaxed);
        let waited = self.waited.load(Ordering::Relaxed).checked_div(requests)?;
        let since = now.saturating_sub(self.changed_at.load(Ordering::Relaxed));
        average(&self.time, waited.saturating_add(since));
        Some(self.time.load(Ordering::Relaxed))
    }
}
