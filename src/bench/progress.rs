//! The progress line on a terminal.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use load::Progress;
use load::plan::{Length, Plan};

/// Minimum interval between updates of the line.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// The progress line; nothing is shown if standard error is not a terminal.
pub(super) struct ProgressLine {
    shown: Option<Instant>,
    terminal: bool,
    /// The length of the run, including the warm-up.
    length: Length,
}

impl ProgressLine {
    pub(super) fn new(plan: &Plan) -> ProgressLine {
        ProgressLine {
            length: match plan.length {
                Length::Time(time) => Length::Time(plan.warmup + time),
                Length::Each(requests) => Length::Each(requests * plan.connections as u64),
                requests => requests,
            },
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
            let left = left(self.length, progress);
            // A write error, for instance because the terminal is gone, does not end the run.
            let _ = write!(
                std::io::stderr(),
                "\r\x1b[K{seconds:.1} s: {ended} requests, {failed} failed, {left} left"
            );
        }
    }

    pub(super) fn clear(&mut self) {
        if self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// The remaining part of a run.
fn left(length: Length, progress: Progress) -> String {
    match length {
        Length::Time(time) => {
            let left = time.saturating_sub(progress.elapsed);
            format!("{:.0} s", left.as_secs_f64().ceil())
        }
        Length::Requests(requests) | Length::Each(requests) => {
            format!("{} requests", requests.saturating_sub(progress.ended))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_time_or_requests() {
        let progress = Progress {
            elapsed: Duration::from_millis(2500),
            ended: 70,
            ..Progress::default()
        };
        assert_eq!(left(Length::Time(Duration::from_secs(10)), progress), "8 s");
        assert_eq!(left(Length::Time(Duration::from_secs(1)), progress), "0 s");
        assert_eq!(left(Length::Requests(100), progress), "30 requests");
    }
}
