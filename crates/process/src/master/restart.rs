//! When the next worker starts after one has crashed: at once, unless the previous ones ended soon
//! after their start.

use std::time::{Duration, Instant};

/// A worker that ends sooner after its start counts as an early exit.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// The first delay, doubled after every further early exit up to the maximum. Small enough that
/// even after a third crash in a row the worker is back within 200 ms.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The history of crashes, and the resulting time of the next start.
#[derive(Debug, Default)]
pub(super) struct Restart {
    /// Number of crashes since, and including, that of the last worker that lived for
    /// [`SHORT_LIFE`] or longer.
    early_exits: u32,
    due: Option<Instant>,
}

impl Restart {
    /// Counts the end of a worker that lived this long, and returns the delay of the next start. A
    /// delay that is not zero sets the time of the next start.
    pub(super) fn after(&mut self, lived: Duration) -> Duration {
        if lived >= SHORT_LIFE {
            self.early_exits = 0;
        }
        let pause = match self.early_exits {
            0 => Duration::ZERO,
            // The limit of 16 doublings, with which the maximum is exceeded by far, prevents an
            // overflow.
            count => PAUSE_MAX.min(PAUSE_MIN * (1 << (count - 1).min(16))),
        };
        self.early_exits = self.early_exits.saturating_add(1);
        self.due = (!pause.is_zero()).then(|| Instant::now() + pause);
        pause
    }

    /// Records the start of a worker.
    pub(super) fn started(&mut self) {
        self.due = None;
    }

    /// The time of the next start; `None` if no start is delayed.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_short_lives_only() {
        let mut restart = Restart::default();
        let millis =
            |restart: &mut Restart, lived| restart.after(Duration::from_millis(lived)).as_millis();
        assert_eq!(millis(&mut restart, 20), 0);
        assert_eq!(restart.due(), None);
        assert_eq!(millis(&mut restart, 20), 50);
        assert!(restart.due().is_some());
        assert_eq!(millis(&mut restart, 20), 100);
        assert_eq!(millis(&mut restart, 20), 200);
        for _ in 0..100 {
            restart.after(Duration::ZERO);
        }
        assert_eq!(millis(&mut restart, 20), 10_000);
        assert_eq!(millis(&mut restart, 1_000), 0);
        restart.started();
        assert_eq!(restart.due(), None);
    }
}
