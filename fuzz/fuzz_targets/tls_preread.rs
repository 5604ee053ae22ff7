//! Whatever a client sends to a proxy that looks for a name: in one piece or in many the same is
//! seen, and what is decided early stays so.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::tls::preread::{Preread, PrereadResult};

fuzz_target!(|input: (u8, &[u8], Vec<u16>)| {
    let (kind, bytes, ends) = input;
    // Random bytes seldom begin as a handshake does.
    let bytes = match kind {
        0 => {
            let message = [&[1, 0, 0, bytes.len() as u8][..], bytes].concat();
            let length = (message.len() as u16).to_be_bytes();
            [&[22, 3, 1][..], &length, &message].concat()
        }
        1 => [b"\x16\x03\x01\0\x05\x01", bytes].concat(),
        _ => bytes.to_vec(),
    };
    let whole = Preread::default().go_on(&bytes);
    let mut preread = Preread::default();
    let mut ends: Vec<usize> = ends.into_iter().map(usize::from).collect();
    ends.sort_unstable();
    ends.push(bytes.len());
    for end in ends {
        let end = end.min(bytes.len());
        match preread.go_on(&bytes[..end]) {
            PrereadResult::More => {}
            decided => {
                assert_eq!(decided, whole, "after {end} bytes");
                return;
            }
        }
    }
    assert_eq!(whole, PrereadResult::More);
});
