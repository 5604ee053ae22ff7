//! A thread's sign of life: another thread can see whether its loop turns.
//!
//! Two stores a turn, on a cache line that no other thread writes to. What is done about a thread
//! that stands still is decided in the rooms above.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often a thread's loop has begun and ended its work. Cheap to clone; may be read from any
/// thread.
#[derive(Clone, Debug, Default)]
pub struct Pulse(Arc<Beats>);

/// Alone on its cache lines (two of them, for they are fetched in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
struct Beats(AtomicU64);

impl Pulse {
    /// The turn that the thread is in the middle of; `None` while it waits for the kernel. Two
    /// equal numbers, some time apart, say that it has been busy with the same turn all the time.
    #[must_use]
    pub fn turn(&self) -> Option<u64> {
        let beats = self.0.0.load(Ordering::Relaxed);
        (beats % 2 == 1).then_some(beats / 2)
    }

    /// The thread goes to work, or on to the next turn of it.
    pub(crate) fn begin_work(&self) {
        let beats = self.0.0.load(Ordering::Relaxed);
        let next = beats.wrapping_add(1) | 1;
        self.0.0.store(next, Ordering::Relaxed);
    }

    /// The thread is about to wait.
    pub(crate) fn end_work(&self) {
        let beats = self.0.0.load(Ordering::Relaxed);
        let next = beats.wrapping_add(beats % 2);
        self.0.0.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_told_apart_from_waiting() {
        let pulse = Pulse::default();
        assert_eq!(pulse.turn(), None);
        pulse.begin_work();
        let first = pulse.turn();
        assert!(first.is_some());
        assert_eq!(pulse.turn(), first);
        pulse.begin_work();
        assert!(pulse.turn() > first, "another turn without a wait");
        pulse.end_work();
        assert_eq!(pulse.turn(), None);
        pulse.end_work();
        assert_eq!(pulse.turn(), None);
    }
}
