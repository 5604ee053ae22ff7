//! Request heads: reading in pieces equals reading at once, nothing beyond the head matters, and
//! where httparse accepts a head too, both understand the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::h1::{Head, HeadError, Limits, body_length, parse_head};

/// Two bytes choose the limits, one the size of the pieces; the rest is what the client sends.
const CHOICES: usize = 3;

fuzz_target!(|data: &[u8]| {
    let Some((choices, bytes)) = data.split_first_chunk::<CHOICES>() else {
        return;
    };
    let limits = limits(choices[0], choices[1]);
    let mut head = Head::default();
    let result = parse_head(bytes, &limits, &mut head);

    in_pieces(
        bytes,
        usize::from(choices[2] % 16) + 1,
        &limits,
        result,
        &head,
    );
    match result {
        Ok(None) => {}
        Err(error) => {
            assert!(matches!(error.status(), 400 | 414 | 494 | 505));
            error.log_text(bytes);
        }
        Ok(Some(length)) => {
            assert!(length <= bytes.len() && length == head.len());
            let alone = &bytes[..length];
            let mut again = Head::default();
            assert_eq!(parse_head(alone, &limits, &mut again), Ok(Some(length)));
            assert_same(&head, &again, bytes);
            let _ = body_length(&head, alone, true).map_err(|error| error.log_text(&head, alone));
            assert!(head.path(bytes).starts_with(b"/"));
            against_httparse(alone, &head);
        }
    }
});

/// Small buffers now and then, so that their ends are met.
fn limits(size: u8, flags: u8) -> Limits {
    let wide = size >= 128;
    Limits {
        buffer_size: if wide { 1 << 20 } else { usize::from(size) + 1 },
        large_buffers: usize::from(flags & 3) + 1,
        large_buffer_size: usize::from(size / 2) * 3 + 1,
        headers_max: if flags & 4 == 0 { 1000 } else { 3 },
        ignore_invalid_headers: flags & 8 != 0,
        underscores_in_headers: flags & 16 != 0,
        merge_slashes: flags & 32 != 0,
    }
}

fn in_pieces(
    bytes: &[u8],
    piece: usize,
    limits: &Limits,
    expected: Result<Option<usize>, HeadError>,
    head: &Head,
) {
    let mut growing = Head::default();
    let mut end = 0;
    loop {
        end = (end + piece).min(bytes.len());
        let result = parse_head(&bytes[..end], limits, &mut growing);
        if result != Ok(None) || end == bytes.len() {
            assert_eq!(result, expected, "in pieces of {piece}, at {end}");
            break;
        }
    }
    assert_same(head, &growing, bytes);
}

fn assert_same(one: &Head, other: &Head, bytes: &[u8]) {
    assert_eq!(one.fields(), other.fields());
    assert_eq!(one.ignored(), other.ignored());
    assert_eq!(one.method_name(bytes), other.method_name(bytes));
    assert_eq!(one.target(bytes), other.target(bytes));
    assert_eq!(one.path(bytes), other.path(bytes));
    assert_eq!(one.args(), other.args());
    assert_eq!(one.extension(), other.extension());
    assert_eq!(one.protocol(bytes), other.protocol(bytes));
    assert_eq!(one.request_line(bytes), other.request_line(bytes));
    assert_eq!(one.server_name(), other.server_name());
    assert_eq!(one.connection(), other.connection());
}

fn against_httparse(bytes: &[u8], head: &Head) {
    let mut headers = [httparse::EMPTY_HEADER; 256];
    let mut request = httparse::Request::new(&mut headers);
    let Ok(httparse::Status::Complete(length)) = request.parse(bytes) else {
        return;
    };
    assert_eq!(length, head.len());
    assert_eq!(
        request.method.map(str::as_bytes),
        Some(head.method_name(bytes))
    );
    if let Some(path) = request
        .path
        .map(str::as_bytes)
        .filter(|path| path.starts_with(b"/"))
    {
        assert_eq!(path, head.target(bytes));
    }
    if head.ignored().is_empty() {
        assert_eq!(request.headers.len(), head.fields().len());
        for (theirs, ours) in request.headers.iter().zip(head.fields()) {
            assert_eq!(theirs.name.as_bytes(), ours.name(bytes));
            // nginx trims spaces, but no tabs.
            assert_eq!(trim(theirs.value), trim(ours.value(bytes)));
        }
    }
}

fn trim(value: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = value.iter().take_while(|byte| blank(byte)).count();
    let value = &value[start..];
    let end = value.iter().rev().take_while(|byte| blank(byte)).count();
    &value[..value.len() - end]
}
