//! Header lines as almost all are, read by whole blocks: a name of letters, digits and dashes, a
//! colon, a value without control bytes, and a line break, all there already. Whatever is not so
//! plain is left to the [reader](super::field), which goes byte by byte and knows every fault.

use base::vector::{BLOCK, controls_at_most, not_letters_digits_dash};

/// No byte up to this one but the tab stands within a plain line.
const CARRIAGE_RETURN: u8 = b'\r';

/// A plain line, by the places of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlainLine {
    pub(super) name_end: usize,
    pub(super) value_start: usize,
    pub(super) value_end: usize,
    /// Where the next line begins.
    pub(super) next: usize,
}

/// Finds the plain lines of a head, one after the other.
pub(super) struct PlainLines<'a> {
    bytes: &'a [u8],
    /// Where the block begins that was looked at last.
    base: usize,
    /// Which bytes of the block may end a line; from `base` on, a bit each.
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

    /// The line that begins at `start` if it is plain and there as a whole, its line break
    /// included.
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

    /// The first byte at or behind `from` that is a carriage return, a line feed, or a control byte
    /// below them.
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

    /// Looks at the block that begins at `base`; `None` where there are no more bytes.
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

/// How many bytes of a plain name there are first; `None` where there are none, more than 31, or
/// too near to the end to tell.
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

/// How many spaces come first.
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
        // Where its end is not there it is none.
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
