//! SYN cookies (RFC 4987, section 3.6): a listener with a full backlog answers a SYN without
//! storing state. The state is encoded in the initial sequence number and, if the peer sends
//! timestamps, in our timestamp.
//!
//! ```text
//! sequence number:  | 5 bits: period | 3 bits: segment size | 24 bits of a keyed hash |
//! timestamp:        | 27 bits: the clock          | 1 bit: SACK | 4 bits: window scale |
//! ```

use std::time::Duration;

use super::secret::{Purpose, Secret};
use super::{Settings, Tuple};
use crate::wire::sequence::Sequence;
use crate::wire::tcp::{Options, WINDOW_SHIFT_MAX};

/// Length of a period, in seconds. A cookie is valid in its period and the next one.
const PERIOD: u64 = 64;

/// The segment sizes that a cookie can encode. The largest one that does not exceed the peer's is
/// used.
const SEGMENT_SIZES: [u16; 8] = [48, 536, 1024, 1220, 1360, 1440, 1460, 8960];

/// The bits of a timestamp that encode options.
const CLOCK_BITS: u32 = 0x1f;

/// Encodes that no window scale was offered.
const NO_SHIFT: u32 = 15;

/// The options, besides the segment size, that the peer echoes in its timestamp; `None` without
/// timestamps. The hash covers them, so that a peer cannot claim options that it has not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks(Option<u32>);

impl Marks {
    /// The marks of a SYN's options.
    pub(crate) fn of_offer(offer: &Options, settings: &Settings) -> Marks {
        let shift = offer.window_shift.map_or(NO_SHIFT, u32::from);
        let sack = u32::from(offer.sack_permitted);
        let clocks = offer.timestamps.filter(|_| settings.timestamps);
        Marks(clocks.map(|_| sack << 4 | shift))
    }

    /// The marks that an acknowledgment echoes.
    pub(crate) fn of_echo(options: &Options, settings: &Settings) -> Marks {
        let clocks = options.timestamps.filter(|_| settings.timestamps);
        Marks(clocks.map(|clocks| clocks.echo & CLOCK_BITS))
    }

    /// The timestamp of the SYN-ACK, with the marks encoded.
    pub(crate) fn on_clock(self, clock: u32) -> u32 {
        match self.0 {
            // Rounded down, so that none of our later timestamps is smaller.
            Some(bits) => (clock & !CLOCK_BITS).wrapping_sub(CLOCK_BITS + 1) | bits,
            None => clock,
        }
    }

    /// Restores the options of the SYN.
    pub(crate) fn offered(self, offer: &mut Options) {
        let bits = self.0.unwrap_or(NO_SHIFT);
        let shift = (bits & 15) as u8;
        offer.window_shift = (shift <= WINDOW_SHIFT_MAX).then_some(shift);
        offer.sack_permitted = bits & 16 != 0;
    }

    fn number(self) -> u64 {
        self.0.map_or(0, |bits| u64::from(bits) + 1)
    }
}

/// The initial sequence number of the answer to a SYN with the sequence number `theirs`.
pub(crate) fn give(
    secret: Secret,
    now: Duration,
    tuple: &Tuple,
    (theirs, marks): (Sequence, Marks),
    segment_max: u16,
) -> Sequence {
    let index = SEGMENT_SIZES
        .iter()
        .rposition(|size| *size <= segment_max)
        .unwrap_or_default();
    number(
        secret,
        now.as_secs() / PERIOD,
        tuple,
        (theirs, marks),
        index,
    )
}

/// The negotiated segment size, if `cookie` is a valid cookie of this peer.
pub(crate) fn take(
    secret: Secret,
    now: Duration,
    tuple: &Tuple,
    syn: (Sequence, Marks),
    cookie: Sequence,
) -> Option<u16> {
    let period = now.as_secs() / PERIOD;
    let index = (cookie.0 >> 24 & 7) as usize;
    [Some(period), period.checked_sub(1)]
        .into_iter()
        .flatten()
        .find(|period| number(secret, *period, tuple, syn, index) == cookie)?;
    SEGMENT_SIZES.get(index).copied()
}

fn number(
    secret: Secret,
    period: u64,
    tuple: &Tuple,
    (theirs, marks): (Sequence, Marks),
    index: usize,
) -> Sequence {
    let index = index as u64;
    let content = period << 41 | marks.number() << 35 | index << 32 | u64::from(theirs.0);
    let hash = secret.number(tuple, Purpose::Cookie(content)) as u32 & 0x00ff_ffff;
    Sequence((period as u32) << 27 | (index as u32) << 24 | hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tcp::Timestamps;

    #[test]
    fn a_cookie_holds_for_its_peer_and_its_time() {
        let secret = Secret([3, 4]);
        let now = Duration::from_secs(100_000);
        let tuple = |port| Tuple {
            local: "10.0.0.1:80".parse().unwrap(),
            remote: std::net::SocketAddrV4::new([10, 0, 0, 2].into(), port),
        };
        let theirs = Sequence(77);
        let marks = Marks(Some(3));
        for (asked, agreed) in [(1460, 1460), (1459, 1440), (500, 48), (9000, 8960)] {
            let cookie = give(secret, now, &tuple(1), (theirs, marks), asked);
            let taken = |after, port, syn, cookie| {
                let later = now + Duration::from_secs(after);
                take(secret, later, &tuple(port), syn, cookie)
            };
            let syn = (theirs, marks);
            assert_eq!(taken(0, 1, syn, cookie), Some(agreed));
            assert_eq!(taken(64, 1, syn, cookie), Some(agreed));
            assert_eq!(taken(200, 1, syn, cookie), None);
            assert_eq!(taken(0, 2, syn, cookie), None);
            assert_eq!(taken(0, 1, (theirs + 1, marks), cookie), None);
            assert_eq!(taken(0, 1, (theirs, Marks(Some(4))), cookie), None);
            assert_eq!(taken(0, 1, (theirs, Marks(None)), cookie), None);
            for bit in 0..32 {
                let wrong = Sequence(cookie.0 ^ 1 << bit);
                assert_eq!(taken(0, 1, syn, wrong), None, "bit {bit}");
            }
        }
    }

    #[test]
    fn a_clock_brings_back_what_was_offered() {
        let clocks = |echo| Some(Timestamps { value: 9, echo });
        for window_shift in [None, Some(0), Some(7), Some(14)] {
            for sack_permitted in [false, true] {
                let offer = Options {
                    window_shift,
                    sack_permitted,
                    timestamps: clocks(0),
                    ..Options::default()
                };
                let marks = Marks::of_offer(&offer, &Settings::default());
                let clock = marks.on_clock(123_456);
                assert!(clock < 123_456);
                let mut read = Options {
                    timestamps: clocks(clock),
                    ..Options::default()
                };
                assert_eq!(Marks::of_echo(&read, &Settings::default()), marks);
                marks.offered(&mut read);
                let were = (read.window_shift, read.sack_permitted);
                assert_eq!(were, (window_shift, sack_permitted));
            }
        }
        // Without a clock nothing is brought back.
        let offer = Options {
            sack_permitted: true,
            ..Options::default()
        };
        assert_eq!(Marks::of_offer(&offer, &Settings::default()), Marks(None));
        let without = Settings {
            timestamps: false,
            ..Settings::default()
        };
        let offer = Options {
            timestamps: clocks(7),
            ..offer
        };
        assert_eq!(Marks::of_offer(&offer, &without), Marks(None));
        assert_eq!(Marks::of_echo(&offer, &without), Marks(None));
    }
}
