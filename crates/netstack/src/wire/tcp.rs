//! TCP segments: header and options (RFC 9293, section 3.1; RFC 7323; RFC 2018).

use std::net::Ipv4Addr;

use super::checksum::Sum;
use super::ipv4::{Protocol, pseudo_header};
use super::sequence::Sequence;
use super::{Malformed, read_u16, read_u32, write};

/// Length of a header without options, in bytes.
pub const HEADER: usize = 20;

/// Maximum number of SACK blocks in a segment (RFC 2018, section 3). A segment with timestamps has
/// room for three.
pub const SACK_BLOCKS_MAX: usize = 4;

/// The maximum window scale (RFC 7323, section 2.3).
pub const WINDOW_SHIFT_MAX: u8 = 14;

/// The control bits of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    /// A segment with none of the flags set.
    pub const NONE: Flags = Flags(0);
    /// The sender has no more data after this segment.
    pub const FIN: Flags = Flags(1);
    /// The sequence number is the initial one.
    pub const SYN: Flags = Flags(2);
    /// The connection is reset.
    pub const RST: Flags = Flags(4);
    /// The receiver should deliver the data without waiting for more.
    pub const PSH: Flags = Flags(8);
    /// The acknowledgment number is valid.
    pub const ACK: Flags = Flags(16);
    /// The urgent pointer is valid.
    pub const URG: Flags = Flags(32);

    /// The union of both sets of bits.
    #[must_use]
    pub const fn with(self, more: Flags) -> Flags {
        Flags(self.0 | more.0)
    }

    /// Whether all of `bits` are set.
    #[must_use]
    pub const fn has(self, bits: Flags) -> bool {
        self.0 & bits.0 == bits.0
    }
}

/// The timestamps option (RFC 7323, section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the receiver's clock, as last received by the sender.
    pub echo: u32,
}

/// Ranges of data received after a gap. Each range includes its first sequence number and excludes
/// its second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [(Sequence, Sequence); SACK_BLOCKS_MAX],
    count: u8,
}

impl SackBlocks {
    /// Adds a block if there is room for it.
    pub fn push(&mut self, from: Sequence, to: Sequence) {
        if let Some(place) = self.blocks.get_mut(usize::from(self.count)) {
            *place = (from, to);
            self.count += 1;
        }
    }

    /// The blocks, in the order of the option.
    #[must_use]
    pub fn as_slice(&self) -> &[(Sequence, Sequence)] {
        self.blocks
            .get(..usize::from(self.count))
            .unwrap_or_default()
    }
}

/// The known options of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The maximum segment size that the sender accepts, without options.
    pub segment_max: Option<u16>,
    /// The scale of the sender's windows, in bits.
    pub window_shift: Option<u8>,
    /// Whether the sender supports SACK.
    pub sack_permitted: bool,
    /// The clocks of both ends.
    pub timestamps: Option<Timestamps>,
    /// The ranges that the sender has received after a gap.
    pub sack: SackBlocks,
}

impl Options {
    /// Parses the options. Unknown options are skipped (MUST-6); everything after an option with an
    /// invalid length is ignored (MUST-7).
    fn parse(mut bytes: &[u8]) -> Options {
        let mut options = Options::default();
        // The layout of nearly every segment (RFC 7323, appendix A).
        if let [1, 1, 8, 10, a, b, c, d, e, f, g, h] = *bytes {
            options.timestamps = Some(Timestamps {
                value: u32::from_be_bytes([a, b, c, d]),
                echo: u32::from_be_bytes([e, f, g, h]),
            });
            return options;
        }
        loop {
            match *bytes {
                [] | [0, ..] | [_] => return options,
                [1, ref rest @ ..] => bytes = rest,
                [kind, length, ..] => {
                    let Some(content) = bytes.get(2..usize::from(length)) else {
                        return options;
                    };
                    options.take(kind, content);
                    bytes = bytes.get(usize::from(length)..).unwrap_or_default();
                }
            }
        }
    }

    fn take(&mut self, kind: u8, content: &[u8]) {
        match (kind, content) {
            (2, [high, low]) => self.segment_max = Some(u16::from_be_bytes([*high, *low])),
            // A larger scale is treated as the maximum (RFC 7323, section 2.3).
            (3, [shift]) => self.window_shift = Some((*shift).min(WINDOW_SHIFT_MAX)),
            (4, []) => self.sack_permitted = true,
            (5, blocks) => {
                self.sack = SackBlocks::default();
                for block in blocks.chunks_exact(8) {
                    if let (Some(from), Some(to)) = (read_u32(block, 0), read_u32(block, 4)) {
                        self.sack.push(Sequence(from), Sequence(to));
                    }
                }
            }
            (8, clocks) if clocks.len() == 8 => {
                if let (Some(value), Some(echo)) = (read_u32(clocks, 0), read_u32(clocks, 4)) {
                    self.timestamps = Some(Timestamps { value, echo });
                }
            }
            _ => {}
        }
    }

    /// Length of the options in a header, in bytes: a multiple of four.
    #[must_use]
    pub fn length(&self) -> usize {
        let mut length = 0;
        if self.segment_max.is_some() {
            length += 4;
        }
        if self.window_shift.is_some() {
            length += 4;
        }
        if self.timestamps.is_some() {
            length += 12;
        } else if self.sack_permitted {
            length += 4;
        }
        if self.sack.count > 0 {
            length += 4 + 8 * usize::from(self.sack.count);
        }
        length
    }

    /// Writes the options, padded to multiples of four bytes as in RFC 7323, appendix A.
    fn emit(&self, into: &mut [u8]) {
        let mut at = 0;
        let mut put = |part: &[u8]| {
            write(into, at, part);
            at += part.len();
        };
        if let Some(size) = self.segment_max {
            let [high, low] = size.to_be_bytes();
            put(&[2, 4, high, low]);
        }
        if let Some(clocks) = self.timestamps {
            let first = if self.sack_permitted {
                [4, 2, 8, 10]
            } else {
                [1, 1, 8, 10]
            };
            put([first, clocks.value.to_be_bytes(), clocks.echo.to_be_bytes()].as_flattened());
        } else if self.sack_permitted {
            put(&[1, 1, 4, 2]);
        }
        if let Some(shift) = self.window_shift {
            put(&[1, 3, 3, shift]);
        }
        if self.sack.count > 0 {
            put(&[1, 1, 5, 2 + 8 * self.sack.count]);
            for (from, to) in self.sack.as_slice() {
                put(&from.0.to_be_bytes());
                put(&to.0.to_be_bytes());
            }
        }
    }
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender's port.
    pub source: u16,
    /// The receiver's port.
    pub destination: u16,
    /// The sequence number of the first byte, or of the SYN.
    pub sequence: Sequence,
    /// The next sequence number that the sender expects; valid if ACK is set.
    pub acknowledgment: Sequence,
    /// The control bits.
    pub flags: Flags,
    /// The receive window of the sender, scaled unless SYN is set.
    pub window: u16,
    /// The options.
    pub options: Options,
}

/// A received segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// The header.
    pub header: Header,
    /// The data.
    pub data: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Parses the payload of a packet, and verifies the segment's checksum (MUST-3).
    ///
    /// # Errors
    /// If the segment is malformed.
    pub fn parse(
        bytes: &'a [u8],
        source: Ipv4Addr,
        destination: Ipv4Addr,
    ) -> Result<Segment<'a>, Malformed> {
        let fixed: &[u8; HEADER] = bytes.first_chunk().ok_or(Malformed::Short)?;
        let &[.., offset, flags, window_high, window_low, _, _, _, _] = fixed;
        let length = usize::from(offset >> 4) * 4;
        if length < HEADER {
            return Err(Malformed::Header);
        }
        let options = bytes.get(HEADER..length).ok_or(Malformed::Short)?;
        let pseudo = pseudo_header(source, destination, Protocol::Tcp, bytes.len());
        if !pseudo.plus(Sum::of(bytes)).is_right() {
            return Err(Malformed::Checksum);
        }
        let header = Header {
            source: read_u16(fixed, 0).unwrap_or_default(),
            destination: read_u16(fixed, 2).unwrap_or_default(),
            sequence: Sequence(read_u32(fixed, 4).unwrap_or_default()),
            acknowledgment: Sequence(read_u32(fixed, 8).unwrap_or_default()),
            flags: Flags(flags & 0x3f),
            window: u16::from_be_bytes([window_high, window_low]),
            options: Options::parse(options),
        };
        let data = bytes.get(length..).unwrap_or_default();
        Ok(Segment { header, data })
    }

    /// The number of sequence numbers that the segment occupies: its data bytes, SYN and FIN.
    #[must_use]
    pub fn length(&self) -> u32 {
        let flags = self.header.flags;
        // A packet has less than 2^16 bytes.
        self.data.len() as u32 + u32::from(flags.has(Flags::SYN)) + u32::from(flags.has(Flags::FIN))
    }

    /// The sequence number after the segment.
    #[must_use]
    pub fn end(&self) -> Sequence {
        self.header.sequence + self.length()
    }
}

impl Header {
    /// Length of the header with its options, in bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        HEADER + self.options.length()
    }

    /// Writes the header to the start of `into`, with the checksum for data of the given sum and
    /// length.
    pub fn emit(
        &self,
        into: &mut [u8],
        (source, destination): (Ipv4Addr, Ipv4Addr),
        (data, data_length): (Sum, usize),
    ) {
        let length = self.length();
        let options = into.get_mut(HEADER..length).unwrap_or_default();
        self.options.emit(options);
        let ports = u32::from(self.source) << 16 | u32::from(self.destination);
        let (sequence, acknowledgment) = (self.sequence.0, self.acknowledgment.0);
        let controls =
            (length as u32 / 4) << 28 | u32::from(self.flags.0) << 16 | u32::from(self.window);
        let words = [ports, sequence, acknowledgment, controls];
        let total = words.iter().map(|word| u64::from(*word)).sum();
        let sum = pseudo_header(source, destination, Protocol::Tcp, length + data_length)
            .plus(Sum::of_total(total))
            .plus(Sum::of(options))
            .plus(data);
        let checksum = u32::from(sum.checksum()) << 16;
        let fixed = [ports, sequence, acknowledgment, controls, checksum].map(u32::to_be_bytes);
        write(into, 0, fixed.as_flattened());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const TO: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    fn header(options: Options) -> Header {
        Header {
            source: 80,
            destination: 40_000,
            sequence: Sequence(0xfedc_ba98),
            acknowledgment: Sequence(7),
            flags: Flags::ACK.with(Flags::PSH),
            window: 501,
            options,
        }
    }

    fn bytes(header: &Header, data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; header.length()];
        header.emit(&mut bytes, (FROM, TO), (Sum::of(data), data.len()));
        bytes.extend_from_slice(data);
        bytes
    }

    fn all_options() -> Vec<Options> {
        let timestamps = Some(Timestamps {
            value: 1,
            echo: 0xffff_ffff,
        });
        let mut sack = SackBlocks::default();
        sack.push(Sequence(1), Sequence(2));
        sack.push(Sequence(u32::MAX), Sequence(5));
        vec![
            Options::default(),
            Options {
                segment_max: Some(1460),
                window_shift: Some(7),
                sack_permitted: true,
                timestamps,
                ..Options::default()
            },
            Options {
                segment_max: Some(536),
                sack_permitted: true,
                ..Options::default()
            },
            Options {
                timestamps,
                sack,
                ..Options::default()
            },
            Options {
                sack,
                ..Options::default()
            },
        ]
    }

    #[test]
    fn what_was_written_is_read() {
        for options in all_options() {
            let header = header(options);
            for data in [&b""[..], b"a", b"hello world"] {
                let bytes = bytes(&header, data);
                let read = Segment::parse(&bytes, FROM, TO);
                assert_eq!(read, Ok(Segment { header, data }));
            }
        }
    }

    #[test]
    fn a_bit_that_changed_is_noticed() {
        let right = bytes(&header(all_options()[1]), b"hello");
        for bit in 0..right.len() * 8 {
            let mut wrong = right.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(Segment::parse(&wrong, FROM, TO).is_err(), "bit {bit}");
        }
        assert_eq!(
            Segment::parse(&right, FROM, FROM),
            Err(Malformed::Checksum),
            "a segment for somebody else"
        );
        for end in 0..right.len() {
            assert!(Segment::parse(&right[..end], FROM, TO).is_err(), "{end}");
        }
    }

    #[test]
    fn options_that_lie_end_the_reading_and_unknown_ones_do_not() {
        let size = Some(1460);
        for (bytes, segment_max) in [
            (&[2, 4, 5, 180][..], size),
            (&[1, 1, 2, 4, 5, 180], size),
            (&[253, 4, 9, 9, 2, 4, 5, 180], size),
            (&[0, 2, 4, 5, 180], None),
            (&[253, 0, 2, 4, 5, 180], None),
            (&[253, 1, 2, 4, 5, 180], None),
            (&[253, 200, 2, 4, 5, 180], None),
            (&[2, 3, 5, 2, 4, 5, 180], size),
            (&[2, 4, 5], None),
            (&[2], None),
        ] {
            assert_eq!(Options::parse(bytes).segment_max, segment_max, "{bytes:?}");
        }
        assert_eq!(Options::parse(&[3, 3, 200]).window_shift, Some(14));
        let five = [[5, 42].to_vec(), vec![1; 40]].concat();
        assert_eq!(Options::parse(&five).sack.as_slice().len(), 4);
        assert_eq!(
            Options::parse(&[5, 9, 1, 2, 3, 4, 5, 6, 7])
                .sack
                .as_slice()
                .len(),
            0
        );
    }
}
