//! SYN cookies (RFC 4987, section 3.6): a listener whose places are taken answers a SYN without
//! remembering it. What it would have remembered stands in the sequence number, and in the clock of
//! peers that send timestamps.
//!
//! ```text
//! sequence number:  | 5 bits: period | 3 bits: segment size | 24 bits of a keyed hash |
//! clock:            | 27 bits: as always          | 1 bit: SACK | 4 bits: window shift |
//! ```

use std::time::Duration;

use super::Tuple;
use super::secret::{Purpose, Secret};
use crate::wire::sequence::Sequence;
use crate::wire::tcp::{Options, WINDOW_SHIFT_MAX};

/// Seconds of a period; a cookie holds in its own and the next one.
const PERIOD: u64 = 64;

/// Segment sizes that a cookie tells apart; the largest that is not above the peer's holds.
const SEGMENT_SIZES: [u16; 8] = [48, 536, 1024, 1220, 1360, 1440, 1460, 8960];

/// The bits of a clock that say what was agreed on.
const CLOCK_BITS: u32 = 0x1f;

/// No window shift was offered.
const NO_SHIFT: u32 = 15;

/// The sequence number with which a SYN is answered.
pub(crate) fn give(
    secret: Secret,
    now: Duration,
    tuple: &Tuple,
    theirs: Sequence,
    segment_max: u16,
) -> Sequence {
    let index = SEGMENT_SIZES
        .iter()
        .rposition(|size| *size <= segment_max)
        .unwrap_or_default();
    number(secret, now.as_secs() / PERIOD, tuple, theirs, index)
}

/// The segment size that was agreed on, if `number` is a cookie that was given to this peer a
/// moment ago.
pub(crate) fn take(
    secret: Secret,
    now: Duration,
    tuple: &Tuple,
    theirs: Sequence,
    cookie: Sequence,
) -> Option<u16> {
    let period = now.as_secs() / PERIOD;
    let index = (cookie.0 >> 24 & 7) as usize;
    [Some(period), period.checked_sub(1)]
        .into_iter()
        .flatten()
        .find(|period| number(secret, *period, tuple, theirs, index) == cookie)?;
    SEGMENT_SIZES.get(index).copied()
}

fn number(secret: Secret, period: u64, tuple: &Tuple, theirs: Sequence, index: usize) -> Sequence {
    let index = index as u64;
    let content = period << 35 | index << 32 | u64::from(theirs.0);
    let hash = secret.number(tuple, Purpose::Cookie(content)) as u32 & 0x00ff_ffff;
    Sequence((period as u32) << 27 | (index as u32) << 24 | hash)
}

/// The clock of the answer, which says what else the peer has offered.
pub(crate) fn marked_clock(clock: u32, offer: &Options) -> u32 {
    let shift = offer.window_shift.map_or(NO_SHIFT, u32::from);
    let sack = u32::from(offer.sack_permitted);
    // Backwards, so that no later clock of ours is before it.
    (clock & !CLOCK_BITS).wrapping_sub(CLOCK_BITS + 1) | sack << 4 | shift
}

/// What the peer had offered, by the clock that it sends back.
pub(crate) fn offered(echo: u32, offer: &mut Options) {
    let shift = (echo & 15) as u8;
    offer.window_shift = (shift <= WINDOW_SHIFT_MAX).then_some(shift);
    offer.sack_permitted = echo & 16 != 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_holds_for_its_peer_and_its_time() {
        let secret = Secret([3, 4]);
        let now = Duration::from_secs(100_000);
        let tuple = |port| Tuple {
            local: "10.0.0.1:80".parse().unwrap(),
            remote: std::net::SocketAddrV4::new([10, 0, 0, 2].into(), port),
        };
        let theirs = Sequence(77);
        for (asked, agreed) in [(1460, 1460), (1459, 1440), (500, 48), (9000, 8960)] {
            let cookie = give(secret, now, &tuple(1), theirs, asked);
            let taken = |after, port, theirs, cookie| {
                let later = now + Duration::from_secs(after);
                take(secret, later, &tuple(port), theirs, cookie)
            };
            assert_eq!(taken(0, 1, theirs, cookie), Some(agreed));
            assert_eq!(taken(64, 1, theirs, cookie), Some(agreed));
            assert_eq!(taken(200, 1, theirs, cookie), None);
            assert_eq!(taken(0, 2, theirs, cookie), None);
            assert_eq!(taken(0, 1, theirs + 1, cookie), None);
            for bit in 0..32 {
                let wrong = Sequence(cookie.0 ^ 1 << bit);
                assert_eq!(taken(0, 1, theirs, wrong), None, "bit {bit}");
            }
        }
    }

    #[test]
    fn a_clock_brings_back_what_was_offered() {
        for window_shift in [None, Some(0), Some(7), Some(14)] {
            for sack_permitted in [false, true] {
                let offer = Options {
                    window_shift,
                    sack_permitted,
                    ..Options::default()
                };
                let clock = marked_clock(123_456, &offer);
                assert!(clock < 123_456);
                let mut read = Options::default();
                offered(clock, &mut read);
                assert_eq!(read, offer);
            }
        }
    }
}
