//! A thread's heartbeat, by which another thread can see whether its loop makes progress.
//!
//! Costs two stores per turn, on a cache line that no other thread writes to. The watchdog in the
//! layers above decides what to do about a stuck thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts when the thread began and ended its work. Cheap to clone; may be read from any thread.
#[derive(Clone, Debug, Default)]
pub struct Pulse(Arc<Beats>);

/// Alone on two cache lines, since the processor fetches them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Beats(AtomicU64);

impl Pulse {
    /// The number of the turn in progress; `None` while the thread waits for the kernel. Two equal
    /// numbers some time apart mean that the thread was busy with one turn in between.
    #[must_use]
    pub fn turn(&self) -> Option<u64> {
        let beats = self.0.0.load(Ordering::Relaxed);
        (beats % 2 == 1).then_some(beats / 2)
    }

    /// Notes that the thread starts a turn.
    pub(crate) fn begin_work(&self) {
        let beats = self.0.0.load(Ordering::Relaxed);
        let next = beats.wrapping_add(1) | 1;
        self.0.0.store(next, Ordering::Relaxed);
    }

    /// Notes that the thread is about to wait.
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
