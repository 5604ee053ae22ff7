//! Whatever a proxy sends before its client's bytes: a header lies within what came and within the
//! limit, none is read from less than all of it, the limit never makes another header of it, and
//! every name can be asked for. Before a datagram the same bytes are a header of the same length.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::proxy_protocol::{Error, parse, parse_datagram};

/// The default of `client_header_buffer_size`.
const LENGTH_MAX: usize = 1024;

const NAMES: [&[u8]; 6] = [
    b"alpn",
    b"ssl",
    b"ssl_cn",
    b"ssl_verify",
    b"0xae",
    b"ssl_0x21",
];

fuzz_target!(|input: (u8, &[u8], &[u8])| {
    let (version, bytes, name) = input;
    // Random bytes seldom begin as a header does.
    let begin: &[u8] = match version {
        0 => b"PROXY TCP4 ",
        1 => b"PROXY UNKNOWN",
        2 => b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0",
        3 => b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0",
        4 => b"\r\n\r\n\0\r\nQUIT\n",
        _ => b"",
    };
    let bytes = [begin, bytes].concat();
    let of_datagram = parse_datagram(&bytes, LENGTH_MAX);
    if let Ok(header) = of_datagram
        && let Some(told) = header.told
    {
        let _ = told.ends();
    }
    let header = match parse(&bytes, LENGTH_MAX) {
        Ok(Some(header)) => {
            // Addresses of datagrams may be cut off, which a connection's header does not look at.
            match of_datagram {
                Ok(other) => assert_eq!(header.length, other.length),
                Err(error) => assert!(error == Error::Truncated && header.told.is_none()),
            }
            header
        }
        Ok(None) => {
            assert!(of_datagram.is_err());
            assert!(bytes.len() < LENGTH_MAX + 16, "more could follow for ever");
            return;
        }
        Err(error) => {
            assert!(!error.log_text().is_empty());
            if matches!(error, Error::Broken(line) if line.len() > LENGTH_MAX) {
                panic!("a line beyond the limit");
            }
            return;
        }
    };
    assert!(header.length <= bytes.len() && header.length <= LENGTH_MAX);
    for end in 0..header.length {
        assert_eq!(parse(&bytes[..end], LENGTH_MAX), Ok(None));
    }
    assert_eq!(
        parse(&bytes[..header.length], header.length),
        Ok(Some(header))
    );
    if let Some(told) = header.told {
        for name in NAMES.into_iter().chain([name]) {
            drop(told.tlvs.named(name).map_err(|error| error.to_string()));
        }
    }
});
