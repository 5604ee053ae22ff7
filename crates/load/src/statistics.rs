//! Decides whether a difference is real or noise of the machine: medians of ratios, confidence
//! intervals, verdicts.
//!
//! Pure functions of numbers and a seed. [`compare`](crate::compare) does the measurements and
//! determines their order.
//!
//! # The choice of the confidence interval
//!
//! Two servers are measured alternately in rounds; each round yields one ratio. The median of the
//! ratios is reported, because a single disturbed round does not move it. Its interval is a
//! smoothed percentile bootstrap on logarithms: samples of as many ratios as there are rounds are
//! drawn repeatedly, their medians are sorted, and the outer 2.5 % on each side are cut off.
//!
//! *Smoothed* means that a drawn value may lie between two neighbours (the quantile function is
//! interpolated, the i-th of n at i / (n + 1)). Without smoothing, the bootstrap of a median can
//! yield only n values, and its true coverage jumps between values of n: 98 % with 7 rounds, 91 %
//! with 13, 96 % with 15. With smoothing, the interval is in effect that of Hettmansperger and
//! Sheather ("Confidence intervals based on interpolated order statistics", 1986), whose coverage
//! stays near 95 % for any distribution of the noise, because it is based on ranks. BCa and the
//! studentised bootstrap are not used: both need an estimate of the median's own error (by a
//! jackknife or a density), which is least reliable for the median of few rounds. Logarithms make
//! the interval of B / A the inverse of that of A / B.

use crate::schedule::Random;

/// The confidence level of the intervals.
pub const CONFIDENCE: f64 = 0.95;

/// Minimum number of rounds for an interval at this level: with five rounds, the probability that
/// all values lie on one side of the true median is 1/16.
pub const ROUNDS_MIN: usize = 6;

/// Number of bootstrap samples for an interval.
pub const RESAMPLES: usize = 4_000;

/// The median of measured ratios, with a confidence interval of level [`CONFIDENCE`] for the true
/// ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The lower end of the interval.
    pub low: f64,
    /// The median of the measured ratios.
    pub median: f64,
    /// The upper end of the interval.
    pub high: f64,
}

impl Interval {
    /// Whether the interval contains `ratio`.
    #[must_use]
    pub fn contains(&self, ratio: f64) -> bool {
        (self.low..=self.high).contains(&ratio)
    }

    /// Half of the interval's width, as a fraction of the median.
    #[must_use]
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / (2.0 * self.median)
    }
}

/// The conclusion about a metric of two servers, A / B.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// A has more.
    More,
    /// B has more.
    Less,
    /// The interval contains 1. Differences beyond its ends are excluded.
    NotSeen,
    /// There is a difference, but it is not larger than that between A and itself.
    WithinNoise,
    /// No difference was seen, but the load tester was the bottleneck and may hide one.
    Hidden,
    /// Too many requests failed, so the servers did not do the same work.
    Failing,
    /// There were fewer rounds than [`ROUNDS_MIN`].
    TooFew,
}

impl Verdict {
    /// Concludes from the interval of A / B and, if it was measured, that of A compared with
    /// itself. The caller determines [`Hidden`](Verdict::Hidden) and [`Failing`](Verdict::Failing).
    #[must_use]
    pub fn of(pair: Option<Interval>, itself: Option<Interval>) -> Verdict {
        let Some(pair) = pair else {
            return Verdict::TooFew;
        };
        if pair.contains(1.0) {
            return Verdict::NotSeen;
        }
        let nearest = pair.low.ln().abs().min(pair.high.ln().abs());
        let unsteady = itself.is_some_and(|itself| {
            let farthest = itself.low.ln().abs().max(itself.high.ln().abs());
            !itself.contains(1.0) && nearest <= farthest
        });
        if unsteady {
            Verdict::WithinNoise
        } else if pair.median > 1.0 {
            Verdict::More
        } else {
            Verdict::Less
        }
    }
}

/// The median, which is the mean of the middle two for an even number of values; `None` for none.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let lower = *sorted.get(sorted.len().checked_sub(1)? / 2)?;
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(f64::midpoint(lower, upper))
}

/// The median of `ratios`, all greater than 0, with its confidence interval; deterministic for a
/// given `seed`. `None` if there are fewer than [`ROUNDS_MIN`] ratios, or if one is not positive
/// and finite.
#[must_use]
pub fn interval(ratios: &[f64], seed: u64) -> Option<Interval> {
    interval_of(ratios, RESAMPLES, seed)
}

fn interval_of(ratios: &[f64], resamples: usize, seed: u64) -> Option<Interval> {
    let usable = |ratio: &f64| ratio.is_finite() && *ratio > 0.0;
    if ratios.len() < ROUNDS_MIN || !ratios.iter().all(usable) {
        return None;
    }
    let mut sorted: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let mut random = Random::new(seed);
    let mut drawn = vec![0; sorted.len()];
    let mut medians: Vec<f64> = (0..resamples)
        .map(|_| {
            drawn.fill_with(|| random.next());
            resampled_median(&sorted, &mut drawn)
        })
        .collect();
    medians.sort_unstable_by(f64::total_cmp);
    let cut = (medians.len() as f64 * (1.0 - CONFIDENCE) / 2.0) as usize;
    let low = *medians.get(cut)?;
    let high = *medians.iter().rev().nth(cut)?;
    Some(Interval {
        low: low.exp(),
        median: median(ratios)?,
        high: high.exp(),
    })
}

/// The median of one bootstrap sample. `drawn` has random numbers that stand for positions in
/// `sorted`, as fractions of the largest number. The mapping is monotonic, so the median of the
/// numbers is found first and then mapped to its value.
fn resampled_median(sorted: &[f64], drawn: &mut [u64]) -> f64 {
    let middle = drawn.len() / 2;
    let even = drawn.len().is_multiple_of(2);
    let (before, &mut upper, _) = drawn.select_nth_unstable(middle);
    let upper = quantile(sorted, upper);
    match before.iter().max() {
        Some(&lower) if even => f64::midpoint(quantile(sorted, lower), upper),
        _ => upper,
    }
}

/// The value at a position in `sorted`, which must not be empty. Of n values, the i-th is at
/// i / (n + 1). Positions before the first or after the last value yield that value.
fn quantile(sorted: &[f64], place: u64) -> f64 {
    let last = sorted.len() - 1;
    let fraction = place as f64 / u64::MAX as f64;
    let place = (fraction * (sorted.len() + 1) as f64 - 1.0).clamp(0.0, last as f64);
    let index = (place as usize).min(last);
    let (lower, upper) = (sorted[index], sorted[(index + 1).min(last)]);
    lower + (upper - lower) * (place - index as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fewer samples than in production: the ends are slightly less precise, and the test takes
    /// seconds.
    const RESAMPLES_TESTED: usize = 1_000;

    /// An approximately normally distributed number: the sum of twelve uniformly distributed ones.
    fn normal(random: &mut Random) -> f64 {
        (0..12).map(|_| random.fraction()).sum::<f64>() - 6.0
    }

    /// The simulated performance of a server in one turn: noise of a few percent and, with a
    /// probability of one in ten, a delay.
    fn slice(random: &mut Random, noise: f64) -> f64 {
        let held_up = match random.below(10) {
            0 => -(1.0 - random.fraction()).ln() * 4.0 * noise,
            _ => 0.0,
        };
        (normal(random) * noise - held_up).exp()
    }

    /// Simulated ratios of a server compared with itself. The machine drifts between and within
    /// rounds; the order of the turns is random.
    fn against_itself(random: &mut Random, rounds: usize) -> Vec<f64> {
        let noise = 0.01 + 0.07 * random.fraction();
        let ratio = |random: &mut Random| {
            let mood = 1.0 + 0.3 * random.fraction();
            let drift = 1.0 + 0.02 * random.fraction();
            let first = slice(random, noise) * mood;
            let second = slice(random, noise) * mood * drift;
            match random.below(2) {
                0 => first / second,
                _ => second / first,
            }
        };
        (0..rounds).map(|_| ratio(random)).collect()
    }

    /// The percentage of simulated comparisons of a server with itself whose interval contains 1.
    fn coverage(sets: usize, rounds: usize) -> f64 {
        let mut random = Random::new(rounds as u64);
        let covers = |set: usize| {
            let ratios = against_itself(&mut random, rounds);
            let interval = interval_of(&ratios, RESAMPLES_TESTED, set as u64).unwrap();
            interval.contains(1.0)
        };
        100.0 * (0..sets).map(covers).filter(|covers| *covers).count() as f64 / sets as f64
    }

    #[test]
    fn of_ten_thousand_servers_beside_themselves_95_percent_are_covered() {
        let covered = coverage(10_000, 15);
        assert!((93.0..=97.0).contains(&covered), "{covered} %");
    }

    #[test]
    fn coverage_does_not_depend_on_the_number_of_rounds() {
        for rounds in [6, 7, 10, 13, 20, 21, 40] {
            let covered = coverage(1_500, rounds);
            assert!(
                (93.0..=97.5).contains(&covered),
                "{covered} % in {rounds} rounds"
            );
        }
    }

    #[test]
    fn a_difference_of_five_percent_is_found() {
        let mut random = Random::new(3);
        let mut finds = |set: u64| {
            let ratio = |random: &mut Random| 1.05 * slice(random, 0.04) / slice(random, 0.04);
            let ratios: Vec<f64> = (0..40).map(|_| ratio(&mut random)).collect();
            Verdict::of(interval_of(&ratios, RESAMPLES_TESTED, set), None) == Verdict::More
        };
        let found = (0..200).filter(|set| finds(*set)).count();
        assert!(found >= 160, "{found} of 200");
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn an_interval_can_be_repeated_and_turned_round() {
        let ratios = [1.1, 0.9, 1.2, 1.05, 1.3, 0.99, 1.0, 1.07, 1.02];
        let turned: Vec<f64> = ratios.iter().map(|ratio| 1.0 / ratio).collect();
        let one = interval(&ratios, 1).unwrap();
        assert_eq!(Some(one), interval(&ratios, 1));
        assert!(one.low < one.median && one.median < one.high && one.median == 1.05);
        let other = interval(&turned, 1).unwrap();
        // The random samples differ, so the ends are close but not equal.
        assert!(
            (other.low * one.high - 1.0).abs() < 0.02,
            "{one:?} {other:?}"
        );
        assert!(
            (other.high * one.low - 1.0).abs() < 0.02,
            "{one:?} {other:?}"
        );
        assert!((one.half_width() - (one.high - one.low) / 2.1).abs() < 1e-12);
    }

    #[test]
    fn nothing_is_said_of_too_little() {
        assert_eq!(interval(&[1.0; ROUNDS_MIN - 1], 1), None);
        let mut ratios = [1.0; ROUNDS_MIN];
        let same = interval(&ratios, 1).unwrap();
        assert_eq!((same.low, same.high), (1.0, 1.0));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            ratios[2] = bad;
            assert_eq!(interval(&ratios, 1), None, "{bad}");
        }
    }

    #[test]
    fn verdicts() {
        let interval = |low: f64, high: f64| {
            Some(Interval {
                low,
                median: f64::midpoint(low, high),
                high,
            })
        };
        let quiet = interval(0.98, 1.02);
        for (pair, itself, verdict) in [
            (None, quiet, Verdict::TooFew),
            (interval(1.01, 1.1), quiet, Verdict::More),
            (interval(0.9, 0.99), None, Verdict::Less),
            (interval(0.99, 1.1), quiet, Verdict::NotSeen),
            // A differs from itself by up to 3 %: only larger differences count.
            (
                interval(1.02, 1.1),
                interval(1.01, 1.03),
                Verdict::WithinNoise,
            ),
            (
                interval(0.9, 0.98),
                interval(1.01, 1.03),
                Verdict::WithinNoise,
            ),
            (interval(1.04, 1.1), interval(1.01, 1.03), Verdict::More),
            (interval(0.9, 0.96), interval(0.97, 0.99), Verdict::Less),
        ] {
            assert_eq!(Verdict::of(pair, itself), verdict, "{pair:?} {itself:?}");
        }
    }
}
