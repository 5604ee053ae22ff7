//! Hash tables whose keys peers may choose.
//!
//! foldhash is several times faster than the standard library's SipHash on short keys. Its own seed
//! comes from addresses and times, which a patient peer might guess; here the seed comes from the
//! operating system, once a process, so that no client can prepare keys that collide.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

/// A hash map keyed by a secret of this process.
pub type Map<K, V> = HashMap<K, V, State>;

/// A hash set keyed by a secret of this process.
pub type Set<K> = HashSet<K, State>;

/// Builds the hashers of [`Map`] and [`Set`]. Zero-sized.
#[derive(Clone, Copy, Debug, Default)]
pub struct State;

impl BuildHasher for State {
    type Hasher = FoldHasher<'static>;

    #[inline]
    fn build_hasher(&self) -> Self::Hasher {
        let seed = seed();
        FoldHasher::with_seed(seed.own, &seed.shared)
    }
}

/// The hash of `bytes` under this process's secret.
///
/// Good for choosing a shard or a bucket. Not stable from one process to the next, so never store
/// it.
#[must_use]
pub fn of(bytes: &[u8]) -> u64 {
    State.hash_one(bytes)
}

struct Seed {
    own: u64,
    shared: SharedSeed,
}

fn seed() -> &'static Seed {
    static SEED: OnceLock<Seed> = OnceLock::new();
    SEED.get_or_init(|| {
        // `RandomState` is the standard library's way to the operating system's entropy.
        let entropy = RandomState::new();
        Seed {
            own: entropy.hash_one(1_u8),
            shared: SharedSeed::from_u64(entropy.hash_one(2_u8)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_finds_what_was_put() {
        let mut map: Map<String, u32> = Map::default();
        for number in 0..1000_u32 {
            map.insert(number.to_string(), number);
        }
        assert_eq!(map.get("999"), Some(&999));
        assert_eq!(map.get("1000"), None);
    }

    #[test]
    fn hash_is_stable_within_the_process_and_spreads() {
        assert_eq!(of(b"key"), of(b"key"));
        let distinct: Set<u64> = (0..1000_u32).map(|n| of(&n.to_le_bytes())).collect();
        assert_eq!(distinct.len(), 1000);
    }
}
