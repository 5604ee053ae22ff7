//! The client over HTTP/2: carries out a case on streams of one connection and keeps all that
//! comes.
//!
//! It understands as much as is needed to tell responses apart, and takes offence at nothing: what
//! is strange about an answer is for the comparison to show. In the clear it begins with HTTP/2's
//! preface; over TLS it offers `h2`. Windows are as wide as they go, so that no response waits for
//! credit.

pub(crate) mod expected;
pub(crate) mod plan;

use std::path::Path;
use std::time::{Duration, Instant};

use proto::h2::ErrorCode;
use proto::h2::frame::{self, FrameHead, HEAD_LENGTH, Kind, PREFACE, flags};
use proto::h2::hpack::{Decoder, Encoder, Field};

use crate::case::{Case, Step};
use crate::client::{
    ANSWER_TIME_MAX, Connection, Conversation, Response, WATCH_TIME, change_files,
};
use crate::tls::Client;
use plan::Action;

/// Names and values, in order.
pub(crate) type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// The window that the client gives for everything.
const WINDOW: u32 = (1 << 31) - 1;
/// The window that every connection and stream has at first.
const INITIAL_WINDOW_SIZE_DEFAULT: i64 = 65_535;
/// The number of the setting of a stream's window.
const INITIAL_WINDOW_SIZE: u16 = 4;
/// How long after a response the reset of its stream may come.
const RESET_TIME_MAX: Duration = Duration::from_secs(1);
/// The largest payload that a server must take.
const PAYLOAD_MAX: usize = 16_384;

/// Connects to `address` and goes through the case, as `client::converse` does over HTTP/1.
pub(crate) fn converse(
    address: &str,
    case: &Case,
    root: &Path,
    pass_the_loop: impl Fn() -> Result<(), String>,
) -> Result<Conversation, String> {
    let start = Instant::now();
    let actions = plan::plan(case)?;
    let client = match &case.tls {
        Some(offer) => Some(offer.over_http2().client()?),
        None => None,
    };
    let mut seen = Conversation {
        is_http2: true,
        ..Conversation::default()
    };
    let mut session = Session::open(address, client.as_ref(), &mut seen)?;
    for action in actions {
        match action {
            Action::Open { fields, ends } => session.open_stream(&fields, ends),
            Action::Data { bytes, ends } => session.put_data(&bytes, ends),
            Action::Trailers(fields) => session.put_block(&fields, true),
            Action::Step(step) => {
                session.flush();
                match step {
                    Step::Pause(time) => std::thread::sleep(time),
                    Step::Read { count, .. } => {
                        (0..count).for_each(|_| session.read_response(&mut seen))
                    }
                    Step::Wait(time) => session.watch(time),
                    Step::Again => {
                        session.report(&mut seen);
                        session = Session::open(address, client.as_ref(), &mut seen)?;
                    }
                    step => change_files(root, &step)?,
                }
            }
        }
    }
    session.flush();
    seen.elapsed = start.elapsed();
    let closes = session.goaway.is_some();
    if !closes {
        pass_the_loop()?;
        session.wait_for_resets();
    }
    session.watch(if closes { ANSWER_TIME_MAX } else { WATCH_TIME });
    session.report(&mut seen);
    seen.ending = session.connection.ended.unwrap_or_default();
    Ok(seen)
}

/// One request and what came for it.
#[derive(Default)]
struct Stream {
    /// Heads before the response's.
    interim: Vec<Response>,
    response: Option<Response>,
    ended: bool,
    reset: Option<ErrorCode>,
    /// How many bytes may be sent.
    window: i64,
    /// Its method is HEAD.
    is_head: bool,
    /// All of the request has been sent.
    is_sent: bool,
    has_been_read: bool,
}

impl Stream {
    fn is_over(&self) -> bool {
        self.ended || self.reset.is_some()
    }
}

/// A connection. The stream at index `n` has the number `2 n + 1`.
struct Session {
    connection: Connection,
    encoder: Encoder,
    decoder: Decoder,
    streams: Vec<Stream>,
    window: i64,
    stream_window: i64,
    /// What is to be sent, in one write.
    out: Vec<u8>,
    /// A header block that has not come whole.
    block: Vec<u8>,
    /// Whether its stream ends with it.
    block_ends: bool,
    goaway: Option<ErrorCode>,
    remarks: Vec<String>,
}

impl Session {
    fn open(
        address: &str,
        client: Option<&Client>,
        seen: &mut Conversation,
    ) -> Result<Session, String> {
        let connection = Connection::open(address, None, client, seen)?;
        let mut remarks = Vec::new();
        if client.is_some() && connection.ended.is_none() && !connection.agreed_on_http2() {
            remarks.push("HTTP/2 was not agreed on".to_string());
        }
        let mut out = PREFACE.to_vec();
        frame::put_settings(&mut out, &[(INITIAL_WINDOW_SIZE, WINDOW)]);
        frame::put_window_update(&mut out, 0, WINDOW - INITIAL_WINDOW_SIZE_DEFAULT as u32);
        Ok(Session {
            connection,
            encoder: Encoder::new(4096),
            decoder: Decoder::new(),
            streams: Vec::new(),
            window: INITIAL_WINDOW_SIZE_DEFAULT,
            stream_window: INITIAL_WINDOW_SIZE_DEFAULT,
            out,
            block: Vec::new(),
            block_ends: false,
            goaway: None,
            remarks,
        })
    }

    // What goes out.

    fn flush(&mut self) {
        if !self.out.is_empty() {
            self.connection.send(&std::mem::take(&mut self.out));
        }
    }

    fn open_stream(&mut self, fields: &Fields, ends: bool) {
        if !self.streams.is_empty() {
            self.flush();
            (0..self.streams.len()).for_each(|index| self.wait_for(index));
        }
        self.streams.push(Stream {
            window: self.stream_window,
            is_head: fields.contains(&(b":method".to_vec(), b"HEAD".to_vec())),
            ..Stream::default()
        });
        self.put_block(fields, ends);
    }

    /// The number of the stream that was opened last.
    fn number(&self) -> u32 {
        self.streams.len() as u32 * 2 - 1
    }

    fn put_block(&mut self, fields: &Fields, ends: bool) {
        let mut block = Vec::new();
        let fields = fields.iter();
        let fields = fields.map(|(name, value)| Field::from((name.as_slice(), value.as_slice())));
        self.encoder.encode(fields, &mut block);
        let number = self.number();
        self.streams
            .last_mut()
            .into_iter()
            .for_each(|stream| stream.is_sent |= ends);
        frame::put_header_block(&mut self.out, number, &block, ends, PAYLOAD_MAX);
    }

    /// Sends a part of a body as there is credit for it; nothing more once the response has ended.
    fn put_data(&mut self, bytes: &[u8], ends: bool) {
        let (number, index) = (self.number(), self.streams.len() - 1);
        let mut rest = bytes;
        loop {
            let stream = &self.streams[index];
            let credit = self.window.min(stream.window).max(0) as usize;
            let (part, behind) = rest.split_at(rest.len().min(credit).min(PAYLOAD_MAX));
            if stream.is_over() {
                return;
            }
            if part.is_empty() && !rest.is_empty() {
                self.flush();
                if !self.more(ANSWER_TIME_MAX) {
                    self.remarks
                        .push("the body is not read to its end".to_string());
                    return;
                }
                continue;
            }
            let is_last = behind.is_empty();
            let set = if is_last && ends {
                flags::END_STREAM
            } else {
                0
            };
            frame::put_head(&mut self.out, Kind::Data, set, number, part.len());
            self.out.extend_from_slice(part);
            self.window -= part.len() as i64;
            self.streams[index].window -= part.len() as i64;
            self.streams[index].is_sent |= is_last && ends;
            rest = behind;
            if is_last {
                return;
            }
        }
    }

    // What comes.

    /// Reads the oldest response that has not been read.
    fn read_response(&mut self, seen: &mut Conversation) {
        match self.streams.iter().position(|stream| !stream.has_been_read) {
            Some(index) => {
                self.wait_for(index);
                self.streams[index].has_been_read = true;
            }
            None => seen.remarks.push("no request is open".to_string()),
        }
    }

    fn wait_for(&mut self, index: usize) {
        while !self.streams[index].is_over() && self.more(ANSWER_TIME_MAX) {}
    }

    /// Waits for the resets of streams whose responses have ended before their requests: they come
    /// a moment later.
    fn wait_for_resets(&mut self) {
        let end = Instant::now() + RESET_TIME_MAX;
        let is_due = |stream: &Stream| stream.ended && !stream.is_sent && stream.reset.is_none();
        while self.streams.iter().any(is_due)
            && self.more(end.saturating_duration_since(Instant::now()))
        {}
    }

    fn watch(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while self.connection.ended.is_none() && Instant::now() < end {
            self.more(end.saturating_duration_since(Instant::now()));
        }
    }

    /// Waits for bytes, and takes note of the frames that are whole. False if there are none in
    /// time or ever.
    fn more(&mut self, time: Duration) -> bool {
        let came = self.connection.more(time);
        let bytes = std::mem::take(&mut self.connection.unread);
        let mut rest = bytes.as_slice();
        while let Some((head, behind)) = rest.split_first_chunk::<HEAD_LENGTH>() {
            let head = FrameHead::read(head);
            let Some((payload, behind)) = behind.split_at_checked(head.length as usize) else {
                break;
            };
            self.note(head, payload);
            rest = behind;
        }
        self.connection.unread = rest.to_vec();
        self.flush();
        came
    }

    fn note(&mut self, head: FrameHead, payload: &[u8]) {
        let number = |at: usize| {
            let bytes = payload
                .get(at..at + 4)
                .and_then(|bytes| bytes.try_into().ok());
            u32::from_be_bytes(bytes.unwrap_or_default())
        };
        let ends = head.has(flags::END_STREAM);
        match head.kind {
            Kind::Headers | Kind::Continuation => {
                if head.kind == Kind::Headers {
                    self.block_ends = ends;
                }
                self.block.extend_from_slice(payload);
                if head.has(flags::END_HEADERS) {
                    self.note_block(head.stream);
                }
            }
            Kind::Data => {
                let Some(stream) = self.stream(head.stream) else {
                    return;
                };
                let response = stream.response.get_or_insert_default();
                response.body.extend_from_slice(payload);
                response.wire_length += payload.len();
                stream.ended |= ends;
            }
            Kind::Reset => {
                let code = ErrorCode::from_number(number(0));
                self.stream(head.stream)
                    .into_iter()
                    .for_each(|stream| stream.reset = Some(code));
            }
            Kind::GoAway => self.goaway = Some(ErrorCode::from_number(number(4))),
            Kind::Settings if !head.has(flags::ACK) => {
                for pair in payload.chunks_exact(6) {
                    let name = u16::from_be_bytes([pair[0], pair[1]]);
                    let value = u32::from_be_bytes([pair[2], pair[3], pair[4], pair[5]]);
                    if name == INITIAL_WINDOW_SIZE {
                        let by = i64::from(value) - self.stream_window;
                        self.stream_window += by;
                        self.streams
                            .iter_mut()
                            .for_each(|stream| stream.window += by);
                    }
                }
                frame::put_settings_ack(&mut self.out);
            }
            Kind::WindowUpdate => {
                let by = i64::from(number(0));
                match self.stream(head.stream) {
                    Some(stream) => stream.window += by,
                    None => self.window += by,
                }
            }
            Kind::Ping if !head.has(flags::ACK) => {
                let payload = payload.try_into().unwrap_or_default();
                frame::put_ping(&mut self.out, true, payload);
            }
            Kind::Settings | Kind::Ping => {}
            other => self.remarks.push(format!("a frame of the kind {other:?}")),
        }
    }

    fn stream(&mut self, number: u32) -> Option<&mut Stream> {
        let index = number.checked_sub(1)? / 2;
        self.streams.get_mut(index as usize)
    }

    /// A header block has come whole.
    fn note_block(&mut self, number: u32) {
        let block = std::mem::take(&mut self.block);
        let (mut bytes, mut fields) = (Vec::new(), Fields::new());
        let read = self
            .decoder
            .decode(&block, usize::MAX / 2, &mut bytes, |field, bytes| {
                fields.push((
                    field.name.of(bytes).to_vec(),
                    field.value.of(bytes).to_vec(),
                ));
            });
        if let Err(error) = read {
            self.remarks
                .push(format!("a broken header block: {error:?}"));
        }
        let ends = self.block_ends;
        let Some(stream) = self.stream(number) else {
            return;
        };
        stream.ended |= ends;
        match (&mut stream.response, fields.first()) {
            (Some(response), _) => {
                let lines = fields.iter();
                let lines = lines.map(|(name, value)| [name.as_slice(), b": ", value].concat());
                response.trailers.extend(lines);
            }
            (None, Some((name, status))) if name == b":status" => {
                let is_interim = status.starts_with(b"1");
                let response = Response {
                    status_line: [b"HTTP/2 ", status.as_slice()].concat(),
                    headers: fields.split_off(1),
                    ..Response::default()
                };
                if is_interim {
                    stream.interim.push(response)
                } else {
                    stream.response = Some(response);
                }
            }
            (None, _) => {
                stream.response = Some(Response {
                    headers: fields,
                    ..Response::default()
                });
            }
        }
    }

    /// Everything that has come, in the order of the requests.
    fn report(&mut self, seen: &mut Conversation) {
        for stream in std::mem::take(&mut self.streams) {
            let is_over = stream.is_over();
            let ended = stream.ended;
            seen.responses.extend(stream.interim);
            if let Some(mut response) = stream.response {
                response.head = stream.is_head;
                response.cut_short = !ended;
                // A server that has answered may say that it wants no more of the request (RFC
                // 9113, section 8.1). Whether it had read by then what was sent is chance.
                let says_nothing = ended && stream.is_sent;
                response.reset = stream
                    .reset
                    .filter(|code| !says_nothing || *code != ErrorCode::NoError);
                seen.responses.push(response);
            } else if let Some(code) = stream.reset {
                seen.remarks.push(format!("stream reset: {code:?}"));
            } else if !is_over {
                seen.remarks.push("no answer".to_string());
            }
        }
        seen.remarks.append(&mut self.remarks);
        if let Some(code) = self.goaway {
            seen.remarks.push(format!("connection given up: {code:?}"));
        }
        if self.connection.unread.starts_with(b"HTTP/1.1 ") {
            let mut lines = self.connection.unread.split(|byte| *byte == b'\r');
            let line = lines.next().unwrap_or_default().escape_ascii();
            seen.remarks.push(format!("an answer of HTTP/1: {line}"));
        } else if !self.connection.unread.is_empty() {
            seen.remarks.push(format!(
                "more bytes: \"{}\"",
                self.connection.unread.escape_ascii()
            ));
        }
    }
}
