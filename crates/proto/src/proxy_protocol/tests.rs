//! Examples of the specification (sections 2.1 and 2.2), and nginx 1.31's results for other bytes.

use super::*;

/// A limit larger than every header here.
const ROOM: usize = 1024;

fn text(source: &str, source_port: u16, destination: &str, destination_port: u16) -> String {
    format!("{source} {source_port} {destination} {destination_port}")
}

/// The addresses of a header in the form of [`text`], and the bytes after it.
pub(super) fn read(bytes: &[u8]) -> (Option<String>, &[u8]) {
    let header = parse(bytes, ROOM).unwrap().unwrap();
    let shown = |address: Address<'_>| match address {
        Address::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
        Address::Ip(ip) => ip.to_string(),
    };
    let told = header.told.map(|told| {
        let (source, destination) = (shown(told.source.address), shown(told.destination.address));
        text(
            &source,
            told.source.port,
            &destination,
            told.destination.port,
        )
    });
    (told, &bytes[header.length..])
}

fn v2(version_command: u8, family_transport: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [
        &SIGNATURE[..],
        &[version_command, family_transport],
        &length,
        rest,
    ]
    .concat()
}

/// 192.0.2.1:123 to 192.0.2.2:5678
const V4: &[u8] = &[192, 0, 2, 1, 192, 0, 2, 2, 0, 123, 22, 46];

#[test]
fn version_1_of_the_specification() {
    let v4 = b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n";
    let all = "255.255.255.255";
    assert_eq!(read(v4), (Some(text(all, 65535, all, 65535)), &b""[..]));
    let all = "ffff:f...f:ffff";
    let v6 = b"PROXY TCP6 ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n";
    assert_eq!(read(v6), (Some(text(all, 65535, all, 65535)), &b""[..]));
    assert_eq!(read(b"PROXY UNKNOWN\r\n"), (None, &b""[..]));
    let worst = b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n";
    assert_eq!(read(worst), (None, &b""[..]));
    let example = b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\nGET / HTTP/1.1\r\n\
        Host: 192.168.0.11\r\n\r\n";
    let (told, rest) = read(example);
    assert_eq!(told, Some(text("192.168.0.1", 56324, "192.168.0.11", 443)));
    assert!(rest.starts_with(b"GET / HTTP/1.1\r\n"));
}

#[test]
fn version_1_as_nginx_takes_it() {
    for (line, told) in [
        ("PROXY TCP4 1 2 3 4\r\n", text("1", 3, "2", 4)),
        (
            "PROXY TCP6 2001:Db8::1 :: 0 007\r\n",
            text("2001:Db8::1", 0, "::", 7),
        ),
        ("PROXY TCP4   1 2\r\n", text("", 1, "", 2)),
    ] {
        assert_eq!(read(line.as_bytes()), (Some(told), &b""[..]), "{line}");
    }
    for unknown in ["PROXY UNKNOWN 1 2 3 4 5 6\r\n", "PROXY UNKNOWNx\r\r\n"] {
        assert_eq!(read(unknown.as_bytes()), (None, &b""[..]), "{unknown}");
    }
}

#[test]
fn what_is_no_header() {
    for (bytes, line) in [
        (&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], "GET / HTTP/1.1"),
        (b"\n", ""),
        (b"proxy TCP4", "proxy TCP4"),
        (b"PROXY UNIX", "PROXY UNIX"),
        (b"PROXY TCP5 ", "PROXY TCP5 "),
        (b"PROXY TCP4 example.org ", "PROXY TCP4 example.org "),
        (b"PROXY TCP4 1 2 65536 ", "PROXY TCP4 1 2 65536 "),
        (b"PROXY TCP4 1 2 3\r\n", "PROXY TCP4 1 2 3"),
        (b"PROXY TCP4 1 2 3 4\n", "PROXY TCP4 1 2 3 4"),
        (b"PROXY TCP4 1 2 3 \r\n", "PROXY TCP4 1 2 3 "),
        (b"PROXY TCP4 1 2 3 4\r\r\n", "PROXY TCP4 1 2 3 4"),
        (b"\r\n\r\n\0\r\nQUIX", ""),
        (b"\x16\x03\x01\x02", "\x16\x03\x01\x02"),
    ] {
        assert_eq!(
            parse(bytes, ROOM),
            Err(Error::Broken(line.as_bytes())),
            "{line}"
        );
    }
    assert_eq!(
        Error::Broken(b"GET /").log_text(),
        b"broken header: \"GET /\""
    );
}

#[test]
fn version_2() {
    let rest = |header: Vec<u8>| [header, b"GET".to_vec()].concat();
    let told = Some(text("192.0.2.1", 123, "192.0.2.2", 5678));
    assert_eq!(read(&rest(v2(0x21, 0x11, V4))), (told, &b"GET"[..]));
    let address = |last: u8| [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    let v6 = [&address(1)[..], &address(2), &V4[8..]].concat();
    let told = Some(text("2001:db8::1", 123, "2001:db8::2", 5678));
    assert_eq!(read(&rest(v2(0x21, 0x21, &v6))), (told, &b"GET"[..]));
}

/// `LOCAL` from a health check, and headers whose addresses nginx ignores: other commands,
/// datagrams, Unix sockets, unspecified families.
#[test]
fn version_2_without_addresses() {
    for (command, family, length) in [
        (0x20, 0x00, 0),
        (0x20, 0x11, 12),
        (0x2f, 0x11, 12),
        (0x21, 0x00, 0),
        (0x21, 0x01, 0),
        (0x21, 0x12, 12),
        (0x21, 0x31, 216),
        (0x21, 0x41, 4),
    ] {
        let header = v2(command, family, &vec![7; length]);
        assert_eq!(read(&header), (None, &b""[..]), "{command:x} {family:x}");
    }
}

#[test]
fn datagrams_begin_with_a_header() {
    let ends = || {
        Some((
            "192.0.2.1:123".parse().unwrap(),
            "192.0.2.2:5678".parse().unwrap(),
        ))
    };
    let v1 = b"PROXY TCP4 192.0.2.1 192.0.2.2 123 5678\r\n".to_vec();
    for header in [v2(0x21, 0x12, V4), v2(0x21, 0x11, V4), v1] {
        let datagram = [&header[..], b"GET"].concat();
        let read = parse_datagram(&datagram, ROOM).unwrap();
        assert_eq!(read.length, header.len());
        assert_eq!(read.told.unwrap().ends(), ends());
        for end in 0..header.len() {
            let cut = &datagram[..end];
            let error = match end {
                12.. if header[0] == b'\r' => Error::CutOff,
                _ => Error::Broken(first_line(cut)),
            };
            assert_eq!(parse_datagram(cut, ROOM), Err(error), "{end}");
        }
    }
    for header in [v2(0x20, 0x00, b""), v2(0x21, 0x31, &[7; 216])] {
        assert_eq!(parse_datagram(&header, ROOM).unwrap().told, None);
    }
    let v1 = b"PROXY TCP4 ::::: 192.0.2.2 123 5678\r\n";
    assert_eq!(parse_datagram(v1, ROOM).unwrap().told.unwrap().ends(), None);
}

#[test]
fn version_2_with_faults() {
    let header = v2(0x31, 0x11, V4);
    assert_eq!(parse(&header, ROOM), Err(Error::UnknownVersion(3)));
    for family in [0x11, 0x21] {
        let header = v2(0x21, family, &V4[..11]);
        assert_eq!(parse(&header, ROOM), Err(Error::Truncated));
    }
}

#[test]
fn more_follows_the_addresses() {
    let header = v2(0x21, 0x11, &[V4, b"\x01\0\x02h2"].concat());
    let told = parse(&header, ROOM).unwrap().unwrap().told.unwrap();
    assert_eq!(told.tlvs.named(b"alpn"), Ok(Some(Value::Bytes(b"h2"))));
}

#[test]
fn a_header_may_arrive_byte_by_byte() {
    let v1 = b"PROXY TCP4 192.0.2.1 192.0.2.2 123 5678\r\n".to_vec();
    let unknown = b"PROXY UNKNOWN x\r\n".to_vec();
    for header in [v1, unknown, v2(0x21, 0x11, V4)] {
        for end in 0..header.len() {
            assert_eq!(parse(&header[..end], ROOM), Ok(None), "{end}");
        }
        let length = parse(&header, ROOM).unwrap().unwrap().length;
        assert_eq!(length, header.len());
    }
}

#[test]
fn headers_have_a_limit() {
    let v1 = b"PROXY UNKNOWN 1234\r\n";
    assert_eq!(parse(v1, v1.len()).unwrap().unwrap().length, v1.len());
    let broken = Err(Error::Broken(b"PROXY UNKNOWN 1234"));
    assert_eq!(parse(v1, v1.len() - 1), broken);
    let v2 = v2(0x21, 0x11, V4);
    assert_eq!(parse(&v2, v2.len()).unwrap().unwrap().length, v2.len());
    // The header is rejected as soon as its length is known.
    assert_eq!(parse(&v2[..16], v2.len() - 1), Err(Error::TooLarge));
    assert_eq!(parse(&v2, 15), Err(Error::TooLarge));
}
