//! The chunked transfer coding (RFC 9112, section 7.1): decoder and encoder.
//!
//! ```text
//! Start ─hex▶ Size ─┬─ size 0 ─▶ LastExtension ▶ LastLineEnd ▶ Trailers… ▶ Done
//!   ▲               └──────────▶ Extension ▶ LineEnd ▶ Data ▶ DataEnd ▶ DataLineEnd ─┐
//!   └────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! As strict as nginx: every line must end with CR LF, extensions are skipped but must not contain
//! LF, and a size has at most 15 significant digits. Trailers are skipped, or left to the caller,
//! who parses them with [`super::response::Trailers`].

use std::ops::Range;

/// The input is not a valid chunked body. nginx logs `client sent invalid chunked body` (level
/// error, status 400) or `upstream sent invalid chunked response`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkError;

/// The result of a call of [`Decoder::decode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Consumed bytes of the input, including `data`.
    pub consumed: usize,
    /// The range of body bytes in the input; may be empty.
    pub data: Range<usize>,
    /// Whether the body is complete. The next message follows after `consumed`, or the trailers if
    /// they are left to the caller.
    pub done: bool,
}

/// Decodes one body. Call [`decode`](Decoder::decode) with the remaining input until it is `done`,
/// or has consumed everything without data.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    state: State,
    /// While a size is parsed, the size so far; then the bytes of the chunk that have not been
    /// received.
    remaining: u64,
    /// The size of the current chunk.
    chunk_size: u64,
    keep_trailers: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Start,
    Size,
    Extension,
    LineEnd,
    Data,
    DataEnd,
    DataLineEnd,
    LastExtension,
    LastLineEnd,
    Trailers,
    TrailersEnd,
    Trailer,
    TrailerEnd,
    Done,
    /// After an invalid byte.
    Invalid,
}

/// The largest size to which another digit may be appended.
const SIZE_MAX: u64 = i64::MAX as u64 / 16;

impl Decoder {
    /// A decoder that skips trailers.
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// A decoder that is done before the trailers, so that the caller parses them: trailers end
    /// with an empty line, which follows at once if there are none.
    pub fn keeping_trailers() -> Decoder {
        Decoder {
            keep_trailers: true,
            ..Decoder::default()
        }
    }

    /// Decodes all of the input, and moves the data together into one range, so that many tiny
    /// chunks become one piece. If there are data before an error, returns the data first, and the
    /// error from the next call.
    ///
    /// # Errors
    /// As for [`Decoder::decode`].
    pub fn gather(&mut self, input: &mut [u8]) -> Result<Decoded, ChunkError> {
        let (mut consumed, mut data) = (0, 0..0);
        loop {
            let rest = input.get(consumed..).unwrap_or_default();
            let (piece, done) = match self.decode(rest) {
                Ok(decoded) => {
                    let begin = consumed;
                    consumed += decoded.consumed;
                    (
                        begin + decoded.data.start..begin + decoded.data.end,
                        decoded.done,
                    )
                }
                Err(error) if data.is_empty() => return Err(error),
                Err(_) => (0..0, true),
            };
            let length = piece.len();
            if data.is_empty() {
                data = piece;
            } else if length > 0 {
                input.copy_within(piece, data.end);
                data.end += length;
            }
            if done || length == 0 || consumed == input.len() {
                return Ok(Decoded {
                    consumed,
                    data,
                    done: self.state == State::Done,
                });
            }
        }
    }

    /// Decodes the input up to the end of its first piece of data. After an error, every call
    /// fails.
    ///
    /// # Errors
    /// [`ChunkError`] at the first invalid byte.
    pub fn decode(&mut self, input: &[u8]) -> Result<Decoded, ChunkError> {
        let decoded = self.decode_valid(input);
        if decoded.is_err() {
            self.state = State::Invalid;
        }
        decoded
    }

    fn decode_valid(&mut self, input: &[u8]) -> Result<Decoded, ChunkError> {
        let mut at = 0;
        loop {
            if self.state == State::Data && self.remaining == 0 {
                self.state = State::DataEnd;
            }
            if self.state == State::Done {
                return Ok(Decoded {
                    consumed: at,
                    data: at..at,
                    done: true,
                });
            }
            let Some(&byte) = input.get(at) else {
                return Ok(Decoded {
                    consumed: at,
                    data: at..at,
                    done: false,
                });
            };
            match self.state {
                State::Data => return Ok(self.data(at, input.len())),
                State::Extension | State::LastExtension | State::Trailer => {
                    at = self.skip_line(input, at)?;
                    continue;
                }
                _ => self.state = self.step(byte)?,
            }
            at += 1;
        }
    }

    /// Bytes of the current chunk that have not been received. Together with the data just
    /// returned, this is what the sender has announced, so that the caller can enforce a limit on
    /// the body before the bytes arrive.
    pub fn remaining(&self) -> u64 {
        if matches!(self.state, State::Data) {
            self.remaining
        } else {
            0
        }
    }

    /// The size of the last chunk with data.
    pub fn chunk_size(&self) -> u64 {
        self.chunk_size
    }

    /// The minimum number of bytes that must follow, so that a reader can wait for as many.
    pub fn least_remaining(&self) -> u64 {
        let chunk = self.remaining.saturating_add(7); // CR LF 0 CR LF CR LF
        match self.state {
            State::Start => 5,
            State::Size if self.remaining == 0 => 4,
            State::Size | State::Extension => chunk.saturating_add(2),
            State::LineEnd => chunk.saturating_add(1),
            State::Data => chunk,
            State::DataEnd => 7,
            State::DataLineEnd => 6,
            State::LastExtension | State::Trailer => 4,
            State::LastLineEnd | State::TrailerEnd => 3,
            State::Trailers => 2,
            State::TrailersEnd => 1,
            State::Done | State::Invalid => 0,
        }
    }

    fn data(&mut self, at: usize, end: usize) -> Decoded {
        let length = usize::try_from(self.remaining)
            .unwrap_or(usize::MAX)
            .min(end - at);
        self.remaining -= length as u64;
        if self.remaining == 0 {
            self.state = State::DataEnd;
        }
        Decoded {
            consumed: at + length,
            data: at..at + length,
            done: false,
        }
    }

    /// Skips the rest of an extension or a trailer, including the CR that ends it.
    fn skip_line(&mut self, input: &[u8], at: usize) -> Result<usize, ChunkError> {
        let line = input.get(at..).unwrap_or_default();
        let Some(length) = memchr::memchr2(b'\r', b'\n', line) else {
            return Ok(input.len());
        };
        let end = at + length;
        if input.get(end) == Some(&b'\n') {
            return Err(ChunkError);
        }
        self.state = match self.state {
            State::Extension => State::LineEnd,
            State::LastExtension => State::LastLineEnd,
            _ => State::TrailerEnd,
        };
        Ok(end + 1)
    }

    fn step(&mut self, byte: u8) -> Result<State, ChunkError> {
        Ok(match (self.state, byte) {
            (State::Start, _) => {
                self.remaining = u64::from(hex_digit(byte).ok_or(ChunkError)?);
                State::Size
            }
            (State::Size, _) if self.remaining > SIZE_MAX => return Err(ChunkError),
            (State::Size, b'\r') if self.remaining == 0 => State::LastLineEnd,
            (State::Size, b'\r') => State::LineEnd,
            (State::Size, b';' | b' ' | b'\t') if self.remaining == 0 => State::LastExtension,
            (State::Size, b';' | b' ' | b'\t') => State::Extension,
            (State::Size, _) => {
                self.remaining =
                    self.remaining * 16 + u64::from(hex_digit(byte).ok_or(ChunkError)?);
                State::Size
            }
            (State::LineEnd, b'\n') => {
                self.chunk_size = self.remaining;
                State::Data
            }
            (State::DataEnd, b'\r') => State::DataLineEnd,
            (State::DataLineEnd, b'\n') => State::Start,
            (State::LastLineEnd, b'\n') if self.keep_trailers => State::Done,
            (State::LastLineEnd | State::TrailerEnd, b'\n') => State::Trailers,
            (State::Trailers, b'\r') => State::TrailersEnd,
            (State::Trailers, b'\n') => return Err(ChunkError),
            (State::Trailers, _) => State::Trailer,
            (State::TrailersEnd, b'\n') => State::Done,
            _ => return Err(ChunkError),
        })
    }
}

fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

/// The line break after each chunk's data.
pub const DATA_END: &[u8] = b"\r\n";
/// The last chunk and the end of a body without trailers.
pub const LAST: &[u8] = b"0\r\n\r\n";
/// The last chunk; trailers and an empty line must follow.
pub const LAST_BEFORE_TRAILERS: &[u8] = b"0\r\n";

/// The line before a chunk's data, such as `1f4\r\n`, without an allocation.
#[derive(Clone, Copy, Debug)]
pub struct ChunkLine {
    bytes: [u8; 18],
    start: u8,
}

impl ChunkLine {
    /// The line for a chunk of `size` bytes, which must not be 0: a chunk of size 0 ends the body.
    pub fn new(size: u64) -> ChunkLine {
        let mut bytes = [0; 18];
        bytes[16..].copy_from_slice(b"\r\n");
        let mut start = 16;
        let mut rest = size;
        for place in bytes[..16].iter_mut().rev() {
            start -= 1;
            *place = match (rest % 16) as u8 {
                digit @ ..10 => b'0' + digit,
                digit => b'a' + digit - 10,
            };
            rest /= 16;
            if rest == 0 {
                break;
            }
        }
        ChunkLine {
            bytes,
            start: start as u8,
        }
    }

    /// The bytes of the line.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes
            .get(usize::from(self.start)..)
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes input in pieces of the given length. Returns the body, and the number of bytes
    /// consumed if it is complete.
    fn decode(
        mut decoder: Decoder,
        input: &[u8],
        piece: usize,
    ) -> Result<(Vec<u8>, Option<usize>), ChunkError> {
        let mut body = Vec::new();
        let mut consumed = 0;
        for piece in input.chunks(piece.max(1)) {
            let mut rest = piece;
            loop {
                let decoded = decoder.decode(rest)?;
                body.extend_from_slice(&rest[decoded.data.clone()]);
                consumed += decoded.consumed;
                if decoded.done {
                    return Ok((body, Some(consumed)));
                }
                rest = &rest[decoded.consumed..];
                if rest.is_empty() {
                    break;
                }
            }
        }
        Ok((body, None))
    }

    #[test]
    fn bodies() {
        for (input, body, rest) in [
            ("0\r\n\r\n", "", ""),
            ("5\r\nhello\r\n0\r\n\r\n", "hello", ""),
            (
                "5;name=value\r\nhello\r\n3 \r\nyou\r\n0\t;x\r\n\r\nGET",
                "helloyou",
                "GET",
            ),
            (
                "00000000000000000000005\r\nhello\r\n0000\r\n\r\n",
                "hello",
                "",
            ),
            (
                "a\r\n0123456789\r\nA\r\nabcdefghij\r\n0\r\n\r\n",
                "0123456789abcdefghij",
                "",
            ),
            ("2\r\n\r\n\r\n0\r\n\r\n", "\r\n", ""),
            ("1\r\nx\r\n0\r\nA: b\r\nC: d\r\n\r\nrest", "x", "rest"),
            ("1\r\nx\r\n0\r\nanything at all\0\r\n\r\n", "x", ""),
        ] {
            for piece in 1..=input.len() {
                let (decoded, consumed) =
                    decode(Decoder::new(), input.as_bytes(), piece).expect(input);
                assert_eq!(decoded, body.as_bytes(), "{input:?} by {piece}");
                assert_eq!(
                    &input[consumed.expect("complete")..],
                    rest,
                    "{input:?} by {piece}"
                );
            }
        }
    }

    #[test]
    fn trailers_may_be_kept() {
        let input = b"1\r\nx\r\n0\r\nA: b\r\n\r\n";
        for piece in 1..=input.len() {
            let (body, consumed) =
                decode(Decoder::keeping_trailers(), input, piece).expect("valid");
            assert_eq!((&body[..], consumed), (&b"x"[..], Some(9)));
        }
    }

    /// Decodes input with [`Decoder::gather`]. Returns the body, the number of bytes consumed, and
    /// the number of parts of the body.
    fn gathered(input: &[u8], piece: usize) -> Result<(Vec<u8>, Option<usize>, usize), ChunkError> {
        let (mut decoder, mut body) = (Decoder::new(), Vec::new());
        let (mut consumed, mut pieces) = (0, 0);
        for piece in input.chunks(piece) {
            let mut rest = piece.to_vec();
            while !rest.is_empty() {
                let decoded = decoder.gather(&mut rest)?;
                pieces += usize::from(!decoded.data.is_empty());
                body.extend_from_slice(&rest[decoded.data.clone()]);
                consumed += decoded.consumed;
                if decoded.done {
                    return Ok((body, Some(consumed), pieces));
                }
                rest.drain(..decoded.consumed);
            }
        }
        Ok((body, None, pieces))
    }

    #[test]
    fn gathered_bodies_are_the_same() {
        let many = "1\r\nx\r\n".repeat(20) + "0\r\n\r\n";
        for input in [
            "0\r\n\r\nGET",
            "5\r\nhello\r\n0\r\n\r\nGET",
            "5;a=b\r\nhello\r\n1\r\n \r\n5\r\nworld\r\n0\r\nA: b\r\n\r\nGET",
            "5\r\nhello\r\n3\r\nabc\r\n",
            "5\r\nhello\r\n3\r\nab",
            &many,
        ] {
            for piece in 1..=input.len() {
                let (body, consumed) = decode(Decoder::new(), input.as_bytes(), piece).unwrap();
                let (gathered, also, _) = gathered(input.as_bytes(), piece).unwrap();
                assert_eq!((gathered, also), (body, consumed), "{input:?} by {piece}");
            }
        }
        let whole = gathered(many.as_bytes(), many.len()).unwrap();
        assert_eq!(whole, (vec![b'x'; 20], Some(many.len()), 1));
    }

    #[test]
    fn what_precedes_a_fault_comes_before_it() {
        let mut input = b"1\r\na\r\n1\r\nb\r\nx\r\n".to_vec();
        let mut decoder = Decoder::new();
        let decoded = decoder.gather(&mut input).expect("a piece first");
        assert_eq!(&input[decoded.data], b"ab");
        assert!(!decoded.done && decoded.consumed < input.len());
        // Every further call fails.
        let mut rest = b"1\r\na\r\n".to_vec();
        assert!(decoder.gather(&mut rest).is_err());
        assert!(decoder.decode(&rest).is_err());
    }

    #[test]
    fn faults() {
        for input in [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            " 1\r\nx\r\n",
            ";\r\n",
            "5\nhello\r\n",
            "5\rhello",
            "5;a\nhello",
            "5;a\rb\r\nhello",
            "5x\r\n",
            "5\r\nhello0\r\n",
            "5\r\nhello\n0\r\n",
            "5\r\nhello\rx",
            "0\n\r\n",
            "0;\n",
            "0\r\n\n",
            "0\r\n\rx",
            "0\r\nA: b\n",
            "0\r\nA: b\rc",
            "8000000000000000\r\n",
            "7fffffffffffffff\r\n",
            "fffffffffffffffff\r\n",
            "10000000000000000\r\n",
        ] {
            for piece in 1..=input.len() {
                assert_eq!(
                    decode(Decoder::new(), input.as_bytes(), piece),
                    Err(ChunkError),
                    "{input:?} by {piece}"
                );
            }
        }
    }

    #[test]
    fn what_is_announced_and_what_must_follow() {
        let mut decoder = Decoder::new();
        assert_eq!(decoder.least_remaining(), 5);
        let decoded = decoder.decode(b"1000\r\nab").expect("valid");
        assert_eq!((decoded.consumed, decoded.data), (8, 6..8));
        assert_eq!((decoder.remaining(), decoder.chunk_size()), (4094, 4096));
        assert_eq!(decoder.least_remaining(), 4094 + 7);
        let mut decoder = Decoder::new();
        decoder.decode(b"7ffffffffffffff\r\n").expect("valid");
        assert_eq!(decoder.remaining(), i64::MAX as u64 / 16);
    }

    #[test]
    fn lines_of_chunks() {
        for size in [1, 0xf, 0x10, 0x1f4, 8192, u64::MAX] {
            assert_eq!(
                ChunkLine::new(size).as_bytes(),
                format!("{size:x}\r\n").as_bytes()
            );
        }
    }
}
