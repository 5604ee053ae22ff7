//! The decoder of a FastCGI response: extracts from the records the response's head and body,
//! messages for the log, and the end of the request.
//!
//! ```text
//! Header ─8 bytes▶ Content ▶ Padding ─┬▶ Header
//!                                     └─ of FCGI_END_REQUEST ▶ Ended
//! ```

use std::fmt;
use std::ops::Range;

use super::{HEADER_LENGTH, REQUEST_ID, VERSION, record};
use crate::h1::response::ResponseHead;

/// The result of a call of [`Decoder::decode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Consumed bytes of the input, including those of the event.
    pub consumed: usize,
    /// The event; `None` if all of the input is consumed without one.
    pub event: Option<Event>,
}

/// What an application has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A part of the response, as a range of the input; never empty, and never beyond the length of
    /// the body. The boundaries of parts have no meaning.
    Stdout(Range<usize>),
    /// The response is complete: an empty `FCGI_STDOUT`. If the connection is not to be kept, nginx
    /// does not wait for anything else. Data that an application sends after this end of the stream
    /// are accepted nevertheless.
    StdoutEnd,
    /// A part of stderr messages, as a range of the input; never empty. See [`stderr_text`].
    Stderr(Range<usize>),
    /// The request has ended: `FCGI_END_REQUEST` and its padding were received as a whole. The
    /// connection can be reused if no bytes follow.
    End(RequestEnd),
    /// The application sends more of a body than Content-Length announced. nginx logs this at level
    /// `warn` ([`Event::BEYOND_LENGTH`]), and ends the response as if it were complete. The
    /// connection must not be reused. No further input is consumed.
    BeyondLength,
    /// Bytes follow after the end of the request: the connection must not be reused. No further
    /// input is consumed.
    BeyondEnd,
}

impl Event {
    /// nginx's log message for [`Event::BeyondLength`], at level `warn`.
    pub const BEYOND_LENGTH: &str =
        "upstream sent more data than specified in \"Content-Length\" header";
}

/// The content of an `FCGI_END_REQUEST` (section 5.5). nginx ignores both fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestEnd {
    /// The exit status that the application would have as a CGI program.
    pub application_status: u32,
    /// The outcome of the request.
    pub protocol_status: ProtocolStatus,
}

/// The protocol status of a request (section 5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolStatus {
    /// The application has processed the request.
    RequestComplete,
    /// The application accepts only one request per connection.
    CannotMultiplexConnection,
    /// The application is overloaded.
    Overloaded,
    /// The application does not support the responder role.
    UnknownRole,
    /// An undefined number.
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

/// Why a response is invalid. Every fault is the application's, and ends the connection. Before the
/// head is complete, the client receives 502 or the next server is tried (nginx's `invalid_header`;
/// [`Fault::ConnectionClosed`] is nginx's `error`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A record with a version other than 1.
    Version(u8),
    /// A record type that applications do not send.
    RecordType(u8),
    /// The high byte of the request ID is not 0.
    RequestIdHigh(u8),
    /// The low byte of the request ID is not 1.
    RequestIdLow(u8),
    /// `FCGI_END_REQUEST` before the head of the response is complete.
    UnexpectedRecord(u8),
    /// The stream `FCGI_STDOUT` ends within the head, or before the body has the length of
    /// Content-Length.
    StdoutClosed,
    /// The request ends before the body has the length of Content-Length.
    RequestClosed,
    /// The connection was closed too early; see [`Decoder::closed`].
    ConnectionClosed,
}

impl fmt::Display for Fault {
    /// nginx's log message, at level `error`.
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

/// The length of the body after a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// Unknown: until the end of the stream.
    Open,
    /// Exactly this many bytes.
    Exact(u64),
    /// None, or this many bytes: a response to HEAD.
    NoneOr(u64),
}

impl BodyLength {
    /// The length of the body after this head; `head_request` says that the request's method was
    /// HEAD. Responses with status 204 or 304 have no body.
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

/// Decodes the response to one request. Call [`decode`](Self::decode) with the received bytes, then
/// with those that were not consumed, until all are consumed or an event ends the response.
///
/// The first parts in [`Event::Stdout`] are the head ([`crate::cgi::parse`]), which may be split at
/// any byte. Once it is complete, the caller must call [`begin_body`](Self::begin_body); before
/// that, the end of the stream or of the request is an error.
#[derive(Clone, Debug)]
pub struct Decoder {
    state: State,
    /// Type of the current record.
    kind: u8,
    /// Bytes of the record's content, then of its padding, that were not consumed.
    content: u16,
    padding: u8,
    /// The first bytes of the content of an `FCGI_END_REQUEST`, and how many of them were received.
    end: [u8; END_LENGTH],
    end_read: u8,
    /// Length of the last [`Event::Stdout`].
    stretch: u16,
    missing: Missing,
}

/// Bytes of an `FCGI_END_REQUEST` that are not reserved.
const END_LENGTH: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Within a record's header, of which this many bytes were read.
    Header(u8),
    Content,
    Padding,
    Ended,
    BeyondLength,
    Faulty(Fault),
}

/// The part of the response that was not received.
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
    /// A decoder for a new response.
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

    /// Decodes up to the first event. After a fault, every call returns that fault.
    ///
    /// # Errors
    /// [`Fault`] at the first invalid byte.
    pub fn decode(&mut self, input: &[u8]) -> Result<Decoded, Fault> {
        let decoded = self.decode_valid(input);
        if let Err(fault) = decoded {
            self.state = State::Faulty(fault);
        }
        decoded
    }

    /// Declares the head complete, with the length of the body. The last `unread` bytes of the last
    /// part, which follow the head, are returned to the decoder: the caller must pass them again in
    /// the next call.
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

    /// Whether the request has ended completely.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Checks whether the response may be regarded as complete, after the connection was closed and
    /// all input was decoded. If the connection was to be kept (`fastcgi_keep_conn`), only the end
    /// of the request completes it. Otherwise nginx regards any end of the connection after the
    /// head as the end of the response; here an incomplete record, or an incomplete body of known
    /// length, is an error as well.
    ///
    /// # Errors
    /// [`Fault::ConnectionClosed`] if the response is incomplete; the earlier fault if there was
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

    /// Decodes from the beginning of `rest`, which is at offset `at` of the input. Returns the
    /// number of consumed bytes, and the event.
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

    /// Processes a complete record header.
    fn header(&mut self, header: [u8; HEADER_LENGTH]) -> Result<Option<Event>, Fault> {
        let [version, kind, id_high, id_low, high, low, padding, _] = header;
        let is_known = matches!(kind, record::STDOUT | record::STDERR | record::END_REQUEST);
        if version != VERSION || !is_known || [id_high, id_low] != REQUEST_ID {
            // Finds the first fault by checking byte by byte.
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

    /// Processes one byte of a record header, after `read` earlier ones.
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

    /// Processes the beginning of a record.
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

    /// Limits `length` to the rest of the body, and counts it as received.
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

    /// The content of an `FCGI_END_REQUEST`. Missing bytes are 0, because nginx accepts any length.
    fn request_end(&self) -> RequestEnd {
        let [a, b, c, d, protocol_status] = self.end;
        RequestEnd {
            application_status: u32::from_be_bytes([a, b, c, d]),
            protocol_status: ProtocolStatus::from_number(protocol_status),
        }
    }
}

/// The part of a stderr message that is logged, at level `error`, as `FastCGI sent in stderr:
/// "..."`: without line breaks, dots and spaces at its end, but never without its first byte.
/// `fastcgi_catch_stderr` searches the same text, until the head is complete. As in nginx, each
/// part is processed separately: a message that is split over two parts becomes two messages.
#[must_use]
pub fn stderr_text(stretch: &[u8]) -> &[u8] {
    let is_kept = |byte: &u8| !matches!(byte, b'\n' | b'\r' | b'.' | b' ');
    let end = stretch.iter().rposition(is_kept).unwrap_or_default() + 1;
    stretch.get(..end).unwrap_or_default()
}
