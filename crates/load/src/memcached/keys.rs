//! The choice of keys.

use super::Popularity;
use crate::schedule::Random;

/// Chooses keys, by number.
#[derive(Clone, Debug)]
pub(super) enum KeyChoice {
    Uniform(u64),
    Zipf(Zipf),
}

impl KeyChoice {
    pub(super) fn new(keys: u64, popularity: Popularity) -> KeyChoice {
        match popularity {
            Popularity::Uniform => KeyChoice::Uniform(keys),
            Popularity::Zipf(exponent) => KeyChoice::Zipf(Zipf::new(keys, exponent)),
        }
    }

    /// The number of the next key, starting from 0.
    pub(super) fn next(&self, random: &mut Random) -> u64 {
        match self {
            KeyChoice::Uniform(keys) => random.below(*keys),
            KeyChoice::Zipf(zipf) => zipf.next(random),
        }
    }
}

/// Zipf's distribution by rejection-inversion (Hörmann and Derflinger, 1996), which needs no table,
/// whatever the number of keys.
#[derive(Clone, Debug)]
pub(super) struct Zipf {
    keys: f64,
    exponent: f64,
    /// The integrals of the density up to the first key and up to the last key.
    first: f64,
    last: f64,
    /// A draw within this distance below a key is accepted without the rejection test.
    near: f64,
}

impl Zipf {
    fn new(keys: u64, exponent: f64) -> Zipf {
        let mut zipf = Zipf {
            keys: keys as f64,
            exponent,
            first: 0.0,
            last: 0.0,
            near: 0.0,
        };
        zipf.first = zipf.integral(1.5) - 1.0;
        zipf.last = zipf.integral(zipf.keys + 0.5);
        zipf.near = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    fn density(&self, x: f64) -> f64 {
        x.powf(-self.exponent)
    }

    fn integral(&self, x: f64) -> f64 {
        let rest = 1.0 - self.exponent;
        if rest.abs() < 1e-9 {
            x.ln()
        } else {
            (rest * x.ln()).exp_m1() / rest
        }
    }

    fn inverse(&self, y: f64) -> f64 {
        let rest = 1.0 - self.exponent;
        if rest.abs() < 1e-9 {
            y.exp()
        } else {
            ((y * rest).max(-1.0).ln_1p() / rest).exp()
        }
    }

    fn next(&self, random: &mut Random) -> u64 {
        loop {
            let y = self.last + random.fraction() * (self.first - self.last);
            let x = self.inverse(y);
            let key = x.round().clamp(1.0, self.keys);
            if key - x <= self.near || y >= self.integral(key + 0.5) - self.density(key) {
                return key as u64 - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the fraction of draws of each popular key with its expected value.
    #[test]
    fn keys_are_as_popular_as_their_rank_says() {
        const KEYS: u64 = 1000;
        const DRAWS: u32 = 200_000;
        for exponent in [0.8, 1.0, 1.3] {
            let choice = KeyChoice::new(KEYS, Popularity::Zipf(exponent));
            let mut random = Random::new(7);
            let mut counts = vec![0_u32; KEYS as usize];
            for _ in 0..DRAWS {
                counts[choice.next(&mut random) as usize] += 1;
            }
            let sum: f64 = (1..=KEYS).map(|n| (n as f64).powf(-exponent)).sum();
            for rank in [1_u32, 2, 3, 10, 100] {
                let expected = f64::from(rank).powf(-exponent) / sum;
                let share = f64::from(counts[rank as usize - 1]) / f64::from(DRAWS);
                // Four standard deviations.
                let wide = 4.0 * (expected / f64::from(DRAWS)).sqrt();
                let near = (share - expected).abs() < wide;
                assert!(near, "{exponent} {rank}: {share} {expected}");
            }
        }
    }

    #[test]
    fn all_keys_come_and_no_others() {
        for popularity in [Popularity::Uniform, Popularity::Zipf(0.9)] {
            let choice = KeyChoice::new(10, popularity);
            let mut random = Random::new(1);
            let mut seen = [false; 10];
            for _ in 0..10_000 {
                seen[choice.next(&mut random) as usize] = true;
            }
            assert_eq!(seen, [true; 10]);
        }
        let one = KeyChoice::new(1, Popularity::Zipf(1.0));
        assert_eq!(one.next(&mut Random::new(1)), 0);
    }
}
