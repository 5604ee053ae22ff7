//! Times that a store counts by: the caller's, so that none is read here.

/// Milliseconds of the caller's clock, which does not go back.
pub type Millis = u64;
