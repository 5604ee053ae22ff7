//! What an upstream says while its client is still being sent something else is read ahead, and
//! reaches the client once that is possible: also where the upstream says nothing more before it
//! does. On both engines; TIDEGATE_BINARY with nginx checks what is expected.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use support::{PATIENCE, Server};

/// What an upstream sends, each part once the client has something of the one before.
const PARTS: [&str; 3] = [
    "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n",
    "first ",
    "other",
];

/// Answers one request.
fn answer(listener: &TcpListener, has_come: &Receiver<()>) {
    let (mut stream, _) = listener.accept().unwrap();
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
        head.push(byte[0]);
    }
    for part in PARTS {
        stream.write_all(part.as_bytes()).unwrap();
        let _ = has_come.recv_timeout(PATIENCE);
    }
}

fn read_until(stream: &mut TcpStream, seen: &mut String, text: &str) {
    let mut part = [0; 1024];
    while !seen.contains(text) {
        let count = stream.read(&mut part).unwrap_or(0);
        assert!(count > 0, "no {text:?} behind {seen:?}");
        seen.push_str(&String::from_utf8_lossy(&part[..count]));
    }
}

/// The head takes seconds, in which the first part of the body comes. What follows that part comes
/// only when the client has it.
fn what_comes_while_a_head_waits_for_its_time_is_not_left_lying(engine: &'static str) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let lines = format!(
        "limit_rate 100; add_header X-Long {};
             location / {{ proxy_pass http://{}; proxy_read_timeout 60s; }}",
        "x".repeat(100),
        listener.local_addr().unwrap()
    );
    let server = Server::start(engine, &lines);
    let (say, has_come) = channel();
    let upstream = thread::spawn(move || answer(&listener, &has_come));
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    // Less than the server waits for its upstream.
    let timeout = Duration::from_secs(20);
    stream.set_read_timeout(Some(timeout)).unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut seen = String::new();
    for text in [
        "HTTP/1.1 200 OK\r\n",
        "\r\n\r\nfirst ",
        "\r\n\r\nfirst other",
    ] {
        read_until(&mut stream, &mut seen, text);
        say.send(()).unwrap();
    }
    upstream.join().unwrap();
}

support::test_on_each_engine!(what_comes_while_a_head_waits_for_its_time_is_not_left_lying);
