//! What attackers try on a cache by HTTP/2, in front of a server that speaks HTTP/1.1: what the one
//! lets through in a field must not be a line, a host or a body of the other.

use support::http2::{Client, Response};

use super::*;

/// What becomes of a request with these fields, on a connection of its own; nothing where that
/// ends without an answer.
fn attack(port: u16, fields: &[(&str, &str)], body: Option<&[u8]>) -> Option<Response> {
    let mut client = Client::connect(port);
    let (stream, frames) = client.frames_of(fields, body);
    client.send(&frames);
    loop {
        if let Some(response) = client.responses.get(&stream)
            && (response.ended || response.reset.is_some())
        {
            return Some(response.clone());
        }
        client.read_frame()?;
    }
}

/// The usual fields of a request to `a.test`, with these behind them.
fn fields<'a>(path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut fields = vec![
        (":method", "GET"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "a.test"),
    ];
    fields.extend_from_slice(more);
    fields
}

/// The same without `:authority`.
fn without_authority(path: &str) -> Vec<(&str, &str)> {
    let mut fields = fields(path, &[]);
    fields.retain(|(name, _)| *name != ":authority");
    fields
}

/// What the others get, by both protocols.
fn given(accelerator: &Accelerator, path: &str) -> [String; 2] {
    let by_http2 = attack(accelerator.port, &fields(path, &[]), None).unwrap();
    assert_eq!(by_http2.status, 200, "{path}");
    let by_http1 = accelerator.get(path);
    assert_eq!(by_http1.status(), "200", "{path}");
    [by_http2.text(), by_http1.text()]
}

/// Says what it was asked.
fn echo(request: &str, _: usize) -> Vec<u8> {
    ok("Cache-Control: max-age=60\r\n", request.as_bytes())
}

fn poisoning_by_unkeyed_fields_over_http2(engine: &'static str) {
    with_server(engine, &[], echo, |accelerator, _| {
        for (number, name) in [
            "x-forwarded-host",
            "x-host",
            "x-forwarded-server",
            "x-original-url",
            "x-rewrite-url",
            "x-forwarded-prefix",
            "forwarded",
            "x-http-method-override",
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-real-ip",
            "proxy",
        ]
        .into_iter()
        .enumerate()
        {
            let path = format!("/{number}");
            attack(
                accelerator.port,
                &fields(&path, &[(name, "evil.test")]),
                None,
            );
            for text in given(accelerator, &path) {
                assert!(!text.contains("evil"), "{name}: {text}");
            }
        }
    });
}

support::test_on_each_engine!(poisoning_by_unkeyed_fields_over_http2);

/// By a second host: RFC 9113, section 8.3.1, has Host say what `:authority` says.
fn poisoning_by_a_second_host_over_http2(engine: &'static str) {
    with_server(engine, &[], echo, |accelerator, _| {
        let mut number = 0;
        let mut tried = |make: &dyn Fn(&str) -> Vec<(String, String)>| {
            number += 1;
            let path = format!("/{number}");
            let owned = make(&path);
            let fields: Vec<(&str, &str)> = owned
                .iter()
                .map(|(name, value)| (&**name, &**value))
                .collect();
            attack(accelerator.port, &fields, None);
            for text in given(accelerator, &path) {
                assert!(!text.contains("evil"), "{fields:?}: {text}");
            }
        };
        let owned = |fields: Vec<(&str, &str)>| -> Vec<(String, String)> {
            let pairs = fields.into_iter();
            let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
            pairs.collect()
        };
        tried(&|path| owned(fields(path, &[("host", "evil.test")])));
        tried(&|path| owned(fields(path, &[("host", "a.test"), ("host", "evil.test")])));
        tried(&|path| owned(fields(path, &[(":authority", "evil.test")])));
        tried(&|path| owned(fields(path, &[(":path", "/evil")])));
        tried(&|path| {
            let mut fields = without_authority(path);
            fields.extend([("host", "evil.test"), ("host", "a.test")]);
            owned(fields)
        });
        tried(&|path| {
            let mut fields = without_authority(path);
            fields.push((":authority", "a.test@evil.test"));
            owned(fields)
        });
        tried(&|path| {
            let mut fields = without_authority(path);
            fields.push((":authority", "a.test\r\nX-Evil: evil.test"));
            owned(fields)
        });
        tried(&|path| {
            let mut all = owned(fields("/", &[]));
            all[2].1 = format!("http://evil.test{path}");
            all
        });
    });
}

support::test_on_each_engine!(poisoning_by_a_second_host_over_http2);

/// By a field that is a line, a body or another request of HTTP/1.1: what is made of it is no
/// request of its own, and no one else's answer.
fn request_splitting_from_http2(engine: &'static str) {
    with_server(engine, &[], echo, |accelerator, origin| {
        let second = "x\r\n\r\nGET /evil HTTP/1.1\r\nHost: a.test\r\nX-Evil: evil\r\n\r\n";
        let line = "x\r\nX-Evil: evil";
        let bare = "x\nX-Evil: evil";
        for (number, (name, value)) in [
            ("x-a", second),
            ("x-a", line),
            ("x-a", bare),
            ("x-a", "x\0evil"),
            ("x-a\r\nx-evil", "evil"),
            ("x-evil: evil\r\nx-a", "1"),
            ("X-Evil", "evil"),
            ("x evil", "evil"),
            ("", "evil"),
            ("connection", "x-evil"),
            ("transfer-encoding", "chunked"),
            ("cookie", second),
            ("user-agent", line),
            ("content-length", "40"),
            ("content-length", "0, 40"),
        ]
        .into_iter()
        .enumerate()
        {
            let path = format!("/{number}");
            let body: Option<&[u8]> = (name != "x-a").then_some(b"GET /evil HTTP/1.1\r\n\r\n");
            attack(
                accelerator.port,
                &fields(&path, &[(name, value)]),
                body.filter(|_| name.starts_with(['c', 't'])),
            );
            for text in given(accelerator, &path) {
                assert!(!text.contains("evil"), "{name:?} {value:?}: {text}");
            }
        }
        for path in [
            "/p HTTP/1.1\r\nX-Evil: evil\r\n\r\nGET /evil",
            "/p\r\nX-Evil: evil",
            "/p evil",
            "/p\tevil",
            "/p\0evil",
            "evil",
            "*",
        ] {
            let answer = attack(accelerator.port, &fields(path, &[]), None);
            let is_refused = answer.is_none_or(|answer| answer.status != 200);
            assert!(is_refused, "{path:?}");
        }
        let mut method = fields("/p", &[]);
        method[0].1 = "GET /evil HTTP/1.1\r\nHost: a.test\r\n\r\nGET";
        let answer = attack(accelerator.port, &method, None);
        assert!(answer.is_none_or(|answer| answer.status != 200));
        for request in origin.seen() {
            let line = request.lines().next().unwrap_or_default();
            assert!(!line.contains("evil"), "{request}");
            let is_split = request.to_ascii_lowercase().contains("\nx-evil:");
            assert!(!is_split, "{request}");
        }
    });
}

support::test_on_each_engine!(request_splitting_from_http2);

/// By a range, a head alone, and an error: none is the answer of who asks for the whole.
fn poisoning_by_other_answers_over_http2(engine: &'static str) {
    let answer = |request: &str, _: usize| {
        let lower = request.to_ascii_lowercase();
        if lower.contains("x-evil") {
            return b"HTTP/1.1 400 Bad Request\r\nETag: \"1\"\r\nContent-Length: 3\r\n\r\nbad"
                .to_vec();
        }
        if lower.contains("\r\nrange:") {
            return b"HTTP/1.1 206 Partial Content\r\nCache-Control: max-age=60\r\n\
                Content-Range: bytes 0-0/4\r\nContent-Length: 1\r\n\r\ng"
                .to_vec();
        }
        let whole = ok("Cache-Control: max-age=60\r\n", b"good");
        if request.starts_with("HEAD ") {
            whole[..whole.len() - 4].to_vec()
        } else {
            whole
        }
    };
    with_server(engine, &[], answer, |accelerator, _| {
        let long = "x".repeat(6000);
        for (number, more) in [
            ("range", "bytes=0-0"),
            ("range", "bytes=0-0,2-2"),
            ("x-evil", "1"),
            ("x-evil", &long),
        ]
        .into_iter()
        .enumerate()
        {
            let path = format!("/{number}");
            attack(accelerator.port, &fields(&path, &[more]), None);
            assert_eq!(given(accelerator, &path), ["good", "good"], "{}", more.0);
        }
        let mut head = fields("/head", &[]);
        head[0].1 = "HEAD";
        let answer = attack(accelerator.port, &head, None).unwrap();
        assert_eq!((answer.status, answer.body.len()), (200, 0));
        assert_eq!(given(accelerator, "/head"), ["good", "good"]);
    });
}

support::test_on_each_engine!(poisoning_by_other_answers_over_http2);

/// Cache deception, where the cookie comes in several fields as HTTP/2 has it.
fn cache_deception_over_http2(engine: &'static str) {
    let answer = |request: &str, _: usize| {
        let is_victim = request.contains("session=victim");
        let name = if is_victim { "victim" } else { "nobody" };
        ok("ETag: \"1\"\r\nContent-Type: text/css\r\n", name.as_bytes())
    };
    with_server(engine, &[], answer, |accelerator, _| {
        for path in [
            "/account.php/x.css",
            "/account.php%2fx.css",
            "/account.php;x.css",
            "/favicon.ico",
        ] {
            let cookies = [("cookie", "theme=dark"), ("cookie", "session=victim")];
            let victim = attack(accelerator.port, &fields(path, &cookies), None).unwrap();
            assert_eq!(victim.text(), "victim", "{path}");
            assert_eq!(given(accelerator, path), ["nobody", "nobody"], "{path}");
        }
    });
}

support::test_on_each_engine!(cache_deception_over_http2);
