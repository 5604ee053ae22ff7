//! Tables of targets; the expected values are nginx's.

use super::*;

fn normalised(raw: &str, merge_slashes: bool) -> Option<String> {
    let mut path = b"left over".to_vec();
    let parts = normalise(raw.as_bytes(), merge_slashes, &mut path).ok()?;
    let mut text = path.escape_ascii().to_string();
    if let Some(extension) = parts.extension {
        text += &format!(" .{}", extension.of(&path).escape_ascii());
    }
    if let Some(args) = parts.args {
        text += &format!(" ?{}", args.of(raw.as_bytes()).escape_ascii());
    }
    Some(text)
}

#[test]
fn paths() {
    for (raw, expected) in [
        ("/", "/"),
        ("/a/b", "/a/b"),
        ("//", "/"),
        ("//a///b//", "/a/b/"),
        ("/.", "/"),
        ("/./", "/"),
        ("/a/.", "/a/"),
        ("/a/./b", "/a/b"),
        ("/a/..", "/"),
        ("/a/../", "/"),
        ("/a/../b", "/b"),
        ("/a/b/../../c", "/c"),
        ("/a//../b", "/b"),
        ("/...", "/..."),
        ("/..a", "/..a"),
        ("/.a", "/.a"),
        ("/.a.b", "/.a.b .b"),
        ("/...b.c", "/...b.c .c"),
        ("/a.b", "/a.b .b"),
        ("/a.b.c", "/a.b.c .c"),
        ("/a.", "/a. ."),
        ("/a.b/c", "/a.b/c"),
        ("/a.b/..", "/"),
        ("/a.b/../c.d", "/c.d .d"),
        ("/a?b", "/a ?b"),
        ("/a??b", "/a ??b"),
        ("/a?", "/a ?"),
        ("/a/..?b", "/ ?b"),
        ("/a/.?b", "/a/ ?b"),
        ("/a?/../b", "/a ?/../b"),
        ("/a?%41%zz", "/a ?%41%zz"),
        ("/a#b?c", "/a"),
        ("/a/..#b", "/"),
        ("/a?b#c", "/a ?b"),
        ("/a?#b", "/a ?"),
        ("/%41%7e%C3%a9", "/A~\\xc3\\xa9"),
        ("/%2f/a%2Fb", "/a/b"),
        ("/a%2f..", "/"),
        ("/a/%2e%2E/b", "/b"),
        ("/a/%2e", "/a/"),
        ("/a%2eb", "/a.b .b"),
        ("/%2541", "/%41"),
        ("/%3Fa%23", "/?a#"),
        ("/.%3f", "/.?"),
        ("/..%23", "/..#"),
        ("/%20%0d%01", "/ \\r\\x01"),
        ("/a+b%2b", "/a+b+"),
        ("/\\..\\", "/\\\\..\\\\ .\\\\"),
        ("?a", "/ ?a"),
    ] {
        assert_eq!(normalised(raw, true).as_deref(), Some(expected), "{raw}");
    }
}

#[test]
fn slashes_may_be_kept() {
    for (raw, expected) in [
        ("//a///b//", "//a///b//"),
        ("/a//../b", "/a/b"),
        ("//..", "/"),
        ("/a/.//b", "/a//b"),
        ("/%2f/", "///"),
    ] {
        assert_eq!(normalised(raw, false).as_deref(), Some(expected), "{raw}");
    }
}

#[test]
fn refused() {
    for raw in [
        "/..",
        "/../",
        "/a/../..",
        "/a/../../b",
        "/..?a",
        "/..#a",
        "/%2e%2e",
        "/.%2e/",
        "//..",
        "/./..",
        "/%",
        "/%4",
        "/%4?",
        "/%4g",
        "/%g4",
        "/%00",
        "/a%",
        "/%%41",
        "/%?41",
    ] {
        assert_eq!(normalised(raw, true), None, "{raw}");
    }
}

#[test]
fn plus_and_escapes_are_noted() {
    let mut path = Vec::new();
    for (raw, plus, quoted) in [
        ("/a", false, false),
        ("/+", true, false),
        ("/%2b", true, true),
        ("/?+%41", false, false),
        ("/%41", false, true),
    ] {
        let parts = normalise(raw.as_bytes(), true, &mut path).expect(raw);
        assert_eq!((parts.plus, parts.quoted), (plus, quoted), "{raw}");
    }
}

#[test]
fn extensions_after_rewrites() {
    for (path, expected) in [
        ("/a.b", Some("b")),
        ("/a.b.c", Some("c")),
        ("/a.", Some("")),
        ("/.a", None),
        ("/.a.b", Some("b")),
        ("/a.b/c", None),
        ("/a/.b", None),
        ("/a/..b", Some("b")),
        ("/", None),
        ("", None),
        (".a", None),
    ] {
        let found = extension(path.as_bytes()).map(|span| span.of(path.as_bytes()));
        assert_eq!(found, expected.map(str::as_bytes), "{path}");
    }
}

#[test]
fn escaping() {
    let all: Vec<u8> = (0x20..0x80).collect();
    for (kind, expected) in [
        (
            Escape::Uri,
            "%20!%22%23$%25&'()*+,-./0123456789:;%3C=%3E%3F@ABCDEFGHIJKLMNOPQRSTUVWXYZ[%5C]%5E_%60abcdefghijklmnopqrstuvwxyz%7B%7C%7D~%7F",
        ),
        (
            Escape::Args,
            "%20!%22%23$%25%26'()*%2B,-./0123456789:%3B%3C=%3E%3F@ABCDEFGHIJKLMNOPQRSTUVWXYZ[%5C]%5E_%60abcdefghijklmnopqrstuvwxyz%7B%7C%7D~%7F",
        ),
        (
            Escape::Component,
            "%20%21%22%23%24%25%26%27%28%29%2A%2B%2C-.%2F0123456789%3A%3B%3C%3D%3E%3F%40ABCDEFGHIJKLMNOPQRSTUVWXYZ%5B%5C%5D%5E_%60abcdefghijklmnopqrstuvwxyz%7B%7C%7D~%7F",
        ),
        (
            Escape::Html,
            "%20!%22%23$%25&%27()*+,-./0123456789:;%3C=%3E?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[%5C]%5E_%60abcdefghijklmnopqrstuvwxyz%7B%7C%7D~%7F",
        ),
        (
            Escape::Refresh,
            "%20!%22#$%&%27()*+,-./0123456789:;%3C=%3E?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[%5C]%5E_%60abcdefghijklmnopqrstuvwxyz%7B%7C}%7E%7F",
        ),
        (
            Escape::Memcached,
            "%20!\"#$%25&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~\x7f",
        ),
    ] {
        let mut out = Vec::new();
        escape(&all, kind, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), expected, "{kind:?}");
        assert_eq!(escaped_length(&all, kind), out.len());
        out.clear();
        escape(b"\x00\x1f\x80\xff", kind, &mut out);
        let high = kind != Escape::Memcached;
        assert_eq!(
            out,
            if high {
                &b"%00%1F%80%FF"[..]
            } else {
                b"%00%1F\x80\xff"
            }
        );
    }
}

#[test]
fn unescaping() {
    for (text, kind, expected, consumed) in [
        ("a%41%2f%3f?%00", Unescape::All, "aA/??\0", 14),
        ("%", Unescape::All, "", 1),
        ("%4", Unescape::All, "", 2),
        ("%g1", Unescape::All, "g1", 3),
        ("%4g1", Unescape::All, "1", 4),
        ("%%41", Unescape::All, "%41", 4),
        ("a%41?b%41", Unescape::Uri, "aA?", 5),
        ("a%3fb", Unescape::Uri, "a?", 4),
        ("%41%20%25%e9%7e?x", Unescape::Redirect, "A%20%25%e9~?", 16),
        ("%3F%41", Unescape::Redirect, "?", 3),
    ] {
        let mut out = Vec::new();
        assert_eq!(
            unescape(text.as_bytes(), kind, &mut out),
            consumed,
            "{text}"
        );
        assert_eq!(String::from_utf8_lossy(&out), expected, "{text}");
    }
}

#[test]
fn html() {
    let mut out = Vec::new();
    write_html(b"<a href=\"b\">&'", &mut out);
    assert_eq!(out, b"&lt;a href=&quot;b&quot;&gt;&amp;'");
}

#[test]
fn queries() {
    assert_eq!(split_args(b"/a?b?c"), (&b"/a"[..], Some(&b"b?c"[..])));
    assert_eq!(split_args(b"/a"), (&b"/a"[..], None));
    for (args, name, expected) in [
        ("a=1&b=2", "b", Some("2")),
        ("A=1", "a", Some("1")),
        ("ab=1&b=2", "b", Some("2")),
        ("a&a=1", "a", Some("1")),
        ("a=", "a", Some("")),
        ("a=b=c", "a", Some("b=c")),
        ("a", "a", None),
        ("", "a", None),
        ("x=a=1", "a", None),
    ] {
        assert_eq!(
            argument(args.as_bytes(), name.as_bytes()),
            expected.map(str::as_bytes),
            "{args}"
        );
    }
}

#[test]
fn uris_of_others() {
    let mut path = Vec::new();
    assert_eq!(parse_unsafe(b"/a%20b?c", &mut path), Ok(Some(&b"c"[..])));
    assert_eq!(path, b"/a b");
    assert_eq!(parse_unsafe(b"/a", &mut path), Ok(None));
    for uri in [
        "",
        "?a",
        "..",
        "../a",
        "/..",
        "/a/../b",
        "/%2e%2e/b",
        "/a%00",
        "/a\0",
    ] {
        assert_eq!(
            parse_unsafe(uri.as_bytes(), &mut path),
            Err(BadUri),
            "{uri}"
        );
    }
    for uri in ["/...", "/..a", "/a..", "@a"] {
        assert!(parse_unsafe(uri.as_bytes(), &mut path).is_ok(), "{uri}");
    }
}
