//! Heads of CGI answers: reading in pieces equals reading at once, nothing beyond the head matters,
//! a head that is read into one that has held others equals one that has not, and fields are those
//! that an answer of HTTP would have behind its status line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::cgi::{Form, parse};
use proto::h1::response::{self, BodyFraming, ResponseError, ResponseHead};
use proto::h1::{Field, Version};
use proto::header::KnownField;

const STATUS_LINE: &[u8] = b"HTTP/1.1 200 OK\r\n";

fuzz_target!(|data: &[u8]| {
    let Some((choice, bytes)) = data.split_first() else {
        return;
    };
    let piece = usize::from(choice % 16) + 1;
    let form = if choice & 16 != 0 {
Form::Fields
} else {
Form::StatusLineOrFields
};
    let mut head = ResponseHead::default();
    let result = parse(bytes, &mut head, form);
    let mut used = ResponseHead::default();
    let _ = parse(b"Status: 404 Not Found\nA: b\n\n", &mut used, Form::Fields);
    assert_eq!(parse(bytes, &mut used, form), result);
    assert_same(&head, &used, bytes);
    in_pieces(bytes, piece, form, result, &head);
    if form == Form::Fields {
        beside_http(bytes, result, &head);
    }
    match result {
        Ok(None) => {}
        Err(error) => assert!(!error.log_text(bytes).is_empty()),
        Ok(Some(length)) => {
            assert!(0 < length && length <= bytes.len());
            let mut again = ResponseHead::default();
            assert_eq!(parse(&bytes[..length], &mut again, form), Ok(Some(length)));
            assert_same(&head, &again, bytes);
            check(&head, bytes, form);
        }
    }
});

/// What holds for every head that is taken.
fn check(head: &ResponseHead, bytes: &[u8], form: Form) {
    assert!(matches!(head.status(), 101 | 200..=599));
    let is_of_fields = head.version() == Version::Http09;
    assert!(is_of_fields || form == Form::StatusLineOrFields);
    let line = head.status_line(bytes);
    if !line.is_empty() {
        assert!(line.starts_with(head.status().to_string().as_bytes()));
    } else if is_of_fields && head.find(KnownField::Status).is_none() {
        let is_elsewhere = head.find(KnownField::Location).is_some();
        assert_eq!(head.status(), if is_elsewhere { 302 } else { 200 });
    }
    let has_length = head.find(KnownField::ContentLength).is_some();
    assert_eq!(head.content_length().is_some(), has_length);
    match head.body(false) {
        BodyFraming::None => assert!(matches!(head.status(), 101 | 204 | 304)),
        BodyFraming::Length(length) => assert_eq!(head.content_length(), Some(length)),
        BodyFraming::Chunked => panic!("chunks without HTTP"),
        BodyFraming::UntilClose => assert!(!has_length),
    }
}

/// The same fields behind a status line: but for the status there is no other fault, and none
/// fewer.
fn beside_http(bytes: &[u8], result: Result<Option<usize>, ResponseError>, head: &ResponseHead) {
    let with_line = [STATUS_LINE, bytes].concat();
    let mut of_http = ResponseHead::default();
    let expected = response::parse(&with_line, &mut of_http);
    let texts = |fields: &[Field], bytes: &[u8]| -> Vec<(Vec<u8>, Vec<u8>)> {
        let text = |field: &Field| (field.name(bytes).to_vec(), field.value(bytes).to_vec());
        fields.iter().map(text).collect()
    };
    assert_eq!(
        texts(head.fields(), bytes),
        texts(of_http.fields(), &with_line)
    );
    match (expected, result) {
        (Ok(expected), Ok(length)) => {
            assert_eq!(expected, length.map(|length| length + STATUS_LINE.len()));
        }
        (Ok(Some(_)), Err(error)) => assert!(matches!(
            error,
            ResponseError::InvalidStatus(_) | ResponseError::FramedUpgrade(_)
        )),
        (Err(expected), Err(error)) => {
            assert_eq!(expected.log_text(&with_line), error.log_text(bytes));
        }
        other => panic!("{other:?}"),
    }
}

fn in_pieces(
    bytes: &[u8],
    piece: usize,
    form: Form,
    expected: Result<Option<usize>, ResponseError>,
    head: &ResponseHead,
) {
    let mut growing = ResponseHead::default();
    let mut end = 0;
    loop {
        end = (end + piece).min(bytes.len());
        let result = parse(&bytes[..end], &mut growing, form);
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
