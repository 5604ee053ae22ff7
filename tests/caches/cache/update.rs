//! `*_cache_background_update`: what is over is given at once, and fetched anew beside that.

use super::*;
use crate::cache::lock::Gate;

/// The stale answer comes while the upstream is still asked, in all families; without the line the
/// client waits.
fn what_is_over_is_fetched_beside_its_client(engine: &'static str) {
    const LINES: &str = "X_cache_use_stale updating;
        location / { X_pass APP; X_cache_background_update on; }
        location /off { X_pass APP; X_cache_background_update off; }
        location /strict { X_pass APP; X_cache_background_update on; X_cache_use_stale off; }";
    for family in FAMILIES {
        for (path, expected) in [("/", "STALE"), ("/off", "EXPIRED"), ("/strict", "EXPIRED")] {
            let gate = Arc::<Gate>::default();
            let second = Arc::clone(&gate);
            let answer = move |path: &str, number: usize| {
                if number == 1 && path == "/" {
                    second.pass();
                }
                let body = pattern(100_000 + number);
                ("X-Accel-Expires: 1".to_owned(), body)
            };
            let (server, requests) = start_family(engine, family, LINES, answer);
            assert_eq!(get(&server, path).cache(), "MISS");
            let answer = until_over(server.port, path);
            assert_eq!(answer.cache(), expected, "{path} {family:?}");
            let length = if expected == "STALE" {
                100_000
            } else {
                100_001
            };
            assert_eq!(checksum(&answer.body), checksum(&pattern(length)), "{path}");
            if expected == "STALE" {
                until(|| requests.load(Ordering::SeqCst) == 2);
                let answer = get(&server, path);
                assert_eq!(answer.cache(), "UPDATING", "{family:?}");
                assert_eq!(checksum(&answer.body), checksum(&pattern(100_000)));
                gate.open();
                let is_new = |answer: &Answer| answer.body.len() == 100_001;
                until(|| is_new(&get(&server, path)));
            }
        }
    }
}

support::test_on_each_engine!(what_is_over_is_fetched_beside_its_client);

/// The update delays neither the connection's end nor its next request, and goes on without it.
fn an_update_outlives_its_client(engine: &'static str) {
    let gate = Arc::<Gate>::default();
    let second = Arc::clone(&gate);
    let upstream = Upstream::start(move |head, number| {
        if number == 1 {
            second.pass();
        }
        assert!(!head.contains("If-None-Match"));
        let fields = "Cache-Control: max-age=1, stale-while-revalidate=100\r\n";
        ok(fields, &pattern(1000 + number))
    });
    let server = start(
        engine,
        "proxy_cache one; proxy_cache_background_update on;
         location / { proxy_pass http://UP; }
         location /own { return 200 own; }",
        upstream.port,
    );
    assert_eq!(get(&server, "/").cache(), "MISS");
    // On one connection: what is over, and a request behind it.
    let started = Instant::now();
    loop {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .write_all(
                b"GET / HTTP/1.1\r\nHost: a\r\n\r\n\
                  GET /own HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            )
            .unwrap();
        // Where the update held the connection its end would not come.
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.ends_with("\r\n\r\nown"), "{text}");
        if text.contains("X-Cache: STALE") {
            assert!(bytes.windows(1000).any(|window| window == pattern(1000)));
            break;
        }
        assert!(text.contains("X-Cache: HIT"), "{text}");
        assert!(started.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(50));
    }
    upstream.wait_for(2);
    gate.open();
    until(|| get(&server, "/").body == pattern(1001));
    assert!(!server.error_log().contains("panicked"));
}

support::test_on_each_engine!(an_update_outlives_its_client);

/// An upstream that fails is asked once a second, by updates as well, and a 304 is enough for them.
fn updates_revalidate_and_back_off(engine: &'static str) {
    const ASKED: usize = 40;
    with_server(
        engine,
        "proxy_cache one; proxy_cache_background_update on; proxy_cache_use_stale updating;
         proxy_cache_revalidate on;
         location / { proxy_pass http://UP; }",
        |head, _| {
            let is_asked_again = head.contains("\r\nIf-None-Match: \"x\"\r\n");
            match head.split(' ').nth(1) {
                Some("/same") if is_asked_again => {
                    b"HTTP/1.1 304 Z\r\nCache-Control: max-age=100\r\n\r\n".to_vec()
                }
                Some("/fails") if is_asked_again => {
                    b"HTTP/1.1 500 Z\r\nContent-Length: 0\r\n\r\n".to_vec()
                }
                _ => ok("Cache-Control: max-age=1\r\nETag: \"x\"\r\n", b"body"),
            }
        },
        |server, upstream| {
            assert_eq!(get(server, "/same").cache(), "MISS");
            assert_eq!(until_over(server.port, "/same").cache(), "STALE");
            until(|| get(server, "/same").cache() == "HIT");
            assert_eq!(upstream.requests(), 2);
            assert_eq!(get(server, "/fails").cache(), "MISS");
            assert_eq!(until_over(server.port, "/fails").cache(), "STALE");
            upstream.wait_for(4);
            for _ in 0..ASKED {
                let answer = get(server, "/fails");
                assert!(matches!(answer.cache(), "STALE" | "UPDATING"));
                assert_eq!((answer.status(), &answer.body[..]), ("200", &b"body"[..]));
            }
            let asked = upstream.requests() - 4;
            assert!(is_nginx() || asked < ASKED / 2, "{asked}");
        },
    );
}

support::test_on_each_engine!(updates_revalidate_and_back_off);
