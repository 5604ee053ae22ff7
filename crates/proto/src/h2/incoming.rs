//! Splits received bytes, in pieces of any size, into frames: DATA payloads are passed on in parts,
//! all other frames as a whole.
//!
//! ```text
//! Head ─┬─▶ Payload ─▶ (a frame) ─▶ Head
//!       ├─▶ Padding ─▶ Body ─▶ Skip ─▶ Head      DATA
//!       └─▶ Skip ────────────────────▶ Head      kinds that are not known
//! ```
//!
//! Incomplete heads and payloads are buffered here, up to the maximum frame size. The meaning of
//! frames is not the business of this file.

use std::ops::Range;

use super::error::Violation;
use super::frame::{FrameHead, HEAD_LENGTH, Kind, flags};

/// Splits the input of one direction into frames; see the module.
#[derive(Debug)]
pub(super) struct Frames {
    state: State,
    /// The beginning of an incomplete head or payload.
    kept: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    /// Within the payload of a frame that is buffered until it is complete.
    Payload(FrameHead),
    /// Before the byte with the padding length of a DATA frame.
    Padding(FrameHead),
    /// Within a DATA frame: this many bytes of data follow, then this many of padding.
    Body(u32, u32),
    /// This many bytes are to be skipped.
    Skip(u32),
}

#[derive(Debug)]
pub(super) enum Incoming {
    Frame(FrameHead, Payload),
    /// The beginning of a DATA frame: its head, and the length of its padding.
    BodyBegins(FrameHead, u32),
    /// A part of a DATA frame's data, and whether it is the last part, which may be empty.
    Body(Range<usize>, bool),
    /// All input is consumed.
    Nothing,
}

/// Location of a payload.
#[derive(Debug)]
pub(super) enum Payload {
    Input(Range<usize>),
    /// In this buffer, because it was received in pieces. The caller must return it with
    /// [`Frames::give_back`].
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

    /// Processes `input` from offset `at`, and advances `at` past the consumed bytes. `examine`
    /// checks each frame's head before the payload is received.
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
                    // The end is reported with the last data; padding is skipped afterwards.
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

    /// Reuses the buffer of a payload for the next one.
    pub(super) fn give_back(&mut self, payload: Payload) {
        if let Payload::Kept(mut bytes) = payload {
            bytes.clear();
            self.kept = bytes;
        }
    }

    /// Whether a frame has been received in part.
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

    /// Buffers input until `wanted` bytes are in the buffer.
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

    /// The frames in the input, received in pieces of this length, with DATA joined.
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
