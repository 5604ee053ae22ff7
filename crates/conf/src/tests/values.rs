//! Tests of units, flags, numbers and templates, with the results of nginx's parsers.

use super::{load, messages};
use crate::{Template, TemplatePart, Word, parse};

#[test]
fn sizes() {
    let cases: &[(&str, Option<u64>)] = &[
        ("0", Some(0)),
        ("10", Some(10)),
        ("1k", Some(1 << 10)),
        ("1K", Some(1 << 10)),
        ("3m", Some(3 << 20)),
        ("3M", Some(3 << 20)),
        ("9223372036854775807", Some(u64::MAX >> 1)),
        ("9223372036854775808", None),
        ("9007199254740991k", Some(0x7fff_ffff_ffff_fc00)),
        ("9007199254740992k", None),
        ("", None),
        ("k", None),
        ("-1", None),
        ("+1", None),
        ("1 k", None),
        ("1kk", None),
        ("1b", None),
    ];
    for (text, expected) in cases {
        assert_eq!(parse::size_text(text), *expected, "{text}");
        assert_eq!(parse::offset_of(text.as_bytes()), *expected, "{text}");
    }
    assert_eq!(parse::size_text("1g"), None);
    assert_eq!(parse::offset_of(b"1g"), Some(1 << 30));
    assert_eq!(
        parse::offset_of(b"8589934591G"),
        Some(0x7fff_ffff_c000_0000)
    );
    assert_eq!(parse::offset_of(b"8589934592g"), None);
}

#[test]
fn times() {
    // In seconds and in milliseconds.
    let cases: &[(&str, Option<u64>, Option<u64>)] = &[
        ("0", Some(0), Some(0)),
        ("30", Some(30), Some(30_000)),
        ("1s", Some(1), Some(1_000)),
        ("1m", Some(60), Some(60_000)),
        ("1h", Some(3_600), Some(3_600_000)),
        ("1d", Some(86_400), Some(86_400_000)),
        ("1w", Some(604_800), Some(604_800_000)),
        ("1M", Some(2_592_000), None),
        ("1y", Some(31_536_000), None),
        ("1ms", None, Some(1)),
        ("1h30m", Some(5_400), Some(5_400_000)),
        ("1h 30m", Some(5_400), Some(5_400_000)),
        ("1h  30", Some(3_630), Some(3_630_000)),
        ("1s5", Some(6), Some(6_000)),
        ("1s5ms", None, Some(1_005)),
        ("1ms5", None, Some(5_001)),
        ("1 30", Some(31), Some(31_000)),
        ("1 30m", None, None),
        ("30m1h", None, None),
        ("1m1m", None, None),
        ("m", None, None),
        ("1hm", Some(3_600), Some(3_600_000)),
        ("", None, None),
        ("-1", None, None),
        ("1x", None, None),
        ("1h\t30m", None, None),
        ("1.5s", None, None),
        ("9223372036854775807", Some(u64::MAX >> 1), None),
        ("9223372036854775808", None, None),
        ("292471208y", Some(9_223_372_015_488_000), None),
        ("292471208678y", None, None),
        ("9223372036854775807s1", None, None),
    ];
    for (text, seconds, milliseconds) in cases {
        assert_eq!(parse::seconds_text(text), *seconds, "seconds of {text:?}");
        assert_eq!(
            parse::time_milliseconds(text.as_bytes()),
            *milliseconds,
            "ms of {text:?}"
        );
    }
}

#[test]
fn messages_name_the_directive() {
    let cases = [
        (
            "events { worker_connections -1; }",
            "\"worker_connections\" directive invalid number",
        ),
        (
            "http { keepalive_timeout 1y; }",
            "\"keepalive_timeout\" directive invalid value",
        ),
        (
            "http { client_max_body_size x; }",
            "\"client_max_body_size\" directive invalid value",
        ),
        ("http { if_modified_since EXACT; }", ""),
        ("http { sendfile ON; }", ""),
        (
            "http { sendfile 1; }",
            "invalid value \"1\" in \"sendfile\" directive, it must be \"on\" or \"off\"",
        ),
    ];
    for (text, expected) in cases {
        let found = messages(&load(text));
        let first = found.first().map_or("", |text| text.as_str());
        assert_eq!(first.trim_end_matches(" in /conf/nginx.conf:1"), expected);
    }
}

fn template(text: &str) -> Result<Vec<TemplatePart>, String> {
    let word = Word {
        bytes: text.as_bytes().into(),
        ..Word::default()
    };
    Template::parse(&word)
        .map(|template| template.parts)
        .map_err(|fault| fault.message)
}

#[test]
fn templates_are_cut_at_variables() {
    let literal = |text: &str| TemplatePart::Literal(text.as_bytes().into());
    let variable = |name: &str| TemplatePart::Variable(name.into());
    let cases = [
        ("", vec![]),
        ("abc", vec![literal("abc")]),
        ("$a", vec![variable("a")]),
        (
            "x$a_1.y",
            vec![literal("x"), variable("a_1"), literal(".y")],
        ),
        ("${a}b", vec![variable("a"), literal("b")]),
        (
            "$a$b${c}",
            vec![variable("a"), variable("b"), variable("c")],
        ),
        (
            "$1$23",
            vec![
                TemplatePart::Capture(1),
                TemplatePart::Capture(2),
                literal("3"),
            ],
        ),
        ("$0", vec![variable("0")]),
        ("${1}", vec![variable("1")]),
        ("a}b{", vec![literal("a}b{")]),
    ];
    for (text, expected) in cases {
        assert_eq!(template(text), Ok(expected), "{text}");
    }
    let invalid = "invalid variable name".to_owned();
    for text in ["$", "a$", "$-", "$$", "${", "${}", "a$ b"] {
        assert_eq!(template(text), Err(invalid.clone()), "{text}");
    }
    let missing = |name: &str| {
        Err(format!(
            "the closing bracket in \"{name}\" variable is missing"
        ))
    };
    assert_eq!(template("${a"), missing("a"));
    assert_eq!(template("${a-b}"), missing("a"));
    assert_eq!(template("x${ a}"), missing(""));
}

#[test]
fn templates_know_whether_they_are_literal() {
    let word = |text: &str| Word {
        bytes: text.as_bytes().into(),
        ..Word::default()
    };
    assert_eq!(
        Template::parse(&word("a b")).unwrap().as_literal(),
        Some(&b"a b"[..])
    );
    assert_eq!(
        Template::parse(&word("")).unwrap().as_literal(),
        Some(&b""[..])
    );
    assert_eq!(Template::parse(&word("$a")).unwrap().as_literal(), None);
    assert_eq!(Template::literal(b"$a").as_literal(), Some(&b"$a"[..]));
}
