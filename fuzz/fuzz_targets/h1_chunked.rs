//! The chunked coding: decoding in pieces equals decoding at once, and what we encode decodes to
//! itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::h1::chunked::{ChunkError, ChunkLine, DATA_END, Decoder, LAST};

fuzz_target!(|data: &[u8]| {
    let Some((&choice, bytes)) = data.split_first() else {
        return;
    };
    let piece = usize::from(choice % 16) + 1;
    assert_eq!(decode(bytes, usize::MAX), decode(bytes, piece));

    let mut encoded = Vec::new();
    for chunk in bytes.chunks(usize::from(choice) + 1) {
        encoded.extend_from_slice(ChunkLine::new(chunk.len() as u64).as_bytes());
        encoded.extend_from_slice(chunk);
        encoded.extend_from_slice(DATA_END);
    }
    encoded.extend_from_slice(LAST);
    assert_eq!(
        decode(&encoded, piece),
        Ok((bytes.to_vec(), Some(encoded.len())))
    );
});

/// The body, and how much of the input it took if it is complete.
fn decode(bytes: &[u8], piece: usize) -> Result<(Vec<u8>, Option<usize>), ChunkError> {
    let mut decoder = Decoder::new();
    let mut body = Vec::new();
    let mut consumed = 0;
    for piece in bytes.chunks(piece.min(bytes.len()).max(1)) {
        let mut rest = piece;
        while !rest.is_empty() {
            let decoded = decoder.decode(rest)?;
            assert!(decoded.data.end <= decoded.consumed && decoded.consumed <= rest.len());
            assert!(decoded.consumed > 0 || decoded.done);
            body.extend_from_slice(&rest[decoded.data]);
            consumed += decoded.consumed;
            if decoded.done {
                return Ok((body, Some(consumed)));
            }
            assert!(decoder.least_remaining() > 0);
            rest = &rest[decoded.consumed..];
        }
    }
    Ok((body, None))
}
