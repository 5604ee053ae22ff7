//! The server connection at the level of bytes: a client's frames, and the reactions that RFC 9113
//! requires.
//!
//! Expected bytes and codes are written by hand from RFC 9113, 9218, 7541 and 8441, or from nginx
//! where noted.

mod floods;
mod frames;
mod pipe;
mod requests;
mod seeds;
mod sends;
mod streams;
mod windows;

use super::connection::{Event, Heads};
use super::hpack::{Encoder, Field};
use super::priority::Priority;
use super::request::Rules;
use super::{Connection, ErrorCode, Limits, StreamFault, Violation};
use crate::head::Head;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const PRIORITY_UPDATE: u8 = 0x10;

const END_STREAM: u8 = 0x1;
const ACK: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const WITH_PRIORITY: u8 = 0x20;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The window of a stream in these tests: different from the RFC's default, so that the two cannot
/// be confused.
const WINDOW: u32 = 100_000;

/// The RFC's maximum window.
const WINDOW_MAX: u32 = 0x7fff_ffff;

const LIMITS: Limits = Limits {
    streams_max: 100,
    stream_window: WINDOW,
    block_size_max: 32 * 1024,
    extended_connect: false,
};

const RULES: Rules = Rules {
    field_size_max: 8 * 1024,
    head_size_max: 32 * 1024,
    fields_max: 1000,
    ignore_invalid: true,
    underscores: false,
    merge_slashes: true,
    extended_connect: false,
};

const GET: &[(&str, &str)] = &[
    (":method", "GET"),
    (":scheme", "https"),
    (":path", "/"),
    (":authority", "example.org"),
];

const POST: &[(&str, &str)] = &[
    (":method", "POST"),
    (":scheme", "https"),
    (":path", "/"),
    (":authority", "example.org"),
];

/// Encodes a frame byte by byte (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, l0, l1, l2] = (payload.len() as u32).to_be_bytes();
    let [s0, s1, s2, s3] = stream.to_be_bytes();
    let mut frame = vec![l0, l1, l2, kind, flags, s0, s1, s2, s3];
    frame.extend_from_slice(payload);
    frame
}

fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

fn window_update(stream: u32, bytes: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
}

fn setting(name: u16, value: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, &setting_payload(name, value))
}

fn setting_payload(name: u16, value: u32) -> Vec<u8> {
    [&name.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

fn goaway(last: u32, code: u32) -> Vec<u8> {
    let payload = [last.to_be_bytes(), code.to_be_bytes()].concat();
    frame(GOAWAY, 0, 0, &payload)
}

/// The length of the padding, `bytes`, and the padding.
fn padded(bytes: &[u8], padding: u8) -> Vec<u8> {
    let mut payload = vec![padding];
    payload.extend_from_slice(bytes);
    payload.resize(payload.len() + usize::from(padding), 0);
    payload
}

/// A block of literals without the dynamic table, which has the same meaning everywhere.
fn literal(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            // Lengths from 127 on have a prefix of seven bits (RFC 7541, section 5.1).
            match text.len().checked_sub(127) {
                None => block.push(text.len() as u8),
                Some(mut rest) => {
                    block.push(127);
                    while rest >= 128 {
                        block.push(rest as u8 | 0x80);
                        rest >>= 7;
                    }
                    block.push(rest as u8);
                }
            }
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// An event, with the data to which it refers.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    /// A valid head: the request line, whether there is no body, and the Content-Length.
    Head(u32, String, bool, Option<u64>),
    /// A malformed head: the log message.
    Malformed(u32, String),
    Data(u32, Vec<u8>, bool),
    Reset(u32, ErrorCode, Option<StreamFault>),
    /// A body that contradicts its Content-Length.
    Wrong(StreamFault),
    Refused(StreamFault),
    GoAway(ErrorCode),
    Pong,
}

/// A client and the connection under test. The caller opens every stream, with the stream's number
/// as its data.
struct Client {
    machine: Connection<u32>,
    encoder: Encoder,
    rules: Rules,
    head: Head,
    bytes: Vec<u8>,
    second: u32,
}

impl Client {
    /// A client that has sent nothing.
    fn new(limits: Limits) -> Client {
        Client {
            machine: Connection::new(limits),
            encoder: Encoder::new(4096),
            rules: RULES,
            head: Head::default(),
            bytes: Vec::new(),
            second: 0,
        }
    }

    /// A client whose preface, SETTINGS and acknowledgement of our SETTINGS were received.
    fn begun(limits: Limits) -> Client {
        let mut client = Client::new(limits);
        let input = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
        assert_eq!(client.feed(&input), Ok(vec![]));
        assert_eq!(client.feed(&frame(SETTINGS, ACK, 0, &[])), Ok(vec![]));
        client.control();
        client
    }

    /// The same with the usual limits.
    fn usual() -> Client {
        Client::begun(LIMITS)
    }

    /// Passes these bytes to the connection in one piece.
    fn feed(&mut self, input: &[u8]) -> Result<Vec<Seen>, Violation> {
        let (mut seen, mut at) = (Vec::new(), 0);
        loop {
            let mut heads = Heads {
                head: &mut self.head,
                bytes: &mut self.bytes,
                rules: &self.rules,
                named: None,
            };
            let event = self
                .machine
                .handle(input, &mut at, self.second, &mut heads)?;
            let Some(event) = event else {
                assert_eq!(at, input.len());
                return Ok(seen);
            };
            seen.push(self.take(event, input));
        }
    }

    fn take(&mut self, event: Event, input: &[u8]) -> Seen {
        match event {
            Event::Head {
                stream,
                ends,
                asked,
            } => {
                let length = asked.ok().and_then(|asked| asked.content_length);
                let priority = Priority::default();
                self.machine.open(stream, ends, length, priority, stream);
                let line = self.head.line().of(&self.bytes);
                match asked {
                    Ok(_) => {
                        let line = String::from_utf8_lossy(line).into_owned();
                        Seen::Head(stream, line, ends, length)
                    }
                    Err(fault) => {
                        let words = fault.words(&self.bytes);
                        Seen::Malformed(stream, String::from_utf8_lossy(&words).into_owned())
                    }
                }
            }
            Event::Data {
                stream,
                start,
                length,
                ends,
            } => Seen::Data(stream, input[start..start + length].to_vec(), ends),
            Event::Reset {
                stream,
                code,
                fault,
            } => Seen::Reset(stream, code, fault),
            Event::Malformed { fault, .. } => Seen::Wrong(fault),
            Event::Refused(fault) => Seen::Refused(fault),
            Event::GoAway(code) => Seen::GoAway(code),
            Event::Pong => Seen::Pong,
        }
    }

    /// A HEADERS frame with these fields, encoded with this client's dynamic table.
    fn headers(&mut self, stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
        let block = self.block(fields);
        frame(HEADERS, flags | END_HEADERS, stream, &block)
    }

    fn block(&mut self, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        let fields = fields
            .iter()
            .map(|(name, value)| Field::from((name.as_bytes(), value.as_bytes())));
        self.encoder.encode(fields, &mut block);
        block
    }

    /// Sends a request without a body.
    fn get(&mut self, stream: u32) {
        let input = self.headers(stream, END_STREAM, GET);
        let line = "GET / HTTP/2.0".to_owned();
        assert_eq!(
            self.feed(&input),
            Ok(vec![Seen::Head(stream, line, true, None)])
        );
    }

    /// Sends the head of a request with a body.
    fn post(&mut self, stream: u32) {
        let input = self.headers(stream, 0, POST);
        let line = "POST / HTTP/2.0".to_owned();
        assert_eq!(
            self.feed(&input),
            Ok(vec![Seen::Head(stream, line, false, None)])
        );
    }

    /// Sends the head of a request with a body of this `content-length`.
    fn post_of(&mut self, stream: u32, length: u64) {
        let text = length.to_string();
        let fields = [POST, &[("content-length", &text)]].concat();
        let input = self.headers(stream, 0, &fields);
        assert!(self.feed(&input).is_ok_and(|seen| seen.len() == 1));
    }

    /// The queued control frames.
    fn control(&mut self) -> Vec<u8> {
        self.machine.take_control()
    }

    /// Asserts that the bytes cause no event, and this reply.
    fn expect_quiet(&mut self, input: &[u8], answer: &[u8]) {
        assert_eq!(self.feed(input), Ok(vec![]));
        assert_eq!(self.control(), answer);
    }

    /// Asserts that the bytes reset one stream with this code, and have no other effect.
    fn expect_stream_error(&mut self, input: &[u8], stream: u32, code: u32) -> StreamFault {
        let seen = self.feed(input).unwrap();
        let [Seen::Reset(told, told_code, Some(fault))] = seen[..] else {
            panic!("{seen:?}");
        };
        assert_eq!((told, told_code.number()), (stream, code));
        assert_eq!(self.control(), reset(stream, code));
        // The connection continues.
        let ping = frame(PING, 0, 0, b"12345678");
        self.expect_quiet(&ping, &frame(PING, ACK, 0, b"12345678"));
        fault
    }

    /// Asserts that the bytes end the connection with this code.
    fn expect_connection_error(&mut self, input: &[u8], code: u32) -> Violation {
        let last = self.machine.last_stream();
        let violation = self.feed(input).expect_err("it is a violation");
        assert_eq!(violation.code().number(), code, "{violation}");
        self.control();
        self.machine.fail(violation.code());
        let said = self.control();
        assert!(
            said == goaway(last, code) || said == goaway(self.machine.last_stream(), code),
            "{said:?}"
        );
        violation
    }
}

/// Error codes (RFC 9113, section 7).
mod code {
    pub(super) const NO_ERROR: u32 = 0;
    pub(super) const PROTOCOL_ERROR: u32 = 1;
    pub(super) const INTERNAL_ERROR: u32 = 2;
    pub(super) const FLOW_CONTROL_ERROR: u32 = 3;
    pub(super) const STREAM_CLOSED: u32 = 5;
    pub(super) const FRAME_SIZE_ERROR: u32 = 6;
    pub(super) const REFUSED_STREAM: u32 = 7;
    pub(super) const CANCEL: u32 = 8;
    pub(super) const COMPRESSION_ERROR: u32 = 9;
    pub(super) const ENHANCE_YOUR_CALM: u32 = 0xb;
}
