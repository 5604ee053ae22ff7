//! The parser of header lines: `name: value` and a line break. Used for the heads of requests and
//! of upstreams' responses, and for trailers.
//!
//! ```text
//! Start ─CR─▶ HeadEnd ─LF─▶ end of the head
//!   │ └─LF─▶ end of the head
//!   ▼
//! Name ─':'─▶ BeforeValue ─▶ Value ─LF─▶ line
//!   │              │           │
//!   └──────CR──────┴────CR─────┴─▶ LineEnd ─CR*, LF─▶ line
//! ```
//!
//! RFC 9112, section 5, as interpreted by nginx: a line without a colon is a field without a value.
//! A line break may be a bare LF, or LF after several CRs. Errors are a CR before anything else, a
//! zero byte, a space before the colon, and a line that begins with a space (obsolete folding).
//! Only spaces are trimmed from a value, not tabs.

use super::lines::PlainLine;
use super::scan;
use crate::Span;
use crate::header::KnownField;

/// A header line, as spans of the head's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name as sent.
    pub name: Span,
    /// The value without surrounding spaces; may be empty.
    pub value: Span,
    /// The name, classified.
    pub known: KnownField,
}

impl Field {
    /// The field in the plain line that begins at `start`.
    #[inline]
    pub(super) fn plain(start: usize, line: PlainLine, bytes: &[u8]) -> Field {
        let rest = bytes.get(start..).unwrap_or_default();
        Field {
            name: Span::new(start, line.name_end),
            value: Span::new(line.value_start, line.value_end),
            known: KnownField::at_start(rest, line.name_end - start),
        }
    }

    /// The bytes of the name. `bytes` are those that were parsed.
    pub fn name(self, bytes: &[u8]) -> &[u8] {
        self.name.of(bytes)
    }

    /// The bytes of the value. `bytes` are those that were parsed.
    pub fn value(self, bytes: &[u8]) -> &[u8] {
        self.value.of(bytes)
    }
}

/// A malformed header line: the span ends before the invalid byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidLine(pub Span);

impl InvalidLine {
    /// nginx's log message, such as `client sent invalid header line: "a\x20..."`.
    pub(super) fn log_text(self, what: &str, bytes: &[u8]) -> Vec<u8> {
        let fault = bytes.get(self.0.end as usize).copied().unwrap_or_default();
        let mut text = [what.as_bytes(), b": \"", self.0.of(bytes)].concat();
        text.extend_from_slice(format!("\\x{fault:02x}...\"").as_bytes());
        text
    }
}

/// Which deviations are accepted.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// Whether `_` is an ordinary byte of a name.
    pub(super) underscores: bool,
    /// Whether a repeated status line among the fields is skipped; some upstreams send one.
    pub(super) repeated_status_line: bool,
}

/// The result of parsing up to the current position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// The line is incomplete.
    More,
    /// A complete line, whose parts are in the reader.
    Line,
    End,
}

/// Parses header lines in sequence.
#[derive(Clone, Copy, Default)]
pub(super) struct FieldReader {
    state: State,
    /// Offset of the line's first byte.
    pub(super) start: usize,
    name_end: usize,
    value_start: usize,
    value_end: usize,
    /// Whether the name contains an unusual byte.
    pub(super) doubtful: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Start,
    Name,
    BeforeValue,
    Value,
    LineEnd,
    HeadEnd,
    IgnoredLine,
}

impl FieldReader {
    /// Parses from `at`, which it advances, up to the end of a line, of the head, or of the bytes.
    #[inline]
    pub(super) fn advance(
        &mut self,
        bytes: &[u8],
        at: &mut usize,
        rules: Rules,
    ) -> Result<Progress, InvalidLine> {
        loop {
            match self.state {
                State::Start => {
                    let Some(&byte) = bytes.get(*at) else {
                        return Ok(Progress::More);
                    };
                    self.start = *at;
                    self.doubtful = false;
                    match byte {
                        b'\r' => {
                            *at += 1;
                            self.state = State::HeadEnd;
                        }
                        b'\n' => {
                            *at += 1;
                            return Ok(Progress::End);
                        }
                        b':' => return Err(self.fault(*at)),
                        _ => self.state = State::Name,
                    }
                }
                State::Name => {
                    if !self.name(bytes, at, rules)? {
                        return Ok(Progress::More);
                    }
                }
                State::BeforeValue => {
                    while bytes.get(*at) == Some(&b' ') {
                        *at += 1;
                    }
                    if *at >= bytes.len() {
                        return Ok(Progress::More);
                    }
                    self.value_start = *at;
                    self.state = State::Value;
                }
                State::Value => {
                    let Some(end) = scan::line_end(bytes, *at) else {
                        *at = bytes.len();
                        return Ok(Progress::More);
                    };
                    if bytes.get(end) == Some(&0) {
                        return Err(self.fault(end));
                    }
                    let value = bytes.get(self.value_start..end).unwrap_or_default();
                    let spaces = value.iter().rev().take_while(|byte| **byte == b' ').count();
                    self.value_end = end - spaces;
                    *at = end;
                    self.state = State::LineEnd;
                }
                State::LineEnd => match bytes.get(*at) {
                    Some(b'\n') => {
                        *at += 1;
                        self.state = State::Start;
                        return Ok(Progress::Line);
                    }
                    Some(b'\r') => *at += 1,
                    Some(_) => return Err(self.fault(self.value_end)),
                    None => return Ok(Progress::More),
                },
                State::HeadEnd => match bytes.get(*at) {
                    Some(b'\n') => {
                        *at += 1;
                        self.state = State::Start;
                        return Ok(Progress::End);
                    }
                    Some(_) => return Err(self.fault(self.start)),
                    None => return Ok(Progress::More),
                },
                State::IgnoredLine => {
                    let Some(end) = memchr::memchr(b'\n', bytes.get(*at..).unwrap_or_default())
                    else {
                        *at = bytes.len();
                        return Ok(Progress::More);
                    };
                    *at += end + 1;
                    self.state = State::Start;
                }
            }
        }
    }

    /// Parses the name; false if the name is incomplete.
    #[inline]
    fn name(&mut self, bytes: &[u8], at: &mut usize, rules: Rules) -> Result<bool, InvalidLine> {
        loop {
            let Some(end) = scan::name_end(bytes, *at) else {
                *at = bytes.len();
                return Ok(false);
            };
            *at = end;
            match bytes.get(end).copied().unwrap_or_default() {
                b':' => {
                    self.name_end = *at;
                    *at += 1;
                    self.state = State::BeforeValue;
                    return Ok(true);
                }
                b'\r' | b'\n' => {
                    self.name_end = *at;
                    self.value_start = *at;
                    self.value_end = *at;
                    self.state = State::LineEnd;
                    return Ok(true);
                }
                b'_' if rules.underscores => {}
                b'/' if rules.repeated_status_line
                    && bytes.get(self.start..*at) == Some(b"HTTP") =>
                {
                    self.state = State::IgnoredLine;
                    return Ok(true);
                }
                0..=b' ' | 0x7f => return Err(self.fault(*at)),
                _ => self.doubtful = true,
            }
            *at += 1;
        }
    }

    /// Adopts the last plain line that was parsed elsewhere, with the offset of its beginning;
    /// `None` changes nothing.
    pub(super) fn take(&mut self, last: Option<(usize, PlainLine)>) {
        if let Some((start, line)) = last {
            *self = FieldReader {
                state: State::Start,
                start,
                name_end: line.name_end,
                value_start: line.value_start,
                value_end: line.value_end,
                doubtful: false,
            };
        }
    }

    /// Whether a line is incomplete.
    pub(super) fn within_line(&self) -> bool {
        self.state != State::Start
    }

    /// The line that was just parsed. A doubtful name is never a known field.
    #[inline]
    pub(super) fn field(&self, bytes: &[u8]) -> Field {
        let name = Span::new(self.start, self.name_end);
        let known = if self.doubtful {
            KnownField::Other
        } else {
            KnownField::from_name(name.of(bytes))
        };
        Field {
            name,
            value: Span::new(self.value_start, self.value_end),
            known,
        }
    }

    /// The line that was just parsed, from its name to its value.
    pub(super) fn line(&self) -> Span {
        Span::new(self.start, self.value_end)
    }

    fn fault(&self, at: usize) -> InvalidLine {
        InvalidLine(Span::new(self.start, at))
    }
}
