//! The ClientHello: assembled from records, and parsed.

use std::borrow::Cow;
use std::fmt;

use crate::Span;

/// Maximum length of a ClientHello with its record headers, in bytes. rustls accepts none that is
/// longer.
pub const HELLO_SIZE_MAX: usize = 64 * 1024;

/// Length of a record's header: type, version and length, in bytes.
pub(super) const RECORD_HEADER: usize = 5;

/// Record types (RFC 8446 section 5.1).
const CHANGE_CIPHER_SPEC: u8 = 20;
pub(super) const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

/// Maximum content of a plaintext record, in bytes (RFC 8446 section 5.1).
const PLAIN_MAX: usize = 1 << 14;

/// Maximum content of an encrypted record, in bytes (RFC 5246 section 6.2.3; less in TLS 1.3).
const SEALED_MAX: usize = (1 << 14) + 2048;

/// The handshake type of a ClientHello.
const CLIENT_HELLO: u8 = 1;

/// Length of a handshake message's header: type and length, in bytes.
const MESSAGE_HEADER: usize = 4;

/// Cipher suites with ChaCha20-Poly1305 (RFC 7905 section 3, RFC 8446 appendix B.4): of TLS 1.3,
/// and of TLS 1.2 with ECDHE.
const CHACHA20_POLY1305: [u16; 3] = [0x1303, 0xcca8, 0xcca9];

const SERVER_NAME: u16 = 0;

/// The extension type that replaces a hidden `server_name`: reserved for private use (RFC 8447
/// section 7).
const HIDDEN: u16 = 0xff00;

/// Maximum length of a server name, in bytes, as in OpenSSL.
const NAME_SIZE_MAX: usize = 255;

const SUPPORTED_GROUPS: u16 = 10;
const SIGNATURE_ALGORITHMS: u16 = 13;
const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;

/// The result of inspecting the first bytes of a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum HelloScan {
    /// The beginning of a ClientHello; more bytes are needed.
    Incomplete,
    /// A complete ClientHello.
    Hello {
        /// The parsed message.
        hello: Box<ClientHello>,
        /// Length with its record headers, in bytes.
        length: usize,
    },
    /// The bytes can never become a ClientHello.
    Refused(HelloError),
    /// Another protocol, or a malformed ClientHello: the handshake will report the error.
    Other,
}

/// A parsed ClientHello: the fields that are needed before and after the handshake.
#[derive(Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// The message without its header.
    message: Vec<u8>,
    /// The field `legacy_version` of the message (RFC 8446 section 4.1.2).
    pub version: u16,
    ciphers: Span,
    /// Extensions in the client's order: type and content.
    extensions: Vec<(u16, Span)>,
}

/// Finds the ClientHello in the client's first bytes as they arrive. Bytes that have been processed
/// are not processed again, however the input is split.
#[derive(Debug, Default)]
pub struct HelloSearch {
    /// Bytes of the complete records processed so far.
    at: usize,
    /// Bytes of the message in those records.
    content: usize,
    /// The message's header, as far as those records contain it.
    header: [u8; MESSAGE_HEADER],
    /// Number of records examined; an incomplete record is examined again.
    #[cfg(test)]
    looks: usize,
}

impl HelloSearch {
    /// Processes the bytes received since the last call. `bytes` is all input from the connection's
    /// first byte on.
    pub fn go_on(&mut self, bytes: &[u8]) -> HelloScan {
        loop {
            #[cfg(test)]
            {
                self.looks += 1;
            }
            let rest = bytes.get(self.at..).unwrap_or_default();
            let fragment = match fragment(rest) {
                Ok(Some(fragment)) => fragment,
                Ok(None) if bytes.len() < HELLO_SIZE_MAX => return HelloScan::Incomplete,
                Ok(None) => return HelloScan::Refused(HelloError::MessageTooLong),
                Err(NotHello::Refused(refusal)) => return HelloScan::Refused(refusal),
                Err(NotHello::Unknown) => return HelloScan::Other,
            };
            let header = self.header.get_mut(self.content..).unwrap_or_default();
            for (byte, received) in header.iter_mut().zip(fragment) {
                *byte = *received;
            }
            self.content += fragment.len();
            self.at += RECORD_HEADER + fragment.len();
            let [kind, high, middle, low] = self.header;
            if kind != CLIENT_HELLO {
                return HelloScan::Refused(HelloError::MessageType(kind));
            }
            let length = u32::from_be_bytes([0, high, middle, low]) as usize;
            if self.content < MESSAGE_HEADER {
                continue;
            }
            if length >= HELLO_SIZE_MAX {
                return HelloScan::Refused(HelloError::MessageTooLong);
            }
            if self.content >= MESSAGE_HEADER + length {
                return self.read(bytes, length);
            }
        }
    }

    /// Parses the ClientHello with this length, all of whose records have been received.
    fn read(&self, bytes: &[u8], length: usize) -> HelloScan {
        let mut message = Vec::with_capacity(self.content);
        let mut rest = bytes.get(..self.at).unwrap_or_default();
        while let Ok(Some(fragment)) = fragment(rest) {
            message.extend_from_slice(fragment);
            rest = rest
                .get(RECORD_HEADER + fragment.len()..)
                .unwrap_or_default();
        }
        message.drain(..MESSAGE_HEADER.min(message.len()));
        message.truncate(length);
        let hello = ClientHello::parse(message);
        hello.map_or(HelloScan::Other, |hello| HelloScan::Hello {
            hello: Box::new(hello),
            length: self.at,
        })
    }
}

/// Why a record is not a part of a ClientHello.
enum NotHello {
    /// The record must be rejected.
    Refused(HelloError),
    /// The record has an unknown version.
    Unknown,
}

/// The content of the first record, which must be an unencrypted handshake record; `None` if it is
/// incomplete.
fn fragment(bytes: &[u8]) -> Result<Option<&[u8]>, NotHello> {
    let (kind, length) = match bytes.first_chunk::<RECORD_HEADER>() {
        Some(&[kind, 3, _, high, low]) => (kind, usize::from(u16::from_be_bytes([high, low]))),
        Some(_) => return Err(NotHello::Unknown),
        None => return Ok(None),
    };
    if kind != HANDSHAKE {
        return Err(NotHello::Refused(HelloError::RecordType(kind)));
    }
    if length == 0 {
        return Err(NotHello::Refused(HelloError::RecordEmpty));
    }
    if length > PLAIN_MAX {
        return Err(NotHello::Refused(HelloError::RecordTooLong));
    }
    Ok(bytes.get(RECORD_HEADER..RECORD_HEADER + length))
}

/// An error in the client's first bytes: in its ClientHello, or in the records after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloError {
    /// A record of another type than handshake before the end of the ClientHello.
    RecordType(u8),
    /// An empty record before the end of the ClientHello.
    RecordEmpty,
    /// A record before the end of the ClientHello that is longer than allowed.
    RecordTooLong,
    /// A handshake message of another type.
    MessageType(u8),
    /// A ClientHello longer than [`HELLO_SIZE_MAX`].
    MessageTooLong,
    /// An invalid server name; see [`ClientHello::check_server_name`].
    Name,
    /// A record after the ClientHello, of a type that must not arrive before the server's reply.
    FollowingType(u8),
    /// A record after the ClientHello that is longer than allowed.
    FollowingTooLong,
}

impl HelloError {
    /// The alert for the client (RFC 8446 section 6), the same as OpenSSL's.
    #[must_use]
    pub fn alert(self) -> u8 {
        const UNEXPECTED_MESSAGE: u8 = 10;
        const RECORD_OVERFLOW: u8 = 22;
        const ILLEGAL_PARAMETER: u8 = 47;
        const UNRECOGNIZED_NAME: u8 = 112;
        match self {
            HelloError::RecordType(_)
            | HelloError::RecordEmpty
            | HelloError::MessageType(_)
            | HelloError::FollowingType(_) => UNEXPECTED_MESSAGE,
            HelloError::RecordTooLong | HelloError::FollowingTooLong => RECORD_OVERFLOW,
            HelloError::MessageTooLong => ILLEGAL_PARAMETER,
            HelloError::Name => UNRECOGNIZED_NAME,
        }
    }
}

impl fmt::Display for HelloError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HelloError::RecordType(kind) => {
                write!(out, "record of type {kind} within the ClientHello")
            }
            HelloError::RecordEmpty => out.write_str("record too small"),
            HelloError::RecordTooLong => out.write_str("packet length too long"),
            HelloError::MessageType(_) => out.write_str("unexpected message"),
            HelloError::MessageTooLong => out.write_str("excessive message size"),
            HelloError::Name => out.write_str("bad extension: server name"),
            HelloError::FollowingType(kind) => {
                write!(out, "record of type {kind} behind the ClientHello")
            }
            HelloError::FollowingTooLong => out.write_str("record too long behind the ClientHello"),
        }
    }
}

/// Checks the records after a ClientHello, before the server computes a costly reply. A client may
/// continue with `change_cipher_spec` and early data, and must wait with everything else.
///
/// # Errors
/// The first record that is not allowed.
pub fn check_following(bytes: &[u8]) -> Result<(), HelloError> {
    let mut rest = bytes;
    while let Some(&[kind, _, _, high, low]) = rest.first_chunk() {
        let length = usize::from(u16::from_be_bytes([high, low]));
        if kind != CHANGE_CIPHER_SPEC && kind != APPLICATION_DATA {
            return Err(HelloError::FollowingType(kind));
        }
        if length > SEALED_MAX {
            return Err(HelloError::FollowingTooLong);
        }
        rest = rest.get(RECORD_HEADER + length..).unwrap_or_default();
    }
    Ok(())
}

impl ClientHello {
    fn parse(message: Vec<u8>) -> Option<ClientHello> {
        let mut reader = Reader {
            bytes: &message,
            at: 0,
        };
        let version = reader.u16()?;
        reader.skip(32)?; // random
        let session_id = usize::from(reader.u8()?);
        reader.skip(session_id)?;
        let ciphers = reader.span16()?;
        let compressions = usize::from(reader.u8()?);
        reader.skip(compressions)?;
        let mut extensions = Vec::new();
        if !reader.is_at_end() {
            let all = reader.span16()?;
            let mut inner = Reader {
                bytes: message.get(..all.end as usize)?,
                at: all.start as usize,
            };
            while !inner.is_at_end() {
                extensions.push((inner.u16()?, inner.span16()?));
            }
        }
        Some(ClientHello {
            version,
            ciphers,
            extensions,
            message,
        })
    }

    /// The content of an extension.
    fn extension(&self, kind: u16) -> Option<&[u8]> {
        let found = self.extensions.iter().find(|(known, _)| *known == kind)?;
        Some(found.1.of(&self.message))
    }

    /// The server name as sent by the client. It may contain any bytes, and may be empty.
    pub fn server_name(&self) -> Option<&[u8]> {
        let content = self.extension(SERVER_NAME)?;
        let mut reader = Reader {
            bytes: content,
            at: 0,
        };
        reader.skip(2)?; // length of the list
        while !reader.is_at_end() {
            let kind = reader.u8()?;
            let name = reader.span16()?;
            if kind == 0 {
                return Some(name.of(content));
            }
        }
        None
    }

    /// Checks the server name as OpenSSL does: rejects one that is too long, or contains a zero
    /// byte.
    ///
    /// # Errors
    /// [`HelloError::Name`].
    pub fn check_server_name(&self) -> Result<(), HelloError> {
        match self.server_name() {
            Some(name) if name.len() > NAME_SIZE_MAX || name.contains(&0) => Err(HelloError::Name),
            _ => Ok(()),
        }
    }

    /// Changes the type of the `server_name` extension in the received records to one without a
    /// meaning, so that rustls ignores the extension. Returns the changed extension.
    pub fn hide_server_name(&self, records: &mut [u8]) -> Option<Box<[u8]>> {
        let mut extensions = self.extensions.iter();
        let (_, content) = extensions.find(|(kind, _)| *kind == SERVER_NAME)?;
        // The content is preceded by the extension's type and length, and the message by its
        // header.
        let start = (content.start as usize + MESSAGE_HEADER).checked_sub(4)?;
        for (at, byte) in (start..).zip(HIDDEN.to_be_bytes()) {
            let place = place(records, at)?;
            *records.get_mut(place)? = byte;
        }
        let content = content.of(&self.message);
        let length = u16::try_from(content.len()).ok()?;
        let hidden = [&HIDDEN.to_be_bytes()[..], &length.to_be_bytes(), content].concat();
        Some(hidden.into())
    }

    /// The protocols that the client offers (ALPN), in the client's order.
    pub fn protocols(&self) -> impl Iterator<Item = &[u8]> {
        let content = self.extension(ALPN).unwrap_or_default();
        let mut rest = content.get(2..).unwrap_or_default();
        std::iter::from_fn(move || {
            let (length, following) = rest.split_first()?;
            let (name, after) = following.split_at_checked(usize::from(*length))?;
            rest = after;
            Some(name)
        })
    }

    /// The numbers of the cipher suites, in the client's order.
    pub fn ciphers(&self) -> Values<'_> {
        Values(self.ciphers.of(&self.message))
    }

    /// Whether the client prefers ChaCha20-Poly1305, as clients do whose processor has no AES
    /// instructions.
    pub fn prefers_chacha20(&self) -> bool {
        let best = self.ciphers().find(|number| !is_grease(*number));
        best.is_some_and(|number| CHACHA20_POLY1305.contains(&number))
    }

    /// The numbers of the key exchange groups ("curves"), in the client's order.
    pub fn groups(&self) -> Values<'_> {
        Values(self.list(SUPPORTED_GROUPS, 2))
    }

    /// The numbers of the signature algorithms, in the client's order.
    pub fn signature_algorithms(&self) -> Values<'_> {
        Values(self.list(SIGNATURE_ALGORITHMS, 2))
    }

    /// The TLS versions in `supported_versions` (TLS 1.3 and later).
    pub fn versions(&self) -> Values<'_> {
        Values(self.list(SUPPORTED_VERSIONS, 1))
    }

    /// The types of the extensions, in the client's order.
    pub fn extension_types(&self) -> impl Iterator<Item = u16> {
        self.extensions.iter().map(|(kind, _)| *kind)
    }

    /// The content of an extension that is one list, without the list's length.
    fn list(&self, kind: u16, length_size: usize) -> &[u8] {
        let content = self.extension(kind).unwrap_or_default();
        content.get(length_size..).unwrap_or_default()
    }
}

/// The offset in the records of a byte of the message.
fn place(records: &[u8], mut at: usize) -> Option<usize> {
    let mut rest = records;
    while let Ok(Some(fragment)) = fragment(rest) {
        if at < fragment.len() {
            return Some(records.len() - rest.len() + RECORD_HEADER + at);
        }
        at -= fragment.len();
        rest = rest.get(RECORD_HEADER + fragment.len()..)?;
    }
    None
}

/// The message with the extension that [`ClientHello::hide_server_name`] changed restored, if the
/// message contains it.
pub fn show_server_name<'a>(message: &'a [u8], hidden: &[u8]) -> Cow<'a, [u8]> {
    let place = memchr::memmem::find(message, hidden);
    let Some((before, rest)) = place.and_then(|place| message.split_at_checked(place)) else {
        return Cow::Borrowed(message);
    };
    let behind = rest.get(2..).unwrap_or_default();
    Cow::Owned([before, &SERVER_NAME.to_be_bytes(), behind].concat())
}

/// An iterator over numbers of two bytes each.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a>(&'a [u8]);

impl Iterator for Values<'_> {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*value))
    }
}

/// Whether the number is a GREASE value, which clients add at random to detect intolerant servers
/// (RFC 8701).
pub fn is_grease(value: u16) -> bool {
    let [high, low] = value.to_be_bytes();
    high == low && low & 0x0f == 0x0a
}

/// Reads numbers in network byte order; `None` at the end.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        let end = self.at.checked_add(count)?;
        (end <= self.bytes.len()).then(|| self.at = end)
    }

    fn u8(&mut self) -> Option<u8> {
        let value = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(value)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.u8()?, self.u8()?]))
    }

    /// A range preceded by its length in two bytes.
    fn span16(&mut self) -> Option<Span> {
        let length = usize::from(self.u16()?);
        let start = self.at;
        self.skip(length)?;
        Some(Span::new(start, self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message in the format of RFC 8446, assembled by hand.
    fn hello() -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0]); // // no session ID
        body.extend([0, 6, 0x1a, 0x1a, 0x13, 0x01, 0xc0, 0x2f]);
        body.extend([1, 0]);
        let mut extensions = Vec::new();
        let mut extension = |kind: u16, content: &[u8]| {
            extensions.extend(kind.to_be_bytes());
            extensions.extend((content.len() as u16).to_be_bytes());
            extensions.extend(content);
        };
        extension(0, &[&[0, 14, 0, 0, 11][..], b"example.org"].concat());
        extension(10, &[0, 4, 0, 29, 0, 23]);
        extension(13, &[0, 4, 4, 3, 8, 4]);
        extension(16, &[&[0, 12, 2][..], b"h2", &[8], b"http/1.1"].concat());
        extension(43, &[4, 3, 4, 3, 3]);
        body.extend((extensions.len() as u16).to_be_bytes());
        body.extend(extensions);
        let mut message = vec![1, 0, 0, body.len() as u8];
        message.extend(body);
        message
    }

    fn found(bytes: &[u8]) -> HelloScan {
        HelloSearch::default().go_on(bytes)
    }

    /// Splits a message into TLS records of this size.
    fn records(message: &[u8], size: usize) -> Vec<u8> {
        let record = |part: &[u8]| [&[22, 3, 1, 0, part.len() as u8], part].concat();
        message.chunks(size).flat_map(record).collect()
    }

    #[test]
    fn the_parts_of_a_hello() {
        let HelloScan::Hello { hello, .. } = found(&records(&hello(), 255)) else {
            panic!("no hello");
        };
        assert_eq!(hello.server_name(), Some(&b"example.org"[..]));
        assert_eq!(hello.version, 0x0303);
        assert_eq!(
            hello.protocols().collect::<Vec<_>>(),
            [&b"h2"[..], b"http/1.1"]
        );
        let ciphers: Vec<u16> = hello.ciphers().collect();
        assert_eq!(ciphers, [0x1a1a, 0x1301, 0xc02f]);
        assert!(is_grease(ciphers[0]) && !is_grease(ciphers[1]));
        assert_eq!(hello.groups().collect::<Vec<_>>(), [29, 23]);
        let algorithms: Vec<u16> = hello.signature_algorithms().collect();
        assert_eq!(algorithms, [0x0403, 0x0804]);
        assert_eq!(hello.versions().collect::<Vec<_>>(), [0x0304, 0x0303]);
        let kinds: Vec<u16> = hello.extension_types().collect();
        assert_eq!(kinds, [0, 10, 13, 16, 43]);
    }

    #[test]
    fn chacha20_first() {
        let prefers = |first: [u8; 2], second: [u8; 2]| {
            let mut message = hello();
            // After a GREASE value.
            message[43..45].copy_from_slice(&first);
            message[45..47].copy_from_slice(&second);
            match found(&records(&message, 255)) {
                HelloScan::Hello { hello, .. } => hello.prefers_chacha20(),
                _ => panic!("no hello"),
            }
        };
        assert!(prefers([0x13, 0x03], [0x13, 0x01]));
        assert!(prefers([0xcc, 0xa9], [0xc0, 0x2b]));
        assert!(!prefers([0x13, 0x02], [0x13, 0x03]));
        assert!(!prefers([0x1a, 0x1a], [0x0a, 0x0a]));
    }

    #[test]
    fn a_hello_in_pieces_is_awaited() {
        for size in [1, 7, 200] {
            let bytes = records(&hello(), size);
            for end in 0..bytes.len() {
                assert_eq!(found(&bytes[..end]), HelloScan::Incomplete, "{size}, {end}");
            }
            let length = bytes.len();
            assert!(
                matches!(found(&bytes), HelloScan::Hello { length: found, .. } if found == length)
            );
        }
    }

    #[test]
    fn only_early_data_may_follow_a_hello() {
        let early = [&[20, 3, 3, 0, 1, 1][..], &[23, 3, 3, 0, 3, 1, 2, 3]].concat();
        assert_eq!(check_following(b""), Ok(()));
        assert_eq!(check_following(&early), Ok(()));
        assert_eq!(check_following(&early[..9]), Ok(()), "a header in pieces");
        let alert = [&early[..], &[21, 3, 3, 0, 2, 1, 90]].concat();
        assert_eq!(check_following(&alert), Err(HelloError::FollowingType(21)));
        assert_eq!(
            check_following(&[22, 3, 3, 0, 0]),
            Err(HelloError::FollowingType(22))
        );
        assert_eq!(check_following(&[23, 3, 3, 0x48, 0x00]), Ok(()));
        assert_eq!(
            check_following(&[23, 3, 3, 0x48, 0x01]),
            Err(HelloError::FollowingTooLong)
        );
        assert_eq!(HelloError::FollowingType(21).alert(), 10);
        assert_eq!(HelloError::FollowingTooLong.alert(), 22);
    }

    #[test]
    fn what_has_been_looked_at_is_not_looked_at_again() {
        // Every byte arrives alone, in records of 40 bytes: most calls find an incomplete record.
        let mut message = hello();
        message.extend([0; 3000]);
        let length = (message.len() - MESSAGE_HEADER) as u32;
        message[1..4].copy_from_slice(&length.to_be_bytes()[1..]);
        let bytes = records(&message, 40);
        let mut search = HelloSearch::default();
        for end in 0..bytes.len() {
            assert_eq!(search.go_on(&bytes[..end]), HelloScan::Incomplete, "{end}");
        }
        assert!(matches!(search.go_on(&bytes), HelloScan::Hello { .. }));
        let records = message.len().div_ceil(40);
        assert_eq!(search.looks, bytes.len() + records);
    }

    #[test]
    fn what_cannot_become_a_hello_is_refused() {
        let refused = |bytes: &[u8]| match found(bytes) {
            HelloScan::Refused(refusal) => Some((refusal, refusal.alert())),
            _ => None,
        };
        let half = [22, 3, 1, 0, 5, 1, 0, 0, 90, 3];
        let after_half = |bytes: &[u8]| refused(&[&half[..], bytes].concat());
        // Alerts that OpenSSL 3.0 sends for the same bytes.
        for (got, refusal, alert) in [
            (refused(&[22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff]), None, 0),
            (
                refused(&[&[22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff][..], &[0; 16_380]].concat()),
                Some(HelloError::MessageTooLong),
                47,
            ),
            (
                refused(&[22, 3, 1, 0, 4, 2, 0, 0, 0]),
                Some(HelloError::MessageType(2)),
                10,
            ),
            (
                refused(&[22, 3, 1, 0x40, 1]),
                Some(HelloError::RecordTooLong),
                22,
            ),
            (
                refused(&[22, 3, 1, 0, 0]),
                Some(HelloError::RecordEmpty),
                10,
            ),
            (
                refused(&[23, 3, 3, 0, 1, 0]),
                Some(HelloError::RecordType(23)),
                10,
            ),
            (
                after_half(&[21, 3, 3, 0, 2, 1, 90]),
                Some(HelloError::RecordType(21)),
                10,
            ),
            (
                after_half(&[20, 3, 3, 0, 1]),
                Some(HelloError::RecordType(20)),
                10,
            ),
            (
                after_half(&[22, 3, 3, 0x40, 1, 0]),
                Some(HelloError::RecordTooLong),
                22,
            ),
        ] {
            assert_eq!(got, refusal.map(|refusal| (refusal, alert)));
        }
        let endless = records(&[1, 0, 0xff, 0xff], 1);
        let endless = [&endless[..], &records(&[0; 255], 255).repeat(300)].concat();
        assert_eq!(
            found(&endless[..HELLO_SIZE_MAX]),
            HelloScan::Refused(HelloError::MessageTooLong)
        );
    }

    #[test]
    fn everything_else_is_left_to_the_handshake() {
        assert_eq!(found(b"GET / HTTP/1.1\r\n\r\n"), HelloScan::Other);
        assert_eq!(found(&[22, 2, 0, 0, 1, 1]), HelloScan::Other);
        let mut cut = hello();
        cut[3] -= 1; // the last extension no longer fits
        assert_eq!(found(&records(&cut, 255)), HelloScan::Other);
    }

    #[test]
    fn a_name_is_hidden_and_shown_again() {
        for size in [1, 7, 255] {
            let sent = records(&hello(), size);
            let HelloScan::Hello { hello: read, .. } = found(&sent) else {
                panic!("no hello");
            };
            let mut changed = sent.clone();
            let hidden = read.hide_server_name(&mut changed).unwrap();
            let HelloScan::Hello { hello: without, .. } = found(&changed) else {
                panic!("no hello");
            };
            assert_eq!(without.server_name(), None);
            let kinds: Vec<u16> = without.extension_types().collect();
            assert_eq!(kinds, [HIDDEN, 10, 13, 16, 43]);
            assert_eq!(*show_server_name(&without.message, &hidden), read.message);
            assert_eq!(*show_server_name(b"else", &hidden), *b"else");
            assert_eq!(without.hide_server_name(&mut changed), None);
        }
    }

    #[test]
    fn names_that_openssl_refuses() {
        let named = |name: &[u8]| {
            let mut message = hello();
            let place = memchr::memmem::find(&message, b"example.org").unwrap();
            message[place..place + name.len()].copy_from_slice(name);
            match found(&records(&message, 255)) {
                HelloScan::Hello { hello, .. } => hello.check_server_name(),
                _ => panic!("no hello"),
            }
        };
        assert_eq!(named(b"ex ample:/\xff"), Ok(()));
        assert_eq!(named(b"ex\0mple.org"), Err(HelloError::Name));
    }

    #[test]
    fn a_hello_without_extensions() {
        let mut message = hello();
        message.truncate(4 + 2 + 32 + 1 + 8 + 2);
        message[3] = (message.len() - 4) as u8;
        let HelloScan::Hello { hello, .. } = found(&records(&message, 255)) else {
            panic!("no hello");
        };
        assert_eq!((hello.server_name(), hello.protocols().count()), (None, 0));
    }
}
