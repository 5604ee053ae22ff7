//! Creates the PROXY protocol header of a connection to an upstream.
//!
//! The caller decides which TLVs to send: [`append_tlv`] encodes one, and [`append_client_tls`]
//! those about a client's TLS connection (section 2.2.5).

use std::io::Write;
use std::net::{IpAddr, SocketAddr};

use super::SIGNATURE;

/// Version 2, command PROXY: the connection is on behalf of a client (section 2.2).
const V2_PROXY: u8 = 0x21;

/// Version 2, command LOCAL: the connection is the proxy's own.
const V2_LOCAL: u8 = 0x20;

/// Length of signature, version, family and length, in bytes.
const HEADER_SIZE: usize = 16;

/// TLV types (section 2.2).
const PP2_TYPE_ALPN: u8 = 0x01;
const PP2_TYPE_AUTHORITY: u8 = 0x02;
const PP2_TYPE_SSL: u8 = 0x20;

/// TLV types within `PP2_TYPE_SSL` (section 2.2.5).
const PP2_SUBTYPE_SSL_VERSION: u8 = 0x21;
const PP2_SUBTYPE_SSL_CN: u8 = 0x22;
const PP2_SUBTYPE_SSL_CIPHER: u8 = 0x23;

/// Flags of `PP2_TYPE_SSL`: the client uses TLS; it sent a certificate on this connection, or in
/// this session.
const PP2_CLIENT_SSL: u8 = 0x01;
const PP2_CLIENT_CERT_CONN: u8 = 0x02;
const PP2_CLIENT_CERT_SESS: u8 = 0x04;

/// nginx's verification result for a client without a certificate: OpenSSL's
/// `X509_V_ERR_UNSPECIFIED`.
const NOT_VERIFIED: u32 = 1;

/// TLV type of the checksum (section 2.2.3), and its length with type and length, in bytes.
const PP2_TYPE_CRC32C: u8 = 3;
const CHECKSUM_SIZE: u16 = 7;

/// Family and transport: unspecified.
const V2_UNSPECIFIED: u8 = 0x00;
const V2_TCP_OVER_IPV4: u8 = 0x11;
const V2_TCP_OVER_IPV6: u8 = 0x21;

/// The version of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// Text (section 2.1).
    V1,
    /// Binary (section 2.2).
    V2,
}

/// The transport of the proxied connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// A byte stream, as in TCP.
    Streams,
    /// Datagrams, as in UDP.
    Datagrams,
}

/// The two endpoints of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// The client's address and port.
    pub source: SocketAddr,
    /// The address and port to which the client connected.
    pub destination: SocketAddr,
}

impl Endpoints {
    /// Both addresses in one family, as a header requires: if they differ, the IPv4 address is
    /// mapped to IPv6.
    fn in_one_family(self) -> (IpAddr, IpAddr) {
        let (source, destination) = (self.source.ip(), self.destination.ip());
        if source.is_ipv4() == destination.is_ipv4() {
            (source, destination)
        } else {
            (as_v6(source), as_v6(destination))
        }
    }
}

fn as_v6(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => IpAddr::V6(ip.to_ipv6_mapped()),
        IpAddr::V6(_) => ip,
    }
}

/// Appends the header of a connection between these endpoints; `None` if one of them has no IP
/// address, as with Unix sockets.
pub fn append(version: Version, ends: Option<Endpoints>, out: &mut Vec<u8>) {
    match version {
        Version::V1 => append_v1(ends, out),
        Version::V2 => append_v2(ends, out),
    }
}

/// The parameters of a client's TLS connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientTls<'a> {
    /// The server name that the client requested.
    pub authority: Option<&'a [u8]>,
    /// The negotiated protocol (ALPN).
    pub alpn: &'a [u8],
    /// The version, such as `TLSv1.3`.
    pub version: &'a [u8],
    /// The name of the cipher.
    pub cipher: &'a [u8],
    /// The client's certificate, if it sent one.
    pub certificate: Option<ClientCertificate<'a>>,
}

/// A client's certificate.
#[derive(Clone, Copy, Debug)]
pub struct ClientCertificate<'a> {
    /// The common name of the subject, if there is one.
    pub common_name: Option<&'a [u8]>,
    /// Whether the certificate was sent on this connection, rather than on one whose session was
    /// resumed.
    pub on_connection: bool,
    /// OpenSSL's verification result; 0 for a valid certificate.
    pub verify: u32,
}

/// Appends a TLV. Omits a value that is longer than 65,535 bytes.
pub fn append_tlv(kind: u8, value: &[u8], out: &mut Vec<u8>) {
    if let Ok(length) = u16::try_from(value.len()) {
        out.push(kind);
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(value);
    }
}

/// Appends the TLVs about a client's TLS connection, in nginx's order.
pub fn append_client_tls(tls: &ClientTls<'_>, out: &mut Vec<u8>) {
    if let Some(authority) = tls.authority {
        append_tlv(PP2_TYPE_AUTHORITY, authority, out);
    }
    if !tls.alpn.is_empty() {
        append_tlv(PP2_TYPE_ALPN, tls.alpn, out);
    }
    let (mut client, mut verify, mut common_name) = (PP2_CLIENT_SSL, NOT_VERIFIED, None);
    if let Some(certificate) = &tls.certificate {
        client |= PP2_CLIENT_CERT_SESS;
        if certificate.on_connection {
            client |= PP2_CLIENT_CERT_CONN;
        }
        verify = certificate.verify;
        common_name = certificate.common_name;
    }
    let mut details = vec![client];
    details.extend_from_slice(&verify.to_be_bytes());
    append_tlv(PP2_SUBTYPE_SSL_VERSION, tls.version, &mut details);
    if let Some(common_name) = common_name {
        append_tlv(PP2_SUBTYPE_SSL_CN, common_name, &mut details);
    }
    append_tlv(PP2_SUBTYPE_SSL_CIPHER, tls.cipher, &mut details);
    append_tlv(PP2_TYPE_SSL, &details, out);
}

/// Like [`append`], with TLVs and a checksum in version 2 (CRC-32C, section 2.2.3). Without
/// endpoints, the command is LOCAL, as in nginx.
pub fn append_with_checksum(
    version: Version,
    ends: Option<Endpoints>,
    carried: Carried,
    tlvs: &[u8],
    out: &mut Vec<u8>,
) {
    let start = out.len();
    append(version, ends, out);
    if version == Version::V1 {
        return;
    }
    let header = out.get_mut(start..).unwrap_or_default();
    let Some([_, .., family, high, low]) = header.first_chunk_mut::<HEADER_SIZE>() else {
        return; // not reached: the header has been appended
    };
    if carried == Carried::Datagrams && *family != V2_UNSPECIFIED {
        *family += 1; // the low bits are the transport: STREAM, then DGRAM
    }
    // TLVs that do not fit into the header's length are omitted.
    let own = u16::from_be_bytes([*high, *low]) + CHECKSUM_SIZE;
    let with_tlvs = u16::try_from(tlvs.len()).ok();
    let with_tlvs = with_tlvs.and_then(|tlvs| own.checked_add(tlvs));
    let length = with_tlvs.unwrap_or(own);
    [*high, *low] = length.to_be_bytes();
    if ends.is_none()
        && let Some(command) = header.get_mut(SIGNATURE.len())
    {
        *command = V2_LOCAL;
    }
    if with_tlvs.is_some() {
        out.extend_from_slice(tlvs);
    }
    out.extend_from_slice(&[PP2_TYPE_CRC32C, 0, 4, 0, 0, 0, 0]);
    let checksum = crc32c(out.get(start..).unwrap_or_default()).to_be_bytes();
    if let Some(place) = out.last_chunk_mut::<4>() {
        *place = checksum;
    }
}

/// CRC-32C (RFC 9260, appendix A).
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78; // reflected
    let mut rest = u32::MAX;
    for byte in bytes {
        rest ^= u32::from(*byte);
        for _ in 0..8 {
            let is_odd = rest & 1 == 1;
            rest >>= 1;
            if is_odd {
                rest ^= POLYNOMIAL;
            }
        }
    }
    !rest
}

fn append_v1(ends: Option<Endpoints>, out: &mut Vec<u8>) {
    let Some(ends) = ends else {
        return out.extend_from_slice(b"PROXY UNKNOWN\r\n");
    };
    let (source, destination) = ends.in_one_family();
    let family = if source.is_ipv4() { 4 } else { 6 };
    let (source_port, destination_port) = (ends.source.port(), ends.destination.port());
    // Writing to a vector cannot fail.
    let _ = write!(
        out,
        "PROXY TCP{family} {source} {destination} {source_port} {destination_port}\r\n"
    );
}

fn append_v2(ends: Option<Endpoints>, out: &mut Vec<u8>) {
    out.extend_from_slice(SIGNATURE);
    out.push(V2_PROXY);
    let Some(ends) = ends else {
        return out.extend_from_slice(&[V2_UNSPECIFIED, 0, 0]);
    };
    match ends.in_one_family() {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            out.extend_from_slice(&[V2_TCP_OVER_IPV4, 0, 12]);
            out.extend_from_slice(&source.octets());
            out.extend_from_slice(&destination.octets());
        }
        (source, destination) => {
            out.extend_from_slice(&[V2_TCP_OVER_IPV6, 0, 36]);
            for ip in [source, destination] {
                if let IpAddr::V6(ip) = as_v6(ip) {
                    out.extend_from_slice(&ip.octets());
                }
            }
        }
    }
    out.extend_from_slice(&ends.source.port().to_be_bytes());
    out.extend_from_slice(&ends.destination.port().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;
    use super::*;

    #[test]
    fn checksums() {
        // RFC 3720 appendix B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let mut header = Vec::new();
        append_with_checksum(Version::V2, None, Carried::Datagrams, &[], &mut header);
        // The checksum was computed independently, bit by bit.
        let sum = [0xa9, 0xb8, 0x7e, 0x8f];
        assert_eq!(header[12..], [&[0x20, 0, 0, 7, 3, 0, 4][..], &sum].concat());
    }

    /// Type numbers from section 2.2.5; the result is parsed with this crate.
    #[test]
    fn what_a_client_s_tls_has_come_to() {
        let tls = ClientTls {
            authority: Some(b"a.test"),
            alpn: b"h2",
            version: b"TLSv1.3",
            cipher: b"C",
            certificate: None,
        };
        let mut tlvs = Vec::new();
        append_client_tls(&tls, &mut tlvs);
        let details = b"\x20\0\x13\x01\0\0\0\x01\x21\0\x07TLSv1.3\x23\0\x01C";
        let names = b"\x02\0\x06a.test\x01\0\x02h2";
        assert_eq!(tlvs, [&names[..], details].concat());
        let certificate = ClientCertificate {
            common_name: Some(b"me"),
            on_connection: true,
            verify: 0,
        };
        let with = ClientTls {
            certificate: Some(certificate),
            ..ClientTls::default()
        };
        tlvs.clear();
        append_client_tls(&with, &mut tlvs);
        assert_eq!(tlvs, b"\x20\0\x10\x07\0\0\0\0\x21\0\0\x22\0\x02me\x23\0\0");
        let mut header = Vec::new();
        append_with_checksum(Version::V2, None, Carried::Streams, &tlvs, &mut header);
        assert_eq!(header.get(14..16), Some(&[0, 26][..]));
        let long = vec![0; 65_530];
        header.clear();
        append_with_checksum(Version::V2, None, Carried::Streams, &long, &mut header);
        assert_eq!(header.len(), 16 + 7, "more than a header can hold");
    }

    fn written(version: Version, ends: Option<(&str, &str)>) -> Vec<u8> {
        let ends = ends.map(|(source, destination)| Endpoints {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        });
        let mut out = Vec::new();
        append(version, ends, &mut out);
        out
    }

    /// Expected text from section 2.1 of the specification.
    #[test]
    fn lines_of_version_1() {
        let line = |ends| String::from_utf8(written(Version::V1, ends)).unwrap();
        assert_eq!(
            line(Some(("192.168.0.1:56324", "192.168.0.11:443"))),
            "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n"
        );
        assert_eq!(
            line(Some(("[2001:db8::1]:1", "[::1]:65535"))),
            "PROXY TCP6 2001:db8::1 ::1 1 65535\r\n"
        );
        assert_eq!(
            line(Some(("10.0.0.1:0", "[::1]:80"))),
            "PROXY TCP6 ::ffff:10.0.0.1 ::1 0 80\r\n"
        );
        assert_eq!(line(None), "PROXY UNKNOWN\r\n");
    }

    /// Expected bytes from section 2.2.
    #[test]
    fn bytes_of_version_2() {
        let ends = Some(("192.168.0.1:56324", "10.0.0.2:443"));
        let expected: &[u8] =
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\xa8\0\x01\x0a\0\0\x02\xdc\x04\x01\xbb";
        assert_eq!(written(Version::V2, ends), expected);
        assert_eq!(
            written(Version::V2, None),
            b"\r\n\r\n\0\r\nQUIT\n\x21\x00\0\0"
        );
        let long = written(Version::V2, Some(("[::1]:1", "10.0.0.2:2")));
        assert_eq!(long.len(), 16 + 36);
        assert_eq!(long.get(12..16), Some(&b"\x21\x21\0\x24"[..]));
    }

    #[test]
    fn what_is_written_is_read() {
        for version in [Version::V1, Version::V2] {
            for (source, destination, told) in [
                ("10.0.0.1:1", "10.0.0.2:2", "10.0.0.1 1 10.0.0.2 2"),
                ("[::2]:3", "[::1]:4", "::2 3 ::1 4"),
                ("[::2]:3", "1.2.3.4:4", "::2 3 ::ffff:1.2.3.4 4"),
            ] {
                let mut bytes = written(version, Some((source, destination)));
                bytes.extend_from_slice(b"GET");
                assert_eq!(read(&bytes), (Some(told.to_owned()), &b"GET"[..]));
            }
            let mut bytes = written(version, None);
            bytes.extend_from_slice(b"GET");
            assert_eq!(read(&bytes), (None, &b"GET"[..]));
        }
    }
}
