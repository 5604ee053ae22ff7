//! Sequence numbers, which go around (RFC 9293, section 3.4).

use std::cmp::Ordering;
use std::ops::{Add, AddAssign, Sub};

/// A place in one direction of a connection.
///
/// Of two numbers the one is before the other that is less than half of the space behind it. That
/// orders all that one connection has in flight (a window is 2^30 bytes at most), and is no order
/// of all numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sequence(pub u32);

impl Sequence {
    /// Bytes from `earlier` to here; 0 where `earlier` is not before.
    #[must_use]
    pub fn since(self, earlier: Sequence) -> u32 {
        if self > earlier {
            self.0.wrapping_sub(earlier.0)
        } else {
            0
        }
    }

    /// The earlier of two places.
    #[must_use]
    pub fn min(self, other: Sequence) -> Sequence {
        if other < self { other } else { self }
    }

    /// The later of two places.
    #[must_use]
    pub fn max(self, other: Sequence) -> Sequence {
        if other > self { other } else { self }
    }
}

impl PartialOrd for Sequence {
    fn partial_cmp(&self, other: &Sequence) -> Option<Ordering> {
        Some(self.0.wrapping_sub(other.0).cast_signed().cmp(&0))
    }
}

impl Add<u32> for Sequence {
    type Output = Sequence;

    fn add(self, count: u32) -> Sequence {
        Sequence(self.0.wrapping_add(count))
    }
}

impl Sub<u32> for Sequence {
    type Output = Sequence;

    fn sub(self, count: u32) -> Sequence {
        Sequence(self.0.wrapping_sub(count))
    }
}

impl AddAssign<u32> for Sequence {
    fn add_assign(&mut self, count: u32) {
        *self = *self + count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_around() {
        let last = Sequence(u32::MAX);
        assert_eq!(last + 1, Sequence(0));
        assert!(last < last + 1);
        assert_eq!((last + 10).since(last), 10);
        assert_eq!(last.since(last + 10), 0);
        assert_eq!(last.max(last + 3), Sequence(2));
        assert_eq!(last.min(last + 3), last);
    }
}
