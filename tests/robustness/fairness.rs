//! Quick parties: while bytes pass between two of them without end, other connections are served.
//!
//! One thread serves all. The parties are threads that write and read as fast as they can, so that
//! the server always finds something to read and room to write. What is looked at is the order: a
//! request that comes in between is answered before they end, which they do only then. How many
//! bytes a connection may move in a turn is counted where it can be, in the engine's own tests.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::client::wait_until;
use crate::server::{Server, Setup, on_each_engine};
use crate::upstream;

/// Bytes that have passed before the other connection comes.
const UNDER_WAY: u64 = 4 * 1024 * 1024;

/// Requests of other connections that are answered in between.
const OTHERS: usize = 3;

/// Parties of one test, and what they have sent and received.
#[derive(Clone, Default)]
struct Parties {
    over: Arc<AtomicBool>,
    passed: Arc<AtomicU64>,
}

impl Parties {
    /// Sends until it is over or the other end takes no more.
    fn send(&self, mut stream: &TcpStream) {
        let block = [b'x'; 64 * 1024];
        stream
            .set_write_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        while !self.over.load(Ordering::Relaxed) {
            if let Ok(count) = stream.write(&block) {
                self.passed.fetch_add(count as u64, Ordering::Relaxed);
            }
        }
    }

    /// Receives until it is over.
    fn receive(&self, mut stream: &TcpStream) {
        let mut block = [0; 64 * 1024];
        stream
            .set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        while !self.over.load(Ordering::Relaxed) {
            if let Ok(count) = stream.read(&mut block) {
                self.passed.fetch_add(count as u64, Ordering::Relaxed);
            }
        }
    }

    fn send_and_receive(&self, stream: &TcpStream) {
        std::thread::scope(|scope| {
            scope.spawn(|| self.send(stream));
            self.receive(stream);
        });
    }
}

/// Has a client ask and then send and receive without end; others are to be served meanwhile.
fn others_are_served(server: &Server, parties: &Parties, head: &str) {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| parties.send_and_receive(&stream));
        let begun = || parties.passed.load(Ordering::Relaxed) > UNDER_WAY;
        // The parties end even where this test fails.
        let served = std::panic::catch_unwind(|| {
            wait_until("the parties are under way", begun);
            for _ in 0..OTHERS {
                assert_eq!(server.connect().get("/own").body, b"own");
            }
        });
        parties.over.store(true, Ordering::Relaxed);
        served.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// A server with one thread before an upstream that is as quick.
fn one_thread(engine: &str, parties: &Parties, answer: &'static str) -> Server {
    let party = parties.clone();
    let upstream = upstream::start(move |mut stream, _| {
        if answer.is_empty() {
            return party.receive(&stream); // so that a request's body goes on
        }
        let _ = stream.write_all(answer.as_bytes());
        party.send_and_receive(&stream);
    });
    let http = format!(
        "lingering_time 300s; client_max_body_size 0;
        server {{
            listen 127.0.0.1:@PORT@;
            location / {{
                proxy_pass http://127.0.0.1:{upstream}; proxy_http_version 1.1;
                proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;
                proxy_request_buffering off; proxy_buffering off;
            }}
            location /own {{ return 200 own; }}
            location /closing {{ keepalive_timeout 0; return 200 closing; }}
            location /small {{ client_max_body_size 1; return 200 small; }}
        }}"
    );
    Setup::new(engine, &http)
        .main("worker_processes 1;")
        .start()
}

#[test]
fn tunnels() {
    on_each_engine(|engine| {
        let parties = Parties::default();
        let answer =
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: raw\r\n\r\n";
        let server = one_thread(engine, &parties, answer);
        let head = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: raw\r\n\r\n";
        others_are_served(&server, &parties, head);
    });
}

#[test]
fn proxied_bodies() {
    on_each_engine(|engine| {
        for answer in [
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n",
        ] {
            let parties = Parties::default();
            let server = one_thread(engine, &parties, answer);
            others_are_served(&server, &parties, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        }
    });
}

#[test]
fn streamed_request_bodies() {
    on_each_engine(|engine| {
        let parties = Parties::default();
        let server = one_thread(engine, &parties, "");
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000000\r\n\r\n";
        others_are_served(&server, &parties, head);
    });
}

#[test]
fn bodies_that_are_skipped() {
    on_each_engine(|engine| {
        for path in ["/own", "/closing", "/small"] {
            let parties = Parties::default();
            let server = one_thread(engine, &parties, "");
            let head =
                format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000000\r\n\r\n");
            others_are_served(&server, &parties, &head);
        }
    });
}
