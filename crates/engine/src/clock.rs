//! The coarse clocks of a thread: read once per turn of the loop, then free to query.
//!
//! A simulation has its own time, in which the wall clock starts at a fixed moment.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

thread_local! {
    /// The monotonic time at the beginning of this turn; `None` without a runtime.
    static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
    /// The time since `START` at the beginning of this turn.
    static UPTIME: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// The time since 1970 at the beginning of this turn.
    static WALL: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// When the runtime started; `None` without a runtime.
    static START: Cell<Option<Instant>> = const { Cell::new(None) };
    /// `UPTIME` in milliseconds, rounded up.
    static NEXT_MS: Cell<u64> = const { Cell::new(0) };
}

/// A deadline, in milliseconds since the start of its thread's runtime. Rounded up, so that no wait
/// ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(u64);

impl Deadline {
    /// A deadline that is never reached.
    pub const NEVER: Deadline = Deadline(u64::MAX);

    /// The deadline that lies `wait` after the beginning of this turn of the loop. Cheaper than a
    /// conversion from an `Instant`.
    #[inline]
    #[must_use]
    pub fn within(wait: Duration) -> Deadline {
        Deadline(NEXT_MS.get().saturating_add(ms_rounded_up(wait)))
    }

    /// The deadline in milliseconds since the start of the runtime.
    pub(crate) fn ms(self) -> u64 {
        self.0
    }
}

impl From<Option<Instant>> for Deadline {
    fn from(moment: Option<Instant>) -> Deadline {
        let Some(moment) = moment else {
            return Deadline::NEVER;
        };
        match START.get() {
            Some(start) => Deadline(ms_rounded_up(moment.saturating_duration_since(start))),
            None => Deadline(0), // without a runtime nothing can be waited for
        }
    }
}

fn ms_rounded_up(time: Duration) -> u64 {
    let rest = u64::from(time.subsec_nanos().div_ceil(1_000_000));
    time.as_secs().saturating_mul(1000).saturating_add(rest)
}

/// The start of a simulation's wall clock: 2024-01-01 00:00:00 UTC.
const SIMULATED_EPOCH: Duration = Duration::from_secs(1_704_067_200);

/// The monotonic time at the beginning of this turn of the loop; on a thread without a runtime, the
/// current time.
#[inline]
#[must_use]
pub fn now() -> Instant {
    NOW.get().unwrap_or_else(Instant::now)
}

/// How long this thread's runtime had been running at the beginning of this turn. Cheaper than
/// [`now`] for comparing times of one thread. Zero on a thread without a runtime.
#[inline]
#[must_use]
pub fn uptime() -> Duration {
    UPTIME.get()
}

/// Converts an [`uptime`] of this thread, past or future, to an `Instant`.
#[inline]
#[must_use]
pub fn moment(uptime: Duration) -> Instant {
    now() - UPTIME.get() + uptime
}

/// The time since 1970-01-01 00:00:00 UTC at the beginning of this turn, read at most a millisecond
/// before it; on a thread without a runtime, the current time.
#[inline]
#[must_use]
pub fn wall() -> Duration {
    match NOW.get() {
        Some(_) => WALL.get(),
        None => read_wall(),
    }
}

fn read_wall() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// The clock of a worker. Counts milliseconds since its start.
pub(crate) struct Clock {
    start: Instant,
    /// Milliseconds from `start` to the beginning of this turn, rounded down.
    now_ms: u64,
    /// The millisecond in which the wall clock was last read.
    wall_read_ms: Option<u64>,
    simulated: bool,
}

impl Clock {
    pub(crate) fn new(now: Instant) -> Clock {
        let mut clock = Clock {
            start: now,
            now_ms: 0,
            wall_read_ms: None,
            simulated: false,
        };
        START.set(Some(now));
        clock.read(now);
        clock
    }

    /// Derives the wall clock from the monotonic one from now on, for a simulation.
    pub(crate) fn simulate(&mut self) {
        self.simulated = true;
        self.read(self.start);
    }

    /// Begins a turn of the loop at `now`.
    pub(crate) fn read(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.start);
        self.now_ms = elapsed.as_millis() as u64;
        NEXT_MS.set(ms_rounded_up(elapsed));
        NOW.set(Some(now));
        UPTIME.set(elapsed);
        if self.simulated {
            WALL.set(SIMULATED_EPOCH + elapsed);
        } else if self.wall_read_ms.replace(self.now_ms) != Some(self.now_ms) {
            WALL.set(read_wall());
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// The time left until `deadline_ms`; zero if it has passed.
    pub(crate) fn until(&self, deadline_ms: u64) -> Duration {
        Duration::from_millis(deadline_ms.saturating_sub(self.now_ms))
    }

    /// Resets the thread's clocks when its runtime ends.
    pub(crate) fn stop() {
        NOW.set(None);
        START.set(None);
        UPTIME.set(Duration::ZERO);
        NEXT_MS.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_round_up_and_the_present_rounds_down() {
        let start = Instant::now();
        let mut clock = Clock::new(start);
        clock.read(start + Duration::from_micros(1999));
        assert_eq!(clock.now_ms(), 1);
        let at = |moment| Deadline::from(Some(moment));
        assert_eq!(at(start + Duration::from_micros(1001)), Deadline(2));
        assert_eq!(at(start + Duration::from_millis(3)), Deadline(3));
        assert_eq!(clock.until(3), Duration::from_millis(2));
        assert_eq!(Deadline::within(Duration::from_millis(3)), Deadline(5));
        assert_eq!(Deadline::within(Duration::from_micros(1)), Deadline(3));
        assert_eq!(Deadline::within(Duration::MAX), Deadline::NEVER);
        assert_eq!(Deadline::from(None), Deadline::NEVER);
        assert_eq!(now(), start + Duration::from_micros(1999));
        assert_eq!(uptime(), Duration::from_micros(1999));
        Clock::stop();
    }
}
