//! Parsing of a QUIC client's Initial packets, by a proxy that forwards the connection by server
//! name without taking part in it.
//!
//! RFC 9000 sections 17.2 and 17.2.2 (long headers, Initial packets), 16 (integers) and 19
//! (frames), RFC 9369 (version 2). Packets are protected with keys that are derived from the
//! client's first connection ID (RFC 9001 section 5.2); the caller removes the protection.

use proto::Span;

/// Maximum number of disjoint parts of the CRYPTO stream.
const GAPS_MAX: usize = 64;
/// Maximum length of a connection ID, in bytes.
const ID_MAX: usize = 20;

/// Bits of the first byte: long header, fixed bit, and packet type.
const LONG: u8 = 0x80;
const FIXED: u8 = 0x40;
const TYPE: u8 = 0x30;

const PADDING: u64 = 0x00;
const PING: u64 = 0x01;
const ACK: u64 = 0x02;
const ACK_WITH_MARKS: u64 = 0x03;
const CRYPTO: u64 = 0x06;
const CONNECTION_CLOSE: u64 = 0x1c;

/// A version of QUIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// RFC 9000.
    V1,
    /// RFC 9369.
    V2,
}

/// An Initial packet in a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Initial {
    /// The version of QUIC.
    pub(super) version: Version,
    /// The destination connection ID.
    pub(super) destination: Span,
    /// The whole packet.
    pub(super) packet: Span,
    /// Offset of the packet number, which is protected.
    pub(super) number_at: usize,
}

/// The Initial packet at this offset of a datagram; `None` if there is none.
pub(super) fn initial(datagram: &[u8], at: usize) -> Option<Initial> {
    let mut rest = DatagramReader {
        bytes: datagram,
        at,
    };
    let first = rest.byte()?;
    let number = u32::from_be_bytes(*rest.take(4)?.of(datagram).first_chunk()?);
    let (version, kind) = match number {
        1 => (Version::V1, 0x00),
        0x6b33_43cf => (Version::V2, 0x10),
        _ => return None,
    };
    if first & (LONG | FIXED | TYPE) != LONG | FIXED | kind {
        return None;
    }
    let destination = rest.connection_id()?;
    rest.connection_id()?; // the source connection ID
    let token = rest.number()?;
    rest.take(token)?;
    let length = rest.number()?;
    let number_at = rest.at;
    rest.take(length)?;
    Some(Initial {
        version,
        destination,
        packet: Span::new(at, rest.at),
        number_at,
    })
}

/// The data of a client's CRYPTO frames, which may arrive in any order.
#[derive(Debug)]
pub(super) struct CryptoStream {
    length_max: usize,
    bytes: Vec<u8>,
    /// The received parts as ranges, sorted and disjoint.
    parts: Vec<(usize, usize)>,
}

impl CryptoStream {
    /// A stream of at most `length_max` bytes.
    pub(super) fn new(length_max: usize) -> CryptoStream {
        CryptoStream {
            length_max,
            bytes: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Adds the frames of a packet whose protection has been removed. False if they are malformed,
    /// not allowed in an Initial packet, beyond the length limit, or leave too many gaps.
    pub(super) fn take_frames(&mut self, payload: &[u8]) -> bool {
        let mut rest = DatagramReader {
            bytes: payload,
            at: 0,
        };
        while rest.at < payload.len() {
            if self.take_frame(&mut rest).is_none() {
                return false;
            }
        }
        true
    }

    fn take_frame(&mut self, rest: &mut DatagramReader<'_>) -> Option<()> {
        match rest.long_number()? {
            PADDING | PING => {}
            kind @ (ACK | ACK_WITH_MARKS) => {
                rest.number()?; // largest acknowledged
                rest.number()?; // delay
                let ranges = rest.number()?;
                rest.number()?; // first range
                for _ in 0..ranges {
                    rest.number()?;
                    rest.number()?;
                }
                if kind == ACK_WITH_MARKS {
                    for _ in 0..3 {
                        rest.number()?;
                    }
                }
            }
            CRYPTO => {
                let offset = rest.number()?;
                let length = rest.number()?;
                let content = rest.take(length)?;
                self.add(offset, content.of(rest.bytes))?;
            }
            CONNECTION_CLOSE => {
                rest.number()?; // error code
                rest.number()?; // frame type
                let reason = rest.number()?;
                rest.take(reason)?;
            }
            _ => return None,
        }
        Some(())
    }

    fn add(&mut self, offset: usize, content: &[u8]) -> Option<()> {
        let end = offset.checked_add(content.len())?;
        if end > self.length_max {
            return None;
        }
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes.get_mut(offset..end)?.copy_from_slice(content);
        // Parts that touch the new one are merged with it.
        let (mut from, mut to) = (offset, end);
        self.parts.retain(|&(first, last)| {
            let is_apart = last < from || to < first;
            if !is_apart {
                (from, to) = (from.min(first), to.max(last));
            }
            is_apart
        });
        let place = self.parts.partition_point(|(first, _)| *first < from);
        self.parts.insert(place, (from, to));
        (self.parts.len() <= GAPS_MAX).then_some(())
    }

    /// The bytes before the first gap.
    pub(super) fn beginning(&self) -> &[u8] {
        match self.parts.first() {
            Some((0, end)) => self.bytes.get(..*end).unwrap_or_default(),
            _ => &[],
        }
    }
}

/// The unread rest of a datagram or packet.
struct DatagramReader<'a> {
    bytes: &'a [u8],
    /// Offset of the next byte.
    at: usize,
}

impl DatagramReader<'_> {
    fn take(&mut self, length: usize) -> Option<Span> {
        let end = self.at.checked_add(length)?;
        if end > self.bytes.len() {
            return None;
        }
        let span = Span::new(self.at, end);
        self.at = end;
        Some(span)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.of(self.bytes).first().copied()
    }

    fn connection_id(&mut self) -> Option<Span> {
        let length = usize::from(self.byte()?);
        (length <= ID_MAX).then(|| self.take(length)).flatten()
    }

    /// A variable-length integer of one, two, four or eight bytes.
    fn long_number(&mut self) -> Option<u64> {
        let first = self.byte()?;
        let more = (1 << (first >> 6)) - 1;
        let more = self.take(more)?.of(self.bytes);
        let first = u64::from(first & 0x3f);
        Some(
            more.iter()
                .fold(first, |sum, byte| sum << 8 | u64::from(*byte)),
        )
    }

    fn number(&mut self) -> Option<usize> {
        usize::try_from(self.long_number()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_both_versions_are_read() {
        // RFC 9001 appendix A.2, followed by an empty token and a length of 3.
        let one = b"\xc0\0\0\0\x01\x08\x83\x94\xc8\xf0\x3e\x51\x57\x08\0\0\x03abc rest";
        let read = initial(one, 0).unwrap();
        assert_eq!(read.version, Version::V1);
        assert_eq!(
            read.destination.of(one),
            b"\x83\x94\xc8\xf0\x3e\x51\x57\x08"
        );
        assert_eq!((read.packet, read.number_at), (Span::new(0, 20), 17));
        for end in 0..20 {
            assert_eq!(initial(&one[..end], 0), None);
        }
        // RFC 9369 section 3.2: a different value of the type. This packet has a token and a source
        // connection ID.
        let two = b"xx\xd0\x6b\x33\x43\xcf\0\x02id\x03tok\x40\x01a";
        let read = initial(two, 2).unwrap();
        assert_eq!(read.version, Version::V2);
        assert_eq!((read.packet, read.number_at), (Span::new(2, 18), 17));
        let mut other = *two;
        for first in [0xc0, 0xe0, 0xf0, 0x90, 0x50] {
            other[2] = first;
            assert_eq!(initial(&other, 2), None, "{first:x}");
        }
        assert_eq!(
            initial(b"\xc0\0\0\0\x02\0\0\0\0", 0),
            None,
            "of no version that is known"
        );
        let long = [&b"\xc0\0\0\0\x01\x15"[..], &[0; 40]].concat();
        assert_eq!(initial(&long, 0), None, "a connection ID of 21 bytes");
    }

    fn crypto(offset: u8, content: &[u8]) -> Vec<u8> {
        [&[6, offset, content.len() as u8], content].concat()
    }

    #[test]
    fn frames_come_in_any_order() {
        let mut stream = CryptoStream::new(64 * 1024);
        assert!(stream.take_frames(&[crypto(3, b"def"), vec![0; 5]].concat()));
        assert_eq!(stream.beginning(), b"");
        assert!(stream.take_frames(&[crypto(8, b"ij"), vec![1], crypto(0, b"ab")].concat()));
        assert_eq!(stream.beginning(), b"ab");
        assert!(
            stream.take_frames(&crypto(1, b"bcde")),
            "some of it comes twice"
        );
        assert_eq!(stream.beginning(), b"abcdef");
        // Acknowledgements, with and without ECN counts, and the end of a connection.
        let ack = [2, 5, 0, 1, 2, 0, 1, 3, 5, 0, 0, 2, 1, 1, 1];
        assert!(stream.take_frames(&[&ack[..], &crypto(6, b"gh")].concat()));
        assert_eq!(stream.beginning(), b"abcdefghij");
        assert!(stream.take_frames(b"\x1c\0\0\x02no"));
    }

    #[test]
    fn what_is_malformed_or_too_much_is_refused() {
        let refused = |frames: &[u8]| !CryptoStream::new(64 * 1024).take_frames(frames);
        assert!(refused(b"\x06\0\x05abc"), "less than it says");
        assert!(refused(b"\x06\0"));
        assert!(refused(b"\x02\x05\0\x3f"), "fewer ranges");
        assert!(refused(b"\x08\0"), "a frame of a stream");
        assert!(refused(b"\x06\x80\x01\0\0\x01a"), "far away");
        assert!(!refused(b"\x06\x80\0\xff\xff\x01a"));
        let many: Vec<u8> = (0..65_u8).flat_map(|at| [6, 0x40, 2 * at, 1, 7]).collect();
        assert!(refused(&many), "too many gaps");
        assert!(!refused(&many[..64 * 5]));
    }
}
