//! Tables of requests. Expected values come from nginx 1.31, to which the same bytes were sent, or
//! from the RFC cited. Every input is also parsed in pieces: split at every offset, and byte by
//! byte.

use super::*;
use crate::header::KnownField;

const SMALL: Limits = Limits {
    buffer_size: 64,
    large_buffers: 2,
    large_buffer_size: 96,
    headers_max: 4,
    ignore_invalid_headers: true,
    underscores_in_headers: false,
    merge_slashes: true,
};

/// The result of parsing a head, as text.
fn describe(result: Result<Option<usize>, HeadError>, head: &Head, bytes: &[u8]) -> String {
    match result {
        Ok(None) => "more".to_owned(),
        Err(error) => format!(
            "{} {}",
            error.status(),
            error.log_text(bytes).escape_ascii()
        ),
        Ok(Some(length)) => {
            assert_eq!(length, head.len());
            let span = |span: Option<crate::Span>, of: &[u8]| match span {
                Some(span) => span.of(of).escape_ascii().to_string(),
                None => "-".to_owned(),
            };
            let mut text = format!(
                "{}|{}|{}|{}|{}",
                head.method_name(bytes).escape_ascii(),
                head.path(bytes).escape_ascii(),
                span(head.args(), bytes),
                span(head.extension(), head.path(bytes)),
                head.protocol(bytes).escape_ascii(),
            );
            for field in head.fields() {
                let (name, value) = (field.name(bytes), field.value(bytes));
                text += &format!("|{}:{}", name.escape_ascii(), value.escape_ascii());
            }
            text
        }
    }
}

/// Parses a head at once and in pieces in every way, and asserts that the results are equal.
fn read(bytes: &[u8], limits: &Limits) -> String {
    let whole = |bytes: &[u8]| {
        let mut head = Head::default();
        let result = parse_head(bytes, limits, &mut head);
        describe(result, &head, bytes)
    };
    let expected = whole(bytes);

    let mut growing = Head::default();
    for end in 0..=bytes.len() {
        let result = parse_head(&bytes[..end], limits, &mut growing);
        let done = result != Ok(None);
        let text = describe(result, &growing, &bytes[..end]);
        assert_eq!(
            text,
            whole(&bytes[..end]),
            "up to {end} of {}",
            bytes.escape_ascii()
        );
        if done {
            break;
        }
        let mut halves = Head::default();
        assert_eq!(parse_head(&bytes[..end], limits, &mut halves), Ok(None));
        let result = parse_head(bytes, limits, &mut halves);
        let text = describe(result, &halves, bytes);
        assert_eq!(text, expected, "split at {end} of {}", bytes.escape_ascii());
    }
    expected
}

fn check(table: &[(&str, &str)], limits: &Limits, wrap: impl Fn(&str) -> String) {
    for (input, expected) in table {
        let bytes = wrap(input);
        assert_eq!(read(bytes.as_bytes(), limits), *expected, "{bytes:?}");
    }
}

/// A request line in an otherwise valid head.
fn with_host(line: &str) -> String {
    format!("{line}\r\nHost: h\r\n\r\n")
}

/// A valid head with additional header lines.
fn with_line(lines: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: h\r\n{lines}\r\n")
}

#[test]
fn request_lines() {
    check(
        &[
            // method | path | query | extension | protocol | headers
            ("GET / HTTP/1.1", "GET|/|-|-|HTTP/1.1|Host:h"),
            ("GET / HTTP/1.0", "GET|/|-|-|HTTP/1.0|Host:h"),
            ("GET / HTTP/1.2", "GET|/|-|-|HTTP/1.2|Host:h"),
            ("GET / HTTP/1.10", "GET|/|-|-|HTTP/1.10|Host:h"),
            ("GET / HTTP/1.999", "GET|/|-|-|HTTP/1.999|Host:h"),
            ("GET  /  HTTP/1.1", "GET|/|-|-|HTTP/1.1|Host:h"),
            ("GET / HTTP/1.1  ", "GET|/|-|-|HTTP/1.1  |Host:h"),
            ("\r\n\n\rGET / HTTP/1.1", "GET|/|-|-|HTTP/1.1|Host:h"),
            (
                "M-SEARCH_X /a HTTP/1.1",
                "M-SEARCH_X|/a|-|-|HTTP/1.1|Host:h",
            ),
            ("-_- /a HTTP/1.1", "-_-|/a|-|-|HTTP/1.1|Host:h"),
            (
                "POST /a.b/c.d?e.f HTTP/1.1",
                "POST|/a.b/c.d|e.f|d|HTTP/1.1|Host:h",
            ),
            ("GET /a? HTTP/1.1", "GET|/a||-|HTTP/1.1|Host:h"),
            ("GET /a?b?c HTTP/1.1", "GET|/a|b?c|-|HTTP/1.1|Host:h"),
            ("GET /a. HTTP/1.1", "GET|/a.|-||HTTP/1.1|Host:h"),
            ("GET /.a HTTP/1.1", "GET|/.a|-|-|HTTP/1.1|Host:h"),
            ("GET /.a.b HTTP/1.1", "GET|/.a.b|-|b|HTTP/1.1|Host:h"),
            ("GET /+.a HTTP/1.1", "GET|/+.a|-|a|HTTP/1.1|Host:h"),
            ("GET /a.b/ HTTP/1.1", "GET|/a.b/|-|-|HTTP/1.1|Host:h"),
            ("GET /a#b HTTP/1.1", "GET|/a|-|-|HTTP/1.1|Host:h"),
            ("GET /a?b#c?d HTTP/1.1", "GET|/a|b|-|HTTP/1.1|Host:h"),
            ("GET /%61%2f../b HTTP/1.1", "GET|/b|-|-|HTTP/1.1|Host:h"),
            (
                "GET /a\"<>\\^`{|}~ HTTP/1.1",
                "GET|/a\\\"<>\\\\^`{|}~|-|-|HTTP/1.1|Host:h",
            ),
            ("GET /é HTTP/1.1", "GET|/\\xc3\\xa9|-|-|HTTP/1.1|Host:h"),
            // absolute form
            ("GET http://a HTTP/1.1", "GET|/|-|-|HTTP/1.1|Host:h"),
            ("GET http://a/ HTTP/1.1", "GET|/|-|-|HTTP/1.1|Host:h"),
            ("GET http://a:80/b HTTP/1.1", "GET|/b|-|-|HTTP/1.1|Host:h"),
            ("GET http://a:/b HTTP/1.1", "GET|/b|-|-|HTTP/1.1|Host:h"),
            ("GET http://a: HTTP/1.1", "GET|/|-|-|HTTP/1.1|Host:h"),
            ("GET http://a?b HTTP/1.1", "GET|/|b|-|HTTP/1.1|Host:h"),
            (
                "GET http://[::1]:8/b?c HTTP/1.1",
                "GET|/b|c|-|HTTP/1.1|Host:h",
            ),
            ("GET a+b-c.1://a/b HTTP/1.1", "GET|/b|-|-|HTTP/1.1|Host:h"),
            // authority form
            ("CONNECT a:80 HTTP/1.1", "CONNECT|/|-|-|HTTP/1.1|Host:h"),
            (
                "CONNECT [::1]:443 HTTP/1.1",
                "CONNECT|/|-|-|HTTP/1.1|Host:h",
            ),
        ],
        &Limits::default(),
        with_host,
    );
}

#[test]
fn refused_request_lines() {
    const METHOD: &str = "400 client sent invalid method";
    const REQUEST: &str = "400 client sent invalid request";
    const VERSION: &str = "505 client sent invalid version";
    const OLD: &str = "400 client sent invalid method in HTTP/0.9 request";
    const HOST: &str = "400 client sent invalid host in request line";
    check(
        &[
            (" GET / HTTP/1.1", METHOD),
            ("get / HTTP/1.1", METHOD),
            ("GeT / HTTP/1.1", METHOD),
            ("GET", METHOD),
            ("G3T / HTTP/1.1", METHOD),
            ("\x16\x03\x01\x02\x00\x01", METHOD),
            ("GET\t/ HTTP/1.1", METHOD),
            ("GET \t/ HTTP/1.1", REQUEST),
            ("GET ", REQUEST),
            ("GET * HTTP/1.1", REQUEST),
            ("OPTIONS * HTTP/1.1", REQUEST),
            ("PRI * HTTP/2.0", REQUEST),
            ("GET a HTTP/1.1", REQUEST),
            ("GET ?a HTTP/1.1", REQUEST),
            ("GET /a\tHTTP/1.1", REQUEST),
            ("GET /a\0 HTTP/1.1", REQUEST),
            ("GET /a?\x7f HTTP/1.1", REQUEST),
            ("GET /a b HTTP/1.1", REQUEST),
            ("GET / http/1.1", REQUEST),
            ("GET / HTTQ/1.1", REQUEST),
            ("GET / HTTP 1.1", REQUEST),
            ("GET / HTTP/0.9", REQUEST),
            ("GET / HTTP/01.1", REQUEST),
            ("GET / HTTP/1", REQUEST),
            ("GET / HTTP/1.", REQUEST),
            ("GET / HTTP/1.x", REQUEST),
            ("GET / HTTP/1.1x", REQUEST),
            ("GET / HTTP/1.1 x", REQUEST),
            ("GET / HTTP/1.1000", REQUEST),
            ("GET / HTTP/1.1\rx", REQUEST),
            ("GET /\rx", REQUEST),
            ("GET / \rx", REQUEST),
            ("GET / HTTP/2.0", VERSION),
            ("GET / HTTP/9", VERSION),
            ("GET / HTTP/10.0", VERSION),
            ("POST /", OLD),
            ("HEAD / ", OLD),
            ("CONNECT a:80 ", OLD),
            // targets
            ("GET /.. HTTP/1.1", REQUEST),
            ("GET /a/../../b HTTP/1.1", REQUEST),
            ("GET /%2e%2e HTTP/1.1", REQUEST),
            ("GET /%00 HTTP/1.1", REQUEST),
            ("GET /% HTTP/1.1", REQUEST),
            ("GET /%4 HTTP/1.1", REQUEST),
            ("GET /%4x HTTP/1.1", REQUEST),
            ("GET /%x4?%41 HTTP/1.1", REQUEST),
            ("GET http HTTP/1.1", REQUEST),
            ("GET http: HTTP/1.1", REQUEST),
            ("GET http:/a HTTP/1.1", REQUEST),
            ("GET h_p://a HTTP/1.1", REQUEST),
            ("GET http://a_b/ HTTP/1.1", REQUEST),
            ("GET http://a@b/ HTTP/1.1", REQUEST),
            ("GET http://a#b HTTP/1.1", REQUEST),
            ("GET http://a:b/ HTTP/1.1", REQUEST),
            ("GET http://[::1 HTTP/1.1", REQUEST),
            ("GET http://[::1]x HTTP/1.1", REQUEST),
            ("GET http:/// HTTP/1.1", HOST),
            ("GET http:// HTTP/1.1", HOST),
            ("GET http://a..b/ HTTP/1.1", HOST),
            ("GET http://a:65536/ HTTP/1.1", HOST),
            ("CONNECT a HTTP/1.1", REQUEST),
            ("CONNECT a: HTTP/1.1", REQUEST),
            ("CONNECT a:80/ HTTP/1.1", REQUEST),
            ("CONNECT /a HTTP/1.1", REQUEST),
            ("CONNECT http://a:80/ HTTP/1.1", REQUEST),
        ],
        &Limits::default(),
        with_host,
    );
}

#[test]
fn simple_requests_of_http_09() {
    check(
        &[
            ("GET /a.b?c\r\n", "GET|/a.b|c|b|"),
            ("GET /\n", "GET|/|-|-|"),
            ("GET / \r\n", "GET|/|-|-|"),
            ("GET /\r", "more"),
            ("GET http://a\r\n", "400 client sent invalid request"),
            ("GET http://a \r\n", "GET|/|-|-|"),
            ("GET /..\r\n", "400 client sent invalid request"),
        ],
        &Limits::default(),
        str::to_owned,
    );
    let mut head = Head::default();
    assert!(parse_head(b"GET /..\r\n", &Limits::default(), &mut head).is_err());
    assert_eq!(head.version(), Version::Http09, "the refusal has no head");
    head.clear();
    assert!(parse_head(b"GET /\x01", &Limits::default(), &mut head).is_err());
    assert_eq!(head.version(), Version::Http10, "the refusal has a head");
}

#[test]
fn header_lines() {
    check(
        &[
            ("", "GET|/|-|-|HTTP/1.1|Host:h"),
            ("A: b\r\n", "GET|/|-|-|HTTP/1.1|Host:h|A:b"),
            ("A:b\n", "GET|/|-|-|HTTP/1.1|Host:h|A:b"),
            ("A:   b c  \r\n", "GET|/|-|-|HTTP/1.1|Host:h|A:b c"),
            ("A:\tb\t\r\n", "GET|/|-|-|HTTP/1.1|Host:h|A:\\tb\\t"),
            ("A:\r\n", "GET|/|-|-|HTTP/1.1|Host:h|A:"),
            ("A:   \r\n", "GET|/|-|-|HTTP/1.1|Host:h|A:"),
            ("A\r\n", "GET|/|-|-|HTTP/1.1|Host:h|A:"),
            ("A\n", "GET|/|-|-|HTTP/1.1|Host:h|A:"),
            ("A: b\r\r\r\n", "GET|/|-|-|HTTP/1.1|Host:h|A:b"),
            ("A: b \r\r\n", "GET|/|-|-|HTTP/1.1|Host:h|A:b"),
            ("A: b:c\r\n", "GET|/|-|-|HTTP/1.1|Host:h|A:b:c"),
            (
                "A: \x01\x7f\u{80}\r\n",
                "GET|/|-|-|HTTP/1.1|Host:h|A:\\x01\\x7f\\xc2\\x80",
            ),
            ("1-: b\r\n", "GET|/|-|-|HTTP/1.1|Host:h|1-:b"),
            ("a: 1\r\nA: 2\r\n", "GET|/|-|-|HTTP/1.1|Host:h|a:1|A:2"),
            (
                "Cookie: a\r\nCookie: b\r\n",
                "GET|/|-|-|HTTP/1.1|Host:h|Cookie:a|Cookie:b",
            ),
            // doubtful names are ignored
            (
                "A_B: c\r\n_: d\r\nA.B: e\r\nA(: f\r\n\u{e9}: g\r\nH: i\r\n",
                "GET|/|-|-|HTTP/1.1|Host:h|H:i",
            ),
            ("A_B\r\nH: i\r\n", "GET|/|-|-|HTTP/1.1|Host:h|H:i"),
            // faults
            (
                " A: b\r\n",
                "400 client sent invalid header line: \\\"\\\\x20...\\\"",
            ),
            (
                "A: b\r\n c\r\n",
                "400 client sent invalid header line: \\\"\\\\x20...\\\"",
            ),
            (
                "A: b\r\n\tc\r\n",
                "400 client sent invalid header line: \\\"\\\\x09...\\\"",
            ),
            (
                ": b\r\n",
                "400 client sent invalid header line: \\\"\\\\x3a...\\\"",
            ),
            (
                "A : b\r\n",
                "400 client sent invalid header line: \\\"A\\\\x20...\\\"",
            ),
            (
                "A\t: b\r\n",
                "400 client sent invalid header line: \\\"A\\\\x09...\\\"",
            ),
            (
                "A b: c\r\n",
                "400 client sent invalid header line: \\\"A\\\\x20...\\\"",
            ),
            (
                "A_\x7f: c\r\n",
                "400 client sent invalid header line: \\\"A_\\\\x7f...\\\"",
            ),
            (
                "A\0: c\r\n",
                "400 client sent invalid header line: \\\"A\\\\x00...\\\"",
            ),
            (
                "A: b\0c\r\n",
                "400 client sent invalid header line: \\\"A: b\\\\x00...\\\"",
            ),
            (
                "A:  \0\r\n",
                "400 client sent invalid header line: \\\"A:  \\\\x00...\\\"",
            ),
            (
                "A: b\rc\r\n",
                "400 client sent invalid header line: \\\"A: b\\\\x0d...\\\"",
            ),
            (
                "A: b \rc\r\n",
                "400 client sent invalid header line: \\\"A: b\\\\x20...\\\"",
            ),
            (
                "A\rb\r\n",
                "400 client sent invalid header line: \\\"A\\\\x0d...\\\"",
            ),
            (
                "A: b\r\n\rc",
                "400 client sent invalid header line: \\\"\\\\x0d...\\\"",
            ),
        ],
        &Limits::default(),
        with_line,
    );
}

#[test]
fn doubtful_names_may_be_kept() {
    let lines = "A_B: c\r\n_: d\r\nA.B: e\r\nHo_st: f\r\n";
    for (ignore, underscores, expected) in [
        (true, false, "GET|/|-|-|HTTP/1.1|Host:h"),
        (true, true, "GET|/|-|-|HTTP/1.1|Host:h|A_B:c|_:d|Ho_st:f"),
        (
            false,
            false,
            "GET|/|-|-|HTTP/1.1|Host:h|A_B:c|_:d|A.B:e|Ho_st:f",
        ),
        (
            false,
            true,
            "GET|/|-|-|HTTP/1.1|Host:h|A_B:c|_:d|A.B:e|Ho_st:f",
        ),
    ] {
        let limits = Limits {
            ignore_invalid_headers: ignore,
            underscores_in_headers: underscores,
            ..Limits::default()
        };
        check(&[(lines, expected)], &limits, with_line);
    }
    let bytes = with_line(lines);
    let mut head = Head::default();
    parse_head(bytes.as_bytes(), &Limits::default(), &mut head).expect("valid");
    let ignored: Vec<&[u8]> = head
        .ignored()
        .iter()
        .map(|line| line.of(bytes.as_bytes()))
        .collect();
    assert_eq!(ignored, [&b"A_B: c"[..], b"_: d", b"A.B: e", b"Ho_st: f"]);
}

#[test]
fn headers_that_come_once() {
    const HOST: &str = "400 client sent invalid host header";
    check(
        &[
            (
                "Host: a\r\nhost: b\r\n",
                "400 client sent duplicate host header: \\\"host: b\\\", previous value: \\\"Host: a\\\"",
            ),
            (
                "Host: a\r\nContent-Length: 1\r\nContent-length: 1\r\n",
                "400 client sent duplicate header line: \\\"Content-length: 1\\\", \
                 previous value: \\\"Content-Length: 1\\\"",
            ),
            (
                "Transfer-Encoding: chunked\r\nTransfer-Encoding:\r\n",
                "400 client sent duplicate header line: \\\"Transfer-Encoding: \\\", \
                 previous value: \\\"Transfer-Encoding: chunked\\\"",
            ),
            (
                "Referer: a\r\nReferer: b\r\n",
                "GET|/|-|-|HTTP/1.1|Referer:a|Referer:b",
            ),
            ("Host:\r\n", HOST),
            ("Host: a b\r\n", HOST),
            ("Host: a/b\r\n", HOST),
            ("Host: a..b\r\n", HOST),
            (
                "Host: a\r\nHost: /\r\n",
                "400 client sent duplicate host header: \\\"Host: /\\\", previous value: \\\"Host: a\\\"",
            ),
        ],
        &Limits::default(),
        |lines| format!("GET / HTTP/1.1\r\n{lines}\r\n"),
    );
}

#[test]
fn limits_on_lines_and_buffers() {
    let v = |count: usize| "v".repeat(count);
    let long = |line: &str| format!("494 client sent too long header line: \\\"{line}...\\\"");
    // The first buffer holds 64 bytes, the two others 96 each. A request line of 16 bytes and a
    // `Host` line of 9 leave 39 in the first.
    let table = [
        // the request line has 14 bytes more than its path
        (
            format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", v(80)),
            format!("GET|/{}|-|-|HTTP/1.1|Host:h", v(80)),
        ),
        (
            format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", v(81)),
            "414 client sent too long URI".to_owned(),
        ),
        (
            format!("GET /{}", v(91)),
            "414 client sent too long URI".to_owned(),
        ),
        (format!("GET /{}", v(90)), "more".to_owned()),
        ("G".repeat(96), "414 client sent too long URI".to_owned()),
        // a header line that fits into the first buffer, the second one, or none
        (
            with_line(&format!("A: {}\r\n", v(34))),
            format!("GET|/|-|-|HTTP/1.1|Host:h|A:{}", v(34)),
        ),
        (
            with_line(&format!("A: {}\r\n", v(91))),
            format!("GET|/|-|-|HTTP/1.1|Host:h|A:{}", v(91)),
        ),
        (
            with_line(&format!("A: {}\r\n", v(92))),
            long(&format!("A: {}\\r", v(92))),
        ),
        // the third buffer, and no fourth
        (
            with_line(&format!("A: {}\r\nB: {}\r\n", v(90), v(89))),
            format!("GET|/|-|-|HTTP/1.1|Host:h|A:{}|B:{}", v(90), v(89)),
        ),
        (
            with_line(&format!("A: {}\r\nB: {}\r\nC:d\r\n", v(90), v(90))),
            long("C"),
        ),
        (
            with_line(&format!("A: {}\r\nB: {}\r\n", v(91), v(91))),
            long(&format!("B: {}\\r\\n", v(91))),
        ),
        // only lines that are stored count
        (
            with_line("A:\r\nB:\r\nC:\r\nD_:\r\n"),
            "GET|/|-|-|HTTP/1.1|Host:h|A:|B:|C:".to_owned(),
        ),
        (
            with_line("A:\r\nB:\r\nC:\r\nD:\r\n"),
            "494 client sent too many header lines".to_owned(),
        ),
        // line breaks before the request line occupy the buffer, but any number is accepted
        (
            format!("{}{}", "\r\n".repeat(300), with_line("A: b\r\n")),
            "GET|/|-|-|HTTP/1.1|Host:h|A:b".to_owned(),
        ),
    ];
    for (input, expected) in &table {
        check(&[(input, expected)], &SMALL, str::to_owned);
    }
    let only_one = Limits {
        large_buffers: 0,
        ..SMALL
    };
    for (input, expected) in [
        (
            format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", v(48)),
            "494 client sent too large request",
        ),
        (
            format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", v(49)),
            "414 client sent too long URI",
        ),
    ] {
        check(&[(&input, expected)], &only_one, str::to_owned);
    }
    // A first buffer larger than the others holds longer lines.
    let large_first = Limits {
        buffer_size: 200,
        ..SMALL
    };
    let input = with_line(&format!("A: {}\r\n", v(160)));
    check(
        &[(&input, &format!("GET|/|-|-|HTTP/1.1|Host:h|A:{}", v(160)))],
        &large_first,
        str::to_owned,
    );
}

#[test]
fn names_of_servers() {
    for (bytes, name, port, capitals) in [
        (
            "GET / HTTP/1.1\r\nHost: Example.com.:80\r\n\r\n",
            Some("Example.com"),
            80,
            true,
        ),
        (
            "GET http://a:81/ HTTP/1.1\r\nHost: b\r\n\r\n",
            Some("a"),
            81,
            false,
        ),
        (
            "CONNECT [::1]:443 HTTP/1.1\r\nHost: b\r\n\r\n",
            Some("[::1]"),
            443,
            false,
        ),
        ("GET / HTTP/1.0\r\n\r\n", None, 0, false),
        ("GET /\r\n", None, 0, false),
    ] {
        let mut head = Head::default();
        let mut asked = Vec::new();
        parse_head_for(bytes.as_bytes(), &Limits::default(), &mut head, |host| {
            asked.push(host.to_vec());
            Ok(None)
        })
        .expect("valid");
        let server = head.server_name();
        assert_eq!(
            server.map(|server| server.name.of(bytes.as_bytes())),
            name.map(str::as_bytes),
            "{bytes:?}"
        );
        assert_eq!(
            asked,
            Vec::from_iter(name.map(|name| name.as_bytes().to_vec())),
            "asked once"
        );
        if let Some(server) = server {
            assert_eq!((server.port, server.has_capitals), (port, capitals));
        }
    }
}

#[test]
fn a_name_can_be_refused_at_once() {
    for bytes in [
        "GET http://b/ HTTP/1.1\r\n",
        "GET / HTTP/1.1\r\nHost: b\r\nA: 1",
    ] {
        let mut head = Head::default();
        let parsed = parse_head_for(bytes.as_bytes(), &Limits::default(), &mut head, |_| {
            Err(HeadError::Misdirected)
        });
        assert_eq!(parsed, Err(HeadError::Misdirected));
        assert_eq!(parsed.unwrap_err().status(), 421);
        let host = head.value(KnownField::Host, bytes.as_bytes());
        assert_eq!(host.is_some(), bytes.contains("Host"), "{bytes}");
    }
}

#[test]
fn a_server_has_limits_of_its_own() {
    let bytes = b"GET / HTTP/1.1\r\nA_: 1\r\nHost: b\r\nB_: 2\r\n\r\n";
    for end in 0..bytes.len() {
        let mut head = Head::default();
        let server = |host: &[u8]| {
            assert_eq!(host, b"b");
            Ok(Some(Limits {
                underscores_in_headers: true,
                ..Limits::default()
            }))
        };
        assert_eq!(
            parse_head_for(&bytes[..end], &Limits::default(), &mut head, server),
            Ok(None)
        );
        assert_eq!(
            parse_head_for(bytes, &Limits::default(), &mut head, server),
            Ok(Some(bytes.len()))
        );
        let names: Vec<&[u8]> = head
            .fields()
            .iter()
            .map(|field| field.name(bytes))
            .collect();
        assert_eq!(names, [&b"Host"[..], b"B_"]);
    }
}

#[test]
fn pipelined_heads_share_a_buffer() {
    let bytes = b"GET /a%20b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n\r\nPOST /c.d HTTP/1.0\r\n\r\nGET";
    let mut head = Head::default();
    let first = parse_head(bytes, &Limits::default(), &mut head)
        .expect("valid")
        .expect("complete");
    assert_eq!((head.path(bytes), head.has_escapes()), (&b"/a b"[..], true));
    assert_eq!((first, head.leading(), head.request_length()), (51, 0, 51));
    let rest = &bytes[first..];
    let second = parse_head(rest, &Limits::default(), &mut head)
        .expect("valid")
        .expect("complete");
    assert_eq!(
        (head.path(rest), head.has_escapes(), head.connection()),
        (&b"/c.d"[..], false, Connection::Default)
    );
    assert_eq!((second, head.leading(), head.request_length()), (24, 2, 22));
    assert!(
        head.fields().is_empty() && head.server_name().is_none() && !head.has(KnownField::Host)
    );
    assert_eq!(
        parse_head(&rest[second..], &Limits::default(), &mut head),
        Ok(None)
    );
    assert!(head.has_begun() && !head.has_request_line());
    assert_eq!(head.request_line(&rest[second..]), b"GET");
}

#[test]
fn a_refused_head_tells_what_was_understood() {
    for (bytes, has_method, has_path, length) in [
        ("HEAD /a b", false, false, 0),
        ("GET /a HTTP/2.0\r\n", false, false, 0),
        ("\r\nPUT /%zz HTTP/1.1\r\n", true, false, 19),
        ("PUT http://a..b/c?d HTTP/1.1\r\n", true, true, 30),
        ("PUT /c HTTP/1.1\r\nA: b\r\nC\0", true, true, 23),
        ("PUT /c HTTP/1.1\r\nHost: a\r\nHost: a\r\n", true, true, 35),
    ] {
        let bytes = bytes.as_bytes();
        let mut head = Head::default();
        parse_head(bytes, &Limits::default(), &mut head).expect_err("refused");
        let told = (head.has_method(), head.has_path(), head.request_length());
        assert_eq!(
            told,
            (has_method, has_path, length),
            "{}",
            bytes.escape_ascii()
        );
    }
}

#[test]
fn request_lines_for_the_log() {
    for (bytes, line) in [
        (
            "\r\nGET /a HTTP/1.1 \r\nHost: b\r\n\r\n",
            "GET /a HTTP/1.1 ",
        ),
        ("GET /a\n", "GET /a"),
        ("GET /a b c\r\nHost: b\r\n\r\n", "GET /a b c"),
        ("\x16\x03\x01", "\x16\x03\x01"),
        ("GET /.. HTTP/1.1\r\n", "GET /.. HTTP/1.1"),
        ("\n\n", ""),
    ] {
        let mut head = Head::default();
        let _ = parse_head(bytes.as_bytes(), &Limits::default(), &mut head);
        assert_eq!(
            head.request_line(bytes.as_bytes()),
            line.as_bytes(),
            "{bytes:?}"
        );
    }
}

#[test]
fn connections_that_stay_open() {
    for (version, value, keeps) in [
        ("1.1", None, true),
        ("1.0", None, false),
        ("1.1", Some("close"), false),
        ("1.1", Some("Upgrade, CLOSE"), false),
        ("1.1", Some("xclosex"), false),
        ("1.0", Some("Keep-Alive"), true),
        ("1.0", Some("upgrade, keep-alive"), true),
        ("1.0", Some("keep-alive, close"), false),
        ("1.0", Some("upgrade"), false),
        ("1.1", Some("keep-alive\r\nConnection: close"), false),
        ("1.1", Some("close\r\nConnection: keep-alive"), true),
        ("1.1", Some("close\r\nConnection: upgrade"), false),
    ] {
        let line = value
            .map(|value| format!("Connection: {value}\r\n"))
            .unwrap_or_default();
        let bytes = format!("GET / HTTP/{version}\r\nHost: h\r\n{line}\r\n");
        let mut head = Head::default();
        parse_head(bytes.as_bytes(), &Limits::default(), &mut head).expect("valid");
        assert_eq!(head.keeps_alive(), keeps, "{bytes:?}");
    }
}

#[test]
fn framing_of_bodies() {
    let outcome = |bytes: &str, allow_connect: bool| {
        let mut head = Head::default();
        parse_head(bytes.as_bytes(), &Limits::default(), &mut head).expect("valid");
        match body_length(&head, bytes.as_bytes(), allow_connect) {
            Ok(length) => format!("{length:?}"),
            Err(error) => {
                let text = error.log_text(&head, bytes.as_bytes());
                format!("{} {}", error.status(), String::from_utf8_lossy(&text))
            }
        }
    };
    const CONTENT_LENGTH: &str = "400 client sent invalid \"Content-Length\" header";
    for (line, headers, expected) in [
        ("GET / HTTP/1.1", "Host: h\r\n", "None"),
        (
            "GET / HTTP/1.1",
            "",
            "400 client sent HTTP/1.1 request without \"Host\" header",
        ),
        (
            "GET http://a/ HTTP/1.1",
            "",
            "400 client sent HTTP/1.1 request without \"Host\" header",
        ),
        ("GET / HTTP/1.0", "", "None"),
        ("POST / HTTP/1.0", "Content-Length: 5\r\n", "Length(5)"),
        ("POST / HTTP/1.0", "Content-Length: 0\r\n", "Length(0)"),
        ("POST / HTTP/1.0", "Content-Length: 007\r\n", "Length(7)"),
        (
            "POST / HTTP/1.0",
            "Content-Length: 9223372036854775807\r\n",
            "Length(9223372036854775807)",
        ),
        (
            "POST / HTTP/1.0",
            "Content-Length: 9223372036854775808\r\n",
            CONTENT_LENGTH,
        ),
        ("POST / HTTP/1.0", "Content-Length:\r\n", CONTENT_LENGTH),
        ("POST / HTTP/1.0", "Content-Length: -1\r\n", CONTENT_LENGTH),
        ("POST / HTTP/1.0", "Content-Length: +1\r\n", CONTENT_LENGTH),
        (
            "POST / HTTP/1.0",
            "Content-Length: 1, 1\r\n",
            CONTENT_LENGTH,
        ),
        ("POST / HTTP/1.0", "Content-Length: 0x1\r\n", CONTENT_LENGTH),
        ("POST / HTTP/1.0", "Content-Length: 1\t\r\n", CONTENT_LENGTH),
        (
            "POST / HTTP/1.1",
            "Host: h\r\nTransfer-Encoding: chunked\r\n",
            "Chunked",
        ),
        (
            "POST / HTTP/1.1",
            "Host: h\r\nTransfer-Encoding: Chunked\r\n",
            "Chunked",
        ),
        (
            "POST / HTTP/1.1",
            "Host: h\r\nTransfer-Encoding: gzip, chunked\r\n",
            "501 client sent unknown \"Transfer-Encoding\": \"gzip, chunked\"",
        ),
        (
            "POST / HTTP/1.1",
            "Host: h\r\nTransfer-Encoding: identity\r\nContent-Length: 1\r\n",
            "501 client sent unknown \"Transfer-Encoding\": \"identity\"",
        ),
        (
            "POST / HTTP/1.1",
            "Host: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n",
            "400 client sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time",
        ),
        (
            "POST / HTTP/1.0",
            "Transfer-Encoding: chunked\r\n",
            "400 client sent HTTP/1.0 request with \"Transfer-Encoding\" header",
        ),
        (
            "TRACE / HTTP/1.1",
            "Host: h\r\n",
            "405 client sent TRACE method",
        ),
        (
            "CONNECT a:1 HTTP/1.1",
            "Host: h\r\n",
            "405 client sent CONNECT method",
        ),
    ] {
        assert_eq!(
            outcome(&format!("{line}\r\n{headers}\r\n"), false),
            expected,
            "{line} {headers:?}"
        );
    }
    for (version, headers, expected) in [
        ("1.1", "", "None"),
        ("1.1", "Content-Length: 0\r\n", "Length(0)"),
        (
            "1.1",
            "Content-Length: 1\r\n",
            "400 client sent CONNECT request with body",
        ),
        (
            "1.1",
            "Transfer-Encoding: chunked\r\n",
            "400 client sent CONNECT request with body",
        ),
        ("1.0", "", "405 client sent CONNECT method"),
        ("1.2", "", "405 client sent CONNECT method"),
    ] {
        let bytes = format!("CONNECT a:1 HTTP/{version}\r\nHost: h\r\n{headers}\r\n");
        assert_eq!(outcome(&bytes, true), expected, "{bytes:?}");
    }
}

#[test]
fn input_that_shrinks_does_no_harm() {
    let bytes = b"GET /%61 HTTP/1.1\r\nHost: h\r\nA: b\r\n\r\n";
    for (before, after) in (0..bytes.len()).flat_map(|end| (0..end).map(move |less| (end, less))) {
        let mut head = Head::default();
        let _ = parse_head(&bytes[..before], &Limits::default(), &mut head);
        let _ = parse_head(&bytes[..after], &Limits::default(), &mut head);
        let _ = (
            head.request_line(&bytes[..after]),
            head.path(&bytes[..after]),
        );
    }
}

#[test]
fn a_refused_host_is_kept_for_the_log() {
    let bytes = b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n";
    let mut head = Head::default();
    let result = parse_head(bytes, &Limits::default(), &mut head);
    assert_eq!(result, Err(HeadError::InvalidHost));
    assert_eq!(head.value(KnownField::Host, bytes), Some(&b"a b"[..]));
    assert!(head.server_name().is_none());
}

/// Mixes lines of the fast path with lines that are parsed byte by byte: names and values are drawn
/// from edge cases of both.
#[test]
fn random_heads_are_read_alike_in_pieces_and_at_once() {
    const NAMES: [&str; 14] = [
        "Host",
        "User-Agent",
        "COOKIE",
        "Connection",
        "if-none-match",
        "Content-Length",
        "X-A-Name-That-Is-Longer-Than-Sixteen",
        "Upgrade-Insecure-Requests",
        "under_score",
        "a",
        "Sec-Fetch-Dest",
        "bad name",
        "",
        "Accept\u{e9}",
    ];
    const VALUES: [&str; 12] = [
        "",
        " ",
        "a",
        "  spaces on both sides  ",
        "close",
        "keep-alive",
        "example.org:80",
        "a\tb",
        "\u{1}",
        "\r",
        "W/\"0123456789\"",
        "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*",
    ];
    const ENDS: [&str; 4] = ["\r\n", "\r\n", "\n", "\r"];
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut draw = |count: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % count
    };
    let mut complete = 0;
    for _ in 0..3000 {
        let mut text = "GET / HTTP/1.1\r\n".to_owned();
        // Most lines are valid; otherwise few heads would be complete.
        for _ in 0..draw(7) {
            let doubtful = draw(8) == 0;
            let name = NAMES[draw(if doubtful { NAMES.len() } else { 8 })];
            let value = VALUES[draw(if doubtful { VALUES.len() } else { 7 })];
            let end = ENDS[draw(if doubtful { 4 } else { 3 })];
            let space = ["", " ", "   "][draw(3)];
            text += &format!("{name}:{space}{value}{end}");
        }
        text += [
            "\r\n",
            "\n",
            "",
            "\r\nGET /next HTTP/1.1\r\nHost: other\r\n",
        ][draw(4)];
        let limits = Limits {
            buffer_size: [16, 64, 1024][draw(3)],
            large_buffer_size: [24, 96, 8192][draw(3)],
            headers_max: [2, 1000][draw(2)],
            ignore_invalid_headers: draw(2) == 0,
            underscores_in_headers: draw(2) == 0,
            ..Limits::default()
        };
        complete += usize::from(read(text.as_bytes(), &limits).starts_with("GET|"));
    }
    assert!(complete > 300, "{complete}");
}
