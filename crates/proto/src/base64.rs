//! Base64 (RFC 4648, sections 4 and 5) as nginx reads and writes it.
//!
//! Reading is lenient: the first `=` ends the text, whatever follows, and bits that are left over
//! count for nothing. Other characters outside of the alphabet, line ends among them, are errors.

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

/// Appends what the text stands for; false where it is no Base64. What was appended up to the
/// fault stays.
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
        // The first character of four only begins a byte; each other completes one.
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

/// Appends the bytes in the standard alphabet, padded with `=`.
pub fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    const CHARACTERS: &[u8; 64] =
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            out.push(match index <= group.len() {
                // invariant: the mask leaves an index below 64
                true => CHARACTERS[(bits >> (18 - 6 * index) & 63) as usize],
                false => b'=',
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

    /// By `ngx_decode_base64`.
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
