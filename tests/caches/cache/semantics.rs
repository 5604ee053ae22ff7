//! `*_cache_semantics rfc`: caches by RFC 9111. nginx has no such directive; what is expected
//! stands in the RFC.

use super::*;

const PAST: &str = "Thu, 01 Jan 2015 00:00:00 GMT";

/// Runs a test with entries in a folder and in memory, unless nginx is tested.
fn with_folder_and_memory(
    engine: &'static str,
    lines: &str,
    answer: impl Fn(&str, usize) -> Vec<u8> + Clone + Send + Sync + 'static,
    test: impl Fn(&Server, &Upstream),
) {
    if is_nginx() {
        return;
    }
    with_server(engine, lines, answer.clone(), &test);
    let upstream = Upstream::start(answer);
    let lines = lines.replace("UP", &format!("127.0.0.1:{}", upstream.port));
    let lines = format!(
        "add_header X-Cache $upstream_cache_status always;\n{lines}\n[http]\n
         proxy_cache_path memory:one keys_zone=one:1m memory=64m memory_entry_max=1m;"
    );
    test(&Server::start(engine, &lines), &upstream);
}

fn path_of(head: &str) -> &str {
    head.split(' ').nth(1).unwrap()
}

/// Asks until an answer comes from the cache.
fn fill(server: &Server, path: &str, fields: &str) -> Answer {
    until(|| get_with(server, path, fields).cache() == "HIT");
    get_with(server, path, fields)
}

fn age(answer: &Answer) -> u64 {
    answer.field("Age").expect("an Age").parse().unwrap()
}

/// Sections 4.2.3 and 5.1: what is too old already is not given again.
fn ages_count_for_all_families(engine: &'static str) {
    if is_nginx() {
        return;
    }
    for family in FAMILIES {
        let (server, _) = start_family(
            engine,
            family,
            "location / { X_pass APP; X_cache_semantics rfc; }
             location /nginx { X_pass APP; X_cache_semantics nginx; }",
            |path, _| {
                let age = if path.ends_with("old") { 7200 } else { 30 };
                let fields = format!("Cache-Control: max-age=3600\r\nAge: {age}");
                (fields, b"body".to_vec())
            },
        );
        let hit = fill(&server, "/young", "");
        assert!((30..60).contains(&age(&hit)), "{family:?} {hit:?}");
        for path in ["/old", "/old", "/old"] {
            assert_eq!(get(&server, path).cache(), "MISS", "{family:?}");
        }
        let hit = fill(&server, "/nginx/old", "");
        assert_eq!(age(&hit), 7200, "{family:?}");
    }
}

support::test_on_each_engine!(ages_count_for_all_families);

/// The Date of an answer stays with it, and Cache-Status (RFC 9211) tells what was done.
fn answers_tell_where_they_come_from(engine: &'static str) {
    with_folder_and_memory(
        engine,
        "proxy_cache one;
         location / { proxy_pass http://UP; proxy_cache_semantics rfc; }
         location /quiet { proxy_pass http://UP; }",
        |head, _| match path_of(head) {
            "/private" => ok("Cache-Control: private, max-age=9\r\n", b""),
            _ => ok(
                &format!("Cache-Control: max-age=2000000000\r\nDate: {PAST}\r\n"),
                b"body",
            ),
        },
        |server, _| {
            let status = |answer: &Answer| answer.field("Cache-Status").map(str::to_owned);
            let stored = "Tidegate; fwd=uri-miss; fwd-status=200; stored";
            let first = get(server, "/a");
            assert_eq!(status(&first).as_deref(), Some(stored));
            let hit = fill(server, "/a", "");
            assert_eq!(hit.field("Date"), Some(PAST));
            assert!(age(&hit) > 300_000_000, "{hit:?}");
            let told = status(&hit).unwrap();
            assert!(told.starts_with("Tidegate; hit; ttl=1"), "{told}");
            let passed = status(&get(server, "/private"));
            assert_eq!(
                passed.as_deref(),
                Some("Tidegate; fwd=uri-miss; fwd-status=200")
            );
            let quiet = fill(server, "/quiet", "");
            assert_eq!((status(&quiet), quiet.field("Age")), (None, None));
        },
    );
}

support::test_on_each_engine!(answers_tell_where_they_come_from);

/// Section 3.5.
fn authorized_requests_share_what_allows_it(engine: &'static str) {
    with_folder_and_memory(
        engine,
        "proxy_cache one; proxy_cache_semantics rfc; location / { proxy_pass http://UP; }",
        |head, _| {
            let more = match path_of(head) {
                "/public" => "public",
                "/confirmed" => "must-revalidate",
                "/shared" => "s-maxage=100",
                _ => "ext",
            };
            ok(&format!("Cache-Control: max-age=100, {more}\r\n"), b"body")
        },
        |server, _| {
            let own = "Authorization: Basic eA==\r\n";
            for path in ["/plain", "/plain"] {
                assert_eq!(get_with(server, path, own).cache(), "MISS");
            }
            for path in ["/public", "/confirmed", "/shared"] {
                assert_eq!(get_with(server, path, own).cache(), "MISS", "{path}");
                fill(server, path, "");
                assert_eq!(get_with(server, path, own).cache(), "HIT", "{path}");
            }
            // What is stored for others is not for who has a name.
            fill(server, "/plain", "");
            assert_eq!(get_with(server, "/plain", own).cache(), "MISS");
        },
    );
}

support::test_on_each_engine!(authorized_requests_share_what_allows_it);

/// Section 4.4.
fn unsafe_methods_make_void_what_they_change(engine: &'static str) {
    with_folder_and_memory(
        engine,
        "proxy_cache one; proxy_cache_semantics rfc; location / { proxy_pass http://UP; }",
        |head, _| {
            if head.starts_with("GET ") {
                let vary = match path_of(head) {
                    "/varies" => "Vary: X-A\r\n",
                    _ => "",
                };
                return ok(&format!("Cache-Control: max-age=100\r\n{vary}"), b"body");
            }
            let fields = "Location: /other\r\nContent-Location: http://a/third?x\r\n\
                          X-More: http://b/kept\r\n";
            match path_of(head) {
                "/fails" => b"HTTP/1.1 500 Z\r\nContent-Length: 0\r\n\r\n".to_vec(),
                "/abroad" => ok("Location: http://b/kept\r\n", b""),
                _ => ok(fields, b""),
            }
        },
        |server, _| {
            let send = |method: &str, path: &str| {
                ask(
                    server,
                    &format!(
                        "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
                         Content-Length: 1\r\n\r\nx"
                    ),
                )
            };
            for method in ["POST", "PUT", "DELETE", "PATCH", "M-SEARCH"] {
                for path in ["/own", "/other", "/third?x", "/kept"] {
                    fill(server, path, "");
                }
                let answer = send(method, "/own");
                assert_eq!(
                    (answer.status(), answer.cache()),
                    ("200", "BYPASS"),
                    "{method}"
                );
                let told = answer.field("Cache-Status");
                assert_eq!(told, Some("Tidegate; fwd=method; fwd-status=200"));
                for path in ["/own", "/other", "/third?x"] {
                    assert_eq!(get(server, path).cache(), "MISS", "{method} {path}");
                }
                assert_eq!(get(server, "/kept").cache(), "HIT", "{method}");
            }
            for path in ["/fails", "/kept"] {
                fill(server, path, "");
            }
            assert_eq!(send("POST", "/fails").status(), "500");
            assert_eq!(send("POST", "/abroad").status(), "200");
            assert_eq!(get(server, "/fails").cache(), "HIT");
            assert_eq!(get(server, "/kept").cache(), "HIT");
            // All variants go.
            for variant in ["X-A: 1\r\n", "X-A: 2\r\n"] {
                fill(server, "/varies", variant);
            }
            send("POST", "/varies");
            for variant in ["X-A: 1\r\n", "X-A: 2\r\n"] {
                assert_eq!(get_with(server, "/varies", variant).cache(), "MISS");
            }
        },
    );
}

support::test_on_each_engine!(unsafe_methods_make_void_what_they_change);

/// Sections 3.2 and 4.3.4: fields of a 304 replace those that are stored, and the body stays.
fn confirmations_change_stored_fields(engine: &'static str) {
    let body = pattern(100_000);
    let answered = body.clone();
    with_folder_and_memory(
        engine,
        "proxy_cache one; proxy_cache_semantics rfc; location / { proxy_pass http://UP; }",
        move |head, _| {
            if head.contains("\r\nIf-None-Match: \"x\"\r\n") {
                let fields = match path_of(head) {
                    "/changed" => "X-A: 2\r\nContent-Length: 5\r\nCache-Control: max-age=100\r\n",
                    "/other" => "ETag: \"y\"\r\nX-A: 2\r\n",
                    "/forbidden" => "Cache-Control: no-store\r\nX-A: 2\r\n",
                    _ => "Date: Thu, 01 Jan 2015 00:00:00 GMT\r\n",
                };
                return format!("HTTP/1.1 304 Not Modified\r\n{fields}\r\n").into_bytes();
            }
            let control = match path_of(head) {
                "/same" => "no-cache",
                _ => "max-age=1",
            };
            let fields = format!(
                "Cache-Control: {control}\r\nETag: \"x\"\r\nX-A: 1\r\nConnection: X-B\r\nX-B: 1\r\n"
            );
            ok(&fields, &answered)
        },
        |server, upstream| {
            for path in ["/changed", "/same", "/other", "/forbidden"] {
                let first = get(server, path);
                assert_eq!((first.cache(), first.field("X-A")), ("MISS", Some("1")));
                assert_eq!(checksum(&first.body), checksum(&body), "{path}");
            }
            let changed = until_over(server.port, "/changed");
            assert_eq!(changed.cache(), "REVALIDATED");
            assert_eq!(changed.field("X-A"), Some("2"));
            assert_eq!(checksum(&changed.body), checksum(&body));
            assert_eq!(
                changed.field("Cache-Status"),
                Some("Tidegate; fwd=stale; fwd-status=304")
            );
            thread::sleep(Duration::from_millis(1200));
            let hit = fill(server, "/changed", "");
            assert_eq!((hit.field("X-A"), hit.field("X-B")), (Some("2"), None));
            assert_eq!(hit.field("Content-Length"), Some("100000"));
            assert_eq!(checksum(&hit.body), checksum(&body));
            // Each use is confirmed; nothing is given without.
            for _ in 0..3 {
                let before = upstream.requests();
                let same = get(server, "/same");
                assert_eq!((same.status(), same.cache()), ("200", "REVALIDATED"));
                assert_eq!(same.field("X-A"), Some("1"));
                assert_eq!(checksum(&same.body), checksum(&body));
                assert_eq!(upstream.requests(), before + 1);
            }
            // What is of another tag, or may be kept no more, is fetched next time.
            for path in ["/other", "/forbidden"] {
                let confirmed = until_over(server.port, path);
                assert_eq!(confirmed.cache(), "REVALIDATED", "{path}");
                assert_eq!(confirmed.field("X-A"), Some("1"), "{path}");
                until(|| get(server, path).cache() == "MISS");
            }
        },
    );
}

support::test_on_each_engine!(confirmations_change_stored_fields);

/// Section 4.2.4: what may not be given stale is not, and the rest is where no origin answers.
fn what_is_over_is_given_where_nothing_forbids_it(engine: &'static str) {
    with_folder_and_memory(
        engine,
        "proxy_cache one;
         location / { proxy_pass http://UP; proxy_cache_semantics rfc; }
         location /never { proxy_pass http://UP; proxy_cache_semantics rfc stale_if_error=0; }
         location /use { proxy_pass http://UP; proxy_cache_semantics rfc;
             proxy_cache_use_stale error http_503; }
         location /meanwhile { proxy_pass http://UP;
             proxy_cache_semantics rfc stale_while_revalidate=1m; }",
        |head, number| {
            let path = path_of(head);
            if number >= 8 && path.ends_with("/503") {
                return b"HTTP/1.1 503 Z\r\nContent-Length: 0\r\n\r\n".to_vec();
            }
            if number >= 8 && path != "/meanwhile" {
                return Vec::new();
            }
            let more = match path {
                "/must" | "/use/must" => ", must-revalidate",
                "/proxy" => ", proxy-revalidate",
                "/shared" => ", s-maxage=1",
                "/503" => ", stale-if-error=60",
                _ => "",
            };
            ok(&format!("Cache-Control: max-age=1{more}\r\n"), b"body")
        },
        |server, upstream| {
            let paths = [
                "/plain",
                "/must",
                "/proxy",
                "/shared",
                "/503",
                "/never",
                "/use/must",
                "/meanwhile",
            ];
            for path in paths {
                assert_eq!(get(server, path).cache(), "MISS", "{path}");
            }
            thread::sleep(Duration::from_millis(1100));
            for (path, status, cache) in [
                ("/plain", "200", "STALE"),
                ("/503", "200", "STALE"),
                ("/must", "502", "EXPIRED"),
                ("/proxy", "502", "EXPIRED"),
                ("/shared", "502", "EXPIRED"),
                ("/never", "502", "EXPIRED"),
                ("/use/must", "502", "EXPIRED"),
            ] {
                let answer = get(server, path);
                assert_eq!((answer.status(), answer.cache()), (status, cache), "{path}");
            }
            let told = get(server, "/plain");
            let told = told.field("Cache-Status").unwrap();
            assert!(told.starts_with("Tidegate; hit; ttl=-"), "{told}");
            // It is given at once, and fetched beside that.
            assert_eq!(get(server, "/meanwhile").cache(), "STALE");
            until(|| upstream.last().starts_with("GET /meanwhile "));
            fill(server, "/meanwhile", "");
        },
    );
}

support::test_on_each_engine!(what_is_over_is_given_where_nothing_forbids_it);

/// Section 5.2.1.
fn clients_say_what_they_want(engine: &'static str) {
    with_folder_and_memory(
        engine,
        "proxy_cache one;
         location / { proxy_pass http://UP; proxy_cache_semantics rfc; }
         location /often { proxy_pass http://UP; proxy_cache_semantics rfc reload_interval=1h; }",
        |_, _| ok("Cache-Control: max-age=100\r\nETag: \"a\"\r\n", b"body"),
        |server, upstream| {
            let with = |path: &str, directives: &str| {
                let field = format!("Cache-Control: {directives}\r\n");
                get_with(server, path, &field)
            };
            let before = upstream.requests();
            let told = with("/none", "only-if-cached");
            assert_eq!((told.status(), upstream.requests()), ("504", before));
            // What a client does not want to be stored is not.
            for _ in 0..2 {
                assert_eq!(with("/unstored", "no-store").cache(), "MISS");
            }
            for path in ["/a", "/often"] {
                fill(server, path, "");
            }
            assert_eq!(with("/a", "only-if-cached").cache(), "HIT");
            assert_eq!(with("/a", "max-age=50, min-fresh=50").cache(), "HIT");
            for directives in ["no-cache", "max-age=0", "min-fresh=101"] {
                let answer = with("/a", directives);
                assert_eq!(answer.cache(), "EXPIRED", "{directives}");
                assert!(upstream.last().contains("\r\nIf-None-Match: \"a\"\r\n"));
                let told = answer.field("Cache-Status").unwrap();
                assert!(told.starts_with("Tidegate; fwd=request;"), "{told}");
                assert_eq!(with("/often", directives).cache(), "HIT", "{directives}");
                fill(server, "/a", "");
            }
        },
    );
}

support::test_on_each_engine!(clients_say_what_they_want);

/// Section 4.1: values that mean the same select the same variant.
fn variants_are_told_apart_by_what_values_mean(engine: &'static str) {
    with_folder_and_memory(
        engine,
        "proxy_cache one;
         location / { proxy_pass http://UP; proxy_cache_semantics rfc; }
         location /nginx { proxy_pass http://UP; }",
        |head, _| {
            let vary = match path_of(head) {
                "/all" | "/nginx/all" => "X-A, *",
                "/nginx" => "Accept-Encoding, Accept-Language, X-A",
                _ => "Accept-Encoding,\tAccept-Language ,X-A",
            };
            ok(
                &format!("Cache-Control: max-age=100\r\nVary: {vary}\r\n"),
                b"body",
            )
        },
        |server, _| {
            let one = "Accept-Encoding: gzip, br\r\nAccept-Language: en, de;q=0.5\r\nX-A: 1,2\r\n";
            let same = "Accept-Encoding: br\r\nAccept-Encoding: GZIP;q=1.0\r\n\
                        Accept-Language: DE;q=0.50,en\r\nX-A: 1 , 2\r\n";
            let other = "Accept-Encoding: gzip, br\r\nAccept-Language: en, de\r\nX-A: 1,2\r\n";
            for (path, cache) in [("/a", "HIT"), ("/nginx", "MISS")] {
                fill(server, path, one);
                assert_eq!(get_with(server, path, same).cache(), cache, "{path}");
                assert_eq!(get_with(server, path, other).cache(), "MISS", "{path}");
            }
            for _ in 0..3 {
                assert_eq!(get(server, "/all").cache(), "MISS");
            }
            fill(server, "/nginx/all", "");
        },
    );
}

support::test_on_each_engine!(variants_are_told_apart_by_what_values_mean);

/// Section 4.3.2, and RFC 9110, section 14.2: what a cache has it answers itself.
fn conditions_and_ranges_are_answered_from_the_cache(engine: &'static str) {
    with_folder_and_memory(
        engine,
        "proxy_cache one; location / { proxy_pass http://UP; proxy_cache_semantics rfc; }",
        |_, _| {
            let fields = format!(
                "Cache-Control: max-age=2000000000, no-cache=\"x-own\"\r\nX-Own: 1\r\n\
                 ETag: \"a\"\r\nLast-Modified: {PAST}\r\n"
            );
            ok(&fields, b"0123456789")
        },
        |server, upstream| {
            assert_eq!(get(server, "/a").field("X-Own"), Some("1"));
            let hit = fill(server, "/a", "");
            assert_eq!(hit.field("X-Own"), None);
            let before = upstream.requests();
            let earlier = "If-Modified-Since: Wed, 01 Jan 2014 00:00:00 GMT\r\n";
            let later = "If-Modified-Since: Fri, 01 Jan 2016 00:00:00 GMT\r\n";
            for (fields, status) in [
                ("If-None-Match: \"a\"\r\n", "304"),
                ("If-None-Match: \"b\", W/\"a\"\r\n", "304"),
                ("If-None-Match: \"b\"\r\n", "200"),
                (later, "304"),
                (earlier, "200"),
                (&format!("If-None-Match: \"a\"\r\n{earlier}"), "304"),
                (&format!("If-None-Match: \"b\"\r\n{later}"), "200"),
                ("If-Match: \"b\"\r\n", "200"),
                ("Range: bytes=2-4\r\n", "206"),
            ] {
                let answer = get_with(server, "/a", fields);
                assert_eq!(
                    (answer.status(), answer.cache()),
                    (status, "HIT"),
                    "{fields}"
                );
                match status {
                    "304" => {
                        assert_eq!(answer.field("ETag"), Some("\"a\""));
                        assert!(answer.body.is_empty() && answer.field("Age").is_some());
                    }
                    "206" => assert_eq!(answer.body, b"234"),
                    _ => assert_eq!(answer.body, b"0123456789"),
                }
            }
            assert_eq!(upstream.requests(), before);
        },
    );
}

support::test_on_each_engine!(conditions_and_ranges_are_answered_from_the_cache);

/// Sections 4.2.1 and 4.2.2: who says it comes before who assigns it, and that before a guess.
fn what_says_nothing_is_assigned_or_guessed(engine: &'static str) {
    with_folder_and_memory(
        engine,
        "proxy_cache one;
         location / { proxy_pass http://UP; proxy_cache_semantics rfc; }
         location /guess { proxy_pass http://UP; proxy_cache_semantics rfc heuristic=10%; }
         location /valid { proxy_pass http://UP; proxy_cache_semantics rfc;
             proxy_cache_valid 404 1h; }",
        |_, _| {
            let head =
                format!("HTTP/1.1 404 Z\r\nLast-Modified: {PAST}\r\nContent-Length: 1\r\n\r\nx");
            head.into_bytes()
        },
        |server, _| {
            for _ in 0..3 {
                assert_eq!(get(server, "/a").cache(), "MISS");
            }
            for (path, ttl) in [("/guess", 86_399), ("/valid", 3599)] {
                let hit = fill(server, path, "");
                let told = hit.field("Cache-Status").unwrap();
                let left: i64 = told.rsplit_once('=').unwrap().1.parse().unwrap();
                assert!((ttl - 10..=ttl).contains(&left), "{path} {told}");
            }
        },
    );
}

support::test_on_each_engine!(what_says_nothing_is_assigned_or_guessed);

/// A slice lies under a key of its own, so that its 206 is kept.
fn slices_are_kept(engine: &'static str) {
    let body = pattern(2500);
    let answered = body.clone();
    with_folder_and_memory(
        engine,
        "proxy_cache one; slice 1k; proxy_cache_key $uri$slice_range;
         proxy_set_header Range $slice_range;
         location / { proxy_pass http://UP; proxy_cache_semantics rfc; }",
        move |head, _| {
            let (from, to) = asked_range(head);
            let to = to.min(answered.len() - 1);
            let part = &answered[from..=to];
            let head = format!(
                "HTTP/1.1 206 Z\r\nContent-Range: bytes {from}-{to}/{}\r\nETag: \"a\"\r\n\
                 Cache-Control: max-age=100\r\nContent-Length: {}\r\n\r\n",
                answered.len(),
                part.len()
            );
            [head.as_bytes(), part].concat()
        },
        |server, upstream| {
            assert_eq!(checksum(&get(server, "/a").body), checksum(&body));
            let hit = fill(server, "/a", "");
            assert_eq!(
                (hit.status(), checksum(&hit.body)),
                ("200", checksum(&body))
            );
            until(|| {
                let before = upstream.requests();
                get(server, "/a");
                upstream.requests() == before
            });
        },
    );
}

support::test_on_each_engine!(slices_are_kept);

/// Answers go by the names that they have given themselves.
fn tags_purge(engine: &'static str) {
    with_folder_and_memory(
        engine,
        "proxy_cache one; proxy_cache_purge PURGE;
         location / { proxy_pass http://UP; proxy_cache_semantics rfc; }
         location /nginx { proxy_pass http://UP; }",
        |head, _| {
            let tags = match path_of(head) {
                "/a" => "Surrogate-Key: one two\r\n",
                "/b" => "Cache-Tag: two,three four\r\n",
                "/nginx" => "Surrogate-Key: one\r\n",
                _ => "",
            };
            ok(&format!("Cache-Control: max-age=100\r\n{tags}"), b"body")
        },
        |server, _| {
            let purge = |fields: &str| {
                ask(
                    server,
                    &format!("PURGE / HTTP/1.1\r\nHost: a\r\n{fields}Connection: close\r\n\r\n"),
                )
            };
            for path in ["/", "/a", "/b", "/nginx"] {
                fill(server, path, "");
            }
            let one = purge("Surrogate-Key: one\r\n");
            assert_eq!((one.status(), &one.body[..]), ("200", &b"purged one\n"[..]));
            assert_eq!(get(server, "/a").cache(), "MISS");
            for path in ["/", "/b", "/nginx"] {
                assert_eq!(get(server, path).cache(), "HIT", "{path}");
            }
            assert_eq!(purge("Cache-Tag: five\r\n").status(), "404");
            fill(server, "/a", "");
            assert_eq!(purge("Cache-Tag: x, two\r\n").status(), "200");
            for path in ["/a", "/b"] {
                assert_eq!(get(server, path).cache(), "MISS", "{path}");
            }
            assert_eq!(get(server, "/").cache(), "HIT");
        },
    );
}

support::test_on_each_engine!(tags_purge);

/// Sections 3.3 and 3.4: a range that is passed on is kept, and made whole.
fn parts_are_kept_and_made_whole(engine: &'static str) {
    let body = pattern(100_000);
    let answered = body.clone();
    with_folder_and_memory(
        engine,
        "proxy_cache one; proxy_cache_max_range_offset 1000; proxy_cache_key $uri;
         location / { proxy_pass http://UP; proxy_cache_semantics rfc; }
         location /nginx { proxy_pass http://UP; }",
        move |head, number| answer_by_range(head, number, &answered),
        |server, upstream| {
            let range = |path: &str, range: &str| {
                get_with(server, path, &format!("Range: bytes={range}\r\n"))
            };
            let part = |answer: &Answer, first: usize, end: usize| {
                assert_eq!(answer.status(), "206");
                let expected = format!("bytes {first}-{}/100000", end - 1);
                assert_eq!(answer.field("Content-Range"), Some(expected.as_str()));
                assert_eq!(checksum(&answer.body), checksum(&body[first..end]));
            };
            // The end: what lies in it is given, what does not is fetched.
            part(&range("/end", "40000-"), 40_000, 100_000);
            until(|| range("/end", "40000-99999").cache() == "HIT");
            let before = upstream.requests();
            for (asked, first, end) in [
                ("50000-50001", 50_000, 50_002),
                ("99999-", 99_999, 100_000),
                ("-60000", 40_000, 100_000),
                ("-1", 99_999, 100_000),
            ] {
                part(&range("/end", asked), first, end);
            }
            assert_eq!(upstream.requests(), before);
            part(&range("/end", "39999-40001"), 39_999, 40_002);
            assert_eq!(upstream.requests(), before + 1);
            // By nginx's rules nothing is kept of it.
            for _ in 0..3 {
                assert_eq!(range("/nginx", "40000-").cache(), "MISS");
            }
        },
    );
}

support::test_on_each_engine!(parts_are_kept_and_made_whole);

/// Section 3.4: the rest of what is kept is asked for, if both are of the same whole.
fn a_beginning_is_made_whole(engine: &'static str) {
    let body = pattern(100_000);
    let answered = body.clone();
    with_folder_and_memory(
        engine,
        "proxy_cache one; proxy_cache_max_range_offset 0; proxy_cache_key $uri;
         location / { proxy_pass http://UP; proxy_cache_semantics rfc; }",
        move |head, number| answer_by_range(head, number, &answered),
        |server, upstream| {
            let begin = |path: &str| {
                let answer = get_with(server, path, "Range: bytes=0-49999\r\n");
                assert_eq!((answer.status(), answer.body.len()), ("206", 50_000));
            };
            let is_kept = |path: &str| {
                begin(path);
                let before = upstream.requests();
                begin(path);
                upstream.requests() == before
            };
            until(|| is_kept("/whole"));
            let whole = get(server, "/whole");
            assert!(upstream.last().contains("\r\nRange: bytes=50000-\r\n"));
            assert!(upstream.last().contains("\r\nIf-Range: \"a\"\r\n"));
            assert_eq!((whole.status(), whole.cache()), ("200", "MISS"));
            assert_eq!(whole.field("Content-Length"), Some("100000"));
            assert_eq!(whole.field("Content-Range"), None);
            // Fields of the newer answer stand in the place of those of the older one.
            let number = (upstream.requests() - 1).to_string();
            assert_eq!(whole.field("X-N"), Some(number.as_str()));
            assert_eq!(checksum(&whole.body), checksum(&body));
            let hit = fill(server, "/whole", "");
            assert_eq!(
                (hit.status(), hit.field("X-N")),
                ("200", Some(number.as_str()))
            );
            assert_eq!(checksum(&hit.body), checksum(&body));
            let part = get_with(server, "/whole", "Range: bytes=49999-50001\r\n");
            assert_eq!((part.status(), part.cache()), ("206", "HIT"));
            assert_eq!(part.body, body[49_999..50_002]);
            // A weak tag names no whole; one that has changed gets all of the other.
            for path in ["/weak", "/changes"] {
                until(|| path == "/changes" || is_kept(path));
                begin(path);
                let whole = get(server, path);
                assert_eq!((whole.status(), whole.cache()), ("200", "MISS"), "{path}");
                assert_eq!(checksum(&whole.body), checksum(&body), "{path}");
            }
            // What is not as long as it says is not kept.
            for _ in 0..3 {
                let before = upstream.requests();
                get_with(server, "/short", "Range: bytes=0-49999\r\n");
                assert_eq!(upstream.requests(), before + 1);
            }
            // A rest that is none costs one request, and the next one gets the whole.
            until(|| is_kept("/broken"));
            assert_eq!(get(server, "/broken").status(), "502");
            until(|| get(server, "/broken").status() == "200");
        },
    );
}

support::test_on_each_engine!(a_beginning_is_made_whole);

/// An answer of this body, or of the range of it that is asked for.
fn answer_by_range(head: &str, number: usize, body: &[u8]) -> Vec<u8> {
    let path = path_of(head);
    let etag = match path {
        "/weak" => "W/\"a\"".to_owned(),
        "/changes" => format!("\"{number}\""),
        _ => "\"a\"".to_owned(),
    };
    let fields = format!("Cache-Control: max-age=100\r\nETag: {etag}\r\nX-N: {number}\r\n");
    let tag = head
        .lines()
        .find_map(|line| line.strip_prefix("If-Range: "));
    let range = head
        .lines()
        .find_map(|line| line.strip_prefix("Range: bytes="));
    let Some(range) = range.filter(|_| tag.is_none_or(|tag| tag == etag)) else {
        return ok(&fields, body);
    };
    if path == "/broken" && tag.is_some() {
        return b"HTTP/1.1 416 Z\r\nContent-Length: 0\r\n\r\n".to_vec();
    }
    let last = body.len() - 1;
    let (first, last) = match range.split_once('-').unwrap() {
        ("", count) => (body.len() - count.parse::<usize>().unwrap(), last),
        (first, "") => (first.parse().unwrap(), last),
        (first, to) => (first.parse().unwrap(), last.min(to.parse().unwrap())),
    };
    let part = match path {
        "/short" => &body[first..last],
        _ => &body[first..=last],
    };
    let head = format!(
        "HTTP/1.1 206 Z\r\n{fields}Content-Range: bytes {first}-{last}/{}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len(),
        part.len()
    );
    [head.as_bytes(), part].concat()
}
