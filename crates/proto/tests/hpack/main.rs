//! Header compression beside another implementation, by seed. `SEED=n` runs one alone, `SEEDS=n` so many, and `FOR=seconds` new
//! ones for so long, of the test that is ignored.

mod beside;

use std::time::{Duration, Instant};

const SEEDS: u64 = 400;

/// Random bytes by a seed (SplitMix64).
fn choices(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let length = next() % 600;
    (0..length).map(|_| next() as u8).collect()
}

fn run(seed: u64) {
    let compared = std::panic::catch_unwind(|| beside::compare(&choices(seed)));
    assert!(compared.is_ok(), "SEED={seed}");
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

#[test]
fn both_implementations_agree() {
    match variable("SEED") {
        Some(seed) => run(seed),
        None => (0..variable("SEEDS").unwrap_or(SEEDS)).for_each(run),
    }
}

#[test]
#[ignore = "runs for FOR seconds"]
fn both_implementations_agree_for_long() {
    let end = Instant::now() + Duration::from_secs(variable("FOR").unwrap_or(60));
    let mut seed = variable("SEED").unwrap_or(1 << 32);
    while Instant::now() < end {
        run(seed);
        seed += 1;
    }
    println!("up to SEED={seed}");
}
