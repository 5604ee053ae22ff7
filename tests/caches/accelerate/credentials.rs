//! What one client may have is never another's.

use super::*;
use support::http2;

/// A server behind that answers with what it knows of who asks: cookies and `Authorization`. What
/// it says of keeping that stands in the path.
fn personal(request: &str, number: usize) -> Vec<u8> {
    let path = request.split(' ').nth(1).unwrap();
    let said = match path.split('/').nth(1).unwrap() {
        "silent" => "ETag: \"1\"\r\n",
        "public" => "Cache-Control: public, max-age=60\r\n",
        "shared" => "Cache-Control: s-maxage=60\r\n",
        "revalidated" => "Cache-Control: max-age=60, must-revalidate\r\n",
        "private" => "Cache-Control: private, max-age=60\r\n",
        _ => "Cache-Control: max-age=60\r\n",
    };
    ok(said, format!("{number} {}", who(request)).as_bytes())
}

/// The fields of a request that show who asks.
fn who(request: &str) -> String {
    let lines = request.lines();
    let shown = lines.filter(|line| {
        let lower = line.to_ascii_lowercase();
        lower.starts_with("cookie: ") || lower.starts_with("authorization: ")
    });
    shown.collect::<Vec<_>>().join(";")
}

fn only_what_says_so_is_shared_with_and_by_who_shows_credentials(engine: &'static str) {
    with_server(
        engine,
        &["--ignore-cookie", "_ga*"],
        personal,
        |accelerator, origin| {
            let cookie = "Cookie: session=1\r\n";
            let authorization = "Authorization: Basic YTpi\r\n";
            let both = &*format!("{cookie}{authorization}");
            for (path, fields, is_shared) in [
                ("/explicit", cookie, false),
                ("/silent", cookie, false),
                ("/private", cookie, false),
                ("/revalidated", cookie, false),
                ("/public", cookie, true),
                ("/shared", cookie, true),
                ("/explicit", authorization, false),
                ("/silent", authorization, false),
                ("/revalidated", authorization, true),
                ("/public", authorization, true),
                ("/shared", authorization, true),
                ("/revalidated", both, false),
                ("/public", both, true),
                ("/explicit", "Cookie: _ga=1; _ga_X=2\r\n", true),
                ("/explicit", "Cookie: _ga=1\r\nCookie: session=1\r\n", false),
                ("/explicit", "Cookie: _ga=1; session=1\r\n", false),
            ] {
                let kind = format!("{path}/{}", origin.requests());
                let asked = |fields: &str, path: &str| {
                    let before = origin.requests();
                    let answer = accelerator.get_with(path, fields);
                    assert_eq!(answer.status(), "200");
                    (origin.requests() > before, answer.text())
                };
                // Their answer goes to nobody else, ...
                let (_, theirs) = asked(fields, &format!("{kind}/1"));
                let (is_asked, others) = asked("", &format!("{kind}/1"));
                assert_eq!(
                    is_asked,
                    !is_shared || path == "/private",
                    "{path} {fields}"
                );
                if !is_shared {
                    assert!(
                        !others.contains("session") && !others.contains("Basic"),
                        "{others}"
                    );
                    assert_ne!(theirs, others);
                }
                // ... and what others have got is none of theirs.
                asked("", &format!("{kind}/2"));
                let (is_asked, theirs) = asked(fields, &format!("{kind}/2"));
                assert_eq!(is_asked, !is_shared, "{path} {fields}");
                if !is_shared {
                    let expected = who(&format!("\r\n{fields}"));
                    assert!(theirs.ends_with(&expected), "{theirs}");
                }
            }
        },
    );
}

support::test_on_each_engine!(only_what_says_so_is_shared_with_and_by_who_shows_credentials);

/// With its own, a request gets a 304 and a part of an answer that is not kept, as without a cache.
fn conditions_and_ranges_of_who_shows_credentials_reach_the_server_behind(engine: &'static str) {
    with_server(engine, &[], personal, |accelerator, origin| {
        accelerator.get_with(
            "/explicit",
            "Cookie: a=1\r\nIf-None-Match: \"7\"\r\nRange: bytes=0-1\r\n",
        );
        let told = origin.last().to_ascii_lowercase();
        assert!(told.contains("\r\nif-none-match: \"7\"\r\n"), "{told}");
        assert!(told.contains("\r\nrange: bytes=0-1\r\n"), "{told}");
        for (fields, method) in [("Cookie: a=1\r\n", "HEAD"), ("", "GET")] {
            accelerator.ask(&format!(
                "HEAD /explicit/head HTTP/1.1\r\nHost: a.test\r\n{fields}Connection: close\r\n\r\n"
            ));
            let told = origin.last();
            assert!(
                told.starts_with(&format!("{method} /explicit/head ")),
                "{told}"
            );
        }
    });
}

support::test_on_each_engine!(
    conditions_and_ranges_of_who_shows_credentials_reach_the_server_behind
);

/// A step of a pseudo-random sequence.
fn next(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// How many exchanges each engine has: TIDEGATE_EXCHANGES of them, by HTTP/1 and HTTP/2.
fn exchanges() -> usize {
    let asked = std::env::var("TIDEGATE_EXCHANGES").ok();
    asked.map_or(4_000, |text| text.parse().unwrap())
}

/// Random users ask random paths in random order over both protocols, with each way of answering;
/// whatever shows one user goes to nobody else.
fn a_cookie_of_one_is_never_in_the_answer_of_another(engine: &'static str) {
    const KINDS: [&str; 6] = [
        "silent",
        "public-none",
        "explicit",
        "private",
        "revalidated",
        "cookie",
    ];
    let answer = |request: &str, _: usize| {
        let kind = request.split('/').nth(1).unwrap_or("");
        let said = match kind {
            "silent" => "ETag: \"1\"\r\n",
            "private" => "Cache-Control: private, max-age=60\r\n",
            "revalidated" => "Cache-Control: max-age=60, must-revalidate\r\n",
            "cookie" => "Cache-Control: public, max-age=60\r\nSet-Cookie: session=stolen\r\n",
            _ => "Cache-Control: max-age=60\r\n",
        };
        ok(said, format!("<{}>", who(request)).as_bytes())
    };
    with_server(engine, &[], answer, |accelerator, _| {
        let count = exchanges() / 4;
        thread::scope(|scope| {
            for client in 0..4_u64 {
                scope.spawn(move || {
                    let mut state = 0x5eed ^ (client << 20);
                    let mut h2 = None;
                    let mut h1 = None;
                    for number in 0..count {
                        // A connection has a thousand requests (`keepalive_requests`).
                        if number % 500 == 0 {
                            (h1, h2) = (None, None);
                        }
                        let kind = KINDS[next(&mut state) as usize % KINDS.len()];
                        let path = format!("/{kind}/{}.css", next(&mut state) % 4);
                        let user = next(&mut state) % 5;
                        let name = format!("session={client}-{user}");
                        let basic = format!("Basic {client}-{user}");
                        let how = next(&mut state) % 4;
                        let is_h2 = client % 2 == 1;
                        let body = if is_h2 {
                            let h2 =
                                h2.get_or_insert_with(|| http2::Client::connect(accelerator.port));
                            let mut fields = Vec::new();
                            if how & 1 != 0 {
                                fields.push(("cookie", &*name));
                            }
                            if how & 2 != 0 {
                                fields.push(("authorization", &*basic));
                            }
                            let stream = h2.request(&path, &fields);
                            let response = h2.response(stream);
                            assert_eq!(response.status, 200);
                            h2.responses.clear();
                            response.text()
                        } else {
                            let h1 = h1.get_or_insert_with(|| {
                                support::Connection::open(accelerator.port).unwrap()
                            });
                            let mut fields = String::new();
                            if how & 1 != 0 {
                                fields += &format!("Cookie: {name}\r\n");
                            }
                            if how & 2 != 0 {
                                fields += &format!("Authorization: {basic}\r\n");
                            }
                            h1.send(&path, &fields).unwrap();
                            let response = h1.receive(Duration::ZERO).unwrap();
                            assert_eq!(response.status, 200);
                            String::from_utf8(response.body).unwrap()
                        };
                        let lower = body.to_ascii_lowercase();
                        // Who shows nothing gets nothing of anybody; who does, at most their own.
                        let is_revalidated = kind == "revalidated" && how == 2;
                        let shown = |what: &str, own: &str, has: bool| {
                            for found in lower.split(what).skip(1) {
                                let end = found.find(|letter: char| ";>".contains(letter)).unwrap();
                                let found = format!("{what}{}", &found[..end]);
                                assert!(
                                    has && found == own.to_ascii_lowercase(),
                                    "{number} {path} {how}: {body}"
                                );
                            }
                        };
                        shown("session=", &name, how & 1 != 0);
                        // RFC 9111, section 3.5: `must-revalidate` lets an answer to Authorization
                        // be shared.
                        if kind != "revalidated" && !is_revalidated {
                            shown("basic ", &basic, how & 2 != 0);
                        }
                    }
                });
            }
        });
    });
}

support::test_on_each_engine!(a_cookie_of_one_is_never_in_the_answer_of_another);
