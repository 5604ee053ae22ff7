//! The store's unit of time. The store reads no clock: callers pass the current time.

/// Milliseconds of the caller's clock, which must be monotonic.
pub type Millis = u64;
