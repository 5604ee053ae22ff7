//! The line on a terminal that says how a run goes.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use load::Progress;

/// How often the line is written again.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// A line on the terminal that says how it goes; nothing where standard error is none.
pub(super) struct ProgressLine {
    shown: Option<Instant>,
    terminal: bool,
}

impl ProgressLine {
    pub(super) fn new() -> ProgressLine {
        ProgressLine {
            shown: None,
            terminal: std::io::stderr().is_terminal(),
        }
    }

    pub(super) fn show(&mut self, progress: Progress) {
        let due = self
            .shown
            .is_none_or(|shown| shown.elapsed() >= PROGRESS_INTERVAL);
        if self.terminal && due {
            self.shown = Some(Instant::now());
            let seconds = progress.elapsed.as_secs_f64();
            let Progress { ended, failed, .. } = progress;
            // A terminal that is gone is no reason to end the run.
            let _ = write!(
                std::io::stderr(),
                "\r\x1b[K{seconds:.1} s: {ended} requests, {failed} failed"
            );
        }
    }

    pub(super) fn clear(&mut self) {
        if self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
