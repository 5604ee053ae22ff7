//! Who may have answers go.

use super::*;
use std::os::unix::net::UnixStream;

fn purge_at(port: u16, path: &str, fields: &str) -> Answer {
    let request =
        format!("PURGE {path} HTTP/1.1\r\nHost: a.test\r\n{fields}Connection: close\r\n\r\n");
    ask_at(port, request.as_bytes())
}

fn a_socket_of_this_machine_purges_and_nobody_outside(engine: &'static str) {
    let socket = folder().join("purge");
    let path = socket.display().to_string();
    with_server(
        engine,
        &["--purge-socket", &path],
        |request, number| {
            let tag = if request.starts_with("GET /news") {
                "Surrogate-Key: news other\r\n"
            } else {
                ""
            };
            ok(
                &format!("Cache-Control: max-age=60\r\n{tag}"),
                format!("{number}").as_bytes(),
            )
        },
        |accelerator, origin| {
            let by_socket = |method: &str, path: &str| {
                let mut stream = UnixStream::connect(&socket).unwrap();
                let request = format!(
                    "{method} {path} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"
                );
                stream.write_all(request.as_bytes()).unwrap();
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).unwrap();
                parse(&bytes).status().to_owned()
            };
            let first = accelerator.get("/a").text();
            accelerator.get("/b");
            let is_written = |path| accelerator.caches(path).contains(&"HIT".to_owned());
            until(|| {
                accelerator.get("/a");
                accelerator.get("/b");
                is_written("/a") && is_written("/b")
            });
            let asked = origin.requests();
            for method in ["PURGE", "BAN"] {
                let request =
                    format!("{method} /a HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
                assert_eq!(accelerator.ask(&request).status(), "403", "{method}");
            }
            assert_eq!(accelerator.get("/a").text(), first);
            // The server behind is not asked to purge either.
            assert_eq!(origin.requests(), asked);
            assert_eq!(by_socket("PURGE", "/a"), "200");
            assert_eq!(by_socket("PURGE", "/a"), "404");
            assert_ne!(accelerator.get("/a").text(), first);
            assert_eq!(by_socket("GET", "/a"), "405");
            let fill = |path: &str| {
                until(|| {
                    accelerator.get(path);
                    accelerator.caches(path).contains(&"HIT".to_owned())
                });
            };
            // All that have a tag go together.
            ["/news/1", "/news/2"].into_iter().for_each(fill);
            let news = "/ HTTP/1.1\r\nSurrogate-Key: news\r\nX-Rest:";
            assert_eq!(by_socket("PURGE", news), "200");
            let before = origin.requests();
            accelerator.get("/news/1");
            accelerator.get("/news/2");
            assert_eq!(origin.requests(), before + 2);
            assert_eq!(by_socket("PURGE", "/*"), "200");
            let before = origin.requests();
            accelerator.get("/b");
            assert_eq!(origin.requests(), before + 1);
        },
    );
}

support::test_on_each_engine!(a_socket_of_this_machine_purges_and_nobody_outside);

fn networks_purge_but_not_through_a_proxy(engine: &'static str) {
    for (networks, plain) in [("127.0.0.0/8", "200"), ("10.0.0.0/8", "403")] {
        with_server(
            engine,
            &["--purge-from", networks],
            |_, _| ok("Cache-Control: max-age=60\r\n", b"x"),
            |accelerator, origin| {
                accelerator.get("/a");
                for field in [
                    "X-Forwarded-For: 127.0.0.1",
                    "Forwarded: for=127.0.0.1",
                    "Via: 1.1 a",
                    "X-Real-IP: 127.0.0.1",
                    "X-Forwarded-Host: a",
                    "CF-Connecting-IP: 127.0.0.1",
                    "True-Client-IP: 127.0.0.1",
                ] {
                    let answer = purge_at(accelerator.port, "/a", &format!("{field}\r\n"));
                    assert_eq!(answer.status(), "403", "{field}");
                }
                until(|| {
                    accelerator.get("/a");
                    accelerator.caches("/a").contains(&"HIT".to_owned())
                });
                assert_eq!(origin.requests(), 1);
                assert_eq!(purge_at(accelerator.port, "/a", "").status(), plain);
                let ban = "BAN /a HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
                assert_eq!(accelerator.ask(ban).status(), "403");
                assert_eq!(origin.requests(), 1);
            },
        );
    }
}

support::test_on_each_engine!(networks_purge_but_not_through_a_proxy);

/// The socket that the command makes by itself is for who has started it, and goes with it.
#[test]
fn the_socket_of_a_run_is_its_owners() {
    use std::os::unix::fs::PermissionsExt;
    let origin = Origin::start(|_, number| {
        ok(
            "Cache-Control: max-age=60\r\n",
            format!("{number}").as_bytes(),
        )
    });
    let accelerator = Accelerator::start(origin.port, &[]);
    let said = accelerator.said.split("--unix-socket ").nth(1).unwrap();
    let socket = PathBuf::from(said.split(' ').next().unwrap());
    let mode = fs::metadata(socket.parent().unwrap())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
    // What is still being written has nothing to purge.
    until(|| {
        accelerator.get("/a").text() == "0" && accelerator.caches("/a").contains(&"HIT".to_owned())
    });
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream
        .write_all(b"PURGE /a HTTP/1.1\r\nHost: A.Test\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    assert_eq!(parse(&bytes).status(), "200");
    assert_eq!(accelerator.get("/a").text(), "1");
    drop(accelerator);
    assert!(!socket.exists());
}
