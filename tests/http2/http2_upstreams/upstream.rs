//! An upstream of our own that speaks HTTP/2: a test drives its connections frame by frame, or a
//! script answers. It keeps every frame that comes, and takes note of what no client may do.
//!
//! Header blocks are read by `loona-hpack`, another implementation than the one under test; they
//! are written as plain literals.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use proto::h2::ErrorCode;
use proto::h2::frame::{self, FrameHead, HEAD_LENGTH, Kind, PREFACE, flags};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use support::PATIENCE;
use support::http2::put_data;
use support::master::wait_for;

/// What a window is at first, and the setting of its size.
pub(crate) const INITIAL_WINDOW_SIZE_DEFAULT: i64 = 65_535;
pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;

/// The fields of a head or of trailers, in order.
pub(crate) type Fields = Vec<(String, String)>;

/// Bytes that go both ways.
trait Bytes: Read + Write + Send {}
impl<T: Read + Write + Send> Bytes for T {}

/// The head of a frame that has come.
#[derive(Clone, Debug)]
pub(crate) struct Noted {
    /// Which connection it came on, from 0.
    pub(crate) connection: usize,
    pub(crate) head: FrameHead,
}

/// A request as far as it has come.
#[derive(Clone, Default)]
pub(crate) struct Asked {
    pub(crate) connection: usize,
    pub(crate) stream: u32,
    pub(crate) fields: Fields,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Fields,
    /// Its last frame has come.
    pub(crate) ended: bool,
    pub(crate) reset: Option<ErrorCode>,
    sent_back: usize,
    /// What the other end may still send, and what we may.
    window: i64,
    credit: i64,
}

impl std::fmt::Debug for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (place, length) = ((self.connection, self.stream), self.body.len());
        write!(f, "{place:?} {:?} {length} bytes ", self.fields)?;
        write!(
            f,
            "ended={} reset={:?} window={}",
            self.ended, self.reset, self.window
        )
    }
}

impl Asked {
    /// The value of a field; empty where there is none.
    pub(crate) fn field(&self, name: &str) -> &str {
        let found = self.fields.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.as_str())
    }

    pub(crate) fn path(&self) -> &str {
        self.field(":path")
    }
}

/// What has come on all connections.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Connections that were accepted, and those of them that have ended.
    pub(crate) connections: usize,
    pub(crate) ended: usize,
    pub(crate) frames: Vec<Noted>,
    /// Requests whose last frame has come, in that order.
    pub(crate) asked: Vec<Asked>,
    /// For each connection the most streams that were open at once, and how many there were.
    pub(crate) open_max: BTreeMap<usize, usize>,
    pub(crate) streams: BTreeMap<usize, usize>,
    /// What the other end may not do.
    pub(crate) faults: Vec<String>,
    /// Streams by connection on which we have sent our last frame.
    answered: BTreeSet<(usize, u32)>,
    /// The connections' sockets; each is written to by one at a time.
    sockets: BTreeMap<usize, Arc<Mutex<TcpStream>>>,
}

/// One that listens as long as the process runs.
pub(crate) struct Upstream {
    address: SocketAddr,
    listener: Option<TcpListener>,
    tls: Option<Arc<ServerConfig>>,
    record: Arc<Mutex<Record>>,
}

impl Upstream {
    /// Listens; the test [accepts](Self::accept) connections.
    pub(crate) fn bind() -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Upstream {
            address: listener.local_addr().unwrap(),
            listener: Some(listener),
            tls: None,
            record: Arc::default(),
        }
    }

    /// Listens, and runs a script for all that comes, a thread for each connection.
    pub(crate) fn serve(script: impl Fn(&mut Peer, Heard) + Send + Sync + 'static) -> Upstream {
        Upstream::bind().serve_with(&[], script)
    }

    /// The same over TLS.
    pub(crate) fn over_tls(self, config: ServerConfig) -> Upstream {
        Upstream {
            tls: Some(Arc::new(config)),
            ..self
        }
    }

    /// Runs a script for connections that begin with these settings.
    pub(crate) fn serve_with(
        self,
        settings: &[(u16, u32)],
        script: impl Fn(&mut Peer, Heard) + Send + Sync + 'static,
    ) -> Upstream {
        self.run(Some(settings), script)
    }

    /// Runs a script for connections on which nothing is said before it.
    pub(crate) fn serve_in_silence(
        self,
        script: impl Fn(&mut Peer, Heard) + Send + Sync + 'static,
    ) -> Upstream {
        self.run(None, script)
    }

    fn run(
        mut self,
        settings: Option<&[(u16, u32)]>,
        script: impl Fn(&mut Peer, Heard) + Send + Sync + 'static,
    ) -> Upstream {
        let listener = self.listener.take().unwrap();
        let (tls, record) = (self.tls.clone(), Arc::clone(&self.record));
        let (script, settings) = (Arc::new(script), settings.map(<[_]>::to_vec));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (script, settings) = (Arc::clone(&script), settings.clone());
                let (tls, record) = (tls.clone(), Arc::clone(&record));
                let number = record.lock().unwrap().begin();
                thread::spawn(move || {
                    let mut peer = Peer::new(stream, tls, record, number);
                    if let Some(settings) = settings {
                        peer.settings(&settings);
                    }
                    while !peer.is_over {
                        let heard = peer.passed_over.pop_front();
                        match heard.or_else(|| peer.next()) {
                            Some(heard) => script(&mut peer, heard),
                            None => return,
                        }
                    }
                });
            }
        });
        self
    }

    /// The next connection, on which nothing has been said. There must be one.
    pub(crate) fn accept(&self) -> Peer {
        let started = Instant::now();
        let listener = self.listener.as_ref().unwrap();
        listener.set_nonblocking(true).unwrap();
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).unwrap();
                    let number = self.record().begin();
                    return Peer::new(stream, self.tls.clone(), Arc::clone(&self.record), number);
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            assert!(started.elapsed() < PATIENCE, "there is no connection");
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// What has come so far.
    pub(crate) fn record(&self) -> std::sync::MutexGuard<'_, Record> {
        self.record.lock().unwrap()
    }

    /// How many requests have begun.
    pub(crate) fn heads(&self) -> usize {
        self.record().heads()
    }

    /// Waits for so many requests that have come whole; all of them.
    pub(crate) fn wait_for(&self, requests: usize) -> Vec<Asked> {
        wait_for("request", || self.record().asked.len() >= requests);
        self.record().asked.clone()
    }

    /// Answers a request beside the script that listens on its connection.
    pub(crate) fn answer(&self, asked: &Asked, body: &[u8]) {
        let place = (asked.connection, asked.stream);
        let mut record = self.record();
        record.answered.insert(place);
        let socket = record.sockets.get(&asked.connection).cloned();
        drop(record);
        let head = headers(asked.stream, &[(":status", "200")], false);
        let bytes = [head, data(asked.stream, body, true)].concat();
        let socket = socket.expect("the connection is there");
        // The other end may have gone meanwhile.
        let _ = socket.lock().unwrap().write_all(&bytes);
    }

    /// The request that has come last, whole.
    pub(crate) fn last(&self) -> Asked {
        let record = self.record();
        record.asked.last().expect("it was asked").clone()
    }

    /// Panics where the other end has done what it may not.
    pub(crate) fn assert_clean(&self) {
        let faults = &self.record().faults;
        assert!(faults.is_empty(), "{faults:?}");
    }
}

impl Record {
    /// How many requests have begun.
    pub(crate) fn heads(&self) -> usize {
        self.streams.values().sum()
    }

    /// Whether we have sent the last frame of an answer.
    pub(crate) fn is_answered(&self, asked: &Asked) -> bool {
        self.answered.contains(&(asked.connection, asked.stream))
    }

    fn begin(&mut self) -> usize {
        self.connections += 1;
        self.connections - 1
    }
}

/// What has come, of what a script may want to know; the rest is in [`Peer::requests`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The head of a request, and whether that ends it.
    Head(u32, bool),
    /// So many bytes of a body, and whether they end it.
    Data(u32, usize, bool),
    /// Trailers, which end a request.
    Trailers(u32),
    Reset(u32, ErrorCode),
    GoAway(ErrorCode),
    /// Credit, for a stream or with 0 for all.
    Credit(u32, u32),
    /// Our settings hold.
    SettingsHold,
    Other(Kind),
}

/// The upstream's end of a connection.
pub(crate) struct Peer {
    pub(crate) number: usize,
    stream: Box<dyn Bytes>,
    socket: TcpStream,
    has_begun: bool,
    /// We have sent settings; else we confirm none.
    has_settings: bool,
    /// Held while something is sent.
    turn: Arc<Mutex<TcpStream>>,
    received: Vec<u8>,
    decoder: loona_hpack::Decoder<'static>,
    /// A header block that has not come whole.
    block: Vec<u8>,
    block_ends: bool,
    last_stream: u32,
    pub(crate) requests: BTreeMap<u32, Asked>,
    record: Arc<Mutex<Record>>,
    /// What has come while a body was sent.
    passed_over: VecDeque<Heard>,
    /// The script is done with it.
    is_over: bool,
    /// Whether all that has come is given back as credit.
    pub(crate) gives_credit: bool,
    /// Windows: of the connection, and what streams begin with.
    window: i64,
    initial_window: i64,
    streams_max: usize,
    /// Settings that the other end has not said to know.
    unheard: VecDeque<Vec<(u16, u32)>>,
    /// What we may send: on the connection, and what streams begin with.
    credit: i64,
    initial_credit: i64,
    /// The protocol that was agreed upon by ALPN, and the name that was asked for.
    pub(crate) protocol: Option<Vec<u8>>,
    pub(crate) server_name: Option<String>,
}

impl Peer {
    fn new(
        socket: TcpStream,
        tls: Option<Arc<ServerConfig>>,
        record: Arc<Mutex<Record>>,
        number: usize,
    ) -> Peer {
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        let mut bytes = socket.try_clone().unwrap();
        let turn = Arc::new(Mutex::new(socket.try_clone().unwrap()));
        let mut known = record.lock().unwrap();
        known.sockets.insert(number, Arc::clone(&turn));
        drop(known);
        let (mut protocol, mut server_name) = (None, None);
        let stream: Box<dyn Bytes> = match tls {
            None => Box::new(bytes),
            Some(config) => {
                let mut tls = ServerConnection::new(config).unwrap();
                while tls.is_handshaking() {
                    // One that does not come to its end shows in the test that expects it.
                    if tls.complete_io(&mut bytes).is_err() {
                        break;
                    }
                }
                protocol = tls.alpn_protocol().map(<[u8]>::to_vec);
                server_name = tls.server_name().map(str::to_owned);
                Box::new(StreamOwned::new(tls, bytes))
            }
        };
        Peer {
            number,
            stream,
            socket,
            has_begun: false,
            has_settings: false,
            turn,
            received: Vec::new(),
            decoder: loona_hpack::Decoder::new(),
            block: Vec::new(),
            block_ends: false,
            last_stream: 0,
            requests: BTreeMap::new(),
            record,
            passed_over: VecDeque::new(),
            is_over: false,
            gives_credit: true,
            window: INITIAL_WINDOW_SIZE_DEFAULT,
            initial_window: INITIAL_WINDOW_SIZE_DEFAULT,
            streams_max: usize::MAX,
            unheard: VecDeque::new(),
            credit: INITIAL_WINDOW_SIZE_DEFAULT,
            initial_credit: INITIAL_WINDOW_SIZE_DEFAULT,
            protocol,
            server_name,
        }
    }

    // What is sent.

    /// Sends bytes as they are; what streams they end is not known.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _turn = self.turn.lock().unwrap();
        // The other end may have closed meanwhile.
        let _ = self
            .stream
            .write_all(bytes)
            .and_then(|()| self.stream.flush());
    }

    /// Sends bytes in segments of this many.
    pub(crate) fn drip(&mut self, bytes: &[u8], length: usize) {
        for part in bytes.chunks(length) {
            self.send(part);
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Sends settings; they hold once the other end says so.
    pub(crate) fn settings(&mut self, settings: &[(u16, u32)]) {
        self.has_settings = true;
        self.unheard.push_back(settings.to_vec());
        let mut out = Vec::new();
        frame::put_settings(&mut out, settings);
        self.send(&out);
    }

    /// Sends the head of an answer.
    pub(crate) fn head(&mut self, stream: u32, fields: &[(&str, &str)], ends: bool) {
        self.send(&headers(stream, fields, ends));
        self.answered(stream, ends);
    }

    /// Sends a part of its body, whatever credit there is.
    pub(crate) fn data(&mut self, stream: u32, bytes: &[u8], ends: bool) {
        let mut out = Vec::new();
        put_data(&mut out, stream, bytes, ends);
        self.send(&out);
        self.spend(stream, bytes.len());
        self.answered(stream, ends);
    }

    /// Sends an answer with a body.
    pub(crate) fn answer(&mut self, stream: u32, status: &str, body: &[u8]) {
        let length = body.len().to_string();
        let fields = [(":status", status), ("content-length", &length)];
        self.head(stream, &fields, body.is_empty());
        if !body.is_empty() {
            self.data(stream, body, true);
        }
    }

    /// Sends a body as there is credit for it. What comes meanwhile the script hears of later.
    pub(crate) fn send_body(&mut self, stream: u32, body: &[u8]) {
        self.send_part(stream, body, true);
    }

    /// The same of a part that is not empty, which may be the last.
    pub(crate) fn send_part(&mut self, stream: u32, mut body: &[u8], ends: bool) {
        while !body.is_empty() {
            let part = body.len().min(self.may_send(stream)).min(16_384);
            if part == 0 {
                let heard = self.hear();
                self.passed_over.push_back(heard);
                continue;
            }
            let (now, later) = body.split_at(part);
            self.data(stream, now, ends && later.is_empty());
            body = later;
        }
    }

    /// Sends back what has come of a request's body and was not sent back.
    pub(crate) fn send_back(&mut self, stream: u32) {
        let asked = self.requests.get_mut(&stream).unwrap();
        let Some(part) = asked.body.get(asked.sent_back..).map(<[u8]>::to_vec) else {
            return; // all of it
        };
        let ends = asked.ended;
        // What comes while this is sent is heard of later.
        asked.sent_back = if ends { usize::MAX } else { asked.body.len() };
        if part.is_empty() {
            if ends {
                self.data(stream, b"", true)
            }
        } else {
            self.send_part(stream, &part, ends)
        }
    }

    /// How many bytes of a body there is credit for.
    pub(crate) fn may_send(&self, stream: u32) -> usize {
        let of_stream = self.requests.get(&stream).map_or(0, |asked| asked.credit);
        of_stream.min(self.credit).max(0) as usize
    }

    fn spend(&mut self, stream: u32, bytes: usize) {
        self.credit -= bytes as i64;
        if let Some(asked) = self.requests.get_mut(&stream) {
            asked.credit -= bytes as i64;
        }
    }

    /// Sends the end of a stream.
    pub(crate) fn reset(&mut self, stream: u32, code: ErrorCode) {
        self.send(&reset(stream, code));
        self.answered(stream, true);
    }

    /// Gives credit, for a stream or with 0 for all.
    pub(crate) fn give(&mut self, stream: u32, bytes: u32) {
        match self.requests.get_mut(&stream) {
            Some(asked) => asked.window += i64::from(bytes),
            None if stream == 0 => self.window += i64::from(bytes),
            None => {}
        }
        let mut out = Vec::new();
        frame::put_window_update(&mut out, stream, bytes);
        self.send(&out);
    }

    fn answered(&mut self, stream: u32, ends: bool) {
        if ends {
            let mut record = self.record.lock().unwrap();
            record.answered.insert((self.number, stream));
        }
    }

    /// Whether we have sent the last frame of an answer.
    pub(crate) fn is_answered(&self, stream: u32) -> bool {
        let record = self.record.lock().unwrap();
        record.answered.contains(&(self.number, stream))
    }

    /// How many requests are neither answered nor over.
    pub(crate) fn open(&self) -> usize {
        let record = self.record.lock().unwrap();
        let is_open = |asked: &&Asked| {
            let is_answered = record.answered.contains(&(self.number, asked.stream));
            asked.reset.is_none() && !(asked.ended && is_answered)
        };
        self.requests.values().filter(is_open).count()
    }

    /// Closes the connection.
    pub(crate) fn close(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// Resets the connection, once what was sent has been read.
    pub(crate) fn break_off(&mut self) {
        thread::sleep(Duration::from_millis(20));
        let linger = rustix::net::sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
        linger.unwrap();
        self.is_over = true;
    }

    // What comes.

    /// Waits for the head of a request; its stream. What comes before it is noted.
    pub(crate) fn wait_for_head(&mut self) -> u32 {
        loop {
            if let Heard::Head(stream, _) = self.hear() {
                return stream;
            }
        }
    }

    /// Waits for another request, to its end.
    pub(crate) fn wait_for_request(&mut self) -> Asked {
        let before = self.last_stream;
        loop {
            let found = self
                .requests
                .range(before + 1..)
                .find(|(_, asked)| asked.ended);
            if let Some((_, asked)) = found {
                return asked.clone();
            }
            self.hear();
        }
    }

    /// Waits for the rest of a request.
    pub(crate) fn wait_for_rest(&mut self, stream: u32) -> Asked {
        self.wait_until(|peer| peer.requests[&stream].ended);
        self.requests[&stream].clone()
    }

    /// Waits until something holds of what has come.
    pub(crate) fn wait_until(&mut self, mut holds: impl FnMut(&Peer) -> bool) {
        while !holds(self) {
            self.hear();
        }
    }

    /// Waits for the end of a stream by the other end's reset.
    pub(crate) fn wait_for_reset(&mut self, stream: u32) -> ErrorCode {
        self.wait_until(|peer| peer.requests[&stream].reset.is_some());
        self.requests[&stream].reset.unwrap()
    }

    /// Waits until our settings hold.
    pub(crate) fn wait_for_settings(&mut self) {
        self.wait_until(|peer| peer.unheard.is_empty());
    }

    /// Reads until the other end closes.
    pub(crate) fn wait_for_end(&mut self) {
        while self.next().is_some() {}
    }

    /// The next that is heard; the connection must go on.
    pub(crate) fn hear(&mut self) -> Heard {
        let number = self.number;
        self.next()
            .unwrap_or_else(|| panic!("connection {number} has ended: {:?}", self.requests))
    }

    /// The next that is heard; `None` at the end of the connection.
    pub(crate) fn next(&mut self) -> Option<Heard> {
        let (head, payload) = self.frame()?;
        self.note(Noted {
            connection: self.number,
            head,
        });
        Some(self.take(head, &payload))
    }

    /// What comes within so short a time as says that nothing does.
    pub(crate) fn next_soon(&mut self) -> Option<Heard> {
        let timeout = |duration| self.socket.set_read_timeout(Some(duration)).unwrap();
        timeout(Duration::from_millis(100));
        let mut byte = [0; 1];
        let is_there = !self.received.is_empty() || self.socket.peek(&mut byte).is_ok();
        timeout(PATIENCE);
        if is_there { self.next() } else { None }
    }

    fn frame(&mut self) -> Option<(FrameHead, Vec<u8>)> {
        loop {
            if !self.has_begun && self.received.len() >= PREFACE.len() {
                let preface: Vec<u8> = self.received.drain(..PREFACE.len()).collect();
                self.has_begun = true;
                if preface != PREFACE {
                    self.fault(format!("preface {}", preface.escape_ascii()));
                }
            }
            if self.has_begun
                && let Some((head, rest)) = self.received.split_first_chunk::<HEAD_LENGTH>()
            {
                let head = FrameHead::read(head);
                let length = head.length as usize;
                if let Some(payload) = rest.get(..length) {
                    let payload = payload.to_vec();
                    self.received.drain(..HEAD_LENGTH + length);
                    return Some((head, payload));
                }
            }
            let mut buffer = [0; 64 * 1024];
            match self.stream.read(&mut buffer) {
                Ok(count @ 1..) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => return None,
            }
        }
    }

    fn take(&mut self, head: FrameHead, payload: &[u8]) -> Heard {
        let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
        match head.kind {
            Kind::Headers | Kind::Continuation => {
                if head.kind == Kind::Headers {
                    self.block.clear();
                    self.block_ends = head.has(flags::END_STREAM);
                }
                self.block.extend_from_slice(payload);
                if head.has(flags::END_HEADERS) {
                    self.take_block(head.stream)
                } else {
                    Heard::Other(head.kind)
                }
            }
            Kind::Data => self.take_data(head.stream, payload, head.has(flags::END_STREAM)),
            Kind::Reset => {
                let code = ErrorCode::from_number(number(0));
                match self.requests.get_mut(&head.stream) {
                    Some(asked) => asked.reset = Some(code),
                    None => self.fault(format!("reset of idle stream {}", head.stream)),
                }
                Heard::Reset(head.stream, code)
            }
            Kind::GoAway => Heard::GoAway(ErrorCode::from_number(number(4))),
            Kind::WindowUpdate => {
                let credit = number(0);
                match self.requests.get_mut(&head.stream) {
                    Some(asked) => asked.credit += i64::from(credit),
                    None if head.stream == 0 => self.credit += i64::from(credit),
                    None => self.fault(format!("credit for idle stream {}", head.stream)),
                }
                Heard::Credit(head.stream, credit)
            }
            Kind::Settings if head.has(flags::ACK) => {
                self.settings_hold();
                Heard::SettingsHold
            }
            Kind::Settings => {
                for pair in payload.chunks(6) {
                    let value = u32::from_be_bytes(pair[2..].try_into().unwrap());
                    if pair[..2] == INITIAL_WINDOW_SIZE.to_be_bytes() {
                        self.initial_credit = i64::from(value);
                    }
                }
                if self.has_settings {
                    let mut out = Vec::new();
                    frame::put_settings_ack(&mut out);
                    self.send(&out);
                }
                Heard::Other(head.kind)
            }
            Kind::Ping if !head.has(flags::ACK) => {
                let mut out = Vec::new();
                frame::put_ping(&mut out, true, payload.try_into().unwrap());
                self.send(&out);
                Heard::Other(head.kind)
            }
            kind => Heard::Other(kind),
        }
    }

    fn take_block(&mut self, stream: u32) -> Heard {
        let mut fields = Vec::new();
        let block = std::mem::take(&mut self.block);
        let decoded = self.decoder.decode_with_cb(&block, |name, value| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            fields.push((text(&name), text(&value)));
        });
        if decoded.is_err() {
            self.fault(format!("header block: {decoded:?}"));
        }
        let ends = self.block_ends;
        if let Some(asked) = self.requests.get_mut(&stream) {
            let is_closed = asked.ended || asked.reset.is_some();
            (asked.trailers, asked.ended) = (fields, true);
            if is_closed || !ends {
                self.fault(format!("trailers of stream {stream}"));
            }
            self.end(stream);
            return Heard::Trailers(stream);
        }
        if stream <= self.last_stream || stream.is_multiple_of(2) {
            self.fault(format!("stream {stream} behind {}", self.last_stream));
        }
        self.last_stream = stream;
        let asked = Asked {
            connection: self.number,
            stream,
            fields,
            ended: ends,
            window: self.initial_window,
            credit: self.initial_credit,
            ..Asked::default()
        };
        self.requests.insert(stream, asked);
        let open = self.open();
        let mut record = self.record.lock().unwrap();
        *record.streams.entry(self.number).or_default() += 1;
        let most = record.open_max.entry(self.number).or_default();
        *most = open.max(*most);
        drop(record);
        if open > self.streams_max {
            self.fault(format!("{open} streams at once"));
        }
        if ends {
            self.end(stream);
        }
        Heard::Head(stream, ends)
    }

    fn take_data(&mut self, stream: u32, payload: &[u8], ends: bool) -> Heard {
        let length = payload.len();
        let Some(asked) = self.requests.get_mut(&stream) else {
            self.fault(format!("DATA for idle stream {stream}"));
            return Heard::Data(stream, length, ends);
        };
        let is_closed = asked.ended || asked.reset.is_some();
        asked.body.extend_from_slice(payload);
        asked.ended |= ends;
        let is_beyond = length > 0 && asked.window.min(self.window) < length as i64;
        asked.window -= length as i64;
        self.window -= length as i64;
        if is_closed {
            self.fault(format!("DATA for closed stream {stream}"));
        }
        if is_beyond {
            self.fault(format!("{length} bytes beyond a window on stream {stream}"));
        }
        if ends {
            self.end(stream);
        }
        if self.gives_credit && length > 0 {
            self.give(0, length as u32);
            self.give(stream, length as u32);
        }
        Heard::Data(stream, length, ends)
    }

    /// The oldest settings that were sent hold.
    fn settings_hold(&mut self) {
        let Some(settings) = self.unheard.pop_front() else {
            return self.fault("settings confirmed that were not sent".to_owned());
        };
        for (name, value) in settings {
            match name {
                INITIAL_WINDOW_SIZE => {
                    let by = i64::from(value) - self.initial_window;
                    self.initial_window = i64::from(value);
                    let open = self.requests.values_mut();
                    open.for_each(|asked| asked.window += by);
                }
                MAX_CONCURRENT_STREAMS => self.streams_max = value as usize,
                _ => {}
            }
        }
    }

    fn end(&self, stream: u32) {
        let mut record = self.record.lock().unwrap();
        record.asked.push(self.requests[&stream].clone());
    }

    fn note(&self, noted: Noted) {
        self.record.lock().unwrap().frames.push(noted);
    }

    fn fault(&self, text: String) {
        let text = format!("connection {}: {text}", self.number);
        self.record.lock().unwrap().faults.push(text);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let mut record = self.record.lock().unwrap();
        record.ended += 1;
        record.sockets.remove(&self.number);
    }
}

/// A header block of plain literals, whatever their names and values.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.extend(loona_hpack::encoder::encode_integer(text.len(), 7));
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// The frames of a head, or of trailers.
pub(crate) fn headers(stream: u32, fields: &[(&str, &str)], ends: bool) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put_header_block(&mut out, stream, &block(fields), ends, 16_384);
    out
}

/// The frames of a part of a body.
pub(crate) fn data(stream: u32, bytes: &[u8], ends: bool) -> Vec<u8> {
    let mut out = Vec::new();
    put_data(&mut out, stream, bytes, ends);
    out
}

/// The frame that ends a stream.
pub(crate) fn reset(stream: u32, code: ErrorCode) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put_reset(&mut out, stream, code);
    out
}

/// The frame that ends a connection behind this stream.
pub(crate) fn goaway(last: u32, code: ErrorCode) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put_goaway(&mut out, last, code);
    out
}

/// Any frame.
pub(crate) fn any(kind: u8, set: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let stream = stream.to_be_bytes();
    [&length[1..], &[kind, set], &stream, payload].concat()
}

/// A script that answers 200 and `ok` once a request has come whole.
pub(crate) fn plain(peer: &mut Peer, heard: Heard) {
    if let Some(stream) = whole(heard) {
        peer.answer(stream, "200", b"ok");
    }
}

/// The stream of a request that has come whole by this.
pub(crate) fn whole(heard: Heard) -> Option<u32> {
    match heard {
        Heard::Head(stream, true) | Heard::Data(stream, _, true) | Heard::Trailers(stream) => {
            Some(stream)
        }
        _ => None,
    }
}
