//! Directives that the modules have in common, in the words of FastCGI's and run for each of them:
//! two values, and what differs.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

use support::{PATIENCE, Server, engines};

use super::{ask, get, on_engine, plain, status};
use support::application::{Application, Protocol, Seen};

/// Runs a test with each protocol on each engine; `lines` are those of FastCGI, and say APP for the
/// application's address.
fn with_server(
    engine: &str,
    lines: &str,
    answer: impl Fn(&Seen) -> Vec<Vec<u8>> + Clone + Send + Sync + 'static,
    test: impl Fn(&Server, &Application),
) {
    for protocol in Protocol::ALL {
        on_engine(
            engine,
            protocol,
            &in_words_of(protocol, lines),
            answer.clone(),
            &test,
        );
    }
}

/// The lines with the directives of another module.
fn in_words_of(protocol: Protocol, lines: &str) -> String {
    lines.replace("fastcgi_", protocol.prefix())
}

fn time_limits(engine: &'static str) {
    let slow = |seen: &Seen| {
        thread::sleep(Duration::from_millis(500));
        plain(seen)
    };
    let lines = "
        location /short { fastcgi_read_timeout 100ms; fastcgi_pass APP; }
        location /long { fastcgi_read_timeout 30s; fastcgi_pass APP; }";
    with_server(engine, lines, slow, |server, _| {
        assert_eq!(status(&get(server, "/short")), 504);
        server.wait_for_log("upstream timed out (110: Connection timed out) while reading response header from upstream");
        assert_eq!(status(&get(server, "/long")), 200);
    });
}

support::test_on_each_engine!(time_limits);

#[test]
fn an_application_that_does_not_read() {
    for (protocol, engine) in Protocol::ALL
        .into_iter()
        .zip(engines::lines().into_iter().cycle())
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let lines = "
            client_max_body_size 0;
            location /short { fastcgi_send_timeout 200ms; fastcgi_read_timeout 200ms; fastcgi_pass APP; }
            location /long { fastcgi_send_timeout 30s; fastcgi_read_timeout 200ms; fastcgi_pass APP; }";
        let lines = in_words_of(protocol, lines).replace("APP", &address.to_string());
        let server = Server::start(engine, &lines);
        let body = "x".repeat(16 << 20);
        let post = |path: &str| {
            let length = body.len();
            let head = format!("POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n");
            let began = Instant::now();
            (status(&ask(&server, &(head + &body))), began.elapsed())
        };
        let (code, _) = post("/short");
        assert_eq!(code, 504);
        server.wait_for_log("while sending request to upstream");
        // The kernel has been given what it takes; then a second passes, and the application reads.
        let reading = thread::spawn(move || {
            let _first = listener.accept().unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            thread::sleep(Duration::from_secs(1));
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut part = vec![0; 1 << 20];
            let mut length = 0;
            while length < 16 << 20 {
                length += stream.read(&mut part).unwrap();
            }
            let seen = Seen {
                protocol,
                ..Seen::default()
            };
            let _ = stream.write_all(&seen.answer("X-A: 1", b"ok").concat());
            thread::sleep(Duration::from_millis(300));
        });
        let (code, took) = post("/long");
        assert!(
            code == 200 && took >= Duration::from_secs(1),
            "{code} {took:?}"
        );
        reading.join().unwrap();
    }
}

#[test]
fn an_application_that_does_not_accept() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        waiting.push(stream);
        assert!(waiting.len() < 20_000, "the backlog has no end");
    }
    let lines = "
        location /short { fastcgi_connect_timeout 300ms; fastcgi_pass APP; }
        location /long { fastcgi_connect_timeout 2s; fastcgi_pass APP; }";
    for (protocol, engine) in Protocol::ALL
        .into_iter()
        .zip(engines::lines().into_iter().cycle())
    {
        let lines = in_words_of(protocol, lines).replace("APP", &address.to_string());
        let server = Server::start(engine, &lines);
        let took = |path: &str| {
            let began = Instant::now();
            assert_eq!(status(&get(&server, path)), 504);
            began.elapsed()
        };
        let (short, long) = (took("/short"), took("/long"));
        assert!(
            long >= Duration::from_secs(2) && short < long,
            "{short:?} {long:?}"
        );
    }
}

#[test]
fn other_servers_are_tried() {
    let bad = |_: &Seen| {
        thread::sleep(Duration::from_millis(250));
        Vec::new()
    };
    for (protocol, engine) in Protocol::ALL
        .into_iter()
        .zip(engines::lines().into_iter().cycle())
    {
        let (bad, good) = (
            Application::start(protocol, bad),
            Application::start(protocol, plain),
        );
        let lines = "
            location /once { fastcgi_next_upstream_tries 1; fastcgi_pass u; }
            location /twice { fastcgi_next_upstream_tries 2; fastcgi_pass u; }
            location /soon { fastcgi_next_upstream_timeout 100ms; fastcgi_pass u; }
            location /later { fastcgi_next_upstream_timeout 30s; fastcgi_pass u; }
            [http]
            upstream u { server BAD max_fails=0; server GOOD backup; }";
        let lines = in_words_of(protocol, lines)
            .replace("BAD", &bad.address())
            .replace("GOOD", &good.address());
        let server = Server::start(engine, &lines);
        for (path, wanted) in [
            ("/once", 502),
            ("/twice", 200),
            ("/soon", 502),
            ("/later", 200),
        ] {
            assert_eq!(status(&get(&server, path)), wanted, "{path}");
        }
    }
}

fn a_client_that_leaves(engine: &'static str) {
    let slow = |seen: &Seen| {
        thread::sleep(Duration::from_millis(400));
        plain(seen)
    };
    let lines = "
        access_log logs/access.log;
        location /off { fastcgi_ignore_client_abort off; fastcgi_pass APP; }
        location /on { fastcgi_ignore_client_abort on; fastcgi_pass APP; }";
    with_server(engine, lines, slow, |server, application| {
        for (path, wanted) in [("/off", 499), ("/on", 200)] {
            let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            while application.connections() == 0 {
                thread::sleep(Duration::from_millis(5));
            }
            thread::sleep(Duration::from_millis(50));
            drop(stream);
            server.wait_for_line("access.log", &format!("GET {path} HTTP/1.1\" {wanted} "));
        }
    });
}

support::test_on_each_engine!(a_client_that_leaves);

fn fields_ranges_and_addresses(engine: &'static str) {
    let by_uri = |seen: &Seen| match &*seen.uri() {
        "/accel" => seen.answer("X-Accel-Redirect: /inner", b"own"),
        _ => seen.answer("Content-Length: 10\r\nX-A: 1", b"0123456789"),
    };
    let lines = "
        fastcgi_param URI /accel;
        location = /inner { return 200 inner; }
        location /obeyed { fastcgi_pass APP; }
        location /ignored { fastcgi_ignore_headers X-Accel-Redirect; fastcgi_pass APP; }
        location /whole { fastcgi_param URI /x; fastcgi_force_ranges off; fastcgi_pass APP; }
        location /ranges { fastcgi_param URI /x; fastcgi_force_ranges on; fastcgi_pass APP; }
        location /bound { fastcgi_bind 127.0.0.2; fastcgi_pass APP; }
        location /unbound { fastcgi_bind off; fastcgi_pass APP; }";
    with_server(engine, lines, by_uri, |server, application| {
        assert!(get(server, "/obeyed").ends_with("inner"));
        assert!(get(server, "/ignored").contains("own"));
        let range = |path: &str| {
            ask(
                server,
                &format!("GET {path} HTTP/1.0\r\nRange: bytes=2-4\r\n\r\n"),
            )
        };
        let (whole, part) = (range("/whole"), range("/ranges"));
        assert!(
            status(&whole) == 200 && whole.ends_with("0123456789"),
            "{whole}"
        );
        assert!(
            status(&part) == 206 && part.ends_with("\r\n\r\n234"),
            "{part}"
        );
        get(server, "/bound");
        assert_eq!(application.last().peer, "127.0.0.2");
        get(server, "/unbound");
        assert_eq!(application.last().peer, "127.0.0.1");
    });
}

support::test_on_each_engine!(fields_ranges_and_addresses);

fn the_pace_of_answers(engine: &'static str) {
    let large = |seen: &Seen| seen.answer("X-A: 1", &[b'x'; 60_000]);
    let lines = "
        location /slow { fastcgi_limit_rate 40k; fastcgi_pass APP; }
        location /quick { fastcgi_limit_rate 0; fastcgi_pass APP; }";
    with_server(engine, lines, large, |server, _| {
        let took = |path: &str| {
            let began = Instant::now();
            let answer = ask(server, &format!("GET {path} HTTP/1.0\r\n\r\n"));
            let body = answer.bytes().rev().take_while(|byte| *byte == b'x');
            assert_eq!(body.count(), 60_000);
            began.elapsed()
        };
        let (slow, quick) = (took("/slow"), took("/quick"));
        assert!(
            slow >= Duration::from_millis(900) && quick < slow,
            "{slow:?} {quick:?}"
        );
    });
}

support::test_on_each_engine!(the_pace_of_answers);

fn answers_are_stored(engine: &'static str) {
    let lines = "
        location /kept/ { root temp; fastcgi_store on; fastcgi_store_access user:rw group:rw all:r; fastcgi_pass APP; }
        location /own/ { root temp; fastcgi_store on; fastcgi_store_access user:rw; fastcgi_pass APP; }
        location /none/ { root temp; fastcgi_store off; fastcgi_pass APP; }";
    with_server(
        engine,
        lines,
        |seen| seen.answer("X-A: 1", b"stored"),
        |server, _| {
            // Worker processes may be of another user.
            let folder = server.prefix.join("temp");
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
            for path in ["/kept/a", "/own/a", "/none/a"] {
                assert_eq!(status(&get(server, path)), 200);
            }
            let file = |path: &str| server.prefix.join("temp").join(path);
            for (path, mode) in [("kept/a", 0o664), ("own/a", 0o600)] {
                let stored = fs::read(file(path));
                assert_eq!(
                    stored.ok().as_deref(),
                    Some(&b"stored"[..]),
                    "{path}: {}",
                    server.error_log()
                );
                let found = fs::metadata(file(path)).unwrap().permissions().mode() & 0o777;
                assert_eq!(found, mode, "{path}");
            }
            assert!(!file("none/a").exists());
        },
    );
}

support::test_on_each_engine!(answers_are_stored);

fn what_a_slow_client_leaves_goes_to_a_file(engine: &'static str) {
    const LENGTH: usize = 6 << 20;
    let large = |seen: &Seen| seen.answer("X-A: 1", &vec![b'x'; LENGTH]);
    let lines = "

        location /file { fastcgi_temp_path temp/one 2; fastcgi_buffers 4 8k; fastcgi_busy_buffers_size 8k; fastcgi_temp_file_write_size 16k;
            fastcgi_pass APP; }
        location /memory { fastcgi_max_temp_file_size 0; fastcgi_pass APP; }
        location /apart { fastcgi_buffering off; fastcgi_pass APP; }";
    with_server(engine, lines, large, |server, _| {
        for (path, in_file) in [("/memory", false), ("/apart", false), ("/file", true)] {
            let before = server.error_log().len();
            let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let request = format!("GET {path} HTTP/1.0\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            if in_file {
                server.wait_for_log("an upstream response is buffered to a temporary file");
                let log = &server.error_log()[before..];
                assert!(log.contains("/temp/one/"), "{log}");
            } else {
                thread::sleep(Duration::from_millis(300));
            }
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            let body = all.iter().rev().take_while(|byte| **byte == b'x').count();
            assert_eq!(body, LENGTH, "{path}");
            let log = &server.error_log()[before..];
            assert_eq!(
                log.contains("buffered to a temporary file"),
                in_file,
                "{log}"
            );
        }
    });
}

support::test_on_each_engine!(what_a_slow_client_leaves_goes_to_a_file);
