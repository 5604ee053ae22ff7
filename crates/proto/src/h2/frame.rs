//! The encoding of frames (RFC 9113, sections 4 and 6): reads and writes their heads, and writes
//! complete frames with fixed fields.
//!
//! Not here: when a frame may be sent, and its effect ([`connection`](super::connection)).

use super::error::ErrorCode;

/// The client's connection preface (RFC 9113, section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Length of a frame's head, in bytes.
pub const HEAD_LENGTH: usize = 9;

/// The initial maximum frame size, which every endpoint must accept: of the payload, in bytes.
pub const FRAME_SIZE_MAX_DEFAULT: u32 = 1 << 14;

/// The largest possible payload of a frame, in bytes.
pub const SIZE_MAX: u32 = (1 << 24) - 1;

/// The frame types (RFC 9113, section 6; RFC 9218, section 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Part of a body.
    Data,
    /// A header block, or its beginning.
    Headers,
    /// A stream dependency of RFC 7540, which is deprecated and ignored.
    Priority,
    /// RST_STREAM: ends one stream.
    Reset,
    /// The sender's settings, or an acknowledgement.
    Settings,
    /// Server push; rejected.
    PushPromise,
    /// A ping, or its acknowledgement.
    Ping,
    /// The sender will process no new streams.
    GoAway,
    /// Credit for flow control.
    WindowUpdate,
    /// The next part of a header block.
    Continuation,
    /// The RFC 9218 priority of a response.
    PriorityUpdate,
    /// An unknown frame type, which is ignored.
    Unknown(u8),
}

impl Kind {
    fn from_byte(byte: u8) -> Kind {
        match byte {
            0 => Kind::Data,
            1 => Kind::Headers,
            2 => Kind::Priority,
            3 => Kind::Reset,
            4 => Kind::Settings,
            5 => Kind::PushPromise,
            6 => Kind::Ping,
            7 => Kind::GoAway,
            8 => Kind::WindowUpdate,
            9 => Kind::Continuation,
            0x10 => Kind::PriorityUpdate,
            other => Kind::Unknown(other),
        }
    }

    fn byte(self) -> u8 {
        match self {
            Kind::Data => 0,
            Kind::Headers => 1,
            Kind::Priority => 2,
            Kind::Reset => 3,
            Kind::Settings => 4,
            Kind::PushPromise => 5,
            Kind::Ping => 6,
            Kind::GoAway => 7,
            Kind::WindowUpdate => 8,
            Kind::Continuation => 9,
            Kind::PriorityUpdate => 0x10,
            Kind::Unknown(byte) => byte,
        }
    }
}

/// The flags of frames. One bit means different things in different kinds.
pub mod flags {
    /// DATA and HEADERS: the sender's half of the stream ends.
    pub const END_STREAM: u8 = 0x1;
    /// SETTINGS and PING: an acknowledgement.
    pub const ACK: u8 = 0x1;
    /// HEADERS and CONTINUATION: the header block ends.
    pub const END_HEADERS: u8 = 0x4;
    /// DATA and HEADERS: the payload is padded.
    pub const PADDED: u8 = 0x8;
    /// HEADERS: the header block is preceded by the priority fields of RFC 7540.
    pub const PRIORITY: u8 = 0x20;
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// Length of the payload, in bytes.
    pub length: u32,
    /// The type of the frame.
    pub kind: Kind,
    /// The frame's flags; see [`flags`].
    pub flags: u8,
    /// The stream's number; 0 for the connection.
    pub stream: u32,
}

impl FrameHead {
    /// Parses a head. The reserved bit of the stream identifier is ignored.
    #[inline]
    pub fn read(bytes: &[u8; HEAD_LENGTH]) -> FrameHead {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = *bytes;
        FrameHead {
            length: u32::from_be_bytes([0, l0, l1, l2]),
            kind: Kind::from_byte(kind),
            flags,
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & STREAM_MAX,
        }
    }

    /// The head of a DATA frame with `bytes` bytes of payload; `ends` sets END_STREAM.
    #[inline]
    pub(super) fn data(stream: u32, bytes: usize, ends: bool) -> FrameHead {
        FrameHead {
            length: bytes as u32,
            kind: Kind::Data,
            flags: if ends { flags::END_STREAM } else { 0 },
            stream,
        }
    }

    /// The bytes of the frame head.
    #[inline]
    pub fn bytes(self) -> [u8; HEAD_LENGTH] {
        let [_, l0, l1, l2] = self.length.to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        [l0, l1, l2, self.kind.byte(), self.flags, s0, s1, s2, s3]
    }

    /// Whether all bits of this flag are set.
    #[inline]
    pub fn has(self, flag: u8) -> bool {
        self.flags & flag == flag
    }
}

/// The highest stream identifier.
pub const STREAM_MAX: u32 = u32::MAX >> 1;

/// Appends the head of a frame.
#[inline]
pub fn put_head(out: &mut Vec<u8>, kind: Kind, flags: u8, stream: u32, length: usize) {
    let head = FrameHead {
        length: length as u32,
        kind,
        flags,
        stream,
    };
    out.extend_from_slice(&head.bytes());
}

/// Appends a SETTINGS frame.
pub fn put_settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    put_head(out, Kind::Settings, 0, 0, settings.len() * 6);
    for (name, value) in settings {
        out.extend_from_slice(&name.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends the acknowledgement of a SETTINGS frame.
pub fn put_settings_ack(out: &mut Vec<u8>) {
    put_head(out, Kind::Settings, flags::ACK, 0, 0);
}

/// Appends a PING, or its acknowledgement.
pub fn put_ping(out: &mut Vec<u8>, is_answer: bool, payload: [u8; 8]) {
    let flags = if is_answer { flags::ACK } else { 0 };
    put_head(out, Kind::Ping, flags, 0, payload.len());
    out.extend_from_slice(&payload);
}

/// Appends a WINDOW_UPDATE: credit of `bytes` bytes for a stream or, with 0, for the connection.
pub fn put_window_update(out: &mut Vec<u8>, stream: u32, bytes: u32) {
    put_head(out, Kind::WindowUpdate, 0, stream, 4);
    out.extend_from_slice(&bytes.to_be_bytes());
}

/// Appends RST_STREAM.
pub fn put_reset(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    put_head(out, Kind::Reset, 0, stream, 4);
    out.extend_from_slice(&code.number().to_be_bytes());
}

/// Appends GOAWAY: streams after `last` are not processed.
pub fn put_goaway(out: &mut Vec<u8>, last: u32, code: ErrorCode) {
    put_head(out, Kind::GoAway, 0, 0, 8);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&code.number().to_be_bytes());
}

/// Capacity that is reserved after a header block, in bytes: often a small body follows in the same
/// buffer.
const BEHIND_BLOCK: usize = 128;

/// Appends the header block of a stream, split into frames of at most `size_max` bytes of payload.
pub fn put_header_block(out: &mut Vec<u8>, stream: u32, block: &[u8], ends: bool, size_max: usize) {
    out.reserve(HEAD_LENGTH + block.len() + BEHIND_BLOCK);
    let end_stream = if ends { flags::END_STREAM } else { 0 };
    let mut kind = Kind::Headers;
    let mut rest = block;
    loop {
        let length = rest.len().min(size_max);
        let (part, behind) = rest.split_at_checked(length).unwrap_or((rest, &[]));
        let mut set = if kind == Kind::Headers { end_stream } else { 0 };
        if behind.is_empty() {
            set |= flags::END_HEADERS;
        }
        put_head(out, kind, set, stream, part.len());
        out.extend_from_slice(part);
        if behind.is_empty() {
            return;
        }
        rest = behind;
        kind = Kind::Continuation;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_they_are_written() {
        for kind in 0..=u8::MAX {
            let bytes = [0x12, 0x34, 0x56, kind, 0x25, 0x7f, 0xff, 0xff, 0xfe];
            let head = FrameHead::read(&bytes);
            assert_eq!((head.length, head.stream), (0x12_3456, 0x7fff_fffe));
            assert!(head.has(flags::END_HEADERS) && !head.has(flags::PADDED));
            assert_eq!(head.bytes(), bytes);
        }
        // The reserved bit is ignored.
        let head = FrameHead::read(&[0, 0, 0, 6, 1, 0x80, 0, 0, 0]);
        assert_eq!((head.kind, head.stream), (Kind::Ping, 0));
    }

    #[test]
    fn frames_of_numbers_are_those_of_the_rfc() {
        let written = |put: fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            put(&mut out);
            out
        };
        assert_eq!(
            written(|out| put_settings(out, &[(3, 128)])),
            [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 128]
        );
        assert_eq!(written(put_settings_ack), [0, 0, 0, 4, 1, 0, 0, 0, 0]);
        assert_eq!(
            written(|out| put_ping(out, true, *b"12345678"))[..9],
            [0, 0, 8, 6, 1, 0, 0, 0, 0]
        );
        assert_eq!(
            written(|out| put_window_update(out, 3, 65_535)),
            [0, 0, 4, 8, 0, 0, 0, 0, 3, 0, 0, 0xff, 0xff]
        );
        assert_eq!(
            written(|out| put_reset(out, 5, ErrorCode::Cancel)),
            [0, 0, 4, 3, 0, 0, 0, 0, 5, 0, 0, 0, 8]
        );
        assert_eq!(
            written(|out| put_goaway(out, 7, ErrorCode::ProtocolError)),
            [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1]
        );
    }

    #[test]
    fn a_header_block_is_cut_into_frames() {
        for length in 0..40 {
            let block: Vec<u8> = (0..length).collect();
            let mut out = Vec::new();
            put_header_block(&mut out, 1, &block, true, 16);
            let (mut joined, mut at, mut frames) = (Vec::new(), 0, 0);
            while at < out.len() {
                let head = FrameHead::read(out[at..].first_chunk().unwrap());
                at += HEAD_LENGTH;
                joined.extend_from_slice(&out[at..at + head.length as usize]);
                at += head.length as usize;
                assert!(head.length <= 16);
                assert_eq!(head.kind == Kind::Headers, frames == 0);
                assert_eq!(head.has(flags::END_STREAM), frames == 0);
                assert_eq!(head.has(flags::END_HEADERS), at == out.len());
                frames += 1;
            }
            assert_eq!(joined, block);
            assert_eq!(frames, usize::from(length).div_ceil(16).max(1));
        }
    }
}
