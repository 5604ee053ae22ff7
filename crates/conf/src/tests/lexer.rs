//! Tests of the lexer and the shape of lines, with nginx's results for the same bytes.

use super::{load, messages};
use crate::lexer::{Lexer, Token};

/// Files with nginx's first error; empty if nginx finds no syntax error.
#[rustfmt::skip]
const FILES: &[(&[u8], &str)] = &[
    (b";", "unexpected \";\" in /conf/nginx.conf:1"),
    (b"{", "unexpected \"{\" in /conf/nginx.conf:1"),
    (b"}", "unexpected \"}\" in /conf/nginx.conf:1"),
    (b"a", "unexpected end of file, expecting \";\" or \"}\" in /conf/nginx.conf:1"),
    (b"a b", "unexpected end of file, expecting \";\" or \"}\" in /conf/nginx.conf:1"),
    (b"a b c", "unexpected end of file, expecting \";\" or \"}\" in /conf/nginx.conf:1"),
    (b"user \"x", "unexpected end of file, expecting \";\" or \"}\" in /conf/nginx.conf:1"),
    (b"user 'x", "unexpected end of file, expecting \";\" or \"}\" in /conf/nginx.conf:1"),
    (b"user \"x\"", "unexpected end of file, expecting \";\" or \"}\" in /conf/nginx.conf:1"),
    (b"user \"x\"y;", "unexpected \"y\" in /conf/nginx.conf:1"),
    (b"user 'x'#", "unexpected \"#\" in /conf/nginx.conf:1"),
    (b"user \"x\"}", "unexpected \"}\" in /conf/nginx.conf:1"),
    (b"user x }", "unexpected \"}\" in /conf/nginx.conf:1"),
    (b"user x\n}\n", "unexpected \"}\" in /conf/nginx.conf:2"),
    (b"events {", "unexpected end of file, expecting \"}\" in /conf/nginx.conf:1"),
    (b"events {\n\n", "unexpected end of file, expecting \"}\" in /conf/nginx.conf:3"),
    (b"events { worker_connections 1;", "unexpected end of file, expecting \"}\" in /conf/nginx.conf:1"),
    (b"events { } }", "unexpected \"}\" in /conf/nginx.conf:1"),
    (b"events\n{\n}\n}\n", "unexpected \"}\" in /conf/nginx.conf:4"),
    (b"# comment", ""),
    (b"# comment\n;", "unexpected \";\" in /conf/nginx.conf:2"),
    (b"user\\", "unexpected end of file, expecting \";\" or \"}\" in /conf/nginx.conf:1"),
    (b"user x\\", "unexpected end of file, expecting \";\" or \"}\" in /conf/nginx.conf:1"),
    (b"user x\\;\n", "unexpected end of file, expecting \";\" or \"}\" in /conf/nginx.conf:2"),
    (b"user \"\\", "unexpected end of file, expecting \";\" or \"}\" in /conf/nginx.conf:1"),
    (b"\"a\\tb\" 1;", "unknown directive \"a	b\" in /conf/nginx.conf:1"),
    (b"\"a\\\"b\" 1;", "unknown directive \"a\"b\" in /conf/nginx.conf:1"),
    (b"'a\\'b' 1;", "unknown directive \"a'b\" in /conf/nginx.conf:1"),
    (b"'a\"b' 1;", "unknown directive \"a\"b\" in /conf/nginx.conf:1"),
    (b"a\\ b 1;", "unknown directive \"a\\ b\" in /conf/nginx.conf:1"),
    (b"a\\;b 1;", "unknown directive \"a\\;b\" in /conf/nginx.conf:1"),
    (b"\\a 1;", "unknown directive \"\\a\" in /conf/nginx.conf:1"),
    (b"a\\\\b 1;", "unknown directive \"a\\b\" in /conf/nginx.conf:1"),
    (b"a\\xb 1;", "unknown directive \"a\\xb\" in /conf/nginx.conf:1"),
    (b"a#b 1;", "unknown directive \"a#b\" in /conf/nginx.conf:1"),
    (b"$a{b 1;", "unknown directive \"$a\" in /conf/nginx.conf:1"),
    (b"${a}b 1;", "unknown directive \"${a}b\" in /conf/nginx.conf:1"),
    (b"a${{b 1;", "unknown directive \"a${{b\" in /conf/nginx.conf:1"),
    (b"a$ {", "unknown directive \"a$\" in /conf/nginx.conf:1"),
    (b"\"a;b{c}\" 1;", "unknown directive \"a;b{c}\" in /conf/nginx.conf:1"),
    (b"a}b 1;", "unknown directive \"a}b\" in /conf/nginx.conf:1"),
    (b"a\"b 1;", "unknown directive \"a\"b\" in /conf/nginx.conf:1"),
    (b"a'b\" 1;", "unknown directive \"a'b\"\" in /conf/nginx.conf:1"),
    (b"\"\" 1;", "unknown directive \"\" in /conf/nginx.conf:1"),
    (b"user (\"a\");\n", ""),
    (b"user (a \"b\")c;\n", "invalid number of arguments in \"user\" directive in /conf/nginx.conf:1"),
    (b"user \"a\")", "unexpected end of file, expecting \";\" or \"}\" in /conf/nginx.conf:1"),
    (b"user \"a\" )", "unexpected end of file, expecting \";\" or \"}\" in /conf/nginx.conf:1"),
    (b"\tuser\r\n a\n b\n c\n;", "invalid number of arguments in \"user\" directive in /conf/nginx.conf:5"),
    (b"events;", "directive \"events\" has no opening \"{\" in /conf/nginx.conf:1"),
    (b"events x {}", "invalid number of arguments in \"events\" directive in /conf/nginx.conf:1"),
    (b"user a b c;", "invalid number of arguments in \"user\" directive in /conf/nginx.conf:1"),
    (b"user;", "invalid number of arguments in \"user\" directive in /conf/nginx.conf:1"),
    (b"user x {", "directive \"user\" is not terminated by \";\" in /conf/nginx.conf:1"),
    (b"user x { }", "directive \"user\" is not terminated by \";\" in /conf/nginx.conf:1"),
    (b"usr x;", "unknown directive \"usr\" in /conf/nginx.conf:1"),
    (b"listen 80;", "\"listen\" directive is not allowed here in /conf/nginx.conf:1"),
    (b"http { usr x; }", "unknown directive \"usr\" in /conf/nginx.conf:1"),
    (b"http { user x; }", "\"user\" directive is not allowed here in /conf/nginx.conf:1"),
    (b"http { http { } }", "\"http\" directive is not allowed here in /conf/nginx.conf:1"),
    (b"events {} events {}", "\"events\" directive is duplicate in /conf/nginx.conf:1"),
    (b"user a; user b;", ""),
    (b"worker_connections 1;", "\"worker_connections\" directive is not allowed here in /conf/nginx.conf:1"),
    (b"events { worker_connections 1; worker_connections 2; }", "\"worker_connections\" directive is duplicate in /conf/nginx.conf:1"),
    (b"events { multi_accept yes; }", "invalid value \"yes\" in \"multi_accept\" directive, it must be \"on\" or \"off\" in /conf/nginx.conf:1"),
    (b"daemon\nmaybe\n;", "invalid value \"maybe\" in \"daemon\" directive, it must be \"on\" or \"off\" in /conf/nginx.conf:3"),
    (b"http { server { location / { limit_except GET { location /a { } } } } }", "\"location\" directive is not allowed here in /conf/nginx.conf:1"),
    (b"http { keepalive_timeout 1x; }", "\"keepalive_timeout\" directive invalid value in /conf/nginx.conf:1"),
    (b"http { client_max_body_size 1t; }", "\"client_max_body_size\" directive invalid value in /conf/nginx.conf:1"),
    (b"http { types { text/html { } } }", "unexpected \"{\" in /conf/nginx.conf:1"),
    (b"http { types { text/html html", "unexpected end of file, expecting \";\" or \"}\" in /conf/nginx.conf:1"),
    (b"http { types { text/html html }", "unexpected \"}\" in /conf/nginx.conf:1"),
    (b"http { server { include; } }", "invalid number of arguments in \"include\" directive in /conf/nginx.conf:1"),
    (b"http { server { include a b; } }", "invalid number of arguments in \"include\" directive in /conf/nginx.conf:1"),
    (b"http { types { include nothere; } }", "open() \"/conf/nothere\" failed (2: No such file or directory) in /conf/nginx.conf:1"),
    (b"include nothere;", "open() \"/conf/nothere\" failed (2: No such file or directory) in /conf/nginx.conf:1"),
    (b"include\n nothere;", "open() \"/conf/nothere\" failed (2: No such file or directory) in /conf/nginx.conf:2"),
    (b"include none/*; ;", "unexpected \";\" in /conf/nginx.conf:1"),
    (b"include a b;", "invalid number of arguments in \"include\" directive in /conf/nginx.conf:1"),
    (b"include;", "invalid number of arguments in \"include\" directive in /conf/nginx.conf:1"),
    (b"include x {}", "directive \"include\" is not terminated by \";\" in /conf/nginx.conf:1"),
    (b"http { root a; root b; }", "\"root\" directive is duplicate in /conf/nginx.conf:1"),
    (b"http { server { location / { root a; alias b; } } }", "\"alias\" directive is duplicate, \"root\" directive was specified earlier in /conf/nginx.conf:1"),
    (b"http { sendfile On; sendfile OFF; }", "\"sendfile\" directive is duplicate in /conf/nginx.conf:1"),
    (b"http { if_modified_since maybe; }", "invalid value \"maybe\" in /conf/nginx.conf:1"),
    (b"http { lingering_close perhaps; }", "invalid value \"perhaps\" in /conf/nginx.conf:1"),
    (b"user \"\n\n\";;", "unexpected \";\" in /conf/nginx.conf:3"),
    (b"user\n\"\n\"\n;\n;", "unexpected \";\" in /conf/nginx.conf:5"),
];

/// The text before the repeated byte, the byte, its count, the text after it, and the first error.
type LongFile = (
    &'static [u8],
    &'static [u8],
    usize,
    &'static [u8],
    &'static str,
);

/// Texts with a repeated byte in the middle: nginx's buffer is 4096 bytes long.
#[rustfmt::skip]
const LONG_FILES: &[LongFile] = &[
    (b"user ", b"x", 4096, b";", "too long parameter \"xxxxxxxxxx...\" started in /conf/nginx.conf:1"),
    (b"user ", b"x", 4095, b";\n", ""),
    (b"user ", b"x", 4094, b";\n", ""),
    (b"user ", b"x", 4096, b"", "unexpected end of file, expecting \";\" or \"}\" in /conf/nginx.conf:1"),
    (b"user \"", b"x", 4096, b"\";", "too long parameter, probably missing terminating \"\"\" character in /conf/nginx.conf:1"),
    (b"user \"", b"x", 4095, b"\";", "too long parameter \"xxxxxxxxxx...\" started in /conf/nginx.conf:1"),
    (b"user \"", b"x", 4094, b"\";", ""),
    (b"user \"", b"x", 4094, b"\" ;", "too long parameter \"xxxxxxxxxx...\" started in /conf/nginx.conf:1"),
    (b"user \"", b"x", 4093, b"\" ;", ""),
    (b"\n\nuser \"\n", b"x", 4096, b"\";", "too long parameter, probably missing terminating \"\"\" character in /conf/nginx.conf:3"),
    (b"\nuser '\n\n", b"x", 4096, b"';", "too long parameter, probably missing terminating \"'\" character in /conf/nginx.conf:2"),
    (b"user \"", b"x", 4096, b"", "unexpected end of file, expecting \";\" or \"}\" in /conf/nginx.conf:1"),
    (b"\n#", b"x", 4096, b"\n;", "too long parameter \"#xxxxxxxxx...\" started in /conf/nginx.conf:2"),
    (b"#", b"x", 4095, b"\n;", "too long parameter \"#xxxxxxxxx...\" started in /conf/nginx.conf:1"),
    (b"#", b"x", 4094, b"\n;", "unexpected \";\" in /conf/nginx.conf:2"),
    (b"#", b"x", 4096, b"", "too long parameter \"#xxxxxxxxx...\" started in /conf/nginx.conf:1"),
    (b"#", b"x", 4095, b"", ""),
    (b"", b" ", 5000, b";", "unexpected \";\" in /conf/nginx.conf:1"),
    (b"user", b" ", 5001, b";", "invalid number of arguments in \"user\" directive in /conf/nginx.conf:1"),
];

#[track_caller]
fn assert_first_error(text: &[u8], expected: &str) {
    let found = messages(&load(text));
    let first = found.first().map(String::as_str).unwrap_or_default();
    let shown = String::from_utf8_lossy(text.get(..60).unwrap_or(text)).into_owned();
    assert_eq!(first, expected, "of {found:?} for {shown}");
}

#[test]
fn errors_are_those_of_nginx() {
    for (text, expected) in FILES {
        assert_first_error(text, expected);
    }
}

#[test]
fn words_are_as_long_as_in_nginx() {
    for (before, byte, count, after, expected) in LONG_FILES {
        assert_first_error(&[before, &*byte.repeat(*count), after].concat(), expected);
    }
}

/// The directives of a text, each as its words, then the end mark and the errors.
fn tokens(text: &[u8]) -> Vec<String> {
    let mut lexer = Lexer::file(text, 0);
    let mut tokens = Vec::new();
    loop {
        tokens.push(match lexer.next() {
            Ok(Token::Directive { words, opens_block }) => {
                let words: Vec<_> = words.iter().map(|word| word.text()).collect();
                words.join("|") + if opens_block { "{" } else { ";" }
            }
            Ok(Token::BlockEnd) => "}".to_owned(),
            Ok(Token::End) => return tokens,
            Err(fault) => {
                lexer.recover();
                format!("error {}", fault.message)
            }
        });
    }
}

#[test]
fn words_are_cut_as_nginx_cuts_them() {
    // For each, nginx shows the first word in `unknown directive`.
    let cases: &[(&[u8], &[&str])] = &[
        (b"a\\tb c\\rd e\\nf;", &["a\tb|c\rd|e\nf;"]),
        (
            b"\"a\\\"b\" 'c\\'d' e\\\\f g\\xh;",
            &["a\"b|c'd|e\\f|g\\xh;"],
        ),
        (b"\"\" '';", &["|;"]),
        (b"$a{", &["$a{"]),
        (b"${a}b $${c}{", &["${a}b|$${c}{"]),
        (b"if ($a = \"b\") {", &["if|($a|=|b|){"]),
        (b"a 'b')c;", &["a|b|)c;"]),
        (b"a#b #c;\nd;", &["a#b|d;"]),
        (b"\xef\xbb\xbfuser a;", &["user|a;"]), // nginx takes the mark for a part of the name
        (b"a\r\n\tb\n;}", &["a|b;", "}"]),
        (b"a\0b c;", &["a\0b|c;"]),
    ];
    for (text, expected) in cases {
        assert_eq!(tokens(text), *expected);
    }
}

#[test]
fn reading_goes_on_behind_errors() {
    let cases: &[(&[u8], &[&str])] = &[
        (b"a \"b\"c d; e;", &["error unexpected \"c\"", "e;"]),
        (
            b"a { b \"c\"d; e; } f;",
            &["a{", "error unexpected \"d\"", "e;", "}", "f;"],
        ),
        (b"a { b } c;", &["a{", "error unexpected \"}\"", "}", "c;"]),
        (b"; a;", &["error unexpected \";\"", "a;"]),
        (b"{ a { b; } c; } d;", &["error unexpected \"{\"", "d;"]),
        (b"a \"b\"c { d; } e;", &["error unexpected \"c\"", "e;"]),
        (
            b"a \"b\"; c",
            &[
                "a|b;",
                "error unexpected end of file, expecting \";\" or \"}\"",
            ],
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(tokens(text), *expected);
    }
}

#[test]
fn positions_name_the_line_of_nginx_and_the_place_of_the_word() {
    let text = b"a\n  'b c'\n;";
    let Ok(Token::Directive { words, .. }) = Lexer::file(text, 0).next() else {
        panic!()
    };
    let places: Vec<_> = words
        .iter()
        .map(|w| (w.position.line, w.position.offset))
        .collect();
    assert_eq!(places, [(3, 0), (3, 4)]);
    assert_eq!(
        words.iter().map(|w| w.quoted).collect::<Vec<_>>(),
        [false, true]
    );
}

/// A small random number generator (xorshift), so that a failure can be reproduced.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

#[test]
fn random_bytes_never_panic_and_always_end() {
    const PIECES: &[&[u8]] = &[
        b"{",
        b"}",
        b";",
        b"\"",
        b"'",
        b"\\",
        b"$",
        b"#",
        b"\n",
        b" ",
        b"(",
        b")",
        b"\r",
        b"\t",
        b"http",
        b"server",
        b"location /",
        b"types",
        b"include",
        b"nginx.conf",
        b"set $a ",
        b"if",
        b"root",
        b"a",
        b"x;",
        b" {",
        b"}\n",
        b"\0",
        b"\xff",
        b"${",
        b"map a $b",
        b"on",
        b"*",
    ];
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for _ in 0..5_000 {
        let mut text = Vec::new();
        for _ in 0..random.below(60) {
            match random.below(8) {
                0 => text.push(random.below(256) as u8),
                _ => text.extend_from_slice(PIECES[random.below(PIECES.len())]),
            }
        }
        let loaded = load(&text);
        for diagnostic in &loaded.diagnostics {
            let rendered = diagnostic.render(&loaded.sources);
            assert!(rendered.starts_with(&diagnostic.to_string()));
        }
        // Anything with quotes and braces is either in the tree or reported.
        let lines: usize = loaded.tree.scopes().map(|scope| scope.lines().len()).sum();
        assert!(lines <= text.len());
    }
}

#[test]
fn deep_nesting_is_refused_without_harm() {
    let text = format!("http {{ server {{ {}", "location / { ".repeat(100_000));
    let found = messages(&load(text));
    assert_eq!(
        found.first().map(String::as_str),
        Some("blocks and includes are nested more than 200 deep in /conf/nginx.conf:1")
    );
    let text = "{".repeat(100_000);
    assert_eq!(
        messages(&load(text)),
        ["unexpected \"{\" in /conf/nginx.conf:1"]
    );
}
