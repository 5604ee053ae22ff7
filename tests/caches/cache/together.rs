//! The cache together with what else happens to requests and answers. Every body is compared by
//! its checksum.

use support::http2;

use super::*;

/// Asks for a path until it comes from the cache; each answer has this body.
fn fill(server: &Server, path: &str, body: &[u8]) {
    let started = Instant::now();
    loop {
        let answer = get(server, path);
        assert_eq!(checksum(&answer.body), checksum(body), "{path}");
        if answer.cache() == "HIT" {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{path}: {}", answer.head);
    }
}

/// The path that is asked for.
fn path_of(head: &str) -> &str {
    head.split(' ').nth(1).unwrap()
}

const LENGTH: usize = 200_000;

/// A subrequest that lets requests through is answered from the cache, by its key: the upstream is
/// asked once for each cookie.
fn what_auth_request_asks_for_is_cached(engine: &'static str) {
    with_server(
        engine,
        "location / { auth_request /auth; proxy_pass http://UP; proxy_cache one;
             proxy_cache_valid 1h; }
         location = /auth { internal; proxy_pass http://UP/auth; proxy_cache one;
             proxy_cache_key auth$cookie_user; proxy_cache_valid 200 401 403 1h;
             proxy_pass_request_body off; proxy_set_header Content-Length ''; }",
        |head, _| match path_of(head) {
            "/auth" if head.contains("Cookie: user=good") => ok("", b"a body that no one sees"),
            "/auth" => b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno".to_vec(),
            _ => ok("", &pattern(LENGTH)),
        },
        |server, upstream| {
            for round in 0..3 {
                let answer = get_with(server, "/a", "Cookie: user=good\r\n");
                assert_eq!(answer.status(), "200");
                assert_eq!(checksum(&answer.body), checksum(&pattern(LENGTH)));
                let answer = get_with(server, "/a", "Cookie: user=bad\r\n");
                assert_eq!(answer.status(), "403", "{round}");
                until(|| upstream.requests() >= 3);
            }
            assert_eq!(upstream.requests(), 3, "two cookies and the page");
        },
    );
}

support::test_on_each_engine!(what_auth_request_asks_for_is_cached);

/// A client that wants the head alone has the body stored all the same, at its upstream's pace.
fn a_head_stores_what_a_get_gets(engine: &'static str) {
    with_server(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h; }",
        |head, _| {
            assert!(head.starts_with("GET "), "{head}");
            ok("X-A: b\r\n", &pattern(LENGTH))
        },
        |server, upstream| {
            let request = "HEAD /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
            let answer = ask(server, request);
            let length = LENGTH.to_string();
            assert_eq!(answer.field("Content-Length"), Some(length.as_str()));
            assert_eq!((answer.cache(), answer.body.len()), ("MISS", 0));
            wait_for_entries(&server.prefix.join("cache"), 1);
            fill(server, "/a", &pattern(LENGTH));
            let answer = ask(server, request);
            assert_eq!((answer.cache(), answer.body.len()), ("HIT", 0));
            assert_eq!(answer.field("Content-Length"), Some(length.as_str()));
            assert_eq!(upstream.requests(), 1);
        },
    );
}

support::test_on_each_engine!(a_head_stores_what_a_get_gets);

/// Pages are put together of parts, each from the cache, and the page is, too.
fn parts_of_pages_are_cached(engine: &'static str) {
    const PAGE: &str = "begin <!--#include virtual=\"/part/1\" -->\
        <!--#include virtual=\"/part/2\" --><!--#include virtual=\"/part/1\" --> end";
    with_server(
        engine,
        "location / { ssi on; ssi_types *; proxy_pass http://UP; proxy_cache one;
             proxy_cache_key $uri; proxy_cache_valid 1h; }
         location /part { proxy_pass http://UP; proxy_cache one; proxy_cache_key $uri;
             proxy_cache_valid 1h; }",
        |head, _| match path_of(head) {
            "/part/1" => ok("", &pattern(70_000)),
            "/part/2" => ok("", &pattern(300)),
            _ => ok("Content-Type: text/html\r\n", PAGE.as_bytes()),
        },
        |server, upstream| {
            let parts: [&[u8]; 5] = [
                b"begin ",
                &pattern(70_000),
                &pattern(300),
                &pattern(70_000),
                b" end",
            ];
            fill(server, "/page", &parts.concat());
            let before = upstream.requests();
            for _ in 0..3 {
                fill(server, "/page", &parts.concat());
            }
            assert_eq!(upstream.requests(), before);
            assert!(before <= 4, "{before}");
        },
    );
}

support::test_on_each_engine!(parts_of_pages_are_cached);

/// Copies of requests reach their upstream though the answer comes from the cache.
fn a_mirror_sees_hits_as_well(engine: &'static str) {
    with_server(engine,
        "location / { mirror /mirror; proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h; }
         location /mirror { internal; proxy_pass http://UP/copy$request_uri; }",
        |_, _| ok("", &pattern(LENGTH)),
        |server, upstream| {
            fill(server, "/a", &pattern(LENGTH));
            let of = |path: &str| {
                let seen = upstream.seen.lock().unwrap();
                seen.iter().filter(|head| path_of(head) == path).count()
            };
            let copies = of("/copy/a");
            for _ in 0..3 {
                assert_eq!(get(server, "/a").cache(), "HIT");
            }
            until(|| of("/copy/a") == copies + 3);
            assert_eq!(of("/a"), 1);
        },
    );
}

support::test_on_each_engine!(a_mirror_sees_hits_as_well);

/// Slices are fetched in a named location, and each range is put together of what is cached.
fn slices_of_a_named_location_are_cached(engine: &'static str) {
    const WHOLE: usize = 100_000;
    with_server(
        engine,
        "slice 16k;
         location / { try_files /none @fetch; }
         location @fetch { proxy_pass http://UP; proxy_set_header Range $slice_range;
             proxy_cache one; proxy_cache_key $uri$slice_range; proxy_cache_valid 200 206 1h; }",
        |head, _| {
            let (first, last) = asked_range(head);
            let end = WHOLE.min(last + 1);
            let head = format!(
                "HTTP/1.1 206 Partial Content\r\nETag: \"one\"\r\n\
                 Content-Range: bytes {first}-{}/{WHOLE}\r\nContent-Length: {}\r\n\r\n",
                end - 1,
                end - first
            );
            [head.as_bytes(), &pattern(WHOLE)[first..end]].concat()
        },
        |server, upstream| {
            let whole = pattern(WHOLE);
            fill(server, "/a", &whole);
            assert_eq!(upstream.requests(), WHOLE.div_ceil(16 * 1024));
            for (first, last) in [(0, 0), (5, 40_000), (99_990, 99_999), (16_384, 16_384)] {
                let answer = get_with(server, "/a", &format!("Range: bytes={first}-{last}\r\n"));
                assert_eq!(answer.status(), "206");
                let expected = checksum(&whole[first..=last]);
                assert_eq!(checksum(&answer.body), expected, "{first}-{last}");
            }
            assert_eq!(upstream.requests(), WHOLE.div_ceil(16 * 1024));
        },
    );
}

support::test_on_each_engine!(slices_of_a_named_location_are_cached);

/// An error of the upstream that a page stands in for is known to the cache, and the page is given.
fn errors_that_pages_stand_in_for(engine: &'static str) {
    with_server(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 404 1h;
             proxy_intercept_errors on; error_page 404 /page; }
         location /direct { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 404 1h;
             error_page 404 /page; }
         location = /page { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 200 1h; }",
        |head, _| match path_of(head) {
            "/page" => ok("", &pattern(LENGTH)),
            _ => b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone".to_vec(),
        },
        |server, upstream| {
            for round in 0..3 {
                let answer = get(server, "/a");
                assert_eq!(answer.status(), "404", "{round}");
                assert_eq!(checksum(&answer.body), checksum(&pattern(LENGTH)));
                until(|| upstream.requests() == 2);
            }
            for _ in 0..3 {
                let answer = get(server, "/direct");
                assert_eq!((answer.status(), &answer.body[..]), ("404", &b"gone"[..]));
                until(|| upstream.requests() == 3);
            }
        },
    );
}

support::test_on_each_engine!(errors_that_pages_stand_in_for);

/// An answer that leads elsewhere is not kept, as with nginx, and what it leads to may be.
fn an_internal_redirect_is_not_kept(engine: &'static str) {
    with_server(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h; }
         location /private { internal; proxy_pass http://UP; proxy_cache one;
             proxy_cache_valid 1h; }",
        |head, _| match path_of(head) {
            "/private/a" => ok("", &pattern(LENGTH)),
            _ => ok("X-Accel-Redirect: /private/a\r\n", b"not this"),
        },
        |server, upstream| {
            let of = |path: &str| {
                let seen = upstream.seen.lock().unwrap();
                seen.iter().filter(|head| path_of(head) == path).count()
            };
            for round in 1..=3 {
                let answer = get(server, "/a");
                assert_eq!(checksum(&answer.body), checksum(&pattern(LENGTH)));
                assert_eq!((of("/a"), of("/private/a")), (round, 1));
            }
        },
    );
}

support::test_on_each_engine!(an_internal_redirect_is_not_kept);

/// How long a request takes.
fn timed(ask: impl FnOnce() -> Answer) -> (Answer, Duration) {
    let started = Instant::now();
    let answer = ask();
    (answer, started.elapsed())
}

/// What an answer says of its own pace holds for hits of it, and so do lines.
fn hits_have_the_pace_that_is_asked_for(engine: &'static str) {
    with_server(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h; }
         location /line { limit_rate 100k; proxy_pass http://UP; proxy_cache one;
             proxy_cache_valid 1h; }",
        |head, _| match path_of(head) {
            "/slow" => ok("X-Accel-Limit-Rate: 100000\r\n", &pattern(150_000)),
            _ => ok("", &pattern(150_000)),
        },
        |server, upstream| {
            for (path, is_slow) in [("/quick", false), ("/slow", true), ("/line", true)] {
                for cache in ["MISS", "HIT"] {
                    let (answer, took) = timed(|| get(server, path));
                    assert_eq!(answer.cache(), cache, "{path}");
                    assert_eq!(checksum(&answer.body), checksum(&pattern(150_000)));
                    // The first second's share goes at once.
                    let is_quick = |took| took <= Duration::from_millis(400);
                    assert!(!is_slow || !is_quick(took), "{path} {took:?}");
                    if !is_slow {
                        // Not the first time where the machine is busy.
                        until(|| is_quick(timed(|| get(server, path)).1));
                    }
                }
            }
            assert_eq!(upstream.requests(), 3);
        },
    );
}

support::test_on_each_engine!(hits_have_the_pace_that_is_asked_for);

/// `error_page` and `if` have scopes of their own: what holds in them counts.
fn scopes_within_a_location_have_their_own_cache(engine: &'static str) {
    with_server(
        engine,
        "proxy_cache_valid any 1h; proxy_cache_key $uri$arg_n;
         location / { proxy_cache one; proxy_pass http://UP;
             if ($arg_no) { proxy_pass http://UP; set $skip 1; }
             proxy_no_cache $skip; proxy_cache_bypass $skip; }
         location /refused { return 403; error_page 403 = @other; }
         location @other { proxy_cache one; proxy_pass http://UP; }",
        |_, _| ok("", &pattern(LENGTH)),
        |server, upstream| {
            let caches = |path: &str| {
                let answers = [get(server, path), get(server, path)];
                for answer in &answers {
                    assert_eq!(checksum(&answer.body), checksum(&pattern(LENGTH)), "{path}");
                }
                answers.map(|answer| answer.cache().to_owned())
            };
            assert_eq!(caches("/a"), ["MISS", "HIT"]);
            assert_eq!(caches("/a?no=1"), ["BYPASS", "BYPASS"]);
            assert_eq!(caches("/a"), ["HIT", "HIT"]);
            assert_eq!(caches("/refused"), ["MISS", "HIT"]);
            assert_eq!(upstream.requests(), 4);
        },
    );
}

support::test_on_each_engine!(scopes_within_a_location_have_their_own_cache);

/// Answers of an upstream that is asked by HTTP/2 are kept. A client that does not read holds up
/// neither the fill nor other requests on the upstream's connection.
fn answers_by_http2_are_kept_and_hold_nothing_up(engine: &'static str) {
    if is_nginx() {
        return;
    }
    const LARGE: usize = 20_000_000;
    let upstream = Upstream::start(|head, _| match path_of(head) {
        "/large" => ok("", &pattern(LARGE)),
        _ => ok("", &pattern(LENGTH)),
    });
    let port = support::port::free_port();
    let lines = format!(
        "add_header X-Cache $upstream_cache_status always;
         location / {{ proxy_pass http://127.0.0.1:{port}; proxy_http_version 2;
             proxy_cache one; proxy_cache_valid 1h; proxy_cache_key $uri; }}
         [http]
         proxy_cache_path cache levels=1:2 keys_zone=one:1m;
         server {{ listen 127.0.0.1:{port}; http2 on;
             location / {{ proxy_pass http://127.0.0.1:{}; }} }}",
        upstream.port
    );
    let server = Server::start(engine, &lines);
    let mut slow = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    slow.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .unwrap();
    upstream.wait_for(1);
    fill(&server, "/a", &pattern(LENGTH));
    fill(&server, "/b", &pattern(LENGTH));
    // It is stored though its client has read nothing.
    wait_for_entries(&server.prefix.join("cache"), 3);
    let answer = get(&server, "/large");
    assert_eq!(answer.cache(), "HIT");
    assert_eq!(checksum(&answer.body), checksum(&pattern(LARGE)));
    slow.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = Vec::new();
    slow.read_to_end(&mut bytes).unwrap();
    assert_eq!(checksum(&parse(&bytes).body), checksum(&pattern(LARGE)));
    assert_eq!(upstream.requests(), 3);
}

support::test_on_each_engine!(answers_by_http2_are_kept_and_hold_nothing_up);

/// Hits of small and large entries over HTTP/2, many at a time on one connection.
fn hits_go_over_http2(engine: &'static str) {
    if is_nginx() {
        return;
    }
    const LENGTHS: [usize; 4] = [0, 100, 60_000, 3_000_000];
    let upstream = Upstream::start(|head, _| {
        let length = path_of(head).trim_start_matches('/').parse().unwrap();
        ok("", &pattern(length))
    });
    let lines = "http2 on; location / { proxy_pass http://UP; proxy_cache one;
        proxy_cache_valid 1h; }";
    let server = start(engine, lines, upstream.port);
    for length in LENGTHS {
        fill(&server, &format!("/{length}"), &pattern(length));
    }
    let mut client = http2::Client::connect(server.port);
    for round in 0..3 {
        let streams = LENGTHS.map(|length| client.request(&format!("/{length}"), &[]));
        for (length, stream) in LENGTHS.into_iter().zip(streams) {
            let response = client.response(stream);
            assert_eq!(response.field("x-cache"), Some("HIT"), "{length} {round}");
            assert_eq!(checksum(&response.body), checksum(&pattern(length)));
        }
    }
    assert_eq!(upstream.requests(), LENGTHS.len());
}

support::test_on_each_engine!(hits_go_over_http2);

/// Early hints and trailers are those of the answer as it comes: who fetches it has them, and they
/// are no part of what is kept.
fn hints_and_trailers_are_those_of_who_fetches(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let answer = |_: &str, _: usize| {
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
          HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
          5\r\nhello\r\n0\r\nX-Sum: 5\r\n\r\n"
            .to_vec()
    };
    let lines = "http2 on; early_hints 1; proxy_pass_trailers on;
        location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h; }";
    with_server(engine, lines, answer, |server, upstream| {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut client = http2::Client::connect(server.port);
        let first = client.get("/");
        assert_eq!(first.field("x-cache"), Some("MISS"));
        assert_eq!((first.status, &*first.text()), (200, "hello"));
        assert_eq!(first.informational, [103]);
        assert_eq!(first.trailers, [pair("x-sum", "5")]);
        let hit = client.get("/");
        assert_eq!(hit.field("x-cache"), Some("HIT"));
        assert_eq!((hit.status, &*hit.text()), (200, "hello"));
        assert_eq!((hit.informational.len(), hit.trailers.len()), (0, 0));
        let plain = get(server, "/");
        assert!(plain.head.starts_with("HTTP/1.1 200 OK"), "{}", plain.head);
        assert_eq!((plain.cache(), &*plain.body), ("HIT", &b"hello"[..]));
        assert_eq!(upstream.requests(), 1);
    });
}

support::test_on_each_engine!(hints_and_trailers_are_those_of_who_fetches);
