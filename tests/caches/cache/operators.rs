//! What operators see of a cache: `tidegate cache`, the warnings of `-t`, lines of the log, a
//! folder that is removed, a server that ends. nginx has none of it.

use std::path::Path;
use std::process::{Command, Output};

use support::master::Master;

use super::*;

/// Runs `tidegate cache` with these words. In them `@` is the cache's folder.
fn cache(folder: &Path, words: &[&str]) -> Output {
    let folder = folder.to_str().unwrap();
    let words = words.iter().map(|word| word.replace('@', folder));
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("cache").args(words).output().unwrap()
}

/// What it prints, where it succeeds.
fn printed(folder: &Path, words: &[&str]) -> String {
    let output = cache(folder, words);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// What it says where it fails.
fn refused(folder: &Path, words: &[&str]) -> String {
    let output = cache(folder, words);
    assert_eq!(output.status.code(), Some(1), "{words:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Asks until it is in the cache.
fn fill(server: &Server, path: &str) {
    until(|| get(server, path).cache() == "HIT");
}

fn entries_are_listed_shown_and_purged_beside_a_server(engine: &'static str) {
    if is_nginx() {
        return;
    }
    const LINES: &str = "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h;
            proxy_cache_key $uri; }
        location /slices { slice 1000; proxy_pass http://UP; proxy_cache one;
            proxy_cache_valid 206 1h; proxy_cache_key $uri$slice_range; proxy_set_header Range $slice_range; }";
    let answer = |head: &str, _: usize| {
        if head.starts_with("GET /slices") {
            let (start, end) = asked_range(head);
            let body = pattern(2500);
            let end = end.min(2499);
            let part = &body[start..=end];
            let head = format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{end}/2500\r\n\
                 Content-Length: {}\r\n\r\n",
                part.len()
            );
            return [head.as_bytes(), part].concat();
        }
        if head.starts_with("GET /old") {
            return ok("Cache-Control: max-age=1\r\n", b"old");
        }
        ok("Vary: X-Kind\r\nX-Answer: yes\r\n", &pattern(30_000))
    };
    with_server(engine, LINES, answer, |server, upstream| {
        let folder = server.prefix.join("cache");
        assert_eq!(printed(&folder, &["list", "@"]).lines().count(), 2);
        fill(server, "/a");
        fill(server, "/ab");
        until(|| get_with(server, "/a", "X-Kind: other\r\n").cache() == "HIT");
        get(server, "/slices");
        get(server, "/old");
        let wanted = 3 + 3 + 1;
        wait_for_entries(&folder, wanted);
        let list = printed(&folder, &["list", "@"]);
        assert_eq!(list.lines().count(), wanted + 2, "{list}");
        assert!(
            list.lines().last().unwrap().starts_with("7 entries, "),
            "{list}"
        );
        let is_a =
            |line: &&str| line.ends_with("  /a  [Vary: X-Kind]") && line.starts_with("fresh");
        assert_eq!(list.lines().filter(is_a).count(), 2, "{list}");
        thread::sleep(Duration::from_millis(2100));
        let old = printed(&folder, &["list", "@", "/old"]);
        assert!(old.lines().nth(1).unwrap().starts_with("stale "), "{old}");
        assert_eq!(printed(&folder, &["list", "@", "/a*"]).lines().count(), 5);
        assert_eq!(
            printed(&folder, &["list", "@", "--tag", "x"])
                .lines()
                .count(),
            2
        );
        let objects = printed(&folder, &["list", "@", "/slices", "--json"]);
        let objects: Vec<serde_json::Value> = objects
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(objects.len(), 3, "slices have their key in common");
        let length = |object: &serde_json::Value| object["body_length"].as_u64().unwrap();
        assert_eq!(objects.iter().map(length).sum::<u64>(), 2500);

        let shown = printed(&folder, &["show", "@", "/ab"]);
        for line in [
            "key      /ab",
            "body     30000 bytes, its checksum is right",
            "vary     X-Kind",
            "by       tidegate",
            "HTTP/1.1 200 OK",
            "X-Answer: yes",
        ] {
            assert!(shown.lines().any(|it| it == line), "{line}: {shown}");
        }
        assert!(shown.contains("\nstate    fresh until "), "{shown}");
        assert!(refused(&folder, &["show", "@", "/none"]).contains("no entry has this key"));

        // A damaged body is told of, by those who look at it.
        let list = printed(&folder, &["show", "@", "/ab"]);
        let file = list.lines().find_map(|line| line.strip_prefix("file     "));
        let path = folder.join(file.unwrap());
        let mut bytes = fs::read(&path).unwrap();
        bytes[20_000] ^= 1;
        fs::write(&path, bytes).unwrap();
        let shown = printed(&folder, &["show", "@", "/ab"]);
        assert!(shown.contains("the file has a damaged body"), "{shown}");

        let before = upstream.requests();
        assert_eq!(
            printed(&folder, &["purge", "@", "/a"]),
            "2 entries removed\n"
        );
        assert_eq!(get(server, "/a").cache(), "MISS");
        assert_eq!(get_with(server, "/a", "X-Kind: other\r\n").cache(), "MISS");
        assert_eq!(upstream.requests(), before + 2);
        assert_eq!(
            printed(&folder, &["purge", "@", "/slices"]),
            "3 entries removed\n"
        );
        assert_eq!(
            printed(&folder, &["purge", "@", "/none"]),
            "0 entries removed\n"
        );
        assert_eq!(
            checksum(&get(server, "/slices").body),
            checksum(&pattern(2500))
        );
        wait_for_entries(&folder, wanted);
        assert_eq!(
            printed(&folder, &["purge", "@", "*"]),
            "7 entries removed\n"
        );
        assert_eq!(entries(&folder).len(), 0);
        for path in ["/a", "/ab", "/old"] {
            assert_eq!(get(server, path).cache(), "MISS");
        }
        assert!(
            !server.error_log().contains("[crit]"),
            "{}",
            server.error_log()
        );
    });
}

support::test_on_each_engine!(entries_are_listed_shown_and_purged_beside_a_server);

#[test]
fn mistakes_on_the_command_line_are_named() {
    let folder = std::env::temp_dir().join(format!("tidegate-no-cache-{}", std::process::id()));
    fs::create_dir_all(folder.join("a")).unwrap();
    fs::write(folder.join("note.txt"), "x").unwrap();
    let text = refused(&folder, &["list", "@"]);
    assert!(text.contains("is no folder of a cache"), "{text}");
    let text = refused(&folder, &["purge", "@", "*"]);
    assert!(text.contains("is no folder of a cache"), "{text}");
    assert!(folder.join("note.txt").exists());
    let text = refused(&folder, &["list", "@/missing"]);
    assert!(
        text.contains("/missing\" failed: No such file or directory"),
        "{text}"
    );
    let text = refused(&folder, &["list", "@/note.txt"]);
    assert!(text.contains("Not a directory"), "{text}");
    for words in [
        &["purge", "@"][..],
        &["list"],
        &["forget", "@"],
        &["show", "@"],
    ] {
        assert_eq!(cache(&folder, words).status.code(), Some(2), "{words:?}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

/// What is purged while no server runs is not given by the next one, and its room is free.
#[test]
fn a_purge_without_a_server_is_known_to_the_next_one() {
    if is_nginx() {
        return;
    }
    let upstream = Upstream::start(|_, number| ok("", format!("{number}").as_bytes()));
    let port = support::port::free_port();
    let mut master = Master::new();
    let user = if support::site::is_root() {
        "user nobody nogroup;"
    } else {
        ""
    };
    master.configure(&format!(
        "{user} events {{ }}
         http {{ access_log off;
             proxy_cache_path @/cache levels=2 keys_zone=one:1m;
             add_header X-Cache $upstream_cache_status;
             server {{ listen 127.0.0.1:{port};
                 location / {{ proxy_pass http://127.0.0.1:{}; proxy_cache one;
                     proxy_cache_key $uri; proxy_cache_valid 1h; }} }} }}",
        upstream.port
    ));
    let ask = |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        ask_at(port, &request).cache().to_owned()
    };
    master.start();
    for path in ["/a", "/b"] {
        until(|| ask(path) == "HIT");
    }
    master.signal("QUIT");
    master.wait();
    let folder = master.folder.join("cache");
    until(|| folder.join("temp/index").exists());
    assert_eq!(printed(&folder, &["purge", "@", "/a"]), "1 entry removed\n");
    assert_eq!(printed(&folder, &["list", "@"]).lines().count(), 3);
    master.start();
    assert_eq!([ask("/b"), ask("/a")], ["HIT", "MISS"]);
}

#[test]
fn caches_that_give_to_all_what_may_be_for_one_are_warned_of() {
    if is_nginx() {
        return;
    }
    const AUTHORIZATION: &str = "keeps answers to requests with \"Authorization\"";
    const COOKIES: &str = "keep answers that set cookies";
    let families = [
        (
            "proxy_",
            "pass http://127.0.0.1:1",
            "set_header Authorization",
        ),
        ("fastcgi_", "pass 127.0.0.1:1", "param HTTP_AUTHORIZATION"),
        ("uwsgi_", "pass 127.0.0.1:1", "param HTTP_AUTHORIZATION"),
        ("scgi_", "pass 127.0.0.1:1", "param HTTP_AUTHORIZATION"),
    ];
    let master = Master::new();
    for (prefix, pass, set) in families {
        let warnings = |lines: &str| {
            let lines = lines.replace("X_set", &format!("{prefix}{set}"));
            let lines = lines.replace("X_", prefix);
            master.configure(&format!(
                "events {{ }} http {{ {prefix}cache_path @/cache keys_zone=one:1m;
                 map $http_authorization $skip {{ default 1; '' 0; }}
                 server {{ listen 127.0.0.1:1; {prefix}cache_key $host$uri;
                     location / {{ {prefix}{pass}; {lines} }} }} }}"
            ));
            let (code, text) = master.run(&["-t"]);
            assert_eq!(code, Some(0), "{text}");
            let seen = [AUTHORIZATION, COOKIES].map(|warning| {
                let lines = text.lines().filter(|line| line.contains("[warn]"));
                lines.filter(|line| line.contains(warning)).count()
            });
            assert!(!text.contains("[emerg]"), "{text}");
            seen
        };
        for (lines, expected) in [
            ("", [0, 0]),
            ("X_cache off;", [0, 0]),
            ("X_cache one;", [1, 0]),
            ("X_cache one; X_no_cache $http_authorization;", [0, 0]),
            ("X_cache one; X_cache_semantics rfc;", [0, 0]),
            ("X_cache one; X_no_cache $arg_a;", [1, 0]),
            ("X_cache one; X_no_cache $arg_a $skip;", [0, 0]),
            ("X_cache one; X_cache_bypass $http_authorization;", [1, 0]),
            ("X_cache one; X_cache_key $uri$http_authorization;", [0, 0]),
            ("X_cache one; X_cache_key $uri$remote_user;", [0, 0]),
            ("X_cache one; X_cache_key $uri$args;", [1, 0]),
            ("X_cache one; X_pass_request_headers off;", [0, 0]),
            ("X_cache one; X_set '';", [0, 0]),
            ("X_cache one; X_cache_semantics rfc;", [0, 0]),
            ("X_cache one; X_cache_semantics nginx;", [1, 0]),
            ("X_cache one; X_set $http_authorization;", [1, 0]),
            ("X_cache one; X_ignore_headers Set-Cookie;", [1, 1]),
            ("X_ignore_headers Set-Cookie;", [0, 0]),
            (
                "X_cache one; X_ignore_headers Set-Cookie; X_hide_header Set-Cookie;",
                [1, 0],
            ),
            (
                "X_cache one; X_ignore_headers Set-Cookie;
                 X_no_cache $http_authorization $upstream_http_set_cookie;",
                [0, 0],
            ),
        ] {
            assert_eq!(warnings(lines), expected, "{prefix} {lines}");
        }
    }
}

/// What does not fit is passed on, and told of once a second.
fn what_is_not_kept_is_told_of_once_a_second(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let upstream = Upstream::start(|_, _| ok("", &pattern(50_000)));
    let lines = format!(
        "add_header X-Cache $upstream_cache_status always;
         location / {{ proxy_pass http://127.0.0.1:{}; proxy_cache small;
             proxy_cache_valid 1h; }}
         [http]
         proxy_cache_path cache keys_zone=small:1m max_size=8k;",
        upstream.port
    );
    let server = Server::start(engine, &lines);
    let told = || {
        let log = server.error_log();
        let lines = log
            .lines()
            .filter(|line| line.contains("answer not stored"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let started = Instant::now();
    let mut asked = 0;
    while asked < 50 || started.elapsed() < Duration::from_millis(1500) {
        let answer = get(&server, &format!("/{asked}"));
        assert_eq!((answer.status(), answer.cache()), ("200", "MISS"));
        assert_eq!(checksum(&answer.body), checksum(&pattern(50_000)));
        asked += 1;
    }
    let bound = started.elapsed().as_secs() as usize + 1;
    until(|| told().len() >= 2);
    let lines = told();
    assert!(lines.len() <= bound, "{asked} answers: {lines:?}");
    assert!(lines[0].contains("[warn]"), "{lines:?}");
    assert!(lines[0].contains("answer not stored: the cache has no room"));
    assert!(
        lines[1].contains("answer not stored, nor were "),
        "{lines:?}"
    );
}

support::test_on_each_engine!(what_is_not_kept_is_told_of_once_a_second);

/// Without a folder answers are passed on. One that has been removed is made anew where the worker
/// may make it: without `confine`, and where that confines nothing.
fn a_folder_that_is_removed_is_begun_anew(engine: &'static str) {
    if is_nginx() {
        return;
    }
    for confine in ["on", "off"] {
        let upstream = Upstream::start(|_, _| ok("", &pattern(50_000)));
        let lines = format!(
            "[main]\nconfine {confine};
             add_header X-Cache $upstream_cache_status always;
             location / {{ proxy_pass http://127.0.0.1:{}; proxy_cache one;
                 proxy_cache_valid 1h; }}
             [http]
             proxy_cache_path folder/cache levels=1:2 keys_zone=one:1m;",
            upstream.port
        );
        let server = start_in_open_folder(engine, &lines);
        let folder = server.prefix.join("folder/cache");
        fill(&server, "/a");
        for round in 0..2 {
            let _ = fs::remove_dir_all(&folder);
            for _ in 0..20 {
                let answer = get(&server, "/a");
                assert_eq!(answer.status(), "200");
                assert_eq!(
                    checksum(&answer.body),
                    checksum(&pattern(50_000)),
                    "{round}"
                );
            }
            if confine == "off" {
                until(|| {
                    get(&server, "/a");
                    get(&server, "/b");
                    entries(&folder).len() == 2
                });
            }
        }
        server.wait_for_log("was removed, and");
        let is_anew = || server.error_log().contains("is begun anew");
        assert!(confine == "on" || is_anew(), "{}", server.error_log());
    }
}

support::test_on_each_engine!(a_folder_that_is_removed_is_begun_anew);

/// A server whose folder `folder` everyone may write to.
fn start_in_open_folder(engine: &str, lines: &str) -> Server {
    use std::os::unix::fs::PermissionsExt;
    let (of_server, http) = lines.split_once("[http]").unwrap();
    let server = Server::start(engine, of_server.split("location").next().unwrap());
    let folder = server.prefix.join("folder");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    server.reload(&format!("{of_server}\n[http]\n{http}"));
    until(|| folder.join("cache").exists());
    server.wait_for_log("exited with code 0");
    server
}

/// A server that is told to end gracefully ends an update that no client waits for.
fn an_update_beside_service_outlives_an_order_to_quit(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let upstream = Upstream::writing(|_, number, stream| {
        if number > 0 {
            thread::sleep(Duration::from_millis(700));
        }
        let body = format!("answer {number}");
        let fields = "Cache-Control: max-age=1, stale-while-revalidate=100\r\n";
        let _ = stream.write_all(&ok(fields, body.as_bytes()));
    });
    let server = start(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_key $uri;
             proxy_cache_background_update on; }",
        upstream.port,
    );
    fill(&server, "/a");
    thread::sleep(Duration::from_millis(2100));
    assert_eq!(get(&server, "/a").cache(), "STALE");
    upstream.wait_for(2);
    server.signal("QUIT");
    let folder = server.prefix.join("cache");
    let kept = || {
        let files = entries(&folder);
        let bytes = files.first().and_then(|path| fs::read(path).ok());
        bytes.unwrap_or_default()
    };
    until(|| server.workers().is_empty());
    assert!(kept().ends_with(b"answer 1"), "{}", kept().escape_ascii());
}

support::test_on_each_engine!(an_update_beside_service_outlives_an_order_to_quit);

/// A zone stays with its levels: a reload that says otherwise is refused, as by nginx, and what was
/// served before is served on.
fn a_reload_cannot_change_the_levels_of_a_zone(engine: &'static str) {
    const LINES: &str =
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h; }";
    with_server(
        engine,
        LINES,
        |_, _| ok("", b"body"),
        |server, upstream| {
            fill(server, "/a");
            let lines = LINES.replace("UP", &format!("127.0.0.1:{}", upstream.port));
            server.reload(&format!(
                "add_header X-Cache $upstream_cache_status always;\n{lines}\n[http]\n
                 proxy_cache_path cache levels=1 keys_zone=one:1m;"
            ));
            until(|| {
                let log = server.error_log();
                let mut lines = log.lines();
                lines.any(|line| {
                    line.contains("[emerg]")
                        && line.contains("cache \"one\" had previously different levels")
                })
            });
            assert_eq!(get(server, "/a").cache(), "HIT");
            assert_eq!(upstream.requests(), 1);
        },
    );
}

support::test_on_each_engine!(a_reload_cannot_change_the_levels_of_a_zone);
