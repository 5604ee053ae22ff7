//! IPv4 (RFC 791; RFC 1122, section 3.2). Packets that we send have no options and must not be
//! fragmented, so that their identification may be 0 (RFC 6864, section 4.1).

use std::net::Ipv4Addr;

use super::checksum::Sum;
use super::{Malformed, read_u16, read_u32, write};

/// Length of a header without options, in bytes.
pub const HEADER: usize = 20;

/// Maximum number of routers on the way of a packet that we send (RFC 1700, and the default of most
/// systems).
const TIME_TO_LIVE: u8 = 64;

const DO_NOT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// The protocol of a packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// ICMP (1).
    Icmp,
    /// TCP (6).
    Tcp,
    /// Another protocol, by its number.
    Other(u8),
}

impl Protocol {
    fn from_number(number: u8) -> Protocol {
        match number {
            1 => Protocol::Icmp,
            6 => Protocol::Tcp,
            other => Protocol::Other(other),
        }
    }

    /// The protocol's number in an IPv4 header.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Protocol::Icmp => 1,
            Protocol::Tcp => 6,
            Protocol::Other(other) => other,
        }
    }
}

/// A received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The address of the sender.
    pub source: Ipv4Addr,
    /// The address of the receiver.
    pub destination: Ipv4Addr,
    /// The protocol of the payload.
    pub protocol: Protocol,
    /// Whether this is a fragment of a larger packet.
    pub is_fragment: bool,
    /// Whether the options contain a source route.
    pub is_source_routed: bool,
    /// The data after the header, without Ethernet's padding.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses a packet and verifies its header's checksum.
    ///
    /// # Errors
    /// If the header is malformed.
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let first = *bytes.first().ok_or(Malformed::Short)?;
        let header_length = usize::from(first & 0x0f) * 4;
        if first >> 4 != 4 || header_length < HEADER {
            return Err(Malformed::Header);
        }
        let header = bytes.get(..header_length).ok_or(Malformed::Short)?;
        let fixed: &[u8; HEADER] = bytes.first_chunk().ok_or(Malformed::Short)?;
        let length = read_u16(fixed, 2).map_or(0, usize::from);
        let payload = bytes.get(header_length..length).ok_or(Malformed::Short)?;
        if !Sum::of(header).is_right() {
            return Err(Malformed::Checksum);
        }
        let fragment = read_u16(fixed, 6).unwrap_or_default();
        let address = |at| Ipv4Addr::from_bits(read_u32(fixed, at).unwrap_or_default());
        let protocol = fixed.get(9).copied().unwrap_or_default();
        let options = header.get(HEADER..).unwrap_or_default();
        Ok(Packet {
            source: address(12),
            destination: address(16),
            protocol: Protocol::from_number(protocol),
            is_fragment: fragment & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0,
            is_source_routed: is_source_routed(options),
            payload,
        })
    }
}

/// Whether the options contain a loose (131) or strict (137) source route.
fn is_source_routed(mut options: &[u8]) -> bool {
    loop {
        match *options {
            [131 | 137, ..] => return true,
            [1, ref rest @ ..] => options = rest,
            [0, ..] | [] | [_] => return false,
            [_, length, ..] => match options.get(usize::from(length).max(2)..) {
                Some(rest) => options = rest,
                None => return false,
            },
        }
    }
}

/// The header of a packet to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The address of the sender.
    pub source: Ipv4Addr,
    /// The address of the receiver.
    pub destination: Ipv4Addr,
    /// The protocol of the payload.
    pub protocol: Protocol,
    /// Length of the data after the header, in bytes.
    pub payload: usize,
}

impl Header {
    /// Writes the header with its checksum to the start of `into`.
    pub fn emit(&self, into: &mut [u8]) {
        let length = u16::try_from(HEADER + self.payload).unwrap_or(u16::MAX);
        let first = 0x4500_0000 | u32::from(length);
        let second = u32::from(DO_NOT_FRAGMENT);
        let life = u32::from(TIME_TO_LIVE) << 24 | u32::from(self.protocol.number()) << 16;
        let (source, destination) = (self.source.to_bits(), self.destination.to_bits());
        let words = [first, second, life, source, destination];
        let total = words.iter().map(|word| u64::from(*word)).sum();
        let third = life | u32::from(Sum::of_total(total).checksum());
        write(
            into,
            0,
            [first, second, third, source, destination]
                .map(u32::to_be_bytes)
                .as_flattened(),
        );
    }
}

/// The sum of the pseudo header, which TCP's checksum covers besides the segment (RFC 9293, section
/// 3.1). `length` is that of the segment.
#[must_use]
pub fn pseudo_header(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    protocol: Protocol,
    length: usize,
) -> Sum {
    let length = u16::try_from(length).unwrap_or(u16::MAX);
    let ends = u64::from(source.to_bits()) + u64::from(destination.to_bits());
    Sum::of_total(ends + u64::from(protocol.number()) + u64::from(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        let header = Header {
            source: Ipv4Addr::new(10, 0, 0, 1),
            destination: Ipv4Addr::new(10, 0, 0, 2),
            protocol: Protocol::Tcp,
            payload: payload.len(),
        };
        header.emit(&mut bytes);
        bytes.extend_from_slice(payload);
        bytes
    }

    /// Changes one byte of a header and makes its checksum right again.
    fn with(mut bytes: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
        bytes[at] = value;
        bytes[10..12].fill(0);
        let length = usize::from(bytes[0] & 15) * 4;
        let checksum = Sum::of(&bytes[..length.min(bytes.len())]).checksum();
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    #[test]
    fn what_was_written_is_read_without_what_ethernet_fills_up() {
        let mut bytes = packet(b"hello");
        bytes.extend_from_slice(&[0; 21]);
        let read = Packet::parse(&bytes).unwrap();
        assert_eq!(read.payload, b"hello");
        assert_eq!(read.source, Ipv4Addr::new(10, 0, 0, 1));
        assert!(!read.is_fragment);
    }

    #[test]
    fn lengths_that_lie_and_wrong_sums_are_refused() {
        let right = packet(b"hello");
        assert_eq!(Packet::parse(&[]), Err(Malformed::Short));
        for end in 1..right.len() {
            assert!(Packet::parse(&right[..end]).is_err(), "{end}");
        }
        assert_eq!(
            Packet::parse(&with(right.clone(), 3, 200)),
            Err(Malformed::Short)
        );
        // Shorter than its own header.
        assert_eq!(
            Packet::parse(&with(right.clone(), 3, 19)),
            Err(Malformed::Short)
        );
        assert_eq!(
            Packet::parse(&with(right.clone(), 0, 0x44)),
            Err(Malformed::Header)
        );
        assert_eq!(
            Packet::parse(&with(right.clone(), 0, 0x65)),
            Err(Malformed::Header)
        );
        for at in 0..HEADER {
            let mut wrong = right.clone();
            wrong[at] ^= 0x10;
            assert!(Packet::parse(&wrong).is_err(), "byte {at}");
        }
    }

    #[test]
    fn fragments_are_told_and_the_bit_against_them_is_none() {
        let right = packet(b"hello");
        assert_eq!(right[6], 0x40);
        for (high, low) in [(0x20, 0), (0, 1), (0x1f, 0xff)] {
            let fragment = with(with(right.clone(), 6, high), 7, low);
            assert!(Packet::parse(&fragment).unwrap().is_fragment);
        }
    }

    #[test]
    fn options_are_skipped_and_source_routes_seen() {
        let with_options = |options: &[u8; 4]| {
            let mut bytes = packet(b"hello");
            bytes.splice(20..20, *options);
            with(with(bytes, 0, 0x46), 3, 29)
        };
        for (options, routed) in [
            ([1, 1, 1, 0], false),
            ([131, 3, 4, 0], true),
            ([1, 137, 3, 4], true),
            ([7, 0, 0, 0], false),
            ([7, 200, 0, 0], false),
            ([0, 131, 3, 4], false),
        ] {
            let bytes = with_options(&options);
            let read = Packet::parse(&bytes).unwrap();
            assert_eq!(read.payload, b"hello");
            assert_eq!(read.is_source_routed, routed, "{options:?}");
        }
    }
}
