//! Statistics of reloads, as the serving process has seen them, for monitoring.
//!
//! The master reports a reload that failed before this process took part, such as by a mistake in
//! the configuration.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

static SUCCEEDED: AtomicU64 = AtomicU64::new(0);
static FAILED: AtomicU64 = AtomicU64::new(0);
static LAST_HAS_FAILED: AtomicBool = AtomicBool::new(false);
/// When a reload succeeded last, in milliseconds since 1970.
static SUCCEEDED_AT: AtomicU64 = AtomicU64::new(0);

/// A snapshot of the statistics of reloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reloads {
    /// Configurations that took effect, including the first one.
    pub succeeded: u64,
    /// Configurations that failed.
    pub failed: u64,
    /// Whether the last reload failed.
    pub last_has_failed: bool,
    /// When the current configuration took effect, in milliseconds since 1970.
    pub succeeded_at: u64,
}

/// Notes that a configuration has taken effect.
pub fn note_success() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(u64::MAX);
    SUCCEEDED_AT.store(now, Ordering::Relaxed);
    SUCCEEDED.fetch_add(1, Ordering::Relaxed);
    LAST_HAS_FAILED.store(false, Ordering::Relaxed);
}

/// Notes that a reload has failed: the previous configuration continues to serve.
pub fn note_failure() {
    FAILED.fetch_add(1, Ordering::Relaxed);
    LAST_HAS_FAILED.store(true, Ordering::Relaxed);
}

/// A snapshot of the statistics.
pub fn counts() -> Reloads {
    Reloads {
        succeeded: SUCCEEDED.load(Ordering::Relaxed),
        failed: FAILED.load(Ordering::Relaxed),
        last_has_failed: LAST_HAS_FAILED.load(Ordering::Relaxed),
        succeeded_at: SUCCEEDED_AT.load(Ordering::Relaxed),
    }
}
