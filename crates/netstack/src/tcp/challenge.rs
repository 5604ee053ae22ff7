//! Rate limit of challenge acknowledgments (RFC 5961, section 7).
//!
//! Each connection has its own limit: a limit shared by all connections would be a side channel
//! (CVE-2016-5696).

use std::time::Duration;

/// Maximum number of challenge acknowledgments within a period.
const ANSWERS_MAX: u8 = 10;

const PERIOD: Duration = Duration::from_secs(5);

/// The challenge acknowledgments of the current period.
#[derive(Debug, Default)]
pub(crate) struct Challenges {
    began: Duration,
    count: u8,
}

impl Challenges {
    /// Whether another challenge acknowledgment may be sent; it is counted as sent.
    pub(crate) fn permit(&mut self, now: Duration) -> bool {
        if now.saturating_sub(self.began) >= PERIOD || self.count == 0 {
            self.began = now;
            self.count = 0;
        }
        self.count += 1;
        self.count <= ANSWERS_MAX || {
            self.count = ANSWERS_MAX;
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_answers_in_five_seconds() {
        let mut challenges = Challenges::default();
        let at = Duration::from_millis;
        let given = |challenges: &mut Challenges, from: u64| {
            (0..1000)
                .filter(|n| challenges.permit(at(from + n)))
                .count()
        };
        assert_eq!(given(&mut challenges, 50_000), 10);
        assert_eq!(given(&mut challenges, 53_000), 0);
        assert_eq!(given(&mut challenges, 55_000), 10);
    }
}
