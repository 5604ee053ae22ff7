//! The head of an upstream's response (RFC 9112, section 4), as nginx's proxy parses it, and
//! trailers.
//!
//! Lenient where upstreams are known to deviate: a response that does not begin with `HTTP/` is an
//! HTTP/0.9 response without a head; a status line among the header fields is skipped; names may
//! contain anything except control bytes and spaces. Strict in framing.
//!
//! Not here: which header fields are forwarded. [`crate::cgi`] parses CGI responses, whose heads
//! have no status line.

pub(crate) mod cgi;

use super::body::content_length;
use super::field::{Field, FieldReader, InvalidLine, Progress, Rules};
use super::head::contains_ignoring_case;
use super::lines::PlainLines;
use super::{Connection, Version};
use crate::Span;
use crate::header::{KnownField, KnownSet};

/// A response head, as spans of the caller's bytes, with the state of the parser. One value is
/// reused for all responses of a connection: after a complete head, the next call of [`parse`]
/// starts a new one.
#[derive(Default)]
pub struct ResponseHead {
    phase: Phase,
    at: usize,
    line: StatusLine,
    reader: FieldReader,
    fields: Vec<Field>,
    known: KnownSet,
    connection: Connection,
    framing: Framing,
}

/// Initial capacity for fields.
const FIELDS_USUAL: usize = 16;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Line,
    Fields,
    Done,
}

/// The framing that the header fields declare.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Framing {
    #[default]
    Unknown,
    Length(u64),
    Chunked,
}

/// The framing of a response's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// No body: a response to HEAD, or status 101, 204 or 304.
    None,
    /// The length given by `Content-Length`.
    Length(u64),
    /// The body is framed by `Transfer-Encoding: chunked`.
    Chunked,
    /// The body ends when the connection is closed.
    UntilClose,
}

/// Why a response head is invalid: the upstream's fault, after which the next upstream is tried or
/// the client receives 502.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseError {
    /// The response begins with `HTTP/`, but not with a status line.
    InvalidStatusLine,
    /// The status is not from 100 to 599 (RFC 9110, section 15), or not allowed in a CGI response
    /// (see [`crate::cgi::parse`]). Holds code and reason as sent.
    InvalidStatus(Span),
    /// A 101 response with `Content-Length` or `Transfer-Encoding` (RFC 9110, section 8.6; RFC
    /// 9112, section 6.1): it is ambiguous where the new protocol begins.
    FramedUpgrade(Field),
    /// A header line is malformed.
    InvalidHeader(InvalidLine),
    /// `Content-Length` or `Transfer-Encoding` occurs twice.
    Duplicate {
        /// The repeated field.
        field: Field,
        /// The field that it repeats.
        previous: Field,
    },
    /// Both `Content-Length` and `Transfer-Encoding`.
    LengthAndChunked,
    /// `Content-Length` is not a number of at most 63 bits.
    InvalidContentLength(Field),
    /// A transfer coding other than `chunked` alone.
    UnknownTransferEncoding(Field),
    /// Early hints (103) in an HTTP/1.0 response.
    EarlyHintsInHttp10,
}

impl ResponseError {
    /// nginx's log message, at level `error`.
    pub fn log_text(&self, bytes: &[u8]) -> Vec<u8> {
        match self {
            ResponseError::InvalidStatusLine => NO_HEADER.as_bytes().to_vec(),
            ResponseError::InvalidStatus(text) => {
                [b"upstream sent invalid status \"", text.of(bytes), b"\""].concat()
            }
            ResponseError::FramedUpgrade(field) => {
                [b"upstream sent 101 response with \"", field.name(bytes), b"\" header"].concat()
            }
            ResponseError::InvalidHeader(line) => line.log_text("upstream sent invalid header", bytes),
            ResponseError::Duplicate { field, previous } => [
                b"upstream sent duplicate header line: \"",
                field.name(bytes),
                b": ",
                field.value(bytes),
                b"\", previous value: \"",
                previous.name(bytes),
                b": ",
                previous.value(bytes),
                b"\"",
            ]
            .concat(),
            ResponseError::LengthAndChunked => {
                b"upstream sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time".to_vec()
            }
            ResponseError::InvalidContentLength(field) => [
                b"upstream sent invalid \"Content-Length\" header: \"",
                field.name(bytes),
                b": ",
                field.value(bytes),
                b"\"",
            ]
            .concat(),
            ResponseError::UnknownTransferEncoding(field) => {
                [b"upstream sent unknown \"Transfer-Encoding\": \"", field.value(bytes), b"\""].concat()
            }
            ResponseError::EarlyHintsInHttp10 => b"upstream sent HTTP/1.0 response with early hints".to_vec(),
        }
    }
}

/// nginx's log message, at level `error`, for a response whose [`ResponseHead::version`] is
/// HTTP/0.9, and for a malformed status line. nginx forwards such a response to the client
/// unchanged, without a head.
pub const NO_HEADER: &str = "upstream sent no valid HTTP/1.0 header";

/// Upstreams' header fields may have any name.
const RULES: Rules = Rules {
    underscores: true,
    repeated_status_line: true,
};

/// Parses a response head from all bytes received since its beginning. Returns the head's length
/// once it is complete, `None` if more bytes are needed. The caller limits the bytes
/// (`proxy_buffer_size`).
///
/// # Errors
/// The first error in the head. Bytes that do not begin with `HTTP/` are not an error: the result
/// is a head of length 0 with version HTTP/0.9 and status 200.
pub fn parse(bytes: &[u8], head: &mut ResponseHead) -> Result<Option<usize>, ResponseError> {
    let bytes = bytes.get(..u32::MAX as usize).unwrap_or(bytes);
    if head.phase == Phase::Done {
        head.clear();
    }
    if head.phase == Phase::Line {
        match head.line.advance(bytes, &mut head.at) {
            LineProgress::More => return Ok(None),
            LineProgress::None if bytes.starts_with(b"HTTP/") => {
                return Err(ResponseError::InvalidStatusLine);
            }
            LineProgress::None => {
                head.line = StatusLine {
                    status: 200,
                    ..StatusLine::default()
                };
                head.at = 0;
                head.connection = Connection::Close;
                head.phase = Phase::Done;
                return Ok(Some(0));
            }
            LineProgress::Line if !(100..=599).contains(&head.line.status) => {
                return Err(ResponseError::InvalidStatus(head.line.text));
            }
            LineProgress::Line => head.phase = Phase::Fields,
        }
        if head.version() < Version::Http11 {
            if head.status() == 103 {
                return Err(ResponseError::EarlyHintsInHttp10);
            }
            head.connection = Connection::Close;
        }
    }
    head.read_fields(bytes)
}

impl ResponseHead {
    /// Copies the head of an HTTP/2 response, whose fields are spans of that head's bytes. There is
    /// no status line, and the connection's end does not delimit the body.
    pub fn copy_http2(&mut self, head: &crate::h2::response::ResponseHead) {
        self.clear();
        self.phase = Phase::Done;
        self.line.status = head.status();
        self.line.major = 2;
        self.fields.extend_from_slice(head.fields());
        for field in head.fields() {
            self.known.insert(field.known);
        }
        if let Some(length) = head.content_length() {
            self.framing = Framing::Length(length);
        }
    }

    /// Capacity for fields.
    pub fn room(&self) -> usize {
        self.fields.capacity()
    }

    /// Resets everything except the allocated memory.
    pub fn clear(&mut self) {
        self.fields.clear();
        self.phase = Phase::Line;
        self.at = 0;
        self.line = StatusLine::default();
        self.reader = FieldReader::default();
        self.known = KnownSet::default();
        self.connection = Connection::Default;
        self.framing = Framing::Unknown;
    }

    /// The status code.
    pub fn status(&self) -> u16 {
        self.line.status
    }

    /// Code and reason as sent, such as `200 OK`; empty in HTTP/0.9, and if a CGI response gives
    /// only a code or no status.
    pub fn status_line<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        self.line.text.of(bytes)
    }

    /// The version; HTTP/0.9 without a status line.
    pub fn version(&self) -> Version {
        Version::from_numbers(self.line.major, self.line.minor)
    }

    /// Whether there was a status line, or an HTTP/2 head. If not, the response is HTTP/0.9, or the
    /// head is that of a CGI response.
    pub fn has_status_line(&self) -> bool {
        self.line.major > 0
    }

    /// Whether there was a status line of HTTP/1. Like nginx, a proxy treats other versions as
    /// HTTP/1; health checks of a server must not (RFC 9112, section 2.3).
    pub fn is_http1(&self) -> bool {
        self.line.major == 1
    }

    /// The header fields in the order received.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The first header field with this name.
    pub fn find(&self, known: KnownField) -> Option<Field> {
        if !self.known.contains(known) {
            return None;
        }
        self.fields
            .iter()
            .find(|field| field.known == known)
            .copied()
    }

    /// The value of the first header field with this name.
    pub fn value<'a>(&self, known: KnownField, bytes: &'a [u8]) -> Option<&'a [u8]> {
        self.find(known).map(|field| field.value(bytes))
    }

    /// All header fields with this name.
    pub fn all(&self, known: KnownField) -> impl Iterator<Item = Field> {
        self.fields
            .iter()
            .filter(move |field| field.known == known)
            .copied()
    }

    /// Whether the upstream closes the connection after this response: `Connection: close`, or a
    /// version below 1.1.
    pub fn closes(&self) -> bool {
        self.connection == Connection::Close
    }

    /// Whether this is an interim response, which another head follows: 103 (Early Hints).
    pub fn is_early_hints(&self) -> bool {
        self.line.status == 103
    }

    /// Whether the upstream switches protocols (101).
    pub fn is_upgrade(&self) -> bool {
        self.line.status == 101
    }

    /// The framing of the body; `head_request` says that the request's method was HEAD. After a
    /// 101, the connection carries another protocol, or nothing if the request did not ask for one.
    pub fn body(&self, head_request: bool) -> BodyFraming {
        if head_request || matches!(self.line.status, 101 | 204 | 304) {
            return BodyFraming::None;
        }
        match self.framing {
            Framing::Unknown => BodyFraming::UntilClose,
            Framing::Length(length) => BodyFraming::Length(length),
            Framing::Chunked => BodyFraming::Chunked,
        }
    }

    /// The value of `Content-Length`, which a response without a body may have as well.
    pub fn content_length(&self) -> Option<u64> {
        match self.framing {
            Framing::Length(length) => Some(length),
            Framing::Unknown | Framing::Chunked => None,
        }
    }

    /// Parses fields up to and including the empty line. Returns the head's length once it is
    /// complete.
    #[inline]
    fn read_fields(&mut self, bytes: &[u8]) -> Result<Option<usize>, ResponseError> {
        loop {
            if !self.reader.within_line() {
                self.read_plain_fields(bytes)?;
            }
            match self
                .reader
                .advance(bytes, &mut self.at, RULES)
                .map_err(ResponseError::InvalidHeader)?
            {
                Progress::More => return Ok(None),
                Progress::Line => self.add(self.reader.field(bytes), bytes)?,
                Progress::End => {
                    self.phase = Phase::Done;
                    return Ok(Some(self.at));
                }
            }
        }
    }

    /// Stores header lines as long as they are plain and complete. The first other line is left
    /// unread.
    #[inline]
    fn read_plain_fields(&mut self, bytes: &[u8]) -> Result<(), ResponseError> {
        let mut lines = PlainLines::new(bytes);
        while let Some(line) = lines.at(self.at) {
            let field = Field::plain(self.at, line, bytes);
            self.at = line.next;
            self.add(field, bytes)?;
        }
        Ok(())
    }

    fn add(&mut self, field: Field, bytes: &[u8]) -> Result<(), ResponseError> {
        // Early hints are forwarded unchanged.
        let checked = if self.is_early_hints() {
            Ok(())
        } else {
            self.check(field, bytes)
        };
        // A field that makes the response invalid is stored nevertheless.
        self.known.insert(field.known);
        if self.fields.is_empty() {
            self.fields.reserve(FIELDS_USUAL);
        }
        self.fields.push(field);
        checked
    }

    fn check(&mut self, field: Field, bytes: &[u8]) -> Result<(), ResponseError> {
        let value = field.value(bytes);
        match field.known {
            KnownField::ContentLength | KnownField::TransferEncoding if self.is_upgrade() => {
                return Err(ResponseError::FramedUpgrade(field));
            }
            KnownField::ContentLength | KnownField::TransferEncoding => {
                if let Some(previous) = self.find(field.known) {
                    return Err(ResponseError::Duplicate { field, previous });
                }
                if self.framing != Framing::Unknown {
                    return Err(ResponseError::LengthAndChunked);
                }
                self.framing = if field.known == KnownField::ContentLength {
                    Framing::Length(
                        content_length(value).ok_or(ResponseError::InvalidContentLength(field))?,
                    )
                } else if value.eq_ignore_ascii_case(b"chunked") {
                    Framing::Chunked
                } else {
                    return Err(ResponseError::UnknownTransferEncoding(field));
                };
            }
            KnownField::Connection if contains_ignoring_case(value, b"close") => {
                self.connection = Connection::Close
            }
            _ => {}
        }
        Ok(())
    }
}

/// The status line as far as it was parsed.
#[derive(Clone, Copy, Default)]
struct StatusLine {
    state: LineState,
    major: u16,
    minor: u16,
    status: u16,
    text: Span,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum LineState {
    /// Within the protocol name, of which this many bytes of `HTTP/` have been parsed.
    Protocol(u8),
    #[default]
    Start,
    Major,
    MajorOrDot,
    Minor,
    MinorOrSpace,
    /// Within the status code, of which this many digits have been parsed.
    Status(u8),
    AfterStatus,
    Reason,
    LineEnd,
}

/// Offset of the code in a line that begins with `HTTP/1.1` and one space.
const CODE_AT: usize = 9;

/// Length of such a line up to its reason.
const PLAIN_LENGTH: usize = CODE_AT + 4;

enum LineProgress {
    More,
    Line,
    None,
}

impl StatusLine {
    /// Parses a complete line of the usual form, such as `HTTP/1.1 200 OK` and CR LF. Returns false
    /// for any other line, and leaves it unread.
    #[inline]
    fn read_plain(&mut self, bytes: &[u8], at: &mut usize) -> bool {
        let Some((line, reason)) = bytes.split_first_chunk::<PLAIN_LENGTH>() else {
            return false;
        };
        let [
            b'H',
            b'T',
            b'T',
            b'P',
            b'/',
            b'1',
            b'.',
            minor,
            b' ',
            code @ ..,
            b' ',
        ] = line
        else {
            return false;
        };
        if !matches!(minor, b'0' | b'1') || !code.iter().all(u8::is_ascii_digit) {
            return false;
        }
        let Some(length) = memchr::memchr2(b'\r', b'\n', reason) else {
            return false;
        };
        if reason.get(length..length + 2) != Some(b"\r\n") {
            return false;
        }
        (self.major, self.minor) = (1, u16::from(minor - b'0'));
        let digits = code.iter().map(|digit| u16::from(digit - b'0'));
        self.status = digits.fold(0, |number, digit| number * 10 + digit);
        let end = PLAIN_LENGTH + length;
        self.text = Span {
            start: CODE_AT as u32,
            end: end as u32,
        };
        self.state = LineState::LineEnd;
        *at = end + 2;
        true
    }

    fn advance(&mut self, bytes: &[u8], at: &mut usize) -> LineProgress {
        if self.state == LineState::Start && self.read_plain(bytes, at) {
            return LineProgress::Line;
        }
        while let Some(&byte) = bytes.get(*at) {
            let here = *at as u32;
            *at += 1;
            self.state = match (self.state, byte) {
                (LineState::Start, b'H') => LineState::Protocol(1),
                (LineState::Protocol(seen), byte)
                    if b"HTTP/".get(usize::from(seen)) == Some(&byte) =>
                {
                    if byte == b'/' {
                        LineState::Major
                    } else {
                        LineState::Protocol(seen + 1)
                    }
                }
                (LineState::Major, b'1'..=b'9') => {
                    self.major = u16::from(byte - b'0');
                    LineState::MajorOrDot
                }
                (LineState::MajorOrDot, b'.') => LineState::Minor,
                (LineState::MajorOrDot, b'0'..=b'9') if self.major <= 99 => {
                    self.major = self.major * 10 + u16::from(byte - b'0');
                    LineState::MajorOrDot
                }
                (LineState::Minor, b'0'..=b'9') => {
                    self.minor = u16::from(byte - b'0');
                    LineState::MinorOrSpace
                }
                (LineState::MinorOrSpace, b' ') => LineState::Status(0),
                (LineState::MinorOrSpace, b'0'..=b'9') if self.minor <= 99 => {
                    self.minor = self.minor * 10 + u16::from(byte - b'0');
                    LineState::MinorOrSpace
                }
                (LineState::Status(0), b' ') => LineState::Status(0),
                (LineState::Status(seen), b'0'..=b'9') => {
                    self.status = self.status * 10 + u16::from(byte - b'0');
                    if seen == 2 {
                        self.text.start = here.saturating_sub(2);
                        LineState::AfterStatus
                    } else {
                        LineState::Status(seen + 1)
                    }
                }
                // Some upstreams send codes such as 403.1.
                (LineState::AfterStatus, b' ' | b'.') => LineState::Reason,
                (LineState::AfterStatus | LineState::Reason, b'\r') => {
                    self.text.end = here;
                    LineState::LineEnd
                }
                (LineState::AfterStatus | LineState::Reason, b'\n') => {
                    self.text.end = here;
                    return LineProgress::Line;
                }
                (LineState::Reason, _) => LineState::Reason,
                (LineState::LineEnd, b'\n') => return LineProgress::Line,
                _ => return LineProgress::None,
            };
        }
        LineProgress::More
    }
}

/// Parses trailers: field lines up to an empty line, as spans of the bytes since the beginning of
/// the trailers.
#[derive(Default)]
pub struct Trailers {
    reader: FieldReader,
    at: usize,
    fields: Vec<Field>,
}

impl Trailers {
    /// Parses all bytes received since the trailers' beginning. Returns their length once they are
    /// complete. The caller limits the bytes.
    ///
    /// # Errors
    /// A malformed line; see [`Trailers::log_text`].
    pub fn parse(&mut self, bytes: &[u8]) -> Result<Option<usize>, InvalidLine> {
        let bytes = bytes.get(..u32::MAX as usize).unwrap_or(bytes);
        loop {
            match self.reader.advance(bytes, &mut self.at, RULES)? {
                Progress::More => return Ok(None),
                Progress::Line => self.fields.push(self.reader.field(bytes)),
                Progress::End => return Ok(Some(self.at)),
            }
        }
    }

    /// The trailers in the order received.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// nginx's log message for a malformed line, at level `error`.
    pub fn log_text(line: InvalidLine, bytes: &[u8]) -> Vec<u8> {
        line.log_text("upstream sent invalid trailer", bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe(
        result: Result<Option<usize>, ResponseError>,
        head: &ResponseHead,
        bytes: &[u8],
    ) -> String {
        match result {
            Ok(None) => "more".to_owned(),
            Err(error) => error.log_text(bytes).escape_ascii().to_string(),
            Ok(Some(_)) => {
                let mut text = format!(
                    "{} {:?} {:?}{}",
                    head.status_line(bytes).escape_ascii(),
                    head.version(),
                    head.body(false),
                    if head.closes() { " close" } else { "" }
                );
                for field in head.fields() {
                    let (name, value) = (field.name(bytes), field.value(bytes));
                    text += &format!("|{}:{}", name.escape_ascii(), value.escape_ascii());
                }
                text
            }
        }
    }

    fn read(bytes: &[u8]) -> String {
        let whole = |bytes: &[u8]| {
            let mut head = ResponseHead::default();
            let result = parse(bytes, &mut head);
            describe(result, &head, bytes)
        };
        let mut growing = ResponseHead::default();
        for end in 0..=bytes.len() {
            let result = parse(&bytes[..end], &mut growing);
            let done = result != Ok(None);
            let text = describe(result, &growing, &bytes[..end]);
            assert_eq!(
                text,
                whole(&bytes[..end]),
                "{}",
                bytes[..end].escape_ascii()
            );
            if done {
                break;
            }
        }
        whole(bytes)
    }

    #[test]
    fn response_heads() {
        for (bytes, expected) in [
            ("HTTP/1.1 200 OK\r\n\r\n", "200 OK Http11 UntilClose"),
            (
                "HTTP/1.0 404 Not Found\r\nA: b\r\n\r\n",
                "404 Not Found Http10 UntilClose close|A:b",
            ),
            ("HTTP/1.1 200\r\n\r\n", "200 Http11 UntilClose"),
            ("HTTP/1.1 200 \n\n", "200  Http11 UntilClose"),
            ("HTTP/1.1   403.6 No\r\n\r\n", "403.6 No Http11 UntilClose"),
            (
                "HTTP/1.1 204 No\r\nContent-Length: 3\r\n\r\n",
                "204 No Http11 None|Content-Length:3",
            ),
            ("HTTP/1.1 304 No\r\n\r\n", "304 No Http11 None"),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
                "200 OK Http11 Length(3)|Content-Length:3",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: CHUNKED\r\n\r\n",
                "200 OK Http11 Chunked|Transfer-Encoding:CHUNKED",
            ),
            (
                "HTTP/1.1 200 OK\r\nConnection: a, Close\r\n\r\n",
                "200 OK Http11 UntilClose close|Connection:a, Close",
            ),
            (
                "HTTP/1.1 200 OK\r\nA_b.c(: d\r\n\r\n",
                "200 OK Http11 UntilClose|A_b.c(:d",
            ),
            (
                "HTTP/1.1 200 OK\r\nHTTP/1.1 200 OK\r\nA: b\r\n\r\n",
                "200 OK Http11 UntilClose|A:b",
            ),
            ("HTTP/2.0 200 OK\r\n\r\n", "200 OK Http11 UntilClose"),
            ("hello", " Http09 UntilClose close"),
            ("http/1.1 200 OK\r\n\r\n", " Http09 UntilClose close"),
            ("HTTP 200 OK\r\n\r\n", " Http09 UntilClose close"),
            ("HTTP/0.9 200 OK\r\n\r\n", NO_HEADER),
            ("HTTP/1 200 OK\r\n\r\n", NO_HEADER),
            ("HTTP/x", NO_HEADER),
            // nginx reads 433, and tells the client "3 3 No".
            ("HTTP/1.1 43 3 No\r\n\r\n", NO_HEADER),
            ("HTTP/1.1\t200 OK\r\n\r\n", NO_HEADER),
            ("HTTP/1.1 20x\r\n\r\n", NO_HEADER),
            ("HTTP/1.1 20 OK\r\n\r\n", NO_HEADER),
            ("HTTP/1.1 2000 OK\r\n\r\n", NO_HEADER),
            ("HTTP/1.1 200x\r\n\r\n", NO_HEADER),
            ("HTTP/1.1 200 OK\rx", NO_HEADER),
            (
                "HTTP/1.1 099 No\r\n",
                "upstream sent invalid status \\\"099 No\\\"",
            ),
            (
                "HTTP/1.1 600\r\n",
                "upstream sent invalid status \\\"600\\\"",
            ),
            ("HTTP/1.1 100 C\r\n\r\n", "100 C Http11 UntilClose"),
            ("HTTP/1.1 599 No\r\n\r\n", "599 No Http11 UntilClose"),
            (
                "HTTP/1.1 101 S\r\nUpgrade: x\r\n\r\n",
                "101 S Http11 None|Upgrade:x",
            ),
            (
                "HTTP/1.1 101 S\r\nContent-Length: 0\r\n",
                "upstream sent 101 response with \\\"Content-Length\\\" header",
            ),
            (
                "HTTP/1.1 101 S\r\nTransfer-Encoding: chunked\r\n",
                "upstream sent 101 response with \\\"Transfer-Encoding\\\" header",
            ),
            ("HTTP/1.1 200 OK", "more"),
            (
                "HTTP/1.1 200 OK\r\nA b\r\n",
                "upstream sent invalid header: \\\"A\\\\x20...\\\"",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\ncontent-length: 1\r\n",
                "upstream sent duplicate header line: \\\"content-length: 1\\\", \
                 previous value: \\\"Content-Length: 1\\\"",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n",
                "upstream sent \\\"Content-Length\\\" and \\\"Transfer-Encoding\\\" headers at the same time",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n",
                "upstream sent \\\"Content-Length\\\" and \\\"Transfer-Encoding\\\" headers at the same time",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: x\r\n",
                "upstream sent invalid \\\"Content-Length\\\" header: \\\"Content-Length: x\\\"",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n",
                "upstream sent unknown \\\"Transfer-Encoding\\\": \\\"gzip\\\"",
            ),
            (
                "HTTP/1.0 103 Early Hints\r\n",
                "upstream sent HTTP/1.0 response with early hints",
            ),
        ] {
            assert_eq!(read(bytes.as_bytes()), expected, "{bytes:?}");
        }
    }

    #[test]
    fn early_hints_come_before_the_head() {
        let bytes = b"HTTP/1.1 103 Early Hints\r\nLink: a\r\nContent-Length: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n";
        let mut head = ResponseHead::default();
        let length = parse(bytes, &mut head).expect("valid").expect("complete");
        assert!(head.is_early_hints());
        assert_eq!(head.value(KnownField::Link, bytes), Some(&b"a"[..]));
        let rest = &bytes[length..];
        assert_eq!(parse(rest, &mut head), Ok(Some(rest.len())));
        assert_eq!((head.status(), head.fields().len()), (200, 0));
    }

    #[test]
    fn answers_to_head_have_no_body() {
        let mut head = ResponseHead::default();
        parse(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", &mut head).expect("valid");
        assert_eq!(
            (head.body(true), head.content_length()),
            (BodyFraming::None, Some(3))
        );
    }

    #[test]
    fn trailers() {
        let bytes = b"A: b\r\nC_d:e\r\n\r\nrest";
        let mut trailers = Trailers::default();
        for end in 0..15 {
            assert_eq!(trailers.parse(&bytes[..end]), Ok(None));
        }
        assert_eq!(trailers.parse(bytes), Ok(Some(15)));
        let names: Vec<&[u8]> = trailers
            .fields()
            .iter()
            .map(|field| field.name(bytes))
            .collect();
        assert_eq!(names, [&b"A"[..], b"C_d"]);
        let bytes = b"A b\r\n";
        let line = Trailers::default().parse(bytes).expect_err("invalid");
        assert_eq!(
            Trailers::log_text(line, bytes),
            b"upstream sent invalid trailer: \"A\\x20...\""
        );
    }
}
