//! Requests on one connection: where one ends and the next begins, whatever is done to the bytes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::client::{Client, End, get, wait_until};
use crate::server::{Setup, on_each_engine};

/// Has a place for each way of leaving a request's body unread, and one that reads it.
const SITE: &str = "
    server {
        listen 127.0.0.1:@PORT@;
        root @ROOT@;
        location /return { return 200 returned; }
        location /refused { return 403; }
        location /proxied { proxy_pass http://127.0.0.1:@PORT2@; }
    }
    server { listen 127.0.0.1:@PORT2@; location / { return 200 upstream; } }";

/// A body that would be a request.
const EVIL: &str = "GET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn with_length(path: &str) -> String {
    let length = EVIL.len();
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{EVIL}")
}

fn in_chunks(path: &str) -> String {
    let length = EVIL.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n\
         {length:x};why=not\r\n{EVIL}\r\n1\r\nx\r\n0\r\nTrailer: x\r\n\r\n"
    )
}

/// Requests that are answered without their bodies, each with a GET behind it.
fn unread_bodies() -> (String, Vec<u16>) {
    let mut stream = String::new();
    let mut statuses = Vec::new();
    for (path, status) in [
        ("/return", 200),
        ("/refused", 403),
        ("/nothing", 404),
        ("/a.txt", 405),
        ("/proxied", 200),
    ] {
        for request in [with_length(path), in_chunks(path)] {
            stream.push_str(&request);
            stream.push_str(&get("/a.txt"));
            statuses.extend([status, 200]);
        }
    }
    (stream, statuses)
}

fn statuses(client: &mut Client, count: usize) -> Vec<u16> {
    (0..count)
        .map_while(|_| client.try_response().ok().map(|r| r.status))
        .collect()
}

#[test]
fn bodies_that_nobody_reads_are_no_requests() {
    on_each_engine(|engine| {
        let server = Setup::new(engine, SITE).start();
        let (stream, expected) = unread_bodies();
        let mut client = server.connect();
        client.send(&stream);
        assert_eq!(statuses(&mut client, expected.len()), expected);
        assert_eq!(client.rest_within(Duration::from_millis(50)).1, End::Open);
        assert!(!server.access_log().contains("/evil"));
    });
}

#[test]
fn it_does_not_matter_where_the_bytes_are_split() {
    const THREADS: usize = 8;
    on_each_engine(|engine| {
        let server = Setup::new(engine, SITE).start();
        let (stream, expected) = unread_bodies();
        let next = AtomicUsize::new(1);
        let wrong = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some((first, second)) = stream.split_at_checked(at) else {
                            break;
                        };
                        let mut client = server.connect();
                        client.send(first);
                        std::thread::sleep(Duration::from_millis(2));
                        client.send(second);
                        if statuses(&mut client, expected.len()) != expected {
                            wrong.lock().unwrap().push(at);
                        }
                    }
                });
            }
        });
        assert_eq!(
            *wrong.lock().unwrap(),
            [],
            "split there it is answered in another way"
        );
        assert!(!server.access_log().contains("/evil"));
    });
}

#[test]
fn a_stream_of_single_bytes_is_understood() {
    on_each_engine(|engine| {
        let server = Setup::new(engine, SITE).start();
        let stream = [in_chunks("/proxied"), get("/a.txt")].concat();
        let mut client = server.connect();
        for byte in stream.as_bytes() {
            client.send([*byte]);
            std::thread::sleep(Duration::from_micros(500));
        }
        assert_eq!(client.response().body, b"upstream");
        assert_eq!(client.response().body, b"0123456789");
    });
}

/// RFC 9112, sections 6.1 and 6.3; 7.1 for chunks. nginx answers all of these with 400 (a transfer
/// coding that it does not know with 501) and closes.
#[test]
fn contradictory_framing_ends_the_connection() {
    let heads = [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5, 5",
        "Content-Length: +5",
        "Content-Length: -5",
        "Content-Length: 0x5",
        "Content-Length: 99999999999999999999",
        "Content-Length :5",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: \x0bchunked",
    ];
    let chunks = [
        "-5\r\nhello\r\n",
        "0x5\r\nhello\r\n",
        "\r\nhello\r\n",
        "5\nhello\n",
        "3\r\nhello\r\n",
        "10000000000000005\r\nhello\r\n",
        "ffffffffffffffff\r\nhello\r\n",
    ];
    let bodies = chunks.map(|chunks| format!("Transfer-Encoding: chunked\r\n\r\n{chunks}0"));
    let heads = heads.map(|head| format!("{head}\r\n\r\n0"));
    on_each_engine(|engine| {
        let server = Setup::new(engine, SITE).start();
        for rest in heads.iter().chain(&bodies) {
            let mut client = server.connect();
            let head = "POST /proxied HTTP/1.1\r\nHost: localhost\r\n";
            client.send(format!("{head}{rest}\r\n\r\n{EVIL}"));
            let (bytes, end) = client.rest();
            let text = String::from_utf8_lossy(&bytes);
            assert!(
                text.starts_with("HTTP/1.1 400 ") || text.starts_with("HTTP/1.1 501 "),
                "{rest:?}: {text}"
            );
            assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{rest:?}: {text}");
            assert_ne!(end, End::Open, "{rest:?}");
        }
        assert!(!server.access_log().contains("/evil"));
    });
}

#[test]
fn an_early_refusal_reaches_a_client_that_is_still_sending() {
    on_each_engine(|engine| {
        let http = SITE.replace(
            "location /refused",
            "client_max_body_size 1k; location /refused",
        );
        let server = Setup::new(engine, &http).start();
        for _ in 0..10 {
            let mut client = server.connect();
            let head =
                "POST /proxied HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n";
            client.send(head).send(vec![b'x'; 4_000_000]);
            assert_eq!(client.response().status, 413);
        }
    });
}

#[test]
fn a_chunk_that_is_too_large_is_refused_by_its_size() {
    const SITE: &str = "
        client_max_body_size 1000;
        server {
            listen 127.0.0.1:@PORT@;
            location / { proxy_pass http://127.0.0.1:@PORT2@; }
            location /streamed { proxy_request_buffering off; proxy_http_version 1.1; proxy_pass http://127.0.0.1:@PORT2@; }
            location /put { root @FOLDER@/temp; dav_methods PUT; }
            location /unread { return 200 unread; }
        }
        server { listen 127.0.0.1:@PORT2@; location / { proxy_pass http://127.0.0.1:@PORT2@/taken; } location /taken { return 200; } }";
    on_each_engine(|engine| {
        let server = Setup::new(engine, SITE).start();
        let refused = "client intended to send too large chunked body: ";
        for path in ["/", "/streamed", "/put/file"] {
            let method = if path == "/put/file" { "PUT" } else { "POST" };
            let head = format!(
                "{method} {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            );
            // Not a byte of the chunk has come when it is refused.
            for (parts, sizes) in [
                (&["3e9\r\n"][..], "0+1001 bytes"),
                (&["5\r\nhello\r\n3e4\r\n"], "5+996 bytes"),
                (&["5\r\nhello\r\n", "3e5;a=b\r\n"], "5+997 bytes"),
                (&["7ffffffffffffff\r\n"], "0+576460752303423487 bytes"),
            ] {
                let before = server.error_log().matches(refused).count();
                let mut client = server.connect();
                client.send(&head);
                for part in parts {
                    client.wait_until_read();
                    client.send(part);
                }
                let response = client.response();
                assert_eq!(
                    (response.status, response.closes()),
                    (413, true),
                    "{path} {parts:?}"
                );
                let count = || server.error_log().matches(refused).count();
                wait_until("the log says so", || count() > before);
                assert_eq!(count(), before + 1);
                let log = server.error_log();
                assert!(log.contains(&format!("{refused}{sizes}")), "{log}");
            }
            // What is just as long as it may be is taken.
            let body = format!("3e7\r\n{}\r\n1\r\nx\r\n0\r\n\r\n", "y".repeat(999));
            let response = server.connect().send(head + &body).response();
            // Documents are not the worker's to write.
            let taken = if path == "/put/file" { 500 } else { 200 };
            assert_eq!(response.status, taken, "{path}: {}", response.head);
        }
        // Where a body is not read, its length is of no interest, as with nginx.
        let unread =
            "POST /unread HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n";
        assert_eq!(server.connect().send(unread).response().status, 200);
    });
}

#[test]
fn pipelined_requests_are_answered_in_order_up_to_the_fault() {
    on_each_engine(|engine| {
        let server = Setup::new(engine, SITE).start();
        let mut client = server.connect();
        let mut stream = String::new();
        for number in 0..300 {
            stream.push_str(&get(if number % 3 == 0 { "/return" } else { "/a.txt" }));
        }
        stream.push_str("GET /a.txt HTTP/1.1\r\nno colon\r\n\r\n");
        client.send(stream);
        for number in 0..300 {
            let expected: &[u8] = if number % 3 == 0 {
                b"returned"
            } else {
                b"0123456789"
            };
            assert_eq!(client.response().body, expected);
        }
        assert_eq!(client.response().status, 400);
        assert_eq!(client.rest().1, End::Closed);
    });
}

/// A line break that a client has escaped ends neither a field of the response nor one of the
/// request to the upstream.
#[test]
fn a_line_break_in_a_variable_ends_no_field() {
    on_each_engine(|engine| {
        let site = "
            server {
                listen 127.0.0.1:@PORT@;
                location /field { add_header X-Uri $uri; return 200 x; }
                location /trailer { add_trailer X-Uri $uri; return 200 x; }
                location /location { return 302 http://other$uri; }
                location ~ ^/own/(.*) { return 302 /$1; }
                location /realm { auth_basic $uri; auth_basic_user_file users; }
                location /set { proxy_set_header X-Uri $uri; proxy_pass http://127.0.0.1:@PORT2@; }
                location /uri { proxy_pass http://127.0.0.1:@PORT2@$uri; }
            }
            server {
                listen 127.0.0.1:@PORT2@;
                add_header Heard evil:$http_evil;
                location / { return 200 upstream; }
            }";
        let server = Setup::new(engine, site).start();
        for path in [
            "/field",
            "/trailer",
            "/location",
            "/own",
            "/realm",
            "/set",
            "/uri",
        ] {
            let target = format!("{path}/%20HTTP/1.1%0d%0aEvil:%201%0d%0aX:%20");
            let mut client = server.connect();
            client.send(format!(
                "GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            ));
            let (answer, _) = client.rest();
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
            assert!(!answer.contains("\nEvil"), "{path}: {answer}");
            assert!(!answer.contains("evil:1"), "{path}: {answer}");
        }
    });
}
