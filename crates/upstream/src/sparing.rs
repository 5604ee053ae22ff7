//! Decides which [`outliers`](crate::outliers) of a group are ejected: only those that other peers
//! can replace.

use crate::outliers::{Outliers, PutOut};
use crate::peer::PeerSet;

/// Counts a failure of the peer with this index, and returns the ejection if the failure causes
/// one. The caller holds the lock of the group's rotation.
pub(crate) fn fail(side: &PeerSet, index: usize, now: u64, outliers: &Outliers) -> Option<PutOut> {
    let standing = &side.get(index)?.state().standing;
    // A failure of a request that was in flight at the ejection has no effect.
    if standing.is_out(now) {
        return None;
    }
    let cause = standing.fail(now, outliers)?;
    let time =
        can_be_spared(side, index, now, outliers).then(|| standing.put_out(now, outliers))?;
    Some(PutOut { time, cause })
}

/// Whether the peer may be ejected: another peer is available, and the limit of ejected peers is
/// not reached.
fn can_be_spared(side: &PeerSet, index: usize, now: u64, outliers: &Outliers) -> bool {
    let (mut count, mut out, mut others) = (0_u64, 0, false);
    for (place, peer) in side.iter().enumerate() {
        if peer.down || peer.draining {
            continue;
        }
        let is_out = peer.state().standing.is_out(now);
        count += 1;
        out += u64::from(is_out);
        others |= place != index && !is_out && peer.is_fit(now);
    }
    others && out < count.saturating_mul(outliers.max) / 100
}

/// Whether every peer that is available apart from outlier detection is ejected. This happens if
/// the peers that replaced them have failed since.
pub(crate) fn are_all_there_is(side: &PeerSet, now: u64) -> bool {
    let mut others = side
        .iter()
        .filter(|peer| !peer.state().standing.is_out(now));
    !others.any(|peer| peer.is_fit(now))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    use engine::net::Address;

    use crate::health::Check;
    use crate::outliers::{Cause, Standing};
    use crate::peer::Peer;

    const OUTLIERS: Outliers = Outliers {
        errors: 3,
        ratio: 0,
        interval: Duration::from_secs(10),
        time: Duration::from_secs(30),
        max: 50,
    };

    fn side(count: usize) -> PeerSet {
        let peer = |number| Peer::new(Address::Unix(format!("{number}").into()));
        PeerSet::new((0..count).map(peer).collect::<Vec<_>>())
    }

    /// Fails the peer until it is ejected, if it may be; returns the seconds of the ejection.
    fn fail_often(side: &PeerSet, index: usize, now: u64) -> Option<u64> {
        let mut times = (0..3).filter_map(|_| fail(side, index, now, &OUTLIERS));
        times.next().map(|out| out.time.as_secs())
    }

    fn standing(side: &PeerSet, index: usize) -> &Standing {
        &side[index].state().standing
    }

    #[test]
    fn failures_in_a_row_put_a_peer_out() {
        let side = side(2);
        assert_eq!(fail(&side, 0, 1, &OUTLIERS), None);
        assert_eq!(fail(&side, 0, 1, &OUTLIERS), None);
        standing(&side, 0).succeed(1, &OUTLIERS);
        assert_eq!(fail(&side, 0, 1, &OUTLIERS), None);
        assert_eq!(fail(&side, 0, 1, &OUTLIERS), None);
        let out = PutOut {
            time: OUTLIERS.time,
            cause: Cause::InARow(3),
        };
        assert_eq!(fail(&side, 0, 1, &OUTLIERS), Some(out));
        assert!(standing(&side, 0).is_out(30_000));
        assert!(!standing(&side, 0).comes_back(30_000));
        assert!(!standing(&side, 0).is_out(30_001));
        assert!(standing(&side, 0).comes_back(30_001));
        assert!(!standing(&side, 0).comes_back(30_001));
        let never = Outliers {
            errors: 0,
            ..OUTLIERS
        };
        assert!((0..100).all(|_| fail(&side, 1, 1, &never).is_none()));
    }

    #[test]
    fn a_share_of_failures_puts_a_peer_out() {
        let side = side(2);
        let outliers = Outliers {
            errors: 0,
            ratio: 50,
            ..OUTLIERS
        };
        for _ in 0..6 {
            standing(&side, 0).succeed(1, &outliers);
        }
        // Five of eleven, then six of twelve.
        let outcomes = [(); 6].map(|()| fail(&side, 0, 9999, &outliers));
        assert_eq!(outcomes[..5], [None; 5]);
        assert_eq!(outcomes[5].map(|out| out.cause), Some(Cause::Share(6, 12)));
        // Too few requests have no effect, and those of another interval do not count.
        let outcomes = [(); 9].map(|()| fail(&side, 1, 1, &outliers));
        assert_eq!(outcomes, [None; 9]);
        let outcomes = [(); 9].map(|()| fail(&side, 1, 10_001, &outliers));
        assert_eq!(outcomes, [None; 9]);
    }

    #[test]
    fn it_is_out_for_longer_each_time() {
        let side = side(2);
        let mut now = 1000;
        for seconds in [30, 60, 90] {
            assert_eq!(fail_often(&side, 0, now), Some(seconds));
            now += seconds * 1000;
        }
        for _ in 0..10 {
            let seconds = fail_often(&side, 0, now).unwrap();
            assert!(seconds <= 300);
            now += seconds * 1000;
        }
        assert_eq!(fail_often(&side, 0, now), Some(300));
        // Each 30 s without an ejection take one off the repeats.
        now += 300_000 + 8 * 30_000;
        assert_eq!(fail_often(&side, 0, now), Some(90));
        now += 90_000 + 100 * 30_000;
        assert_eq!(fail_often(&side, 0, now), Some(30));
    }

    #[test]
    fn no_more_than_a_share_is_out_and_never_all() {
        let four = side(4);
        let out = [0, 1, 2, 3].map(|index| fail_often(&four, index, 1));
        assert_eq!(out, [Some(30), Some(30), None, None]);
        let all = Outliers {
            max: 100,
            ..OUTLIERS
        };
        let four = side(4);
        let out = |index| (0..3).any(|_| fail(&four, index, 1, &all).is_some());
        assert_eq!([0, 1, 2, 3].map(out), [true, true, true, false]);
        let three = side(3);
        assert_eq!(
            [0, 1].map(|index| fail_often(&three, index, 1)),
            [Some(30), None]
        );
        assert_eq!(fail_often(&side(1), 0, 1), None);
        // A peer that is unavailable by `max_fails` cannot replace another.
        let two = side(2);
        two[1].state().fail(1, 1, 1);
        assert_eq!(fail_often(&two, 0, 1), None);
        assert!(!are_all_there_is(&two, 1));
    }

    #[test]
    fn one_that_has_failed_its_checks_cannot_stand_in() {
        let check = Check {
            place: "here".into(),
            mandatory: false,
            persistent: false,
        };
        let checked = |number: u8| {
            let mut peer = Peer::new(Address::Unix(format!("{number}").into()));
            peer.checks = Some([check.clone()].into());
            peer
        };
        let two = PeerSet::new([0, 1].map(checked));
        let unhealthy = || two[1].health().unwrap().failed(0, 1);
        unhealthy();
        assert_eq!(fail_often(&two, 0, 1), None);
        // If the other peer fails later, only the ejected one is left.
        two[1].health().unwrap().passed(0, 1);
        assert_eq!(fail_often(&two, 0, 1), Some(30));
        assert!(!are_all_there_is(&two, 2));
        unhealthy();
        assert!(are_all_there_is(&two, 2));
    }
}
