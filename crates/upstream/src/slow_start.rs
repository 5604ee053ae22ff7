//! `slow_start`: the part of its weight that counts after a peer has become available again.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#slow_start>

use std::time::Duration;

/// The full share. Shares are integers out of this number, so that a peer of weight 1 can also
/// start slowly.
pub(crate) const WHOLE: i64 = 1024;

/// The share of a peer's weight, which grows from 1 to [`WHOLE`] in the time `slow_start` after
/// `since`, when the peer became available. At least 1, so that the only available peer can be
/// chosen at once.
pub(crate) fn share(since: Option<u64>, now: u64, slow_start: Duration) -> i64 {
    let Some(since) = since.filter(|_| !slow_start.is_zero()) else {
        return WHOLE;
    };
    let elapsed = u128::from(now.saturating_sub(since));
    let parts = (elapsed * WHOLE as u128).checked_div(slow_start.as_millis());
    let parts = parts.and_then(|parts| i64::try_from(parts).ok());
    parts.unwrap_or(WHOLE).clamp(1, WHOLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_grows_from_nothing_to_the_whole() {
        let slow = Duration::from_secs(4);
        let at = |now| share(Some(1000), now, slow);
        assert_eq!(at(1000), 1);
        assert_eq!(at(2000), WHOLE / 4);
        assert_eq!(at(3000), WHOLE / 2);
        assert_eq!(at(5000), WHOLE);
        assert_eq!(at(u64::MAX), WHOLE);
        // A clock of another thread may be behind.
        assert_eq!(at(500), 1);
        assert_eq!(share(None, 1000, slow), WHOLE);
        assert_eq!(share(Some(1000), 1000, Duration::ZERO), WHOLE);
    }
}
