//! Requests from header blocks (RFC 9113, section 8): turns the decoded fields into a [`Head`], or
//! reports the first fault that makes the request malformed.
//!
//! Requests that nginx rejects are rejected with nginx's log messages; others that the RFC calls
//! malformed are rejected as well. A field that nginx ignores for its name is ignored. The response
//! to a request is not decided here.

use std::fmt;

use super::hpack::{Decoded, Faults, NameKind};
use crate::Span;
use crate::h1::Field;
use crate::head::{Head, HeadRefusal, HeadSpans};
use crate::header::{KnownField, KnownSet};
use crate::host;

/// `$server_protocol` of HTTP/2, as in nginx.
pub const PROTOCOL: &[u8] = b"HTTP/2.0";

/// Limits and rules for a request's head, from nginx's directives.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Maximum length of a name or value, in bytes: the size of one buffer of
    /// `large_client_header_buffers`.
    pub field_size_max: usize,
    /// Maximum length of all names and values, in bytes: the size of all of those buffers.
    pub head_size_max: usize,
    /// `max_headers`: maximum number of header fields.
    pub fields_max: usize,
    /// `ignore_invalid_headers`: fields with unusual names are ignored.
    pub ignore_invalid: bool,
    /// `underscores_in_headers`: `_` is allowed in names.
    pub underscores: bool,
    /// `merge_slashes`: adjacent slashes of a path are merged.
    pub merge_slashes: bool,
    /// Whether extended CONNECT is allowed (RFC 8441); its head is converted to the equivalent
    /// HTTP/1 request for an upgrade.
    pub extended_connect: bool,
}

/// The rules of the virtual servers, if they differ.
#[derive(Clone, Copy)]
pub struct NamedRules<'a> {
    /// The largest `max_headers` of all servers.
    pub fields_max: usize,
    /// Returns the rules of the server with this name (in any case), or `None` to keep the current
    /// rules.
    pub of_host: &'a dyn Fn(&[u8]) -> Option<Rules>,
}

/// Why a request is rejected. The response is 400 unless [`HeadFault::status`] says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadFault {
    /// An invalid field name.
    Name(Span),
    /// An invalid field value: the name and the value.
    Value(Span, Span),
    /// A pseudo-header field after a regular field.
    OutOfOrder,
    /// A pseudo-header field that is not defined for requests.
    Unknown(Span),
    /// A pseudo-header field that occurs twice.
    Duplicate(&'static str),
    /// A pseudo-header field without a value.
    Empty(&'static str),
    /// A missing pseudo-header field.
    Missing(&'static str),
    /// An invalid method.
    Method(Span),
    /// An invalid scheme.
    Scheme(Span),
    /// An invalid path.
    Path(Span),
    /// An invalid `:authority`.
    Authority,
    /// An invalid Host field, or more than one.
    Host,
    /// `:authority` and Host differ.
    TwoHosts,
    /// Neither `:authority` nor `host` names a host.
    NoHost,
    /// A connection-specific field, which HTTP/2 forbids.
    OfConnection(&'static str),
    /// A TE field with a value other than `trailers`.
    Te,
    /// An invalid Content-Length, or more than one.
    ContentLength,
    /// A repeated field that must be unique: name and value, then those of the first occurrence.
    Twice([Span; 2], [Span; 2]),
    /// More fields than `max_headers`.
    TooMany,
    /// CONNECT without a protocol, which is not supported.
    Connect,
    /// The method is TRACE, which is refused.
    Trace,
}

impl HeadFault {
    /// The status of the response.
    pub fn status(self) -> u16 {
        match self {
            HeadFault::TooMany => 494,
            HeadFault::Connect | HeadFault::Trace => 405,
            _ => 400,
        }
    }

    /// Whether the request is malformed in the sense of the RFC, so that its stream is reset after
    /// the response.
    pub fn is_malformed(self) -> bool {
        !matches!(
            self,
            HeadFault::TooMany | HeadFault::Twice(..) | HeadFault::Connect | HeadFault::Trace
        )
    }

    /// The log message; `bytes` are those of the head.
    pub fn words(self, bytes: &[u8]) -> Vec<u8> {
        let quoted = |before: &str, span: Span| {
            [
                b"client sent ",
                before.as_bytes(),
                b": \"",
                span.of(bytes),
                b"\"",
            ]
            .concat()
        };
        match self {
            HeadFault::Name(name) => quoted("invalid header name", name),
            HeadFault::Value(name, value) => [
                b"client sent header \"",
                name.of(bytes),
                b"\" with invalid value: \"",
                value.of(bytes),
                b"\"",
            ]
            .concat(),
            HeadFault::Unknown(name) => [
                b"client sent unknown pseudo-header \"",
                name.of(bytes),
                b"\"",
            ]
            .concat(),
            HeadFault::Method(method) => quoted("invalid method", method),
            HeadFault::Scheme(scheme) => quoted("invalid :scheme header", scheme),
            HeadFault::Path(path) => quoted("invalid :path header", path),
            HeadFault::Twice([name, value], [first_name, first_value]) => [
                b"client sent duplicate header line: \"",
                name.of(bytes),
                b": ",
                value.of(bytes),
                b"\", previous value: \"",
                first_name.of(bytes),
                b": ",
                first_value.of(bytes),
                b"\"",
            ]
            .concat(),
            fixed => fixed.to_string().into_bytes(),
        }
    }
}

impl fmt::Display for HeadFault {
    /// The log message without data from the client.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeadFault::Name(_) => write!(out, "client sent invalid header name"),
            HeadFault::Value(..) => write!(out, "client sent header with invalid value"),
            HeadFault::OutOfOrder => write!(out, "client sent out of order pseudo-headers"),
            HeadFault::Unknown(_) => write!(out, "client sent unknown pseudo-header"),
            HeadFault::Duplicate(name) => write!(out, "client sent duplicate {name} header"),
            HeadFault::Empty(name) => write!(out, "client sent empty {name} header"),
            HeadFault::Missing(name) => write!(out, "client sent no {name} header"),
            HeadFault::Method(_) => write!(out, "client sent invalid method"),
            HeadFault::Scheme(_) => write!(out, "client sent invalid :scheme header"),
            HeadFault::Path(_) => write!(out, "client sent invalid :path header"),
            HeadFault::Authority => write!(out, "client sent invalid \":authority\" header"),
            HeadFault::Host => write!(out, "client sent invalid host header"),
            HeadFault::TwoHosts => write!(
                out,
                "client sent \":authority\" and \"Host\" headers with different values"
            ),
            HeadFault::NoHost => write!(
                out,
                "client sent neither \":authority\" nor \"Host\" header"
            ),
            HeadFault::OfConnection(name) => write!(out, "client sent \"{name}\" header"),
            HeadFault::Te => write!(out, "client sent invalid \"TE\" header"),
            HeadFault::ContentLength => {
                write!(out, "client sent invalid \"Content-Length\" header")
            }
            HeadFault::Twice(..) => write!(out, "client sent duplicate header line"),
            HeadFault::TooMany => write!(out, "client sent too many header lines"),
            HeadFault::Connect => write!(out, "client sent CONNECT method"),
            HeadFault::Trace => write!(out, "client sent TRACE method"),
        }
    }
}

/// The head exceeds the limits: as in nginx, the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

/// Metadata of a request that are not in its [`Head`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestMetadata {
    /// The value of `content-length`.
    pub content_length: Option<u64>,
    /// The protocol of an extended CONNECT (RFC 8441).
    pub protocol: Option<Span>,
}

/// Collects the fields of one header block.
///
/// As in nginx, once a field names the server, the following fields are subject to that server's
/// rules. The limits of size remain those of the default server.
pub struct HeadReader<'a> {
    head: &'a mut Head,
    rules: Rules,
    named: Option<NamedRules<'a>>,
    /// `merge_slashes` of the server that was selected when `:path` was received.
    merge_slashes: bool,
    method: Option<Span>,
    scheme: Option<Span>,
    path: Option<Span>,
    authority: Option<Span>,
    protocol: Option<Span>,
    size: usize,
    cookies: usize,
    in_fields: bool,
    fault: Option<HeadFault>,
    too_large: bool,
}

impl<'a> HeadReader<'a> {
    /// A reader into `head`, which is cleared.
    pub fn new(head: &'a mut Head, rules: &Rules, named: Option<NamedRules<'a>>) -> HeadReader<'a> {
        head.clear();
        HeadReader {
            head,
            rules: *rules,
            named,
            merge_slashes: rules.merge_slashes,
            method: None,
            scheme: None,
            path: None,
            authority: None,
            protocol: None,
            size: 0,
            cookies: 0,
            in_fields: false,
            fault: None,
            too_large: false,
        }
    }

    /// Adds a field, whose spans refer to `bytes`.
    #[inline]
    pub fn take(&mut self, field: Decoded, bytes: &[u8]) {
        let (name, value) = (field.name.len(), field.value.len());
        self.size += name + value;
        self.too_large |=
            name.max(value) > self.rules.field_size_max || self.size > self.rules.head_size_max;
        if self.fault.is_some() {
            return;
        }
        let judged = match field.which {
            NameKind::Field(known) => self.take_field(field, known, bytes),
            _ => self.take_pseudo(field, bytes),
        };
        self.fault = judged.err();
    }

    #[inline]
    fn take_field(
        &mut self,
        field: Decoded,
        known: KnownField,
        bytes: &[u8],
    ) -> Result<(), HeadFault> {
        self.in_fields = true;
        if !field.faults.is_none() && !self.is_kept(field)? {
            self.head.ignore(field.name);
            return Ok(());
        }
        if let Some(name) = of_connection(known) {
            return Err(HeadFault::OfConnection(name));
        }
        match known {
            KnownField::Cookie => self.cookies += 1,
            // A repeated Content-Length makes the request malformed, which `content_length` reports
            // at the end.
            known
                if known != KnownField::ContentLength
                    && KnownSet::UNIQUE.contains(known)
                    && self.head.has(known) =>
            {
                return Err(self.twice(field, known));
            }
            // As in nginx, Cookie fields do not count.
            _ if self.head.fields().len() - self.cookies >= self.rules.fields_max => {
                return Err(HeadFault::TooMany);
            }
            _ => {}
        }
        self.head.push(Field {
            name: field.name,
            value: field.value,
            known,
        });
        if known == KnownField::Host && self.authority.is_none_or(Span::is_empty) {
            self.choose_rules(field.value, bytes);
        }
        Ok(())
    }

    /// Adopts the rules of the server with this name. An invalid name is reported at the end of the
    /// head.
    #[inline]
    fn choose_rules(&mut self, name: Span, bytes: &[u8]) {
        let Some(named) = self.named else {
            return;
        };
        let value = name.of(bytes);
        let host = host::validate(value).ok();
        if let Some(rules) = host.and_then(|host| (named.of_host)(host.name.of(value))) {
            self.rules = Rules {
                field_size_max: self.rules.field_size_max,
                head_size_max: self.rules.head_size_max,
                ..rules
            };
        }
    }

    /// The fault of a repeated field.
    #[cold]
    fn twice(&self, field: Decoded, known: KnownField) -> HeadFault {
        let first = self.head.all(known).next();
        let first = first.map_or([field.name, field.value], |first| [first.name, first.value]);
        HeadFault::Twice([field.name, field.value], first)
    }

    /// Whether a field with faults is kept, as in nginx.
    #[cold]
    fn is_kept(&self, field: Decoded) -> Result<bool, HeadFault> {
        if field.faults.has(BAD_NAME) {
            return Err(HeadFault::Name(field.name));
        }
        if field.faults.has(BAD_VALUE) {
            return Err(HeadFault::Value(field.name, field.value));
        }
        let unusual = field.faults.has(Faults::NAME_UNUSUAL)
            || field.faults.has(Faults::NAME_UNDERSCORE) && !self.rules.underscores;
        Ok(!unusual || !self.rules.ignore_invalid)
    }

    fn take_pseudo(&mut self, field: Decoded, bytes: &[u8]) -> Result<(), HeadFault> {
        if self.in_fields {
            return Err(HeadFault::OutOfOrder);
        }
        if field.faults.has(BAD_VALUE) {
            return Err(HeadFault::Value(field.name, field.value));
        }
        let (place, name) = match field.which {
            NameKind::Method => (&mut self.method, ":method"),
            NameKind::Scheme => (&mut self.scheme, ":scheme"),
            NameKind::Path => (&mut self.path, ":path"),
            NameKind::Authority => (&mut self.authority, "\":authority\""),
            NameKind::Protocol if self.rules.extended_connect => (&mut self.protocol, ":protocol"),
            _ => return Err(HeadFault::Unknown(field.name)),
        };
        if place.is_some() {
            return Err(HeadFault::Duplicate(name));
        }
        if field.value.is_empty() && !matches!(field.which, NameKind::Authority) {
            return Err(HeadFault::Empty(name));
        }
        *place = Some(field.value);
        let value = field.value;
        match field.which {
            NameKind::Method if field.static_index.is_none() && !is_method(value.of(bytes)) => {
                Err(HeadFault::Method(value))
            }
            NameKind::Scheme if field.static_index.is_none() && !is_scheme(value.of(bytes)) => {
                Err(HeadFault::Scheme(value))
            }
            NameKind::Path if !is_target(value.of(bytes)) => Err(HeadFault::Path(value)),
            NameKind::Path => {
                self.merge_slashes = self.rules.merge_slashes;
                Ok(())
            }
            NameKind::Authority => {
                self.choose_rules(value, bytes);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Completes the head at the end of the block: returns the request's metadata, or why the
    /// request is rejected. Appends derived text, such as the request line, to `bytes`. `is_whole`
    /// says whether the block was decoded completely.
    ///
    /// # Errors
    /// [`TooLarge`] ends the connection, a [`HeadFault`] only the request.
    pub fn finish(
        mut self,
        bytes: &mut Vec<u8>,
        is_whole: bool,
    ) -> Result<Result<RequestMetadata, HeadFault>, TooLarge> {
        if self.too_large || !is_whole {
            return Err(TooLarge);
        }
        let judged = self.judge(bytes);
        if judged.is_err() && self.head.line().is_empty() {
            // Logs and the error page need what is known of the request, and belong to the server
            // that was named before the fault.
            let host = self.head.all(KnownField::Host).next();
            let host = host.map(|field| field.value);
            let places = HeadSpans {
                method: self.method.unwrap_or_default(),
                target: self.path.unwrap_or_default(),
                authority: self.authority.or(host),
            };
            self.head.remove(KnownField::Host);
            let _ = self
                .head
                .settle(places, PROTOCOL, self.merge_slashes, bytes);
        }
        Ok(judged)
    }

    fn judge(&mut self, bytes: &mut Vec<u8>) -> Result<RequestMetadata, HeadFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let method = self.method.ok_or(HeadFault::Missing(":method"))?;
        let is_connect = method.of(bytes) == b"CONNECT";
        self.scheme.ok_or(HeadFault::Missing(":scheme"))?;
        let target = self.path.ok_or(HeadFault::Missing(":path"))?;
        if self.protocol.is_some() && !is_connect {
            return Err(HeadFault::Unknown(self.protocol.unwrap_or_default()));
        }
        self.join_cookies(bytes);
        self.name_host(bytes)?;
        let method = match self.protocol {
            Some(protocol) => self.ask_for_upgrade(protocol, bytes),
            None => method,
        };
        let places = HeadSpans {
            method,
            target,
            authority: self.authority,
        };
        self.head
            .settle(places, PROTOCOL, self.merge_slashes, bytes)
            .map_err(|refused| match refused {
                HeadRefusal::Target => HeadFault::Path(target),
                HeadRefusal::Host if self.authority.is_some() => HeadFault::Authority,
                HeadRefusal::Host => HeadFault::Host,
            })?;
        let mut te = self.head.all(KnownField::Te);
        if let Some(first) = te.next()
            && (te.next().is_some() || !first.value(bytes).eq_ignore_ascii_case(b"trailers"))
        {
            return Err(HeadFault::Te);
        }
        let content_length = self.content_length(bytes)?;
        match method.of(bytes) {
            b"CONNECT" => return Err(HeadFault::Connect),
            b"TRACE" => return Err(HeadFault::Trace),
            _ => {}
        }
        Ok(RequestMetadata {
            content_length,
            protocol: self.protocol,
        })
    }

    /// Converts extended CONNECT to the equivalent HTTP/1 request: GET with Upgrade. Removes
    /// `sec-websocket-key`, which has no meaning in HTTP/2 (RFC 8441, section 5). Returns the
    /// method.
    fn ask_for_upgrade(&mut self, protocol: Span, bytes: &mut Vec<u8>) -> Span {
        self.head.remove(KnownField::SecWebsocketKey);
        let mut place = |text: &[u8]| {
            let start = bytes.len();
            bytes.extend_from_slice(text);
            Span::new(start, bytes.len())
        };
        self.head.push(Field {
            name: place(b"upgrade"),
            value: protocol,
            known: KnownField::Upgrade,
        });
        self.head.push(Field {
            name: place(b"connection"),
            value: place(b"Upgrade"),
            known: KnownField::Connection,
        });
        place(b"GET")
    }

    /// Joins several Cookie fields into one, at the end, as in nginx (RFC 9113, section 8.2.3).
    fn join_cookies(&mut self, bytes: &mut Vec<u8>) {
        let is_last = |head: &Head| head.fields().last().map(|field| field.known);
        if self.cookies == 0 || self.cookies == 1 && is_last(self.head) == Some(KnownField::Cookie)
        {
            return;
        }
        let crumbs: Vec<Field> = self.head.all(KnownField::Cookie).copied().collect();
        self.head.remove(KnownField::Cookie);
        let Some(first) = crumbs.first() else {
            return;
        };
        let mut joined = *first;
        if crumbs.len() > 1 {
            let start = bytes.len();
            for (number, crumb) in crumbs.iter().enumerate() {
                if number > 0 {
                    bytes.extend_from_slice(b"; ");
                }
                bytes.extend_from_within(crumb.value.start as usize..crumb.value.end as usize);
            }
            joined.value = Span::new(start, bytes.len());
        }
        self.head.push(joined);
    }

    /// Adds a Host field with the value of `:authority`, for readers that know only Host. Rejects a
    /// request in which the two differ.
    fn name_host(&mut self, bytes: &mut Vec<u8>) -> Result<(), HeadFault> {
        let mut hosts = self.head.all(KnownField::Host);
        let (host, second) = (hosts.next().copied(), hosts.next().copied());
        drop(hosts);
        if second.is_some() {
            return Err(HeadFault::Host);
        }
        match (self.authority, host) {
            (None, None) => Err(HeadFault::NoHost),
            (Some(authority), _) if authority.is_empty() && host.is_none() => {
                Err(HeadFault::Authority)
            }
            (Some(authority), Some(host)) if authority.of(bytes) != host.value(bytes) => {
                Err(HeadFault::TwoHosts)
            }
            (Some(authority), None) => {
                let start = bytes.len();
                bytes.extend_from_slice(b"host");
                self.head.push(Field {
                    name: Span::new(start, bytes.len()),
                    value: authority,
                    known: KnownField::Host,
                });
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn content_length(&self, bytes: &[u8]) -> Result<Option<u64>, HeadFault> {
        let mut lengths = self.head.all(KnownField::ContentLength);
        let Some(first) = lengths.next() else {
            return Ok(None);
        };
        let value = first.value(bytes);
        let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let number = std::str::from_utf8(value)
            .ok()
            .and_then(|text| text.parse::<i64>().ok());
        match number {
            Some(number) if digits && lengths.next().is_none() => Ok(u64::try_from(number).ok()),
            _ => Err(HeadFault::ContentLength),
        }
    }
}

/// Faults that no field name may have.
const BAD_NAME: Faults = Faults::NAME_EMPTY
    .or(Faults::NAME_CAPITAL)
    .or(Faults::NAME_INVALID)
    .or(Faults::NAME_NOT_ASCII);

/// Faults that no field value may have.
const BAD_VALUE: Faults = Faults::VALUE_INVALID.or(Faults::VALUE_SPACE);

/// The name of a connection-specific field, which HTTP/2 forbids (RFC 9113, section 8.2.2).
fn of_connection(known: KnownField) -> Option<&'static str> {
    match known {
        KnownField::Connection => Some("Connection"),
        KnownField::KeepAlive => Some("Keep-Alive"),
        KnownField::ProxyConnection => Some("Proxy-Connection"),
        KnownField::TransferEncoding => Some("Transfer-Encoding"),
        KnownField::Upgrade => Some("Upgrade"),
        _ => None,
    }
}

/// Whether a field is allowed in trailers: not a pseudo-header field, and nothing that makes a
/// message malformed (RFC 9113, sections 8.1 to 8.2.2).
pub fn may_trail(field: Decoded) -> bool {
    match field.which {
        NameKind::Field(known) => {
            !field.faults.has(BAD_NAME.or(BAD_VALUE)) && of_connection(known).is_none()
        }
        _ => false,
    }
}

/// Whether nginx accepts the name as a method.
fn is_method(name: &[u8]) -> bool {
    name.iter()
        .all(|byte| matches!(byte, b'A'..=b'Z' | b'_' | b'-'))
}

fn is_scheme(scheme: &[u8]) -> bool {
    scheme.iter().enumerate().all(|(at, byte)| match byte {
        b'a'..=b'z' | b'A'..=b'Z' => true,
        b'0'..=b'9' | b'+' | b'-' | b'.' => at > 0,
        _ => false,
    })
}

/// Whether the target begins with a slash and contains no character that would end an HTTP/1
/// request line, nor a fragment, which some upstreams would cut off.
fn is_target(target: &[u8]) -> bool {
    target.first() == Some(&b'/')
        && target
            .iter()
            .all(|byte| *byte > b' ' && !matches!(*byte, b'#' | 0x7f))
}
