//! Connections that the server makes count among `worker_connections`: a proxy that leads to itself
//! ends at once with an error, and stops no other client.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::client::{Client, End, get, wait_until};
use crate::server::{Server, Setup, on_each_engine};

/// The same by HTTP/2 and by gRPC, whose requests share connections.
const SHARED_LOOPS: &str = "server { listen 127.0.0.1:@PORT@; http2 on;
         location / { return 200 here; }
         location /http2 { proxy_http_version 2; proxy_pass http://127.0.0.1:@PORT@; }
         location /over { proxy_http_version 2; proxy_pass http://127.0.0.1:@PORT2@; }
         location /grpc { grpc_pass 127.0.0.1:@PORT@; }
         location /kept { grpc_pass itself; }
     }
     server { listen 127.0.0.1:@PORT2@; http2 on;
         location / { return 200 there; }
         location /over { grpc_pass 127.0.0.1:@PORT@; }
     }
     upstream itself { server 127.0.0.1:@PORT@; keepalive 64; }";

/// What nginx writes, and so do we.
const SHORTAGE: &str = "worker_connections are not enough";

/// Loops over one server and over two, and beside them one that answers by itself.
const LOOPS: &str = "server { listen 127.0.0.1:@PORT@;
         location / { return 200 here; }
         location /loop { proxy_pass http://127.0.0.1:@PORT@; }
         location /over { proxy_pass http://127.0.0.1:@PORT2@; }
         location /kept { proxy_http_version 1.1; proxy_set_header Connection ''; proxy_pass http://itself; }
     }
     server { listen 127.0.0.1:@PORT2@;
         location / { return 200 there; }
         location /over { proxy_pass http://127.0.0.1:@PORT@; }
     }
     upstream itself { server 127.0.0.1:@PORT@; keepalive 64; }";

fn start(engine: &str, http: &str, connections: usize) -> Server {
    Setup::new(engine, http)
        .main("worker_processes 1;")
        .events(&format!("worker_connections {connections};"))
        .start()
}

/// How often a text stands in the error log.
fn count(server: &Server, text: &str) -> usize {
    server.error_log().matches(text).count()
}

#[test]
fn a_loop_is_answered_at_once_and_stops_nobody() {
    on_each_engine(|engine| {
        for connections in [64, 512] {
            let server = start(engine, LOOPS, connections);
            end_at_once(&server, connections, &["/loop", "/over", "/kept"]);
        }
    });
}

/// Requests that share a connection to an upstream take a place each.
#[test]
fn a_loop_over_shared_connections_is_answered_at_once_and_stops_nobody() {
    on_each_engine(|engine| {
        for connections in [64, 512] {
            let server = start(engine, SHARED_LOOPS, connections);
            end_at_once(&server, connections, &["/http2", "/over", "/grpc", "/kept"]);
        }
    });
}

/// Each of these paths leads to itself, while others are answered.
fn end_at_once(server: &Server, connections: usize, paths: &[&str]) {
    let begin = Instant::now();
    for path in paths {
        let answer = server.connect().get(path);
        // As in nginx: 500 where no connection could be made, 502 where one was not
        // accepted.
        assert!(
            matches!(answer.status, 500 | 502),
            "{path} with {connections}: {}",
            answer.status
        );
        assert_eq!(server.connect().get("/").body, b"here");
        assert_eq!(Client::connect(server.port2).get("/").body, b"there");
    }
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    let asked = server.access_log().lines().count();
    assert!(asked <= (connections + 2) * paths.len(), "{asked} requests");
    let told = format!("{connections} {SHORTAGE} while connecting to upstream, client: ");
    wait_until("it is told", || server.error_log().contains(&told));
    assert!(server.error_log().contains("[alert] "));
    assert!(count(server, SHORTAGE) <= 2 * (took.as_secs() as usize + 2));
}

#[test]
fn others_are_answered_while_loops_run() {
    on_each_engine(|engine| {
        for (http, paths) in [
            (LOOPS, ["/loop", "/over"]),
            (SHARED_LOOPS, ["/grpc", "/over"]),
        ] {
            answer_beside(&start(engine, http, 64), paths);
        }
    });
}

/// Answers others while requests for these paths lead to themselves.
fn answer_beside(server: &Server, paths: [&str; 2]) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looping = scope.spawn(|| {
            for round in 0..60 {
                let status = server.connect().get(paths[round % 2]).status;
                assert!(matches!(status, 500 | 502), "{status}");
            }
            is_over.store(true, Ordering::Relaxed);
        });
        while !is_over.load(Ordering::Relaxed) && !looping.is_finished() {
            assert_eq!(Client::connect(server.port2).get("/").body, b"there");
        }
    });
}

/// Connections that are kept to upstreams, one to each of forty, make room for others.
#[test]
fn kept_connections_to_upstreams_make_room_for_others() {
    let upstream = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = upstream.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in upstream.incoming().flatten() {
            std::thread::spawn(move || answer_each(stream));
        }
    });
    on_each_engine(|engine| {
        let servers = (1..=40).map(|host| format!("server 127.0.0.{host}:{port};"));
        let servers: String = servers.collect();
        let http = format!(
            "upstream many {{ {servers} keepalive 64; }}
             server {{ listen 127.0.0.1:@PORT@; proxy_http_version 1.1;
                 proxy_set_header Connection ''; location / {{ proxy_pass http://many; }} }}"
        );
        let server = Setup::new(engine, &http)
            .main("worker_processes 1;")
            .events("worker_connections 32;")
            .start();
        for _ in 0..80 {
            assert_eq!(server.connect().get("/").body, b"kept");
        }
        let text = format!("32 {SHORTAGE}, reusing connections");
        wait_until("it is told", || server.error_log().contains(&text));
        assert_eq!(count(&server, "[alert]"), 0);
    });
}

fn answer_each(mut stream: TcpStream) {
    let mut unread = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        unread.extend_from_slice(&buffer[..count]);
        if unread.ends_with(b"\r\n\r\n") {
            unread.clear();
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nkept";
            if stream.write_all(answer).is_err() {
                return;
            }
        }
    }
}

/// Requests that wait for their upstream take all places: others are told so at once, and new
/// clients are closed.
#[test]
fn without_a_place_requests_fail_and_clients_are_closed_at_once() {
    on_each_engine(|engine| {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = silent.local_addr().unwrap().port();
        let http = format!(
            "server {{ listen 127.0.0.1:@PORT@; location / {{ return 200 here; }}
                 location /wait {{ proxy_pass http://127.0.0.1:{port}; }} }}"
        );
        let server = Setup::new(engine, &http)
            .main("worker_processes 1;")
            .events("worker_connections 32;")
            .start();
        let mut waiting: Vec<Client> = (0..15).map(|_| server.connect()).collect();
        for client in &mut waiting {
            client.send(get("/wait"));
        }
        let asked: Vec<_> = waiting.iter().map(|_| silent.accept()).collect();
        let mut refused = server.connect();
        assert_eq!(refused.get("/wait").status, 500);
        let mut busy = server.connect();
        busy.send("GET / HTTP/1.1\r\nHost: loc");
        let mut open = Vec::new();
        let mut is_closed = || {
            let mut late = server.connect();
            late.send("GET / HTTP/1.1\r\nHost: loc");
            let (said, end) = late.rest_within(Duration::from_millis(300));
            open.push(late);
            assert_eq!(said, b"");
            end != End::Open
        };
        // The first of them takes the place of the one that is idle.
        assert!((0..3).any(|_| is_closed()));
        assert!(is_closed());
        wait_until("it is told", || server.error_log().contains("[alert] "));
        assert_eq!(busy.send("alhost\r\n\r\n").response().body, b"here");
        drop((waiting, asked));
        wait_until("there is room again", || {
            let mut client = server.connect();
            client.send(get("/"));
            client
                .try_response()
                .is_ok_and(|answer| answer.body == b"here")
        });
    });
}

/// The same of TCP sessions.
#[test]
fn a_session_that_leads_to_itself_ends() {
    on_each_engine(|engine| {
        let stream =
            "stream { server { listen 127.0.0.1:@PORT2@; proxy_pass 127.0.0.1:@PORT2@; } }";
        let http = "server { listen 127.0.0.1:@PORT@; return 200 here; }";
        let server = Setup::new(engine, http)
            .main("worker_processes 1;")
            .main(stream)
            .events("worker_connections 64;")
            .start();
        for _ in 0..5 {
            let mut looping = Client::connect(server.port2);
            assert_eq!(
                looping.send("hello").rest_within(Duration::from_secs(10)).0,
                b""
            );
            assert_eq!(server.connect().get("/").body, b"here");
        }
        let text = format!("64 {SHORTAGE} while connecting to upstream, client: ");
        wait_until("it is told", || server.error_log().contains(&text));
    });
}
