//! Inspects a ClientHello for a proxy that does not terminate TLS, and that selects the upstream by
//! the server name.
//!
//! RFC 8446 section 4.1.2, RFC 6066 section 3 (names), RFC 7301 (ALPN), RFC 5246 appendix E.2 (the
//! SSL 2.0 format). Other parts are skipped without validation: the upstream server may reject
//! them.

use super::client_hello::{HANDSHAKE, RECORD_HEADER, is_grease};

/// The version of TLS 1.3.
pub const TLS13: u16 = 0x0304;

/// Length of a handshake message's header: type and length, in bytes.
const MESSAGE_HEADER: usize = 4;
const CLIENT_HELLO: u8 = 1;

const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;

/// The inspected parts of a ClientHello.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHelloInfo {
    /// The server name as sent by the client; empty if there is none.
    pub server_name: Vec<u8>,
    /// The offered protocols (ALPN), separated by commas.
    pub protocols: Vec<u8>,
    /// The newest version offered; 2 for SSL 2.0.
    pub version: u16,
}

/// The result of inspecting the bytes received so far.
#[derive(Debug, PartialEq, Eq)]
pub enum PrereadResult {
    /// More bytes are needed.
    More,
    /// A complete ClientHello.
    Hello(ClientHelloInfo),
    /// Another protocol, or a malformed ClientHello.
    Other,
}

/// Inspects the client's first bytes as they arrive, split into any number of pieces and records.
/// Every record is processed only once.
#[derive(Debug, Default)]
pub struct Preread {
    /// Bytes of the complete records processed so far.
    at: usize,
    message: Vec<u8>,
}

impl Preread {
    /// Processes the bytes received since the last call. `bytes` is all input from the first byte
    /// on.
    pub fn go_on(&mut self, bytes: &[u8]) -> PrereadResult {
        loop {
            let rest = bytes.get(self.at..).unwrap_or_default();
            match rest {
                [] => return PrereadResult::More,
                [first, ..] if first & 0x80 == 0 && *first != HANDSHAKE => {
                    return PrereadResult::Other;
                }
                _ => {}
            }
            let Some(header) = rest.first_chunk::<RECORD_HEADER>() else {
                return PrereadResult::More;
            };
            let length = match *header {
                [first, _, CLIENT_HELLO, high @ (0 | 3), low] if first & 0x80 != 0 => {
                    return PrereadResult::Hello(ClientHelloInfo {
                        version: u16::from_be_bytes([high, low]),
                        ..ClientHelloInfo::default()
                    });
                }
                [HANDSHAKE, 3, _, high, low] => usize::from(u16::from_be_bytes([high, low])),
                _ => return PrereadResult::Other,
            };
            let Some(content) = rest.get(RECORD_HEADER..RECORD_HEADER + length) else {
                return PrereadResult::More;
            };
            self.message.extend_from_slice(content);
            self.at += RECORD_HEADER + length;
            if self
                .message
                .first()
                .is_some_and(|kind| *kind != CLIENT_HELLO)
            {
                return PrereadResult::Other;
            }
            let Some(&[_, high, middle, low]) = self.message.first_chunk::<MESSAGE_HEADER>() else {
                continue;
            };
            let length = u32::from_be_bytes([0, high, middle, low]) as usize;
            if let Some(message) = self.message.get(MESSAGE_HEADER..MESSAGE_HEADER + length) {
                return read(message).map_or(PrereadResult::Other, PrereadResult::Hello);
            }
        }
    }
}

/// Parses a ClientHello; `None` if it ends too early.
fn read(message: &[u8]) -> Option<ClientHelloInfo> {
    let mut rest = Rest(message);
    let mut seen = ClientHelloInfo {
        version: rest.u16()?,
        ..ClientHelloInfo::default()
    };
    rest.take(32)?; // random
    let session_id = rest.u8()?;
    rest.take(session_id.into())?;
    let ciphers = rest.u16()?;
    rest.take(ciphers.into())?;
    let compressions = rest.u8()?;
    rest.take(compressions.into())?;
    if rest.0.is_empty() {
        return Some(seen);
    }
    rest.u16()?; // length of the extensions
    while !rest.0.is_empty() {
        let kind = rest.u16()?;
        let length = rest.u16()?;
        match kind {
            SERVER_NAME if seen.server_name.is_empty() => {
                let list = rest.u16()?;
                let mut list = Rest(rest.take(list.into())?);
                if list.u8()? != 0 {
                    return None; // no other type of name is defined
                }
                let name = list.u16()?;
                seen.server_name = list.take(name.into())?.to_vec();
            }
            ALPN if seen.protocols.is_empty() => {
                let list = rest.u16()?;
                let mut list = Rest(rest.take(list.into())?);
                while !list.0.is_empty() {
                    let length = list.u8()?;
                    let protocol = list.take(length.into()).filter(|name| !name.is_empty())?;
                    if !seen.protocols.is_empty() {
                        seen.protocols.push(b',');
                    }
                    seen.protocols.extend_from_slice(protocol);
                }
            }
            SUPPORTED_VERSIONS => {
                let list = rest.u8()?;
                let list = rest.take(list.into())?;
                seen.version = newest(list).unwrap_or(seen.version);
            }
            _ => {
                rest.take(length.into())?;
            }
        }
    }
    Some(seen)
}

/// The newest version in a list. Drafts of TLS 1.3 count as TLS 1.3.
fn newest(list: &[u8]) -> Option<u16> {
    let (versions, _) = list.as_chunks::<2>();
    let versions = versions.iter().map(|bytes| u16::from_be_bytes(*bytes));
    let known = versions.filter(|version| !is_grease(*version));
    known
        .map(|version| if version >> 8 == 0x7f { TLS13 } else { version })
        .max()
}

/// The unread rest of a message.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ClientHello with these extensions, in one record.
    fn hello(extensions: &[(u16, &[u8])]) -> Vec<u8> {
        let mut all = Vec::new();
        for (kind, content) in extensions {
            all.extend_from_slice(&kind.to_be_bytes());
            all.extend_from_slice(&(content.len() as u16).to_be_bytes());
            all.extend_from_slice(content);
        }
        let mut message = vec![3, 3];
        message.extend_from_slice(&[7; 32]);
        message.extend_from_slice(&[0, 0, 2, 0x13, 1, 1, 0]);
        message.extend_from_slice(&(all.len() as u16).to_be_bytes());
        message.extend_from_slice(&all);
        let mut record = vec![HANDSHAKE, 3, 1];
        record.extend_from_slice(&(message.len() as u16 + 4).to_be_bytes());
        record.push(CLIENT_HELLO);
        record.extend_from_slice(&(message.len() as u32).to_be_bytes()[1..]);
        record.extend_from_slice(&message);
        record
    }

    fn seen(name: &str, protocols: &str, version: u16) -> PrereadResult {
        PrereadResult::Hello(ClientHelloInfo {
            server_name: name.into(),
            protocols: protocols.into(),
            version,
        })
    }

    const NAME: (u16, &[u8]) = (0, b"\0\x0b\0\0\x08some.one");
    const PROTOCOLS: (u16, &[u8]) = (16, b"\0\x0c\x02h2\x08http/1.1");
    const VERSIONS: (u16, &[u8]) = (43, b"\x08\x7a\x7a\x03\x04\x03\x03\x03\x02");

    #[test]
    fn names_protocols_and_versions() {
        let all = hello(&[(0xfafa, b"x"), NAME, (51, b"key"), PROTOCOLS, VERSIONS]);
        let expected = seen("some.one", "h2,http/1.1", TLS13);
        assert_eq!(Preread::default().go_on(&all), expected);
        for (versions, version) in [
            (&b"\x02\x03\x03"[..], 0x0303),
            (b"\x02\x7f\x1c", TLS13),
            (b"\x02\x0a\x0a", 0x0303),
            (b"\0", 0x0303),
        ] {
            let bytes = hello(&[(43, versions)]);
            assert_eq!(Preread::default().go_on(&bytes), seen("", "", version));
        }
        assert_eq!(Preread::default().go_on(&hello(&[])), seen("", "", 0x0303));
    }

    #[test]
    fn pieces_and_records_of_any_length() {
        let all = hello(&[NAME, PROTOCOLS, VERSIONS]);
        let expected = seen("some.one", "h2,http/1.1", TLS13);
        for size in 1..all.len() {
            let mut records = Vec::new();
            for part in all[5..].chunks(size) {
                records.extend_from_slice(&[HANDSHAKE, 3, 3]);
                records.extend_from_slice(&(part.len() as u16).to_be_bytes());
                records.extend_from_slice(part);
            }
            let mut preread = Preread::default();
            for at in 0..records.len() {
                assert_eq!(
                    preread.go_on(&records[..at]),
                    PrereadResult::More,
                    "{at} of {size}"
                );
            }
            assert_eq!(preread.go_on(&records), expected);
        }
    }

    #[test]
    fn other_things() {
        let name_of_other_kind = hello(&[(0, b"\0\x0b\x01\0\x08some.one")]);
        let name_too_long = hello(&[(0, b"\0\x0b\0\0\x09some.one")]);
        let empty_protocol = hello(&[(16, b"\0\x01\0")]);
        for bytes in [
            b"SSH-2.0-x\r\n",
            b"\x16\x02\0\0\x04".as_slice(),
            b"\x16\x03\x01\0\x04\x02\0\0\0",
            b"\x80\x2e\x02\x03\x01",
            &name_of_other_kind,
            &name_too_long,
            &empty_protocol,
        ] {
            assert_eq!(
                Preread::default().go_on(bytes),
                PrereadResult::Other,
                "{bytes:?}"
            );
        }
        let old = b"\x80\x2e\x01\0\x02";
        assert_eq!(Preread::default().go_on(old), seen("", "", 2));
        assert_eq!(Preread::default().go_on(&old[..4]), PrereadResult::More);
    }
}
