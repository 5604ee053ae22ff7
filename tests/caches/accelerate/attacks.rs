//! What attackers try on a cache, by name.

use super::*;

/// Whether somebody else gets what an attacker has asked for: the attacker's request comes first,
/// and the other one is answered with what has nothing of it.
fn poisons(accelerator: &Accelerator, path: &str, attack: &str) -> Answer {
    ask_at(accelerator.port, attack.as_bytes());
    accelerator.get(path)
}

/// By fields that are no part of the key: the server behind makes links of them.
fn poisoning_by_unkeyed_fields(engine: &'static str) {
    with_server(
        engine,
        &[],
        |request, _| ok("Cache-Control: max-age=60\r\n", request.as_bytes()),
        |accelerator, _| {
            for (number, field) in [
                "X-Forwarded-Host",
                "X-Host",
                "X-Forwarded-Server",
                "X-Original-URL",
                "X-Rewrite-URL",
                "X-Forwarded-Prefix",
                "X-Original-Host",
                "Forwarded",
                "X-HTTP-Method-Override",
                "X-Forwarded-Scheme",
                "X-Forwarded-Port",
                "X-Forwarded-For",
                "X-Forwarded-Proto",
                "X-Real-IP",
                "Proxy",
                // By the connection, and in other letters.
                "x-forwarded-HOST",
                "Connection: X-Forwarded-Host\r\nX-Forwarded-Host",
            ]
            .into_iter()
            .enumerate()
            {
                let path = format!("/{number}");
                let attack = format!(
                    "GET {path} HTTP/1.1\r\nHost: a.test\r\n{field}: evil.test\r\nConnection: close\r\n\r\n"
                );
                let answer = poisons(accelerator, &path, &attack);
                assert_eq!(answer.status(), "200");
                assert!(
                    !answer.text().contains("evil"),
                    "{field}: {}",
                    answer.text()
                );
            }
        },
    );
}

support::test_on_each_engine!(poisoning_by_unkeyed_fields);

/// By a second host, or one that another part of the request line says.
fn poisoning_by_a_second_host(engine: &'static str) {
    with_server(
        engine,
        &[],
        |request, _| {
            let mut lines = request.lines();
            let hosts = lines
                .clone()
                .filter(|line| line.to_ascii_lowercase().starts_with("host:"));
            let hosts: Vec<&str> = hosts.collect();
            let line = lines.next().unwrap();
            ok(
                "Cache-Control: max-age=60\r\n",
                format!("{line} {hosts:?}").as_bytes(),
            )
        },
        |accelerator, origin| {
            for (number, (attack, is_refused)) in [
                (
                    "GET PATH HTTP/1.1\r\nHost: a.test\r\nHost: evil.test\r\n",
                    true,
                ),
                (
                    "GET PATH HTTP/1.1\r\nHost: evil.test\r\nHost: a.test\r\n",
                    true,
                ),
                ("GET PATH HTTP/1.1\r\nHost: evil.test, a.test\r\n", true),
                (
                    "GET PATH HTTP/1.1\r\nHost : evil.test\r\nHost: a.test\r\n",
                    true,
                ),
                (
                    "GET PATH HTTP/1.1\r\n Host: evil.test\r\nHost: a.test\r\n",
                    true,
                ),
                (
                    "GET http://evil.test/PATH HTTP/1.1\r\nHost: a.test\r\n",
                    false,
                ),
                ("GET PATH HTTP/1.1\r\nHost: a.test:99\r\n", false),
                ("GET PATH HTTP/1.1\r\nHost: a.test:\r\n", false),
                ("GET PATH HTTP/1.1\r\nHost: A.TEST.\r\n", false),
                ("GET PATH HTTP/1.1\r\nHost: a.test@evil.test\r\n", true),
                ("GET PATH HTTP/1.1\r\nHost: a.test/evil\r\n", true),
                ("GET PATH HTTP/1.0\r\n", false),
            ]
            .into_iter()
            .enumerate()
            {
                let path = format!("/{number}");
                let attack = attack.replace("/PATH", &path).replace("PATH", &path);
                let before = origin.requests();
                let first = ask_at(
                    accelerator.port,
                    format!("{attack}Connection: close\r\n\r\n").as_bytes(),
                );
                if is_refused {
                    assert_eq!(
                        (first.status(), origin.requests()),
                        ("400", before),
                        "{attack}"
                    );
                }
                let answer = accelerator.get(&path);
                let expected = format!("GET {path} HTTP/1.1 [\"Host: a.test\"]");
                assert_eq!(answer.text(), expected, "{attack}");
            }
            // One host in other letters is one.
            let before = origin.requests();
            for host in ["a.test", "A.test", "a.TEST"] {
                accelerator.ask(&format!(
                    "GET /same HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
                ));
            }
            assert_eq!(origin.requests(), before + 1);
            // What differs in the raw path is another answer: the server behind may tell them
            // apart.
            let before = origin.requests();
            let paths = [
                "/p/a", "/p/%61", "//p/a", "/p/./a", "/p/a?", "/p/a;x", "/p/a%00", "/P/a",
            ];
            for path in paths {
                let answer = accelerator.get(path);
                if answer.status() != "400" {
                    assert!(
                        answer.text().starts_with(&format!("GET {path} HTTP")),
                        "{path}"
                    );
                }
            }
            assert!(origin.requests() >= before + paths.len() - 1);
        },
    );
}

support::test_on_each_engine!(poisoning_by_a_second_host);

/// By a range: a part is no answer to who asks for the whole.
fn poisoning_by_ranges(engine: &'static str) {
    with_server(
        engine,
        &[],
        |request, _| {
            let lower = request.to_ascii_lowercase();
            // Even one who answers with a part to who has asked for none.
            if lower.contains("\r\nrange:") || lower.contains(" /always") {
                return b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-3/10\r\n\
                    Cache-Control: max-age=60\r\nContent-Length: 4\r\n\r\n0123"
                    .to_vec();
            }
            ok(
                "Cache-Control: max-age=60\r\nAccept-Ranges: bytes\r\n",
                b"0123456789",
            )
        },
        |accelerator, origin| {
            for (number, range) in [
                "bytes=0-3",
                "bytes=0-3,5-6",
                "bytes=-4",
                "bytes=9999999-",
                "items=0-3",
                "bytes=3-0",
            ]
            .into_iter()
            .enumerate()
            {
                for fields in ["", "If-Range: \"1\"\r\n", "Cookie: a=1\r\n"] {
                    let path = format!("/{number}/{}", fields.len());
                    accelerator.get_with(&path, &format!("Range: {range}\r\n{fields}"));
                    let answer = accelerator.get(&path);
                    assert_eq!(
                        (answer.status(), answer.text()),
                        ("200", "0123456789".to_owned()),
                        "{range}"
                    );
                }
            }
            let before = origin.requests();
            accelerator.get("/always");
            accelerator.get("/always");
            assert_eq!(
                origin.requests(),
                before + 2,
                "a part that nobody has asked for is not kept"
            );
        },
    );
}

support::test_on_each_engine!(poisoning_by_ranges);

/// By informational answers: what they say is no head of what follows, and they are kept by nobody.
fn poisoning_by_informational_answers(engine: &'static str) {
    with_server(
        engine,
        &[],
        |request, _| {
            let path = request.split(' ').nth(1).unwrap();
            let early = match path.chars().nth(1) {
                Some('1') => {
                    "HTTP/1.1 103 Early Hints\r\nCache-Control: max-age=60\r\nX-Evil: 1\r\n\r\n"
                }
                Some('2') => "HTTP/1.1 100 Continue\r\nCache-Control: public, max-age=60\r\n\r\n",
                _ => {
                    "HTTP/1.1 102 Processing\r\nSet-Cookie: a=b\r\n\r\nHTTP/1.1 103 Early Hints\r\nCache-Control: max-age=60\r\n\r\n"
                }
            };
            [
                early.as_bytes(),
                &ok("Cache-Control: no-store\r\n", b"final"),
            ]
            .concat()
        },
        |accelerator, origin| {
            for path in ["/1", "/2", "/3"] {
                let before = origin.requests();
                for _ in 0..2 {
                    let bytes = {
                        let mut stream =
                            TcpStream::connect(("127.0.0.1", accelerator.port)).unwrap();
                        stream.set_read_timeout(Some(PATIENCE)).unwrap();
                        let request = format!(
                            "GET {path} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"
                        );
                        stream.write_all(request.as_bytes()).unwrap();
                        let mut bytes = Vec::new();
                        stream.read_to_end(&mut bytes).unwrap();
                        String::from_utf8(bytes).unwrap()
                    };
                    let last = &bytes[bytes.rfind("HTTP/1.1 200").unwrap()..];
                    assert!(
                        last.ends_with("final")
                            && !last.contains("Evil")
                            && !last.contains("max-age"),
                        "{bytes}"
                    );
                }
                assert_eq!(origin.requests(), before + 2, "{path}");
            }
        },
    );
}

support::test_on_each_engine!(poisoning_by_informational_answers);

/// By errors: a request that the server behind refuses has others refused only where that says so.
fn poisoning_by_error_answers(engine: &'static str) {
    with_server(
        engine,
        &[],
        |request, _| {
            let lower = request.to_ascii_lowercase();
            let is_bad = lower.contains("x-evil") || lower.contains("x-http-method-override");
            if is_bad {
                b"HTTP/1.1 400 Bad Request\r\nETag: \"1\"\r\nContent-Length: 3\r\n\r\nbad".to_vec()
            } else {
                ok("Cache-Control: max-age=60\r\n", b"good")
            }
        },
        |accelerator, _| {
            // An oversized or odd field, by which CPDoS works (https://cpdos.org).
            let long = format!("X-Evil: {}\r\n", "x".repeat(6000));
            for (number, field) in [
                &*long,
                "X-Evil: \x07\r\n",
                "X-Evil: 1\r\n",
                "X-HTTP-Method-Override: DELETE\r\n",
            ]
            .into_iter()
            .enumerate()
            {
                let path = format!("/{number}");
                accelerator.get_with(&path, field);
                let answer = accelerator.get(&path);
                assert_eq!(
                    (answer.status(), answer.text()),
                    ("200", "good".to_owned()),
                    "{number}"
                );
            }
        },
    );
}

support::test_on_each_engine!(poisoning_by_error_answers);

/// Cache deception: a name that looks like that of a file has nothing kept that is not said to be.
fn cache_deception(engine: &'static str) {
    with_server(
        engine,
        &[],
        |request, _| {
            let shown = request
                .lines()
                .find(|line| line.to_ascii_lowercase().starts_with("cookie:"));
            // A page that an application makes, whatever is behind its name.
            ok(
                "Content-Type: text/html\r\n",
                shown.unwrap_or("nobody").as_bytes(),
            )
        },
        |accelerator, origin| {
            for path in [
                "/account.php/x.css",
                "/account.php%2fx.css",
                "/account.php;x.css",
                "/account.php%00x.css",
                "/account.php%0Ax.css",
                "/account.php?x.css",
                "/account.php%23x.css",
                "/static/..%2faccount.php/x.js",
                "/account.php/x.avif",
                "/favicon.ico",
                "/robots.txt",
            ] {
                let victim = accelerator.get_with(path, "Cookie: session=victim\r\n");
                let before = origin.requests();
                let attacker = accelerator.get(path);
                if victim.status() == "200" {
                    assert!(victim.text().contains("victim"), "{path}");
                    assert_eq!(origin.requests(), before + 1, "{path}");
                }
                assert!(!attacker.text().contains("victim"), "{path}");
            }
        },
    );
}

support::test_on_each_engine!(cache_deception);

/// Response splitting: what comes behind an answer, or in a line of its head, is no other answer.
fn response_splitting_into_an_entry(engine: &'static str) {
    with_server(
        engine,
        &[],
        |request, _| {
            let path = request.split(' ').nth(1).unwrap();
            let evil =
                "HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nContent-Length: 4\r\n\r\nevil";
            let answer = match path {
                // More than it has said, by length or behind the last chunk.
                "/longer" => format!(
                    "HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Length: 4\r\n\r\ngood{evil}"
                ),
                "/chunked" => format!(
                    "HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n{evil}"
                ),
                "/empty" => format!("HTTP/1.1 204 No Content\r\n\r\n{evil}"),
                "/unchanged" => format!("HTTP/1.1 304 Not Modified\r\n\r\n{evil}"),
                // Two lengths, and both ways to frame.
                "/lengths" => format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 0\r\n\r\n{evil}"
                ),
                "/both" => format!(
                    "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n{evil}"
                ),
                // A value that an application has not cleaned: here a redirect, split.
                "/split" => {
                    format!("HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n{evil}")
                }
                _ => return ok("Cache-Control: max-age=60\r\n", b"fine"),
            };
            answer.into_bytes()
        },
        |accelerator, _| {
            for (number, path) in [
                "/longer",
                "/chunked",
                "/empty",
                "/unchanged",
                "/lengths",
                "/both",
                "/split",
            ]
            .into_iter()
            .enumerate()
            {
                // One connection, so that the next request could get what was left.
                let mut stream = TcpStream::connect(("127.0.0.1", accelerator.port)).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let victim = format!("/victim/{number}");
                let request = |path: &str, last: &str| {
                    format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n{last}\r\n")
                };
                stream.write_all(request(path, "").as_bytes()).unwrap();
                stream
                    .write_all(request(&victim, "Connection: close\r\n").as_bytes())
                    .unwrap();
                let mut bytes = Vec::new();
                let _ = stream.read_to_end(&mut bytes);
                assert!(!String::from_utf8_lossy(&bytes).contains("evil"), "{path}");
                for path in [path, &victim] {
                    for _ in 0..2 {
                        let answer = accelerator.get(path);
                        assert!(!answer.text().contains("evil"), "{path}");
                    }
                }
                assert_eq!(accelerator.get(&victim).text(), "fine", "{path}");
            }
        },
    );
}

support::test_on_each_engine!(response_splitting_into_an_entry);
