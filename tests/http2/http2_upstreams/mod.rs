//! `proxy_http_version 2` and `grpc_pass` from outside, beside an upstream of our own that speaks
//! HTTP/2: what it is told, what becomes of its answers, good and bad, how requests share
//! connections, what is tried again, and what a client of gRPC gets.
//!
//! On both engines. TIDEGATE_BINARY with nginx 1.31 checks what is expected where nginx does the
//! same; it makes a connection for each request that is under way, so that tests of what is shared
//! are Tidegate's alone.

mod bad;
mod calls;
mod checks;
mod duplex;
mod flow;
mod heads;
mod retries;
mod sharing;
mod tls;
mod told;
mod upstream;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use support::http2::{Client, Response};
use support::{PATIENCE, Server};

use upstream::{Fields, Upstream};

/// By which directive requests are passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Proxy,
    Grpc,
}

impl By {
    pub(crate) const BOTH: [By; 2] = [By::Proxy, By::Grpc];

    /// Lines of a configuration with the names of directives for `by_`, and how addresses begin for
    /// `by://` and `bys://`.
    fn lines(self, text: &str) -> String {
        let (prefix, plain, secure) = match self {
            By::Proxy => ("proxy_", "http://", "https://"),
            By::Grpc => ("grpc_", "grpc://", "grpcs://"),
        };
        let text = text.replace("bys://", secure).replace("by://", plain);
        text.replace("by_", prefix)
    }
}

/// A server with these lines, `UP` being the upstream's address; see [`By::lines`]. Clients speak
/// HTTP/1 or HTTP/2.
fn server(engine: &str, by: By, lines: &str, upstream: &Upstream) -> Server {
    server_at(engine, by, lines, &upstream.address())
}

fn server_at(engine: &str, by: By, lines: &str, address: &str) -> Server {
    let (lines, http) = lines.split_once("[http]\n").unwrap_or((lines, ""));
    let lines =
        format!("http2 on; {lines}\n[http]\nproxy_http_version 2; client_max_body_size 0; {http}");
    let lines = by.lines(&lines).replace("UP", address);
    Server::start(engine, &lines)
}

/// Runs a test on an engine, by both directives.
fn each(engine: &str, test: impl Fn(&str, By)) {
    By::BOTH.into_iter().for_each(|by| test(engine, by));
}

/// What came by HTTP/1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// 0 where nothing came.
    pub(crate) status: u16,
    pub(crate) fields: Fields,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Fields,
    pub(crate) is_whole: bool,
}

impl Answer {
    fn read(mut bytes: &[u8], is_head: bool) -> Answer {
        // The head that lets a body come.
        let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
        bytes = bytes.strip_prefix(go_on).unwrap_or(bytes);
        let Some(end) = bytes.windows(4).position(|end| end == b"\r\n\r\n") else {
            assert!(bytes.is_empty(), "{}", bytes.escape_ascii());
            return Answer::default();
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let mut answer = Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            fields: head.lines().skip(1).map(line).collect(),
            ..Answer::default()
        };
        let rest = &bytes[end + 4..];
        if answer.field("transfer-encoding") == "chunked" {
            answer.read_chunks(rest);
        } else {
            answer.body = rest.to_vec();
            let length = answer.field("content-length").parse();
            let is_empty = is_head || matches!(answer.status, 204 | 304);
            answer.is_whole = is_empty || length.is_ok_and(|length: usize| rest.len() == length);
        }
        answer
    }

    fn read_chunks(&mut self, mut rest: &[u8]) {
        loop {
            let Some(end) = rest.windows(2).position(|end| end == b"\r\n") else {
                return;
            };
            let length = std::str::from_utf8(&rest[..end]).unwrap();
            let length = usize::from_str_radix(length, 16).unwrap();
            rest = &rest[end + 2..];
            if length == 0 {
                self.is_whole = rest.ends_with(b"\r\n");
                let text = String::from_utf8_lossy(rest);
                let lines = text.lines().filter(|text| !text.is_empty());
                self.trailers = lines.map(line).collect();
                return;
            }
            let there = length.min(rest.len());
            self.body.extend_from_slice(&rest[..there]);
            rest = rest.get(length + 2..).unwrap_or_default();
        }
    }

    /// The value of a field, whose name is in lower case; empty where there is none.
    pub(crate) fn field(&self, name: &str) -> &str {
        let found = self.fields.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A line of a head, its name in lower case.
fn line(text: &str) -> (String, String) {
    let (name, value) = text.split_once(": ").unwrap_or((text, ""));
    (name.to_ascii_lowercase(), value.to_owned())
}

/// What comes for a request of HTTP/1, which is to end the connection.
fn ask(port: u16, request: &str) -> Answer {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    read_answer(&mut stream, request.starts_with("HEAD "))
}

/// What comes until the server closes.
fn read_answer(stream: &mut TcpStream, is_head: bool) -> Answer {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    Answer::read(&bytes, is_head)
}

fn get(port: u16, path: &str) -> Answer {
    ask(
        port,
        &format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
    )
}

fn post(port: u16, path: &str, fields: &str, body: &str) -> Answer {
    let length = body.len();
    ask(
        port,
        &format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n{fields}\r\n{body}"
        ),
    )
}

/// Reads until something holds of what has come on a stream.
fn wait_for(client: &mut Client, stream: u32, holds: impl Fn(&Response) -> bool) -> Response {
    loop {
        if let Some(response) = client.responses.get(&stream)
            && holds(response)
        {
            return response.clone();
        }
        let come = client.read_frame().is_some();
        assert!(come, "the connection ended: {:?}", client.responses);
    }
}

/// Sends the head of a POST whose body follows.
fn open(client: &mut Client, path: &str, more: &[(&str, &str)]) -> u32 {
    let mut fields = vec![
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
    ];
    fields.extend_from_slice(more);
    let block = client.encode(&fields);
    let stream = client.next_stream();
    let mut out = Vec::new();
    proto::h2::frame::put_header_block(&mut out, stream, &block, false, 16_384);
    client.send(&out);
    stream
}

/// Sends a part of a request's body.
fn send(client: &mut Client, stream: u32, bytes: &[u8], ends: bool) {
    client.send(&upstream::data(stream, bytes, ends));
}

/// How often a line with this text is in the log, once it is there as often as it should be, or has
/// not come to be for long.
fn lines_with(server: &Server, from: usize, text: &str, wanted: usize) -> usize {
    let mut found = 0;
    for _ in 0..200 {
        let log = server.error_log();
        found = log[from..]
            .lines()
            .filter(|line| line.contains(text))
            .count();
        if found >= wanted {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    found
}

fn pairs(text: &[(&str, &str)]) -> Fields {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    text.iter().map(owned).collect()
}
