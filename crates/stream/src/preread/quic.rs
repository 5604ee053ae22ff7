//! The handshake of TLS in the first datagrams of a client of QUIC.
//!
//! RFC 9001 section 5.2: the keys of Initial packets follow from the connection ID that the client
//! has drawn for its first one, so that any observer of that one can remove their protection.

use proto::tls::preread::{self, PrereadResult};
use rustls::Side;
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::{self, DirectionalKeys, Keys};

use super::initial::{CryptoStream, Version, initial};

/// Bytes that a packet's number has at most; the sample that its protection is made of stands
/// behind as many.
const NUMBER_MAX: usize = 4;

/// The type of records of handshakes.
const HANDSHAKE: u8 = 22;

/// Looks at a client's datagrams one after the other.
pub(super) struct QuicPreread {
    /// Those of the client's packets, once the first has come.
    keys: Option<DirectionalKeys>,
    stream: CryptoStream,
}

impl QuicPreread {
    /// One that looks at a ClientHello of so many bytes.
    pub(super) fn new(length_max: usize) -> QuicPreread {
        QuicPreread {
            keys: None,
            stream: CryptoStream::new(length_max),
        }
    }

    /// Looks at a further datagram.
    pub(super) fn go_on(&mut self, datagram: &[u8]) -> PrereadResult {
        let mut at = 0;
        let mut has_initial = false;
        // Several packets may come in one datagram; those behind the Initial ones say nothing here.
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
        // What comes behind the first Initial packets, such as data in 0-RTT, may overtake them.
        if !has_initial && self.keys.is_none() {
            return PrereadResult::Other;
        }
        hello(self.stream.beginning())
    }
}

/// What the beginning of a handshake comes to. QUIC has no records: it is given one for each time it
/// is looked at.
fn hello(message: &[u8]) -> PrereadResult {
    let Ok(length) = u16::try_from(message.len()) else {
        return PrereadResult::Other;
    };
    let [high, low] = length.to_be_bytes();
    let record = [&[HANDSHAKE, 3, 1, high, low], message].concat();
    preread::Preread::default().go_on(&record)
}

/// The keys of a client whose first packet was sent to this connection ID.
fn client_keys(version: Version, destination: &[u8]) -> Option<DirectionalKeys> {
    let version = match version {
        Version::V1 => quic::Version::V1,
        Version::V2 => quic::Version::V2,
    };
    let suite = TLS13_AES_128_GCM_SHA256.tls13()?;
    let keys = Keys::initial(version, suite, suite.quic?, destination, Side::Server);
    Some(keys.remote)
}

/// The frames of a packet, whose number begins at this place of it; `None` where the packet is not
/// what its keys say.
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
    // A client's first packets have the first numbers: none of them is cut.
    let number = bytes
        .iter()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let (header, payload) = packet.split_at_mut_checked(number_at + length)?;
    let opened = keys.packet.decrypt_in_place(number, header, payload).ok()?;
    Some(opened.to_vec())
}
