//! The client: carries out a case's steps on one connection and keeps every byte of the answers.
//!
//! It understands as much HTTP/1 as is needed to find the end of a response, and takes offence at
//! nothing: what is strange about an answer is for the comparison to show.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use proto::h2::ErrorCode;
use rustix::net::{AddressFamily, SocketType};

use crate::bypass;
use crate::case::{Case, Step};
use crate::server::FIXTURE_TIME;
use crate::tls::{Client, Offer, Secured};

/// How long an answer may take.
pub(crate) const ANSWER_TIME_MAX: Duration = Duration::from_secs(6);
/// How long a connection that should stay open is watched, once the server has gone round its loop.
pub(crate) const WATCH_TIME: Duration = Duration::from_millis(5);

/// What one case's connection saw.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    pub(crate) responses: Vec<Response>,
    /// Bytes that belong to no response, and complaints such as "no answer".
    pub(crate) remarks: Vec<String>,
    pub(crate) ending: Ending,
    /// The client's own port.
    pub(crate) port: u16,
    pub(crate) elapsed: Duration,
    /// It was one over HTTP/2.
    pub(crate) is_http2: bool,
}

/// One response, interim ones included.
#[derive(Debug, Default)]
pub(crate) struct Response {
    /// Empty for HTTP/0.9.
    pub(crate) status_line: Vec<u8>,
    pub(crate) headers: Vec<(Vec<u8>, Vec<u8>)>,
    /// The body as the server meant it: chunks joined.
    pub(crate) body: Vec<u8>,
    /// The body's bytes on the wire, chunk sizes included.
    pub(crate) wire_length: usize,
    pub(crate) trailers: Vec<Vec<u8>>,
    /// The response was one to HEAD: it says a length and has no body.
    pub(crate) head: bool,
    /// The connection ended before the response did.
    pub(crate) cut_short: bool,
    /// Over HTTP/2: its stream was reset.
    pub(crate) reset: Option<ErrorCode>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Ending {
    #[default]
    Kept,
    Closed,
    /// Closed, but TLS does not say so.
    Cut,
    Reset,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, value)| value.as_slice())
    }

    pub(crate) fn status(&self) -> u16 {
        let text = self
            .status_line
            .split(|byte| *byte == b' ')
            .nth(1)
            .unwrap_or_default();
        String::from_utf8_lossy(text).parse().unwrap_or(0)
    }
}

/// Connects to `address` (`IP:PORT` or `unix:PATH`) and goes through the case. `root` is the
/// fixture's; `pass_the_loop` returns when the server has handled everything that had come before.
pub(crate) fn converse(
    address: &str,
    case: &Case,
    root: &Path,
    pass_the_loop: impl Fn() -> Result<(), String>,
) -> Result<Conversation, String> {
    let start = Instant::now();
    let client = case.tls.as_ref().map(Offer::client).transpose()?;
    let mut seen = Conversation::default();
    let open =
        |seen: &mut Conversation| Connection::open(address, case.from, client.as_ref(), seen);
    let mut connection = open(&mut seen)?;
    let mut others = Vec::new();
    for step in &case.steps {
        match step {
            Step::Send(bytes) => connection.send(bytes),
            Step::Pause(time) => std::thread::sleep(*time),
            Step::Shut => connection.stream.shut(),
            Step::Again => connection = open(&mut seen)?,
            Step::Another => others.push(std::mem::replace(&mut connection, open(&mut seen)?)),
            Step::Receive(count) => connection.receive(*count, &mut seen),
            Step::Read { count, head } => {
                (0..*count).for_each(|_| connection.read_response(*head, &mut seen))
            }
            Step::ReadToClose => connection.read_to_close(&mut seen),
            Step::Wait(time) => connection.watch(*time),
            step => change_files(root, step)?,
        }
    }
    seen.elapsed = start.elapsed();
    let closes = seen
        .responses
        .last()
        .is_some_and(|last| last.cut_short || last.header("connection") == Some(b"close"));
    if !closes {
        pass_the_loop()?;
    }
    connection.watch(if closes { ANSWER_TIME_MAX } else { WATCH_TIME });
    if !connection.unread.is_empty() {
        seen.remarks.push(format!(
            "more bytes: \"{}\"",
            connection.unread.escape_ascii()
        ));
    }
    if connection.refused {
        seen.remarks
            .push("what was sent last was refused".to_string());
    }
    seen.ending = connection.ended.unwrap_or_default();
    Ok(seen)
}

/// One request on a connection of its own, for which only the status matters.
pub(crate) fn status_of(address: &str, path: &str) -> Result<u16, String> {
    ask(address, path).map(|seen| seen.responses.last().map_or(0, Response::status))
}

/// One request on a connection of its own.
pub(crate) fn ask(address: &str, path: &str) -> Result<Conversation, String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let case = Case {
        steps: vec![
            Step::Send(request.into_bytes()),
            Step::Read {
                count: 1,
                head: false,
            },
        ],
        ..Case::default()
    };
    converse(address, &case, Path::new(""), || Ok(()))
}

/// What a step does to the fixture below `root`.
pub(crate) fn change_files(root: &Path, step: &Step) -> Result<(), String> {
    match step {
        Step::Replace { path, text } => replace(root, path, text),
        Step::Remove(path) => std::fs::remove_file(root.join(path.trim_start_matches('/')))
            .map_err(|error| format!("{path}: {error}")),
        _ => Err("a step of the upstream in a case".to_string()),
    }
}

/// Puts a new file in the old one's place in one step. It is an hour younger than the fixture.
fn replace(root: &Path, path: &str, text: &[u8]) -> Result<(), String> {
    let path = root.join(path.trim_start_matches('/'));
    let fresh = path.with_extension("fresh");
    let written = std::fs::write(&fresh, text)
        .and_then(|()| {
            std::fs::File::open(&fresh)?
                .set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(FIXTURE_TIME + 3600))
        })
        .and_then(|()| std::fs::rename(&fresh, &path));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

enum Stream {
    Tcp(TcpStream),
    Tls(Secured),
    Unix(UnixStream),
    /// Its datagrams, one after the other.
    Datagrams(UdpSocket),
}

impl Stream {
    fn connect(address: &str, from: Option<IpAddr>) -> std::io::Result<Stream> {
        if let Some(path) = address.strip_prefix("unix:") {
            return UnixStream::connect(path).map(Stream::Unix);
        }
        if let Some(address) = address.strip_prefix("udp:") {
            let socket = UdpSocket::bind((from.unwrap_or([127, 0, 0, 1].into()), 0))?;
            socket.connect(address)?;
            return Ok(Stream::Datagrams(socket));
        }
        let stream = match from {
            None => bypass::connect(address)?,
            Some(from) => connect_from(from, address)?,
        };
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(ANSWER_TIME_MAX))?;
        Ok(Stream::Tcp(stream))
    }

    fn local_port(&self) -> u16 {
        match self {
            Stream::Tcp(stream) => stream.local_addr().map_or(0, |address| address.port()),
            Stream::Tls(stream) => stream.sock.local_addr().map_or(0, |address| address.port()),
            Stream::Unix(_) => 0,
            Stream::Datagrams(socket) => socket.local_addr().map_or(0, |address| address.port()),
        }
    }

    /// Reads within `time`; `TimedOut` afterwards, whatever the system calls it.
    fn read_within(&mut self, buffer: &mut [u8], time: Duration) -> std::io::Result<usize> {
        let time = Some(time.max(Duration::from_millis(1)));
        let result = match self {
            Stream::Tcp(stream) => stream
                .set_read_timeout(time)
                .and_then(|()| stream.read(buffer)),
            Stream::Tls(stream) => stream
                .sock
                .set_read_timeout(time)
                .and_then(|()| stream.read(buffer)),
            Stream::Unix(stream) => stream
                .set_read_timeout(time)
                .and_then(|()| stream.read(buffer)),
            Stream::Datagrams(socket) => socket
                .set_read_timeout(time)
                .and_then(|()| socket.recv(buffer)),
        };
        result.map_err(|error| {
            if error.kind() == ErrorKind::WouldBlock {
                ErrorKind::TimedOut.into()
            } else {
                error
            }
        })
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.write_all(bytes),
            Stream::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
            Stream::Unix(stream) => stream.write_all(bytes),
            Stream::Datagrams(socket) => socket.send(bytes).map(drop),
        }
    }

    fn shut(&mut self) {
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Tls(stream) => {
                stream.conn.send_close_notify();
                let _ = stream.flush();
                stream.sock.shutdown(Shutdown::Write)
            }
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
            Stream::Datagrams(_) => Ok(()),
        };
    }
}

/// A connection to `IP:PORT` from an address of this host.
fn connect_from(from: IpAddr, to: &str) -> std::io::Result<TcpStream> {
    let to: SocketAddr = to.parse().map_err(|_| ErrorKind::InvalidInput)?;
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = rustix::net::socket(family, SocketType::STREAM, None)?;
    rustix::net::bind(&socket, &SocketAddr::from((from, 0)))?;
    rustix::net::connect(&socket, &to)?;
    Ok(TcpStream::from(socket))
}

/// A connection to a server, and what has come over it.
pub(crate) struct Connection {
    stream: Stream,
    pub(crate) unread: Vec<u8>,
    /// How the connection ended, once it has.
    pub(crate) ended: Option<Ending>,
    /// The system would not send any more.
    pub(crate) refused: bool,
}

impl Connection {
    /// Connects, and shakes hands where the client speaks TLS. A handshake that fails is the end of
    /// it.
    pub(crate) fn open(
        address: &str,
        from: Option<IpAddr>,
        client: Option<&Client>,
        seen: &mut Conversation,
    ) -> Result<Connection, String> {
        let stream = Stream::connect(address, from);
        let stream = stream.map_err(|error| format!("connect to {address}: {error}"))?;
        seen.port = stream.local_port();
        let (stream, failure) = match (stream, client) {
            (Stream::Tcp(stream), Some(client)) => {
                let copy = stream.try_clone().map_err(|error| error.to_string())?;
                stream
                    .set_read_timeout(Some(ANSWER_TIME_MAX))
                    .map_err(|error| error.to_string())?;
                match client.secure(stream) {
                    Ok(secured) => (Stream::Tls(secured), None),
                    Err(failure) => (Stream::Tcp(copy), Some(failure)),
                }
            }
            (stream, _) => (stream, None),
        };
        let ended = failure.as_ref().map(|_| Ending::Closed);
        seen.remarks
            .extend(failure.map(|failure| format!("no handshake: {failure}")));
        Ok(Connection {
            stream,
            unread: Vec::new(),
            ended,
            refused: false,
        })
    }

    /// Whether both ends of TLS have agreed on HTTP/2.
    pub(crate) fn agreed_on_http2(&self) -> bool {
        match &self.stream {
            Stream::Tls(stream) => stream.conn.alpn_protocol() == Some(b"h2"),
            _ => false,
        }
    }

    /// A server that has closed does not take what is sent.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.refused |= self.stream.write(bytes).is_err();
    }

    /// Waits for more bytes. False if there are none in time or ever.
    pub(crate) fn more(&mut self, time: Duration) -> bool {
        let mut buffer = vec![0; 64 * 1024];
        if self.ended.is_some() {
            return false;
        }
        match self.stream.read_within(&mut buffer, time) {
            Ok(0) => self.ended = Some(Ending::Closed),
            Ok(count) => {
                self.unread.extend(&buffer[..count]);
                return true;
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => return self.more(time),
            // TLS that has ended without a word of it.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                self.ended = Some(Ending::Cut)
            }
            Err(_) => self.ended = Some(Ending::Reset),
        }
        false
    }

    fn watch(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while self.ended.is_none() && Instant::now() < end {
            self.more(end.saturating_duration_since(Instant::now()));
        }
    }

    /// Reads so many bytes, or less where the connection ends before that or nothing comes.
    fn receive(&mut self, count: usize, seen: &mut Conversation) {
        while self.unread.len() < count && self.more(ANSWER_TIME_MAX) {}
        let end = count.min(self.unread.len());
        let received: Vec<u8> = self.unread.drain(..end).collect();
        seen.remarks
            .push(format!("bytes: \"{}\"", received.escape_ascii()));
    }

    fn read_to_close(&mut self, seen: &mut Conversation) {
        while self.more(ANSWER_TIME_MAX) {}
        let body = std::mem::take(&mut self.unread);
        seen.remarks
            .push(format!("bytes: \"{}\"", body.escape_ascii()));
    }

    /// Reads one final response and the interim ones before it.
    fn read_response(&mut self, head: bool, seen: &mut Conversation) {
        loop {
            let Some(response) = self.read_one(head) else {
                let what = if self.unread.is_empty() {
                    "no answer".to_string()
                } else {
                    format!("broken answer: \"{}\"", self.unread.escape_ascii())
                };
                self.unread.clear();
                seen.remarks.push(what);
                return;
            };
            let interim = (100..200).contains(&response.status()) && response.status() != 101;
            seen.responses.push(response);
            if !interim {
                return;
            }
        }
    }

    fn read_one(&mut self, head: bool) -> Option<Response> {
        while self.unread.len() < 5 {
            if !self.more(ANSWER_TIME_MAX) {
                break;
            }
        }
        if !self.unread.starts_with(b"HTTP/") {
            // HTTP/0.9: the answer is a body and ends with the connection
            while self.more(ANSWER_TIME_MAX) {}
            let body = std::mem::take(&mut self.unread);
            return (!body.is_empty()).then(|| Response {
                wire_length: body.len(),
                body,
                ..Response::default()
            });
        }
        let end = self.find(b"\r\n\r\n", 0)?;
        let mut response = parse_head(&self.unread[..end]);
        response.head = head;
        self.unread.drain(..end + 4);
        self.read_body(&mut response);
        Some(response)
    }

    fn read_body(&mut self, response: &mut Response) {
        if response.head || matches!(response.status(), 100..=199 | 204 | 304) {
            return;
        }
        let length = response
            .header("content-length")
            .and_then(|value| String::from_utf8_lossy(value).parse::<usize>().ok());
        if response.header("transfer-encoding") == Some(b"chunked") {
            response.cut_short = self.read_chunks(response).is_none();
        } else if let Some(length) = length {
            while self.unread.len() < length && self.more(ANSWER_TIME_MAX) {}
            response.cut_short = self.unread.len() < length;
            response.body = self.unread.drain(..length.min(self.unread.len())).collect();
            response.wire_length = response.body.len();
        } else {
            while self.more(ANSWER_TIME_MAX) {}
            response.body = std::mem::take(&mut self.unread);
            response.wire_length = response.body.len();
        }
    }

    /// Reads chunks and trailers. Nothing if they end too soon or are broken.
    fn read_chunks(&mut self, response: &mut Response) -> Option<()> {
        loop {
            let line_end = self.find(b"\r\n", 0)?;
            let size = String::from_utf8_lossy(&self.unread[..line_end]).into_owned();
            let size = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16)
                .ok()?;
            self.unread.drain(..line_end + 2);
            response.wire_length += line_end + 2;
            if size == 0 {
                break;
            }
            while self.unread.len() < size + 2 {
                if !self.more(ANSWER_TIME_MAX) {
                    response.body.append(&mut self.unread);
                    return None;
                }
            }
            response.body.extend(self.unread.drain(..size));
            response.wire_length += size + 2;
            let line_break: Vec<u8> = self.unread.drain(..2).collect();
            if line_break != b"\r\n" {
                return None;
            }
        }
        loop {
            let end = self.find(b"\r\n", 0)?;
            let line: Vec<u8> = self.unread.drain(..end + 2).take(end).collect();
            response.wire_length += end + 2;
            if line.is_empty() {
                return Some(());
            }
            response.trailers.push(line);
        }
    }

    /// Where `needle` is in what has come, waiting for it if need be.
    fn find(&mut self, needle: &[u8], from: usize) -> Option<usize> {
        loop {
            if let Some(at) = self.unread[from..]
                .windows(needle.len())
                .position(|window| window == needle)
            {
                return Some(from + at);
            }
            if !self.more(ANSWER_TIME_MAX) {
                return None;
            }
        }
    }
}

fn parse_head(head: &[u8]) -> Response {
    let mut lines = head
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let status_line = lines.next().unwrap_or_default().to_vec();
    let headers = lines
        .map(|line| match line.iter().position(|byte| *byte == b':') {
            Some(at) => (
                line[..at].to_vec(),
                line[at + 1..]
                    .strip_prefix(b" ")
                    .unwrap_or(&line[at + 1..])
                    .to_vec(),
            ),
            None => (line.to_vec(), Vec::new()),
        })
        .collect();
    Response {
        status_line,
        headers,
        ..Response::default()
    }
}
