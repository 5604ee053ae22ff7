//! Whatever comes in datagrams where QUIC may be spoken: headers lie within the datagram and begin
//! none from less than all of it, and CRYPTO frames in any order are what one buffer would hold.
#![no_main]

#[path = "../../crates/stream/src/preread/initial.rs"]
mod initial;

use initial::{CryptoStream, initial};
use libfuzzer_sys::fuzz_target;

/// The default of `preread_buffer_size`.
const LENGTH_MAX: usize = 16 * 1024;

fuzz_target!(|input: (bool, &[u8], Vec<(u16, Vec<u8>)>)| {
    let (is_random, bytes, pieces) = input;
    let datagram = if is_random {
        bytes.to_vec()
    } else {
        [b"\xc0\0\0\0\x01", bytes].concat()
    };
    let mut at = 0;
    while let Some(found) = initial(&datagram, at) {
        let range = found.packet.range();
        assert!(range.start == at && range.end <= datagram.len());
        assert!((range.start..=range.end).contains(&found.number_at));
        assert!(found.destination.len() <= 20);
        assert_eq!(initial(&datagram[..range.end - 1], at), None);
        at = range.end;
    }
    let mut stream = CryptoStream::new(LENGTH_MAX);
    let _ = stream.take_frames(bytes);
    // The same bytes at whatever place they come, so that what comes twice is the same.
    let mut stream = CryptoStream::new(LENGTH_MAX);
    let mut has_come = vec![false; LENGTH_MAX];
    for (offset, content) in pieces.into_iter().take(40) {
        let (offset, length) = (usize::from(offset), content.len().min(200));
        let bytes: Vec<u8> = (offset..offset + length).map(|at| at as u8).collect();
        let mut frame = vec![6];
        frame.extend_from_slice(&(offset as u32 | 0x8000_0000).to_be_bytes());
        frame.extend_from_slice(&(length as u16 | 0x4000).to_be_bytes());
        frame.extend_from_slice(&bytes);
        if stream.take_frames(&frame) {
            has_come[offset..offset + length].fill(true);
        } else {
            assert!(offset + length > LENGTH_MAX);
        }
        let length = has_come.iter().take_while(|has_come| **has_come).count();
        let expected: Vec<u8> = (0..length).map(|at| at as u8).collect();
        assert_eq!(stream.beginning(), expected);
    }
});
