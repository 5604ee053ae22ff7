//! Base64 (RFC 4648, sections 4 and 5) as encoded and decoded by nginx.
//!
//! [`decode`] is lenient: the first `=` ends the text, whatever follows, and surplus bits are
//! ignored. Other characters outside of the alphabet, including line breaks, are errors.

use crate::byte_table::ByteTable;

/// The 64 characters in the order of their values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alphabet {
    /// With `+` and `/` (section 4).
    Standard,
    /// With `-` and `_`, for URLs and file names (section 5).
    Url,
}

impl Alphabet {
    fn value(self, byte: u8) -> Option<u8> {
        Some(match (byte, self) {
            (b'A'..=b'Z', _) => byte - b'A',
            (b'a'..=b'z', _) => byte - b'a' + 26,
            (b'0'..=b'9', _) => byte - b'0' + 52,
            (b'+', Alphabet::Standard) | (b'-', Alphabet::Url) => 62,
            (b'/', Alphabet::Standard) | (b'_', Alphabet::Url) => 63,
            _ => return None,
        })
    }
}

/// Decodes a text and appends the result; false if it is not valid Base64. Bytes decoded before the
/// error remain in `out`.
pub fn decode(encoded: &[u8], alphabet: Alphabet, out: &mut Vec<u8>) -> bool {
    let length = encoded
        .iter()
        .position(|byte| *byte == b'=')
        .unwrap_or(encoded.len());
    let mut bits = 0_u32;
    for (at, byte) in encoded.iter().take(length).enumerate() {
        let Some(value) = alphabet.value(*byte) else {
            return false;
        };
        bits = bits << 6 | u32::from(value);
        // The first character of a group of four completes no byte; each of the others completes
        // one.
        let ready = match at % 4 {
            0 => continue,
            1 => bits >> 4,
            2 => bits >> 2,
            _ => bits,
        };
        out.push(ready as u8);
    }
    length % 4 != 1
}

/// Marks characters outside of the alphabet in [`STANDARD`].
const NO_VALUE: u8 = 0xff;

/// The values of the characters of the standard alphabet.
#[expect(
    clippy::indexing_slicing,
    reason = "the compiler evaluates it, and refuses what lies outside"
)]
static STANDARD: ByteTable<u8> = {
    let mut values = [NO_VALUE; 256];
    let mut value = 0;
    while value < 64 {
        values[CHARACTERS[value] as usize] = value as u8;
        value += 1;
    }
    ByteTable::new(values)
};

const CHARACTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text is not valid Base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotBase64;

/// Decodes text in the standard alphabet incrementally, split at any place. Each group of four
/// characters may be padded, so that several concatenated texts are accepted. Unlike [`decode`], it
/// requires padding.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    /// The bits of the incomplete group's characters.
    bits: u32,
    /// Number of characters in the incomplete group, including padding.
    count: u8,
    /// Number of padding characters in the incomplete group.
    padding: u8,
}

impl Decoder {
    /// Decodes the next part of the text, and appends the completed bytes.
    ///
    /// # Errors
    /// An invalid character; the decoder must not be used any further.
    pub fn decode(&mut self, text: &[u8], out: &mut Vec<u8>) -> Result<(), NotBase64> {
        out.reserve(text.len() / 4 * 3 + 3);
        let mut rest = text;
        while !rest.is_empty() {
            if self.count == 0 {
                rest = decode_groups(rest, out);
            }
            let Some((byte, behind)) = rest.split_first() else {
                break;
            };
            self.take(*byte, out)?;
            rest = behind;
        }
        Ok(())
    }

    /// Ends the text.
    ///
    /// # Errors
    /// The last group is incomplete.
    pub fn finish(&self) -> Result<(), NotBase64> {
        if self.count == 0 {
            Ok(())
        } else {
            Err(NotBase64)
        }
    }

    fn take(&mut self, byte: u8, out: &mut Vec<u8>) -> Result<(), NotBase64> {
        let value = STANDARD.of(byte);
        if byte == b'=' && self.count >= 2 {
            self.padding += 1;
        } else if value == NO_VALUE || self.padding > 0 {
            return Err(NotBase64);
        }
        self.bits = self.bits << 6 | u32::from(value & 0x3f);
        self.count += 1;
        if self.count == 4 {
            let [_, bytes @ ..] = self.bits.to_be_bytes();
            out.extend(bytes.iter().take(3 - usize::from(self.padding)));
            *self = Decoder::default();
        }
        Ok(())
    }
}

/// Decodes complete groups without padding, and returns the rest of the text.
fn decode_groups<'a>(text: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    let (groups, _) = text.as_chunks::<4>();
    let mut read = 0;
    for group in groups {
        let values = group.map(|byte| STANDARD.of(byte));
        // Valid values are below 64, so that they differ from the mark.
        if values.contains(&NO_VALUE) {
            break;
        }
        let bits = values
            .iter()
            .fold(0, |bits, value| bits << 6 | u32::from(*value));
        let [_, bytes @ ..] = u32::to_be_bytes(bits);
        out.extend_from_slice(&bytes);
        read += 4;
    }
    text.get(read..).unwrap_or_default()
}

/// Appends the bytes encoded in the standard alphabet, padded with `=`.
#[expect(clippy::indexing_slicing, reason = "six bits are a character each")]
pub fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            out.push(if index <= group.len() {
                CHARACTERS[(bits >> (18 - 6 * index) & 63) as usize]
            } else {
                b'='
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str, alphabet: Alphabet) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        decode(text.as_bytes(), alphabet, &mut out).then_some(out)
    }

    /// RFC 4648, section 10.
    #[test]
    fn the_test_vectors_of_the_rfc() {
        for (plain, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            let mut out = Vec::new();
            encode(plain.as_bytes(), &mut out);
            assert_eq!(out, text.as_bytes());
            assert_eq!(
                decoded(text, Alphabet::Standard).as_deref(),
                Some(plain.as_bytes())
            );
        }
    }

    /// Decodes a text in parts of this size.
    fn in_parts(text: &[u8], size: usize) -> Result<Vec<u8>, NotBase64> {
        let (mut decoder, mut out) = (Decoder::default(), Vec::new());
        for part in text.chunks(size) {
            decoder.decode(part, &mut out)?;
        }
        decoder.finish()?;
        Ok(out)
    }

    #[test]
    fn a_text_may_come_in_any_parts_and_be_padded_in_the_middle() {
        let (mut plain, mut text) = (Vec::new(), Vec::new());
        for length in 0..40_u8 {
            let piece: Vec<u8> = (0..length).map(|at| at.wrapping_mul(73) ^ length).collect();
            encode(&piece, &mut text);
            plain.extend_from_slice(&piece);
        }
        assert!(
            text.windows(2).any(|pair| pair == b"=="),
            "it is padded within"
        );
        for size in 1..=text.len() {
            assert_eq!(
                in_parts(&text, size).as_deref(),
                Ok(&*plain),
                "parts of {size}"
            );
        }
    }

    #[test]
    fn what_is_no_text_is_found_in_any_parts() {
        for wrong in [
            &b"YQ"[..],
            b"YQ=",
            b"Y",
            b"=",
            b"====",
            b"Y===",
            b"YQ==YQ",
            b"a b=",
            b"YQ=a",
            b"YWJj\n",
            b"YWJjYW-j",
            b"YWJjYW\xffj",
            b"YWJj=",
            b"YQ===",
        ] {
            for size in 1..=wrong.len() {
                assert!(
                    in_parts(wrong, size).is_err(),
                    "{} by {size}",
                    wrong.escape_ascii()
                );
            }
        }
        assert_eq!(in_parts(b"", 1), Ok(Vec::new()));
    }

    /// Expected values from `ngx_decode_base64`.
    #[test]
    fn reading_is_lenient_at_the_end_only() {
        let standard = |text| decoded(text, Alphabet::Standard);
        assert_eq!(standard("Zm8").as_deref(), Some(&b"fo"[..])); // no padding
        assert_eq!(standard("Zm8=junk!").as_deref(), Some(&b"fo"[..]));
        assert_eq!(standard("Zn8").as_deref(), Some(&b"f\x7f"[..])); // bits left over
        for wrong in ["Z", "Zm9vY", "Zm 8", "Zm9v\n", "Zm-8"] {
            assert_eq!(standard(wrong), None, "{wrong:?}");
        }
        assert_eq!(
            decoded("-_8", Alphabet::Url).as_deref(),
            Some(&b"\xfb\xff"[..])
        );
        assert_eq!(decoded("+/8", Alphabet::Url), None);
    }
}
