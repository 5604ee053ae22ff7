//! Heads of requests: required fields, forbidden fields, and the resulting head (RFC 9113, section
//! 8; nginx's behaviour where the RFC leaves a choice).

use super::super::request::{HeadFault, NamedRules, RequestMetadata};
use super::*;
use crate::header::KnownField;
use crate::method::Method;

/// A parsed head: metadata and fields.
struct Read {
    asked: Result<RequestMetadata, HeadFault>,
    head: Head,
    bytes: Vec<u8>,
}

impl Read {
    fn fields(&self) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let fields = self.head.fields().iter();
        fields
            .map(|field| {
                (
                    text(field.name.of(&self.bytes)),
                    text(field.value(&self.bytes)),
                )
            })
            .collect()
    }

    fn fault(&self) -> HeadFault {
        self.asked.expect_err("it is malformed")
    }

    fn words(&self) -> String {
        String::from_utf8_lossy(&self.fault().words(&self.bytes)).into_owned()
    }
}

fn read_block(rules: &Rules, block: &[u8]) -> Result<Read, Violation> {
    read_block_for(rules, None, block)
}

fn read_block_for(
    rules: &Rules,
    named: Option<NamedRules<'_>>,
    block: &[u8],
) -> Result<Read, Violation> {
    let mut client = Client::usual();
    client.rules = *rules;
    let size = block.len().min(16_384);
    let input = if block.len() > size {
        let mut input = frame(HEADERS, 0, 1, &block[..size]);
        for part in block[size..].chunks(16_384) {
            input.extend(frame(CONTINUATION, 0, 1, part));
        }
        input.extend(frame(CONTINUATION, END_HEADERS, 1, &[]));
        input
    } else {
        frame(HEADERS, END_HEADERS, 1, block)
    };
    let mut heads = Heads {
        head: &mut client.head,
        bytes: &mut client.bytes,
        rules,
        named,
    };
    let event = client.machine.handle(&input, &mut 0, 0, &mut heads)?;
    let Some(Event::Head { asked, .. }) = event else {
        panic!("{event:?}");
    };
    Ok(Read {
        asked,
        head: client.head,
        bytes: client.bytes,
    })
}

fn read_with(rules: &Rules, fields: &[(&str, &str)]) -> Read {
    read_block(rules, &literal(fields)).unwrap()
}

fn read(fields: &[(&str, &str)]) -> Read {
    read_with(&RULES, fields)
}

/// A request with these additional fields.
fn read_more(fields: &[(&str, &str)]) -> Read {
    read(&[GET, fields].concat())
}

/// A request with another value of one field.
fn read_changed(name: &str, value: &str) -> Read {
    let mut fields = GET.to_vec();
    let changed = fields.iter_mut().find(|(of, _)| *of == name).unwrap();
    changed.1 = value;
    read(&fields)
}

const MALFORMED: u16 = 400;

#[test]
fn a_request_becomes_a_head() {
    let fields = [GET, &[("accept", "*/*"), ("x-own", "")]].concat();
    let block = literal(&fields);
    let read = read_block(&RULES, &block).unwrap();
    assert_eq!(read.asked, Ok(RequestMetadata::default()));
    assert_eq!(read.head.method(), Method::Get);
    assert_eq!(read.head.line().of(&read.bytes), b"GET / HTTP/2.0");
    assert_eq!(read.head.protocol().of(&read.bytes), b"HTTP/2.0");
    assert_eq!(read.head.path(), b"/");
    let name = read.head.server_name().unwrap().name;
    assert_eq!(name.of(&read.bytes), b"example.org");
    assert_eq!(read.head.wire_length(), block.len());
    let expected = [("accept", "*/*"), ("x-own", ""), ("host", "example.org")];
    let fields = read.fields();
    let fields: Vec<(&str, &str)> = fields
        .iter()
        .map(|(name, value)| (&name[..], &value[..]))
        .collect();
    assert_eq!(fields, expected);
    assert!(read.head.has(KnownField::Host));
    // Another valid encoding (RFC 7541, appendix C.4.1).
    let block = b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff";
    let read = read_block(&RULES, block).unwrap();
    let name = read.head.server_name().unwrap().name;
    assert_eq!(name.of(&read.bytes), b"www.example.com");
}

#[test]
fn pseudo_fields_that_a_request_needs() {
    for (missing, words) in [
        (":method", "client sent no :method header"),
        (":scheme", "client sent no :scheme header"),
        (":path", "client sent no :path header"),
        (
            ":authority",
            "client sent neither \":authority\" nor \"Host\" header",
        ),
    ] {
        let fields: Vec<(&str, &str)> = GET
            .iter()
            .copied()
            .filter(|(name, _)| *name != missing)
            .collect();
        let read = read(&fields);
        assert_eq!(read.words(), words);
        assert_eq!(read.fault().status(), MALFORMED);
        assert!(read.fault().is_malformed());
    }
    for name in [":method", ":scheme", ":path"] {
        let words = format!("client sent empty {name} header");
        assert_eq!(read_changed(name, "").words(), words);
    }
    assert_eq!(read_changed(":authority", "").fault(), HeadFault::Authority);
}

#[test]
fn pseudo_fields_come_once_and_first() {
    for (name, value) in GET {
        let mut fields = GET.to_vec();
        fields.push((name, value));
        let fault = read(&fields).fault();
        assert!(matches!(fault, HeadFault::Duplicate(_)), "{name}");
        assert!(fault.is_malformed());
        let mut fields = GET.to_vec();
        fields.retain(|(other, _)| other != name);
        fields.extend([("accept", "*/*"), (*name, *value)]);
        assert_eq!(read(&fields).fault(), HeadFault::OutOfOrder);
        // Also after a field that is ignored.
        let mut fields = GET.to_vec();
        fields.retain(|(other, _)| other != name);
        fields.extend([("x_y", "z"), (*name, *value)]);
        assert_eq!(read(&fields).fault(), HeadFault::OutOfOrder);
    }
    for name in [":status", ":unknown", ":", ":protocol", ":Method"] {
        let read = read_more(&[(name, "200")]);
        assert_eq!(
            read.words(),
            format!("client sent unknown pseudo-header \"{name}\"")
        );
        assert!(read.fault().is_malformed());
    }
    assert_eq!(
        read_more(&[("accept", "*/*"), (":unknown", "a")]).fault(),
        HeadFault::OutOfOrder
    );
}

#[test]
fn methods_schemes_and_paths_are_those_of_nginx() {
    for method in ["GET", "PURGE", "VERSION-CONTROL", "M_SEARCH", "-"] {
        assert!(read_changed(":method", method).asked.is_ok(), "{method}");
    }
    for method in ["get", "GE T", "G1", "GET/", "\u{e9}"] {
        let read = read_changed(":method", method);
        assert!(matches!(read.fault(), HeadFault::Method(_)), "{method}");
        assert_eq!(
            read.words(),
            format!("client sent invalid method: \"{method}\"")
        );
    }
    for scheme in ["http", "HTTPS", "a+b-c.1"] {
        assert!(read_changed(":scheme", scheme).asked.is_ok(), "{scheme}");
    }
    for scheme in ["1http", "+", "ht/tp", "http:", "ht_tp"] {
        let read = read_changed(":scheme", scheme);
        assert!(matches!(read.fault(), HeadFault::Scheme(_)), "{scheme}");
    }
    for path in ["/", "/a?b", "//", "/%41", "/\u{e9}"] {
        assert!(read_changed(":path", path).asked.is_ok(), "{path}");
    }
    for path in [
        "a",
        "*",
        "?a",
        "http://a/",
        "/a b",
        "/a\tb",
        "/\x7f",
        "/a#b",
        "/a?b#c",
        "/../",
        "/%00",
        "/%4",
        "/\x01",
    ] {
        let read = read_changed(":path", path);
        assert!(matches!(read.fault(), HeadFault::Path(_)), "{path}");
        assert_eq!(
            read.words(),
            format!("client sent invalid :path header: \"{path}\"")
        );
    }
    // Paths that cannot be forwarded in an HTTP/1 request line.
    for path in ["/\r\n", "/\0", " /", "/ "] {
        let fault = read_changed(":path", path).fault();
        assert!(matches!(fault, HeadFault::Value(..)), "{path:?}");
    }
}

#[test]
fn the_server_is_named_once() {
    let without = &GET[..3];
    let named = |fields: &[(&str, &str)]| {
        let read = read(&[without, fields].concat());
        let name = read
            .head
            .server_name()
            .map(|name| name.name.of(&read.bytes).to_vec());
        read.asked
            .map(|_| String::from_utf8(name.unwrap()).unwrap())
    };
    let name = |text: &str| Ok(text.to_owned());
    assert_eq!(named(&[(":authority", "a.org:81")]), name("a.org"));
    assert_eq!(named(&[("host", "b.org")]), name("b.org"));
    assert_eq!(
        named(&[(":authority", "a.org"), ("host", "a.org")]),
        name("a.org")
    );
    // nginx compares the bytes.
    for host in ["A.org", "a.org:443", "b.org", ""] {
        let fault = named(&[(":authority", "a.org"), ("host", host)]);
        assert_eq!(fault, Err(HeadFault::TwoHosts), "{host}");
    }
    let fault = named(&[(":authority", ""), ("host", "a.org")]);
    assert_eq!(fault, Err(HeadFault::TwoHosts));
    let fault = named(&[(":authority", ""), ("host", "")]);
    assert_eq!(fault, Err(HeadFault::Authority));
    let fault = named(&[("host", "a.org"), ("host", "a.org")]);
    assert_eq!(fault, Err(HeadFault::Host));
    assert_eq!(named(&[("host", "")]), Err(HeadFault::Host));
    for bad in ["a..b", "a b", "a/b", "user@a", "[::1", "a:b", "a:65536"] {
        assert_eq!(named(&[("host", bad)]), Err(HeadFault::Host), "{bad}");
        let fault = named(&[(":authority", bad)]);
        assert_eq!(fault, Err(HeadFault::Authority), "{bad}");
    }
}

#[test]
fn host_is_made_of_the_authority() {
    let read = read_changed(":authority", "a.org:81");
    assert_eq!(read.fields(), [("host".to_owned(), "a.org:81".to_owned())]);
    let read = read_more(&[("host", "example.org"), ("accept", "*/*")]);
    let names: Vec<String> = read.fields().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["host", "accept"]);
}

#[test]
fn names_and_values_that_no_field_can_have() {
    // Section 8.2.1.
    for name in ["", "Accept", "a b", "a:b", "a\x01", "a\x7f", "a\u{e9}"] {
        let read = read_more(&[(name, "a")]);
        assert!(matches!(read.fault(), HeadFault::Name(_)), "{name:?}");
        assert_eq!(
            read.words(),
            format!("client sent invalid header name: \"{name}\"")
        );
        assert_eq!(
            (read.fault().status(), read.fault().is_malformed()),
            (MALFORMED, true)
        );
    }
    for value in ["\0", "a\rb", "a\n", " a", "a ", "\ta", "a\t"] {
        let read = read_more(&[("x-own", value)]);
        assert!(matches!(read.fault(), HeadFault::Value(..)), "{value:?}");
        assert_eq!(
            read.words(),
            format!("client sent header \"x-own\" with invalid value: \"{value}\"")
        );
        let read = read_changed(":authority", value);
        assert!(matches!(read.fault(), HeadFault::Value(..)), "{value:?}");
    }
    for value in ["", "a b", "\u{e9}", "\x01"] {
        assert!(read_more(&[("x-own", value)]).asked.is_ok(), "{value:?}");
    }
}

#[test]
fn names_that_nginx_leaves_out() {
    let fields = [GET, &[("x_y", "1"), ("x.y", "2"), ("x-y", "3")]].concat();
    let names = |ignore_invalid: bool, underscores: bool| {
        let rules = Rules {
            ignore_invalid,
            underscores,
            ..RULES
        };
        let read = read_with(&rules, &fields);
        assert!(read.asked.is_ok());
        let kept: Vec<String> = read.fields().into_iter().map(|(name, _)| name).collect();
        let ignored: Vec<String> = read
            .head
            .ignored()
            .iter()
            .map(|name| String::from_utf8_lossy(name.of(&read.bytes)).into_owned())
            .collect();
        (kept.join(" "), ignored.join(" "))
    };
    let said = |kept: &str, ignored: &str| (kept.to_owned(), ignored.to_owned());
    assert_eq!(names(true, false), said("x-y host", "x_y x.y"));
    assert_eq!(names(true, true), said("x_y x-y host", "x.y"));
    assert_eq!(names(false, false), said("x_y x.y x-y host", ""));
    assert_eq!(names(false, true), said("x_y x.y x-y host", ""));
    // A malformed field is an error even if its name would be ignored.
    let fault = read_more(&[("x_y", "a\n")]).fault();
    assert!(matches!(fault, HeadFault::Value(..)));
}

#[test]
fn fields_of_the_connection_are_none_of_a_request() {
    // Section 8.2.2.
    for (name, shown) in [
        ("connection", "Connection"),
        ("keep-alive", "Keep-Alive"),
        ("proxy-connection", "Proxy-Connection"),
        ("transfer-encoding", "Transfer-Encoding"),
        ("upgrade", "Upgrade"),
    ] {
        let read = read_more(&[(name, "a")]);
        assert_eq!(read.fault(), HeadFault::OfConnection(shown));
        assert_eq!(read.words(), format!("client sent \"{shown}\" header"));
        assert!(read.fault().is_malformed());
    }
}

#[test]
fn te_says_trailers_or_nothing() {
    assert!(read_more(&[("te", "trailers")]).asked.is_ok());
    assert!(read_more(&[("te", "Trailers")]).asked.is_ok());
    for value in ["", "gzip", "trailers, gzip", "trailers;q=1", "trailer"] {
        assert_eq!(
            read_more(&[("te", value)]).fault(),
            HeadFault::Te,
            "{value}"
        );
    }
    let twice = read_more(&[("te", "trailers"), ("te", "trailers")]);
    assert_eq!(twice.fault(), HeadFault::Te);
    assert!(twice.fault().is_malformed());
}

#[test]
fn the_length_of_a_body_is_a_number() {
    let length = |value: &str| {
        let asked = read_more(&[("content-length", value)]).asked;
        asked.map(|asked| asked.content_length)
    };
    assert_eq!(length("0"), Ok(Some(0)));
    assert_eq!(length("007"), Ok(Some(7)));
    assert_eq!(length("9223372036854775807"), Ok(Some((1 << 63) - 1)));
    for bad in [
        "",
        "+5",
        "-5",
        "-0",
        "5,5",
        "5 5",
        "0x5",
        "5.0",
        "\u{665}",
        "9223372036854775808",
        "18446744073709551616",
        "99999999999999999999999",
    ] {
        assert_eq!(length(bad), Err(HeadFault::ContentLength), "{bad}");
    }
    let twice = read_more(&[("content-length", "5"), ("content-length", "5")]);
    assert_eq!(twice.fault(), HeadFault::ContentLength);
    assert_eq!(read_more(&[]).asked.unwrap().content_length, None);
    // The remaining length does not overflow.
    let mut client = Client::usual();
    client.post_of(1, (1 << 63) - 1);
    assert!(client.feed(&frame(DATA, 0, 1, b"a")).is_ok());
}

#[test]
fn some_fields_come_once() {
    let read = read_more(&[("if-none-match", "a"), ("if-none-match", "b")]);
    let fault = read.fault();
    assert!(!fault.is_malformed() && fault.status() == 400, "{fault:?}");
    let words = String::from_utf8(fault.words(&read.bytes)).unwrap();
    assert_eq!(
        words,
        "client sent duplicate header line: \"if-none-match: b\", previous value: \"if-none-match: a\""
    );
    assert!(read_more(&[("accept", "a"), ("accept", "b")]).asked.is_ok());
}

#[test]
fn crumbs_of_cookies_are_joined() {
    // Section 8.2.3: joined with a semicolon and a space, after the other fields, as in nginx.
    let read = read_more(&[
        ("cookie", "a=b"),
        ("accept", "*/*"),
        ("cookie", "c=d"),
        ("cookie", ""),
        ("x-own", "1"),
    ]);
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let expected = [
        pair("accept", "*/*"),
        pair("x-own", "1"),
        pair("cookie", "a=b; c=d; "),
        pair("host", "example.org"),
    ];
    assert_eq!(read.fields(), expected);
    let read = read_more(&[("cookie", "a=b"), ("accept", "*/*")]);
    let expected = [
        pair("accept", "*/*"),
        pair("cookie", "a=b"),
        pair("host", "example.org"),
    ];
    assert_eq!(read.fields(), expected);
    let read = read_more(&[("accept", "*/*"), ("cookie", "a=b")]);
    assert_eq!(read.fields(), expected);
}

#[test]
fn rules_are_those_of_the_server_that_is_named() {
    let other = Rules {
        underscores: true,
        fields_max: 3,
        merge_slashes: false,
        field_size_max: 1,
        head_size_max: 1,
        ..RULES
    };
    let of_host = |host: &[u8]| (host == b"Other.example").then_some(other);
    let named = NamedRules {
        fields_max: 3,
        of_host: &of_host,
    };
    let first = Rules {
        fields_max: 2,
        ..RULES
    };
    let read = |fields: &[(&str, &str)]| {
        let read = read_block_for(&first, Some(named), &literal(fields)).unwrap();
        let names: Vec<String> = read.fields().into_iter().map(|(name, _)| name).collect();
        let path = String::from_utf8_lossy(read.head.path()).into_owned();
        (read.asked.err(), names.join(" "), path)
    };
    let [method, scheme, path] = [(":method", "GET"), (":scheme", "https"), (":path", "//x")];
    let authority = (":authority", "Other.example:443");
    let (before, behind, host) = (("a_a", "1"), ("b_b", "2"), ("host", "Other.example"));
    let said = |names: &str, path: &str| (None, names.to_owned(), path.to_owned());
    // The rules apply from the authority on, which precedes all fields; `merge_slashes` applies if
    // the authority precedes the path.
    let fields = [method, scheme, authority, path, before, behind];
    assert_eq!(read(&fields), said("a_a b_b host", "//x"));
    let fields = [method, scheme, path, authority, before, behind];
    assert_eq!(read(&fields), said("a_a b_b host", "/x"));
    // The rules apply from Host on, if there is no authority.
    let fields = [method, scheme, path, before, host, behind];
    assert_eq!(read(&fields), said("host b_b", "/x"));
    let unknown = (":authority", "unknown.example");
    let fields = [method, scheme, unknown, path, before, behind];
    assert_eq!(read(&fields), said("host", "/x"));
    let fields = [method, scheme, authority, path, before, behind, ("c", "3")];
    assert_eq!(read(&fields), said("a_a b_b c host", "//x"));
    let fields = [&fields[..], &[("d", "4")]].concat();
    let (fault, ..) = read(&fields);
    assert_eq!(fault, Some(HeadFault::TooMany));
}

#[test]
fn a_head_that_is_refused_names_its_server() {
    let server = |fields: &[(&str, &str)]| {
        let read = read_block(&RULES, &literal(fields)).unwrap();
        assert!(read.asked.is_err());
        let name = read.head.server_name()?.name;
        Some(String::from_utf8_lossy(name.of(&read.bytes)).into_owned())
    };
    let [method, authority] = [(":method", "GET"), (":authority", "a.org:443")];
    let host = ("host", "b.org");
    let bad = ("connection", "close");
    let a = || Some("a.org".to_owned());
    assert_eq!(server(&[method, authority, bad]), a());
    assert_eq!(server(&[method, authority, host, bad]), a());
    assert_eq!(server(&[method, host, bad]), Some("b.org".to_owned()));
    assert_eq!(server(&[method, bad, host]), None);
    assert_eq!(server(&[method, (":authority", "a b"), bad]), None);
}

#[test]
fn fields_are_counted_without_cookies() {
    let rules = Rules {
        fields_max: 2,
        ..RULES
    };
    let crumbs = [("cookie", "a=b"); 5];
    let most = [("accept", "*/*"), ("x-own", "1")];
    let read = read_with(&rules, &[GET, &crumbs, &most, &crumbs].concat());
    assert!(read.asked.is_ok());
    let read = read_with(&rules, &[GET, &most, &[("x-own", "2")]].concat());
    assert_eq!(read.fault(), HeadFault::TooMany);
    assert_eq!(
        (read.fault().status(), read.fault().is_malformed()),
        (494, false)
    );
    assert_eq!(read.words(), "client sent too many header lines");
    // Ignored fields do not count.
    let read = read_with(&rules, &[GET, &[("x_y", "1")], &most].concat());
    assert!(read.asked.is_ok());
}

#[test]
fn sizes_at_their_bounds() {
    let rules = Rules {
        field_size_max: 50,
        head_size_max: 200,
        ..RULES
    };
    let too_large = |fields: &[(&str, &str)]| {
        let read = read_block(&rules, &literal(&[GET, fields].concat()));
        read.map(|read| assert!(read.asked.is_ok())).err()
    };
    // Limits of each name and value, which one buffer must hold, as in nginx.
    let (most, more) = ("v".repeat(50), "v".repeat(51));
    assert_eq!(too_large(&[("x-own", &most)]), None);
    assert_eq!(too_large(&[(&most, "x")]), None);
    for field in [("x-own", &more[..]), (&more[..], "x")] {
        assert_eq!(too_large(&[field]), Some(Violation::BlockTooLong));
    }
    let code = Violation::BlockTooLong.code();
    assert_eq!(code.number(), code::ENHANCE_YOUR_CALM);
    // The limit of the total, with the 49 bytes of the request itself.
    let mut fields = vec![("n", &most[..49]); 3];
    fields.push(("y", ""));
    assert_eq!(49 + 3 * 50 + 1, 200);
    assert_eq!(too_large(&fields), None);
    fields.push(("z", ""));
    assert_eq!(too_large(&fields), Some(Violation::BlockTooLong));
    // The limits apply to malformed requests and ignored fields, too.
    let large = [("connection", "a"), ("x_own", &more[..])];
    assert_eq!(too_large(&large), Some(Violation::BlockTooLong));
}

#[test]
fn connect_and_trace_are_not_for_us() {
    for (method, fault) in [("CONNECT", HeadFault::Connect), ("TRACE", HeadFault::Trace)] {
        let read = read_changed(":method", method);
        assert_eq!(read.fault(), fault);
        assert_eq!(read.words(), format!("client sent {method} method"));
        assert_eq!((fault.status(), fault.is_malformed()), (405, false));
    }
    // A valid CONNECT (section 8.5): nginx reports the missing path.
    let read = read(&[(":method", "CONNECT"), (":authority", "a.org:443")]);
    assert_eq!(read.fault(), HeadFault::Missing(":scheme"));
}

#[test]
fn connect_may_name_a_protocol_where_that_was_offered() {
    // RFC 8441, section 4.
    let rules = Rules {
        extended_connect: true,
        ..RULES
    };
    let fields = |method: &'static str| {
        let mut fields = GET.to_vec();
        fields[0].1 = method;
        fields.push((":protocol", "websocket"));
        fields
    };
    let read = read_with(&rules, &fields("CONNECT"));
    let protocol = read.asked.unwrap().protocol.unwrap();
    assert_eq!(protocol.of(&read.bytes), b"websocket");
    // The equivalent HTTP/1 request.
    assert_eq!(read.head.line().of(&read.bytes), b"GET / HTTP/2.0");
    assert_eq!(read.head.method(), crate::method::Method::Get);
    let value = |known| {
        let mut fields = read.head.all(known);
        let field = fields.next().map(|field| field.value(&read.bytes));
        (field, fields.count())
    };
    assert_eq!(value(KnownField::Upgrade), (Some(&b"websocket"[..]), 0));
    assert_eq!(value(KnownField::Connection), (Some(&b"Upgrade"[..]), 0));
    let mut keyed = fields("CONNECT");
    keyed.push(("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="));
    let keyed = read_with(&rules, &keyed);
    assert_eq!(keyed.head.all(KnownField::SecWebsocketKey).count(), 0);
    // Connection-specific fields are not allowed in extended CONNECT, either.
    let mut of_connection = fields("CONNECT");
    of_connection.push(("upgrade", "websocket"));
    let fault = read_with(&rules, &of_connection).fault();
    assert_eq!(fault, HeadFault::OfConnection("Upgrade"));
    let read = read_with(&rules, &fields("GET"));
    assert!(matches!(read.fault(), HeadFault::Unknown(_)));
    let read = read_with(&RULES, &fields("CONNECT"));
    assert!(matches!(read.fault(), HeadFault::Unknown(_)));
    let mut empty = fields("CONNECT");
    empty[4].1 = "";
    assert_eq!(
        read_with(&rules, &empty).fault(),
        HeadFault::Empty(":protocol")
    );
    let twice = [&fields("CONNECT")[..], &[(":protocol", "b")]].concat();
    assert_eq!(
        read_with(&rules, &twice).fault(),
        HeadFault::Duplicate(":protocol")
    );
    // The protocol is announced in our SETTINGS.
    let mut client = Client::new(Limits {
        extended_connect: true,
        ..LIMITS
    });
    let control = client.control();
    let offered = setting_payload(8, 1);
    assert!(control.windows(6).any(|setting| setting == offered));
}

#[test]
fn a_malformed_request_is_shown_as_far_as_it_is_known() {
    let line = |read: &Read| String::from_utf8_lossy(read.head.line().of(&read.bytes)).into_owned();
    let read = read_more(&[("upgrade", "h3")]);
    assert_eq!(line(&read), "GET / HTTP/2.0");
    assert!(read.head.server_name().is_some());
    let read = self::read(&[(":path", "/a"), (":path", "/b")]);
    assert_eq!(line(&read), " /a HTTP/2.0");
    let read = self::read(&[]);
    assert_eq!(line(&read), "  HTTP/2.0");
    // The first fault is reported.
    let read = read_more(&[("upgrade", "h3"), ("te", "gzip"), ("A", "b")]);
    assert_eq!(read.fault(), HeadFault::OfConnection("Upgrade"));
}

#[test]
fn each_fault_has_words_and_a_status() {
    let span = crate::Span::new(0, 1);
    for fault in [
        HeadFault::Name(span),
        HeadFault::Value(span, span),
        HeadFault::OutOfOrder,
        HeadFault::Unknown(span),
        HeadFault::Duplicate(":path"),
        HeadFault::Empty(":path"),
        HeadFault::Missing(":path"),
        HeadFault::Method(span),
        HeadFault::Scheme(span),
        HeadFault::Path(span),
        HeadFault::Authority,
        HeadFault::Host,
        HeadFault::TwoHosts,
        HeadFault::NoHost,
        HeadFault::OfConnection("TE"),
        HeadFault::Te,
        HeadFault::ContentLength,
        HeadFault::TooMany,
        HeadFault::Connect,
        HeadFault::Trace,
    ] {
        let words = fault.words(b"x");
        assert!(words.starts_with(b"client sent "), "{fault}");
        assert!(words.starts_with(fault.to_string().as_bytes()) || words.contains(&b'"'));
        assert!((400..500).contains(&fault.status()));
    }
}
