//! ARP for IPv4 over Ethernet (RFC 826).

use std::net::Ipv4Addr;

use super::ethernet::MacAddress;
use super::{Malformed, read_u16, read_u32, write};

/// Length of a message, in bytes.
pub const LENGTH: usize = 28;

/// The operation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A question for the hardware address of the target.
    Request,
    /// An announcement of the sender's hardware address.
    Reply,
}

/// An ARP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The operation.
    pub operation: Operation,
    /// The hardware address of the sender.
    pub sender_mac: MacAddress,
    /// The IPv4 address of the sender; unspecified in a probe (RFC 5227).
    pub sender: Ipv4Addr,
    /// The hardware address of the target; meaningless in a request.
    pub target_mac: MacAddress,
    /// The IPv4 address of the target.
    pub target: Ipv4Addr,
}

impl Message {
    /// Parses a message.
    ///
    /// # Errors
    /// `Short` if bytes are missing; `Header` if the message is not about IPv4 over Ethernet, or
    /// has another operation.
    pub fn parse(bytes: &[u8]) -> Result<Message, Malformed> {
        if bytes.len() < LENGTH {
            return Err(Malformed::Short);
        }
        let is_ours = bytes.starts_with(&[0, 1, 8, 0, 6, 4]);
        let operation = match read_u16(bytes, 6) {
            Some(1) if is_ours => Operation::Request,
            Some(2) if is_ours => Operation::Reply,
            _ => return Err(Malformed::Header),
        };
        let mac = |at: usize| {
            let six = bytes.get(at..).and_then(<[u8]>::first_chunk);
            MacAddress(six.copied().unwrap_or_default())
        };
        let address = |at| Ipv4Addr::from_bits(read_u32(bytes, at).unwrap_or_default());
        Ok(Message {
            operation,
            sender_mac: mac(8),
            sender: address(14),
            target_mac: mac(18),
            target: address(24),
        })
    }

    /// Writes the message to the start of `into`.
    pub fn emit(&self, into: &mut [u8]) {
        let operation: u16 = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
        };
        write(into, 0, &[0, 1, 8, 0, 6, 4]);
        write(into, 6, &operation.to_be_bytes());
        write(into, 8, &self.sender_mac.0);
        write(into, 14, &self.sender.octets());
        write(into, 18, &self.target_mac.0);
        write(into, 24, &self.target.octets());
    }
}
