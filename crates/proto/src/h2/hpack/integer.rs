//! Integers with a prefix within a byte (RFC 7541, section 5.1), and the reader of a header block.

use super::Error;

/// Maximum number of bytes after the prefix: enough for 32 bits.
const CONTINUATION_MAX: usize = 5;

/// The rest of a header block.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    /// The next byte, without consuming it.
    #[inline]
    pub(super) fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// Reads an integer: the lowest `prefix` bits of the next byte, and continuation bytes.
    #[inline]
    pub(super) fn integer(&mut self, prefix: u32) -> Result<usize, Error> {
        let (&first, rest) = self.0.split_first().ok_or(Error::Truncated)?;
        self.0 = rest;
        let full = full(prefix);
        let value = first & full;
        if value < full {
            return Ok(usize::from(value));
        }
        self.continued(u64::from(full))
    }

    fn continued(&mut self, mut value: u64) -> Result<usize, Error> {
        for place in 0..CONTINUATION_MAX {
            let (&byte, rest) = self.0.split_first().ok_or(Error::IntegerTruncated)?;
            self.0 = rest;
            value += u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                let value = u32::try_from(value).map_err(|_| Error::IntegerTooLong)?;
                return Ok(value as usize);
            }
        }
        Err(Error::IntegerTooLong)
    }

    /// Reads the next `length` bytes.
    #[inline]
    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Error::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }
}

/// The largest number of `prefix` bits, 1 to 8.
#[inline]
fn full(prefix: u32) -> u8 {
    u8::MAX >> 8u32.saturating_sub(prefix)
}

/// Appends an integer with a prefix of `prefix` bits; the other bits of the first byte are `flags`.
#[inline]
pub(super) fn put(value: usize, prefix: u32, flags: u8, out: &mut Vec<u8>) {
    let full = full(prefix);
    if value < usize::from(full) {
        out.push(flags | value as u8);
        return;
    }
    out.push(flags | full);
    let mut rest = value - usize::from(full);
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(value: usize, prefix: u32, flags: u8) -> Vec<u8> {
        let mut out = Vec::new();
        put(value, prefix, flags, &mut out);
        out
    }

    #[test]
    fn the_examples_of_the_rfc() {
        // RFC 7541, appendix C.1.
        assert_eq!(encoded(10, 5, 0), [0b01010]);
        assert_eq!(encoded(1337, 5, 0), [0b11111, 0b1001_1010, 0b0000_1010]);
        assert_eq!(encoded(42, 8, 0), [0b0010_1010]);
    }

    #[test]
    fn every_prefix_at_its_boundaries() {
        for prefix in 1..=8 {
            let full = (1usize << prefix) - 1;
            let flags = !(full as u8);
            let around = [
                0,
                1,
                full,
                full + 127,
                full + 128,
                full + (1 << 14),
                full + (1 << 21),
            ];
            let largest = [u32::MAX as usize, full + (1 << 28)];
            let below = around.iter().map(|value| value.saturating_sub(1));
            for value in below.chain(around).chain(largest) {
                let bytes = encoded(value, prefix, flags);
                let expected = match value.checked_sub(full) {
                    None => 1,
                    Some(0) => 2,
                    Some(rest) => 2 + rest.ilog2() as usize / 7,
                };
                assert_eq!(bytes.len(), expected, "{value} in {prefix} bits");
                assert_eq!(bytes[0] & flags, flags);
                let mut reader = Reader(&bytes);
                assert_eq!(
                    reader.integer(prefix),
                    Ok(value),
                    "{value} in {prefix} bits"
                );
                assert!(reader.0.is_empty());
                for end in 0..bytes.len() {
                    let read = Reader(&bytes[..end]).integer(prefix);
                    let error = match end {
                        0 => Error::Truncated,
                        _ => Error::IntegerTruncated,
                    };
                    assert_eq!(read, Err(error), "{value} in {prefix} bits");
                }
            }
        }
    }

    #[test]
    fn numbers_that_are_too_long() {
        let read = |bytes: &[u8]| Reader(bytes).integer(7);
        // 127 + (2^32 - 128) is the largest number of 32 bits.
        assert_eq!(
            read(&[0x7f, 0x80, 0xff, 0xff, 0xff, 0x0f]),
            Ok(u32::MAX as usize)
        );
        assert_eq!(
            read(&[0x7f, 0x81, 0xff, 0xff, 0xff, 0x0f]),
            Err(Error::IntegerTooLong)
        );
        assert_eq!(
            read(&[0x7f, 0xff, 0xff, 0xff, 0xff, 0x7f]),
            Err(Error::IntegerTooLong)
        );
        // Leading zeros, which are allowed.
        assert_eq!(read(&[0x7f, 0x80, 0x80, 0x80, 0x80, 0]), Ok(127));
        assert_eq!(
            read(&[0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0]),
            Err(Error::IntegerTooLong)
        );
        assert_eq!(
            read(&[0x7f, 0x80, 0x80, 0x80, 0x80, 0x80]),
            Err(Error::IntegerTooLong)
        );
    }
}
