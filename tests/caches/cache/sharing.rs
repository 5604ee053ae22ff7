//! What a cache in front of servers that know nothing of it goes by: directives that nginx does not
//! have. `tests/caches/accelerate` has them all together.

use super::*;

fn who_shows_credentials_shares_what_says_so(engine: &'static str) {
    if is_nginx() {
        return;
    }
    with_server(
        engine,
        "proxy_cache one; proxy_cache_valid 1h; proxy_cache_key $uri;
         location /share { proxy_pass http://UP; proxy_cache_credentials share; }
         location /pass { proxy_pass http://UP; proxy_cache_credentials pass; }
         location /ignore { proxy_pass http://UP; proxy_cache_credentials pass;
             proxy_cache_ignore_cookies theme _ga*; }",
        |head, number| {
            let is_public = head.contains("/public");
            let fields = if is_public {
                "Cache-Control: public\r\n"
            } else {
                ""
            };
            ok(fields, format!("{number}").as_bytes())
        },
        |server, _| {
            for (path, fields, second) in [
                ("/share", "Cookie: session=1\r\n", "HIT"),
                ("/share", "Authorization: Basic YTpi\r\n", "HIT"),
                ("/pass", "Cookie: session=1\r\n", "MISS"),
                ("/pass", "Authorization: Basic YTpi\r\n", "MISS"),
                ("/pass", "Cookie: theme=1\r\n", "MISS"),
                ("/ignore", "Cookie: theme=1; _ga_1=2\r\n", "HIT"),
                ("/ignore", "Cookie: theme=1; session=2\r\n", "MISS"),
                ("/pass/public", "Cookie: session=1\r\n", "HIT"),
            ] {
                let place = format!("{path}/{}", fields.len());
                assert_eq!(get_with(server, &place, fields).cache(), "MISS", "{place}");
                assert_eq!(get_with(server, &place, fields).cache(), second, "{place}");
            }
            let body = "Content-Length: 0\r\n";
            assert_eq!(get_with(server, "/share/body", body).cache(), "MISS");
            assert_eq!(get_with(server, "/share/body", body).cache(), "HIT");
            assert_eq!(get_with(server, "/pass/body", body).cache(), "-");
        },
    );
}

support::test_on_each_engine!(who_shows_credentials_shares_what_says_so);

fn what_says_nothing_is_fresh_for_as_long_as_a_line_says(engine: &'static str) {
    if is_nginx() {
        return;
    }
    with_server(engine,
        "proxy_cache one;
         location /off { proxy_pass http://UP; }
         location /hour { proxy_pass http://UP; proxy_cache_microcache 1h; }
         location /short { proxy_pass http://UP; proxy_cache_microcache 1h 10; }
         location /valid { proxy_pass http://UP; proxy_cache_microcache 1h; proxy_cache_valid 404 1h; }
         location /second { proxy_pass http://UP; proxy_cache_microcache 1s; proxy_cache_revalidate on; }",
        |head, _| {
            if head.contains("If-None-Match: \"1\"") {
                return b"HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\nConnection: close\r\n\r\n".to_vec();
            }
            ok("ETag: \"1\"\r\n", &pattern(11))
        },
        |server, _| {
            for (path, second) in [("/off", "MISS"), ("/hour", "HIT"), ("/short", "MISS"), ("/valid", "HIT")] {
                assert_eq!(get(server, path).cache(), "MISS", "{path}");
                assert_eq!(get(server, path).cache(), second, "{path}");
            }
            assert_eq!(get(server, "/second").cache(), "MISS");
            thread::sleep(Duration::from_millis(2100));
            assert_eq!(get(server, "/second").cache(), "REVALIDATED");
            assert_eq!(get(server, "/second").cache(), "HIT");
        },
    );
}

support::test_on_each_engine!(what_says_nothing_is_fresh_for_as_long_as_a_line_says);

fn variants_of_an_answer_are_as_many_as_a_line_says(engine: &'static str) {
    if is_nginx() {
        return;
    }
    with_server(
        engine,
        "proxy_cache one; proxy_cache_valid 1h;
         location /all { proxy_pass http://UP; }
         location /two { proxy_pass http://UP; proxy_cache_max_variants 2; }",
        |_, number| ok("Vary: X-Which\r\n", format!("{number}").as_bytes()),
        |server, _| {
            let cache = |path: &str, which: usize| {
                let answer = get_with(server, path, &format!("X-Which: {which}\r\n"));
                answer.cache().to_owned()
            };
            for path in ["/all", "/two"] {
                for which in 0..4 {
                    assert_eq!(cache(path, which), "MISS", "{path} {which}");
                    until(|| cache(path, which) == "HIT");
                }
            }
            assert!((0..4).all(|which| cache("/all", which) == "HIT"));
            // What was kept last stays, and what was kept before goes, beside that.
            thread::sleep(Duration::from_millis(200));
            assert_eq!([cache("/two", 0), cache("/two", 3)], ["HIT", "HIT"]);
            assert_eq!([cache("/two", 1), cache("/two", 2)], ["MISS", "MISS"]);
        },
    );
}

support::test_on_each_engine!(variants_of_an_answer_are_as_many_as_a_line_says);

fn as_many_wait_as_a_line_says(engine: &'static str) {
    if is_nginx() {
        return;
    }
    for (lines, expected) in [("", 1), ("proxy_cache_lock_max_waiting 3;", 6)] {
        let gate = Arc::<crate::cache::lock::Gate>::default();
        let held = Arc::clone(&gate);
        let upstream = Upstream::writing(move |_, _, stream| {
            held.pass();
            let _ = stream.write_all(&ok("", b"x"));
        });
        let lines = format!(
            "location / {{ proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h;
                 proxy_cache_lock on; proxy_cache_lock_timeout 60s; proxy_cache_lock_age 60s; {lines} }}"
        );
        let server = start(engine, &lines, upstream.port);
        // One asks, three wait for it, and the others ask for themselves.
        thread::scope(|scope| {
            for number in 0..9 {
                let port = server.port;
                let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
                scope.spawn(move || assert_eq!(ask_at(port, request).body, b"x"));
                if number == 0 {
                    upstream.wait_for(1);
                }
            }
            upstream.wait_for(expected);
            thread::sleep(Duration::from_millis(300));
            assert_eq!(upstream.requests(), expected, "{engine} {lines}");
            gate.open();
        });
    }
}

support::test_on_each_engine!(as_many_wait_as_a_line_says);
