//! Congestion control (RFC 5681), with the initial window of RFC 6928.

use std::time::Duration;

/// The initial window, in segments (RFC 6928).
const FIRST_WINDOW: u32 = 10;

/// The maximum congestion window, in bytes.
const WINDOW_MAX: u32 = 1 << 30;

/// The congestion window and the slow start threshold, in bytes.
#[derive(Debug)]
pub(crate) struct Congestion {
    window: u32,
    threshold: u32,
    /// Bytes acknowledged since the window last grew in congestion avoidance (section 3.1,
    /// appropriate byte counting).
    acknowledged: u32,
    segment: u32,
}

impl Congestion {
    /// The state after a handshake. `lost`: whether the SYN had to be retransmitted.
    pub(crate) fn new(segment: u32, lost: bool) -> Congestion {
        // Section 3.1: after a lost SYN, the initial window is one segment.
        let segments = if lost { 1 } else { FIRST_WINDOW };
        Congestion {
            window: segments * segment,
            threshold: WINDOW_MAX,
            acknowledged: 0,
            segment,
        }
    }

    /// The congestion window: the limit of bytes in flight.
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// Changes the segment size, in bytes.
    pub(crate) fn set_segment(&mut self, segment: u32) {
        self.segment = segment;
    }

    /// Handles an acknowledgment of `count` bytes outside of loss recovery. `was_full`: whether the
    /// window was fully used; otherwise it does not grow (RFC 7661).
    pub(crate) fn on_acknowledged(&mut self, count: u32, was_full: bool) {
        if !was_full {
            return;
        }
        if self.window < self.threshold {
            self.window += count.min(self.segment);
        } else {
            self.acknowledged += count;
            if self.acknowledged >= self.window {
                self.acknowledged -= self.window;
                self.window += self.segment;
            }
        }
        self.window = self.window.min(WINDOW_MAX);
    }

    /// Handles a loss detected by acknowledgments, with `flight` bytes in flight (section 3.2,
    /// equation 4).
    pub(crate) fn on_loss(&mut self, flight: u32) {
        self.threshold = (flight / 2).max(2 * self.segment);
        self.window = self.threshold;
        self.acknowledged = 0;
    }

    /// Handles a retransmission timeout. Only the first timeout of a segment lowers the threshold
    /// (section 3.1).
    pub(crate) fn on_timeout(&mut self, flight: u32, is_first: bool) {
        if is_first {
            self.threshold = (flight / 2).max(2 * self.segment);
        }
        self.window = self.segment;
        self.acknowledged = 0;
    }

    /// Handles the end of fast recovery, with `flight` bytes in flight (RFC 6582, section 3.2, step
    /// 3, the first option, which avoids a burst).
    pub(crate) fn on_mended(&mut self, flight: u32) {
        self.window = self.threshold.min(flight.max(self.segment) + self.segment);
    }

    /// Handles the first segment after `idle` without one: beyond the retransmission `timeout`, the
    /// window is no longer a valid estimate (section 4.1).
    pub(crate) fn on_idle(&mut self, idle: Duration, timeout: Duration) {
        if idle > timeout {
            self.window = self.window.min(FIRST_WINDOW * self.segment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_doubles_a_round_and_then_grows_by_a_segment() {
        let mut congestion = Congestion::new(1000, false);
        assert_eq!(congestion.window(), 10_000);
        for _ in 0..10 {
            congestion.on_acknowledged(1000, true);
        }
        assert_eq!(congestion.window(), 20_000);
        congestion.on_acknowledged(1000, false);
        assert_eq!(congestion.window(), 20_000);
        congestion.on_loss(20_000);
        assert_eq!(congestion.window(), 10_000);
        for _ in 0..9 {
            congestion.on_acknowledged(1000, true);
        }
        assert_eq!(congestion.window(), 10_000);
        congestion.on_acknowledged(1000, true);
        assert_eq!(congestion.window(), 11_000);
    }

    #[test]
    fn a_timeout_leaves_one_segment_and_halves_the_threshold_once() {
        let mut congestion = Congestion::new(1000, false);
        congestion.on_timeout(10_000, true);
        assert_eq!((congestion.window(), congestion.threshold), (1000, 5000));
        congestion.on_timeout(1000, false);
        assert_eq!((congestion.window(), congestion.threshold), (1000, 5000));
        // Acknowledging byte by byte does not grow it faster than the bytes do.
        for _ in 0..10 {
            congestion.on_acknowledged(1, true);
        }
        assert_eq!(congestion.window(), 1010);
        congestion.on_timeout(1500, true);
        assert_eq!(congestion.threshold, 2000);
    }

    #[test]
    fn after_a_silence_the_window_is_the_first_one_again() {
        let mut congestion = Congestion::new(1000, false);
        for _ in 0..50 {
            congestion.on_acknowledged(1000, true);
        }
        let second = Duration::from_secs(1);
        congestion.on_idle(second, second);
        assert_eq!(congestion.window(), 60_000);
        congestion.on_idle(second * 2, second);
        assert_eq!(congestion.window(), 10_000);
        assert_eq!(Congestion::new(1000, true).window(), 1000);
    }
}
