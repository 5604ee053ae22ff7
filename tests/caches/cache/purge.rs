//! `*_cache_purge` in its three forms. nginx has none of them: what is expected stands in NGINX
//! Plus' and ngx_cache_purge's manuals.

use super::*;

fn purge(server: &Server, method: &str, path: &str) -> Answer {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    ask(server, &request)
}

/// How many of these paths are answered from the cache.
fn hits(server: &Server, paths: &[&str]) -> usize {
    let answers = paths.iter().map(|path| get(server, path));
    answers.filter(|answer| answer.cache() == "HIT").count()
}

fn requests_purge_what_their_key_stands_for(engine: &'static str) {
    const LINES: &str = "X_cache_valid 1h;
        location / { X_pass APP; X_cache_purge $http_x_purge $arg_purge; }
        location /method { X_pass APP; X_cache_purge PURGE from 127.0.0.1 10.0.0.0/8; }
        location /every { X_pass APP; X_cache_purge on; }
        location /denied { X_pass APP; X_cache_purge PURGE from 127.1.0.0/16; }
        location /off { X_pass APP; X_cache_purge off; }
        location ~ ^/purge(/.*)$ { X_cache_purge one $1; }";
    if is_nginx() {
        return;
    }
    for family in FAMILIES {
        let answer = |path: &str, _: usize| (String::new(), path.as_bytes().to_vec());
        let (server, requests) = start_family(engine, family, LINES, answer);
        let fill = |path: &str| {
            get(&server, path);
            until(|| get(&server, path).cache() == "HIT");
        };
        let with_field = |path: &str| {
            let request = format!(
                "PURGE {path} HTTP/1.1\r\nHost: a\r\nX-Purge: 1\r\nConnection: close\r\n\r\n"
            );
            ask(&server, &request)
        };
        for path in ["/a", "/ab", "/b", "/method", "/every", "/denied", "/off"] {
            fill(path);
        }
        // As Plus has it.
        let before = requests.load(Ordering::SeqCst);
        let answer = with_field("/a");
        assert_eq!(
            (answer.status(), answer.body.len()),
            ("204", 0),
            "{family:?}"
        );
        assert_eq!(with_field("/a").status(), "404", "{family:?}");
        assert_eq!(requests.load(Ordering::SeqCst), before, "{family:?}");
        assert_eq!(hits(&server, &["/ab", "/b"]), 2, "{family:?}");
        assert_eq!(get(&server, "/a").cache(), "MISS", "{family:?}");
        fill("/a");
        assert_eq!(with_field("/a*").status(), "204", "{family:?}");
        assert_eq!(hits(&server, &["/b", "/method", "/off"]), 3, "{family:?}");
        assert_eq!(get(&server, "/a").cache(), "MISS", "{family:?}");
        assert_eq!(get(&server, "/ab").cache(), "MISS", "{family:?}");
        assert_eq!(with_field("/none*").status(), "204", "{family:?}");
        // As ngx_cache_purge has it.
        for (path, statuses) in [
            ("/method", ["200", "404"]),
            ("/every", ["200", "404"]),
            ("/denied", ["403", "403"]),
        ] {
            let answers = [purge(&server, "PURGE", path), purge(&server, "PURGE", path)];
            let seen = [answers[0].status(), answers[1].status()];
            assert_eq!(seen, statuses, "{path} {family:?}");
        }
        assert_eq!(get(&server, "/denied").cache(), "HIT", "{family:?}");
        assert_eq!(get(&server, "/method").cache(), "MISS", "{family:?}");
        // A request that is none goes to the upstream, and nothing is lost by it.
        purge(&server, "PURGE", "/off");
        assert_eq!(get(&server, "/off").cache(), "HIT", "{family:?}");
        let seen = ["/purge/b", "/purge/b", "/purge/none"].map(|path| {
            let answer = get(&server, path);
            answer.status().to_owned()
        });
        assert_eq!(seen, ["200", "404", "404"], "{family:?}");
        assert_eq!(get(&server, "/b").cache(), "MISS", "{family:?}");
    }
}

support::test_on_each_engine!(requests_purge_what_their_key_stands_for);

/// All variants and all slices go together.
fn variants_and_slices_go_together(engine: &'static str) {
    const LENGTH: usize = 5000;
    if is_nginx() {
        return;
    }
    with_server(
        engine,
        "proxy_cache one; proxy_cache_valid 200 206 1h;
         location / { proxy_pass http://UP; proxy_cache_purge PURGE; }
         location /sliced { slice 1k; proxy_set_header Range $slice_range; proxy_pass http://UP;
             proxy_cache_key $uri$slice_range; proxy_cache_purge PURGE; }",
        |head, _| {
            if !head.contains("\r\nRange: ") {
                let mut lines = head.lines();
                let line = lines.rfind(|line| line.starts_with("X-Which"));
                return ok("Vary: X-Which\r\n", line.unwrap_or("").as_bytes());
            }
            let (first, last) = asked_range(head);
            let end = LENGTH.min(last + 1);
            let head = format!(
                "HTTP/1.1 206 Partial Content\r\nETag: \"x\"\r\n\
                 Content-Range: bytes {first}-{}/{LENGTH}\r\nContent-Length: {}\r\n\r\n",
                end - 1,
                end - first
            );
            [head.as_bytes(), &pattern(LENGTH)[first..end]].concat()
        },
        |server, upstream| {
            let variant = |which: usize| {
                let answer = get_with(server, "/", &format!("X-Which: {which}\r\n"));
                assert_eq!(answer.body, format!("X-Which: {which}").as_bytes());
                answer.cache().to_owned()
            };
            for which in 0..3 {
                assert_eq!(variant(which), "MISS");
            }
            until(|| (0..3).all(|which| variant(which) == "HIT"));
            assert_eq!(purge(server, "PURGE", "/").status(), "200");
            for which in 0..3 {
                assert_eq!(variant(which), "MISS");
            }
            let whole = || {
                let answer = get(server, "/sliced");
                assert_eq!(checksum(&answer.body), checksum(&pattern(LENGTH)));
            };
            let asked = |fetch: &dyn Fn()| {
                let before = upstream.requests();
                fetch();
                upstream.requests() - before
            };
            assert_eq!(asked(&whole), 5);
            until(|| asked(&whole) == 0);
            assert_eq!(purge(server, "PURGE", "/sliced").status(), "200");
            assert_eq!(asked(&whole), 5);
        },
    );
}

support::test_on_each_engine!(variants_and_slices_go_together);

/// What is being fetched while it is purged is not kept.
fn a_purge_is_not_overtaken_by_a_fetch(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let gate = Arc::<crate::cache::lock::Gate>::default();
    let end = Arc::clone(&gate);
    let upstream = Upstream::writing(move |_, number, stream| {
        let answer = ok("", &pattern(100_000 + number));
        let (first, rest) = answer.split_at(50_000);
        let _ = stream.write_all(first);
        if number == 0 {
            end.pass();
        }
        let _ = stream.write_all(rest);
    });
    let server = start(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h;
             proxy_cache_purge PURGE; error_log logs/purged.log info; }",
        upstream.port,
    );
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut bytes = vec![0; 1000];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(purge(&server, "PURGE", "/").status(), "404");
    gate.open();
    stream.read_to_end(&mut bytes).unwrap();
    assert_eq!(checksum(&parse(&bytes).body), checksum(&pattern(100_000)));
    // An operator has asked for that: it is no fault.
    server.wait_for_line("purged.log", "answer not stored: the entry has been purged");
    assert!(server.log("purged.log").contains("[info]"));
    let answer = get(&server, "/");
    assert_eq!(answer.cache(), "MISS");
    assert_eq!(checksum(&answer.body), checksum(&pattern(100_001)));
}

support::test_on_each_engine!(a_purge_is_not_overtaken_by_a_fetch);
