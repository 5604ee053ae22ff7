//! Ethernet II frames, without VLAN tags.

use super::{Malformed, read_u16, write};

/// Length of a frame's header, in bytes.
pub const HEADER: usize = 14;

/// A hardware address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The address of all stations.
    pub const BROADCAST: MacAddress = MacAddress([0xff; 6]);

    /// Whether the address can belong to a single station: it is neither a group address nor zero.
    #[must_use]
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self != MacAddress::default()
    }
}

/// The protocol of a frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtherType {
    /// IPv4 (0x0800).
    Ipv4,
    /// ARP (0x0806).
    Arp,
    /// Another protocol, by its number.
    Other(u16),
}

impl EtherType {
    fn from_number(number: u16) -> EtherType {
        match number {
            0x0800 => EtherType::Ipv4,
            0x0806 => EtherType::Arp,
            other => EtherType::Other(other),
        }
    }

    fn number(self) -> u16 {
        match self {
            EtherType::Ipv4 => 0x0800,
            EtherType::Arp => 0x0806,
            EtherType::Other(other) => other,
        }
    }
}

/// The header of an Ethernet frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The hardware address of the receiver.
    pub destination: MacAddress,
    /// The hardware address of the sender.
    pub source: MacAddress,
    /// The protocol of the payload.
    pub kind: EtherType,
}

impl Header {
    /// Parses the header of a frame. Returns it with the payload.
    ///
    /// # Errors
    /// `Short` if the frame is shorter than a header.
    pub fn parse(frame: &[u8]) -> Result<(Header, &[u8]), Malformed> {
        let (destination, rest) = frame.split_first_chunk::<6>().ok_or(Malformed::Short)?;
        let source = rest.first_chunk::<6>().ok_or(Malformed::Short)?;
        let kind = read_u16(frame, 12).ok_or(Malformed::Short)?;
        let header = Header {
            destination: MacAddress(*destination),
            source: MacAddress(*source),
            kind: EtherType::from_number(kind),
        };
        Ok((header, frame.get(HEADER..).unwrap_or_default()))
    }

    /// Writes the header to the start of `into`.
    pub fn emit(&self, into: &mut [u8]) {
        write(into, 0, &self.destination.0);
        write(into, 6, &self.source.0);
        write(into, 12, &self.kind.number().to_be_bytes());
    }
}
