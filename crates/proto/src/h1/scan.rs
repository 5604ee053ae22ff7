//! Searches for the ends of header names and values.

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;
/// Values up to this length are searched in words of eight bytes; for longer ones vector
/// instructions are faster.
const SHORT: usize = 64;

/// The offset of the first byte at or after `from` that is not a letter, a digit or a dash.
#[inline]
pub(super) fn name_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    let (words, rest) = bytes.get(from..)?.as_chunks::<8>();
    for word in words {
        let stops = !plain_marks(u64::from_le_bytes(*word)) & HIGH;
        if stops != 0 {
            return Some(at + (stops.trailing_zeros() / 8) as usize);
        }
        at += 8;
    }
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
    rest.iter()
        .position(|byte| !plain(byte))
        .map(|offset| at + offset)
}

/// Sets the high bit of each byte that is a letter, a digit or a dash; the other bits are
/// arbitrary.
#[inline]
fn plain_marks(word: u64) -> u64 {
    // With the high bits cleared, adding 0x80 - n carries into a byte's high bit where the byte is
    // n or more, and never into the next byte.
    let low = word & !HIGH;
    let folded = low | (LOW * 0x20);
    let at_least = |bytes: u64, limit: u8| bytes + LOW * u64::from(0x80 - limit);
    let letter = at_least(folded, b'a') & !at_least(folded, b'z' + 1);
    let digit = at_least(low, b'0') & !at_least(low, b'9' + 1);
    let dash = at_least(low, b'-') & !at_least(low, b'-' + 1);
    (letter | digit | dash) & !word
}

/// The offset of the first CR, LF or zero byte at or after `from`.
#[inline]
pub(super) fn line_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    let (words, _) = bytes.get(from..)?.as_chunks::<8>();
    for word in words.iter().take(SHORT / 8) {
        let word = u64::from_le_bytes(*word);
        // Sets the high bit of each byte below 14. A byte above a marked one may be marked by
        // mistake, so that only the lowest mark is reliable; if it is a tab or another control
        // byte, the marked bytes are examined one by one.
        let mut marks = word.wrapping_sub(LOW * 14) & !word & HIGH;
        if marks != 0 {
            loop {
                let offset = (marks.trailing_zeros() / 8) as usize;
                let byte = (word >> (offset * 8)) as u8;
                if is_end(byte) {
                    return Some(at + offset);
                }
                marks &= marks - 1;
                if marks == 0 {
                    break;
                }
            }
        }
        at += 8;
    }
    let rest = bytes.get(at..)?;
    if rest.len() < 8 {
        rest.iter()
            .position(|&byte| is_end(byte))
            .map(|offset| at + offset)
    } else {
        memchr::memchr3(b'\r', b'\n', 0, rest).map(|offset| at + offset)
    }
}

#[inline]
fn is_end(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n' | 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_plain_search() {
        let mut bytes = Vec::new();
        let mut seed = 1_u32;
        for length in 0..200 {
            bytes.clear();
            for _ in 0..length {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let byte = (seed >> 24) as u8;
                bytes.push(if byte < 250 {
                    byte | 1 << (byte % 4)
                } else {
                    byte % 16
                });
            }
            for from in 0..=length {
                let expected = bytes[from..]
                    .iter()
                    .position(|&byte| is_end(byte))
                    .map(|offset| from + offset);
                assert_eq!(line_end(&bytes, from), expected, "{bytes:?} from {from}");
            }
            assert_eq!(line_end(&bytes, length + 1), None);
        }
        for byte in 0..=255_u8 {
            let plain = byte.is_ascii_alphanumeric() || byte == b'-';
            for at in 0..20 {
                let mut bytes = [b'x'; 20];
                bytes[at] = byte;
                assert_eq!(
                    name_end(&bytes, 0),
                    (!plain).then_some(at),
                    "{byte} at {at}"
                );
            }
            let bytes = [byte; 9];
            assert_eq!(name_end(&bytes, 0), (!plain).then_some(0), "{byte}");
        }
        for special in [0, 9, 10, 13, 1, 14, 0x80, 0x8a] {
            for at in 0..80 {
                let mut bytes = vec![b'x'; 80];
                bytes[at] = special;
                assert_eq!(
                    line_end(&bytes, 0),
                    is_end(special).then_some(at),
                    "{special} at {at}"
                );
            }
        }
    }
}
