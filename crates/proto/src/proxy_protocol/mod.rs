//! The PROXY protocol: a load balancer's header with the client's address, before the client's own
//! first byte.
//!
//! Both versions, as parsed by nginx. The specification is
//! <https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>, whose section numbers are cited
//! below. This file parses headers; `write` creates those for upstreams.
//!
//! As in nginx, addresses of version 1 are not looked into: whatever consists of hexadecimal
//! digits, dots and colons is kept as text. Deliberately not here: the checksum (type 0x03), which
//! nginx does not verify either.

mod tlv;
mod write;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub use tlv::{TlvError, Tlvs, Value};
pub use write::{
    Carried, ClientCertificate, ClientTls, Endpoints, Version, append, append_client_tls,
    append_tlv, append_with_checksum,
};

/// The first bytes of a version 2 header (section 2.2).
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Length of the fixed part of a version 2 header, in bytes: signature, version and command, family
/// and transport, length of the rest.
const V2_FIXED: usize = 16;

/// The header of a connection. Borrows from the parsed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Length of the header, in bytes; the client's data follow.
    pub length: usize,
    /// Between whom the proxied connection is; `None` where the proxy does not say (`UNKNOWN`,
    /// `LOCAL`, another family, before a stream a transport that is no TCP).
    pub told: Option<ProxiedConnection<'a>>,
}

/// A proxy's description of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxiedConnection<'a> {
    /// The client's endpoint.
    pub source: Endpoint<'a>,
    /// The endpoint to which the client connected.
    pub destination: Endpoint<'a>,
    /// Additional information; always empty in version 1.
    pub tlvs: Tlvs<'a>,
}

impl ProxiedConnection<'_> {
    /// The addresses of source and destination; `None` if a text of version 1 is no address.
    pub fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        Some((
            self.source.socket_address()?,
            self.destination.socket_address()?,
        ))
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint<'a> {
    /// The address.
    pub address: Address<'a>,
    /// The port.
    pub port: u16,
}

impl Endpoint<'_> {
    fn socket_address(&self) -> Option<SocketAddr> {
        let ip = match self.address {
            Address::Ip(ip) => ip,
            Address::Text(text) => str::from_utf8(text).ok()?.parse().ok()?,
        };
        Some(SocketAddr::new(ip, self.port))
    }
}

/// An address as a header gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address<'a> {
    /// Version 1: a text of hexadecimal digits, dots and colons, which may not be a valid address.
    Text(&'a [u8]),
    /// Version 2: an address in binary form.
    Ip(IpAddr),
}

/// Why a header is invalid. Every error is the proxy's fault, and the connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error<'a> {
    /// The header is of neither version. Holds the first line as far as received.
    Broken(&'a [u8]),
    /// An undefined version.
    UnknownVersion(u8),
    /// The header is longer than the caller allows.
    TooLarge,
    /// The header is too short for its addresses.
    Truncated,
    /// A datagram ends before its header does.
    CutOff,
}

impl Error<'_> {
    /// nginx's log message; it contains bytes from the peer.
    pub fn log_text(&self) -> Vec<u8> {
        match self {
            Error::Broken(line) => [b"broken header: \"", *line, b"\""].concat(),
            Error::UnknownVersion(version) => {
                format!("unknown PROXY protocol version: {version}").into_bytes()
            }
            Error::TooLarge => b"header is too large".to_vec(),
            Error::Truncated => b"header is too short for its addresses".to_vec(),
            Error::CutOff => b"header is cut off".to_vec(),
        }
    }
}

/// Parses the header at the beginning of a connection. `None` if the header is incomplete: call
/// again with more bytes.
///
/// # Errors
/// See [`Error`]. A header of more than `length_max` bytes is an error.
pub fn parse(bytes: &[u8], length_max: usize) -> Result<Option<Header<'_>>, Error<'_>> {
    parse_carried(bytes, length_max, Carried::Streams)
}

/// Reads the header at the beginning of a datagram. It may be that of a connection: a proxy may
/// have been asked by TCP and ask by UDP.
///
/// # Errors
/// See [`Error`].
pub fn parse_datagram(bytes: &[u8], length_max: usize) -> Result<Header<'_>, Error<'_>> {
    let header = parse_carried(bytes, length_max, Carried::Datagrams)?;
    header.ok_or_else(|| {
        if bytes.starts_with(SIGNATURE) {
            Error::CutOff
        } else {
            Error::Broken(first_line(bytes))
        }
    })
}

fn parse_carried(
    bytes: &[u8],
    length_max: usize,
    carried: Carried,
) -> Result<Option<Header<'_>>, Error<'_>> {
    let window = bytes.get(..length_max).unwrap_or(bytes);
    let shared = window.len().min(SIGNATURE.len());
    let is_v2 = window.get(..shared) == SIGNATURE.get(..shared);
    if is_v2 {
        return v2(window, length_max, carried);
    }
    let mut reader = V1 { rest: window };
    match reader.header() {
        Ok(told) => Ok(Some(Header {
            length: window.len() - reader.rest.len(),
            told,
        })),
        Err(V1Error::Incomplete) if window.len() < length_max => Ok(None),
        Err(V1Error::Incomplete | V1Error::Broken) => Err(Error::Broken(first_line(window))),
    }
}

fn first_line(bytes: &[u8]) -> &[u8] {
    let end = memchr::memchr2(b'\r', b'\n', bytes);
    bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default()
}

/// Why a version 1 header could not be parsed.
enum V1Error {
    /// The header is valid so far, but incomplete.
    Incomplete,
    Broken,
}

/// A parser of version 1 (section 2.1): `PROXY TCP4 192.0.2.1 192.0.2.2 56324 443` and CR LF.
struct V1<'a> {
    rest: &'a [u8],
}

impl<'a> V1<'a> {
    fn header(&mut self) -> Result<Option<ProxiedConnection<'a>>, V1Error> {
        self.word(b"PROXY ")?;
        if self.rest.first() == Some(&b'U') {
            self.word(b"UNKNOWN")?;
            let end = memchr::memmem::find(self.rest, b"\r\n").ok_or(V1Error::Incomplete)?;
            self.rest = self.rest.get(end + 2..).unwrap_or_default();
            return Ok(None);
        }
        self.word(b"TCP")?;
        match self.byte()? {
            b'4' | b'6' => {}
            _ => return Err(V1Error::Broken),
        }
        self.word(b" ")?;
        let source = self.address()?;
        let destination = self.address()?;
        let source_port = self.port(b' ')?;
        let destination_port = self.port(b'\r')?;
        self.word(b"\n")?;
        Ok(Some(ProxiedConnection {
            source: Endpoint {
                address: Address::Text(source),
                port: source_port,
            },
            destination: Endpoint {
                address: Address::Text(destination),
                port: destination_port,
            },
            tlvs: Tlvs::default(),
        }))
    }

    fn byte(&mut self) -> Result<u8, V1Error> {
        let (first, rest) = self.rest.split_first().ok_or(V1Error::Incomplete)?;
        self.rest = rest;
        Ok(*first)
    }

    fn word(&mut self, word: &[u8]) -> Result<(), V1Error> {
        match self.rest.strip_prefix(word) {
            Some(rest) => self.rest = rest,
            None if word.starts_with(self.rest) => return Err(V1Error::Incomplete),
            None => return Err(V1Error::Broken),
        }
        Ok(())
    }

    /// An address, up to the next space.
    fn address(&mut self) -> Result<&'a [u8], V1Error> {
        let is_part = |byte: &u8| byte.is_ascii_hexdigit() || matches!(byte, b'.' | b':');
        let end = self.rest.iter().position(|byte| !is_part(byte));
        let (address, rest) = self
            .rest
            .split_at_checked(end.ok_or(V1Error::Incomplete)?)
            .ok_or(V1Error::Incomplete)?;
        self.rest = rest;
        self.word(b" ")?;
        Ok(address)
    }

    /// A decimal port number, up to `separator`.
    fn port(&mut self, separator: u8) -> Result<u16, V1Error> {
        let mut port = None;
        loop {
            match self.byte()? {
                digit @ b'0'..=b'9' => {
                    let more = u16::from(digit - b'0');
                    let shifted = port.unwrap_or(0_u16).checked_mul(10);
                    port = shifted.and_then(|port| port.checked_add(more));
                    if port.is_none() {
                        return Err(V1Error::Broken);
                    }
                }
                byte if byte == separator => return port.ok_or(V1Error::Broken),
                _ => return Err(V1Error::Broken),
            }
        }
    }
}

fn v2(window: &[u8], length_max: usize, carried: Carried) -> Result<Option<Header<'_>>, Error<'_>> {
    let Some((fixed, rest)) = window.split_first_chunk::<V2_FIXED>() else {
        return if window.len() < length_max {
            Ok(None)
        } else {
            Err(Error::TooLarge)
        };
    };
    let [.., version_command, family_transport, high, low] = *fixed;
    match version_command >> 4 {
        2 => {}
        version => return Err(Error::UnknownVersion(version)),
    }
    let length = usize::from(u16::from_be_bytes([high, low]));
    if V2_FIXED + length > length_max {
        return Err(Error::TooLarge);
    }
    let Some(rest) = rest.get(..length) else {
        return Ok(None);
    };
    let header = |told| {
        Ok(Some(Header {
            length: V2_FIXED + length,
            told,
        }))
    };
    let is_proxied = version_command & 0x0f == 1;
    let is_known = matches!(
        (family_transport & 0x0f, carried),
        (1, _) | (2, Carried::Datagrams)
    );
    if !is_proxied || !is_known {
        return header(None);
    }
    match family_transport >> 4 {
        1 => {
            let (addresses, tlvs) = rest.split_first_chunk::<12>().ok_or(Error::Truncated)?;
            let ip = |bytes: [u8; 4]| IpAddr::from(Ipv4Addr::from(bytes));
            let [a, b, c, d, e, f, g, h, ports @ ..] = *addresses;
            header(Some(told(ip([a, b, c, d]), ip([e, f, g, h]), ports, tlvs)))
        }
        2 => {
            let (source, rest) = rest.split_first_chunk::<16>().ok_or(Error::Truncated)?;
            let (destination, rest) = rest.split_first_chunk::<16>().ok_or(Error::Truncated)?;
            let (ports, tlvs) = rest.split_first_chunk::<4>().ok_or(Error::Truncated)?;
            let ip = |bytes: [u8; 16]| IpAddr::from(Ipv6Addr::from(bytes));
            header(Some(told(ip(*source), ip(*destination), *ports, tlvs)))
        }
        _ => header(None),
    }
}

fn told(source: IpAddr, destination: IpAddr, ports: [u8; 4], tlvs: &[u8]) -> ProxiedConnection<'_> {
    let [a, b, c, d] = ports;
    ProxiedConnection {
        source: Endpoint {
            address: Address::Ip(source),
            port: u16::from_be_bytes([a, b]),
        },
        destination: Endpoint {
            address: Address::Ip(destination),
            port: u16::from_be_bytes([c, d]),
        },
        tlvs: Tlvs(tlvs),
    }
}

#[cfg(test)]
mod tests;
