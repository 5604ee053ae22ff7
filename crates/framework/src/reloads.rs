//! Reloads of the configuration, as the process that serves has seen them, for monitoring.
//!
//! One that failed before this process was asked to prepare anything, because of a mistake in the
//! configuration say, the master tells it of.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

static SUCCEEDED: AtomicU64 = AtomicU64::new(0);
static FAILED: AtomicU64 = AtomicU64::new(0);
static LAST_HAS_FAILED: AtomicBool = AtomicBool::new(false);
/// When a reload succeeded last, in milliseconds since 1970.
static SUCCEEDED_AT: AtomicU64 = AtomicU64::new(0);

/// What has come of reloads by one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reloads {
    /// Configurations that came into force, the first one included.
    pub succeeded: u64,
    /// Configurations that did not.
    pub failed: u64,
    /// Whether the last one did not.
    pub last_has_failed: bool,
    /// Milliseconds since 1970 at which the last one that did came into force.
    pub succeeded_at: u64,
}

/// A configuration has come into force.
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

/// What has come of reloads by now.
pub fn counts() -> Reloads {
    Reloads {
        succeeded: SUCCEEDED.load(Ordering::Relaxed),
        failed: FAILED.load(Ordering::Relaxed),
        last_has_failed: LAST_HAS_FAILED.load(Ordering::Relaxed),
        succeeded_at: SUCCEEDED_AT.load(Ordering::Relaxed),
    }
}
