//! What must be true whatever is done to a stack, for so many seeds; the fuzz target `netstack`
//! finds others.

mod anything;

/// Steps of one seed.
const STEPS: usize = 300;

#[test]
fn whatever_is_done_nothing_breaks() {
    let one: Option<u64> = std::env::var("SEED").ok().map(|seed| seed.parse().unwrap());
    let seeds = one.map_or(0..1000, |seed| seed..seed + 1);
    for seed in seeds {
        let mut state = seed;
        let data: Vec<u8> = (0..2 + 6 * STEPS)
            .map(|_| {
                // SplitMix64.
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut mixed = state;
                mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                (mixed ^ (mixed >> 31)) as u8
            })
            .collect();
        let ran = std::panic::catch_unwind(|| anything::run(&data));
        assert!(ran.is_ok(), "SEED={seed}");
    }
}
