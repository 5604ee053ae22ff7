//! Formats of what travels: Ethernet, ARP, IPv4, ICMP and TCP.
//!
//! A type of this room is either a view of bytes that were checked (`parse` says what was wrong
//! with them), or writes itself into bytes (`emit`). Nothing here remembers anything.

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod icmp;
pub mod ipv4;
pub mod sequence;
pub mod tcp;

/// Why bytes are not what they say they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// There are fewer bytes than the header has, or says that there are.
    Short,
    /// A length or a version that no header of the kind has.
    Header,
    /// The checksum does not match.
    Checksum,
}

/// The two bytes at `at`, in the order of the network.
fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at + 2)?.first_chunk()?;
    Some(u16::from_be_bytes(*two))
}

/// The four bytes at `at`, in the order of the network.
fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at + 4)?.first_chunk()?;
    Some(u32::from_be_bytes(*four))
}

/// Writes `part` at `at`, where there is room for it.
fn write(into: &mut [u8], at: usize, part: &[u8]) {
    if let Some(place) = into.get_mut(at..at + part.len()) {
        place.copy_from_slice(part);
    }
}
