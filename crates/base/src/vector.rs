//! Classifies the bytes of a block at once, into a mask: one bit for each byte, the first byte's
//! lowest.
//!
//! On x86-64 by SSE2, which every such processor has; elsewhere byte by byte.
#![allow(unsafe_code)]

/// Bytes of one block of the search for the end of a line.
pub const BLOCK: usize = 64;

/// A mask of the bytes that are at most `limit`.
#[inline]
#[must_use]
pub fn controls_at_most(block: &[u8; BLOCK], limit: u8) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { sse2::at_most(block, limit) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        plain::at_most(block, limit)
    }
}

/// A mask of the bytes that are neither letters nor digits nor dashes.
#[inline]
#[must_use]
pub fn not_letters_digits_dash(bytes: &[u8; 16]) -> u16 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { sse2::others(bytes) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        plain::others(bytes)
    }
}

#[cfg(target_arch = "x86_64")]
mod sse2 {
    use std::arch::x86_64::{
        __m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128,
        _mm_set1_epi8, _mm_sub_epi8,
    };

    use super::BLOCK;

    #[inline]
    #[target_feature(enable = "sse2")]
    fn load(bytes: &[u8; 16]) -> __m128i {
        // SAFETY: sixteen bytes are read, which need not be aligned.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn compare(bytes: __m128i, limit: u8) -> __m128i {
        _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(limit as i8)), bytes)
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    pub(super) fn at_most(block: &[u8; BLOCK], limit: u8) -> u64 {
        let (parts, _) = block.as_chunks::<16>();
        let mut marks = 0;
        for part in parts.iter().rev() {
            let part = _mm_movemask_epi8(compare(load(part), limit)) as u16;
            marks = marks << 16 | u64::from(part);
        }
        marks
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    pub(super) fn others(bytes: &[u8; 16]) -> u16 {
        let bytes = load(bytes);
        let folded = _mm_or_si128(bytes, _mm_set1_epi8(0x20));
        let letter = compare(_mm_sub_epi8(folded, _mm_set1_epi8(b'a' as i8)), 25);
        let digit = compare(_mm_sub_epi8(bytes, _mm_set1_epi8(b'0' as i8)), 9);
        let dash = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'-' as i8));
        let plain = _mm_or_si128(_mm_or_si128(letter, digit), dash);
        !(_mm_movemask_epi8(plain) as u16)
    }
}

#[cfg(any(test, not(target_arch = "x86_64")))]
mod plain {
    use super::BLOCK;

    fn marks<const N: usize>(bytes: &[u8; N], is_marked: impl Fn(u8) -> bool) -> u64 {
        let bytes = bytes.iter().rev();
        bytes.fold(0, |marks, byte| marks << 1 | u64::from(is_marked(*byte)))
    }

    pub(super) fn at_most(block: &[u8; BLOCK], limit: u8) -> u64 {
        marks(block, |byte| byte <= limit)
    }

    pub(super) fn others(bytes: &[u8; 16]) -> u16 {
        marks(bytes, |byte| !byte.is_ascii_alphanumeric() && byte != b'-') as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_plain_search() {
        for byte in 0..=u8::MAX {
            for other in [b'x', b'-', 0, 0x0d, 0x80, 0xff] {
                for place in 0..BLOCK {
                    let mut block = [other; BLOCK];
                    block[place] = byte;
                    let found = controls_at_most(&block, 13);
                    assert_eq!(found, plain::at_most(&block, 13), "{byte} among {other}");
                    assert_eq!(found >> place & 1, u64::from(byte <= 13));
                    let Some(part) = block.first_chunk() else {
                        panic!("a block has sixteen bytes");
                    };
                    let found = not_letters_digits_dash(part);
                    assert_eq!(found, plain::others(part), "{byte} among {other}");
                }
            }
        }
    }
}
