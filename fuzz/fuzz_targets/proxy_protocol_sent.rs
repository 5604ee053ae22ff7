//! Whatever a server behind is told of a client by the PROXY protocol is what it reads: addresses,
//! ports and each TLV, with a sum that is right, and nothing behind the header is part of it.
#![no_main]

use std::net::{IpAddr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use proto::proxy_protocol::{
    Address, Carried, Endpoints, Version, append_tlv, append_with_checksum, parse,
};

/// Longer than any header that is written here.
const LENGTH_MAX: usize = 1 << 17;

type Input<'a> = (bool, bool, bool, (IpAddr, u16), (IpAddr, u16), Vec<(u8, &'a [u8])>, &'a [u8]);

fuzz_target!(|input: Input<'_>| {
    let (is_binary, are_datagrams, is_told, source, destination, tlvs, behind) = input;
    let version = if is_binary { Version::V2 } else { Version::V1 };
    let carried = if are_datagrams {
        Carried::Datagrams
    } else {
        Carried::Streams
    };
    let ends = is_told.then(|| Endpoints {
        source: SocketAddr::from(source),
        destination: SocketAddr::from(destination),
    });
    let mut entries = Vec::new();
    for (kind, value) in tlvs.iter().take(8) {
        append_tlv(*kind, value, &mut entries);
    }
    let mut bytes = Vec::new();
    append_with_checksum(version, ends, carried, &entries, &mut bytes);
    let length = bytes.len();
    assert!(length > 0, "nothing is told");
    bytes.extend_from_slice(behind);
    let header = parse(&bytes, LENGTH_MAX).expect("a header that holds");
    let header = header.expect("a whole header");
    assert_eq!(header.length, length);
    let Some(told) = header.told else {
        return; // nothing is said of clients by other addresses, and of datagrams in version 1
    };
    assert!(is_told);
    assert_eq!((told.source.port, told.destination.port), (source.1, destination.1));
    for (read, written) in [(told.source.address, source.0), (told.destination.address, destination.0)] {
        let read = match read {
            Address::Ip(ip) => ip,
            Address::Text(text) => {
                let text = std::str::from_utf8(text).expect("digits");
                text.parse().expect("an address")
            }
        };
        assert_eq!(read.to_canonical(), written.to_canonical());
    }
});
