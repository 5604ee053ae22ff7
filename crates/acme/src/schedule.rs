//! The schedule of renewals and of retries. It reads no clock and no random numbers: the caller
//! passes the times and a random `chance`.

use std::time::{Duration, SystemTime};

/// The wait after the first failure; each further wait is [`RETRY_GROWTH`] times as long.
const RETRY_FIRST: Duration = Duration::from_secs(30);

/// Growth factor of the waits. The first try and four retries fall into the first hour: no more
/// than the five failed validations an hour that Let's Encrypt allows.
const RETRY_GROWTH: u32 = 4;

const RETRY_MAX: Duration = Duration::from_secs(6 * 3600);

/// The time during which a new certificate is never renewed. [`PAUSES_MIN`] shortens it for brief
/// lifetimes.
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// The pause is at most the lifetime divided by this number: at least ten pauses fit into a
/// lifetime.
const PAUSES_MIN: u32 = 10;

/// Minimum and maximum interval between two requests for renewal information, whatever the server
/// says: RFC 9773 section 4.3.2.
const RECHECK: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(24 * 3600));

/// A period of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The beginning of the window.
    pub start: SystemTime,
    /// The end of the window.
    pub end: SystemTime,
}

impl Window {
    fn length(&self) -> Duration {
        self.end.duration_since(self.start).unwrap_or_default()
    }
}

/// The time of the renewal. It is drawn from the window that the server suggests. Without one, it
/// is drawn from a period that ends when two thirds of the lifetime have passed and is a thirtieth
/// of the lifetime long: days 57 to 60 of 90. `chance` is a random number from 0 to 1: it spreads
/// the renewals of certificates that were issued on the same day.
pub(crate) fn renewal(validity: Window, suggested: Option<Window>, chance: f64) -> SystemTime {
    let chance = chance.clamp(0.0, 1.0);
    match suggested {
        Some(window) => window.start + window.length().mul_f64(chance),
        None => validity.start + validity.length().mul_f64(2.0 / 3.0 - chance / 30.0),
    }
}

/// The earliest time at which a certificate that was issued `now` may be renewed, whatever window
/// is suggested and even if a wrong clock makes the certificate look expired: the server must not
/// be asked for one certificate after the other.
pub(crate) fn earliest(validity: Window, now: SystemTime) -> SystemTime {
    now + PAUSE_MAX.min(validity.length() / PAUSES_MIN)
}

/// The wait after this number of failures in a row (at least one). A random part, up to a quarter,
/// is subtracted. The wait is at least `asked`, the server's `Retry-After`, of which no more than a
/// day counts.
pub(crate) fn retry(failures: u32, asked: Option<Duration>, chance: f64) -> Duration {
    let growth = RETRY_GROWTH.saturating_pow(failures.saturating_sub(1));
    let wait = RETRY_FIRST.saturating_mul(growth).min(RETRY_MAX);
    let wait = wait.mul_f64(1.0 - chance.clamp(0.0, 1.0) / 4.0);
    wait.max(asked.unwrap_or_default().min(RECHECK.1))
}

/// The interval after which renewal information is requested again; `told` is the server's
/// `Retry-After`.
pub(crate) fn recheck(told: Duration) -> Duration {
    told.clamp(RECHECK.0, RECHECK.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn window(start: u32, end: u32) -> Window {
        let day = |day| SystemTime::UNIX_EPOCH + DAY * day;
        Window {
            start: day(start),
            end: day(end),
        }
    }

    #[test]
    fn two_thirds_of_the_lifetime_or_a_little_earlier() {
        let day = |time: SystemTime| {
            let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
            (since.as_secs_f64() / DAY.as_secs_f64() * 10.0).round() / 10.0
        };
        let validity = window(100, 190);
        assert_eq!(day(renewal(validity, None, 0.0)), 160.0);
        assert_eq!(day(renewal(validity, None, 1.0)), 157.0);
        let suggested = Some(window(120, 130));
        assert_eq!(day(renewal(validity, suggested, 0.0)), 120.0);
        assert_eq!(day(renewal(validity, suggested, 0.5)), 125.0);
        // A window that ends before its start counts as a single point in time.
        assert_eq!(day(renewal(validity, Some(window(130, 120)), 0.5)), 130.0);
    }

    #[test]
    fn a_pause_is_an_hour_or_a_tenth_of_the_lifetime() {
        let now = SystemTime::UNIX_EPOCH + DAY * 200;
        let hour = Duration::from_secs(3600);
        assert_eq!(earliest(window(100, 190), now), now + hour);
        let brief = Window {
            start: now,
            end: now + hour,
        };
        assert_eq!(earliest(brief, now), now + hour / 10);
    }

    #[test]
    fn waits_grow_up_to_a_limit() {
        let waits: Vec<u64> = (1..7).map(|n| retry(n, None, 0.0).as_secs()).collect();
        assert_eq!(waits, [30, 120, 480, 1920, 7680, 21600]);
        assert_eq!(retry(u32::MAX, None, 0.0).as_secs(), 21600);
        assert_eq!(retry(1, None, 1.0).as_secs_f64(), 22.5);
        assert_eq!(retry(1, Some(Duration::from_secs(700)), 0.5).as_secs(), 700);
        assert_eq!(retry(1, Some(Duration::MAX), 0.5), DAY);
    }

    #[test]
    fn renewal_information_holds_a_minute_to_a_day() {
        assert_eq!(recheck(Duration::ZERO).as_secs(), 60);
        assert_eq!(recheck(Duration::from_secs(6 * 3600)).as_secs(), 21600);
        assert_eq!(recheck(Duration::MAX), DAY);
    }
}
