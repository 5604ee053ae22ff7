//! Frames as they come in, in pieces of any size: DATA as it comes, every other kind whole.
//!
//! ```text
//! Head ─┬─▶ Payload ─▶ (a frame) ─▶ Head
//!       ├─▶ Padding ─▶ Body ─▶ Skip ─▶ Head      DATA
//!       └─▶ Skip ────────────────────▶ Head      kinds that are not known
//! ```
//!
//! What does not come whole is kept here, up to the largest frame that we take. Not here: what
//! frames mean.

use std::ops::Range;

use super::error::Violation;
use super::frame::{FrameHead, HEAD_LENGTH, Kind, flags};

/// Reads the frames of one direction; see the module.
#[derive(Debug)]
pub(super) struct Frames {
    state: State,
    /// The beginning of a head or of a payload that did not come whole.
    kept: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    /// The payload of a frame that is wanted whole.
    Payload(FrameHead),
    /// How long the padding of a DATA frame is.
    Padding(FrameHead),
    /// Within a DATA frame: this many bytes of body follow, then this many of padding.
    Body(u32, u32),
    /// This many bytes are to be skipped.
    Skip(u32),
}

#[derive(Debug)]
pub(super) enum Incoming {
    Frame(FrameHead, Payload),
    /// A DATA frame begins: its head, and how long its padding is.
    BodyBegins(FrameHead, u32),
    /// A part of a DATA frame's body, and whether it is the last one, which may be empty.
    Body(Range<usize>, bool),
    /// All input is used up.
    Nothing,
}

/// Where a payload lies.
#[derive(Debug)]
pub(super) enum Payload {
    Input(Range<usize>),
    /// Here, because it came in pieces. To be given back by [`Frames::give_back`].
    Kept(Vec<u8>),
}

impl Payload {
    pub(super) fn of<'a>(&'a self, input: &'a [u8]) -> &'a [u8] {
        match self {
            Payload::Input(range) => input.get(range.clone()).unwrap_or_default(),
            Payload::Kept(bytes) => bytes,
        }
    }
}

impl Frames {
    pub(super) fn new() -> Frames {
        Frames {
            state: State::Head,
            kept: Vec::new(),
        }
    }

    /// Goes on with the input from `at` on, which moves with what is used. `examine` judges a frame
    /// before its payload has come.
    #[inline]
    pub(super) fn next(
        &mut self,
        input: &[u8],
        at: &mut usize,
        mut examine: impl FnMut(FrameHead) -> Result<(), Violation>,
    ) -> Result<Incoming, Violation> {
        loop {
            let rest = input.get(*at..).unwrap_or_default();
            match self.state {
                State::Head => {
                    let Some(head) = self.head(rest, at) else {
                        return Ok(Incoming::Nothing);
                    };
                    examine(head)?;
                    self.state = match head.kind {
                        Kind::Data if head.has(flags::PADDED) => match head.length {
                            0 => return Err(Violation::Length("padded DATA", 0)),
                            _ => State::Padding(head),
                        },
                        Kind::Data => {
                            self.state = State::Body(head.length, 0);
                            return Ok(Incoming::BodyBegins(head, 0));
                        }
                        Kind::Unknown(_) => State::Skip(head.length),
                        _ => State::Payload(head),
                    };
                }
                State::Payload(head) => {
                    let Some(payload) = self.payload(head, rest, at) else {
                        return Ok(Incoming::Nothing);
                    };
                    self.state = State::Head;
                    return Ok(Incoming::Frame(head, payload));
                }
                State::Padding(head) => {
                    let Some(padding) = rest.first().map(|length| u32::from(*length)) else {
                        return Ok(Incoming::Nothing);
                    };
                    *at += 1;
                    let Some(data) = (head.length - 1).checked_sub(padding) else {
                        return Err(Violation::Padding("DATA", head.length, padding));
                    };
                    self.state = State::Body(data, padding);
                    return Ok(Incoming::BodyBegins(head, padding));
                }
                State::Body(left, padding) => {
                    let length = rest.len().min(left as usize);
                    if length == 0 && left > 0 {
                        return Ok(Incoming::Nothing);
                    }
                    let range = *at..*at + length;
                    *at += length;
                    let left = left - length as u32;
                    // The end is told with the last bytes; padding comes behind it.
                    self.state = match (left, padding) {
                        (0, 0) => State::Head,
                        (0, _) => State::Skip(padding),
                        _ => State::Body(left, padding),
                    };
                    return Ok(Incoming::Body(range, left == 0));
                }
                State::Skip(left) => {
                    let length = rest.len().min(left as usize);
                    *at += length;
                    if length < left as usize {
                        self.state = State::Skip(left - length as u32);
                        return Ok(Incoming::Nothing);
                    }
                    self.state = State::Head;
                }
            }
        }
    }

    /// Takes the memory of a payload back, for the next one.
    pub(super) fn give_back(&mut self, payload: Payload) {
        if let Payload::Kept(mut bytes) = payload {
            bytes.clear();
            self.kept = bytes;
        }
    }

    /// Whether the beginning of a frame has come, and not its end.
    pub(super) fn is_within_frame(&self) -> bool {
        self.state != State::Head || !self.kept.is_empty()
    }

    #[inline]
    fn head(&mut self, rest: &[u8], at: &mut usize) -> Option<FrameHead> {
        if self.kept.is_empty()
            && let Some(bytes) = rest.first_chunk::<HEAD_LENGTH>()
        {
            *at += HEAD_LENGTH;
            return Some(FrameHead::read(bytes));
        }
        self.keep(rest, at, HEAD_LENGTH);
        let head = self.kept.first_chunk::<HEAD_LENGTH>().map(FrameHead::read);
        if head.is_some() {
            self.kept.clear();
        }
        head
    }

    #[inline]
    fn payload(&mut self, head: FrameHead, rest: &[u8], at: &mut usize) -> Option<Payload> {
        let length = head.length as usize;
        if self.kept.is_empty() && rest.len() >= length {
            let range = *at..*at + length;
            *at += length;
            return Some(Payload::Input(range));
        }
        self.keep(rest, at, length);
        (self.kept.len() >= length).then(|| Payload::Kept(std::mem::take(&mut self.kept)))
    }

    /// Keeps what comes, until it is so many bytes.
    fn keep(&mut self, rest: &[u8], at: &mut usize, wanted: usize) {
        let missing = wanted.saturating_sub(self.kept.len()).min(rest.len());
        self.kept
            .extend_from_slice(rest.get(..missing).unwrap_or_default());
        *at += missing;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h2::frame;

    /// What comes of the input in pieces of so many bytes, with bodies joined.
    fn read(input: &[u8], piece: usize) -> Result<Vec<(FrameHead, Vec<u8>)>, Violation> {
        let mut frames = Frames::new();
        let mut came: Vec<(FrameHead, Vec<u8>)> = Vec::new();
        for part in input.chunks(piece) {
            let mut at = 0;
            loop {
                match frames.next(part, &mut at, |_| Ok(()))? {
                    Incoming::Frame(head, payload) => {
                        came.push((head, payload.of(part).to_vec()));
                        frames.give_back(payload);
                    }
                    Incoming::BodyBegins(head, _) => came.push((head, Vec::new())),
                    Incoming::Body(range, _) => {
                        let last = came.last_mut().unwrap();
                        last.1.extend_from_slice(&part[range]);
                    }
                    Incoming::Nothing => break,
                }
            }
            assert_eq!(at, part.len());
        }
        assert!(!frames.is_within_frame());
        Ok(came)
    }

    #[test]
    fn frames_come_in_pieces_of_every_size() {
        let mut input = Vec::new();
        frame::put_settings(&mut input, &[(3, 100), (4, 1)]);
        frame::put_head(&mut input, Kind::Data, 0, 1, 5);
        input.extend_from_slice(b"hello");
        frame::put_head(&mut input, Kind::Data, flags::PADDED, 1, 6);
        input.extend_from_slice(b"\x02abc\0\0");
        frame::put_head(&mut input, Kind::Data, flags::PADDED, 1, 1);
        input.push(0);
        frame::put_head(&mut input, Kind::Unknown(0x77), 0, 0, 4);
        input.extend_from_slice(b"what");
        frame::put_head(&mut input, Kind::Data, flags::END_STREAM, 1, 0);
        frame::put_ping(&mut input, true, *b"12345678");
        frame::put_settings_ack(&mut input);
        for piece in 1..=input.len() {
            let came = read(&input, piece).unwrap();
            let bodies: Vec<&[u8]> = came.iter().map(|(_, body)| &body[..]).collect();
            let expected: [&[u8]; 7] = [
                &[0, 3, 0, 0, 0, 100, 0, 4, 0, 0, 0, 1],
                b"hello",
                b"abc",
                b"",
                b"",
                b"12345678",
                b"",
            ];
            assert_eq!(bodies, expected, "by {piece}");
        }
    }

    #[test]
    fn padding_is_shorter_than_its_frame() {
        let padded = |bytes: &[u8]| {
            let mut input = Vec::new();
            frame::put_head(&mut input, Kind::Data, flags::PADDED, 1, bytes.len());
            input.extend_from_slice(bytes);
            read(&input, input.len())
        };
        assert_eq!(padded(b""), Err(Violation::Length("padded DATA", 0)));
        assert_eq!(padded(b"\x03ab"), Err(Violation::Padding("DATA", 3, 3)));
        assert!(padded(b"\x02ab").is_ok());
    }
}
