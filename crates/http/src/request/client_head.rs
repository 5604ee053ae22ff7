//! The request line and the fields that the client sent, over any protocol.
//!
//! Callers ask a [`ClientHead`] for method, target and fields. Only HTTP/1's own code uses the
//! parsed form of an HTTP/1 head ([`ClientHead::h1`]).

use std::ops::Range;

use proto::Span;
use proto::h1::{self, BodyLength, ServerName, Version, body_length};
use proto::head;
use proto::header::{KnownField, append_value, has_control};
use proto::method::Method;

/// The head that the client sent, shared by the main request and its subrequests.
#[derive(Default)]
pub struct ClientHead {
    /// The bytes that the head's spans refer to: for HTTP/1 the head as received.
    pub bytes: Vec<u8>,
    /// The host without port, in lower case: from the absolute form of the target, else from the
    /// Host field.
    pub host: Vec<u8>,
    /// The head as parsed by HTTP/1. Its memory is reused by the next request.
    h1: h1::Head,
    /// The head of a request of HTTP/2, which is received as fields. Its memory is reused too.
    of_fields: head::Head,
    /// Whether `of_fields` is the head of the current request instead of `h1`.
    has_fields: bool,
}

impl ClientHead {
    /// An HTTP/1 head that was parsed from `bytes`.
    pub fn parsed(bytes: Vec<u8>, head: h1::Head, host: Vec<u8>) -> ClientHead {
        ClientHead {
            bytes,
            host,
            h1: head,
            ..ClientHead::default()
        }
    }

    /// Whether a recorded full response may answer the request, as far as the head decides: GET,
    /// without a body, a range or an expectation.
    pub fn is_plain(&self) -> bool {
        self.is_simple() && !self.asks_for_part()
    }

    /// Whether the head has a field `Range`.
    pub fn asks_for_part(&self) -> bool {
        self.has(KnownField::Range)
    }

    /// Whether a recorded response, full or partial, may answer the request, as far as the head
    /// decides.
    pub fn is_simple(&self) -> bool {
        let Some(head) = self.h1() else {
            return matches!(self.method(), Method::Get)
                && !self.has(KnownField::Expect)
                && self.ignored().is_empty();
        };
        let get = matches!(head.method(), Method::Get);
        get && head.version() >= Version::Http10
            && !head.has(KnownField::Expect)
            && head.ignored().is_empty()
            && matches!(body_length(head, &self.bytes, false), Ok(BodyLength::None))
    }

    /// Bytes of memory that the head holds in addition to [`bytes`](Self::bytes).
    pub fn memory(&self) -> usize {
        self.host.capacity() + self.h1.memory() + self.of_fields.memory()
    }

    /// Stores a head that was received as fields (HTTP/2). The head's spans refer to `bytes`.
    pub fn take_fields(&mut self, head: head::Head) {
        self.of_fields = head;
        self.has_fields = true;
    }

    /// Stores a head that was received as fields, by swapping instead of copying. The contents of
    /// `bytes` and `head` are unspecified afterwards.
    pub fn swap_fields(&mut self, bytes: &mut Vec<u8>, head: &mut head::Head) {
        std::mem::swap(&mut self.bytes, bytes);
        std::mem::swap(&mut self.of_fields, head);
        self.has_fields = true;
    }

    /// A copy of a head that was received as fields, with these fields in place of its own; `None`
    /// for a head of HTTP/1.
    pub fn with_fields(&self, fields: &[(Vec<u8>, Vec<u8>)]) -> Option<ClientHead> {
        let mut bytes = self.bytes.clone();
        let pairs = fields.iter().map(|(name, value)| (&**name, &**value));
        let head = self.fields_head()?.with_fields(pairs, &mut bytes);
        let mut host = self.host.clone();
        if head.server_name() != self.server_name()
            && let Some(named) = head.server_name()
        {
            host = named.name.of(&bytes).to_ascii_lowercase();
        }
        Some(ClientHead {
            bytes,
            host,
            of_fields: head,
            has_fields: true,
            ..ClientHead::default()
        })
    }

    /// Adds a field to a head that was received as fields.
    pub fn add_field(&mut self, name: &[u8], value: &[u8]) {
        let mut place = |text: &[u8]| {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(text);
            Span::new(start, self.bytes.len())
        };
        self.of_fields.push(h1::Field {
            name: place(name),
            value: place(value),
            known: KnownField::from_name(name),
        });
    }

    /// The head, if it was received as fields; `None` for HTTP/1.
    fn fields_head(&self) -> Option<&head::Head> {
        self.has_fields.then_some(&self.of_fields)
    }

    /// Whether the head was received as fields, that is, by a protocol other than HTTP/1.
    pub fn is_of_fields(&self) -> bool {
        self.has_fields
    }

    /// The head as parsed by HTTP/1; `None` for another protocol.
    pub fn h1(&self) -> Option<&h1::Head> {
        (!self.has_fields).then_some(&self.h1)
    }

    /// The received bytes of an HTTP/1 head, and the head that is parsed from them. The head is one
    /// of HTTP/1 from now on.
    pub fn h1_mut(&mut self) -> (&mut Vec<u8>, &mut h1::Head) {
        self.has_fields = false;
        (&mut self.bytes, &mut self.h1)
    }

    /// Clears everything and keeps the allocated memory.
    pub fn clear(&mut self) {
        // The pattern names every field, so that a new field does not compile before it is cleared
        // here.
        let ClientHead {
            bytes,
            host,
            h1,
            of_fields,
            has_fields,
        } = self;
        bytes.clear();
        host.clear();
        h1.clear();
        of_fields.clear();
        *has_fields = false;
    }

    /// The request's method.
    pub fn method(&self) -> Method {
        match self.fields_head() {
            None => self.h1.method(),
            Some(head) => head.method(),
        }
    }

    /// The method's name as sent.
    pub fn method_name(&self) -> &[u8] {
        match self.fields_head() {
            None => self.h1.method_name(&self.bytes),
            Some(head) => head.method_name().of(&self.bytes),
        }
    }

    /// The version of HTTP/1 whose rules apply: 1.1 for a request of another protocol.
    pub fn version(&self) -> Version {
        match self.fields_head() {
            None => self.h1.version(),
            Some(_) => Version::Http11,
        }
    }

    /// Protocol and version as the client sent them (`$server_protocol`); empty in HTTP/0.9.
    pub fn protocol(&self) -> &[u8] {
        match self.fields_head() {
            None => self.h1.protocol(&self.bytes),
            Some(head) => head.protocol().of(&self.bytes),
        }
    }

    /// Whether the protocol is known; see [`h1::Head::has_protocol`].
    pub fn has_protocol(&self) -> bool {
        self.h1().is_none_or(h1::Head::has_protocol)
    }

    /// The request line (`$request`); see [`h1::Head::request_line`].
    pub fn request_line(&self) -> &[u8] {
        match self.fields_head() {
            None => self.h1.request_line(&self.bytes),
            Some(head) => head.line().of(&self.bytes),
        }
    }

    /// The target as sent (`$request_uri`).
    pub fn target(&self) -> &[u8] {
        match self.fields_head() {
            None => self.h1.target(&self.bytes),
            Some(head) => head.target().of(&self.bytes),
        }
    }

    /// The decoded and normalised path.
    pub fn path(&self) -> &[u8] {
        match self.fields_head() {
            None => self.h1.path(&self.bytes),
            Some(head) => head.path(),
        }
    }

    /// The query; `None` if the target has no `?`.
    pub fn args(&self) -> Option<&[u8]> {
        let args = match self.fields_head() {
            None => self.h1.args(),
            Some(head) => head.args(),
        };
        args.map(|args| args.of(&self.bytes))
    }

    /// Whether the path, as received, contains escapes or `+`.
    pub fn is_escaped(&self) -> bool {
        match self.fields_head() {
            None => self.h1.has_escapes() || self.h1.has_plus(),
            Some(head) => head.has_escapes() || head.has_plus(),
        }
    }

    /// Whether the target may be passed to an upstream as received.
    pub fn has_valid_target(&self) -> bool {
        self.h1().is_none_or(h1::Head::has_valid_target)
    }

    /// The name that chooses the virtual server, within `bytes`; `None` if the request has none.
    pub fn server_name(&self) -> Option<ServerName> {
        match self.fields_head() {
            None => self.h1.server_name(),
            Some(head) => head.server_name(),
        }
    }

    /// Whether the client permits keep-alive after this request. False for protocols other than
    /// HTTP/1, whose connections do not depend on a single request.
    pub fn keeps_alive(&self) -> bool {
        self.h1().is_some_and(h1::Head::keeps_alive)
    }

    fn fields(&self) -> &[h1::Field] {
        match self.fields_head() {
            None => self.h1.fields(),
            Some(head) => head.fields(),
        }
    }

    /// All fields in the order received: name and value.
    pub fn headers(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.known_headers().map(|(_, name, value)| (name, value))
    }

    /// All fields in the order received, each with its known name.
    pub fn known_headers(&self) -> impl Iterator<Item = (KnownField, &[u8], &[u8])> + Clone {
        let fields = self.fields().iter();
        fields.map(|field| {
            (
                field.known,
                field.name(&self.bytes),
                field.value(&self.bytes),
            )
        })
    }

    /// Appends the fields for which `passed` is true as lines of HTTP/1. Consecutive lines that
    /// were received in this form are copied together.
    pub fn append_fields(&self, passed: impl Fn(KnownField, &[u8]) -> bool, out: &mut Vec<u8>) {
        let bytes = &*self.bytes;
        let mut lying: Range<usize> = 0..0;
        for field in self.fields() {
            let name = field.name(bytes);
            if !passed(field.known, name) {
                continue;
            }
            let line = line_of(field, bytes);
            if let Some(line) = &line
                && line.start == lying.end
            {
                lying.end = line.end;
                continue;
            }
            out.extend_from_slice(bytes.get(lying).unwrap_or_default());
            lying = line.unwrap_or_else(|| {
                out.extend_from_slice(name);
                out.extend_from_slice(b": ");
                append_value(field.value(bytes), out);
                out.extend_from_slice(b"\r\n");
                0..0
            });
        }
        out.extend_from_slice(bytes.get(lying).unwrap_or_default());
    }

    /// The value of the first field with this name, which must be in lower case and not a known
    /// name.
    pub fn value_named(&self, name: &[u8]) -> Option<&[u8]> {
        let mut fields = self.fields().iter();
        let field = fields.find(|field| {
            field.known == KnownField::Other && field.name(&self.bytes).eq_ignore_ascii_case(name)
        })?;
        Some(field.value(&self.bytes))
    }

    /// The spans in `bytes` of field lines that were ignored for their names.
    pub fn ignored(&self) -> &[Span] {
        match self.fields_head() {
            None => self.h1.ignored(),
            Some(head) => head.ignored(),
        }
    }

    /// Whether the head has a field with this name.
    pub fn has(&self, known: KnownField) -> bool {
        match self.fields_head() {
            None => self.h1.has(known),
            Some(head) => head.has(known),
        }
    }

    /// The value of the first field with this name.
    pub fn value(&self, known: KnownField) -> Option<&[u8]> {
        self.all(known).next()
    }

    /// The value of the first field with this name in the head before the offset `end` of `bytes`.
    pub fn value_up_to(&self, known: KnownField, end: u32) -> Option<&[u8]> {
        if !self.has(known) {
            return None;
        }
        let field = self.fields().iter().find(|field| field.known == known)?;
        (field.name.start < end).then(|| field.value(&self.bytes))
    }

    /// The values of all fields with this name.
    pub fn all(&self, known: KnownField) -> impl Iterator<Item = &[u8]> {
        let fields = if self.has(known) { self.fields() } else { &[] };
        let fields = fields.iter().filter(move |field| field.known == known);
        fields.map(|field| field.value(&self.bytes))
    }

    /// Whether any byte of the request has been received.
    pub fn has_begun(&self) -> bool {
        self.h1()
            .is_none_or(|head| head.has_begun() || head.leading() > 0)
    }

    /// Whether the head is known to begin with a method.
    pub fn has_method(&self) -> bool {
        self.h1().is_none_or(h1::Head::has_method)
    }

    /// Whether the target has been parsed into a path and a query.
    pub fn has_path(&self) -> bool {
        self.h1().is_none_or(h1::Head::has_path)
    }

    /// Whether the request line has been received and is valid.
    pub fn has_request_line(&self) -> bool {
        self.h1().is_none_or(h1::Head::has_request_line)
    }

    /// The number of bytes that count for `$request_length`.
    pub fn length(&self) -> usize {
        match self.fields_head() {
            None => self.h1.request_length(),
            Some(head) => head.wire_length(),
        }
    }
}

/// The range of a field's line that can be sent as received: name, colon, space, value and line
/// end. `None` if the line was received in another form.
fn line_of(field: &h1::Field, bytes: &[u8]) -> Option<Range<usize>> {
    let (name, value) = (field.name.range(), field.value.range());
    let end = value.end.checked_add(b"\r\n".len())?;
    let is_whole = bytes.get(name.end..value.start)? == b": "
        && bytes.get(value.end..end)? == b"\r\n"
        && !has_control(field.value(bytes));
    is_whole.then_some(name.start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields of a head but for those that are not known, as they are passed on.
    fn passed_on(fields: &str) -> String {
        let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").into_bytes();
        let mut head = h1::Head::default();
        let parsed = h1::parse_head(&bytes, &h1::Limits::default(), &mut head);
        assert_eq!(parsed, Ok(Some(bytes.len())));
        let client = ClientHead::parsed(bytes, head, b"a".to_vec());
        let mut out = b"before\r\n".to_vec();
        let is_passed = |known, _: &[u8]| !matches!(known, KnownField::Other | KnownField::Host);
        client.append_fields(is_passed, &mut out);
        let out = String::from_utf8(out).unwrap();
        out.strip_prefix("before\r\n").unwrap().to_owned()
    }

    #[test]
    fn fields_are_passed_on_one_line_each() {
        for (came, expected) in [
            ("", ""),
            ("X-Other: 1\r\n", ""),
            (
                "User-Agent: a b\r\nX: 1\r\nRange: c\r\nCookie: d\r\n",
                "User-Agent: a b\r\nRange: c\r\nCookie: d\r\n",
            ),
            (
                "user-agent:a\r\nRange: \r\nRange:  c  \r\nCookie: d\r\nX: 2\r\n",
                "user-agent: a\r\nRange: \r\nRange: c\r\nCookie: d\r\n",
            ),
            ("Cookie: d\nRange: e\n", "Cookie: d\r\nRange: e\r\n"),
        ] {
            assert_eq!(passed_on(came), expected, "{came:?}");
        }
    }

    #[test]
    fn fields_of_another_protocol_are_written_as_lines() {
        let mut client = ClientHead::default();
        client.take_fields(head::Head::default());
        client.add_field(b"cookie", b"a");
        client.add_field(b"range", b"b\nc");
        let mut out = Vec::new();
        client.append_fields(|_, _| true, &mut out);
        assert_eq!(out, b"cookie: a\r\nrange: b c\r\n");
    }
}
