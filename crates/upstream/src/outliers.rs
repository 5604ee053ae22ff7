//! Peers that do worse than the others of their group are put out for a while, and for longer each
//! time: nginx does not have it.
//!
//! ```text
//!                 failures in a row, or a share of the interval's requests
//! (is asked) ────────────────────────────────────────────────────────────▶ (put out)
//!     ▲                                                                        │
//!     └────────────────────── time × how often of late ────────────────────────┘
//! ```
//!
//! It stands beside `max_fails`, which goes by itself. What all of a group suffer from is no peer's
//! fault: of those that stand beside each other no more than a share is put out at a time, and
//! never all.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::peer::PeerSet;
use crate::state::Moment;

/// When a peer is put out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outliers {
    /// After so many failures in a row; 0 is never.
    pub errors: u64,
    /// Where so many of a hundred requests fail within [`Outliers::interval`]; 0 is never.
    pub ratio: u64,
    /// How long requests count for [`Outliers::ratio`].
    pub interval: Duration,
    /// How long it is out the first time.
    pub time: Duration,
    /// How many of a hundred peers may be out at the same time.
    pub max: u64,
}

/// A peer has been put out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutOut {
    /// For how long the peer is put out.
    pub time: Duration,
    /// What it was put out for.
    pub cause: Cause,
}

/// What a peer is put out for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// So many failures one after the other.
    InARow(u64),
    /// So many failures among so many requests of one interval.
    Share(u64, u64),
}

/// A share means something among so many requests at least.
const REQUESTS_MIN: u64 = 10;

/// A peer is out for no longer than so many times the first time.
const REPEATS_MAX: u64 = 10;

/// A peer of this side has failed: whether that puts it out. In the turn of its group.
pub(crate) fn fail(side: &PeerSet, index: usize, now: u64, outliers: &Outliers) -> Option<PutOut> {
    let standing = &side.get(index)?.state().standing;
    // What was under way when it was put out says nothing new.
    if standing.is_out(now) {
        return None;
    }
    let cause = standing.fail(now, outliers)?;
    let time =
        can_be_spared(side, index, now, outliers).then(|| standing.put_out(now, outliers))?;
    Some(PutOut { time, cause })
}

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

/// Whether none of this side might be asked but those that are put out: servers may have gone that
/// could spare them.
pub(crate) fn are_all_there_is(side: &PeerSet, now: u64) -> bool {
    let mut others = side
        .iter()
        .filter(|peer| !peer.state().standing.is_out(now));
    !others.any(|peer| peer.is_fit(now))
}

/// What a peer is judged by, over all threads and reloads.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    in_a_row: AtomicU64,
    /// When the interval began, and what it has seen since.
    interval: Moment,
    requests: AtomicU64,
    failures: AtomicU64,
    /// Until when it is out, or was the last time.
    until: Moment,
    /// Whether it is known that it is back.
    is_back: AtomicBool,
    /// How often it has been put out of late.
    repeats: AtomicU64,
}

impl Standing {
    /// Whether it is out now.
    pub(crate) fn is_out(&self, now: u64) -> bool {
        self.until.get() > now
    }

    /// Whether it is asked again for the first time: `true` once.
    pub(crate) fn comes_back(&self, now: u64) -> bool {
        let until = self.until.get();
        until > 0 && until <= now && !self.is_back.swap(true, Ordering::Relaxed)
    }

    /// A request has been answered.
    pub(crate) fn succeed(&self, now: u64, outliers: &Outliers) {
        if self.in_a_row.load(Ordering::Relaxed) > 0 {
            self.in_a_row.store(0, Ordering::Relaxed);
        }
        self.count(now, outliers);
    }

    /// A request has failed: what the peer is to be put out for.
    fn fail(&self, now: u64, outliers: &Outliers) -> Option<Cause> {
        let in_a_row = self.in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
        let requests = self.count(now, outliers);
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if outliers.errors > 0 && in_a_row >= outliers.errors {
            return Some(Cause::InARow(in_a_row));
        }
        let share = requests.saturating_mul(outliers.ratio);
        let is_share =
            outliers.ratio > 0 && requests >= REQUESTS_MIN && failures.saturating_mul(100) >= share;
        is_share.then_some(Cause::Share(failures, requests))
    }

    /// Counts a request of the interval; how many there are.
    fn count(&self, now: u64, outliers: &Outliers) -> u64 {
        let began = self.interval.get();
        let age = u128::from(now.saturating_sub(began));
        if (began == 0 || age >= outliers.interval.as_millis())
            && self.interval.set_from(began, now)
        {
            self.requests.store(0, Ordering::Relaxed);
            self.failures.store(0, Ordering::Relaxed);
        }
        self.requests.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Puts it out, for how long. Each time of [`Outliers::time`] in which it was not out makes up
    /// for one before.
    fn put_out(&self, now: u64, outliers: &Outliers) -> Duration {
        let time = outliers.time.as_millis().max(1);
        let spent = u128::from(now.saturating_sub(self.until.get())) / time;
        let before = self.repeats.load(Ordering::Relaxed);
        let before = before.saturating_sub(u64::try_from(spent).unwrap_or(u64::MAX));
        let repeats = (before + 1).min(REPEATS_MAX);
        self.repeats.store(repeats, Ordering::Relaxed);
        let out = outliers
            .time
            .saturating_mul(u32::try_from(repeats).unwrap_or(u32::MAX));
        let millis = u64::try_from(out.as_millis()).unwrap_or(u64::MAX);
        self.until.set(now.saturating_add(millis));
        self.is_back.store(false, Ordering::Relaxed);
        self.in_a_row.store(0, Ordering::Relaxed);
        self.requests.store(0, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use engine::net::Address;

    use crate::health::Check;
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

    /// Fails so often that it is put out, if it may be; for how many seconds.
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
        // Too few say nothing, and what was in another interval is forgotten.
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
        // Each 30 s that it does well make up for one.
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
        // One that is out by `max_fails` cannot stand in.
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
        // Where it fails later, the one that is out is all that there is.
        two[1].health().unwrap().passed(0, 1);
        assert_eq!(fail_often(&two, 0, 1), Some(30));
        assert!(!are_all_there_is(&two, 2));
        unhealthy();
        assert!(are_all_there_is(&two, 2));
    }
}
