//! The TLS handshake in the first datagrams of a QUIC client.
//!
//! RFC 9001 section 5.2: the keys of Initial packets are derived from the connection ID that the
//! client has chosen for its first packet, so any observer of that packet can remove their
//! protection.

use proto::tls::preread::{self, PrereadResult};
use rustls::Side;
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::{self, DirectionalKeys, Keys};

use super::initial::{CryptoStream, Version, initial};

/// Maximum length of a packet number, in bytes; the sample for header protection starts at this
/// distance from the start of the packet number.
const NUMBER_MAX: usize = 4;

/// The record type of handshake messages.
const HANDSHAKE: u8 = 22;

/// Parses a client's datagrams in order.
pub(super) struct QuicPreread {
    /// The keys of the client's packets, once the first has arrived.
    keys: Option<DirectionalKeys>,
    stream: CryptoStream,
}

impl QuicPreread {
    /// A parser for a ClientHello of at most `length_max` bytes.
    pub(super) fn new(length_max: usize) -> QuicPreread {
        QuicPreread {
            keys: None,
            stream: CryptoStream::new(length_max),
        }
    }

    /// Parses the next datagram.
    pub(super) fn go_on(&mut self, datagram: &[u8]) -> PrereadResult {
        let mut at = 0;
        let mut has_initial = false;
        // A datagram may contain several packets; those after the Initial packets are not needed.
        while let Some(found) = initial(datagram, at) {
            if self.keys.is_none() {
                self.keys = client_keys(found.version, found.destination.of(datagram));
            }
            let Some(keys) = &self.keys else {
                return PrereadResult::Other;
            };
            let packet = found.packet.of(datagram);
            let payload = unprotected(keys, packet, found.number_at - at);
            let Some(payload) = payload else {
                return PrereadResult::Other;
            };
            if !self.stream.take_frames(&payload) {
                return PrereadResult::Other;
            }
            has_initial = true;
            at += packet.len();
        }
        // Once an Initial packet has arrived, datagrams without one are tolerated: packets that the
        // client has sent later, such as 0-RTT data, may overtake its further Initial packets.
        if !has_initial && self.keys.is_none() {
            return PrereadResult::Other;
        }
        hello(self.stream.beginning())
    }
}

/// Parses the beginning of a handshake. QUIC has no records, so the bytes are wrapped in a record
/// for each attempt.
fn hello(message: &[u8]) -> PrereadResult {
    let Ok(length) = u16::try_from(message.len()) else {
        return PrereadResult::Other;
    };
    let [high, low] = length.to_be_bytes();
    let record = [&[HANDSHAKE, 3, 1, high, low], message].concat();
    preread::Preread::default().go_on(&record)
}

/// The keys of a client whose first packet has this destination connection ID.
fn client_keys(version: Version, destination: &[u8]) -> Option<DirectionalKeys> {
    let version = match version {
        Version::V1 => quic::Version::V1,
        Version::V2 => quic::Version::V2,
    };
    let suite = TLS13_AES_128_GCM_SHA256.tls13()?;
    let keys = Keys::initial(version, suite, suite.quic?, destination, Side::Server);
    Some(keys.remote)
}

/// The frames of a packet whose packet number starts at this offset; `None` if the packet does not
/// match the keys.
fn unprotected(keys: &DirectionalKeys, packet: &[u8], number_at: usize) -> Option<Vec<u8>> {
    let mut packet = packet.to_vec();
    let (header, rest) = packet.split_at_mut_checked(number_at)?;
    let (number, behind) = rest.split_at_mut_checked(NUMBER_MAX)?;
    let sample = behind.get(..keys.header.sample_len())?;
    let first = header.first_mut()?;
    let removed = keys.header.decrypt_in_place(sample, first, number);
    removed.ok()?;
    let length = usize::from(*first & 0x03) + 1;
    let bytes = number.get(..length)?;
    // A client's first packet numbers are small, so that they are never truncated.
    let number = bytes
        .iter()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let (header, payload) = packet.split_at_mut_checked(number_at + length)?;
    let opened = keys.packet.decrypt_in_place(number, header, payload).ok()?;
    Some(opened.to_vec())
}
