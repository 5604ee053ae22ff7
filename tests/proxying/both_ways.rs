//! Answers that begin before the request's body has ended, from upstreams that each have a
//! connection to a request: both ways go on beside each other, and what ends one of them ends both.
//!
//! On both engines. TIDEGATE_BINARY with nginx 1.31 checks what is expected of it as well.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use proto::h2::{ErrorCode, frame};
use support::http2::{Client as Http2Client, put_data};
use support::{PATIENCE, Server, engines, in_parallel, is_nginx};

/// Bytes of a frame of HTTP/2 without a payload.
const EMPTY_FRAME: usize = 9;

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// What is spoken with the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http,
    Fastcgi,
    Uwsgi,
    Scgi,
}

impl Protocol {
    const ALL: [Protocol; 4] = [
        Protocol::Http,
        Protocol::Fastcgi,
        Protocol::Uwsgi,
        Protocol::Scgi,
    ];

    /// Whether a connection serves more than one request.
    fn keeps(self) -> bool {
        matches!(self, Protocol::Http | Protocol::Fastcgi)
    }

    /// How its directives begin.
    fn prefix(self) -> &'static str {
        match self {
            Protocol::Http => "proxy_",
            Protocol::Fastcgi => "fastcgi_",
            Protocol::Uwsgi => "uwsgi_",
            Protocol::Scgi => "scgi_",
        }
    }

    /// A server that passes bodies on as they come; `by_` in `more` stands for that.
    fn server(self, engine: &str, upstream: &Upstream, more: &str) -> Server {
        let address = upstream.0.local_addr().unwrap();
        let (location, http) = more.split_once("[http]").unwrap_or((more, ""));
        let passes = match self {
            Protocol::Http => {
                "proxy_pass http://u; proxy_http_version 1.1; proxy_set_header Connection \"\";"
            }
            Protocol::Fastcgi => {
                "fastcgi_pass u; fastcgi_keep_conn on; fastcgi_param CONTENT_LENGTH $content_length;"
            }
            Protocol::Uwsgi => "uwsgi_pass u; uwsgi_param CONTENT_LENGTH $content_length;",
            Protocol::Scgi => "scgi_pass u;",
        };
        let buffering = if location.contains("by_buffering") {
            ""
        } else {
            "by_buffering off;"
        };
        let lines = format!(
            "http2 on; error_log logs/error.log info; access_log logs/told.log told; location / {{ {passes} by_request_buffering off; {buffering} {location} }}
             [http]
             client_max_body_size 0;
             upstream u {{ server {address} max_fails=0; keepalive 4; }}
             log_format told '$request_method $status $request_length $body_bytes_sent $request_completion $upstream_bytes_sent';
             {http}"
        );
        Server::start(engine, &lines.replace("by_", self.prefix()))
    }
}

/// Listens for what is passed on.
struct Upstream(TcpListener);

impl Upstream {
    fn bind() -> Upstream {
        Upstream(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    /// The next connection.
    fn accept(&self, protocol: Protocol) -> Peer {
        let (stream, _) = self.0.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Peer {
            stream,
            protocol,
            in_chunks: false,
            got: 0,
        }
    }
}

/// An upstream's end of a connection.
struct Peer {
    stream: TcpStream,
    protocol: Protocol,
    /// The body comes in chunks.
    in_chunks: bool,
    /// Bytes that have come for the request.
    got: usize,
}

impl Peer {
    fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        self.got += length;
        Ok(bytes)
    }

    /// All up to this text.
    fn until(&mut self, end: &str) -> io::Result<String> {
        let mut text = Vec::new();
        while !text.ends_with(end.as_bytes()) {
            text.extend(self.exactly(1)?);
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// A record of FastCGI: its type and content.
    fn record(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let header = self.exactly(8)?;
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let content = self.exactly(length)?;
        self.exactly(header[6].into())?;
        Ok((header[1], content))
    }

    /// Reads a request up to its body.
    fn read_head(&mut self) {
        match self.protocol {
            Protocol::Http => {
                let head = self.until("\r\n\r\n").unwrap();
                self.in_chunks = head.contains("chunked");
            }
            Protocol::Fastcgi => while self.record().unwrap() != (4, Vec::new()) {},
            Protocol::Uwsgi => {
                let header = self.exactly(4).unwrap();
                self.exactly(u16::from_le_bytes([header[1], header[2]]).into())
                    .unwrap();
            }
            Protocol::Scgi => {
                let length = self.until(":").unwrap();
                let length: usize = length.trim_end_matches(':').parse().unwrap();
                self.exactly(length + 1).unwrap();
            }
        }
    }

    /// The next stretch of the body, of so many bytes where nothing frames it; empty at the end
    /// that a framing has.
    fn read(&mut self, length: usize) -> io::Result<Vec<u8>> {
        match self.protocol {
            Protocol::Fastcgi => {
                let (kind, content) = self.record()?;
                assert_eq!(kind, 5);
                Ok(content)
            }
            _ if self.in_chunks => {
                let line = self.until("\r\n")?;
                let length = usize::from_str_radix(line.trim(), 16).unwrap();
                let content = self.exactly(length)?;
                self.exactly(2)?;
                Ok(content)
            }
            _ => self.exactly(length),
        }
    }

    /// What says that the body has ended, where something does.
    fn read_end(&mut self) {
        if self.in_chunks || self.protocol == Protocol::Fastcgi {
            assert!(self.read(0).unwrap().is_empty());
        }
    }

    /// So many bytes of the body.
    fn read_all(&mut self, length: usize) -> Vec<u8> {
        let mut body = Vec::new();
        while body.len() < length {
            body.extend(self.read((length - body.len()).min(1000)).unwrap());
        }
        body
    }

    fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.protocol != Protocol::Fastcgi {
            return self.stream.write_all(bytes);
        }
        for content in bytes.chunks(60_000) {
            let [high, low] = u16::try_from(content.len()).unwrap().to_be_bytes();
            let header = [1, 6, 0, 1, high, low, 0, 0];
            self.stream.write_all(&[&header[..], content].concat())?;
        }
        Ok(())
    }

    /// Begins an answer of this length.
    fn answer(&mut self, length: usize) {
        let begins = match self.protocol {
            Protocol::Http => "HTTP/1.1 200 OK\r\n",
            _ => "Status: 200 OK\r\n",
        };
        let head = format!("{begins}Content-Length: {length}\r\n\r\n");
        self.say(head.as_bytes()).unwrap();
    }

    /// The last two bytes of an answer.
    fn say_ok(&mut self) {
        self.say(b"ok").unwrap();
        self.end();
    }

    /// Says that the answer has ended, if the connection still stands.
    fn end(&mut self) {
        match self.protocol {
            Protocol::Http => {}
            Protocol::Fastcgi => {
                let record = [1, 3, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                let _ = self.stream.write_all(&record);
            }
            // Its end is that of the connection.
            Protocol::Uwsgi | Protocol::Scgi => {
                let _ = self.stream.shutdown(Shutdown::Write);
            }
        }
    }

    /// Waits for the end of the connection.
    fn wait_for_end(&mut self) {
        let mut buffer = [0; 65_536];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    panic!("the connection goes on")
                }
                Err(_) => return,
            }
        }
    }
}

/// Has the next request of a client served: over the same connection, or, where that has ended,
/// over another.
fn serve_next(client: &mut TcpStream, upstream: &Upstream, kept: Option<Peer>, protocol: Protocol) {
    let mut peer = kept.unwrap_or_else(|| upstream.accept(protocol));
    peer.read_head();
    peer.answer(2);
    peer.say_ok();
    read_head(client);
    assert_eq!(read_exactly(client, 2), b"ok");
}

/// A client of HTTP/1 that has sent a head.
fn post(server: &Server, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{body}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

/// Reads the head of an answer.
fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    String::from_utf8(head).unwrap()
}

fn read_exactly(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Begins a request that announces its body so: its upstream has it up to the body, of which
/// nothing has been sent.
fn begin(
    protocol: Protocol,
    engine: &str,
    more: &str,
    body: &str,
) -> (Upstream, Server, TcpStream, Peer) {
    let upstream = Upstream::bind();
    let server = protocol.server(engine, &upstream, more);
    let client = post(&server, body);
    let mut peer = upstream.accept(protocol);
    peer.read_head();
    (upstream, server, client, peer)
}

/// Begins one on a stream of HTTP/2 that announces so many bytes; its number.
fn open(client: &mut Http2Client, length: &str) -> u32 {
    let head = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "a"),
        ("content-length", length),
    ];
    let (stream, mut frames) = client.frames_of(&head, Some(b""));
    frames.truncate(frames.len() - EMPTY_FRAME); // it is not the end
    client.send(&frames);
    stream
}

/// Sends a part of its body.
fn send(client: &mut Http2Client, stream: u32, part: &[u8], ends: bool) {
    let mut frame = Vec::new();
    put_data(&mut frame, stream, part, ends);
    client.send(&frame);
}

fn each_part_is_answered_before_the_next_is_sent(engine: &'static str) {
    for protocol in Protocol::ALL {
        for in_chunks in [false, true] {
            if in_chunks && matches!(protocol, Protocol::Uwsgi | Protocol::Scgi) {
                continue; // they need a length
            }
            let upstream = Upstream::bind();
            let server = protocol.server(engine, &upstream, "");
            let mut client = if in_chunks {
                post(&server, "Transfer-Encoding: chunked")
            } else {
                post(&server, "Content-Length: 60")
            };
            let mut peer = upstream.accept(protocol);
            peer.read_head();
            peer.answer(60);
            let head = read_head(&mut client);
            assert!(head.starts_with("HTTP/1.1 200 "), "{protocol:?} {head}");
            for number in 0..20 {
                let part = format!("{number:03}");
                if in_chunks {
                    write!(client, "3\r\n{part}\r\n").unwrap()
                } else {
                    client.write_all(part.as_bytes()).unwrap()
                }
                assert_eq!(peer.read(3).unwrap(), part.as_bytes());
                if number == 19 && in_chunks {
                    client.write_all(b"0\r\n\r\n").unwrap();
                }
                if number == 19 {
                    peer.read_end();
                }
                peer.say(part.as_bytes()).unwrap();
                assert_eq!(read_exactly(&mut client, 3), part.as_bytes());
            }
            peer.end();
            // All that came has been counted.
            let framing = if in_chunks { 20 * 5 + 5 } else { 0 };
            let head = if in_chunks {
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            } else {
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 60\r\n\r\n"
            };
            let length = head.len() + 60 + framing;
            let told = format!("POST 200 {length} 60 OK {}\n", peer.got);
            server.wait_for_line("told.log", &told);
            // Both connections serve the next request, where the protocol has that.
            client.write_all(GET).unwrap();
            let kept = protocol.keeps().then_some(peer);
            serve_next(&mut client, &upstream, kept, protocol);
        }
    }
}

support::test_on_each_engine!(each_part_is_answered_before_the_next_is_sent);

/// The same for a client of HTTP/2.
fn each_part_of_a_stream_is_answered_before_the_next_is_sent(engine: &'static str) {
    for protocol in Protocol::ALL {
        let upstream = Upstream::bind();
        let server = protocol.server(engine, &upstream, "");
        let mut client = Http2Client::connect(server.port);
        let stream = open(&mut client, "60");
        let mut peer = upstream.accept(protocol);
        peer.read_head();
        peer.answer(60);
        for number in 0..20 {
            let part = format!("{number:03}");
            send(&mut client, stream, part.as_bytes(), number == 19);
            assert_eq!(peer.read(3).unwrap(), part.as_bytes());
            peer.say(part.as_bytes()).unwrap();
            let length = 3 * (number + 1);
            while client
                .responses
                .get(&stream)
                .is_none_or(|response| response.body.len() < length)
            {
                client.read_frame().expect("a frame");
            }
        }
        peer.end();
        let response = client.response(stream);
        assert!(response.ended && response.reset.is_none(), "{response:?}");
    }
}

support::test_on_each_engine!(each_part_of_a_stream_is_answered_before_the_next_is_sent);

/// A client that sends everything before it reads anything, and an upstream that gives back all
/// that it gets as it comes.
fn a_client_may_send_all_before_it_reads(engine: &'static str) {
    if is_nginx() {
        return; // it sends nothing more of the body once the upstream has been slow to take it
    }
    const LENGTH: usize = 12 * 1024 * 1024;
    for protocol in Protocol::ALL {
        let (_upstream, _server, mut client, mut peer) = begin(
            protocol,
            engine,
            "by_buffering on;",
            &format!("Content-Length: {LENGTH}"),
        );
        let echo = thread::spawn(move || {
            peer.answer(LENGTH);
            let mut got = 0;
            while got < LENGTH {
                let part = peer.read((LENGTH - got).min(10_000)).unwrap();
                got += part.len();
                peer.say(&part).unwrap();
            }
            peer.read_end();
            peer.end();
        });
        let mut body = vec![0; LENGTH];
        for (number, byte) in body.iter_mut().enumerate() {
            *byte = (number / 7 % 251) as u8;
        }
        client.write_all(&body).unwrap();
        read_head(&mut client);
        assert!(read_exactly(&mut client, LENGTH) == body, "{protocol:?}");
        echo.join().unwrap();
    }
}

support::test_on_each_engine!(a_client_may_send_all_before_it_reads);

fn a_client_that_leaves_ends_both_ways(engine: &'static str) {
    for protocol in Protocol::ALL {
        for ignores in ["off", "on"] {
            let more = format!("by_ignore_client_abort {ignores};");
            let (_upstream, server, mut client, mut peer) =
                begin(protocol, engine, &more, "Content-Length: 6");
            peer.answer(6);
            read_head(&mut client);
            client.write_all(b"ab").unwrap();
            assert_eq!(peer.read(2).unwrap(), b"ab");
            drop(client);
            let began = Instant::now();
            peer.wait_for_end();
            assert!(began.elapsed() < PATIENCE / 2, "{protocol:?}");
            server.wait_for_log(
                "client prematurely closed connection while sending request to upstream",
            );
            server.wait_for_line("told.log", "POST 200 ");
            // Half a body is no request.
            let log = server.log("told.log");
            assert!(!log.contains(" OK "), "{log}");
        }
    }
}

support::test_on_each_engine!(a_client_that_leaves_ends_both_ways);

fn a_client_that_stops_is_waited_for_as_long_as_for_any_body(engine: &'static str) {
    in_parallel(Protocol::ALL, |protocol| {
        let more = "client_body_timeout 1500ms; by_read_timeout 60s;";
        let (_upstream, server, mut client, mut peer) =
            begin(protocol, engine, more, "Content-Length: 60");
        peer.answer(60);
        read_head(&mut client);
        // As long as some of it comes in time, it goes on.
        for _ in 0..4 {
            thread::sleep(Duration::from_millis(500));
            client.write_all(b"ab").unwrap();
            assert_eq!(peer.read(2).unwrap(), b"ab");
        }
        let began = Instant::now();
        peer.wait_for_end();
        // Nor is it the upstream's silence that ends it.
        assert!(began.elapsed() < PATIENCE / 2, "{protocol:?}");
        let mut rest = Vec::new();
        let _ = client.read_to_end(&mut rest);
        assert_eq!(rest, b"");
        server.wait_for_line("told.log", "POST 200 ");
    });
}

support::test_on_each_engine!(a_client_that_stops_is_waited_for_as_long_as_for_any_body);

fn a_body_that_becomes_none_ends_both_ways(engine: &'static str) {
    for (sent, told) in [
        (
            "zz\r\n",
            "client sent invalid chunked body while sending request to upstream",
        ),
        (
            "6\r\nabcdef\r\n",
            "client intended to send too large chunked body: 4+6 bytes while sending request to upstream",
        ),
    ] {
        let protocol = Protocol::Http;
        let (_upstream, server, mut client, mut peer) = begin(
            protocol,
            engine,
            "client_max_body_size 8;",
            "Transfer-Encoding: chunked",
        );
        peer.answer(6);
        read_head(&mut client);
        client.write_all(b"4\r\nabcd\r\n").unwrap();
        assert_eq!(peer.read(0).unwrap(), b"abcd");
        client.write_all(sent.as_bytes()).unwrap();
        peer.wait_for_end();
        let mut rest = Vec::new();
        let _ = client.read_to_end(&mut rest);
        assert_eq!(rest, b"");
        server.wait_for_log(told);
        server.wait_for_line("told.log", "POST 200 ");
    }
}

support::test_on_each_engine!(a_body_that_becomes_none_ends_both_ways);

/// nginx waits for the upstream's next word, as it sends nothing more once the upstream has taken
/// none.
fn an_upstream_that_takes_nothing_more_is_waited_for_as_long_as_for_any_request(
    engine: &'static str,
) {
    if is_nginx() {
        return;
    }
    in_parallel(Protocol::ALL, |protocol| {
        let more = "by_send_timeout 500ms; by_read_timeout 60s; lingering_close off;";
        let (_upstream, server, mut client, mut peer) =
            begin(protocol, engine, more, "Content-Length: 100000000");
        peer.answer(6);
        read_head(&mut client);
        let sends = thread::spawn(move || {
            let part = vec![b'a'; 1_000_000];
            while client.write_all(&part).is_ok() {}
            let mut rest = Vec::new();
            let _ = client.read_to_end(&mut rest);
            rest
        });
        server.wait_for_log(
            "upstream timed out (110: Connection timed out) while sending request to upstream",
        );
        assert_eq!(sends.join().unwrap(), b"");
        peer.wait_for_end();
    });
}

support::test_on_each_engine!(
    an_upstream_that_takes_nothing_more_is_waited_for_as_long_as_for_any_request
);

/// A client that is slow to read, and sends nothing more, is not waited for for ever.
fn a_client_that_neither_reads_nor_sends_ends_both_ways(engine: &'static str) {
    in_parallel(Protocol::ALL, |protocol| {
        for buffering in ["on", "off"] {
            let more = format!(
                "client_body_timeout 1500ms; send_timeout 60s; by_read_timeout 60s; by_buffering {buffering};"
            );
            let (_upstream, _server, mut client, mut peer) =
                begin(protocol, engine, &more, "Content-Length: 60");
            client.write_all(b"ab").unwrap();
            assert_eq!(peer.read(2).unwrap(), b"ab");
            const LENGTH: usize = 30_000_000;
            peer.answer(LENGTH);
            let part = vec![b'x'; 1_000_000];
            let began = Instant::now();
            let _ = (0..30).try_for_each(|_| peer.say(&part));
            peer.wait_for_end();
            assert!(began.elapsed() < PATIENCE / 2, "{protocol:?} {buffering}");
            drop(client);
        }
    });
}

support::test_on_each_engine!(a_client_that_neither_reads_nor_sends_ends_both_ways);

/// What comes behind the body is the next request's.
fn a_request_behind_the_body_is_served(engine: &'static str) {
    for protocol in Protocol::ALL {
        let (upstream, _server, mut client, mut peer) =
            begin(protocol, engine, "", "Content-Length: 6");
        peer.answer(2);
        read_head(&mut client);
        client
            .write_all(b"abcdefGET /next HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        assert_eq!(peer.read_all(6), b"abcdef");
        peer.read_end();
        peer.say_ok();
        assert_eq!(read_exactly(&mut client, 2), b"ok");
        let kept = protocol.keeps().then_some(peer);
        serve_next(&mut client, &upstream, kept, protocol);
    }
}

support::test_on_each_engine!(a_request_behind_the_body_is_served);

/// A page that takes the place of an early answer: what is left of the body is no request.
fn a_page_in_the_place_of_an_early_answer_leaves_the_connection_in_order(engine: &'static str) {
    let more =
        "proxy_intercept_errors on; error_page 503 = /page; } location = /page { return 200 page;";
    let (_upstream, _server, mut client, mut peer) =
        begin(Protocol::Http, engine, more, "Content-Length: 6");
    let head = b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\n";
    peer.say(head).unwrap();
    let head = read_head(&mut client);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(read_exactly(&mut client, 4), b"page");
    peer.wait_for_end();
    if is_nginx() {
        return; // it closes the connection
    }
    client
        .write_all(b"abcdefGET /page HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    let head = read_head(&mut client);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(read_exactly(&mut client, 4), b"page");
}

support::test_on_each_engine!(
    a_page_in_the_place_of_an_early_answer_leaves_the_connection_in_order
);

/// The end of the connection is not held back for the rest of a body that nothing reads any more.
fn the_last_answer_of_a_connection_ends_it_at_once(engine: &'static str) {
    for protocol in Protocol::ALL {
        let (_upstream, _server, mut client, mut peer) = begin(
            protocol,
            engine,
            "",
            "Connection: close\r\nContent-Length: 6",
        );
        client.write_all(b"ab").unwrap();
        peer.answer(2);
        peer.say_ok();
        let began = Instant::now();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert!(answer.ends_with(b"\r\n\r\nok"), "{protocol:?}");
        // `lingering_timeout` is 5s.
        assert!(began.elapsed() < Duration::from_secs(4), "{protocol:?}");
    }
}

support::test_on_each_engine!(the_last_answer_of_a_connection_ends_it_at_once);

/// A client that sends all before it reads anything, and an upstream that has answered after a part
/// of that. nginx reads no more of the body then, and the client waits in vain.
fn what_is_left_of_a_body_behind_its_answer_does_not_hold_up_that(engine: &'static str) {
    const LENGTH: usize = 8_000_000;
    if is_nginx() {
        return;
    }
    for protocol in Protocol::ALL {
        let (upstream, _server, mut client, mut peer) = begin(
            protocol,
            engine,
            "by_buffering on;",
            "Content-Length: 20000000",
        );
        let answers = thread::spawn(move || {
            peer.answer(LENGTH);
            peer.read_all(1_000_000);
            peer.say(&vec![b'x'; LENGTH]).unwrap();
            peer.end();
            peer
        });
        client.write_all(&vec![b'a'; 20_000_000]).unwrap();
        read_head(&mut client);
        let body = read_exactly(&mut client, LENGTH);
        assert!(body.iter().all(|byte| *byte == b'x'), "{protocol:?}");
        answers.join().unwrap().wait_for_end();
        // That of the client goes on.
        client.write_all(GET).unwrap();
        serve_next(&mut client, &upstream, None, protocol);
    }
}

support::test_on_each_engine!(what_is_left_of_a_body_behind_its_answer_does_not_hold_up_that);

/// A client that reads nothing is told by nothing but the end of its connection that its body is
/// none.
fn a_bad_body_ends_an_answer_that_the_client_does_not_read(engine: &'static str) {
    if is_nginx() {
        return; // it waits for the client to take what it has of the answer
    }
    for buffering in ["on", "off"] {
        let more = format!("by_buffering {buffering}; send_timeout 60s;");
        let (_upstream, server, mut client, mut peer) =
            begin(Protocol::Http, engine, &more, "Transfer-Encoding: chunked");
        // It does not end: the rest of a body behind an answer that is over is dropped,
        // whatever it is.
        peer.answer(40_000_000);
        let mut answers = peer.stream.try_clone().unwrap();
        let sends = thread::spawn(move || {
            let part = vec![b'x'; 1_000_000];
            let _ = (0..30).try_for_each(|_| answers.write_all(&part));
        });
        read_head(&mut client);
        // What the sockets hold is full by then.
        thread::sleep(Duration::from_millis(300));
        client.write_all(b"zz\r\n").unwrap();
        let began = Instant::now();
        server.wait_for_line("told.log", "POST 200 ");
        peer.wait_for_end();
        assert!(began.elapsed() < PATIENCE / 2, "{buffering}");
        sends.join().unwrap();
    }
}

support::test_on_each_engine!(a_bad_body_ends_an_answer_that_the_client_does_not_read);

/// An answer that is stored goes on without its client; the client's body does not, and what has
/// come of that is no request.
#[test]
fn half_a_body_is_no_request_for_an_answer_that_is_stored() {
    const LENGTH: usize = 10_000_000;
    for (protocol, body) in [
        (Protocol::Http, "Content-Length: 6"),
        (Protocol::Http, "Transfer-Encoding: chunked"),
        (Protocol::Fastcgi, "Content-Length: 6"),
    ] {
        for engine in engines::lines() {
            let more = "by_buffering on; by_store temp/proxy/stored;";
            let (_upstream, _server, mut client, mut peer) = begin(protocol, engine, more, body);
            let part: &[u8] = if body.contains("chunked") {
                b"2\r\nab\r\n"
            } else {
                b"ab"
            };
            client.write_all(part).unwrap();
            assert_eq!(peer.read(2).unwrap(), b"ab");
            peer.answer(LENGTH);
            peer.say(&vec![b'x'; LENGTH / 2]).unwrap();
            read_head(&mut client);
            // With that unread it is a reset.
            drop(client);
            let _ = peer.say(&vec![b'x'; LENGTH / 2]);
            peer.end();
            let mut rest = Vec::new();
            let _ = peer.stream.read_to_end(&mut rest);
            assert_eq!(rest, b"", "{protocol:?} {body}");
        }
    }
}

/// Of a body of which nothing has come nothing is lost: another upstream gets it.
fn a_body_that_has_not_come_yet_goes_where_the_request_goes_on(engine: &'static str) {
    let (upstream, other) = (Upstream::bind(), Upstream::bind());
    let address = other.0.local_addr().unwrap();
    let more = format!(
        "proxy_intercept_errors on; error_page 503 = @other; }}
            location @other {{ proxy_pass http://{address}; proxy_request_buffering off;"
    );
    let server = Protocol::Http.server(engine, &upstream, &more);
    let mut client = post(&server, "Content-Length: 6");
    let mut peer = upstream.accept(Protocol::Http);
    peer.read_head();
    peer.say(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")
        .unwrap();
    if is_nginx() {
        return; // it makes 500 of that
    }
    let mut peer = other.accept(Protocol::Http);
    peer.read_head();
    client.write_all(b"abcdef").unwrap();
    assert_eq!(peer.read(6).unwrap(), b"abcdef");
    peer.answer(2);
    peer.say(b"ok").unwrap();
    let head = read_head(&mut client);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(read_exactly(&mut client, 2), b"ok");
}

support::test_on_each_engine!(a_body_that_has_not_come_yet_goes_where_the_request_goes_on);

/// An upstream is not idle as long as it is sent more of the request.
fn a_slow_upload_gives_its_upstream_time(engine: &'static str) {
    in_parallel(Protocol::ALL, |protocol| {
        let (_upstream, _server, mut client, mut peer) = begin(
            protocol,
            engine,
            "by_read_timeout 2s;",
            "Content-Length: 10",
        );
        peer.answer(2);
        read_head(&mut client);
        for _ in 0..10 {
            thread::sleep(Duration::from_millis(300));
            client.write_all(b"a").unwrap();
        }
        assert_eq!(peer.read_all(10), b"aaaaaaaaaa");
        peer.read_end();
        peer.say_ok();
        assert_eq!(read_exactly(&mut client, 2), b"ok");
    });
}

support::test_on_each_engine!(a_slow_upload_gives_its_upstream_time);

/// What is held back for the rate of a response is not held for a client that has left.
fn a_client_that_leaves_is_missed_while_its_response_is_held_back(engine: &'static str) {
    in_parallel(Protocol::ALL, |protocol| {
        let more = "by_buffering on; limit_rate 4k;";
        let (_upstream, server, mut client, mut peer) =
            begin(protocol, engine, more, "Content-Length: 6");
        client.write_all(b"ab").unwrap();
        assert_eq!(peer.read(2).unwrap(), b"ab");
        peer.answer(200_000);
        peer.say(&[b'x'; 200_000]).unwrap();
        peer.end();
        read_head(&mut client);
        drop(client);
        let began = Instant::now();
        server.wait_for_line("told.log", "POST 200 ");
        assert!(began.elapsed() < Duration::from_secs(10), "{protocol:?}");
        let log = server.log("told.log");
        assert!(!log.contains(" OK "), "{log}");
    });
}

support::test_on_each_engine!(a_client_that_leaves_is_missed_while_its_response_is_held_back);

/// A client that still sends its body sees that the answer has broken off, and no reset.
fn an_answer_that_breaks_off_lingers_for_a_client_that_sends(engine: &'static str) {
    let protocol = Protocol::Http;
    let (_upstream, server, mut client, mut peer) =
        begin(protocol, engine, "", "Content-Length: 5000000");
    peer.answer(6);
    peer.say(b"ab").unwrap();
    read_head(&mut client);
    drop(peer);
    server.wait_for_log("upstream prematurely closed connection");
    for _ in 0..5 {
        client.write_all(&[b'a'; 1_000_000]).unwrap();
    }
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"ab");
}

support::test_on_each_engine!(an_answer_that_breaks_off_lingers_for_a_client_that_sends);

/// The same where the client sends all before it reads, and has not got what there is of the
/// answer.
fn an_answer_that_breaks_off_reaches_a_client_that_sends_all_first(engine: &'static str) {
    if is_nginx() {
        return; // it reads nothing until what it has of the answer has been taken
    }
    let (_upstream, _server, mut client, mut peer) = begin(
        Protocol::Http,
        engine,
        "send_timeout 60s;",
        "Content-Length: 40000000",
    );
    peer.answer(100_000_000);
    let mut answers = peer.stream.try_clone().unwrap();
    let says = thread::spawn(move || {
        let part = vec![b'x'; 1_000_000];
        let _ = (0..50).try_for_each(|_| answers.write_all(&part));
    });
    // What the sockets hold is full by then, and the upstream goes.
    thread::sleep(Duration::from_millis(300));
    peer.stream.shutdown(Shutdown::Both).unwrap();
    drop(peer);
    says.join().unwrap();
    let began = Instant::now();
    client.write_all(&vec![b'a'; 40_000_000]).unwrap();
    read_head(&mut client);
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert!(rest.len() > 100_000 && rest.iter().all(|byte| *byte == b'x'));
    assert!(began.elapsed() < PATIENCE / 2);
}

support::test_on_each_engine!(an_answer_that_breaks_off_reaches_a_client_that_sends_all_first);

/// A client of HTTP/2 that leaves is missed where its answer is stored, too.
fn half_a_stream_is_no_request_for_an_answer_that_is_stored(engine: &'static str) {
    for protocol in Protocol::ALL {
        let upstream = Upstream::bind();
        let more = "by_buffering on; by_store temp/stored;";
        let server = protocol.server(engine, &upstream, more);
        let mut client = Http2Client::connect(server.port);
        let stream = open(&mut client, "6");
        send(&mut client, stream, b"ab", false);
        let mut peer = upstream.accept(protocol);
        peer.read_head();
        assert_eq!(peer.read(2).unwrap(), b"ab");
        peer.answer(20_000);
        peer.say(&[b'x'; 10_000]).unwrap();
        while !client.responses.contains_key(&stream) {
            client.read_frame().expect("a frame");
        }
        let mut reset = Vec::new();
        frame::put_reset(&mut reset, stream, ErrorCode::Cancel);
        client.send(&reset);
        let began = Instant::now();
        peer.wait_for_end();
        assert!(began.elapsed() < PATIENCE / 2, "{protocol:?}");
    }
}

support::test_on_each_engine!(half_a_stream_is_no_request_for_an_answer_that_is_stored);
