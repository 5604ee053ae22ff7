//! `*_cache_revalidate`, and what is done about upstreams that fail while an entry stands in for
//! them.

use support::master::Master;

use super::*;

const MODIFIED: &str = "Thu, 01 Jan 2015 00:00:00 GMT";

/// An answer that is fresh for a second, or 304 to who has it, with these fields.
fn changed_since(head: &str, confirmed: &str, body: &[u8]) -> Vec<u8> {
    if head.contains("\r\nIf-None-Match: \"x\"\r\n") {
        return format!("HTTP/1.1 304 Not Modified\r\n{confirmed}\r\n").into_bytes();
    }
    let fields =
        format!("Cache-Control: max-age=1\r\nETag: \"x\"\r\nLast-Modified: {MODIFIED}\r\n");
    ok(&fields, body)
}

fn what_has_not_changed_is_fresh_again(engine: &'static str) {
    let body = pattern(100_000);
    let answered = body.clone();
    with_server(
        engine,
        "proxy_cache one;
         location / { proxy_pass http://UP; proxy_cache_revalidate on; }
         location /off { proxy_pass http://UP; proxy_cache_revalidate off; }
         location /written { proxy_pass http://UP; proxy_cache_revalidate on;
             proxy_set_header If-None-Match \"y\"; }",
        move |head, _| changed_since(head, "Cache-Control: max-age=100\r\n", &answered),
        |server, upstream| {
            let is_asked = |field: &str| upstream.last().contains(field);
            let since = format!("\r\nIf-Modified-Since: {MODIFIED}\r\n");
            for (path, status, conditions) in [
                ("/", "REVALIDATED", (true, true)),
                ("/off", "EXPIRED", (false, false)),
                ("/written", "EXPIRED", (false, true)),
            ] {
                assert_eq!(get(server, path).cache(), "MISS", "{path}");
                let answer = until_over(server.port, path);
                assert_eq!((answer.status(), answer.cache()), ("200", status), "{path}");
                assert_eq!(checksum(&answer.body), checksum(&body), "{path}");
                let asked = (is_asked("\r\nIf-None-Match: \"x\"\r\n"), is_asked(&since));
                assert_eq!(asked, conditions, "{path}");
                let answer = get(server, path);
                assert_eq!(answer.cache(), "HIT", "{path}");
                assert_eq!(checksum(&answer.body), checksum(&body), "{path}");
            }
            // The head of the 304 has said how long: longer than that of the answer.
            let before = upstream.requests();
            thread::sleep(Duration::from_millis(2100));
            assert_eq!(get(server, "/").cache(), "HIT");
            assert_eq!(upstream.requests(), before);
            let client = get_with(server, "/", "If-None-Match: \"x\"\r\n");
            assert_eq!((client.status(), client.cache()), ("304", "HIT"));
        },
    );
}

support::test_on_each_engine!(what_has_not_changed_is_fresh_again);

/// Without a word in the 304 the answer's own head holds again, and else the lines.
fn a_bare_304_lets_the_answer_say_how_long(engine: &'static str) {
    with_server(
        engine,
        "proxy_cache one; proxy_cache_revalidate on;
         location / { proxy_pass http://UP; proxy_cache_valid 1; }",
        |head, _| {
            let path = head.split(' ').nth(1).unwrap();
            if head.contains("\r\nIf-Modified-Since: ") {
                let fields = match path {
                    "/forbidden" => "Cache-Control: no-store\r\n",
                    _ => "",
                };
                return format!("HTTP/1.1 304 Z\r\n{fields}\r\n").into_bytes();
            }
            let said = match path {
                "/said" => "Cache-Control: max-age=1\r\n",
                _ => "",
            };
            ok(&format!("{said}Last-Modified: {MODIFIED}\r\n"), b"body")
        },
        |server, _| {
            for path in ["/said", "/lines", "/forbidden"] {
                assert_eq!(get(server, path).cache(), "MISS", "{path}");
                let answer = until_over(server.port, path);
                assert_eq!((answer.status(), answer.cache()), ("200", "REVALIDATED"));
                assert_eq!(answer.body, b"body");
                // nginx refreshes what the upstream says is not to be stored.
                let is_forbidden = path == "/forbidden" && !is_nginx();
                let expected = if is_forbidden { "REVALIDATED" } else { "HIT" };
                assert_eq!(get(server, path).cache(), expected, "{path}");
            }
        },
    );
}

support::test_on_each_engine!(a_bare_304_lets_the_answer_say_how_long);

/// A 304 that was not asked for is the client's, and what has changed is fetched.
fn what_has_changed_replaces_what_was_kept(engine: &'static str) {
    with_server(
        engine,
        "proxy_cache one; proxy_cache_revalidate on; proxy_cache_key $uri;
         location / { proxy_pass http://UP; add_header X-Cache $upstream_cache_status always;
             add_header X-Etag $upstream_cache_etag always;
             add_header X-Modified $upstream_cache_last_modified always; }",
        |head, number| {
            if head.starts_with("GET /none") && number > 0 {
                return b"HTTP/1.1 304 Z\r\n\r\n".to_vec();
            }
            let validators = if head.starts_with("GET /none") {
                String::new()
            } else {
                format!("ETag: \"v{number}\"\r\nLast-Modified: {MODIFIED}\r\n")
            };
            let body = pattern(1000 + number);
            ok(&format!("Cache-Control: max-age=1\r\n{validators}"), &body)
        },
        |server, upstream| {
            assert_eq!(get(server, "/none").cache(), "MISS");
            let answer = until_over(server.port, "/none");
            let expected = if is_nginx() {
                ("200", "REVALIDATED")
            } else {
                ("304", "EXPIRED")
            };
            assert_eq!((answer.status(), answer.cache()), expected);
            let number = upstream.requests();
            let first = get(server, "/a");
            assert_eq!((first.cache(), first.field("X-Etag")), ("MISS", None));
            let second = until_over(server.port, "/a");
            let etag = format!("\"v{number}\"");
            assert_eq!(second.cache(), "EXPIRED");
            assert_eq!(second.field("X-Etag"), Some(etag.as_str()));
            assert_eq!(second.field("X-Modified"), Some(MODIFIED));
            assert_eq!(checksum(&second.body), checksum(&pattern(1001 + number)));
            assert_eq!(get(server, "/a").body, second.body);
        },
    );
}

support::test_on_each_engine!(what_has_changed_replaces_what_was_kept);

fn applications_say_what_has_not_changed(engine: &'static str) {
    const LINES: &str = "add_header X-Cache $upstream_cache_status always;
        fastcgi_cache one; fastcgi_cache_key $uri; fastcgi_param URI $uri;
        fastcgi_param REQUEST_METHOD $request_method;
        location / { fastcgi_pass APP; fastcgi_cache_revalidate on; }
        location /off { fastcgi_pass APP; fastcgi_cache_revalidate off; }
        [http]
        fastcgi_cache_path cache keys_zone=one:1m;";
    for protocol in Protocol::ALL {
        let application = Application::start(protocol, |seen| {
            let is_asked = |name: &str, value: &str| {
                seen.params.contains(&(name.to_owned(), value.to_owned()))
            };
            if is_asked("HTTP_IF_NONE_MATCH", "\"x\"")
                && is_asked("HTTP_IF_MODIFIED_SINCE", MODIFIED)
            {
                return seen.answer("Status: 304 Not Modified\r\nX-Accel-Expires: 100", b"");
            }
            let fields = format!(
                "Status: 200 OK\r\nX-Accel-Expires: 1\r\nETag: \"x\"\r\n\
                 Last-Modified: {MODIFIED}"
            );
            seen.answer(&fields, &pattern(20_000))
        });
        let name = protocol.prefix();
        let lines = LINES.replace("fastcgi_", name);
        let server = Server::start(engine, &lines.replace("APP", &application.address()));
        for (path, expected) in [("/", "REVALIDATED"), ("/off", "EXPIRED")] {
            assert_eq!(get(&server, path).cache(), "MISS", "{name} {path}");
            let answer = until_over(server.port, path);
            assert_eq!(answer.cache(), expected, "{name} {path}");
            assert_eq!(checksum(&answer.body), checksum(&pattern(20_000)), "{name}");
        }
        let answer = get(&server, "/");
        assert_eq!(answer.cache(), "HIT", "{name}");
        assert_eq!(checksum(&answer.body), checksum(&pattern(20_000)), "{name}");
    }
}

support::test_on_each_engine!(applications_say_what_has_not_changed);

/// While an entry stands in for an upstream that fails, that is asked once a second and not each
/// time, as nginx does.
fn an_upstream_that_fails_is_left_alone_for_a_moment(engine: &'static str) {
    const ASKED: usize = 50;
    with_server(
        engine,
        "proxy_cache one; proxy_cache_revalidate on;
         location / { proxy_pass http://UP; proxy_cache_use_stale http_500 error; }
         location /vary { proxy_pass http://UP; proxy_cache_use_stale http_500; }",
        |head, _| {
            if !head.contains("\r\nIf-None-Match: ") {
                let vary = if head.starts_with("GET /vary") {
                    "Vary: X-Other\r\n"
                } else {
                    ""
                };
                let fields = format!("{vary}Cache-Control: max-age=1\r\nETag: \"x\"\r\n");
                return ok(&fields, b"body");
            }
            b"HTTP/1.1 500 Z\r\nContent-Length: 0\r\n\r\n".to_vec()
        },
        |server, upstream| {
            for path in ["/", "/vary"] {
                assert_eq!(get(server, path).cache(), "MISS");
                let answer = until_over(server.port, path);
                assert_eq!((answer.cache(), &answer.body[..]), ("STALE", &b"body"[..]));
                let before = upstream.requests();
                for _ in 0..ASKED {
                    let answer = get(server, path);
                    assert_eq!((answer.cache(), &answer.body[..]), ("STALE", &b"body"[..]));
                }
                let asked = upstream.requests() - before;
                assert!(asked == ASKED || !is_nginx());
                assert!(asked < ASKED || is_nginx(), "{asked}");
            }
        },
    );
}

support::test_on_each_engine!(an_upstream_that_fails_is_left_alone_for_a_moment);

/// The entry of `/a` as nginx 1.31 writes it (version 5 of its files) below a folder, fresh no
/// more.
fn write_as_nginx(folder: &Path, head: &str, body: &[u8]) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    /// `printf /a | md5sum`, and the same checksum as gzip has it.
    const ID: &str = "0639767f3e9eaad729b54037a7e2abf5";
    const CHECKSUM: u32 = 0x69707b5c;
    let header_start = 336 + "\nKEY: /a\n".len();
    let mut file = 5_u64.to_le_bytes().to_vec();
    // Until when it is good, may be updated, stands in for errors; Last-Modified, Date.
    for time in [1_i64, 0, 0, 1_420_070_400, 1_420_070_400] {
        file.extend_from_slice(&time.to_le_bytes());
    }
    file.extend_from_slice(&CHECKSUM.to_le_bytes());
    for number in [0, header_start, header_start + head.len()] {
        file.extend_from_slice(&u16::try_from(number).unwrap().to_le_bytes());
    }
    // ETag, Vary, and the variant's hash are empty.
    file.resize(336, 0);
    file.extend_from_slice(format!("\nKEY: /a\n{head}").as_bytes());
    file.extend_from_slice(body);
    let below = folder.join(&ID[31..]).join(&ID[29..31]);
    fs::create_dir_all(&below).unwrap();
    let path = below.join(ID);
    fs::write(&path, file).unwrap();
    // The worker process is another user.
    for place in [folder, below.parent().unwrap(), &below, &path] {
        fs::set_permissions(place, fs::Permissions::from_mode(0o777)).unwrap();
    }
    path
}

/// What nginx has left is asked about as what is our own, and stays: as one of ours.
fn what_nginx_has_stored_is_fresh_again(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let body = pattern(100_000);
    let head = format!(
        "HTTP/1.1 200 OK\r\nLast-Modified: {MODIFIED}\r\nETag: \"x\"\r\nX-Own: 1\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    let upstream = Upstream::start(|head, _| {
        changed_since(head, "Cache-Control: max-age=100\r\n", b"fetched")
    });
    let port = support::port::free_port();
    let mut master = Master::new();
    let user = if support::site::is_root() {
        "user nobody nogroup;"
    } else {
        ""
    };
    master.configure(&format!(
        "{user} events {{ {engine} }}
             http {{ access_log off; proxy_cache_path @/cache levels=1:2 keys_zone=one:1m;
                 server {{ listen 127.0.0.1:{port};
                     location / {{ proxy_pass http://127.0.0.1:{}; proxy_cache one;
                         proxy_cache_key $uri; proxy_cache_revalidate on;
                         add_header X-Cache $upstream_cache_status; }} }} }}",
        upstream.port
    ));
    let path = write_as_nginx(&master.folder.join("cache"), &head, &body);
    master.start();
    let ask = || {
        let answer = ask_at(
            port,
            "GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        );
        assert_eq!(checksum(&answer.body), checksum(&body));
        assert_eq!(answer.field("X-Own"), Some("1"));
        answer.cache().to_owned()
    };
    assert_eq!(ask(), "REVALIDATED");
    until(|| fs::read(&path).unwrap().starts_with(b"TIDEGATE"));
    assert_eq!(ask(), "HIT");
    assert_eq!(upstream.requests(), 1);
}

support::test_on_each_engine!(what_nginx_has_stored_is_fresh_again);
