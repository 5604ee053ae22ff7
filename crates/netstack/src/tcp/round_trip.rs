//! The round trip time and the retransmission timeout (RFC 6298).

use std::time::Duration;

/// The timeout before the first sample (section 2.1).
const TIMEOUT_FIRST: Duration = Duration::from_secs(1);

/// The timeout for data after a handshake with retransmissions (rule 5.7).
const TIMEOUT_AFTER_LOST_SYN: Duration = Duration::from_secs(3);

/// Minimum difference between the timeout and the smoothed round trip time. Section 2.4 demands a
/// timeout of at least a second; Linux adds at least 200 ms, which exceeds the delay of
/// acknowledgments on common systems. We follow Linux, so that losses cost clients no more time
/// than with the kernel's TCP.
const MARGIN_MIN_MICROS: u64 = 200_000;

/// Samples are limited to this: it already leads to the maximum timeout.
const SAMPLE_MAX: Duration = Duration::from_secs(3600);

/// The maximum timeout, the least that section 2.5 permits.
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Number of doublings after which every timeout is at its maximum.
const DOUBLINGS_MAX: u32 = 10;

/// The estimates of the round trip time, and the timeout that follows from them.
#[derive(Debug)]
pub(crate) struct RoundTrip {
    /// SRTT and RTTVAR in microseconds, after the first sample.
    known: Option<(u64, u64)>,
    timeout: Duration,
    doublings: u32,
}

impl RoundTrip {
    pub(crate) fn new() -> RoundTrip {
        RoundTrip {
            known: None,
            timeout: TIMEOUT_FIRST,
            doublings: 0,
        }
    }

    /// The state after a handshake with retransmissions, whose round trip cannot be measured.
    pub(crate) fn after_lost_syn() -> RoundTrip {
        RoundTrip {
            timeout: TIMEOUT_AFTER_LOST_SYN,
            ..RoundTrip::new()
        }
    }

    /// Adds the round trip time of a segment that was sent once (rules 2.2 and 2.3). The timeout is
    /// computed anew, which ends the backoff (section 5, last paragraph).
    pub(crate) fn sample(&mut self, sample: Duration) {
        let sample = sample.min(SAMPLE_MAX);
        let sample = sample.as_secs() * 1_000_000 + u64::from(sample.subsec_micros());
        let (smoothed, variation) = match self.known {
            None => (sample, sample / 2),
            Some((smoothed, variation)) => (
                (smoothed * 7 + sample) / 8,
                (variation * 3 + smoothed.abs_diff(sample)) / 4,
            ),
        };
        self.known = Some((smoothed, variation));
        let timeout = smoothed + MARGIN_MIN_MICROS.max(variation * 4);
        self.timeout = Duration::from_micros(timeout).min(TIMEOUT_MAX);
        self.doublings = 0;
    }

    /// The current retransmission timeout.
    pub(crate) fn timeout(&self) -> Duration {
        if self.doublings == 0 {
            return self.timeout;
        }
        let factor = 1 << self.doublings;
        self.timeout.saturating_mul(factor).min(TIMEOUT_MAX)
    }

    /// Doubles the timeout after it has expired (rule 5.5).
    pub(crate) fn back_off(&mut self) {
        self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
    }

    /// Ends the backoff after an acknowledgment without a sample.
    pub(crate) fn forget_back_off(&mut self) {
        self.doublings = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn the_timeout_follows_the_samples() {
        let mut trip = RoundTrip::new();
        assert_eq!(trip.timeout(), ms(1000));
        trip.sample(ms(100));
        // SRTT 100, RTTVAR 50.
        assert_eq!(trip.timeout(), ms(300));
        trip.sample(ms(900));
        // RTTVAR (3 * 50 + 800) / 4 = 237.5, SRTT (7 * 100 + 900) / 8 = 200.
        assert_eq!(trip.timeout(), ms(200 + 950));
        let mut far = RoundTrip::new();
        far.sample(ms(100_000));
        assert_eq!(far.timeout(), TIMEOUT_MAX);
        assert_eq!(RoundTrip::after_lost_syn().timeout(), ms(3000));
    }

    #[test]
    fn waiting_in_vain_doubles_up_to_a_minute_and_a_sample_ends_that() {
        let mut trip = RoundTrip::new();
        let mut waited = Vec::new();
        for _ in 0..8 {
            waited.push(trip.timeout().as_secs());
            trip.back_off();
        }
        assert_eq!(waited, [1, 2, 4, 8, 16, 32, 60, 60]);
        for _ in 0..100 {
            trip.back_off();
        }
        assert_eq!(trip.timeout(), TIMEOUT_MAX);
        trip.sample(ms(10));
        assert_eq!(trip.timeout(), ms(210));
    }
}
