//! What comes from an application: records, of which the head and the body of a response, messages
//! for the log, and the end of the request are made.
//!
//! ```text
//! Header ─8 bytes▶ Content ▶ Padding ─┬▶ Header
//!                                     └─ of FCGI_END_REQUEST ▶ Ended
//! ```

use std::fmt;
use std::ops::Range;

use super::{HEADER_LENGTH, REQUEST_ID, VERSION, record};
use crate::h1::response::ResponseHead;

/// What one call of [`Decoder::decode`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Bytes of the input that are done with, those of the event included.
    pub consumed: usize,
    /// What they came to. `None`: nothing so far, and all of the input is consumed.
    pub event: Option<Event>,
}

/// What an application has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A stretch of the response, by its place in the input; never empty, and never longer than the
    /// body may be. Where a stretch ends says nothing.
    Stdout(Range<usize>),
    /// The response is complete: an empty `FCGI_STDOUT`. Where the connection is not kept, nginx
    /// waits for nothing else. What an application sends on the stream behind its end is taken all
    /// the same.
    StdoutEnd,
    /// A stretch of messages, by its place in the input; never empty. See [`stderr_text`].
    Stderr(Range<usize>),
    /// The request is complete, with the last byte of its `FCGI_END_REQUEST` and of the padding
    /// behind it: the connection may be used again if nothing follows.
    End(RequestEnd),
    /// More of a body follows than its head has announced. nginx says so at level `warn`
    /// ([`Event::BEYOND_LENGTH`]) and ends the response as if it were complete; the connection is
    /// not used again. Nothing is consumed from here on.
    BeyondLength,
    /// Bytes follow the end of the request: the connection is not used again. Nothing is consumed
    /// from here on.
    BeyondEnd,
}

impl Event {
    /// nginx's words for [`Event::BeyondLength`], at level `warn`.
    pub const BEYOND_LENGTH: &str =
        "upstream sent more data than specified in \"Content-Length\" header";
}

/// How a request has ended (section 5.5). nginx looks at neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestEnd {
    /// What the application would have exited with as a program.
    pub application_status: u32,
    /// What became of the request itself.
    pub protocol_status: ProtocolStatus,
}

/// What became of a request (section 5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolStatus {
    /// The application has served the request.
    RequestComplete,
    /// The application serves one request a connection.
    CannotMultiplexConnection,
    /// It has no room for another one.
    Overloaded,
    /// It is no responder.
    UnknownRole,
    /// A number that the specification does not name.
    Other(u8),
}

impl ProtocolStatus {
    fn from_number(number: u8) -> ProtocolStatus {
        match number {
            0 => ProtocolStatus::RequestComplete,
            1 => ProtocolStatus::CannotMultiplexConnection,
            2 => ProtocolStatus::Overloaded,
            3 => ProtocolStatus::UnknownRole,
            other => ProtocolStatus::Other(other),
        }
    }
}

/// Why what an application sends cannot be gone on with. All are the application's faults, and the
/// connection ends with each. Before the head is complete they are nginx's `invalid_header`,
/// answered with 502 or by the next server, except for [`Fault::ConnectionClosed`], which is its
/// `error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A record of another version than 1.
    Version(u8),
    /// A record that no application sends to a web server.
    RecordType(u8),
    /// The high byte of a request's number is not 0.
    RequestIdHigh(u8),
    /// The low byte of a request's number is not 1.
    RequestIdLow(u8),
    /// A record that comes too early: the request's end before the head of the response.
    UnexpectedRecord(u8),
    /// The response ends within its head, or before as much of the body has come as the head has
    /// announced.
    StdoutClosed,
    /// The request ends before as much of the body has come as the head has announced.
    RequestClosed,
    /// The connection has ended too early; see [`Decoder::closed`].
    ConnectionClosed,
}

impl fmt::Display for Fault {
    /// nginx's words for the log, at level `error`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Version(version) => write!(
                out,
                "upstream sent unsupported FastCGI protocol version: {version}"
            ),
            Fault::RecordType(kind) => {
                write!(out, "upstream sent invalid FastCGI record type: {kind}")
            }
            Fault::RequestIdHigh(byte) => write!(
                out,
                "upstream sent unexpected FastCGI request id high byte: {byte}"
            ),
            Fault::RequestIdLow(byte) => write!(
                out,
                "upstream sent unexpected FastCGI request id low byte: {byte}"
            ),
            Fault::UnexpectedRecord(kind) => {
                write!(out, "upstream sent unexpected FastCGI record: {kind}")
            }
            Fault::StdoutClosed => write!(out, "upstream prematurely closed FastCGI stdout"),
            Fault::RequestClosed => write!(out, "upstream prematurely closed FastCGI request"),
            Fault::ConnectionClosed => write!(out, "upstream prematurely closed connection"),
        }
    }
}

/// How many bytes follow a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// As many as come.
    Open,
    /// The body has exactly so many bytes.
    Exact(u64),
    /// None, or so many: the answer to HEAD.
    NoneOr(u64),
}

impl BodyLength {
    /// How long the body behind a head is; `head_request` tells that the request was HEAD. There is
    /// none with 204 and 304.
    #[must_use]
    pub fn of(head: &ResponseHead, head_request: bool) -> BodyLength {
        match (head.status(), head.content_length()) {
            (204 | 304, _) => BodyLength::Exact(0),
            (_, None) => BodyLength::Open,
            (_, Some(length)) if head_request => BodyLength::NoneOr(length),
            (_, Some(length)) => BodyLength::Exact(length),
        }
    }
}

/// Reads what an application sends for one request. Give [`decode`](Self::decode) what has come,
/// again and again with what it has not consumed, until that is nothing or an event ends it.
///
/// The first stretches of [`Event::Stdout`] are the head ([`crate::cgi::parse`]), which may begin,
/// end and break off anywhere within records. Once it is complete, [`begin_body`](Self::begin_body)
/// says so; only then do stream and request have a right to end.
#[derive(Clone, Debug)]
pub struct Decoder {
    state: State,
    /// The record that is being read.
    kind: u8,
    /// Bytes of its content, then of its padding, that have not been consumed.
    content: u16,
    padding: u8,
    /// The first bytes of the content of an `FCGI_END_REQUEST`, and how many came.
    end: [u8; END_LENGTH],
    end_read: u8,
    /// Length of the stretch of the response that the last call gave.
    stretch: u16,
    missing: Missing,
}

/// Bytes of an `FCGI_END_REQUEST` that say something.
const END_LENGTH: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In a record's header, of which this many bytes have been read.
    Header(u8),
    Content,
    Padding,
    Ended,
    BeyondLength,
    Faulty(Fault),
}

/// What of the response has not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Head,
    Body(BodyLength),
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new()
    }
}

impl Decoder {
    /// A decoder for the first byte that comes for a request.
    #[must_use]
    pub fn new() -> Decoder {
        Decoder {
            state: State::Header(0),
            kind: 0,
            content: 0,
            padding: 0,
            end: [0; END_LENGTH],
            end_read: 0,
            stretch: 0,
            missing: Missing::Head,
        }
    }

    /// Goes on with the next bytes, up to the first event. Behind a fault there is no going on: it
    /// is told again.
    ///
    /// # Errors
    /// [`Fault`] at the first byte that cannot stand where it does.
    pub fn decode(&mut self, input: &[u8]) -> Result<Decoded, Fault> {
        let decoded = self.decode_valid(input);
        if let Err(fault) = decoded {
            self.state = State::Faulty(fault);
        }
        decoded
    }

    /// Says that the head of the response is complete and how long the body is. `unread` is how
    /// many bytes of the last stretch lie behind the head: they are given back, and must be among
    /// the input of the next call again.
    pub fn begin_body(&mut self, length: BodyLength, unread: usize) {
        let unread = u16::try_from(unread)
            .unwrap_or(u16::MAX)
            .min(std::mem::take(&mut self.stretch));
        if unread > 0 {
            self.content = self.content.saturating_add(unread);
            self.state = State::Content;
        }
        self.missing = Missing::Body(length);
    }

    /// Whether the request has ended, with all that belongs to it.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// To be asked when the connection has ended and all that came was decoded: whether the
    /// response may pass for complete. Where the connection was to be kept (`fastcgi_keep_conn`),
    /// it may after the request's end alone. Otherwise nginx takes any end of the connection behind
    /// the head for that of the response; here some of a record, or of a body whose length is
    /// known, must not be missing.
    ///
    /// # Errors
    /// [`Fault::ConnectionClosed`] where something is missing; the fault that was told if there was
    /// one.
    pub fn closed(&self, keep_connection: bool) -> Result<(), Fault> {
        let is_whole = match self.state {
            State::Faulty(fault) => return Err(fault),
            State::Ended | State::BeyondLength => true,
            _ if keep_connection || self.missing == Missing::Head || self.is_body_missing() => {
                false
            }
            State::Header(read) => read == 0,
            State::Content => self.kind != record::STDOUT || self.content == 0,
            State::Padding => true,
        };
        if is_whole {
            Ok(())
        } else {
            Err(Fault::ConnectionClosed)
        }
    }

    fn decode_valid(&mut self, input: &[u8]) -> Result<Decoded, Fault> {
        self.stretch = 0;
        let mut at = 0;
        loop {
            let event = match self.state {
                State::Content if self.content == 0 => {
                    self.state = State::Padding;
                    continue;
                }
                State::Padding if self.padding == 0 => match self.kind {
                    record::END_REQUEST => {
                        self.state = State::Ended;
                        Event::End(self.request_end())
                    }
                    _ => {
                        self.state = State::Header(0);
                        continue;
                    }
                },
                State::Faulty(fault) => return Err(fault),
                _ => {
                    let Some(rest) = input.get(at..).filter(|rest| !rest.is_empty()) else {
                        return Ok(Decoded {
                            consumed: at,
                            event: None,
                        });
                    };
                    let (consumed, event) = self.step(rest, at)?;
                    at += consumed;
                    match event {
                        Some(event) => event,
                        None => continue,
                    }
                }
            };
            return Ok(Decoded {
                consumed: at,
                event: Some(event),
            });
        }
    }

    /// Goes on with the first of the bytes that remain, which begin at `at`: how many of them are
    /// done with, and what they came to.
    fn step(&mut self, rest: &[u8], at: usize) -> Result<(usize, Option<Event>), Fault> {
        let [first, ..] = *rest else {
            return Ok((0, None));
        };
        let limit = |bytes: u16| usize::from(bytes).min(rest.len());
        Ok(match self.state {
            State::Header(0) if let Some(header) = rest.first_chunk() => {
                (HEADER_LENGTH, self.header(*header)?)
            }
            State::Header(read) => (1, self.header_byte(read, first)?),
            State::Content if self.kind == record::STDOUT => {
                let length = self.take_body(limit(self.content) as u16); // at most self.content
                if length == 0 {
                    self.state = State::BeyondLength;
                    return Ok((0, Some(Event::BeyondLength)));
                }
                self.content = self.content.saturating_sub(length);
                self.stretch = length;
                let length = usize::from(length);
                (length, Some(Event::Stdout(at..at + length)))
            }
            State::Content => {
                let length = limit(self.content);
                self.content = self.content.saturating_sub(length as u16); // at most self.content
                let event = match self.kind {
                    record::STDERR => Some(Event::Stderr(at..at + length)),
                    _ => {
                        self.keep_end(rest.get(..length).unwrap_or_default());
                        None
                    }
                };
                (length, event)
            }
            State::Padding => {
                let length = limit(u16::from(self.padding));
                self.padding = self.padding.saturating_sub(length as u8); // at most self.padding
                (length, None)
            }
            State::Ended => (0, Some(Event::BeyondEnd)),
            State::BeyondLength => (0, Some(Event::BeyondLength)),
            State::Faulty(fault) => return Err(fault),
        })
    }

    /// Takes the header of a record that has come whole.
    fn header(&mut self, header: [u8; HEADER_LENGTH]) -> Result<Option<Event>, Fault> {
        let [version, kind, id_high, id_low, high, low, padding, _] = header;
        let is_known = matches!(kind, record::STDOUT | record::STDERR | record::END_REQUEST);
        if version != VERSION || !is_known || [id_high, id_low] != REQUEST_ID {
            // Byte by byte the first fault is found.
            for (read, byte) in (0..).zip(header) {
                self.header_byte(read, byte)?;
            }
        }
        self.kind = kind;
        self.content = u16::from_be_bytes([high, low]);
        self.padding = padding;
        self.state = State::Content;
        self.begin_record()
    }

    /// Takes the next byte of a record's header, behind `read` of them.
    fn header_byte(&mut self, read: u8, byte: u8) -> Result<Option<Event>, Fault> {
        let [id_high, id_low] = REQUEST_ID;
        self.state = State::Header(read.saturating_add(1));
        match read {
            0 if byte != VERSION => return Err(Fault::Version(byte)),
            1 => match byte {
                record::STDOUT | record::STDERR | record::END_REQUEST => self.kind = byte,
                _ => return Err(Fault::RecordType(byte)),
            },
            2 if byte != id_high => return Err(Fault::RequestIdHigh(byte)),
            3 if byte != id_low => return Err(Fault::RequestIdLow(byte)),
            4 => self.content = u16::from_be_bytes([byte, 0]),
            5 => self.content |= u16::from(byte),
            6 => self.padding = byte,
            _ if usize::from(read) + 1 == HEADER_LENGTH => {
                self.state = State::Content;
                return self.begin_record();
            }
            _ => {}
        }
        Ok(None)
    }

    /// What a record is worth that has just begun.
    fn begin_record(&mut self) -> Result<Option<Event>, Fault> {
        match (self.kind, self.missing) {
            (record::END_REQUEST, Missing::Head) => Err(Fault::UnexpectedRecord(self.kind)),
            (record::END_REQUEST, _) if self.is_body_missing() => Err(Fault::RequestClosed),
            (record::STDOUT, Missing::Head) if self.content == 0 => Err(Fault::StdoutClosed),
            (record::STDOUT, _) if self.content == 0 => {
                if self.is_body_missing() {
                    Err(Fault::StdoutClosed)
                } else {
                    Ok(Some(Event::StdoutEnd))
                }
            }
            _ => Ok(None),
        }
    }

    fn is_body_missing(&self) -> bool {
        matches!(self.missing, Missing::Body(BodyLength::Exact(length)) if length > 0)
    }

    /// How many of so many bytes may still come, which are counted as having come.
    fn take_body(&mut self, length: u16) -> u16 {
        let Missing::Body(BodyLength::Exact(rest) | BodyLength::NoneOr(rest)) = self.missing else {
            return length;
        };
        let length = u16::try_from(rest).unwrap_or(u16::MAX).min(length);
        self.missing = Missing::Body(BodyLength::Exact(rest.saturating_sub(u64::from(length))));
        length
    }

    fn keep_end(&mut self, bytes: &[u8]) {
        let rest = self.end.iter_mut().skip(usize::from(self.end_read));
        for (place, byte) in rest.zip(bytes) {
            *place = *byte;
            self.end_read = self.end_read.saturating_add(1);
        }
    }

    /// What an `FCGI_END_REQUEST` says; what is missing of it is 0, as nginx takes one of any
    /// length.
    fn request_end(&self) -> RequestEnd {
        let [a, b, c, d, protocol_status] = self.end;
        RequestEnd {
            application_status: u32::from_be_bytes([a, b, c, d]),
            protocol_status: ProtocolStatus::from_number(protocol_status),
        }
    }
}

/// What of a stretch of messages is logged, at level `error`, as `FastCGI sent in stderr: "..."`:
/// all but the line breaks, dots and spaces at its end, of which the first byte remains in any
/// case. It is also what `fastcgi_catch_stderr` looks into, before the head is complete. Like nginx
/// this sees each stretch by itself: a message that two stretches share becomes two.
#[must_use]
pub fn stderr_text(stretch: &[u8]) -> &[u8] {
    let is_kept = |byte: &u8| !matches!(byte, b'\n' | b'\r' | b'.' | b' ');
    let end = stretch.iter().rposition(is_kept).unwrap_or_default() + 1;
    stretch.get(..end).unwrap_or_default()
}
