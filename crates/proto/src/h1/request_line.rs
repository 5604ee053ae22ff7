//! The request line: method, target and version (RFC 9112, section 3), parsed byte by byte, so that
//! an error is reported as soon as its byte arrives, however the input is split.
//!
//! As in nginx: line breaks before the line are skipped; several spaces are accepted instead of
//! one; a bare LF ends the line, and CR must be followed by LF; a method consists of capital
//! letters, `_` and `-`; the target is in origin form (`/a`), absolute form (`http://host/a`) or,
//! for CONNECT, authority form (`host:port`); asterisk form is refused; a line without a version is
//! HTTP/0.9.
//!
//! Not here: the normalisation of the path (see [`crate::uri`]), and the validation of the host.

use super::{HeadError, Version};
use crate::method::Method;
use crate::{Span, uri};

/// The request line as far as it was parsed.
#[derive(Clone, Copy, Default)]
pub(super) struct RequestLine {
    state: State,
    /// Offset of the line's first byte, after leading line breaks.
    pub(super) start: u32,
    /// Offset of the line break; 0 until the line is complete.
    pub(super) end: u32,
    pub(super) method: Method,
    pub(super) method_end: u32,
    /// The scheme of an absolute target, such as `http`.
    pub(super) scheme: Span,
    /// Host and port of an absolute target or of CONNECT.
    pub(super) authority: Option<Span>,
    authority_start: u32,
    /// Path, query and fragment as sent. For targets without a path, the span of another slash in
    /// the line.
    pub(super) target: Span,
    /// `HTTP/1.1` as sent; empty in HTTP/0.9.
    pub(super) protocol: Span,
    /// Offset of the query, if the target is not [`RequestLine::complex`].
    args_start: Option<u32>,
    /// Offset of the extension, if the target is not complex.
    extension_start: Option<u32>,
    /// Whether the target must be normalised: it has a percent-encoded byte, a fragment, an empty
    /// segment, a segment that begins with a dot, or an empty path.
    pub(super) complex: bool,
    /// Whether the path has a `+`.
    pub(super) plus: bool,
    /// Whether the target is absolute, with a query directly after the authority.
    pub(super) empty_path: bool,
    pub(super) major: u16,
    pub(super) minor: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Start,
    Method,
    BeforeTarget,
    Scheme,
    SchemeSlash,
    SchemeSecondSlash,
    BeforeAuthority,
    AuthorityStart,
    Host,
    HostLiteral,
    HostEnd,
    PortStart,
    Port,
    /// After a slash of the path.
    SegmentStart,
    /// Within a segment of a path that is not complex.
    Segment,
    /// Within the query, or anywhere after the first complex byte of a target.
    Rest,
    BeforeVersion,
    /// Within the protocol name, of which this many bytes of `HTTP/` have been parsed.
    Protocol(u8),
    Major,
    MajorOrDot,
    Minor,
    MinorOrEnd,
    AfterVersion,
    LineEnd,
    Done,
}

/// The usual beginning and ends of a request line, which are compared as a whole.
const GET: &[u8] = b"GET ";
const HTTP_1_1: &[u8] = b"HTTP/1.1\r\n";
const HTTP_1_0: &[u8] = b"HTTP/1.0\r\n";

impl RequestLine {
    /// Parses from `at`, which it advances; true once the line is complete.
    #[inline]
    pub(super) fn advance(&mut self, bytes: &[u8], at: &mut usize) -> Result<bool, HeadError> {
        while self.state != State::Done {
            let Some(&byte) = bytes.get(*at) else {
                return Ok(false);
            };
            match self.state {
                State::Start => self.begin(bytes, at, byte)?,
                State::Method => self.method(bytes, at, byte)?,
                State::BeforeTarget => self.target_start(*at, byte)?,
                State::SegmentStart | State::Segment | State::Rest => {
                    self.path(bytes, at)?;
                    continue;
                }
                State::BeforeVersion => self.version_start(bytes, at, byte)?,
                State::LineEnd if byte != b'\n' => return Err(HeadError::InvalidRequest),
                State::LineEnd => self.end_of_line(),
                State::Scheme
                | State::SchemeSlash
                | State::SchemeSecondSlash
                | State::BeforeAuthority
                | State::AuthorityStart
                | State::Host
                | State::HostLiteral
                | State::HostEnd
                | State::PortStart
                | State::Port => self.authority(*at, byte)?,
                State::Protocol(_)
                | State::Major
                | State::MajorOrDot
                | State::Minor
                | State::MinorOrEnd
                | State::AfterVersion => self.version_digits(*at, byte)?,
                State::Done => {}
            }
            *at += 1;
        }
        if self.version() == Version::Http09 && self.method != Method::Get {
            return Err(HeadError::InvalidMethodInHttp09);
        }
        Ok(true)
    }

    /// The version; HTTP/1.0 until the line is complete.
    pub(super) fn version(&self) -> Version {
        match self.state {
            State::Done => Version::from_numbers(self.major, self.minor),
            _ => Version::Http10,
        }
    }

    /// Whether the line's first byte was received.
    pub(super) fn begun(&self) -> bool {
        self.state != State::Start
    }

    /// The path of a target that is not complex; empty until the target is complete.
    pub(super) fn path_span(&self) -> Span {
        Span {
            start: self.target.start,
            end: self.path_end(),
        }
    }

    /// The query of a target that is not complex and was received completely.
    pub(super) fn args_span(&self) -> Option<Span> {
        let end = self.target.end;
        let start = self.args_start.filter(|&start| start <= end)?;
        Some(Span { start, end })
    }

    /// The extension of a target that is not complex and was received completely.
    pub(super) fn extension_span(&self) -> Option<Span> {
        let end = self.path_end();
        let start = self.extension_start.filter(|&start| start <= end)?;
        Some(Span { start, end })
    }

    fn path_end(&self) -> u32 {
        self.args_start.map_or(self.target.end, |start| start - 1)
    }

    #[inline]
    fn begin(&mut self, bytes: &[u8], at: &mut usize, byte: u8) -> Result<(), HeadError> {
        self.start = *at as u32;
        match byte {
            b'\r' | b'\n' => {}
            b'G' if bytes.get(*at..).is_some_and(|rest| rest.starts_with(GET)) => {
                self.method = Method::Get;
                *at += GET.len() - 1;
                self.method_end = *at as u32;
                self.state = State::BeforeTarget;
            }
            b'A'..=b'Z' | b'_' | b'-' => self.state = State::Method,
            _ => {
                self.state = State::Method; // for the log, the line has begun
                return Err(HeadError::InvalidMethod);
            }
        }
        Ok(())
    }

    fn method(&mut self, bytes: &[u8], at: &mut usize, byte: u8) -> Result<(), HeadError> {
        match byte {
            b'A'..=b'Z' | b'_' | b'-' => Ok(()),
            b' ' => {
                self.method_end = *at as u32;
                self.method = Method::from_name(
                    Span {
                        start: self.start,
                        end: self.method_end,
                    }
                    .of(bytes),
                );
                self.state = match self.method {
                    Method::Connect => State::BeforeAuthority,
                    _ => State::BeforeTarget,
                };
                Ok(())
            }
            _ => Err(HeadError::InvalidMethod),
        }
    }

    #[inline]
    fn target_start(&mut self, at: usize, byte: u8) -> Result<(), HeadError> {
        match byte {
            b'/' => {
                self.target.start = at as u32;
                self.state = State::SegmentStart;
            }
            b'a'..=b'z' | b'A'..=b'Z' => {
                self.scheme.start = at as u32;
                self.state = State::Scheme;
            }
            b' ' => {}
            _ => return Err(HeadError::InvalidRequest),
        }
        Ok(())
    }

    /// Parses `http://host:port`, or `host:port` for CONNECT, up to the byte after it.
    fn authority(&mut self, at: usize, byte: u8) -> Result<(), HeadError> {
        let here = at as u32;
        self.state = match (self.state, byte) {
            (State::Scheme, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'+' | b'-' | b'.') => {
                State::Scheme
            }
            (State::Scheme, b':') => {
                self.scheme.end = here;
                State::SchemeSlash
            }
            (State::SchemeSlash, b'/') => State::SchemeSecondSlash,
            (State::SchemeSecondSlash, b'/') => State::AuthorityStart,
            (State::BeforeAuthority, b' ') => State::BeforeAuthority,
            (State::BeforeAuthority | State::AuthorityStart, b'[') => {
                self.authority_start = here;
                State::HostLiteral
            }
            (State::BeforeAuthority | State::AuthorityStart, _) => {
                self.authority_start = here;
                self.state = State::Host;
                return self.authority(at, byte);
            }
            (State::Host, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-') => State::Host,
            (State::HostLiteral, b']') => State::HostEnd,
            (State::HostLiteral, byte) if may_stand_in_literal(byte) => State::HostLiteral,
            (State::Host | State::HostEnd, b':') => State::PortStart,
            (State::PortStart | State::Port, b'0'..=b'9') => State::Port,
            (State::Port, b' ') if self.method == Method::Connect => {
                self.authority = Some(Span {
                    start: self.authority_start,
                    end: here,
                });
                State::BeforeVersion
            }
            (State::Host | State::HostEnd | State::PortStart | State::Port, _)
                if self.method != Method::Connect =>
            {
                return self.authority_end(here, byte);
            }
            _ => return Err(HeadError::InvalidRequest),
        };
        Ok(())
    }

    /// Handles the byte after the authority of an absolute target.
    fn authority_end(&mut self, here: u32, byte: u8) -> Result<(), HeadError> {
        self.authority = Some(Span {
            start: self.authority_start,
            end: here,
        });
        self.state = match byte {
            b'/' => {
                self.target.start = here;
                State::SegmentStart
            }
            b'?' => {
                self.target.start = here;
                self.complex = true;
                self.empty_path = true;
                State::Rest
            }
            b' ' => {
                // The path is `/`: uses the first slash after the scheme.
                self.target = Span {
                    start: self.scheme.end + 1,
                    end: self.scheme.end + 2,
                };
                State::BeforeVersion
            }
            _ => return Err(HeadError::InvalidRequest),
        };
        Ok(())
    }

    /// Parses the target from its path on, up to the byte after it.
    #[inline]
    fn path(&mut self, bytes: &[u8], at: &mut usize) -> Result<(), HeadError> {
        let mut state = self.state;
        let mut here = *at;
        while let Some(&byte) = bytes.get(here) {
            if uri::is_plain(byte) {
                if state == State::SegmentStart {
                    state = State::Segment;
                }
                here += 1;
                continue;
            }
            match (byte, state) {
                (b'/', State::Segment) => {
                    self.extension_start = None;
                    state = State::SegmentStart;
                }
                (b'.', State::Segment) => self.extension_start = Some(here as u32 + 1),
                (b'/' | b'.', State::SegmentStart)
                | (b'%', State::SegmentStart | State::Segment) => {
                    self.complex = true;
                    state = State::Rest;
                }
                (b'?', State::SegmentStart | State::Segment) => {
                    self.args_start = Some(here as u32 + 1);
                    state = State::Rest;
                }
                (b'+', State::SegmentStart | State::Segment) => self.plus = true,
                (b'#', _) => {
                    self.complex = true;
                    state = State::Rest;
                }
                (b' ' | b'\r' | b'\n', _) => {
                    self.target.end = here as u32;
                    state = self.target_end(here, byte);
                    here += 1;
                    break;
                }
                (0..=0x1f | 0x7f, _) => return Err(HeadError::InvalidRequest),
                _ => {}
            }
            here += 1;
        }
        *at = here;
        self.state = state;
        Ok(())
    }

    #[inline]
    fn target_end(&mut self, at: usize, byte: u8) -> State {
        match byte {
            b' ' => State::BeforeVersion,
            b'\r' => self.end_without_version(at, State::LineEnd),
            _ => self.end_without_version(at, State::Done),
        }
    }

    fn end_without_version(&mut self, at: usize, state: State) -> State {
        self.end = at as u32;
        self.minor = 9;
        state
    }

    #[inline]
    fn version_start(&mut self, bytes: &[u8], at: &mut usize, byte: u8) -> Result<(), HeadError> {
        match byte {
            b' ' => {}
            b'\r' => self.state = self.end_without_version(*at, State::LineEnd),
            b'\n' => self.state = self.end_without_version(*at, State::Done),
            b'H' => {
                self.protocol.start = *at as u32;
                self.state = State::Protocol(1);
                let rest = bytes.get(*at..).unwrap_or_default();
                let minor = u16::from(rest.starts_with(HTTP_1_1));
                if minor == 1 || rest.starts_with(HTTP_1_0) {
                    self.finish_usual(at, minor);
                }
            }
            _ => return Err(HeadError::InvalidRequest),
        }
        Ok(())
    }

    /// Ends a line with `HTTP/1.1` or `HTTP/1.0` and CR LF.
    #[inline]
    fn finish_usual(&mut self, at: &mut usize, minor: u16) {
        let start = *at;
        if self.method == Method::Connect {
            self.target = Span::new(start + 4, start + 5);
        }
        (self.major, self.minor) = (1, minor);
        self.end = (start + HTTP_1_1.len() - 2) as u32;
        self.protocol.end = self.end;
        *at = start + HTTP_1_1.len() - 1;
        self.state = State::Done;
    }

    /// Parses `HTTP/1.1` after its first byte, spaces, and the line break.
    fn version_digits(&mut self, at: usize, byte: u8) -> Result<(), HeadError> {
        self.state = match (self.state, byte) {
            (State::Protocol(seen), byte) if b"HTTP/".get(usize::from(seen)) == Some(&byte) => {
                if byte != b'/' {
                    State::Protocol(seen + 1)
                } else {
                    if self.method == Method::Connect {
                        // The path of CONNECT is `/`: uses the slash of `HTTP/`.
                        self.target = Span::new(at, at + 1);
                    }
                    State::Major
                }
            }
            (State::Major, b'1'..=b'9') | (State::MajorOrDot, b'0'..=b'9') => {
                self.major = self.major * 10 + u16::from(byte - b'0');
                if self.major > 1 {
                    return Err(HeadError::InvalidVersion);
                }
                State::MajorOrDot
            }
            (State::MajorOrDot, b'.') => State::Minor,
            (State::Minor, b'0'..=b'9') => {
                self.minor = u16::from(byte - b'0');
                State::MinorOrEnd
            }
            (State::MinorOrEnd, b'0'..=b'9') if self.minor <= 99 => {
                self.minor = self.minor * 10 + u16::from(byte - b'0');
                State::MinorOrEnd
            }
            (State::MinorOrEnd | State::AfterVersion, b' ') => State::AfterVersion,
            (State::MinorOrEnd | State::AfterVersion, b'\r') => {
                self.end_with_version(at, State::LineEnd)
            }
            (State::MinorOrEnd | State::AfterVersion, b'\n') => {
                self.end_with_version(at, State::Done)
            }
            _ => return Err(HeadError::InvalidRequest),
        };
        Ok(())
    }

    fn end_with_version(&mut self, at: usize, state: State) -> State {
        self.end = at as u32;
        if state == State::Done {
            self.protocol.end = self.end;
        }
        state
    }

    /// As in nginx, the protocol's text extends to the end of the line, including spaces, and is
    /// empty until the line is complete.
    fn end_of_line(&mut self) {
        if self.protocol.start > 0 {
            self.protocol.end = self.end;
        }
        self.state = State::Done;
    }
}

/// The unreserved bytes and sub-delimiters of RFC 3986, and the colon.
fn may_stand_in_literal(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b":-._~!$&'()*+,;=".contains(&byte)
}
