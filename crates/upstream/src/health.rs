//! The results of a peer's health checks, visible to all threads.
//!
//! Other modules run the checks; this module evaluates their results. nginx:
//! <https://nginx.org/en/docs/http/ngx_http_upstream_hc_module.html>
//!
//! ```text
//!                      passes once
//!   checking ────────────────────────────▶ healthy ◀─── a new peer whose checks are not mandatory
//!      │                                    │   ▲
//!      │ fails as often as it may           │   │ passes as often as it must
//!      └──────────────▶ unhealthy ◀─────────┘   │
//!                           └───────────────────┘
//! ```
//!
//! If a peer has several checks, the worst of their findings counts. Each generation has its own
//! findings, which begin with those of the previous generation, so that a check of an old
//! generation that still runs has no effect on the new one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use bytes::Bytes;

/// A health check of all peers of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Identifies the check over reloads: its place in the configuration.
    pub place: Bytes,
    /// Whether a new peer gets no requests until it has passed the check.
    pub mandatory: bool,
    /// With `mandatory`: whether a peer keeps its finding over a reload, so that a healthy peer
    /// need not pass the check again.
    pub persistent: bool,
}

/// The health checks of a group.
pub type Checks = Arc<[Check]>;

/// The health of a peer, from best to worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// The peer has passed the check, or the check is not mandatory and has not failed yet.
    #[default]
    Healthy,
    /// The check is mandatory, and the peer must pass it before it gets requests.
    Checking,
    /// The peer has failed the check.
    Unhealthy,
}

impl Finding {
    pub(crate) fn of(number: u8) -> Finding {
        match number {
            0 => Finding::Healthy,
            1 => Finding::Checking,
            _ => Finding::Unhealthy,
        }
    }
}

/// The effect of one check result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealthChange {
    /// The new finding of the check; `None` if it has not changed.
    pub finding: Option<Finding>,
    /// Whether the peer has become healthy by this result, so that it may get requests again.
    pub recovered: bool,
}

/// Totals of a peer's health checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckCounts {
    /// Checks that have ended.
    pub checks: u64,
    /// Failed checks.
    pub fails: u64,
    /// How often a check has become [`Finding::Unhealthy`].
    pub unhealthy: u64,
}

/// The findings of all health checks of a peer. Only written by the thread that runs the checks.
#[derive(Debug)]
pub struct Health {
    checks: Checks,
    /// The results of each check.
    results: Box<[Results]>,
    /// The worst finding, for the load balancer.
    worst: AtomicU8,
    counts: [AtomicU64; 3],
}

/// The results of one check.
#[derive(Debug)]
struct Results {
    finding: AtomicU8,
    /// Number of consecutive results that contradict the finding.
    contrary: AtomicU64,
}

impl Results {
    fn begin(finding: Finding, contrary: u64) -> Results {
        Results {
            finding: AtomicU8::new(finding as u8),
            contrary: AtomicU64::new(contrary),
        }
    }

    fn finding(&self) -> Finding {
        Finding::of(self.finding.load(Ordering::Relaxed))
    }
}

impl Health {
    /// The health of a new peer.
    pub(crate) fn new(checks: &Checks) -> Health {
        Health::following(checks, None)
    }

    /// The health of a peer after a reload: each check that still exists keeps its finding, unless
    /// it is mandatory and not persistent.
    pub(crate) fn following(checks: &Checks, before: Option<&Health>) -> Health {
        let results = checks.iter().map(|check| {
            let known = before.and_then(|before| before.results_of(&check.place));
            match known.filter(|_| !check.mandatory || check.persistent) {
                Some(known) => {
                    let contrary = known.contrary.load(Ordering::Relaxed);
                    Results::begin(known.finding(), contrary)
                }
                None if check.mandatory => Results::begin(Finding::Checking, 0),
                None => Results::begin(Finding::Healthy, 0),
            }
        });
        let counts = before.map(Health::counts).unwrap_or_default();
        Health::begin(checks, results.collect(), counts)
    }

    /// The health of a peer with these findings, each with the number of consecutive results that
    /// contradict it.
    pub(crate) fn that_found(
        checks: &Checks,
        found: &[(Finding, u64)],
        counts: CheckCounts,
    ) -> Health {
        let results = found.iter();
        let results = results.map(|(finding, contrary)| Results::begin(*finding, *contrary));
        Health::begin(checks, results.collect(), counts)
    }

    fn begin(checks: &Checks, results: Box<[Results]>, counts: CheckCounts) -> Health {
        let health = Health {
            results,
            checks: Arc::clone(checks),
            worst: AtomicU8::default(),
            counts: [counts.checks, counts.fails, counts.unhealthy].map(AtomicU64::new),
        };
        health.sum_up();
        health
    }

    pub(crate) fn checks(&self) -> &Checks {
        &self.checks
    }

    /// The finding of each check, and the number of consecutive results that contradict it.
    pub(crate) fn found(&self) -> impl Iterator<Item = (&Check, Finding, u64)> {
        let both = self.checks.iter().zip(&self.results);
        both.map(|(check, results)| {
            let contrary = results.contrary.load(Ordering::Relaxed);
            (check, results.finding(), contrary)
        })
    }

    fn results_of(&self, place: &[u8]) -> Option<&Results> {
        let number = self.checks.iter().position(|check| check.place == place)?;
        self.results.get(number)
    }

    /// The worst finding of all checks.
    pub fn finding(&self) -> Finding {
        Finding::of(self.worst.load(Ordering::Relaxed))
    }

    /// The totals of the checks.
    pub fn counts(&self) -> CheckCounts {
        let [checks, fails, unhealthy] =
            [0, 1, 2].map(|place: usize| self.counts[place].load(Ordering::Relaxed));
        CheckCounts {
            checks,
            fails,
            unhealthy,
        }
    }

    /// Notes that the check with this number in the group has passed; `passes` consecutive passes
    /// make an unhealthy peer healthy.
    pub fn passed(&self, number: usize, passes: u64) -> HealthChange {
        self.count(0);
        let needed = match self.results.get(number).map(Results::finding) {
            Some(Finding::Checking) => 1,
            _ => passes,
        };
        self.note(number, Finding::Healthy, needed)
    }

    /// Notes that the check with this number in the group has failed; `fails` consecutive failures
    /// make a peer unhealthy.
    pub fn failed(&self, number: usize, fails: u64) -> HealthChange {
        self.count(0);
        self.count(1);
        let change = self.note(number, Finding::Unhealthy, fails);
        if change.finding.is_some() {
            self.count(2);
        }
        change
    }

    fn count(&self, place: usize) {
        self.counts[place].fetch_add(1, Ordering::Relaxed);
    }

    fn note(&self, number: usize, said: Finding, needed: u64) -> HealthChange {
        let Some(results) = self.results.get(number) else {
            return HealthChange::default();
        };
        if results.finding() == said {
            results.contrary.store(0, Ordering::Relaxed);
            return HealthChange::default();
        }
        let contrary = results.contrary.load(Ordering::Relaxed).saturating_add(1);
        if contrary < needed {
            results.contrary.store(contrary, Ordering::Relaxed);
            return HealthChange::default();
        }
        results.contrary.store(0, Ordering::Relaxed);
        results.finding.store(said as u8, Ordering::Relaxed);
        let before = self.finding();
        self.sum_up();
        HealthChange {
            finding: Some(said),
            recovered: before != Finding::Healthy && self.finding() == Finding::Healthy,
        }
    }

    /// Updates the worst finding.
    fn sum_up(&self) {
        let worst = self.results.iter().map(Results::finding).max();
        let worst = worst.unwrap_or_default();
        self.worst.store(worst as u8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(place: &'static str) -> Check {
        Check {
            place: place.into(),
            mandatory: false,
            persistent: false,
        }
    }

    fn mandatory(place: &'static str) -> Check {
        Check {
            mandatory: true,
            ..check(place)
        }
    }

    fn persistent(place: &'static str) -> Check {
        Check {
            persistent: true,
            ..mandatory(place)
        }
    }

    #[test]
    fn results_count_in_a_row() {
        let health = Health::new(&[check("a")].into());
        assert_eq!(health.finding(), Finding::Healthy);
        for _ in 0..2 {
            assert_eq!(health.failed(0, 3), HealthChange::default());
        }
        // A pass in between starts the count again.
        assert_eq!(health.passed(0, 2), HealthChange::default());
        assert_eq!(health.failed(0, 3), HealthChange::default());
        assert_eq!(health.failed(0, 3), HealthChange::default());
        let fell = health.failed(0, 3);
        assert_eq!(fell.finding, Some(Finding::Unhealthy));
        assert_eq!(health.finding(), Finding::Unhealthy);
        assert_eq!(health.passed(0, 2), HealthChange::default());
        assert_eq!(health.failed(0, 3), HealthChange::default());
        assert_eq!(health.passed(0, 2), HealthChange::default());
        let rose = health.passed(0, 2);
        assert_eq!(
            (rose.finding, rose.recovered),
            (Some(Finding::Healthy), true)
        );
        let counts = health.counts();
        assert_eq!((counts.checks, counts.fails, counts.unhealthy), (10, 6, 1));
    }

    #[test]
    fn the_worst_of_several_checks_counts() {
        let health = Health::new(&[check("a"), mandatory("b")].into());
        assert_eq!(health.finding(), Finding::Checking);
        assert!(health.failed(0, 1).finding.is_some());
        assert_eq!(health.finding(), Finding::Unhealthy);
        // A pass of the other check has no effect.
        let change = health.passed(1, 5);
        assert_eq!(
            (change.finding, change.recovered),
            (Some(Finding::Healthy), false)
        );
        assert_eq!(health.finding(), Finding::Unhealthy);
        assert!(health.passed(0, 1).recovered);
    }

    #[test]
    fn one_pass_ends_checking_and_as_many_fails_as_it_may_have() {
        let health = Health::new(&[mandatory("a")].into());
        assert_eq!(health.failed(0, 2), HealthChange::default());
        assert_eq!(health.finding(), Finding::Checking);
        assert!(health.passed(0, 3).recovered);
        let other = Health::new(&[mandatory("a")].into());
        other.failed(0, 2);
        assert_eq!(other.failed(0, 2).finding, Some(Finding::Unhealthy));
        assert_eq!(other.passed(0, 2), HealthChange::default());
        assert!(other.passed(0, 2).recovered);
    }

    #[test]
    fn what_a_reload_keeps() {
        let found = |before: Check, fails: u64, after: &[Check]| {
            let old = Health::new(&[before].into());
            match fails {
                0 => drop(old.passed(0, 1)),
                fails => drop(old.failed(0, fails)),
            }
            let new = Health::following(&after.into(), Some(&old));
            assert_eq!(new.counts(), old.counts());
            new.finding()
        };
        assert_eq!(found(check("a"), 1, &[check("a")]), Finding::Unhealthy);
        assert_eq!(found(check("a"), 1, &[check("b")]), Finding::Healthy);
        assert_eq!(found(check("a"), 1, &[]), Finding::Healthy);
        assert_eq!(
            found(mandatory("a"), 0, &[mandatory("a")]),
            Finding::Checking
        );
        assert_eq!(
            found(persistent("a"), 0, &[persistent("a")]),
            Finding::Healthy
        );
        assert_eq!(found(check("a"), 0, &[persistent("a")]), Finding::Healthy);
        assert_eq!(found(check("a"), 0, &[persistent("b")]), Finding::Checking);
        assert_eq!(
            found(persistent("a"), 1, &[persistent("a")]),
            Finding::Unhealthy
        );
        // The count of consecutive failures continues too.
        let old = Health::new(&[check("a")].into());
        old.failed(0, 2);
        let new = Health::following(&[check("a")].into(), Some(&old));
        assert!(new.failed(0, 2).finding.is_some());
        assert_eq!(old.finding(), Finding::Healthy);
    }
}
