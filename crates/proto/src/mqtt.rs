//! MQTT's CONNECT, the first packet of a client: parses it, and encodes it with other values.
//!
//! OASIS MQTT 5.0 and 3.1.1, sections 1.5 (strings and integers), 2.1 (the fixed header) and 3.1
//! (CONNECT); version 3.1 differs only in the protocol name. Other parts, such as properties and
//! the will, are copied without validation: the broker may reject them. No other packets are
//! parsed.

use crate::Span;

/// The first byte of a CONNECT: its type, and four reserved flags that are 0.
const CONNECT: u8 = 0x10;
/// The protocol level of version 5.0, the first with properties.
const LEVEL_5: u8 = 5;
/// The bit of the level that a bridge between brokers sets.
const BRIDGE: u8 = 0x80;
/// Maximum length of a variable byte integer, with seven bits per byte.
const LENGTH_BYTES_MAX: usize = 4;
/// Maximum length of a packet after its fixed header, in bytes.
const REMAINING_MAX: usize = (1 << (7 * LENGTH_BYTES_MAX)) - 1;

/// Connect flags: the optional fields of the payload.
const WILL: u8 = 0x04;
const PASSWORD: u8 = 0x40;
const USERNAME: u8 = 0x80;

/// The length of a client's first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectLength {
    /// More bytes are needed.
    More,
    /// Length of the CONNECT packet, in bytes.
    Bytes(usize),
    /// The bytes are not a CONNECT packet.
    Other,
}

/// The length of the CONNECT packet that begins with these bytes, which may be incomplete.
pub fn connect_length(bytes: &[u8]) -> ConnectLength {
    match bytes.split_first() {
        None => ConnectLength::More,
        Some((&CONNECT, rest)) => match length(rest) {
            Length::More => ConnectLength::More,
            Length::Is { value, bytes } => ConnectLength::Bytes(1 + bytes + value),
            Length::Malformed => ConnectLength::Other,
        },
        Some(_) => ConnectLength::Other,
    }
}

/// The parts of a CONNECT, as spans of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    flags: u8,
    /// The protocol name and level.
    protocol: Span,
    /// The keep-alive interval, and properties.
    settings: Span,
    client_id: Span,
    /// The will's properties, topic and payload; empty if there is no will.
    will: Span,
    username: Option<Span>,
    password: Option<Span>,
}

/// New values for a CONNECT; `None` keeps the present value.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectValues<'a> {
    /// The client identifier.
    pub client_id: Option<&'a [u8]>,
    /// The user name.
    pub username: Option<&'a [u8]>,
    /// The password.
    pub password: Option<&'a [u8]>,
}

/// A value, or the packet as a whole, exceeds MQTT's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl Connect {
    /// Parses a complete packet; `None` if the packet is not a CONNECT of a known version, or is
    /// malformed.
    pub fn parse(packet: &[u8]) -> Option<Connect> {
        let ConnectLength::Bytes(length) = connect_length(packet) else {
            return None;
        };
        if packet.len() != length {
            return None;
        }
        let mut rest = Rest { packet, at: 1 };
        rest.number()?;
        let begin = rest.at;
        let name = rest.string()?.of(packet);
        let level = rest.byte()? & !BRIDGE;
        if !matches!((name, level), (b"MQIsdp", 3) | (b"MQTT", 4 | LEVEL_5)) {
            return None;
        }
        let protocol = Span::new(begin, rest.at);
        let flags = rest.byte()?;
        let begin = rest.at;
        rest.skip(2)?; // the keep-alive interval
        rest.properties(level)?;
        let settings = Span::new(begin, rest.at);
        let client_id = rest.string()?;
        let begin = rest.at;
        if flags & WILL != 0 {
            rest.properties(level)?;
            rest.string()?; // the topic
            rest.string()?; // the payload
        }
        let will = Span::new(begin, rest.at);
        let mut optional = |flag: u8| match flags & flag {
            0 => Some(None),
            _ => rest.string().map(Some),
        };
        let username = optional(USERNAME)?;
        let password = optional(PASSWORD)?;
        (rest.at == packet.len()).then_some(Connect {
            flags,
            protocol,
            settings,
            client_id,
            will,
            username,
            password,
        })
    }

    /// The client identifier, which may be empty.
    pub fn client_id<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        self.client_id.of(packet)
    }

    /// The user name, if there is one.
    pub fn username<'a>(&self, packet: &'a [u8]) -> Option<&'a [u8]> {
        self.username.map(|span| span.of(packet))
    }

    /// Encodes the packet with other values, and appends it to `out`. `packet` must be the parsed
    /// bytes.
    ///
    /// # Errors
    /// A value of more than 65,535 bytes, or a packet of more than 268,435,455.
    pub fn append_with(
        &self,
        packet: &[u8],
        values: &ConnectValues<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), TooLong> {
        let username = values.username.or(self.username(packet));
        let own_password = self.password.map(|span| span.of(packet));
        let password = values.password.or(own_password);
        let mut flags = self.flags;
        if username.is_some() {
            flags |= USERNAME;
        }
        if password.is_some() {
            flags |= PASSWORD;
        }
        let mut body = self.protocol.of(packet).to_vec();
        body.push(flags);
        body.extend_from_slice(self.settings.of(packet));
        append_string(
            values.client_id.unwrap_or(self.client_id(packet)),
            &mut body,
        )?;
        body.extend_from_slice(self.will.of(packet));
        for value in [username, password].into_iter().flatten() {
            append_string(value, &mut body)?;
        }
        out.push(CONNECT);
        append_length(body.len(), out)?;
        out.extend_from_slice(&body);
        Ok(())
    }
}

/// A variable byte integer.
enum Length {
    More,
    Is { value: usize, bytes: usize },
    Malformed,
}

fn length(bytes: &[u8]) -> Length {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(LENGTH_BYTES_MAX).enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            let bytes = at + 1;
            return Length::Is { value, bytes };
        }
    }
    if bytes.len() < LENGTH_BYTES_MAX {
        Length::More
    } else {
        Length::Malformed
    }
}

fn append_length(mut length: usize, out: &mut Vec<u8>) -> Result<(), TooLong> {
    if length > REMAINING_MAX {
        return Err(TooLong);
    }
    while length > 0x7f {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    Ok(())
}

fn append_string(text: &[u8], out: &mut Vec<u8>) -> Result<(), TooLong> {
    let length = u16::try_from(text.len()).map_err(|_| TooLong)?;
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(text);
    Ok(())
}

/// The unread rest of a packet.
struct Rest<'a> {
    packet: &'a [u8],
    at: usize,
}

impl Rest<'_> {
    fn skip(&mut self, length: usize) -> Option<Span> {
        let end = self.at.checked_add(length)?;
        if end > self.packet.len() {
            return None;
        }
        let span = Span::new(self.at, end);
        self.at = end;
        Some(span)
    }

    fn byte(&mut self) -> Option<u8> {
        self.skip(1)?.of(self.packet).first().copied()
    }

    fn string(&mut self) -> Option<Span> {
        let length = self.skip(2)?.of(self.packet).first_chunk()?;
        self.skip(u16::from_be_bytes(*length).into())
    }

    fn number(&mut self) -> Option<usize> {
        match length(self.packet.get(self.at..)?) {
            Length::Is { value, bytes } => {
                self.at += bytes;
                Some(value)
            }
            Length::More | Length::Malformed => None,
        }
    }

    /// Skips the properties, if the version has them.
    fn properties(&mut self, level: u8) -> Option<()> {
        if level >= LEVEL_5 {
            let length = self.number()?;
            self.skip(length)?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of MQTT 3.1.1 section 3.1.2 with a payload: clean session, will at QoS 1,
    /// username and password, a keep-alive of 10 s.
    const VERSION_4: &[u8] = b"\x10\x23\0\x04MQTT\x04\xce\0\x0a\0\x03abc\0\x01t\0\x04gone\0\x03bob\
                               \0\x04\xff\xfe\xfd\xfc";
    /// Version 5.0: a session expiry interval of 10 s (section 3.1.2.11.2), a will with a delay, no
    /// username, and a password alone, which this version allows.
    const VERSION_5: &[u8] = b"\x10\x29\0\x04MQTT\x05\x46\0\x3c\x05\x11\0\0\0\x0a\0\x04me-5\
                               \x05\x18\0\0\0\x02\0\x01w\0\0\0\x06secret";

    fn rewritten(packet: &[u8], values: &ConnectValues<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        let connect = Connect::parse(packet).unwrap();
        connect.append_with(packet, values, &mut out).unwrap();
        out
    }

    #[test]
    fn packets_of_all_versions_are_read() {
        let four = Connect::parse(VERSION_4).unwrap();
        assert_eq!(four.client_id(VERSION_4), b"abc");
        assert_eq!(four.username(VERSION_4), Some(&b"bob"[..]));
        let five = Connect::parse(VERSION_5).unwrap();
        assert_eq!(five.client_id(VERSION_5), b"me-5");
        assert_eq!(five.username(VERSION_5), None);
        let three = b"\x10\x10\0\x06MQIsdp\x03\x02\0\x3c\0\x02id";
        let read = Connect::parse(three).unwrap();
        assert_eq!(read.client_id(three), b"id");
        // A bridge of mosquitto.
        let bridge = b"\x10\x0e\0\x04MQTT\x84\x02\0\x3c\0\x02id";
        assert!(Connect::parse(bridge).is_some());
    }

    #[test]
    fn what_is_no_connect_is_told_at_once() {
        assert_eq!(connect_length(b""), ConnectLength::More);
        assert_eq!(connect_length(b"\x10"), ConnectLength::More);
        assert_eq!(connect_length(b"\x10\xff\xff"), ConnectLength::More);
        assert_eq!(connect_length(b"\x10\xff\x01"), ConnectLength::Bytes(258));
        assert_eq!(
            connect_length(b"\x10\xff\xff\xff\xff\x01"),
            ConnectLength::Other
        );
        assert_eq!(
            connect_length(b"\x11\x02"),
            ConnectLength::Other,
            "its flags are 0"
        );
        assert_eq!(connect_length(b"\x16\x03\x01"), ConnectLength::Other);
        for packet in [VERSION_4, VERSION_5] {
            assert_eq!(connect_length(packet), ConnectLength::Bytes(packet.len()));
            for end in 0..packet.len() {
                assert_eq!(Connect::parse(&packet[..end]), None);
            }
            let longer = [packet, b"\0"].concat();
            assert_eq!(Connect::parse(&longer), None);
        }
        assert_eq!(
            Connect::parse(b"\x10\x0e\0\x04MQTT\x06\x02\0\x3c\0\x02id"),
            None
        );
        assert_eq!(
            Connect::parse(b"\x10\x0e\0\x04mqtt\x04\x02\0\x3c\0\x02id"),
            None
        );
    }

    #[test]
    fn values_are_replaced_and_the_rest_stays() {
        for packet in [VERSION_4, VERSION_5] {
            assert_eq!(rewritten(packet, &ConnectValues::default()), packet);
        }
        let values = ConnectValues {
            client_id: Some(b""),
            username: Some(b"someone else"),
            password: None,
        };
        let with = rewritten(VERSION_4, &values);
        assert_eq!(
            with,
            b"\x10\x29\0\x04MQTT\x04\xce\0\x0a\0\0\0\x01t\0\x04gone\0\x0csomeone else\
              \0\x04\xff\xfe\xfd\xfc"
        );
        // A value that the packet did not have sets its flag.
        let with = rewritten(VERSION_5, &values);
        let read = Connect::parse(&with).unwrap();
        assert_eq!(read.username(&with), Some(&b"someone else"[..]));
        assert_eq!(read.flags, 0xc6);
        assert_eq!(read.will.of(&with), b"\x05\x18\0\0\0\x02\0\x01w\0\0");
        // The length needs another byte.
        let long = vec![b'x'; 300];
        let values = ConnectValues {
            client_id: Some(&long),
            ..values
        };
        let with = rewritten(VERSION_4, &values);
        assert_eq!(Connect::parse(&with).unwrap().client_id(&with), long);
    }

    #[test]
    fn values_that_no_length_can_tell_are_refused() {
        let long = vec![b'x'; 65_536];
        let connect = Connect::parse(VERSION_4).unwrap();
        let try_with = |length: usize| {
            let values = ConnectValues {
                password: long.get(..length),
                ..ConnectValues::default()
            };
            connect.append_with(VERSION_4, &values, &mut Vec::new())
        };
        assert_eq!(try_with(65_535), Ok(()));
        assert_eq!(try_with(65_536), Err(TooLong));
    }
}
