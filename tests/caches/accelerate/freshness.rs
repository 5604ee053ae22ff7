//! What is kept, and for how long.

use super::*;

const VALIDATOR: &str = "ETag: \"1\"\r\n";

/// How often the server behind is asked for two requests, one after the other.
fn asked_for_two(accelerator: &Accelerator, origin: &Origin, path: &str, fields: &str) -> usize {
    let before = origin.requests();
    accelerator.get_with(path, fields);
    accelerator.get_with(path, fields);
    origin.requests() - before
}

fn what_says_nothing_is_kept_for_a_second_if_it_can_be_checked(engine: &'static str) {
    let answer = |request: &str, _: usize| {
        let path = request.split(' ').nth(1).unwrap();
        let status = match path {
            "/missing" => "404 Not Found",
            _ => "200 OK",
        };
        let fields = match path {
            "/unchecked" => "",
            "/cookie" => "ETag: \"1\"\r\nSet-Cookie: session=1\r\n",
            "/no-store" => "ETag: \"1\"\r\nCache-Control: no-store\r\n",
            "/private" => "ETag: \"1\"\r\nCache-Control: private\r\n",
            "/no-cache" => "ETag: \"1\"\r\nCache-Control: no-cache\r\n",
            "/pragma" => "ETag: \"1\"\r\nPragma: no-cache\r\n",
            "/dated" => "Last-Modified: Sun, 09 Sep 2001 01:46:40 GMT\r\n",
            "/explicit" => "Cache-Control: max-age=60\r\n",
            _ => VALIDATOR,
        };
        let length = if path == "/long" { 70_000 } else { 10 };
        let head = format!("HTTP/1.1 {status}\r\n{fields}Content-Length: {length}\r\n\r\n");
        [head.as_bytes(), &vec![b'x'; length]].concat()
    };
    with_server(engine, &[], answer, |accelerator, origin| {
        let asked = |path: &str, fields: &str| asked_for_two(accelerator, origin, path, fields);
        for path in ["/plain", "/dated", "/explicit"] {
            // The second of the clock may end between two requests.
            let asked = [asked(path, ""), asked(path, "")];
            assert!(asked.iter().sum::<usize>() <= 2, "{path}: {asked:?}");
        }
        for path in [
            "/unchecked",
            "/cookie",
            "/no-store",
            "/private",
            "/no-cache",
            "/pragma",
            "/long",
            "/missing",
            "/plain?query",
        ] {
            assert_eq!(asked(path, ""), 2, "{path}");
        }
        // A name that ends as that of a picture says nothing of what is in it.
        assert_eq!(asked("/unchecked", ""), 2);
        assert_eq!(asked("/with-cookie", "Cookie: theme=dark\r\n"), 2);
        assert_eq!(
            asked("/with-authorization", "Authorization: Basic YTpi\r\n"),
            2
        );
        assert_eq!(asked("/with-body", "Content-Length: 0\r\n"), 2);
    });
    let ttl = &["--ttl", "1h"];
    with_server(engine, ttl, answer, |accelerator, origin| {
        for (path, expected) in [
            ("/unchecked", 1),
            ("/long", 1),
            ("/missing", 1),
            ("/plain?query", 1),
            ("/cookie", 2),
            ("/no-store", 2),
            ("/private", 2),
            ("/no-cache", 2),
        ] {
            assert_eq!(
                asked_for_two(accelerator, origin, path, ""),
                expected,
                "{path}"
            );
        }
    });
}

support::test_on_each_engine!(what_says_nothing_is_kept_for_a_second_if_it_can_be_checked);

/// After its second it is asked for again, on the condition that it has changed, once for all who
/// wait.
fn what_is_checked_again_is_checked_once_for_all(engine: &'static str) {
    let is_slow = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let slow = std::sync::Arc::clone(&is_slow);
    let origin = Origin::writing(move |request, _, stream| {
        if slow.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(500));
        }
        let is_known = request
            .to_ascii_lowercase()
            .contains("\r\nif-none-match: \"1\"");
        let answer = if is_known {
            b"HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n".to_vec()
        } else {
            ok(VALIDATOR, b"body")
        };
        stream.write_all(&answer).is_ok()
    });
    let accelerator = Accelerator::on(engine, origin.port, &[]);
    assert_eq!(accelerator.get("/").text(), "body");
    thread::sleep(Duration::from_millis(2100));
    is_slow.store(true, Ordering::SeqCst);
    let before = origin.requests();
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| assert_eq!(accelerator.get("/").text(), "body"));
        }
    });
    assert_eq!(origin.requests() - before, 1, "{engine}");
    assert!(origin.last().to_ascii_lowercase().contains("if-none-match"));
}

support::test_on_each_engine!(what_is_checked_again_is_checked_once_for_all);

/// Only what has said how long it is fresh is given behind that.
fn stale_answers_stand_in_for_a_server_that_fails(engine: &'static str) {
    let answer = |request: &str, number: usize| {
        let path = request.split(' ').nth(1).unwrap();
        let fields = match path {
            "/explicit" => "Cache-Control: max-age=1\r\n",
            "/strict" => "Cache-Control: max-age=1, must-revalidate\r\n",
            "/shared" => "Cache-Control: s-maxage=1\r\n",
            "/zero" => "Cache-Control: max-age=1, stale-if-error=0, stale-while-revalidate=0\r\n",
            _ => VALIDATOR,
        };
        let has_failed = request.contains("X-Fail");
        if has_failed {
            Vec::new()
        } else {
            ok(fields, format!("{number}").as_bytes())
        }
    };
    with_server(engine, &[], answer, |accelerator, origin| {
        for (path, status) in [
            ("/explicit", "200"),
            ("/strict", "502"),
            ("/shared", "502"),
            ("/zero", "502"),
            ("/silent", "502"),
        ] {
            assert_eq!(accelerator.get(path).status(), "200", "{path}");
            thread::sleep(Duration::from_millis(2100));
            let before = origin.requests();
            let late = accelerator.get_with(path, "X-Fail: 1\r\n");
            assert_eq!(late.status(), status, "{path}");
            // The server behind is asked all the same, beside that.
            until(|| origin.requests() > before);
        }
    });
}

support::test_on_each_engine!(stale_answers_stand_in_for_a_server_that_fails);

#[test]
fn memory_is_what_is_asked_for() {
    let printed = |arguments: &[&str]| {
        let mut command = tidegate();
        command
            .args(["accelerate", "9", "--print-configuration"])
            .args(arguments);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert!(printed(&["--memory", "64m"]).contains(" memory=67108864 "));
    let by_itself = printed(&[]);
    let size = by_itself
        .split(" memory=")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap();
    let size: u64 = size.parse().unwrap();
    assert!((16 << 20..=4 << 30).contains(&size), "{size}");
}
