//! Partial responses: the announced length is that of the bytes that come, each part says which
//! bytes of the whole it holds and holds them, and a single part is the same however the body is
//! cut into pieces.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use proto::range::{ByteRange, RangeDecision, parse};
use http::response::range::{RangeCutter, many, one};
use http::response::piece::Piece;
use http::response::Response;

fuzz_target!(|input: (&[u8], Option<u8>, u64, u8, &str, &str, &[u8])| {
    let (body, ranges_max, boundary, piece, media_type, charset, specs) = input;
    let value = [b"bytes=", specs].concat();
    let size = body.len() as u64;
    let mut response = Response {
        status: 200,
        content_type: Bytes::copy_from_slice(media_type.as_bytes()),
        charset: Bytes::copy_from_slice(charset.as_bytes()),
        content_length: Some(size),
        ..Response::default()
    };
    match parse(&value, size, ranges_max.map(u32::from)) {
        RangeDecision::Whole | RangeDecision::Unsatisfiable => {}
        RangeDecision::One(range) => {
            let mut cut = one(&mut response, range, size);
            let out = cut_out(&mut cut, body, usize::from(piece) + 1);
            assert_eq!(out, part(body, range));
            assert_eq!(response.content_length, Some(out.len() as u64));
            let expected = format!("bytes {}-{}/{size}", range.start, range.end - 1);
            assert_eq!(response.field(b"Content-Range").unwrap(), &expected);
        }
        RangeDecision::Many(ranges) => {
            let mut cut = many(&mut response, &ranges, size, boundary);
            let out = cut_out(&mut cut, body, body.len());
            assert_eq!(response.content_length, Some(out.len() as u64));
            let head = if media_type.is_empty() {
                String::new()
            } else if charset.is_empty() {
                format!("Content-Type: {media_type}\r\n")
            } else {
                format!("Content-Type: {media_type}; charset={charset}\r\n")
            };
            assert_parts(&out, &head, &response, body, &ranges);
        }
    }
    assert!(matches!(response.status, 200 | 206));
});

fn part(body: &[u8], range: ByteRange) -> &[u8] {
    &body[range.start as usize..range.end as usize]
}

fn cut_out(cut: &mut RangeCutter, body: &[u8], piece: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in body.chunks(piece) {
        let piece = Piece::Bytes(Bytes::copy_from_slice(piece));
        assert!(cut.apply(piece, &mut out).is_ok());
    }
    assert!(cut.apply(Piece::Last, &mut out).is_ok());
    assert!(matches!(out.pop(), Some(Piece::Last)));
    let mut text = Vec::new();
    for piece in out {
        let Piece::Bytes(bytes) = piece else {
            panic!("only bytes went in");
        };
        text.extend_from_slice(&bytes);
    }
    text
}

/// Reads what RFC 9110, section 14.6, describes.
fn assert_parts(
    mut out: &[u8],
    head: &str,
    response: &Response,
    body: &[u8],
    ranges: &[ByteRange],
) {
    let media_type = response
        .content_type
        .strip_prefix(b"multipart/byteranges; boundary=");
    let boundary = std::str::from_utf8(media_type.unwrap()).unwrap();
    let mut take = |expected: &[u8]| {
        let (taken, rest) = out.split_at(expected.len());
        assert_eq!(taken, expected);
        out = rest;
    };
    let size = body.len();
    for range in ranges {
        take(format!("\r\n--{boundary}\r\n{head}").as_bytes());
        let (first, last) = (range.start, range.end - 1);
        take(format!("Content-Range: bytes {first}-{last}/{size}\r\n\r\n").as_bytes());
        take(part(body, *range));
    }
    take(format!("\r\n--{boundary}--\r\n").as_bytes());
    assert!(out.is_empty());
}
