//! A fast path for usual header lines, which reads whole blocks: a name of letters, digits and
//! dashes, a colon, a value without control bytes, and a line break, all of which must have been
//! received. All other lines are left to the [reader](super::field), which parses byte by byte and
//! detects every error.

use base::vector::{BLOCK, controls_at_most, not_letters_digits_dash};

/// A plain line contains no byte up to this one, not even a tab.
const CARRIAGE_RETURN: u8 = b'\r';

/// The positions of a plain line's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlainLine {
    pub(super) name_end: usize,
    pub(super) value_start: usize,
    pub(super) value_end: usize,
    /// Offset of the next line.
    pub(super) next: usize,
}

/// Finds the plain lines of a head in sequence.
pub(super) struct PlainLines<'a> {
    bytes: &'a [u8],
    /// Offset of the block that was last examined.
    base: usize,
    /// Bit set of the bytes in the block that are at most CR, from `base` on.
    low: u64,
}

impl<'a> PlainLines<'a> {
    #[inline]
    pub(super) fn new(bytes: &'a [u8]) -> PlainLines<'a> {
        PlainLines {
            bytes,
            base: bytes.len(), // none yet
            low: 0,
        }
    }

    /// The line that begins at `start`, if it is plain and complete, including its line break.
    #[inline]
    pub(super) fn at(&mut self, start: usize) -> Option<PlainLine> {
        let rest = self.bytes.get(start..)?;
        let name_length = name_length(rest)?;
        let name_end = start + name_length;
        let value_start = match rest.get(name_length..)? {
            [b':', b' ', other, ..] if *other != b' ' => name_end + 2,
            [b':', value @ ..] => name_end + 1 + spaces(value.iter()),
            _ => return None,
        };
        let line_end = self.low_byte(value_start)?;
        let next = match self.bytes.get(line_end..)? {
            [b'\r', b'\n', ..] => line_end + 2,
            [b'\n', ..] => line_end + 1,
            _ => return None,
        };
        let value_end = match self.bytes.get(value_start..line_end)? {
            value @ [.., b' '] => line_end - spaces(value.iter().rev()),
            _ => line_end,
        };
        Some(PlainLine {
            name_end,
            value_start,
            value_end,
            next,
        })
    }

    /// Offset of the first byte from `from` on that is at most CR.
    #[inline]
    fn low_byte(&mut self, from: usize) -> Option<usize> {
        let mut offset = from.wrapping_sub(self.base);
        if offset >= BLOCK {
            self.look_at(from)?;
            offset = 0;
        }
        let mut low = self.low >> offset;
        let mut at = from;
        while low == 0 {
            at = self.base + BLOCK;
            self.look_at(at)?;
            low = self.low;
        }
        Some(at + low.trailing_zeros() as usize)
    }

    /// Examines the block at `base`; `None` at the end of the bytes.
    #[inline]
    fn look_at(&mut self, base: usize) -> Option<()> {
        let rest = self.bytes.get(base..).filter(|rest| !rest.is_empty())?;
        self.base = base;
        self.low = match rest.first_chunk::<BLOCK>() {
            Some(block) => controls_at_most(block, CARRIAGE_RETURN),
            None => {
                let mut block = [u8::MAX; BLOCK];
                block
                    .iter_mut()
                    .zip(rest)
                    .for_each(|(to, from)| *to = *from);
                controls_at_most(&block, CARRIAGE_RETURN)
            }
        };
        Some(())
    }
}

/// Length of the plain name at the beginning. `None` if there is none, if it exceeds 31 bytes, or
/// if fewer bytes are left than are examined at once.
#[inline]
fn name_length(rest: &[u8]) -> Option<usize> {
    let others = not_letters_digits_dash(rest.first_chunk()?);
    if others != 0 {
        let length = others.trailing_zeros() as usize;
        return (length != 0).then_some(length);
    }
    let others = not_letters_digits_dash(rest.get(16..)?.first_chunk()?);
    (others != 0).then(|| 16 + others.trailing_zeros() as usize)
}

/// Number of leading spaces.
#[cold]
fn spaces<'a>(bytes: impl Iterator<Item = &'a u8>) -> usize {
    bytes.take_while(|byte| **byte == b' ').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_lines_are_taken_apart() {
        let value = "v".repeat(200);
        let long = format!(
            "Host: a longer name  \r\nA:\nUser-Agent:  {value} \r\nB: c\r\n\r\n                "
        );
        let bytes = long.as_bytes();
        let mut lines = PlainLines::new(bytes);
        let (mut at, mut seen) = (0, Vec::new());
        while let Some(line) = lines.at(at) {
            let text = |from: usize, to: usize| std::str::from_utf8(&bytes[from..to]).unwrap();
            seen.push((
                text(at, line.name_end),
                text(line.value_start, line.value_end),
            ));
            at = line.next;
        }
        let expected = [
            ("Host", "a longer name"),
            ("A", ""),
            ("User-Agent", &value),
            ("B", "c"),
        ];
        assert_eq!(seen, expected);
        assert_eq!(&bytes[at..at + 2], b"\r\n");
        // An incomplete line is not plain.
        let end = PlainLines::new(bytes).at(0).unwrap().next;
        assert!(PlainLines::new(&bytes[..end]).at(0).is_some());
        assert!(PlainLines::new(&bytes[..end - 1]).at(0).is_none());
    }

    #[test]
    fn other_lines_are_left() {
        for line in [
            "",
            "\r\n",
            ": a\r\n",
            "A b: c\r\n",
            "A_b: c\r\n",
            "A: b\tc\r\n",
            "A: b\rc\r\n",
            "A: b\0\r\n",
            "A\r\n",
            "A: b",
            "A: b\r",
            " A: b\r\n",
            "a-name-of-more-than-thirty-one-bytes: b\r\n",
        ] {
            let padded = if line.ends_with('\n') {
                format!("{line}                                ")
            } else {
                line.to_owned()
            };
            let found = PlainLines::new(padded.as_bytes()).at(0);
            assert_eq!(found, None, "{line:?}");
        }
    }
}
