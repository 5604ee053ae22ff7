//! Times and averages that all threads share without a lock, in milliseconds.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use framework::handover::{StateReader, StateWriter, Unfit};

/// A time in milliseconds of [`millis`]; 0 means never.
#[derive(Debug, Default)]
pub(crate) struct Moment(AtomicU64);

impl Moment {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, at: u64) {
        self.0.store(at, Ordering::Relaxed);
    }

    /// Saves the time relative to `now`, since the clock of another process begins at another time.
    pub(crate) fn save(&self, now: u64, out: &mut StateWriter) {
        let at = Some(self.get()).filter(|at| *at > 0);
        out.optional(at, |out, at| out.number(at.wrapping_sub(now)));
    }

    /// Restores a time that another process has saved, on the clock of this process.
    pub(crate) fn read(&self, now: u64, saved: &mut StateReader<'_>) -> Result<(), Unfit> {
        let elapsed = u64::try_from(saved.elapsed().as_millis()).unwrap_or(u64::MAX);
        let distance = saved.optional(StateReader::number)?;
        let at = distance.map(|distance| {
            let at = now.checked_add_signed(distance.cast_signed());
            at.unwrap_or(1).saturating_sub(elapsed).max(1)
        });
        self.set(at.unwrap_or(0));
        Ok(())
    }

    /// Sets the time to `at` if it is still `from`. Returns whether it was set.
    pub(crate) fn set_from(&self, from: u64, at: u64) -> bool {
        let set = (self.0).compare_exchange(from, at, Ordering::Relaxed, Ordering::Relaxed);
        set.is_ok()
    }
}

/// Converts a time to the milliseconds in which the shared state of peers stores times; never 0.
pub(crate) fn millis(now: Instant) -> u64 {
    // An offset, so that times before the start of this process, which the previous process has
    // saved, are positive.
    const BEFORE: Duration = Duration::from_secs(24 * 60 * 60);
    thread_local! {
        /// The last conversion, since a request converts the same time several times within a turn
        /// of the loop.
        static LAST: Cell<Option<(Instant, u64)>> = const { Cell::new(None) };
    }
    if let Some((moment, millis)) = LAST.get()
        && moment == now
    {
        return millis;
    }
    let since = since_beginning(now) + BEFORE;
    let whole = since.as_secs().saturating_mul(1000);
    let millis = whole.saturating_add(u64::from(since.subsec_millis()) + 1);
    LAST.set(Some((now, millis)));
    millis
}

/// The time since the first call of this function.
pub(crate) fn since_beginning(now: Instant) -> Duration {
    static BEGINNING: OnceLock<Instant> = OnceLock::new();
    now.saturating_duration_since(*BEGINNING.get_or_init(|| now))
}

/// A moving average as in nginx: a new value counts a twentieth.
pub(crate) fn average(of: &AtomicU64, millis: u64) {
    let old = of.load(Ordering::Relaxed);
    let new = match old {
        0 => millis,
        old => {
            old.saturating_mul(19)
                .saturating_add(millis)
                .saturating_add(10)
                / 20
        }
    };
    of.store(new, Ordering::Relaxed);
}
