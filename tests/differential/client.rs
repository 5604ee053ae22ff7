//! The client of a lane: sends a conversation's requests and keeps what comes back.
//!
//! It knows as much of HTTP/1 as it needs to find the end of an answer. It never waits for nothing
//! to happen: whether a connection stays open is seen once the server's loop has gone round, and a
//! server from which nothing has come for a while is silent once its loop has gone round and the
//! upstream has answered all that reached it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::program::Server;
use crate::requests::{Conversation, Exchange, Identity};
use crate::upstream::Upstream;

/// How long an answer, or more of it, may take while the upstream works on it.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long all that follows an answer may take, one request after the other.
const SETTLE_PATIENCE: Duration = Duration::from_secs(10);
/// How long a server that is silent is waited for: longer than all timers of a configuration after
/// which something is sent.
pub(crate) const QUIET_TIME: Duration = Duration::from_millis(100);
/// The same where a difference is looked into, so that none comes from a machine that is busy.
pub(crate) const QUIET_TIME_SURE: Duration = Duration::from_millis(900);
/// Between the header of the PROXY protocol and the first request: so long that a server has taken
/// the one by itself.
const PREFACE_PAUSE: Duration = Duration::from_millis(5);
/// A body that is longer is cut here.
const BODY_LENGTH_MAX: usize = 4 << 20;

/// One answer, interim ones included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Response {
    /// Empty for HTTP/0.9.
    pub(crate) status_line: String,
    /// Names and values in their order, bytes beyond ASCII as `\xHH`.
    pub(crate) fields: Vec<(String, String)>,
    /// Chunks joined.
    pub(crate) body: Vec<u8>,
    /// The body's bytes with its framing.
    pub(crate) wire_length: usize,
    /// Lines behind the last chunk.
    pub(crate) trailers: Vec<String>,
    /// How its end is found.
    pub(crate) framing: &'static str,
    /// The connection ended, or nothing more came, before the answer was whole.
    pub(crate) cut: bool,
}

impl Response {
    /// The first field of a name.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let found = self
            .fields
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// The status in numbers, 0 without one.
    pub(crate) fn status(&self) -> u16 {
        self.status_line
            .split(' ')
            .nth(1)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    }
}

/// What became of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It was open until the client closed it.
    #[default]
    Kept,
    /// With or without a reset: which of them is chance where the client sends what the server does
    /// not read.
    Closed,
}

/// What the client has seen of one conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    /// The answers to each request.
    pub(crate) answers: Vec<Vec<Response>>,
    /// Bytes that belong to no answer.
    pub(crate) rest: Vec<u8>,
    pub(crate) ending: Ending,
}

impl Heard {
    /// The answers to one request, by its number.
    pub(crate) fn answers_to(&self, request: usize) -> impl Iterator<Item = &Response> {
        self.answers.get(request).into_iter().flatten()
    }
}

/// What a client needs beside its own connection to tell a silent server from a busy one.
pub(crate) struct Surroundings<'a> {
    pub(crate) server: &'a mut Server,
    pub(crate) upstream: &'a Upstream,
    /// [`QUIET_TIME`] or [`QUIET_TIME_SURE`].
    pub(crate) quiet: Duration,
}

impl Surroundings<'_> {
    /// Waits until the server, and the upstream with what the server asks of it, have nothing more
    /// to do: what the client sent beyond its requests, or what follows an answer, may lead from
    /// one request to the next.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        let start = Instant::now();
        let mut before = None;
        while start.elapsed() < SETTLE_PATIENCE {
            self.server.pass()?;
            let now = Some(self.upstream.settle());
            before = if before == now {
                if self.upstream.give_up() { None } else { break }
            } else {
                now
            };
        }
        Ok(())
    }
}

/// Carries out a conversation.
pub(crate) fn converse(
    conversation: &Conversation,
    surroundings: &mut Surroundings,
) -> Result<Heard, String> {
    let address = ("127.0.0.1", conversation.port);
    let stream = TcpStream::connect(address)
        .map_err(|error| format!("connecting to {}: {error}", conversation.port))?;
    let prepared = stream
        .set_nodelay(true)
        .and_then(|()| stream.set_read_timeout(Some(surroundings.quiet)))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
    prepared.map_err(|error| error.to_string())?;
    let mut heard = Heard::default();
    let stream = match conversation
        .tls
        .as_deref()
        .map(|name| secured(&stream, name, conversation.identity))
    {
        None => Stream::Plain(stream),
        Some(Ok(secured)) => Stream::Secured(secured),
        Some(Err(())) => {
            heard.rest = b"(no handshake)".to_vec();
            heard.ending = Ending::Closed;
            return Ok(heard);
        }
    };
    let mut line = Line {
        stream,
        surroundings,
        unread: Vec::new(),
        ended: None,
    };
    line.send(&conversation.preface);
    if !conversation.preface.is_empty() {
        // What comes in one piece with it shares nginx's buffer with it, which leaves less room for
        // a body.
        std::thread::sleep(PREFACE_PAUSE);
    }
    if conversation.pipelined {
        let all: Vec<u8> = conversation
            .exchanges
            .iter()
            .flat_map(|exchange| exchange.segments.concat())
            .collect();
        line.send(&all);
    }
    // What stands behind a body is one more request, to be answered with or after the others.
    let behind = |exchange: &&Exchange| exchange.asks_twice();
    let more = conversation.exchanges.iter().filter(behind).count();
    let sent = conversation.exchanges.iter().map(Some);
    for exchange in sent.chain(std::iter::repeat_n(None, more)) {
        if let Some(exchange) = exchange.filter(|_| !conversation.pipelined) {
            line.send_exchange(exchange, conversation.shuts)?;
        } else if exchange.is_some() && conversation.shuts {
            line.stream.shut();
        }
        let answers = line.answers(exchange.is_some_and(|exchange| exchange.head_only));
        let closes =
            |last: &Response| last.field("connection") == Some("close") && !conversation.pipelined;
        // After a 412 nginx closes without a word, which the table of differences tells of.
        let fails = |last: &Response| last.status() == 412 && !conversation.pipelined;
        let over = answers
            .last()
            .is_none_or(|last| last.cut || last.framing == "end" || fails(last) || closes(last));
        heard.answers.push(answers);
        if over || line.ended.is_some() {
            break;
        }
    }
    line.watch()?;
    heard.rest = line.unread;
    heard.ending = line.ended.unwrap_or_default();
    Ok(heard)
}

/// Shakes hands; the reason why that fails is for the logs to tell.
fn secured(stream: &TcpStream, name: &str, identity: Option<Identity>) -> Result<Box<Secured>, ()> {
    let name = ServerName::try_from(String::from(name))
        .or_else(|_| ServerName::try_from("localhost"))
        .map_err(|_| ())?;
    // Not h2: the requests are those of HTTP/1.
    let client = support::tls::Client::new().protocol("http/1.1");
    let client = match identity {
        Some(identity) => client.identity(identity.path()),
        None => client,
    };
    let config: Arc<ClientConfig> = Arc::new(client.config());
    let client = ClientConnection::new(config, name).map_err(|_| ())?;
    let mut secured = StreamOwned::new(client, stream.try_clone().map_err(|_| ())?);
    // Ciphers are slow where programs are made without optimizing.
    let quiet = stream.read_timeout().map_err(|_| ())?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(|_| ())?;
    while secured.conn.is_handshaking() {
        secured
            .conn
            .complete_io(&mut secured.sock)
            .map_err(|_| ())?;
    }
    stream.set_read_timeout(quiet).map_err(|_| ())?;
    Ok(Box::new(secured))
}

type Secured = StreamOwned<ClientConnection, TcpStream>;

enum Stream {
    Plain(TcpStream),
    Secured(Box<Secured>),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(stream) => stream,
            Stream::Secured(stream) => &stream.sock,
        }
    }

    /// Says that nothing more comes.
    fn shut(&mut self) {
        if let Stream::Secured(stream) = self {
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
        let _ = self.socket().shutdown(Shutdown::Write);
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.write_all(bytes),
            Stream::Secured(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(buffer),
            Stream::Secured(stream) => read_secured(stream, buffer),
        }
    }
}

/// Reads what a server has sent, also where it takes nothing any more: an answer that came before
/// it closed is one.
fn read_secured(stream: &mut Secured, buffer: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match stream.conn.reader().read(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => return read,
        }
        stream.conn.read_tls(&mut stream.sock)?;
        let processed = stream.conn.process_new_packets();
        while stream.conn.wants_write() && stream.conn.write_tls(&mut stream.sock).is_ok() {}
        processed.map_err(std::io::Error::other)?;
    }
}

struct Line<'a, 'b> {
    stream: Stream,
    surroundings: &'a mut Surroundings<'b>,
    unread: Vec<u8>,
    /// How the connection ended, once it has.
    ended: Option<Ending>,
}

impl Line<'_, '_> {
    /// A server that has closed does not take what is sent; its answer shows that.
    fn send(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            let _ = self.stream.write(bytes);
        }
    }

    /// Sends a request, each segment once the server has read the one before.
    fn send_exchange(&mut self, exchange: &Exchange, shuts: bool) -> Result<(), String> {
        for (number, segment) in exchange.segments.iter().enumerate() {
            if number > 0 {
                // What the connection began with may take rounds of its own.
                self.surroundings.server.pass()?;
                self.surroundings.server.pass()?;
            }
            self.send(segment);
        }
        if shuts {
            if exchange.breaks_off() {
                // nginx does not see the end of what it drops for a `post_action` where that comes
                // with the last bytes.
                self.surroundings.server.pass()?;
                self.surroundings.server.pass()?;
            }
            self.stream.shut();
        }
        Ok(())
    }

    /// Interim answers and the final one.
    fn answers(&mut self, head_only: bool) -> Vec<Response> {
        let mut answers = Vec::new();
        while let Some(answer) = self.answer(head_only) {
            let interim =
                (100..200).contains(&answer.status()) && answer.status() != 101 && !answer.cut;
            answers.push(answer);
            if !interim || answers.len() > 10 {
                break;
            }
        }
        answers
    }

    /// Waits for more bytes. A server that is silent is told that nothing more comes, once.
    fn more(&mut self) -> bool {
        if self.ended.is_some() {
            return false;
        }
        self.wait() || {
            let silent = self.ended.is_none();
            silent && {
                self.stream.shut();
                self.wait()
            }
        }
    }

    /// Waits until something comes, or until the server is silent.
    fn wait(&mut self) -> bool {
        let mut start = Instant::now();
        let mut before = None;
        loop {
            if self.read() {
                return true;
            }
            if self.ended.is_some() || start.elapsed() > PATIENCE {
                return false;
            }
            let passed = self.surroundings.server.pass();
            if self.surroundings.upstream.is_busy() {
                let now = Some(self.surroundings.upstream.progress());
                if before != now {
                    // An answer may follow many that come one after the other.
                    start = Instant::now();
                }
                before = if before == now && self.surroundings.upstream.give_up() {
                    None
                } else {
                    now
                };
                continue;
            }
            // What the server has just asked the upstream may not have reached it.
            self.surroundings.upstream.settle();
            if self.surroundings.upstream.is_busy() {
                continue;
            }
            let passed = passed.and_then(|()| self.surroundings.server.pass());
            return passed.is_ok() && self.read();
        }
    }

    fn read(&mut self) -> bool {
        let mut buffer = [0; 64 * 1024];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.ended = Some(Ending::Closed),
                Ok(count) => {
                    self.unread.extend_from_slice(&buffer[..count]);
                    return true;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => self.ended = Some(Ending::Closed),
            }
            return false;
        }
    }

    /// Sees what becomes of the connection after the last answer.
    fn watch(&mut self) -> Result<(), String> {
        if self.ended.is_some() {
            return Ok(());
        }
        self.surroundings.settle()?;
        self.surroundings.server.pass()?;
        let socket = self.stream.socket();
        let done = socket.set_nonblocking(true);
        done.map_err(|error| error.to_string())?;
        while self.read() {}
        Ok(())
    }

    fn answer(&mut self, head_only: bool) -> Option<Response> {
        while self.unread.len() < 5 && self.more() {}
        if self.unread.is_empty() {
            return None;
        }
        if !self.unread.starts_with(b"HTTP/") {
            while self.unread.len() < BODY_LENGTH_MAX && self.more() {}
            let body = std::mem::take(&mut self.unread);
            return Some(Response {
                wire_length: body.len(),
                body,
                framing: "end",
                ..Response::default()
            });
        }
        let Some(end) = self.find(b"\r\n\r\n") else {
            let status_line = std::mem::take(&mut self.unread).escape_ascii().to_string();
            return Some(Response {
                status_line,
                cut: true,
                ..Response::default()
            });
        };
        let mut answer = head(&self.unread[..end]);
        self.unread.drain(..end + 4);
        self.body(&mut answer, head_only);
        Some(answer)
    }

    fn body(&mut self, answer: &mut Response, head_only: bool) {
        if head_only || matches!(answer.status(), 100..=199 | 204 | 304) {
            answer.framing = "none";
            return;
        }
        let length = answer
            .field("content-length")
            .and_then(|value| value.parse::<usize>().ok());
        if answer.field("transfer-encoding") == Some("chunked") {
            answer.framing = "chunked";
            answer.cut = self.chunks(answer).is_none();
        } else if let Some(length) = length {
            answer.framing = "length";
            while self.unread.len() < length && self.more() {}
            answer.cut = self.unread.len() < length;
            answer.body = self.unread.drain(..length.min(self.unread.len())).collect();
            answer.wire_length = answer.body.len();
        } else {
            answer.framing = "end";
            while self.unread.len() < BODY_LENGTH_MAX && self.more() {}
            answer.cut = self.ended.is_none();
            answer.body = std::mem::take(&mut self.unread);
            answer.wire_length = answer.body.len();
        }
    }

    /// Chunks and trailers. Nothing if they end too soon or are broken.
    fn chunks(&mut self, answer: &mut Response) -> Option<()> {
        loop {
            let end = self.find(b"\r\n")?;
            let size = String::from_utf8_lossy(&self.unread[..end]).into_owned();
            let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
            self.unread.drain(..end + 2);
            answer.wire_length += end + 2;
            if size == 0 {
                break;
            }
            while self.unread.len() < size + 2 {
                if !self.more() {
                    answer.body.append(&mut self.unread);
                    return None;
                }
            }
            answer.body.extend(self.unread.drain(..size));
            answer.wire_length += size + 2;
            let line_break: Vec<u8> = self.unread.drain(..2).collect();
            if line_break != b"\r\n" {
                return None;
            }
        }
        loop {
            let end = self.find(b"\r\n")?;
            let line: Vec<u8> = self.unread.drain(..end + 2).take(end).collect();
            answer.wire_length += end + 2;
            if line.is_empty() {
                return Some(());
            }
            answer.trailers.push(line.escape_ascii().to_string());
        }
    }

    fn find(&mut self, text: &[u8]) -> Option<usize> {
        let mut from = 0;
        loop {
            if let Some(at) = crate::upstream::find(&self.unread[from..], text) {
                return Some(from + at);
            }
            from = self.unread.len().saturating_sub(text.len());
            if !self.more() {
                return None;
            }
        }
    }
}

fn head(bytes: &[u8]) -> Response {
    let text = |bytes: &[u8]| {
        bytes
            .escape_ascii()
            .to_string()
            .replace("\\\"", "\"")
            .replace("\\'", "'")
    };
    let mut lines = bytes
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let status_line = text(lines.next().unwrap_or_default());
    let fields = lines.map(|line| match line.iter().position(|byte| *byte == b':') {
        Some(at) => {
            let value = &line[at + 1..];
            (
                text(&line[..at]),
                text(value.strip_prefix(b" ").unwrap_or(value)),
            )
        }
        None => (text(line), String::from("(no colon)")),
    });
    Response {
        status_line,
        fields: fields.collect(),
        ..Response::default()
    }
}
