//! Byte scans that the parsers share. `memchr` does the vector work underneath.
//!
//! These functions find indices in a slice. They allocate nothing and never panic.

/// A set of byte values, made at compile time, looked up with one load.
#[derive(Clone, Copy)]
pub struct ByteSet([bool; 256]);

impl ByteSet {
    /// The set of the bytes in `members`.
    #[must_use]
    pub const fn of(members: &[u8]) -> ByteSet {
        let mut table = [false; 256];
        let mut index = 0;
        while index < members.len() {
            table[members[index] as usize] = true;
            index += 1;
        }
        ByteSet(table)
    }

    /// The bytes from `first` to `last`, both included.
    #[must_use]
    pub const fn range(first: u8, last: u8) -> ByteSet {
        let mut table = [false; 256];
        let mut index = first as usize;
        while index <= last as usize {
            table[index] = true;
            index += 1;
        }
        ByteSet(table)
    }

    /// The bytes that are in either set.
    #[must_use]
    pub const fn or(self, other: ByteSet) -> ByteSet {
        let mut table = self.0;
        let mut index = 0;
        while index < 256 {
            table[index] = table[index] || other.0[index];
            index += 1;
        }
        ByteSet(table)
    }

    /// The bytes that are not in this set.
    #[must_use]
    pub const fn not(self) -> ByteSet {
        let mut table = self.0;
        let mut index = 0;
        while index < 256 {
            table[index] = !table[index];
            index += 1;
        }
        ByteSet(table)
    }

    /// Whether `byte` is in the set.
    #[inline]
    #[must_use]
    pub const fn contains(&self, byte: u8) -> bool {
        self.0[byte as usize]
    }
}

/// `tchar` of RFC 9110 section 5.6.2: the bytes of methods and header names.
pub const TOKEN: ByteSet = ByteSet::of(b"!#$%&'*+-.^_`|~")
    .or(ByteSet::range(b'0', b'9'))
    .or(ByteSet::range(b'A', b'Z'))
    .or(ByteSet::range(b'a', b'z'));

/// The index of the first `needle`.
#[inline]
#[must_use]
pub fn find(bytes: &[u8], needle: u8) -> Option<usize> {
    memchr::memchr(needle, bytes)
}

/// The index of the last `needle`.
#[inline]
#[must_use]
pub fn find_last(bytes: &[u8], needle: u8) -> Option<usize> {
    memchr::memrchr(needle, bytes)
}

/// The index of the first byte that is `a` or `b`.
#[inline]
#[must_use]
pub fn find_either(bytes: &[u8], a: u8, b: u8) -> Option<usize> {
    memchr::memchr2(a, b, bytes)
}

/// The index of the first byte that is in `set`.
#[inline]
#[must_use]
pub fn find_in(bytes: &[u8], set: &ByteSet) -> Option<usize> {
    bytes.iter().position(|&byte| set.contains(byte))
}

/// Splits `bytes` at the first `separator`, which neither part contains; `None` without a
/// separator.
#[inline]
#[must_use]
pub fn split_once(bytes: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = find(bytes, separator)?;
    Some((bytes.get(..at)?, bytes.get(at + 1..)?))
}

/// A decimal number made of digits only; `None` when it is empty, holds another byte or does not
/// fit.
#[must_use]
pub fn decimal(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() {
        return None;
    }
    bytes.iter().try_fold(0_u64, |value, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_tchar_of_rfc_9110() {
        let allowed =
            b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        for byte in 0..=255_u8 {
            assert_eq!(TOKEN.contains(byte), allowed.contains(&byte), "{byte}");
        }
        assert!(!TOKEN.not().contains(b'a') && TOKEN.not().contains(b' '));
    }

    #[test]
    fn finds() {
        assert_eq!(find(b"a:b:c", b':'), Some(1));
        assert_eq!(find_last(b"a:b:c", b':'), Some(3));
        assert_eq!(find(b"", b':'), None);
        assert_eq!(find_either(b"ab\r\n", b'\n', b'\r'), Some(2));
        assert_eq!(find_in(b"GET /", &TOKEN.not()), Some(3));
        assert_eq!(split_once(b"k=v=w", b'='), Some((&b"k"[..], &b"v=w"[..])));
        assert_eq!(split_once(b"k", b'='), None);
    }

    #[test]
    fn decimal_accepts_digits_only_and_what_fits() {
        assert_eq!(decimal(b"0"), Some(0));
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(decimal(b"18446744073709551616"), None);
        for bad in [&b""[..], b"-1", b"+1", b" 1", b"1 ", b"1a", b"0x1"] {
            assert_eq!(decimal(bad), None);
        }
    }
}
