//! The head of a request, request line and header fields, validated as the bytes arrive.

use super::Version;
use super::error::HeadError;
use super::field::{Field, FieldReader, Progress, Rules};
use super::lines::PlainLines;
use super::request_line::RequestLine;
use crate::header::{KnownField, KnownSet};
use crate::host::{self, Host};
use crate::method::Method;
use crate::{Span, uri};

/// The directives that limit the parsing of a head. They belong to a virtual server, which is known
/// only after the host has been parsed: see [`parse_head_for`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `client_header_buffer_size`, in bytes: a head that fits needs no large buffer.
    pub buffer_size: usize,
    /// `large_client_header_buffers`, the number.
    pub large_buffers: usize,
    /// `large_client_header_buffers`, the size in bytes: the maximum length of a line, unless it
    /// fits into the first buffer.
    pub large_buffer_size: usize,
    /// `max_headers`: maximum number of header lines of a request.
    pub headers_max: usize,
    /// `ignore_invalid_headers`: header lines with doubtful names are ignored.
    pub ignore_invalid_headers: bool,
    /// `underscores_in_headers`: a name with `_` is not doubtful.
    pub underscores_in_headers: bool,
    /// `merge_slashes`, always of the default server.
    pub merge_slashes: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            buffer_size: 1024,
            large_buffers: 4,
            large_buffer_size: 8192,
            headers_max: 1000,
            ignore_invalid_headers: true,
            underscores_in_headers: false,
            merge_slashes: true,
        }
    }
}

/// What the client requests for the connection, by the last `Connection` header with a known
/// option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connection {
    /// No known option: the version decides.
    #[default]
    Default,
    /// `Connection: close`.
    Close,
    /// `Connection: keep-alive`.
    KeepAlive,
}

/// The name that selects the virtual server: from an absolute target, else from `Host`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerName {
    /// The name as sent, without the port and a trailing dot.
    pub name: Span,
    /// The port that was sent with the name, or 0.
    pub port: u16,
    /// Whether the name must be converted to lower case before the lookup.
    pub has_capitals: bool,
}

/// A request head, as spans of the caller's bytes, with the state of the parser.
///
/// One value is reused for all requests of a connection: after a complete head, the next call of
/// [`parse_head`] starts a new one, and keeps the memory. After an error, the caller must call
/// [`Head::clear`]; until then the head still holds what was parsed.
#[derive(Default)]
pub struct Head {
    phase: Phase,
    /// Offset up to which the bytes have been parsed.
    at: usize,
    line: RequestLine,
    reader: FieldReader,
    room: HeadBuffers,
    /// The limits of the virtual server, if it is known and has its own.
    server_limits: Option<Limits>,
    fields: Vec<Field>,
    ignored: Vec<Span>,
    known: KnownSet,
    server: Option<ServerName>,
    connection: Connection,
    /// The normalised path of a complex target.
    path: Vec<u8>,
    parts: uri::Parts,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    /// Within the request line.
    #[default]
    Line,
    /// The request line is complete; the target is being normalised.
    Target,
    /// The path is known; the host of an absolute target is being validated.
    Authority,
    Fields,
    Done,
}

/// The fields that the head itself interprets, or that may occur only once.
const CHECKED: KnownSet = KnownSet::UNIQUE
    .with(KnownField::Host)
    .with(KnownField::Connection);

/// Parses a head from all bytes received since its beginning: each call passes the same bytes
/// again, with more after them. Line breaks before the head belong to it. Returns the head's length
/// once it is complete, `None` if more bytes are needed.
///
/// # Errors
/// The first error in the head, as soon as its byte is received.
pub fn parse_head(
    bytes: &[u8],
    limits: &Limits,
    head: &mut Head,
) -> Result<Option<usize>, HeadError> {
    parse_head_for(bytes, limits, head, |_| Ok(None))
}

/// [`parse_head`] for virtual servers with different limits. `server` is called once, as soon as
/// the server's name is known, with that name (in the case sent). It returns the limits for the
/// rest of the head, if they differ, or an error if the request is refused for this name.
///
/// # Errors
/// As [`parse_head`], and the errors of `server`.
pub fn parse_head_for(
    bytes: &[u8],
    limits: &Limits,
    head: &mut Head,
    mut server: impl FnMut(&[u8]) -> Result<Option<Limits>, HeadError>,
) -> Result<Option<usize>, HeadError> {
    // Offsets have 32 bits; no realistic limit reaches that.
    let bytes = bytes.get(..u32::MAX as usize).unwrap_or(bytes);
    if head.phase == Phase::Done {
        head.clear();
    }
    if head.phase == Phase::Line {
        if !head.read_line(bytes, limits, &mut server)? {
            return Ok(None);
        }
        head.phase = if head.version() == Version::Http09 {
            Phase::Done
        } else {
            Phase::Fields
        };
    }
    if head.phase == Phase::Fields {
        if !head.read_fields(bytes, limits, &mut server)? {
            return Ok(None);
        }
        head.phase = Phase::Done;
    }
    Ok(Some(head.at))
}

impl Head {
    /// Allocated memory, in bytes.
    pub fn memory(&self) -> usize {
        let fields = self.fields.capacity() * size_of::<Field>();
        self.path.capacity() + fields + self.ignored.capacity() * size_of::<Span>()
    }

    /// Resets everything except the allocated memory.
    pub fn clear(&mut self) {
        // The fields are listed by name, so that a new field does not compile before it is reset
        // here.
        let Head {
            phase,
            at,
            line,
            reader,
            room,
            server_limits,
            fields,
            ignored,
            known,
            server,
            connection,
            path,
            parts,
        } = self;
        fields.clear();
        ignored.clear();
        path.clear();
        *phase = Phase::default();
        *at = 0;
        *line = RequestLine::default();
        *reader = FieldReader::default();
        *room = HeadBuffers::default();
        *server_limits = None;
        *known = KnownSet::default();
        *server = None;
        *connection = Connection::default();
        *parts = uri::Parts::default();
    }

    /// The method.
    pub fn method(&self) -> Method {
        self.line.method
    }

    /// The method's name as sent.
    pub fn method_name<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        Span {
            start: self.line.start,
            end: self.line.method_end,
        }
        .of(bytes)
    }

    /// The version. HTTP/1.0 until the request line is complete, so that an error response to the
    /// line has a head, as in nginx.
    pub fn version(&self) -> Version {
        self.line.version()
    }

    /// Whether the version is exactly 1.1.
    pub(super) fn is_exactly_http11(&self) -> bool {
        (self.line.major, self.line.minor) == (1, 1)
    }

    /// The version as sent (`$server_protocol`); empty in HTTP/0.9.
    pub fn protocol<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        self.line.protocol.of(bytes)
    }

    /// Whether the protocol name has begun: if the line ends within it, the name is empty, not
    /// missing.
    pub fn has_protocol(&self) -> bool {
        self.line.protocol.start > 0
    }

    /// The request line without its line break (`$request`). If the line is invalid or incomplete,
    /// as much as was received.
    pub fn request_line<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        if self.has_method() {
            return Span {
                start: self.line.start,
                end: self.line.end,
            }
            .of(bytes);
        }
        let line = bytes.get(self.line.start as usize..).unwrap_or_default();
        line.get(..memchr::memchr2(b'\r', b'\n', line).unwrap_or(line.len()))
            .unwrap_or_default()
    }

    /// The target as sent (`$request_uri`): path, query and fragment, without the authority of an
    /// absolute target.
    pub fn target<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        self.line.target.of(bytes)
    }

    /// The decoded and normalised path (`$uri`).
    pub fn path<'a>(&'a self, bytes: &'a [u8]) -> &'a [u8] {
        if self.line.complex {
            &self.path
        } else {
            self.line.path_span().of(bytes)
        }
    }

    /// The query (`$args`), as a span of the bytes; `None` where the target has no `?`.
    pub fn args(&self) -> Option<Span> {
        if !self.line.complex {
            return self.line.args_span();
        }
        let base = self.line.target.start;
        self.parts.args.map(|args| Span {
            start: base + args.start,
            end: base + args.end,
        })
    }

    /// The extension of the path's last segment, as a span of the path.
    pub fn extension(&self) -> Option<Span> {
        if self.line.complex {
            return self.parts.extension;
        }
        let base = self.line.target.start;
        self.line.extension_span().map(|span| Span {
            start: span.start - base,
            end: span.end - base,
        })
    }

    /// Whether the path contains a percent-encoded byte.
    pub fn has_escapes(&self) -> bool {
        self.parts.quoted
    }

    /// Whether the path contains a `+`.
    pub fn has_plus(&self) -> bool {
        self.line.plus || self.parts.plus
    }

    /// Whether the target as sent can be forwarded unchanged; false for an absolute target with a
    /// query but without a path.
    pub fn has_valid_target(&self) -> bool {
        !self.line.empty_path
    }

    /// The scheme of an absolute target.
    pub fn scheme<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        (!self.line.scheme.is_empty()).then(|| self.line.scheme.of(bytes))
    }

    /// Host and port as sent, of an absolute target or of CONNECT.
    pub fn authority<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        self.line.authority.map(|authority| authority.of(bytes))
    }

    /// The name that selects the virtual server; `None` if the request names none.
    pub fn server_name(&self) -> Option<ServerName> {
        self.server
    }

    /// What the `Connection` headers request.
    pub fn connection(&self) -> Connection {
        self.connection
    }

    /// Whether the client wants the connection to stay open after this request. Never after
    /// CONNECT, whose connection becomes a tunnel.
    pub fn keeps_alive(&self) -> bool {
        match self.connection {
            _ if self.method() == Method::Connect => false,
            Connection::Default => self.version() == Version::Http11,
            Connection::Close => false,
            Connection::KeepAlive => true,
        }
    }

    /// The header fields in the order received.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Header lines that were ignored because of their names, for the log (`client sent invalid
    /// header line: "…"`).
    pub fn ignored(&self) -> &[Span] {
        &self.ignored
    }

    /// Whether a header field with this name was received.
    pub fn has(&self, known: KnownField) -> bool {
        self.known.contains(known)
    }

    /// The first header field with this name.
    pub fn find(&self, known: KnownField) -> Option<Field> {
        if !self.has(known) {
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
        let fields = if self.has(known) {
            &self.fields[..]
        } else {
            &[]
        };
        fields
            .iter()
            .filter(move |field| field.known == known)
            .copied()
    }

    /// Whether a byte of the request line was received, so that a request has begun.
    pub fn has_begun(&self) -> bool {
        self.line.begun()
    }

    /// Whether the request line was received as a whole, so that its first word is the method.
    pub fn has_method(&self) -> bool {
        self.phase != Phase::Line
    }

    /// Whether the target was parsed into path and query.
    pub fn has_path(&self) -> bool {
        !matches!(self.phase, Phase::Line | Phase::Target)
    }

    /// Whether the request line is complete and valid.
    pub fn has_request_line(&self) -> bool {
        matches!(self.phase, Phase::Fields | Phase::Done)
    }

    /// Number of bytes of line breaks before the request line. If nothing else was received, the
    /// caller may discard them and clear the head: nginx accepts any number.
    pub fn leading(&self) -> usize {
        if self.line.begun() {
            self.line.start as usize
        } else {
            self.at
        }
    }

    /// Number of bytes parsed so far, including leading line breaks; the length of the head once it
    /// is complete.
    #[allow(clippy::len_without_is_empty)] // A complete head is never empty.
    pub fn len(&self) -> usize {
        self.at
    }

    /// Length of the head without leading line breaks, in bytes: its part of `$request_length`. Of
    /// an incomplete head, only complete lines count.
    pub fn request_length(&self) -> usize {
        let end = match self.phase {
            Phase::Line => return 0,
            Phase::Fields if self.reader.within_line() => self.reader.start,
            _ => self.at,
        };
        end.saturating_sub(self.leading())
    }

    fn read_line(
        &mut self,
        bytes: &[u8],
        limits: &Limits,
        server: &mut impl FnMut(&[u8]) -> Result<Option<Limits>, HeadError>,
    ) -> Result<bool, HeadError> {
        if !self.line.begun() {
            // Any number of line breaks may precede the request line; nginx reuses its buffer for
            // them.
            while matches!(bytes.get(self.at), Some(b'\r' | b'\n')) {
                self.at += 1;
            }
            self.room = HeadBuffers::first(limits, self.at);
        }
        let start = if self.line.begun() {
            self.line.start as usize
        } else {
            self.at
        };
        let end = start
            .saturating_add(self.room.line_max(limits))
            .min(bytes.len());
        if !self
            .line
            .advance(bytes.get(..end).unwrap_or(bytes), &mut self.at)?
        {
            if end.saturating_sub(start) >= self.room.line_max(limits) {
                return Err(HeadError::LineTooLong);
            }
            return Ok(false);
        }
        self.room.take(self.at - start, limits);
        self.phase = Phase::Target;
        self.read_target(bytes, limits)?;
        self.phase = Phase::Authority;
        if let Some(authority) = self.line.authority {
            let host = host::validate(authority.of(bytes))
                .map_err(|_| HeadError::InvalidHostInRequestLine)?;
            self.set_server(authority, host, bytes, server)?;
        }
        Ok(true)
    }

    /// Normalises the target's path; a target that is not complex is its own path.
    #[inline]
    fn read_target(&mut self, bytes: &[u8], limits: &Limits) -> Result<(), HeadError> {
        if self.line.complex {
            let target = self.line.target.of(bytes);
            self.parts = uri::normalise(target, limits.merge_slashes, &mut self.path)
                .map_err(|uri::BadUri| HeadError::InvalidUri)?;
        }
        Ok(())
    }

    fn read_fields(
        &mut self,
        bytes: &[u8],
        default_limits: &Limits,
        server: &mut impl FnMut(&[u8]) -> Result<Option<Limits>, HeadError>,
    ) -> Result<bool, HeadError> {
        let mut limits = self.server_limits.unwrap_or(*default_limits);
        loop {
            if !self.reader.within_line() {
                self.read_plain_fields(bytes, &mut limits, server)?;
            }
            let rules = Rules {
                underscores: limits.underscores_in_headers,
                repeated_status_line: false,
            };
            let start = if self.reader.within_line() {
                self.reader.start
            } else {
                self.at
            };
            let line_max = self.room.line_max(&limits);
            let end = start.saturating_add(line_max).min(bytes.len());
            let progress = self
                .reader
                .advance(bytes.get(..end).unwrap_or(bytes), &mut self.at, rules)
                .map_err(HeadError::InvalidHeader)?;
            match progress {
                Progress::End => return Ok(true),
                Progress::More if end.saturating_sub(start) >= line_max => {
                    return Err(self.too_long(end));
                }
                Progress::More => return Ok(false),
                Progress::Line => {
                    self.room.take(self.at - start, &limits);
                    self.add_field(bytes, &mut limits, server)?;
                }
            }
        }
    }

    /// Stores header lines as long as they are plain, complete and within the limits. The first
    /// other line is left unread.
    #[inline]
    fn read_plain_fields(
        &mut self,
        bytes: &[u8],
        limits: &mut Limits,
        server: &mut impl FnMut(&[u8]) -> Result<Option<Limits>, HeadError>,
    ) -> Result<(), HeadError> {
        let mut lines = PlainLines::new(bytes);
        let (mut at, mut room, mut known) = (self.at, self.room, self.known);
        let mut last = None;
        while let Some(line) = lines.at(at) {
            let length = line.next - at;
            let fits = length <= room.left || length <= room.line_max(limits);
            if !fits || self.fields.len() >= limits.headers_max {
                break;
            }
            room.take(length, limits);
            let field = Field::plain(at, line, bytes);
            last = Some((at, line));
            at = line.next;
            if CHECKED.contains(field.known) {
                (self.at, self.room, self.known) = (at, room, known);
                self.reader.take(last);
                self.check_field(field, bytes, limits, server)?;
            }
            known.insert(field.known);
            self.fields.push(field);
        }
        (self.at, self.room, self.known) = (at, room, known);
        self.reader.take(last);
        Ok(())
    }

    /// Validates and stores the line that was just parsed.
    fn add_field(
        &mut self,
        bytes: &[u8],
        limits: &mut Limits,
        server: &mut impl FnMut(&[u8]) -> Result<Option<Limits>, HeadError>,
    ) -> Result<(), HeadError> {
        if self.reader.doubtful && limits.ignore_invalid_headers {
            self.ignored.push(self.reader.line());
            return Ok(());
        }
        if self.fields.len() >= limits.headers_max {
            return Err(HeadError::TooManyHeaders);
        }
        let field = self.reader.field(bytes);
        if CHECKED.contains(field.known) {
            self.check_field(field, bytes, limits, server)?;
        }
        self.known.insert(field.known);
        self.fields.push(field);
        Ok(())
    }

    /// Interprets a field of [`CHECKED`]. A host may change the limits to those of its server.
    fn check_field(
        &mut self,
        field: Field,
        bytes: &[u8],
        limits: &mut Limits,
        server: &mut impl FnMut(&[u8]) -> Result<Option<Limits>, HeadError>,
    ) -> Result<(), HeadError> {
        match field.known {
            KnownField::Host => {
                if let Some(previous) = self.find(KnownField::Host) {
                    return Err(HeadError::DuplicateHost { field, previous });
                }
                let set = match host::validate(field.value(bytes)) {
                    Ok(host) if self.server.is_none() => {
                        self.set_server(field.value, host, bytes, server)
                    }
                    Ok(_) => Ok(()),
                    Err(_) => Err(HeadError::InvalidHost),
                };
                if let Err(refusal) = set {
                    // Stored nevertheless: the log shows it.
                    self.known.insert(KnownField::Host);
                    self.fields.push(field);
                    return Err(refusal);
                }
                *limits = self.server_limits.unwrap_or(*limits);
            }
            KnownField::Connection => self.note_connection(field.value(bytes)),
            known => {
                if let Some(previous) = self.find(known) {
                    return Err(HeadError::DuplicateHeader { field, previous });
                }
            }
        }
        Ok(())
    }

    fn set_server(
        &mut self,
        within: Span,
        host: Host,
        bytes: &[u8],
        server: &mut impl FnMut(&[u8]) -> Result<Option<Limits>, HeadError>,
    ) -> Result<(), HeadError> {
        let name = Span {
            start: within.start + host.name.start,
            end: within.start + host.name.end,
        };
        self.server = Some(ServerName {
            name,
            port: host.port,
            has_capitals: host.has_capitals,
        });
        self.server_limits = server(name.of(bytes))?;
        Ok(())
    }

    /// As in nginx, the options may stand anywhere in the value.
    #[inline]
    fn note_connection(&mut self, value: &[u8]) {
        if value.eq_ignore_ascii_case(b"keep-alive") {
            self.connection = Connection::KeepAlive;
        } else if contains_ignoring_case(value, b"close") {
            self.connection = Connection::Close;
        } else if contains_ignoring_case(value, b"keep-alive") {
            self.connection = Connection::KeepAlive;
        }
    }

    /// The error for a line that is too long. If no part of it was received, it shows the line
    /// before, as nginx logs it.
    fn too_long(&self, end: usize) -> HeadError {
        if !self.reader.within_line() && self.fields.is_empty() && self.ignored.is_empty() {
            return HeadError::RequestTooLarge;
        }
        HeadError::HeaderTooLong(Span::new(self.reader.start, end))
    }
}

/// Whether the value contains `word`, which must be in lower case.
pub(super) fn contains_ignoring_case(value: &[u8], word: &[u8]) -> bool {
    value.eq_ignore_ascii_case(word)
        || value
            .windows(word.len())
            .any(|text| text.eq_ignore_ascii_case(word))
}

/// Simulates how the head would fill nginx's buffers: one of `buffer_size`, then up to
/// `large_buffers` large ones. A line must lie within one buffer; if it does not fit behind the
/// lines before it, it moves to the next buffer, and the rest of the previous one is lost. Nothing
/// is allocated: only the limits are the same as nginx's.
#[derive(Clone, Copy, Default)]
struct HeadBuffers {
    /// Free bytes in the current buffer.
    left: usize,
    /// Number of large buffers in use.
    large: usize,
}

impl HeadBuffers {
    /// The first buffer, which line breaks before the head have partly filled.
    fn first(limits: &Limits, leading: usize) -> HeadBuffers {
        let size = limits.buffer_size.max(1);
        // Avoids the division except for unusual clients.
        let taken = if leading < size {
            leading
        } else {
            leading % size
        };
        HeadBuffers {
            left: size - taken,
            large: 0,
        }
    }

    /// The length at which an incomplete line is too long.
    #[inline]
    fn line_max(&self, limits: &Limits) -> usize {
        let may_move = self.left < limits.large_buffer_size && self.large < limits.large_buffers;
        if may_move {
            limits.large_buffer_size
        } else {
            self.left
        }
    }

    /// Accounts for a complete line of `length` bytes.
    #[inline]
    fn take(&mut self, length: usize, limits: &Limits) {
        match self.left.checked_sub(length) {
            Some(left) => self.left = left,
            None => {
                self.large += 1;
                self.left = limits.large_buffer_size.saturating_sub(length);
            }
        }
    }
}
