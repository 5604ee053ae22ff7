//! Is one better than the other, or was it the machine? Medians of ratios, intervals around them,
//! verdicts.
//!
//! Pure: numbers and a seed go in. What is measured, and in which order, is of
//! [`compare`](crate::compare).
//!
//! # The interval and why it is this one
//!
//! Two servers are measured side by side in rounds; each round gives one ratio. The ratios' median
//! is what is reported: one round in which the machine was elsewhere does not move it. Its interval
//! is a smoothed percentile bootstrap, on logarithms: as many ratios as there are rounds are drawn
//! again and again, their medians sorted, the outer 2.5 % on either side cut off.
//!
//! *Smoothed* means that a drawn value may lie between two neighbours (the quantile function is
//! interpolated, the i-th of n at i / (n + 1)). Without that the bootstrap of a median knows n
//! values only, and its true coverage jumps from one n to the next: 98 % with 7 rounds, 91 % with
//! 13, 96 % with 15. With it the interval is in effect that of Hettmansperger and Sheather
//! ("Confidence intervals based on interpolated order statistics", 1986), which keeps near 95 %
//! whatever the noise is like, because it rests on ranks. BCa and the studentised bootstrap were
//! left aside: both correct by an estimate of the median's own error (a jackknife, a density),
//! which is at its worst for a median of few rounds. Logarithms make the interval of B / A the
//! inverse of that of A / B.

use crate::schedule::Random;

/// How sure an interval is, 1 being certain.
pub const CONFIDENCE: f64 = 0.95;

/// Rounds below which there is no interval of that confidence: with five, all values lie on one
/// side of the true median once in 16 times.
pub const ROUNDS_MIN: usize = 6;

/// How often is drawn for one interval.
pub const RESAMPLES: usize = 4_000;

/// The median of some ratios and where the true one lies, with a probability of [`CONFIDENCE`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The lower end of the interval.
    pub low: f64,
    /// The median of what was measured.
    pub median: f64,
    /// The upper end of the interval.
    pub high: f64,
}

impl Interval {
    /// Whether `ratio` lies in it.
    #[must_use]
    pub fn contains(&self, ratio: f64) -> bool {
        (self.low..=self.high).contains(&ratio)
    }

    /// Half of its width, as a share of the median.
    #[must_use]
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / (2.0 * self.median)
    }
}

/// What an interval allows to say of two servers, A / B.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// A has more of it.
    More,
    /// B has more of it.
    Less,
    /// The interval contains 1. A difference beyond its ends is excluded.
    NotSeen,
    /// There is a difference, but no larger one than A showed beside itself.
    Unsteady,
    /// Nothing was seen, but the tool was the limit: a difference may be hidden behind it.
    Hidden,
    /// Too many requests failed: the two did not do the same.
    Failing,
    /// Fewer rounds than [`ROUNDS_MIN`].
    TooFew,
}

impl Verdict {
    /// From the interval of A / B, and that of A beside itself where that was measured.
    /// [`Hidden`](Verdict::Hidden) and [`Failing`](Verdict::Failing) are for those who know more.
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
            Verdict::Unsteady
        } else if pair.median > 1.0 {
            Verdict::More
        } else {
            Verdict::Less
        }
    }
}

/// The median; the mean of the middle two where their number is even. `None` of nothing.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let lower = *sorted.get(sorted.len().checked_sub(1)? / 2)?;
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(f64::midpoint(lower, upper))
}

/// The median of `ratios`, all greater than 0, with its interval; the same for the same `seed`.
/// `None` where they are fewer than [`ROUNDS_MIN`] or one is no such number.
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

/// The median of the values that `drawn` stands for: places in `sorted`, of the same length, as
/// shares of the largest number. A larger number stands for no smaller value, so that the median of
/// the places is found first.
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

/// The value at a place of `sorted`, which is not empty. The i-th of n lies at i / (n + 1); what
/// lies beyond the first or the last is that one.
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

    /// Fewer than in earnest; the ends are then a little less certain, and the test takes seconds.
    const RESAMPLES_TESTED: usize = 1_000;

    /// A normally distributed number, nearly: the sum of twelve even ones.
    fn normal(random: &mut Random) -> f64 {
        (0..12).map(|_| random.fraction()).sum::<f64>() - 6.0
    }

    /// What a server might do in one slice of a round: noise of a few percent, and once in ten
    /// times something that holds it up.
    fn slice(random: &mut Random, noise: f64) -> f64 {
        let held_up = match random.below(10) {
            0 => -(1.0 - random.fraction()).ln() * 4.0 * noise,
            _ => 0.0,
        };
        (normal(random) * noise - held_up).exp()
    }

    /// The ratios of a server beside itself. The machine drifts from round to round and within
    /// each; the order is random.
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

    /// In how many of 100 synthetic runs of a server beside itself the interval contains 1.
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
        // The draws differ, so that the ends are near each other but not the same.
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
            // A differs from itself by up to 3 %: no less than that counts.
            (interval(1.02, 1.1), interval(1.01, 1.03), Verdict::Unsteady),
            (interval(0.9, 0.98), interval(1.01, 1.03), Verdict::Unsteady),
            (interval(1.04, 1.1), interval(1.01, 1.03), Verdict::More),
            (interval(0.9, 0.96), interval(0.97, 0.99), Verdict::Less),
        ] {
            assert_eq!(Verdict::of(pair, itself), verdict, "{pair:?} {itself:?}");
        }
    }
}
