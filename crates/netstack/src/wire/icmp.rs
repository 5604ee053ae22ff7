//! The parts of ICMP that TCP and `ping` need (RFC 792; RFC 1191 for the MTU of the next hop).

use std::net::{Ipv4Addr, SocketAddrV4};

use super::checksum::{self, Sum};
use super::{Malformed, read_u16, read_u32, write};

/// A received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// An echo request ("ping"): the whole message, which the reply repeats.
    EchoRequest(&'a [u8]),
    /// A report that a segment of ours was not delivered.
    Unreachable(Unreachable),
    /// Any other message, which needs no handling.
    Other,
}

/// The report that a segment of ours was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// The reason.
    pub why: Why,
    /// Our address and port, from the quoted segment.
    pub local: SocketAddrV4,
    /// The peer's address and port, from the quoted segment.
    pub remote: SocketAddrV4,
    /// The sequence number of the quoted segment.
    pub sequence: u32,
}

/// Why a segment was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The packet was larger than the MTU of the next hop: this number, or 0 if the router does
    /// not say.
    FragmentationNeeded(u16),
    /// The host does not support the protocol, or the port has no listener: a hard error (RFC 1122,
    /// section 4.2.3.9).
    Refused,
    /// There is no route at the moment, or the packet's time to live has expired: a soft error.
    NoRoute,
}

impl<'a> Message<'a> {
    /// Parses a message and verifies its checksum. Reports about packets of other protocols than
    /// TCP are `Other`.
    ///
    /// # Errors
    /// If the message is malformed.
    pub fn parse(bytes: &'a [u8]) -> Result<Message<'a>, Malformed> {
        let &[kind, code, ..] = bytes else {
            return Err(Malformed::Short);
        };
        if bytes.len() < 8 {
            return Err(Malformed::Short);
        }
        if !Sum::of(bytes).is_right() {
            return Err(Malformed::Checksum);
        }
        let why = match (kind, code) {
            (8, 0) => return Ok(Message::EchoRequest(bytes)),
            (3, 4) => Why::FragmentationNeeded(read_u16(bytes, 6).unwrap_or_default()),
            (3, 2 | 3) => Why::Refused,
            (3 | 11, _) => Why::NoRoute,
            _ => return Ok(Message::Other),
        };
        let quoted = bytes.get(8..).unwrap_or_default();
        Ok(quoted_segment(quoted, why).map_or(Message::Other, Message::Unreachable))
    }
}

/// The segment that a message quotes, by the packet's header and at least eight bytes after it.
fn quoted_segment(packet: &[u8], why: Why) -> Option<Unreachable> {
    let first = *packet.first()?;
    let header = usize::from(first & 15) * 4;
    if first >> 4 != 4 || header < 20 || packet.get(9) != Some(&6) {
        return None;
    }
    let ip = |at| read_u32(packet, at).map(Ipv4Addr::from_bits);
    Some(Unreachable {
        why,
        local: SocketAddrV4::new(ip(12)?, read_u16(packet, header)?),
        remote: SocketAddrV4::new(ip(16)?, read_u16(packet, header + 2)?),
        sequence: read_u32(packet, header + 4)?,
    })
}

/// Writes the reply to an echo request to the start of `into`.
pub fn emit_echo_reply(request: &[u8], into: &mut [u8]) {
    write(into, 0, request);
    let was = read_u16(request, 2).unwrap_or_default();
    write(into, 0, &[0, 0]);
    write(into, 2, &checksum::updated(was, 0x0800, 0).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
        let checksum = Sum::of(&bytes).checksum();
        bytes[2..4].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    #[test]
    fn an_echo_is_the_request_with_another_type_and_checksum() {
        let request = with_checksum(b"\x08\0\0\0\0\x01\0\x02abc".to_vec());
        assert_eq!(
            Message::parse(&request),
            Ok(Message::EchoRequest(&request[..]))
        );
        let mut reply = vec![0; request.len()];
        emit_echo_reply(&request, &mut reply);
        assert_eq!(reply[0], 0);
        assert_eq!(reply[4..], request[4..]);
        assert!(Sum::of(&reply).is_right());
    }

    #[test]
    fn a_message_about_a_segment_names_it() {
        let mut bytes = vec![3, 4, 0, 0, 0, 0, 0x05, 0x14];
        bytes.extend_from_slice(&[0x45, 0, 0, 60, 0, 0, 0, 0, 64, 6, 0, 0]);
        bytes.extend_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend_from_slice(&[0, 80, 0x9c, 0x40, 1, 2, 3, 4]);
        let whole = with_checksum(bytes.clone());
        let read = Message::parse(&whole);
        let Ok(Message::Unreachable(unreachable)) = read else {
            panic!("{read:?}");
        };
        assert_eq!(unreachable.why, Why::FragmentationNeeded(1300));
        assert_eq!(unreachable.local, "10.0.0.1:80".parse().unwrap());
        assert_eq!(unreachable.remote, "10.0.0.2:40000".parse().unwrap());
        assert_eq!(unreachable.sequence, 0x0102_0304);
        // Cut short, about UDP, or damaged.
        let cut = with_checksum(bytes[..bytes.len() - 1].to_vec());
        assert_eq!(Message::parse(&cut), Ok(Message::Other));
        let mut udp = bytes.clone();
        udp[17] = 17;
        assert_eq!(Message::parse(&with_checksum(udp)), Ok(Message::Other));
        assert_eq!(Message::parse(&bytes), Err(Malformed::Checksum));
        assert_eq!(Message::parse(&bytes[..7]), Err(Malformed::Short));
    }
}
