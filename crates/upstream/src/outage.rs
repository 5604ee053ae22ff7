//! The outages of a peer: the periods in which it got no requests because of its failures or its
//! health checks, for monitoring.
//!
//! An outage begins when failures make the peer unavailable (`max_fails`) or when a health check
//! finds it unhealthy. It ends when a request succeeds, when the health checks have passed again,
//! or when the failures have expired (`fail_timeout`).

use std::sync::atomic::{AtomicU64, Ordering};

use framework::handover::{StateReader, StateWriter, Unfit};

use crate::moment::Moment;

/// The outages of a peer. Times are in milliseconds of [`millis`](crate::moment::millis).
#[derive(Debug, Default)]
pub(crate) struct Outages {
    /// When the current outage began; never if there is none.
    since: Moment,
    /// When the last outage began.
    last: Moment,
    /// The total duration of the outages that have ended, in milliseconds.
    total: AtomicU64,
}

impl Outages {
    /// Begins an outage, unless one has begun already.
    pub(crate) fn begin(&self, now: u64) {
        if self.since.set_from(0, now) {
            self.last.set(now);
        }
    }

    /// Ends the current outage, if there is one, at the time `at`.
    pub(crate) fn end(&self, at: u64) {
        let since = self.since.get();
        if since > 0 && self.since.set_from(since, 0) {
            let lasted = at.saturating_sub(since);
            self.total.fetch_add(lasted, Ordering::Relaxed);
        }
    }

    /// The total duration of all outages until now, in milliseconds, and when the last outage
    /// began.
    pub(crate) fn read(&self, now: u64) -> (u64, Option<u64>) {
        let under_way = match self.since.get() {
            0 => 0,
            since => now.saturating_sub(since),
        };
        let total = self.total.load(Ordering::Relaxed).saturating_add(under_way);
        (total, Some(self.last.get()).filter(|last| *last > 0))
    }

    /// Resets the total to zero. A current outage counts from now on.
    pub(crate) fn reset(&self, now: u64) {
        self.total.store(0, Ordering::Relaxed);
        if self.since.get() > 0 {
            self.since.set(now);
        }
    }

    /// Saves the outages for the next process.
    pub(crate) fn save(&self, now: u64, out: &mut StateWriter) {
        out.number(self.total.load(Ordering::Relaxed));
        self.since.save(now, out);
        self.last.save(now, out);
    }

    /// Restores the outages that another process has saved. `now` is the time of this process.
    pub(crate) fn restore(&self, now: u64, saved: &mut StateReader<'_>) -> Result<(), Unfit> {
        self.total.store(saved.count()?, Ordering::Relaxed);
        self.since.read(now, saved)?;
        self.last.read(now, saved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outages_add_up() {
        let outages = Outages::default();
        assert_eq!(outages.read(5), (0, None));
        outages.end(7);
        outages.begin(10);
        outages.begin(12);
        assert_eq!(outages.read(15), (5, Some(10)));
        outages.end(20);
        outages.end(30);
        assert_eq!(outages.read(40), (10, Some(10)));
        outages.begin(50);
        assert_eq!(outages.read(51), (11, Some(50)));
        outages.reset(60);
        assert_eq!(outages.read(65), (5, Some(50)));
    }
}
