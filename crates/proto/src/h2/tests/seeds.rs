//! Tests by seed: `SEED=n` runs one seed, `SEEDS=n` sets the number of seeds, and `FOR=seconds`
//! sets how long the ignored tests run new seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// A test of random bytes, at most `length_max` of them.
pub(super) struct Seeded {
    pub(super) length_max: u64,
    pub(super) run: fn(&[u8]),
}

impl Seeded {
    /// Runs the given number of seeds.
    pub(super) fn each(&self, seeds: u64) {
        match variable("SEED") {
            Some(seed) => self.one(seed),
            None => (0..variable("SEEDS").unwrap_or(seeds)).for_each(|seed| self.one(seed)),
        }
    }

    /// Runs new seeds until the time has elapsed.
    pub(super) fn for_long(&self) {
        let end = Instant::now() + Duration::from_secs(variable("FOR").unwrap_or(60));
        let mut seed = variable("SEED").unwrap_or(1 << 32);
        while Instant::now() < end {
            self.one(seed);
            seed += 1;
        }
        println!("up to SEED={seed}");
    }

    fn one(&self, seed: u64) {
        let bytes = random_bytes(seed, self.length_max);
        let ran = catch_unwind(AssertUnwindSafe(|| (self.run)(&bytes)));
        assert!(ran.is_ok(), "SEED={seed}");
    }
}

/// Random bytes from a seed (SplitMix64).
fn random_bytes(seed: u64, length_max: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let length = next() % length_max;
    (0..length).map(|_| next() as u8).collect()
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}
