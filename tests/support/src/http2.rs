//! A client of HTTP/2, mostly in the clear, as simple as can be: it sends what a test says, frame
//! by frame, and gathers what comes.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use proto::h2::ErrorCode;
use proto::h2::frame::{self, FrameHead, HEAD_LENGTH, Kind, PREFACE, flags};
use proto::h2::hpack::{Decoder, Encoder, Field};

use crate::PATIENCE;

/// The window that the client gives for everything.
const WINDOW: u32 = (1 << 31) - 1;

/// What has come on a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// `:status` of the head, 0 before it.
    pub status: u16,
    /// The fields of the head, in order.
    pub fields: Vec<(String, String)>,
    /// Statuses of informational heads before it.
    pub informational: Vec<u16>,
    /// The fields of those, in order.
    pub hints: Vec<(String, String)>,
    /// The body so far.
    pub body: Vec<u8>,
    /// Trailers.
    pub trailers: Vec<(String, String)>,
    /// The stream has ended with its last frame.
    pub ended: bool,
    /// It was reset.
    pub reset: Option<ErrorCode>,
}

impl Response {
    /// The value of a field, whose name is in lower case.
    pub fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The body as a text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A frame that has come.
#[derive(Clone, Debug)]
pub struct Frame {
    /// What stands before it.
    pub head: FrameHead,
    /// The rest.
    pub payload: Vec<u8>,
}

/// What a client speaks through.
trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// A connection.
pub struct Client {
    stream: Box<dyn Stream>,
    encoder: Encoder,
    decoder: Decoder,
    received: Vec<u8>,
    next: u32,
    /// A header block that has not come whole.
    block: Vec<u8>,
    /// All streams by their numbers.
    pub responses: BTreeMap<u32, Response>,
    /// In the order of its coming: the stream of each DATA frame.
    pub turns: Vec<u32>,
    /// A GOAWAY that has come: the last stream, and why.
    pub goaway: Option<(u32, ErrorCode)>,
    /// PING answers that have come.
    pub pongs: usize,
}

impl Client {
    /// Connects, and gives windows that nothing fills.
    pub fn connect(port: u16) -> Client {
        let mut client = Client::connect_with(port, &[(4, WINDOW)]);
        let mut out = Vec::new();
        frame::put_window_update(&mut out, 0, WINDOW - 65_535);
        client.send(&out);
        client
    }

    /// Connects with these settings, and gives the connection no more credit than it has by itself.
    pub fn connect_with(port: u16, settings: &[(u16, u32)]) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client::over(stream, settings)
    }

    /// The same over a connection that has been made: of TLS, for instance.
    pub fn over(stream: impl Read + Write + Send + 'static, settings: &[(u16, u32)]) -> Client {
        let mut out = PREFACE.to_vec();
        frame::put_settings(&mut out, settings);
        let mut client = Client {
            stream: Box::new(stream),
            encoder: Encoder::new(4096),
            decoder: Decoder::new(),
            received: Vec::new(),
            next: 1,
            block: Vec::new(),
            responses: BTreeMap::new(),
            turns: Vec::new(),
            goaway: None,
            pongs: 0,
        };
        client.send(&out);
        client
    }

    /// Sends these bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        // A server that has said why it closes may do so meanwhile.
        let _ = self.stream.write_all(bytes);
    }

    /// A header block of these fields.
    pub fn encode(&mut self, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        let fields = fields.iter();
        let fields = fields.map(|(name, value)| Field::from((name.as_bytes(), value.as_bytes())));
        self.encoder.encode(fields, &mut block);
        block
    }

    /// The next stream's number.
    pub fn next_stream(&mut self) -> u32 {
        self.next += 2;
        self.next - 2
    }

    /// The frames of a request with these fields, all of them, on a stream of its own.
    pub fn frames_of(&mut self, fields: &[(&str, &str)], body: Option<&[u8]>) -> (u32, Vec<u8>) {
        let stream = self.next_stream();
        let block = self.encode(fields);
        let mut out = Vec::new();
        frame::put_header_block(&mut out, stream, &block, body.is_none(), 16_384);
        if let Some(body) = body {
            put_data(&mut out, stream, body, true);
        }
        (stream, out)
    }

    /// Sends a request for a path, with these fields beside the usual ones.
    pub fn request(&mut self, path: &str, fields: &[(&str, &str)]) -> u32 {
        self.request_with("GET", path, fields, None)
    }

    /// Sends a request with this method and body.
    pub fn request_with(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> u32 {
        let mut all = vec![
            (":method", method),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
        ];
        all.extend_from_slice(fields);
        let (stream, out) = self.frames_of(&all, body);
        self.send(&out);
        stream
    }

    /// Asks for a path, and waits for the end.
    pub fn get(&mut self, path: &str) -> Response {
        let stream = self.request(path, &[]);
        self.response(stream)
    }

    /// Waits for the end of a stream, however that is.
    ///
    /// # Panics
    /// Where the connection ends first.
    pub fn response(&mut self, stream: u32) -> Response {
        loop {
            if let Some(response) = self.responses.get(&stream)
                && (response.ended || response.reset.is_some())
            {
                return response.clone();
            }
            assert!(
                self.read_frame().is_some(),
                "the connection ended before stream {stream}: {:?}",
                self.goaway
            );
        }
    }

    /// Reads until the server closes.
    pub fn read_to_end(&mut self) {
        while self.read_frame().is_some() {}
    }

    /// Whether more has been received than the frames that were read.
    pub fn has_unread_frames(&self) -> bool {
        !self.received.is_empty()
    }

    /// The next frame, of which note has been taken; `None` at the end.
    pub fn read_frame(&mut self) -> Option<Frame> {
        let frame = loop {
            if let Some((head, rest)) = self.received.split_first_chunk::<HEAD_LENGTH>() {
                let head = FrameHead::read(head);
                let length = head.length as usize;
                if let Some(payload) = rest.get(..length) {
                    let payload = payload.to_vec();
                    self.received.drain(..HEAD_LENGTH + length);
                    break Frame { head, payload };
                }
            }
            let mut buffer = [0; 64 * 1024];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("nothing comes: {error}"),
            }
        };
        self.note(&frame);
        Some(frame)
    }

    fn note(&mut self, frame: &Frame) {
        let head = frame.head;
        let number = |at: usize| u32::from_be_bytes(frame.payload[at..at + 4].try_into().unwrap());
        match head.kind {
            Kind::Headers | Kind::Continuation => {
                self.block.extend_from_slice(&frame.payload);
                if head.has(flags::END_HEADERS) {
                    self.note_block(head.stream);
                }
                if head.kind == Kind::Headers && head.has(flags::END_STREAM) {
                    self.responses.entry(head.stream).or_default().ended = true;
                }
            }
            Kind::Data => {
                self.turns.push(head.stream);
                let response = self.responses.entry(head.stream).or_default();
                response.body.extend_from_slice(&frame.payload);
                response.ended |= head.has(flags::END_STREAM);
            }
            Kind::Reset => {
                let code = ErrorCode::from_number(number(0));
                self.responses.entry(head.stream).or_default().reset = Some(code);
            }
            Kind::GoAway => {
                self.goaway = Some((number(0), ErrorCode::from_number(number(4))));
            }
            Kind::Settings if !head.has(flags::ACK) => {
                let mut out = Vec::new();
                frame::put_settings_ack(&mut out);
                self.send(&out);
            }
            Kind::Ping if head.has(flags::ACK) => self.pongs += 1,
            Kind::Ping => {
                let mut out = Vec::new();
                frame::put_ping(&mut out, true, frame.payload[..8].try_into().unwrap());
                self.send(&out);
            }
            _ => {}
        }
    }

    fn note_block(&mut self, stream: u32) {
        let block = std::mem::take(&mut self.block);
        let (mut bytes, mut fields) = (Vec::new(), Vec::new());
        self.decoder
            .decode(&block, usize::MAX / 2, &mut bytes, |field, bytes| {
                let text = |span: proto::Span| String::from_utf8_lossy(span.of(bytes)).into_owned();
                fields.push((text(field.name), text(field.value)));
            })
            .unwrap();
        let response = self.responses.entry(stream).or_default();
        let status = fields.iter().find(|(name, _)| name == ":status");
        let status = status.map(|(_, value)| value.parse::<u16>().unwrap());
        fields.retain(|(name, _)| !name.starts_with(':'));
        match status {
            Some(status @ 100..=199) => {
                response.informational.push(status);
                response.hints.extend(fields);
            }
            Some(status) => (response.status, response.fields) = (status, fields),
            None => response.trailers = fields,
        }
    }
}

/// Appends DATA frames with these bytes.
pub fn put_data(out: &mut Vec<u8>, stream: u32, bytes: &[u8], ends: bool) {
    let mut parts = bytes.chunks(16_384).peekable();
    if parts.peek().is_none() {
        let set = if ends { flags::END_STREAM } else { 0 };
        frame::put_head(out, Kind::Data, set, stream, 0);
    }
    while let Some(part) = parts.next() {
        let is_last = parts.peek().is_none();
        let set = if is_last && ends {
            flags::END_STREAM
        } else {
            0
        };
        frame::put_head(out, Kind::Data, set, stream, part.len());
        out.extend_from_slice(part);
    }
}
