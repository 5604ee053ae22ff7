//! Heads of upstreams' answers: reading in pieces equals reading at once, nothing beyond the head
//! matters, a head that is read into one that has held others equals one that has not, and where
//! httparse accepts a head too, both understand the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::h1::Version;
use proto::h1::response::{BodyFraming, ResponseError, ResponseHead, parse};
use proto::header::KnownField;

/// How many informational heads are read before the answer's own.
const HEADS_MAX: usize = 8;

fuzz_target!(|data: &[u8]| {
    let Some((choice, mut bytes)) = data.split_first() else {
        return;
    };
    let piece = usize::from(choice % 16) + 1;
    let mut used = ResponseHead::default();
    for _ in 0..HEADS_MAX {
        let mut head = ResponseHead::default();
        let result = parse(bytes, &mut head);
        assert_eq!(parse(bytes, &mut used), result);
        assert_same(&head, &used, bytes);
        in_pieces(bytes, piece, result, &head);
        match result {
            Ok(None) => return,
            Err(error) => {
                assert!(!error.log_text(bytes).is_empty());
                return;
            }
            Ok(Some(length)) => {
                check(bytes, length, &head);
                let is_informational = matches!(head.status(), 100 | 102..=199);
                if !is_informational || head.version() == Version::Http09 {
                    return;
                }
                bytes = &bytes[length..];
                used.clear();
            }
        }
    }
});

/// What holds for every head that is taken.
fn check(bytes: &[u8], length: usize, head: &ResponseHead) {
    assert!(length <= bytes.len());
    let alone = &bytes[..length];
    let mut again = ResponseHead::default();
    if head.version() == Version::Http09 && length == 0 {
        assert!(head.fields().is_empty() && head.status() == 200 && head.closes());
        return;
    }
    assert_eq!(parse(alone, &mut again), Ok(Some(length)));
    assert_same(head, &again, bytes);
    assert!((100..=599).contains(&head.status()));
    // Where the body ends is never in doubt.
    let count = |known| head.all(known).count();
    let (lengths, codings) = (count(KnownField::ContentLength), count(KnownField::TransferEncoding));
    if !head.is_early_hints() {
        assert!(lengths + codings <= 1);
        let is_empty = matches!(head.status(), 101 | 204 | 304);
        match head.body(false) {
            BodyFraming::None => assert!(is_empty),
            BodyFraming::Length(length) => {
                assert!(lengths == 1 && head.content_length() == Some(length));
            }
            BodyFraming::Chunked => assert_eq!(codings, 1),
            BodyFraming::UntilClose => assert_eq!(lengths + codings, 0),
        }
    }
    assert_eq!(head.body(true), BodyFraming::None);
    against_httparse(alone, head);
}

fn in_pieces(
    bytes: &[u8],
    piece: usize,
    expected: Result<Option<usize>, ResponseError>,
    head: &ResponseHead,
) {
    let mut growing = ResponseHead::default();
    let mut end = 0;
    loop {
        end = (end + piece).min(bytes.len());
        let result = parse(&bytes[..end], &mut growing);
        if result != Ok(None) || end == bytes.len() {
            assert_eq!(result, expected, "in pieces of {piece}, at {end}");
            break;
        }
    }
    assert_same(head, &growing, bytes);
}

fn assert_same(one: &ResponseHead, other: &ResponseHead, bytes: &[u8]) {
    assert_eq!(one.fields(), other.fields());
    assert_eq!(one.status(), other.status());
    assert_eq!(one.status_line(bytes), other.status_line(bytes));
    assert_eq!(one.version(), other.version());
    assert_eq!(one.closes(), other.closes());
    assert_eq!(one.body(false), other.body(false));
}

fn against_httparse(bytes: &[u8], head: &ResponseHead) {
    let mut headers = [httparse::EMPTY_HEADER; 256];
    let mut response = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(length)) = response.parse(bytes) else {
        return;
    };
    assert_eq!(length, bytes.len());
    assert_eq!(response.code, Some(head.status()));
    assert_eq!(response.headers.len(), head.fields().len());
    for (theirs, ours) in response.headers.iter().zip(head.fields()) {
        assert_eq!(theirs.name.as_bytes(), ours.name(bytes));
        // nginx trims spaces, but no tabs.
        assert_eq!(trim(theirs.value), trim(ours.value(bytes)));
    }
}

fn trim(value: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = value.iter().take_while(|byte| blank(byte)).count();
    let value = &value[start..];
    let end = value.iter().rev().take_while(|byte| blank(byte)).count();
    &value[..value.len() - end]
}
