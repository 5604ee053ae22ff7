//! Upstreams whose answers are bad, each kind by its name: what the client gets, what the log says,
//! whether another server is asked, and that a connection with anything left over is never used
//! again. In one piece, and one byte a segment.
//!
//! On both engines; TIDEGATE_BINARY with nginx 1.31 checks the table itself. Where Tidegate means
//! to differ (docs/differences.md) its tests are in tests/robustness/proxying.rs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use support::master::wait_for;
use support::{PATIENCE, Server, origin};

/// One way to answer badly.
struct Case {
    name: &'static str,
    /// What is sent.
    answer: &'static str,
    /// What is sent behind it, again and again, as long as anyone takes it.
    flood: &'static str,
    then: Then,
    counts_as: CountsAs,
    /// A line of the error log: level, and text.
    log: (&'static str, &'static str),
}

/// What follows the answer.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    /// The connection stays open: whatever follows would be too much.
    Waits,
    Closes,
    Resets,
}

/// Which of the causes of `proxy_next_upstream` it is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum CountsAs {
    /// `error`: 502 without another server.
    Error,
    /// `timeout`: 504.
    Timeout,
    /// `invalid_header`: 502.
    InvalidHeader,
    /// None: its head has gone to the client, and the connection ends in the middle of the body.
    BrokenBody,
    /// None: the client gets the answer whole.
    Nothing,
}

const fn case(
    name: &'static str,
    answer: &'static str,
    then: Then,
    counts_as: CountsAs,
    log: (&'static str, &'static str),
) -> Case {
    Case {
        name,
        answer,
        flood: "",
        then,
        counts_as,
        log,
    }
}

const RESET: (&str, &str) = (
    "error",
    "recv() failed (104: Connection reset by peer) while reading response header from upstream",
);
const CLOSED: (&str, &str) = (
    "error",
    "upstream prematurely closed connection while reading response header from upstream",
);
const TIMED_OUT: (&str, &str) = (
    "error",
    "upstream timed out (110: Connection timed out) while reading response header from upstream",
);
const TOO_BIG: (&str, &str) = (
    "error",
    "upstream sent too big header while reading response header from upstream",
);

use CountsAs::{BrokenBody, Error, InvalidHeader, Nothing, Timeout};
use Then::{Closes, Resets, Waits};

const CASES: &[Case] = &[
    case("closes-before-the-head", "", Closes, Error, CLOSED),
    case("resets-before-the-head", "", Resets, Error, RESET),
    case("stalls-before-the-head", "", Waits, Timeout, TIMED_OUT),
    case(
        "closes-in-the-status-line",
        "HTTP/1.1 20",
        Closes,
        Error,
        CLOSED,
    ),
    case(
        "closes-in-the-head",
        "HTTP/1.1 200 OK\r\nContent-Le",
        Closes,
        Error,
        CLOSED,
    ),
    case(
        "resets-in-the-head",
        "HTTP/1.1 200 OK\r\nContent-Le",
        Resets,
        Error,
        RESET,
    ),
    case(
        "stalls-in-the-head",
        "HTTP/1.1 200 OK\r\nContent-Le",
        Waits,
        Timeout,
        TIMED_OUT,
    ),
    case(
        "closes-before-the-empty-line",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n",
        Closes,
        Error,
        CLOSED,
    ),
    case(
        "early-hints-then-reset",
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
        Resets,
        Error,
        RESET,
    ),
    case(
        "early-hints-then-nothing",
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
        Closes,
        Error,
        CLOSED,
    ),
    case(
        "both-lengths",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        Waits,
        InvalidHeader,
        (
            "error",
            "upstream sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time",
        ),
    ),
    case(
        "two-lengths",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        Waits,
        InvalidHeader,
        (
            "error",
            "upstream sent duplicate header line: \"Content-Length: 2\", previous value: \"Content-Length: 2\"",
        ),
    ),
    case(
        "a-length-below-zero",
        "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        Waits,
        InvalidHeader,
        (
            "error",
            "upstream sent invalid \"Content-Length\" header: \"Content-Length: -2\"",
        ),
    ),
    case(
        "a-length-beyond-63-bits",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nok",
        Waits,
        InvalidHeader,
        (
            "error",
            "upstream sent invalid \"Content-Length\" header: \"Content-Length: 99999999999999999999\"",
        ),
    ),
    case(
        "an-unknown-coding",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
        Waits,
        InvalidHeader,
        (
            "error",
            "upstream sent unknown \"Transfer-Encoding\": \"gzip\"",
        ),
    ),
    case(
        "a-blank-in-a-name",
        "HTTP/1.1 200 OK\r\nBad Name: x\r\nContent-Length: 2\r\n\r\nok",
        Waits,
        InvalidHeader,
        ("error", "upstream sent invalid header: \"Bad\\x20...\""),
    ),
    Case {
        flood: "x",
        ..case(
            "a-field-without-end",
            "HTTP/1.1 200 OK\r\nField: ",
            Waits,
            InvalidHeader,
            TOO_BIG,
        )
    },
    Case {
        flood: "Field: value\r\n",
        ..case(
            "fields-without-end",
            "HTTP/1.1 200 OK\r\n",
            Waits,
            InvalidHeader,
            TOO_BIG,
        )
    },
    case(
        "closes-in-the-body",
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        Closes,
        BrokenBody,
        (
            "error",
            "upstream prematurely closed connection while reading upstream",
        ),
    ),
    case(
        "resets-in-the-body",
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        Resets,
        BrokenBody,
        (
            "error",
            "readv() failed (104: Connection reset by peer) while reading upstream",
        ),
    ),
    case(
        "stalls-in-the-body",
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        Waits,
        BrokenBody,
        (
            "error",
            "upstream timed out (110: Connection timed out) while reading upstream",
        ),
    ),
    case(
        "closes-between-chunks",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
        Closes,
        BrokenBody,
        (
            "error",
            "upstream prematurely closed connection while reading upstream",
        ),
    ),
    case(
        "a-chunk-that-is-none",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\nno chunk\r\n",
        Waits,
        BrokenBody,
        (
            "error",
            "upstream sent invalid chunked response while reading upstream",
        ),
    ),
    case(
        "bytes-behind-the-body",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwholeHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad",
        Waits,
        Nothing,
        (
            "warn",
            "upstream sent more data than specified in \"Content-Length\" header while reading upstream",
        ),
    ),
    case(
        "bytes-behind-the-last-chunk",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nwhole\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad",
        Waits,
        Nothing,
        (
            "warn",
            "upstream sent data after final chunk while reading upstream",
        ),
    ),
];

/// What bad servers have seen.
#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    /// Requests on a connection on which one had been answered.
    second_requests: AtomicUsize,
    ended: AtomicUsize,
}

/// A server that answers as the path says: `/NAME`, or `/NAME/drip` for one byte a segment.
fn bad_server(seen: &Arc<Seen>) -> u16 {
    let seen = Arc::clone(seen);
    origin::listen(move |stream| {
        seen.connections.fetch_add(1, Ordering::SeqCst);
        let _ = answer(stream, &seen);
        seen.ended.fetch_add(1, Ordering::SeqCst);
    })
}

fn answer(mut stream: TcpStream, seen: &Seen) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let line = read_until(&mut stream, b"\r\n")?;
    let mut path = line.split(' ').nth(1).unwrap().split('/').skip(1);
    let name = path.next().unwrap();
    let case = CASES.iter().find(|case| case.name == name).unwrap();
    // What has been sent and is not read when the connection is closed makes the kernel reset it.
    if case.then != Resets {
        read_until(&mut stream, b"\r\n\r\n")?;
    }
    let pieces: Vec<&[u8]> = match path.next() {
        Some("drip") => case.answer.as_bytes().chunks(1).collect(),
        _ => vec![case.answer.as_bytes()],
    };
    for piece in pieces {
        stream.write_all(piece)?;
        thread::sleep(Duration::from_micros(300));
    }
    while !case.flood.is_empty() {
        stream.write_all(case.flood.as_bytes())?;
    }
    match case.then {
        // What was sent is to be read before the reset.
        Resets => thread::sleep(Duration::from_millis(20)),
        Closes => {}
        Waits => {
            if stream.read(&mut [0; 1024])? > 0 {
                seen.second_requests.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
    Ok(())
}

fn read_until(stream: &mut TcpStream, end: &[u8]) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(end) {
        stream.read_exact(&mut byte)?;
        bytes.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn lines(bad: u16) -> String {
    format!(
        "location /off/ {{ proxy_pass http://u/; proxy_next_upstream off; }}
         location /errors/ {{ proxy_pass http://u/; }}
         location /headers/ {{ proxy_pass http://u/; proxy_next_upstream invalid_header; }}
         [http]
         proxy_read_timeout 250ms; proxy_buffer_size 1k;
         server {{ listen 127.0.0.2:PORT; return 200 good; }}
         upstream u {{ keepalive 8; server 127.0.0.1:{bad} max_fails=0; server 127.0.0.2:PORT backup; }}"
    )
}

/// Status and body of an answer, and whether it came whole.
fn get(port: u16, path: &str) -> (u16, String, bool) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    if text.is_empty() {
        // the head was held back, as in nginx, until it was of no use
        return (200, String::new(), false);
    }
    let (head, body) = text
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("{path}: {text}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    let (body, is_whole) = match length {
        Some(length) => (
            body.to_owned(),
            body.len() == length.parse::<usize>().unwrap(),
        ),
        None => {
            let is_whole = body.ends_with("0\r\n\r\n");
            let data = body.split("\r\n").skip(1).step_by(2);
            (data.collect(), is_whole)
        }
    };
    (status, body, is_whole)
}

/// What is to come of a case under the causes of `place`.
fn expected(case: &Case, place: &str) -> (u16, &'static str, bool) {
    let good = (200, "good", true);
    match (case.counts_as, place) {
        (Error | Timeout, "errors") | (InvalidHeader, "headers") => good,
        (Timeout, _) => (504, "", true),
        (Error | InvalidHeader, _) => (502, "", true),
        (BrokenBody, _) => (200, "short", false),
        (Nothing, _) => (200, "whole", true),
    }
}

fn bad_answers_have_their_status_their_line_and_their_retry(engine: &'static str) {
    let seen = Arc::<Seen>::default();
    let server = Server::start(engine, &lines(bad_server(&seen)));
    let mut requests = 0;
    for case in CASES {
        for manner in ["", "/drip"] {
            let before = server.error_log().len();
            for place in ["off", "errors", "headers"] {
                let path = format!("/{place}/{}{manner}", case.name);
                let (status, body, is_whole) = get(server.port, &path);
                let (wanted, text, whole) = expected(case, place);
                assert_eq!((status, is_whole), (wanted, whole), "{path}: {body}");
                // What had come of a broken body nginx may hold back.
                if whole && status == 200 {
                    assert_eq!(body, text, "{path}");
                }
                requests += 1;
                thread::sleep(Duration::from_millis(5));
            }
            // What comes byte by byte behind a body finds that the connection is idle, and ends
            // it without a line.
            if case.counts_as == Nothing && !manner.is_empty() {
                continue;
            }
            let (level, text) = case.log;
            let mut lines = 0;
            for _ in 0..100 {
                let log = server.error_log();
                let log = log[before..].lines().filter(|line| line.contains(text));
                lines = log
                    .filter(|line| line.contains(&format!("[{level}]")))
                    .count();
                if lines >= 3 {
                    break;
                }
                thread::sleep(Duration::from_millis(10));
            }
            let log = server.error_log();
            assert_eq!(lines, 3, "{}: {text}\n{}", case.name, &log[before..]);
        }
    }
    // Each had a connection of its own, which has ended.
    assert_eq!(seen.second_requests.load(Ordering::SeqCst), 0);
    assert_eq!(seen.connections.load(Ordering::SeqCst), requests);
    wait_for("the end of all connections", || {
        seen.ended.load(Ordering::SeqCst) == requests
    });
}

support::test_on_each_engine!(bad_answers_have_their_status_their_line_and_their_retry);
