//! The clocks of the cache, and its units of time.

use std::time::Duration;

/// Milliseconds of a monotonic clock that also counts while the machine is suspended.
pub(super) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    seconds * 1000 + u64::try_from(time.tv_nsec).unwrap_or_default() / 1_000_000
}

/// Seconds since 1970.
pub(super) fn wall() -> i64 {
    i64::try_from(engine::wall().as_secs()).unwrap_or(i64::MAX)
}

/// Milliseconds since 1970.
pub(super) fn wall_milliseconds() -> i64 {
    i64::try_from(engine::wall().as_millis()).unwrap_or(i64::MAX)
}

/// A configured duration in milliseconds.
pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
