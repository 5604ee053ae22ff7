//! Caches that have memory for their entries, in front of a folder and in the place of one. nginx
//! has neither: what is expected is what a cache with a folder alone does.

use super::*;
use crate::cache::numbers::number;

const IN_FRONT: &str = "cache levels=1:2 keys_zone=one:1m memory=8m memory_entry_max=64k";
const ALONE: &str = "memory:one keys_zone=one:1m memory=8m memory_entry_max=64k";

const LINES: &str = "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h;
         proxy_cache_purge PURGE; proxy_cache_min_uses $MIN; }
     location = /metrics { metrics; }";

fn lines(min_uses: usize) -> String {
    LINES.replace("$MIN", &min_uses.to_string())
}

/// Runs a test with each kind of memory.
fn with_each_memory(
    engine: &'static str,
    lines: &str,
    answer: impl Fn(&str, usize) -> Vec<u8> + Clone + Send + Sync + 'static,
    test: impl Fn(&Server, &Upstream, &str),
) {
    if is_nginx() {
        return;
    }
    for path in [IN_FRONT, ALONE] {
        let upstream = Upstream::start(answer.clone());
        let server = start_with(engine, lines, path, upstream.port);
        test(&server, &upstream, path);
    }
}

fn of(server: &Server, name: &str) -> u64 {
    number(server, &format!("tidegate_cache_{name}{{zone=\"one\"}}"))
}

/// Asks until an answer comes from memory: a file that has just been written is not kept there.
fn warm(server: &Server, path: &str) {
    until(|| {
        let before = of(server, "memory_hits_total");
        get(server, path);
        of(server, "memory_hits_total") > before
    });
}

fn purge(server: &Server, path: &str) -> Answer {
    let request = format!("PURGE {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    ask(server, &request)
}

/// The one file of a cache below a folder.
fn file_below(folder: &std::path::Path) -> Option<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let mut paths = entries.map(|entry| entry.path());
    paths.find_map(|path| {
        if path.is_dir() {
            if path.ends_with("temp") {
                None
            } else {
                file_below(&path)
            }
        } else {
            Some(path)
        }
    })
}

fn what_is_kept_in_memory_is_what_was_fetched(engine: &'static str) {
    let length_of = |head: &str| -> usize {
        let path = head.split(' ').nth(1).unwrap();
        path.trim_start_matches('/').parse().unwrap_or(0)
    };
    with_each_memory(
        engine,
        &lines(1),
        move |head, number| {
            let fields = format!("X-Number: {number}\r\nETag: \"e\"\r\nAccept-Ranges: bytes\r\n");
            ok(&fields, &pattern(length_of(head)))
        },
        |server, upstream, path| {
            for length in [0, 1, 1000, 16_000, 17_000, 64 * 1024] {
                let name = format!("/{length}");
                let before = upstream.requests();
                assert_eq!(get(server, &name).cache(), "MISS", "{path} {length}");
                warm(server, &name);
                let hits = of(server, "memory_hits_total");
                let answer = get(server, &name);
                assert_eq!(answer.cache(), "HIT", "{path} {length}");
                assert_eq!(answer.body, pattern(length), "{path} {length}");
                let number = before.to_string();
                assert_eq!(answer.field("X-Number"), Some(number.as_str()));
                let request =
                    format!("HEAD {name} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
                let head = ask(server, &request);
                assert_eq!((head.cache(), head.body.len()), ("HIT", 0));
                assert_eq!(head.field("Content-Length"), Some(&name[1..]));
                let known = get_with(server, &name, "If-None-Match: \"e\"\r\n");
                assert_eq!((known.status(), known.body.len()), ("304", 0));
                if length > 1 {
                    let part = get_with(server, &name, "Range: bytes=1-999\r\n");
                    assert_eq!(part.status(), "206");
                    assert_eq!(part.body, &pattern(length)[1..1000.min(length)]);
                    let last = get_with(server, &name, "Range: bytes=-1\r\n");
                    assert_eq!(last.body, &pattern(length)[length - 1..]);
                }
                assert!(of(server, "memory_hits_total") >= hits + 3);
                assert_eq!(upstream.requests(), before + 1, "{path} {length}");
            }
            assert_eq!(of(server, "memory_entries"), 6);
            let bytes = of(server, "memory_bytes");
            assert!(bytes > 98_000 && bytes <= 8 << 20, "{bytes}");
            // What is longer comes from the folder, or is fetched each time.
            let long = "/65537";
            let hits = of(server, "memory_hits_total");
            assert_eq!(get(server, long).cache(), "MISS");
            let second = if path == ALONE { "MISS" } else { "HIT" };
            for _ in 0..2 {
                let answer = get(server, long);
                assert_eq!(answer.cache(), second, "{path}");
                assert_eq!(answer.body, pattern(65_537), "{path}");
            }
            assert_eq!(of(server, "memory_hits_total"), hits);
            let entries = of(server, "entries");
            assert_eq!(entries, if path == ALONE { 6 } else { 7 });
        },
    );
}

support::test_on_each_engine!(what_is_kept_in_memory_is_what_was_fetched);

fn what_is_purged_is_gone_from_memory(engine: &'static str) {
    with_each_memory(
        engine,
        &lines(1),
        |head, number| {
            let line = head
                .lines()
                .find(|line| line.starts_with("Accept-Language"));
            let body = format!("{number} {}", line.unwrap_or(""));
            ok("Vary: Accept-Language\r\n", body.as_bytes())
        },
        |server, upstream, path| {
            let ask = |language: &str| {
                let field = format!("Accept-Language: {language}\r\n");
                get_with(server, "/a", &field)
            };
            for language in ["de", "en"] {
                let first = ask(language);
                assert_eq!(first.cache(), "MISS");
                until(|| {
                    let before = of(server, "memory_hits_total");
                    let answer = ask(language);
                    assert_eq!(
                        (answer.cache(), &answer.body),
                        ("HIT", &first.body),
                        "{path}"
                    );
                    of(server, "memory_hits_total") > before
                });
            }
            assert_eq!(upstream.requests(), 2);
            assert_eq!(of(server, "memory_entries"), 2);
            assert_eq!(purge(server, "/a").status(), "200");
            assert_eq!(of(server, "memory_entries"), 0);
            assert_eq!(purge(server, "/a").status(), "404");
            for language in ["de", "en"] {
                assert_eq!(ask(language).cache(), "MISS", "{path}");
            }
            warm(server, "/b");
            warm(server, "/bc");
            assert_eq!(purge(server, "/b*").status(), "200");
            assert_eq!(get(server, "/bc").cache(), "MISS", "{path}");
        },
    );
}

support::test_on_each_engine!(what_is_purged_is_gone_from_memory);

/// With `proxy_cache_min_uses 3` the third answer is the first to be kept.
fn uses_are_counted_with_memory_alike(engine: &'static str) {
    with_each_memory(
        engine,
        &lines(3),
        |_, number| ok("", format!("{number}").as_bytes()),
        |server, _, path| {
            let caches = [(); 4].map(|()| get(server, "/a").cache().to_owned());
            assert_eq!(caches, ["MISS", "MISS", "MISS", "HIT"], "{path}");
        },
    );
}

support::test_on_each_engine!(uses_are_counted_with_memory_alike);

fn what_is_over_is_asked_for_anew_or_confirmed(engine: &'static str) {
    with_each_memory(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_revalidate on; }
         location = /metrics { metrics; }",
        |head, number| {
            if head.contains("If-None-Match: \"e\"") {
                return b"HTTP/1.1 304 x\r\nCache-Control: max-age=2\r\n\r\n".to_vec();
            }
            let fields = "Cache-Control: max-age=2\r\nETag: \"e\"\r\n";
            ok(fields, format!("{number}").as_bytes())
        },
        |server, upstream, path| {
            assert_eq!(get(server, "/").cache(), "MISS");
            for confirmed in 1..3 {
                warm(server, "/");
                until(|| {
                    let answer = get(server, "/");
                    assert_eq!(answer.body, b"0", "{path}");
                    answer.cache() == "REVALIDATED"
                });
                assert_eq!(get(server, "/").cache(), "HIT", "{path}");
                assert!(upstream.requests() > confirmed);
            }
        },
    );
}

support::test_on_each_engine!(what_is_over_is_asked_for_anew_or_confirmed);

fn what_others_do_to_files_holds_with_memory(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let upstream = Upstream::start(|_, number| ok("", format!("{number}").as_bytes()));
    let server = start_with(engine, &lines(1), IN_FRONT, upstream.port);
    let file = || file_below(&server.prefix.join("cache")).unwrap();
    get(&server, "/a");
    warm(&server, "/a");
    // Content that is written in place, as the folder alone would give it.
    let mut bytes = std::fs::read(file()).unwrap();
    assert_eq!(bytes.pop(), Some(b'0'));
    std::fs::write(file(), [&bytes[..], b"x"].concat()).unwrap();
    let answer = get(&server, "/a");
    assert_eq!((answer.cache(), &answer.body[..]), ("HIT", &b"x"[..]));
    std::fs::remove_file(file()).unwrap();
    let answer = get(&server, "/a");
    assert_eq!((answer.cache(), &answer.body[..]), ("MISS", &b"1"[..]));
}

support::test_on_each_engine!(what_others_do_to_files_holds_with_memory);

/// A reload changes how much memory there is; what it holds stays.
fn a_reload_changes_the_memory(engine: &'static str) {
    if is_nginx() {
        return;
    }
    for path in [IN_FRONT, ALONE] {
        let upstream = Upstream::start(|_, _| ok("", &pattern(30_000)));
        let lines = lines(1).replace("UP", &format!("127.0.0.1:{}", upstream.port));
        let lines = |path: &str| format!("{lines}\n[http]\nproxy_cache_path {path};");
        let server = Server::start(engine, &lines(path));
        for number in 0..40 {
            warm(&server, &format!("/{number}"));
        }
        assert_eq!(of(&server, "memory_entries"), 40, "{path}");
        let reload = |path: &str| {
            let before = number(&server, "tidegate_generation");
            server.reload(&lines(path));
            until(|| number(&server, "tidegate_generation") > before);
        };
        reload(&path.replace("memory=8m", "memory=9m"));
        assert_eq!(of(&server, "memory_entries"), 40, "{path}");
        reload(&path.replace("memory=8m", "memory=600k"));
        until(|| of(&server, "memory_bytes") <= 600 << 10);
        let entries = of(&server, "memory_entries");
        assert!((1..20).contains(&entries), "{path}: {entries}");
        if path == IN_FRONT {
            reload("cache levels=1:2 keys_zone=one:1m");
            until(|| of(&server, "memory_entries") == 0);
            assert_eq!(get(&server, "/39").body, pattern(30_000));
            assert_eq!(upstream.requests(), 40);
        }
    }
}

support::test_on_each_engine!(a_reload_changes_the_memory);

fn memory_goes_back_when_a_cache_is_to_have_less(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let upstream = Upstream::start(|_, _| ok("", &pattern(60_000)));
    let lines = lines(1).replace("UP", &format!("127.0.0.1:{}", upstream.port));
    let lines = |size: &str| {
        let path = ALONE.replace("memory=8m", &format!("memory={size}"));
        format!("{lines}\n[http]\nproxy_cache_path {path}; response_memory 1m;")
    };
    let server = Server::start(engine, &lines("64m"));
    get(&server, "/0");
    let before = server.own_memory();
    for number in 1..700 {
        get(&server, &format!("/{number}"));
    }
    assert!(of(&server, "memory_entries") >= 690);
    let full = server.own_memory().saturating_sub(before);
    assert!(full > 38 << 20, "{full}");
    server.reload(&lines("4m"));
    until(|| of(&server, "memory_bytes") <= 4 << 20);
    until(|| server.own_memory().saturating_sub(before) < 12 << 20);
    assert!(of(&server, "memory_entries") > 30);
}

support::test_on_each_engine!(memory_goes_back_when_a_cache_is_to_have_less);

/// Asks until an answer is given as it was laid out before.
fn until_prebuilt(server: &Server, path: &str, fields: &str) {
    until(|| {
        let before = of(server, "memory_prebuilt_total");
        get_with(server, path, fields);
        of(server, "memory_prebuilt_total") > before
    });
}

fn hits_are_laid_out_once_and_are_what_they_were(engine: &'static str) {
    let lines = "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h;
         proxy_cache_purge PURGE; gzip on; gzip_min_length 1; proxy_cache_credentials pass;
         add_header X-Cache $upstream_cache_status; }
     location /told/ { proxy_pass http://UP/; proxy_cache one; proxy_cache_valid 1h;
         add_header X-Told $http_x_told; add_header X-Cache $upstream_cache_status; }
     location /bypassed/ { proxy_pass http://UP/; proxy_cache one; proxy_cache_valid 1h;
         proxy_cache_bypass $http_x_new; }
     location = /metrics { metrics; }";
    with_each_memory(
        engine,
        lines,
        |head, number| {
            let length = head.split(' ').nth(1).unwrap();
            let length = length.trim_start_matches('/').parse().unwrap_or(4);
            let fields = format!(
                "X-Number: {number}\r\nETag: \"e\"\r\nContent-Type: text/html\r\n\
                 Cache-Control: max-age=3600\r\n"
            );
            ok(&fields, &pattern(length))
        },
        |server, _, path| {
            let prebuilt = || of(server, "memory_prebuilt_total");
            for length in [0, 1000, 64 * 1024] {
                let name = format!("/{length}");
                warm(server, &name);
                let first = get(server, &name);
                until_prebuilt(server, &name, "");
                let answer = get(server, &name);
                assert_eq!(answer.cache(), "HIT", "{path} {length}");
                assert_eq!(answer.body, pattern(length), "{path} {length}");
                assert_eq!(answer.field("X-Number"), first.field("X-Number"));
                // What is asked for in another way, or by somebody, is looked at.
                let before = prebuilt();
                let head = format!("HEAD {name} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
                assert_eq!(ask(server, &head).cache(), "HIT");
                let own = get_with(server, &name, "Authorization: Basic YTpi\r\n");
                assert_ne!(own.cache(), "HIT", "{path}");
                get_with(server, &name, "Cookie: a=b\r\n");
                get_with(server, &name, "If-Match: \"e\"\r\n");
                get_with(server, &name, "Range: bytes=0-1\r\n");
                assert_eq!(prebuilt(), before, "{path} {length}");
                // Who has it already is told so by what is laid out as well.
                let has = "If-None-Match: \"x\", \"e\"\r\n";
                let expected = get_with(server, &name, has);
                until_prebuilt(server, &name, has);
                let known = get_with(server, &name, has);
                assert_eq!(known.status(), "304", "{path}");
                for field in [
                    "ETag",
                    "X-Number",
                    "X-Cache",
                    "Cache-Control",
                    "Content-Type",
                ] {
                    assert_eq!(known.field(field), expected.field(field), "{path} {field}");
                }
                assert_eq!(known.field("Content-Length"), None, "{path}");
                assert_eq!(
                    (known.cache(), &known.body[..]),
                    ("HIT", &b""[..]),
                    "{path}"
                );
                let other = get_with(server, &name, "If-None-Match: \"x\"\r\n");
                assert_eq!(
                    (other.status(), other.body.len()),
                    ("200", length),
                    "{path}"
                );
            }
            // Once it stands compressed that is laid out, too.
            let accepts = "Accept-Encoding: gzip\r\n";
            until_prebuilt(server, "/1000", accepts);
            let answer = get_with(server, "/1000", accepts);
            assert_eq!(answer.field("Content-Encoding"), Some("gzip"), "{path}");
            assert_eq!(answer.field("ETag"), Some("W/\"e\""), "{path}");
            let has = format!("{accepts}If-None-Match: W/\"e\"\r\n");
            until_prebuilt(server, "/1000", &has);
            let known = get_with(server, "/1000", &has);
            assert_eq!(
                (known.status(), known.field("Content-Encoding")),
                ("304", None)
            );
            assert_eq!(get(server, "/1000").body, pattern(1000), "{path}");
            // What is purged or stored anew is given no more, also by who had it laid out.
            let before = get(server, "/1000");
            assert_eq!(purge(server, "/1000").status(), "200");
            let fetched = get(server, "/1000");
            assert_eq!(fetched.cache(), "MISS", "{path}");
            assert_ne!(fetched.field("X-Number"), before.field("X-Number"));
            until_prebuilt(server, "/bypassed/5", "");
            let fetched = get_with(server, "/bypassed/5", "X-New: 1\r\n");
            let answer = get(server, "/bypassed/5");
            assert_eq!(
                answer.field("X-Number"),
                fetched.field("X-Number"),
                "{path}"
            );
            // Where a head tells of the request each is looked at.
            warm(server, "/told/7");
            let before = prebuilt();
            for told in ["one", "two", "two"] {
                let answer = get_with(server, "/told/7", &format!("X-Told: {told}\r\n"));
                assert_eq!(
                    (answer.cache(), answer.field("X-Told")),
                    ("HIT", Some(told))
                );
            }
            assert_eq!(prebuilt(), before, "{path}");
        },
    );
}

support::test_on_each_engine!(hits_are_laid_out_once_and_are_what_they_were);

/// A script whose conditions fail for a request has no part in its answer; where one may hold, or
/// there is more, each request runs it.
fn hits_are_laid_out_past_conditions_that_fail(engine: &'static str) {
    let lines = "location / {
             if ($request_method ~ \"^(PURGE|BAN)$\") { return 403; }
             if ($http_x_own !~* \"^$|none\") { return 404; }
             proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h;
             add_header X-Cache $upstream_cache_status; }
         location /set/ { set $a b; proxy_pass http://UP/; proxy_cache one;
             proxy_cache_valid 1h; add_header X-Cache $upstream_cache_status; }
         location /argument/ { if ($arg_a) { return 404; } proxy_pass http://UP/;
             proxy_cache one; proxy_cache_valid 1h; proxy_cache_key $uri;
             add_header X-Cache $upstream_cache_status; }
         location /get/ { if ($request_method = GET) { set $a b; } proxy_pass http://UP/;
             proxy_cache one; proxy_cache_valid 1h;
             add_header X-Cache $upstream_cache_status; }
         location = /metrics { metrics; }";
    with_each_memory(
        engine,
        lines,
        |_, _| ok("ETag: \"e\"\r\n", &pattern(1000)),
        |server, upstream, path| {
            let prebuilt = || of(server, "memory_prebuilt_total");
            warm(server, "/a");
            until_prebuilt(server, "/a", "");
            let before = prebuilt();
            let ask_with = |fields: &str| {
                let answer = get_with(server, "/a", fields);
                (answer.status().to_owned(), answer.cache().to_owned())
            };
            let has = |status: &str, cache: &str| (status.to_owned(), cache.to_owned());
            assert_eq!(ask_with("X-Own: None\r\n"), has("200", "HIT"), "{path}");
            assert_eq!(ask_with("X-Own: 1\r\n").0, "404", "{path}");
            assert_eq!(ask_with("x-OWN: 1\r\n").0, "404", "{path}");
            for method in ["PURGE", "BAN"] {
                assert_eq!(
                    ask(
                        server,
                        &format!("{method} /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                    )
                    .status(),
                    "403"
                );
            }
            assert_eq!(prebuilt(), before, "{path}");
            until_prebuilt(server, "/a", "X-Other: 1\r\n");
            for location in ["/set/a", "/argument/a", "/get/a"] {
                warm(server, location);
                let before = prebuilt();
                for _ in 0..5 {
                    assert_eq!(get(server, location).cache(), "HIT", "{location}");
                }
                assert_eq!(prebuilt(), before, "{location}");
            }
            assert_eq!(get(server, "/argument/a?a=1").status(), "404");
            // All but one have the key of `/a`, which they pass on.
            assert_eq!(upstream.requests(), 2, "{path}");
        },
    );
}

support::test_on_each_engine!(hits_are_laid_out_past_conditions_that_fail);

/// What is over is not given from one second to the next, on a connection that has got it before.
fn what_is_laid_out_ends_with_its_time(engine: &'static str) {
    let lines = "location / { proxy_pass http://UP; proxy_cache one; }
         location = /metrics { metrics; }";
    let answer = |_: &str, number: usize| {
        let fields = format!("X-Number: {number}\r\nCache-Control: max-age=3\r\n");
        ok(&fields, b"body")
    };
    with_each_memory(engine, lines, answer, |server, _, path| {
        until_prebuilt(server, "/a", "");
        let first = get(server, "/a");
        let begun = std::time::Instant::now();
        until(|| get(server, "/a").field("X-Number") != first.field("X-Number"));
        assert!(
            begun.elapsed() < std::time::Duration::from_secs(6),
            "{path}"
        );
    });
}

support::test_on_each_engine!(what_is_laid_out_ends_with_its_time);
