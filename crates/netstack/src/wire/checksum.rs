//! The Internet checksum (RFC 1071), and its incremental update (RFC 1624).

/// A ones' complement sum of 16-bit words, folded but not inverted.
///
/// The sum of some bytes assumes that they start at an even offset of the checksummed data.
/// [`followed_by`](Sum::followed_by) corrects the sum for an odd offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u16);

impl Sum {
    /// The sum of `bytes`, padded with a zero byte if their number is odd.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Sum {
        // The sum does not depend on the byte order until the end (RFC 1071, section 2 B), and
        // adding 32-bit words adds two 16-bit words at once (section 2 C).
        let (words, rest) = bytes.as_chunks::<4>();
        let mut total: u64 = words
            .iter()
            .map(|word| u64::from(u32::from_ne_bytes(*word)))
            .sum();
        total += u64::from(match *rest {
            [first, second, third] => u32::from_ne_bytes([first, second, third, 0]),
            [first, second] => u32::from_ne_bytes([first, second, 0, 0]),
            [first] => u32::from_ne_bytes([first, 0, 0, 0]),
            _ => 0,
        });
        Sum(u16::from_be_bytes(folded(total).to_ne_bytes()))
    }

    /// The sum of 16-bit and 32-bit big-endian words, given their ordinary total.
    #[must_use]
    pub fn of_total(total: u64) -> Sum {
        Sum(folded(total))
    }

    /// The sum of one 16-bit word.
    #[must_use]
    pub fn word(word: u16) -> Sum {
        Sum(word)
    }

    /// The sum of two parts, each at an even offset.
    #[must_use]
    pub fn plus(self, other: Sum) -> Sum {
        let (sum, carry) = self.0.overflowing_add(other.0);
        Sum(sum + u16::from(carry))
    }

    /// The sum without one of its parts.
    #[must_use]
    pub fn minus(self, part: Sum) -> Sum {
        match self.plus(Sum(!part.0)) {
            // Both 0 and 0xffff represent zero, and the sum of no bytes is 0.
            Sum(0xffff) => Sum(0),
            left => left,
        }
    }

    /// The sum of the same bytes at an odd offset.
    #[must_use]
    pub fn from_odd_place(self) -> Sum {
        Sum(self.0.swap_bytes())
    }

    /// The sum of these `length` bytes followed by the bytes of `other`.
    #[must_use]
    pub fn followed_by(self, length: usize, other: Sum) -> Sum {
        if length.is_multiple_of(2) {
            self.plus(other)
        } else {
            self.plus(other.from_odd_place())
        }
    }

    /// The value for a header's checksum field.
    #[must_use]
    pub fn checksum(self) -> u16 {
        !self.0
    }

    /// Whether this is the sum of data that include their own correct checksum.
    #[must_use]
    pub fn is_right(self) -> bool {
        self.0 == 0xffff
    }
}

/// Folds a total into 16 bits: in ones' complement, carries are added to the lowest bit.
fn folded(total: u64) -> u16 {
    let total = (total >> 32) + (total & 0xffff_ffff);
    let total = (total >> 16) + (total & 0xffff);
    let total = (total >> 16) + (total & 0xffff);
    let total = (total >> 16) + (total & 0xffff);
    total as u16
}

/// The new value of `checksum` after one of the words that it covers has changed from `old` to
/// `new` (RFC 1624, equation 3).
#[must_use]
pub fn updated(checksum: u16, old: u16, new: u16) -> u16 {
    Sum(!checksum).plus(Sum(!old)).plus(Sum(new)).checksum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1071 word by word, as its section 4.1 has it.
    fn plain(bytes: &[u8]) -> u16 {
        let mut sum: u32 = 0;
        for pair in bytes.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            sum += u32::from(pair[0]) << 8 | u32::from(low);
        }
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|n| (n * 151 + 7) as u8).collect()
    }

    #[test]
    fn the_example_of_rfc_1071() {
        let example = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::of(&example), Sum(0xddf2));
    }

    #[test]
    fn every_length_and_beginning_sums_as_word_by_word() {
        let all = bytes(200);
        for begin in 0..8 {
            for end in begin..all.len() {
                let part = &all[begin..end];
                assert_eq!(Sum::of(part).0, plain(part), "{begin}..{end}");
            }
        }
        assert_eq!(Sum::of(&[0xff; 65_536]).0, plain(&[0xff; 65_536]));
    }

    #[test]
    fn parts_make_the_sum_of_the_whole() {
        let all = bytes(101);
        for cut in 0..all.len() {
            let (head, tail) = all.split_at(cut);
            let whole = Sum::of(head).followed_by(cut, Sum::of(tail));
            assert_eq!(whole, Sum::of(&all), "cut at {cut}");
            if cut % 2 == 0 {
                assert_eq!(whole.minus(Sum::of(head)), Sum::of(tail), "cut at {cut}");
            }
        }
    }

    #[test]
    fn a_changed_word_changes_the_checksum_as_anew() {
        let mut all = bytes(40);
        let before = Sum::of(&all).checksum();
        for (old, new) in [(0, 1), (0xffff, 0), (0x1234, 0xfedc), (7, 7)] {
            let mut old_all = all.clone();
            old_all[10..12].copy_from_slice(&u16::to_be_bytes(old));
            all[10..12].copy_from_slice(&u16::to_be_bytes(new));
            let from = Sum::of(&old_all).checksum();
            assert_eq!(updated(from, old, new), Sum::of(&all).checksum());
        }
        assert_ne!(before, Sum::of(&all).checksum());
    }
}
