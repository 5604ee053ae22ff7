//! Sequence numbers, which wrap around (RFC 9293, section 3.4).

use std::cmp::Ordering;
use std::ops::{Add, AddAssign, Sub};

/// The sequence number of a byte in one direction of a connection.
///
/// A number is less than another if it precedes the other by less than 2^31. This orders all
/// numbers that a connection uses at a time, since windows are at most 2^30 bytes. It is not a
/// total order: the relation is not transitive over the whole range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sequence(pub u32);

impl Sequence {
    /// The distance from `earlier` to this number; 0 if `earlier` is not less.
    #[must_use]
    pub fn since(self, earlier: Sequence) -> u32 {
        if self > earlier {
            self.0.wrapping_sub(earlier.0)
        } else {
            0
        }
    }

    /// The lesser of two numbers.
    #[must_use]
    pub fn min(self, other: Sequence) -> Sequence {
        if other < self { other } else { self }
    }

    /// The greater of two numbers.
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
