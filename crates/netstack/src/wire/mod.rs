//! Packet formats: Ethernet, ARP, IPv4, ICMP and TCP.
//!
//! `parse` validates received bytes and returns a view of them; `emit` writes a header. The types
//! have no other state.

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod icmp;
pub mod ipv4;
pub mod sequence;
pub mod tcp;

/// Why received bytes could not be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// There are fewer bytes than the header needs, or than its length field says.
    Short,
    /// The header has an invalid length or version.
    Header,
    /// The checksum is wrong.
    Checksum,
}

/// The big-endian 16-bit word at offset `at`.
fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at + 2)?.first_chunk()?;
    Some(u16::from_be_bytes(*two))
}

/// The big-endian 32-bit word at offset `at`.
fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at + 4)?.first_chunk()?;
    Some(u32::from_be_bytes(*four))
}

/// Writes `part` at offset `at`, if there is room for all of it.
fn write(into: &mut [u8], at: usize, part: &[u8]) {
    if let Some(place) = into.get_mut(at..at + part.len()) {
        place.copy_from_slice(part);
    }
}
