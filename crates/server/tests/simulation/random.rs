//! Random numbers by a seed (SplitMix64), for what clients do.

use std::time::Duration;

pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is at least 1.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// True this often in a thousand.
    pub(crate) fn chance(&mut self, in_a_thousand: usize) -> bool {
        self.below(1000) < in_a_thousand
    }

    /// A duration up to `longest`.
    pub(crate) fn duration(&mut self, longest: Duration) -> Duration {
        Duration::from_micros(self.next() % (longest.as_micros() as u64 + 1))
    }

    /// Another generator, which goes its own way.
    pub(crate) fn fork(&mut self) -> Random {
        Random(self.next())
    }
}
