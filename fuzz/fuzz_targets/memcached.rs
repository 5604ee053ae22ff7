//! A memcached server's answers: whatever comes is the same in whatever pieces, a value is as long
//! as its line says, and is complete only with its trailer; and a key never makes a second request.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::memcached::{FirstReply, Body, Fault, Get, parse};

/// Longest value, in bytes, that is made up of the input where a line does not say how long it is.
const LENGTH_MAX: u64 = 64;

fuzz_target!(|input: (u8, &[u8], &[u8])| {
    let (choice, key, rest) = input;
    let Some(get) = Get::new(key) else {
        assert!(key.is_empty());
        return;
    };
    let line = get.line();
    assert_eq!(line, [b"get ", get.key(), b"\r\n"].concat());
    assert!(!get.key().iter().any(|byte| *byte <= b' '));
    // Random bytes seldom begin as an answer does.
    let begin = match choice & 3 {
        0 => [b"VALUE ", get.key(), b" "].concat(),
        1 => [b"VALUE ", get.key(), b" 1 5\r\n"].concat(),
        2 => b"END".to_vec(),
        _ => Vec::new(),
    };
    let bytes = [&begin, rest].concat();
    let with_flags = choice & 4 != 0;
    let piece = usize::from(choice >> 3) + 1;
    let length = match answer(&bytes, &get, with_flags) {
        Some((at, length)) => {
            check_body(&bytes[at..], length, piece);
            return;
        }
        None => u64::from(choice) % LENGTH_MAX,
    };
    check_body(rest, length, piece);
});

/// Where the value begins and how long it is, if the first line tells of one.
fn answer(bytes: &[u8], get: &Get, with_flags: bool) -> Option<(usize, u64)> {
    let line_end = bytes.iter().position(|byte| *byte == b'\n');
    for end in 0..=line_end.unwrap_or(bytes.len()) {
        assert_eq!(parse(&bytes[..end], get, with_flags), Ok(None));
    }
    let at = line_end? + 1;
    let result = parse(bytes, get, with_flags);
    assert_eq!(parse(&bytes[..at], get, with_flags), result);
    match result {
        Err(fault) => {
            assert_ne!(fault, Fault::InvalidTrailer);
            assert!(!fault.log_text(bytes, get).is_empty());
            None
        }
        Ok(None) => panic!("a whole line"),
        Ok(Some((length, FirstReply::NotFound))) => {
            assert_eq!((length, &bytes[..at]), (at, &b"END\r\n"[..]));
            None
        }
        Ok(Some((
            length,
            FirstReply::Value {
                length: size,
                flags,
            },
        ))) => {
            assert_eq!((length, flags.is_some()), (at, with_flags));
            let written = match flags {
                Some(flags) => flags.to_string(),
                None => String::new(),
            };
            // Zeros before numbers aside, the line is what it says.
            let parts: Vec<&[u8]> = bytes[..at - 2].split(|byte| *byte == b' ').collect();
            assert_eq!(
                (parts.len(), parts[0], parts[1]),
                (4, &b"VALUE"[..], get.key())
            );
            assert!(parts[2].ends_with(written.as_bytes()));
            assert!(parts[3].ends_with(size.to_string().as_bytes()));
            Some((at, size))
        }
    }
}

/// What follows a value's line, in pieces and as a whole.
fn check_body(bytes: &[u8], length: u64, piece: usize) {
    let whole = decode(bytes, length, usize::MAX);
    assert_eq!(decode(bytes, length, piece), whole);
    assert_eq!(decode(bytes, length, 1), whole);
    let (value, end) = whole;
    let size = usize::try_from(length).unwrap_or(usize::MAX);
    assert_eq!(value, bytes.get(..size).unwrap_or(bytes));
    let behind = bytes.get(size..).unwrap_or_default();
    let expected: &[u8] = b"\r\nEND\r\n";
    let shared = behind.len().min(expected.len());
    match end {
        Err(fault) => {
            assert_eq!(fault, Fault::InvalidTrailer);
            assert_ne!(behind[..shared], expected[..shared]);
        }
        Ok(consumed) => {
            assert_eq!(behind[..shared], expected[..shared]);
            let is_whole = behind.len() >= expected.len();
            assert_eq!(consumed, is_whole.then_some(size.saturating_add(7)));
        }
    }
}

/// The value, and how much of the input the answer took if it is complete.
fn decode(bytes: &[u8], length: u64, piece: usize) -> (Vec<u8>, Result<Option<usize>, Fault>) {
    let (mut body, mut value, mut consumed) = (Body::new(length), Vec::new(), 0);
    for piece in bytes.chunks(piece.min(bytes.len()).max(1)) {
        let mut rest = piece;
        while !rest.is_empty() {
            let decoded = match body.decode(rest) {
                Ok(decoded) => decoded,
                Err(fault) => {
                    assert_eq!(body.decode(rest), Err(fault));
                    return (value, Err(fault));
                }
            };
            assert!(decoded.data.end <= decoded.consumed && decoded.consumed <= rest.len());
            assert!(decoded.consumed > 0);
            value.extend_from_slice(&rest[decoded.data]);
            assert_eq!(body.remaining(), length - value.len() as u64);
            consumed += decoded.consumed;
            if decoded.done {
                return (value, Ok(Some(consumed)));
            }
            rest = &rest[decoded.consumed..];
        }
    }
    (value, Ok(None))
}
