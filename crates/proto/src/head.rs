//! The head of a request that arrives as fields, as in HTTP/2 and HTTP/3 (RFC 9113, section 8.3):
//! there are no lines to parse, and the head is complete.
//!
//! Not here: the encoding of fields, and which fields a protocol forbids.

use crate::h1::{Field, ServerName};
use crate::header::{KnownField, KnownSet};
use crate::method::Method;
use crate::uri::{self, BadUri};
use crate::{Span, host};

/// The pseudo-header fields of a request.
#[derive(Clone, Copy, Debug)]
pub struct ControlData<'a> {
    /// The value of `:method`.
    pub method: &'a [u8],
    /// The value of `:path`: path and query, percent-encoded.
    pub target: &'a [u8],
    /// The value of `:authority`; if it is missing, Host names the server.
    pub authority: Option<&'a [u8]>,
    /// The protocol and its version as in logs, such as `HTTP/2.0`.
    pub protocol: &'a [u8],
}

/// The pseudo-header fields of a request, as spans of the head's bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadSpans {
    /// The span of the method.
    pub method: Span,
    /// The span of the target.
    pub target: Span,
    /// The span of the authority, if there is one.
    pub authority: Option<Span>,
}

/// Why a head is invalid; the response is 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadRefusal {
    /// The target cannot be normalised.
    Target,
    /// The authority, or Host, is not a valid host.
    Host,
}

/// A head, as spans of its bytes, which include a request line in the format of HTTP/1.
#[derive(Clone, Debug, Default)]
pub struct Head {
    method: Method,
    line: Span,
    name: Span,
    target: Span,
    protocol: Span,
    path: Vec<u8>,
    parts: uri::Parts,
    server: Option<ServerName>,
    fields: Vec<Field>,
    known: KnownSet,
    ignored: Vec<Span>,
    /// Length as received, in bytes.
    wire_length: usize,
}

impl Head {
    /// Creates a head. Clears `bytes`, and writes the bytes of the spans to it.
    ///
    /// # Errors
    /// The target cannot be normalised, or the server's name is not a valid host.
    pub fn new<'a>(
        control: &ControlData<'_>,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        merge_slashes: bool,
        bytes: &mut Vec<u8>,
    ) -> Result<Head, HeadRefusal> {
        bytes.clear();
        let mut head = Head::default();
        let places = HeadSpans {
            method: put(bytes, control.method),
            target: put(bytes, control.target),
            authority: control.authority.map(|authority| put(bytes, authority)),
        };
        for (name, value) in fields {
            head.push(Field {
                name: put(bytes, name),
                value: put(bytes, value),
                known: KnownField::from_name(name),
            });
        }
        head.settle(places, control.protocol, merge_slashes, bytes)?;
        head.wire_length = bytes.len();
        Ok(head)
    }

    /// A copy of this head with other fields. `bytes` are those of the head; the fields are
    /// appended to them. If `Host` differs, it names the server.
    pub fn with_fields<'a>(
        &self,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        bytes: &mut Vec<u8>,
    ) -> Head {
        let mut head = Head {
            fields: Vec::new(),
            known: KnownSet::default(),
            ..self.clone()
        };
        for (name, value) in fields {
            head.push(Field {
                name: put(bytes, name),
                value: put(bytes, value),
                known: KnownField::from_name(name),
            });
        }
        let host = |head: &Head| head.all(KnownField::Host).next().map(|field| field.value);
        let text = |host: Option<Span>| host.map(|span| span.of(bytes));
        let (before, after) = (host(self), host(&head));
        if text(before) != text(after)
            && let Some(within) = after
            && let Ok(host) = host::validate(within.of(bytes))
        {
            head.server = Some(ServerName {
                name: Span {
                    start: within.start + host.name.start,
                    end: within.start + host.name.end,
                },
                port: host.port,
                has_capitals: host.has_capitals,
            });
        }
        head
    }

    /// Allocated memory, in bytes.
    pub fn memory(&self) -> usize {
        let fields = self.fields.capacity() * size_of::<Field>();
        self.path.capacity() + fields + self.ignored.capacity() * size_of::<Span>()
    }

    /// Resets everything except the allocated memory.
    pub fn clear(&mut self) {
        let Head {
            path,
            fields,
            ignored,
            ..
        } = std::mem::take(self);
        *self = Head {
            path,
            fields,
            ignored,
            ..Head::default()
        };
        self.path.clear();
        self.fields.clear();
        self.ignored.clear();
    }

    /// Adds a field, whose spans refer to the head's bytes.
    #[inline]
    pub fn push(&mut self, field: Field) {
        self.known.insert(field.known);
        self.fields.push(field);
    }

    /// Notes a field that is ignored because of its name.
    pub fn ignore(&mut self, name: Span) {
        self.ignored.push(name);
    }

    /// Removes all fields with this name.
    pub fn remove(&mut self, known: KnownField) {
        self.fields.retain(|field| field.known != known);
        self.known.remove(known);
    }

    /// Completes a head whose fields have been added: creates the request line, the path and the
    /// server's name. Appends the line to `bytes`.
    ///
    /// # Errors
    /// The target cannot be normalised, or the server's name is not a valid host.
    pub fn settle(
        &mut self,
        places: HeadSpans,
        protocol: &[u8],
        merge_slashes: bool,
        bytes: &mut Vec<u8>,
    ) -> Result<(), HeadRefusal> {
        let start = bytes.len();
        bytes.extend_from_within(places.method.start as usize..places.method.end as usize);
        self.name = Span::new(start, bytes.len());
        bytes.push(b' ');
        let target = bytes.len();
        bytes.extend_from_within(places.target.start as usize..places.target.end as usize);
        self.target = Span::new(target, bytes.len());
        bytes.push(b' ');
        self.protocol = put(bytes, protocol);
        self.line = Span::new(start, bytes.len());
        self.method = Method::from_name(self.name.of(bytes));
        self.parts = uri::normalise(self.target.of(bytes), merge_slashes, &mut self.path)
            .map_err(|BadUri| HeadRefusal::Target)?;
        let host = || self.all(KnownField::Host).next().map(|field| field.value);
        if let Some(within) = places.authority.or_else(host) {
            let host = host::validate(within.of(bytes)).map_err(|_| HeadRefusal::Host)?;
            self.server = Some(ServerName {
                name: Span {
                    start: within.start + host.name.start,
                    end: within.start + host.name.end,
                },
                port: host.port,
                has_capitals: host.has_capitals,
            });
        }
        Ok(())
    }

    /// Sets the length as received, in bytes (`$request_length`).
    pub fn set_wire_length(&mut self, bytes: usize) {
        self.wire_length = bytes;
    }

    /// Length as received, in bytes.
    pub fn wire_length(&self) -> usize {
        self.wire_length
    }

    /// The names of fields that were ignored because of their names.
    pub fn ignored(&self) -> &[Span] {
        &self.ignored
    }

    /// The method.
    pub fn method(&self) -> Method {
        self.method
    }

    /// The method's name as sent.
    pub fn method_name(&self) -> Span {
        self.name
    }

    /// A request line in the format of HTTP/1, such as `GET / HTTP/2.0`.
    pub fn line(&self) -> Span {
        self.line
    }

    /// The target as sent.
    pub fn target(&self) -> Span {
        self.target
    }

    /// The protocol as in logs.
    pub fn protocol(&self) -> Span {
        self.protocol
    }

    /// The decoded and normalised path.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The query; `None` if the target has no `?`.
    pub fn args(&self) -> Option<Span> {
        let base = self.target.start;
        self.parts.args.map(|args| Span {
            start: base + args.start,
            end: base + args.end,
        })
    }

    /// Whether the path contains a percent-encoded byte.
    pub fn has_escapes(&self) -> bool {
        self.parts.quoted
    }

    /// Whether the path contains a `+`.
    pub fn has_plus(&self) -> bool {
        self.parts.plus
    }

    /// The name that selects the virtual server; `None` if the request names none.
    pub fn server_name(&self) -> Option<ServerName> {
        self.server
    }

    /// The fields in the order received.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Whether a field with this name was added.
    pub fn has(&self, known: KnownField) -> bool {
        self.known.contains(known)
    }

    /// All fields with this name.
    pub fn all(&self, known: KnownField) -> impl Iterator<Item = &Field> {
        let fields = self.fields.iter();
        fields.filter(move |field| field.known == known)
    }
}

/// Appends a text, and returns its span.
fn put(bytes: &mut Vec<u8>, text: &[u8]) -> Span {
    let start = bytes.len();
    bytes.extend_from_slice(text);
    Span::new(start, bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: ControlData<'static> = ControlData {
        method: b"GET",
        target: b"/a%20b/../c.html?d=e#f",
        authority: Some(b"Example.org:8080"),
        protocol: b"HTTP/2.0",
    };

    fn head(
        control: &ControlData<'_>,
        fields: &[(&str, &str)],
    ) -> Result<(Head, Vec<u8>), HeadRefusal> {
        let fields = fields
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let mut bytes = b"left over".to_vec();
        Head::new(control, fields, true, &mut bytes).map(|head| (head, bytes))
    }

    #[test]
    fn a_removed_field_is_not_there_any_more() {
        let fields = [("cookie", "a=b"), ("te", "trailers"), ("cookie", "c=d")];
        let (mut head, _) = head(&GET, &fields).unwrap();
        assert!(head.has(KnownField::Cookie));
        head.remove(KnownField::Cookie);
        assert!(!head.has(KnownField::Cookie));
        assert_eq!(head.all(KnownField::Cookie).count(), 0);
        assert!(head.has(KnownField::Te));
    }

    #[test]
    fn says_of_itself_what_a_parsed_one_says() {
        let fields = [("cookie", "a=b"), ("x-own", ""), ("cookie", "c=d")];
        let (head, bytes) = head(&GET, &fields).unwrap();
        let mut text =
            b"GET /a%20b/../c.html?d=e#f HTTP/1.1\r\nHost: Example.org:8080\r\n".to_vec();
        for (name, value) in fields {
            text.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        text.extend_from_slice(b"\r\n");
        let mut parsed = crate::h1::Head::default();
        crate::h1::parse_head(&text, &crate::h1::Limits::default(), &mut parsed).unwrap();
        assert_eq!(head.method(), parsed.method());
        assert_eq!(head.method_name().of(&bytes), parsed.method_name(&text));
        assert_eq!(head.target().of(&bytes), parsed.target(&text));
        assert_eq!(head.path(), parsed.path(&text));
        let args = |args: Option<Span>, bytes: &[u8]| args.map(|args| args.of(bytes).to_vec());
        assert_eq!(args(head.args(), &bytes), args(parsed.args(), &text));
        assert_eq!(
            (head.has_escapes(), head.has_plus()),
            (parsed.has_escapes(), parsed.has_plus())
        );
        let (named, parsed_name) = (head.server_name().unwrap(), parsed.server_name().unwrap());
        assert_eq!(named.name.of(&bytes), parsed_name.name.of(&text));
        assert_eq!(
            (named.port, named.has_capitals),
            (parsed_name.port, parsed_name.has_capitals)
        );
        let values = |known: KnownField| -> Vec<Vec<u8>> {
            head.all(known)
                .map(|field| field.value(&bytes).to_vec())
                .collect()
        };
        assert_eq!(values(KnownField::Cookie), [b"a=b", b"c=d"]);
        assert!(head.has(KnownField::Cookie) && !head.has(KnownField::Range));
        assert_eq!(head.fields().len(), 3);
        assert_eq!(
            head.line().of(&bytes),
            b"GET /a%20b/../c.html?d=e#f HTTP/2.0"
        );
        assert_eq!(head.protocol().of(&bytes), b"HTTP/2.0");
    }

    #[test]
    fn host_names_the_server_where_there_is_no_authority() {
        let without = ControlData {
            authority: None,
            ..GET
        };
        let (named, bytes) = head(&without, &[("host", "one")]).unwrap();
        assert_eq!(named.server_name().unwrap().name.of(&bytes), b"one");
        assert!(head(&without, &[]).unwrap().0.server_name().is_none());
    }

    #[test]
    fn what_is_no_path_or_no_host_is_refused() {
        let refused = |control: &ControlData<'_>, fields| head(control, fields).err();
        let climbing = ControlData {
            target: b"/../",
            ..GET
        };
        assert_eq!(refused(&climbing, &[]), Some(HeadRefusal::Target));
        let nowhere = ControlData {
            authority: Some(b"a..b"),
            ..GET
        };
        assert_eq!(refused(&nowhere, &[]), Some(HeadRefusal::Host));
        let without = ControlData {
            authority: None,
            ..GET
        };
        assert_eq!(
            refused(&without, &[("host", "a b")]),
            Some(HeadRefusal::Host)
        );
    }

    #[test]
    fn fields_are_replaced() {
        let (first, mut bytes) = head(&GET, &[("host", "a.example"), ("x-own", "1")]).unwrap();
        let fields: [(&[u8], &[u8]); 2] = [(b"host", b"a.example"), (b"x-own", b"two")];
        let same_host = first.with_fields(fields, &mut bytes);
        assert_eq!(same_host.target().of(&bytes), GET.target);
        let shown = |head: &Head, bytes: &[u8]| -> Vec<String> {
            let fields = head.fields().iter();
            let text = |part: &[u8]| String::from_utf8_lossy(part).into_owned();
            fields.map(|field| text(field.value(bytes))).collect()
        };
        assert_eq!(shown(&same_host, &bytes), ["a.example", "two"]);
        let server = same_host.server_name().unwrap();
        assert_eq!(server.name.of(&bytes), b"Example.org");
        let other: [(&[u8], &[u8]); 1] = [(b"host", b"b.example:81")];
        let other = first.with_fields(other, &mut bytes);
        let server = other.server_name().unwrap();
        assert_eq!(
            (server.name.of(&bytes), server.port),
            (&b"b.example"[..], 81)
        );
        assert!(!other.has(KnownField::Other) && other.fields().len() == 1);
    }
}
