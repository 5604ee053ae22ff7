//! Unpredictable numbers: SipHash of a counter, with a random key per thread.
//!
//! For identifiers that others must not guess. Not for cryptographic keys.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

/// The thread's next number. Takes no system call.
pub fn number() -> u64 {
    thread_local! {
        static KEY: RandomState = RandomState::new();
        static COUNTER: Cell<u64> = const { Cell::new(0) };
    }
    let count = COUNTER.get().wrapping_add(1);
    COUNTER.set(count);
    KEY.with(|key| key.hash_one(count))
}

/// A number below `limit`; 0 if `limit` is 0.
pub fn below(limit: usize) -> usize {
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    let number = number().checked_rem(limit).unwrap_or(0);
    usize::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_differ_and_stay_below_their_limit() {
        assert_ne!(number(), number());
        assert!((0..100).all(|_| below(3) < 3));
        assert_eq!(below(0), 0);
    }
}
