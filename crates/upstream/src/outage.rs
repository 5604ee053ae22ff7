//! Since when a peer is not asked because it does badly, and for how long it has not been in all.
//!
//! An outage begins with the failure that puts the peer out, or with the finding of its checks. It
//! ends when the peer does what it was asked, when its checks let it have requests again, or when
//! its failures count no more.

use std::sync::atomic::{AtomicU64, Ordering};

use framework::handover::{StateReader, StateWriter, Unfit};

use crate::moment::Moment;

/// The outages of a peer, in the milliseconds of [`millis`](crate::moment::millis).
#[derive(Debug, Default)]
pub(crate) struct Outages {
    /// When the one under way has begun.
    since: Moment,
    /// When the last one has begun.
    last: Moment,
    /// How long those have lasted that have ended.
    total: AtomicU64,
}

impl Outages {
    /// One begins, unless one is under way.
    pub(crate) fn begin(&self, now: u64) {
        if self.since.set_from(0, now) {
            self.last.set(now);
        }
    }

    /// The one under way has ended at this moment, if there is one.
    pub(crate) fn end(&self, at: u64) {
        let since = self.since.get();
        if since > 0 && self.since.set_from(since, 0) {
            let lasted = at.saturating_sub(since);
            self.total.fetch_add(lasted, Ordering::Relaxed);
        }
    }

    /// How long all have lasted until now, and when the last one has begun.
    pub(crate) fn read(&self, now: u64) -> (u64, Option<u64>) {
        let under_way = match self.since.get() {
            0 => 0,
            since => now.saturating_sub(since),
        };
        let total = self.total.load(Ordering::Relaxed).saturating_add(under_way);
        (total, Some(self.last.get()).filter(|last| *last > 0))
    }

    /// Has them counted from now on; one under way begins now.
    pub(crate) fn reset(&self, now: u64) {
        self.total.store(0, Ordering::Relaxed);
        if self.since.get() > 0 {
            self.since.set(now);
        }
    }

    /// Writes what the process that follows goes on with.
    pub(crate) fn save(&self, now: u64, out: &mut StateWriter) {
        out.number(self.total.load(Ordering::Relaxed));
        self.since.save(now, out);
        self.last.save(now, out);
    }

    /// What another process has written, `now` being the moment of this one.
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
