//! Finds commands in a body that arrives in pieces: `<!--#name key="value" … -->`.
//!
//! The accepted syntax and the error messages are nginx's. The reader executes nothing and knows no
//! request: its caller logs the errors that it reports.

use std::fmt;

use bytes::Bytes;

/// The start of a command, without its `#`.
const COMMENT: &[u8] = b"<!--";

/// Maximum length of a command's name, in bytes, as in nginx.
const NAME_LENGTH_MAX: usize = 32;

/// Maximum length of a parameter's name, in bytes, as in nginx.
const KEY_LENGTH_MAX: usize = 32;

/// Maximum number of parameters of a command, as in nginx.
pub(super) const PARAMETERS_MAX: usize = 16;

/// A command with its parameters, before variables are expanded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// The name, 1 to 32 bytes.
    pub name: Vec<u8>,
    /// Names and values of the parameters, in the order of the body.
    pub parameters: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The next item of a body.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Text outside commands.
    Text(Bytes),
    /// A command of SSI with its parameters.
    Command(Command),
    /// A malformed command, which has been reported.
    Mistake,
}

/// Writes a syntax error to the error log.
pub type ErrorReporter<'a> = dyn FnMut(fmt::Arguments<'_>) + 'a;

/// The reader's position within a command.
///
/// ```text
/// Text ─▶ BeforeName ─▶ Name ─▶ BeforeKey ─▶ Key ─▶ BeforeEquals ─▶ BeforeValue ─▶ Value ⇄ Quoted
///  ▲                     │         │  ▲                                              ▼
///  └──── End1 ◀── End0 ◀─┴─────────┘  └──────────────────────────────────────── AfterValue
/// ```
/// Any error leads to `Wrong`, which ends at the next `-->`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Outside commands; this number of bytes of `<!--` have been seen.
    Text(usize),
    BeforeName,
    Name,
    BeforeKey,
    Key,
    BeforeEquals,
    BeforeValue,
    Value(u8),
    /// After a backslash within a value.
    Quoted(u8),
    AfterValue,
    End0,
    End1,
    Wrong,
    WrongEnd0,
    WrongEnd1,
}

/// Finds SSI commands in a body.
pub struct Reader {
    state: State,
    command: Command,
    value_length_max: usize,
}

impl Reader {
    /// A reader that accepts parameter values of at most this length, in bytes.
    pub fn new(value_length_max: usize) -> Reader {
        Reader {
            state: State::Text(0),
            command: Command::default(),
            value_length_max,
        }
    }

    /// Removes the next item from `input`. `None` when all of `input` has been read; the beginning
    /// of a possible command then stays in the reader.
    pub fn next(&mut self, report: &mut ErrorReporter<'_>, input: &mut Bytes) -> Option<Event> {
        if let State::Text(seen) = self.state
            && let Some(text) = self.text(seen, input)
        {
            return Some(Event::Text(text));
        }
        for (at, &byte) in input.iter().enumerate() {
            let event = match self.state {
                State::End1 if byte == b'>' => Event::Command(std::mem::take(&mut self.command)),
                State::WrongEnd1 if byte == b'>' => Event::Mistake,
                state => {
                    self.state = self.step(report, state, byte);
                    continue;
                }
            };
            self.state = State::Text(0);
            *input = input.slice(at + 1..);
            return Some(event);
        }
        input.clear();
        None
    }

    /// Removes text from the input, up to where a command starts or may start.
    fn text(&mut self, seen: usize, input: &mut Bytes) -> Option<Bytes> {
        let mut seen = seen;
        // Offset at which the bytes that have been seen start; `None` if they start in the previous
        // piece.
        let mut begin = None;
        let mut at = 0;
        loop {
            if seen == 0 {
                let rest = input.get(at..).unwrap_or_default();
                let Some(found) = memchr::memchr(b'<', rest) else {
                    self.state = State::Text(0);
                    return Some(std::mem::take(input)).filter(|text| !text.is_empty());
                };
                begin = Some(at + found);
                (at, seen) = (at + found + 1, 1);
                continue;
            }
            let Some(&byte) = input.get(at) else {
                self.state = State::Text(seen);
                let text = input.slice(..begin.unwrap_or(0));
                input.clear();
                return Some(text).filter(|text| !text.is_empty());
            };
            if COMMENT.get(seen) == Some(&byte) {
                (at, seen) = (at + 1, seen + 1);
                continue;
            }
            if seen == COMMENT.len() && byte == b'#' {
                self.state = State::BeforeName;
                let text = input.slice(..begin.unwrap_or(0));
                *input = input.slice(at + 1..);
                return Some(text).filter(|text| !text.is_empty());
            }
            if begin.is_none() {
                // The end of the previous piece is text after all; this byte is read again.
                self.state = State::Text(0);
                *input = input.slice(at..);
                return COMMENT.get(..seen).map(Bytes::from_static);
            }
            seen = 0;
        }
    }

    /// Handles one byte within a command.
    fn step(&mut self, report: &mut ErrorReporter<'_>, state: State, byte: u8) -> State {
        let space = matches!(byte, b' ' | b'\r' | b'\n' | b'\t');
        match (state, byte) {
            (
                State::BeforeName | State::BeforeKey | State::BeforeEquals | State::BeforeValue,
                _,
            ) if space => state,
            (State::BeforeName, _) => {
                self.command = Command {
                    name: vec![byte],
                    parameters: Vec::new(),
                };
                State::Name
            }
            (State::Name | State::AfterValue, _) if space => State::BeforeKey,
            (State::Name | State::BeforeKey | State::AfterValue, b'-') => State::End0,
            (State::Name, _) => self.name(report, byte),
            (State::BeforeKey, _) => {
                // One parameter above the limit is enough to reject the command.
                self.command.parameters.truncate(PARAMETERS_MAX);
                self.command.parameters.push((vec![byte], Vec::new()));
                State::Key
            }
            (State::Key, _) if space => State::BeforeEquals,
            (State::Key | State::BeforeEquals, b'=') => State::BeforeValue,
            (State::Key, b'-') | (State::BeforeEquals, _) => {
                self.wrong(report, byte, ErrorPosition::AfterKey)
            }
            (State::Key, _) => self.key(report, byte),
            (State::BeforeValue, b'"' | b'\'') => State::Value(byte),
            (State::BeforeValue, _) => self.wrong(report, byte, ErrorPosition::BeforeValue),
            (State::Value(quote), _) if byte == quote => State::AfterValue,
            (State::Value(quote), b'\\') => self.value(report, byte, State::Quoted(quote)),
            (State::Value(quote) | State::Quoted(quote), _) => {
                self.value(report, byte, State::Value(quote))
            }
            (State::AfterValue, _) => {
                self.wrong(report, byte, ErrorPosition::AfterValue);
                State::Wrong
            }
            (State::End0, b'-') => State::End1,
            (State::End0 | State::End1, _) => {
                self.wrong(report, byte, ErrorPosition::End);
                State::Wrong
            }
            (State::Wrong, b'-') => State::WrongEnd0,
            (State::WrongEnd0, b'-') => State::WrongEnd1,
            (State::Wrong | State::WrongEnd0 | State::WrongEnd1 | State::Text(_), _) => {
                State::Wrong
            }
        }
    }

    fn name(&mut self, report: &mut ErrorReporter<'_>, byte: u8) -> State {
        let name = &mut self.command.name;
        if name.len() < NAME_LENGTH_MAX {
            name.push(byte);
            return State::Name;
        }
        report(format_args!(
            "the \"{}{}...\" SSI command is too long",
            logs::Printable(name),
            logs::Printable(&[byte])
        ));
        State::Wrong
    }

    fn key(&mut self, report: &mut ErrorReporter<'_>, byte: u8) -> State {
        let Some((key, _)) = self.command.parameters.last_mut() else {
            return State::Wrong; // a key has been started
        };
        if key.len() < KEY_LENGTH_MAX {
            key.push(byte);
            return State::Key;
        }
        report(format_args!(
            "too long \"{}{}...\" parameter in \"{}\" SSI command",
            logs::Printable(key),
            logs::Printable(&[byte]),
            logs::Printable(&self.command.name)
        ));
        State::Wrong
    }

    fn value(&mut self, report: &mut ErrorReporter<'_>, byte: u8, next: State) -> State {
        let Some((key, value)) = self.command.parameters.last_mut() else {
            return State::Wrong; // a parameter has been started
        };
        if value.len() < self.value_length_max {
            value.push(byte);
            return next;
        }
        report(format_args!(
            "too long \"{}{}...\" value of \"{}\" parameter in \"{}\" SSI command",
            logs::Printable(value),
            logs::Printable(&[byte]),
            logs::Printable(key),
            logs::Printable(&self.command.name)
        ));
        State::Wrong
    }

    /// Reports an unexpected byte.
    fn wrong(&self, report: &mut ErrorReporter<'_>, byte: u8, place: ErrorPosition) -> State {
        let (byte_text, name) = ([byte], &self.command.name);
        let (byte_text, name) = (logs::Printable(&byte_text), logs::Printable(name));
        let empty = (Vec::new(), Vec::new());
        let (key, value) = self.command.parameters.last().unwrap_or(&empty);
        let (key, value) = (logs::Printable(key), logs::Printable(value));
        match place {
            ErrorPosition::AfterKey => report(format_args!(
                "unexpected \"{byte_text}\" symbol after \"{key}\" parameter in \"{name}\" SSI command"
            )),
            ErrorPosition::BeforeValue => report(format_args!(
                "unexpected \"{byte_text}\" symbol before value of \"{key}\" parameter in \"{name}\" \
                 SSI command"
            )),
            ErrorPosition::AfterValue => report(format_args!(
                "unexpected \"{byte_text}\" symbol after \"{value}\" value of \"{key}\" parameter in \
                 \"{name}\" SSI command"
            )),
            ErrorPosition::End => report(format_args!(
                "unexpected \"{byte_text}\" symbol in \"{name}\" SSI command"
            )),
        }
        if byte == b'-' {
            State::WrongEnd0
        } else {
            State::Wrong
        }
    }
}

/// The position of an unexpected byte in a command.
#[derive(Clone, Copy)]
enum ErrorPosition {
    AfterKey,
    BeforeValue,
    AfterValue,
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_without_an_end_keeps_no_more_parameters_than_refuse_it() {
        let mut reader = Reader::new(256);
        let mut read = |text: &'static str| {
            let mut input = Bytes::from_static(text.as_bytes());
            assert_eq!(reader.next(&mut |_| {}, &mut input), None);
        };
        read("<!--#echo ");
        for _ in 0..1000 {
            read("a=\"x\" ");
        }
        assert_eq!(reader.command.parameters.len(), PARAMETERS_MAX + 1);
    }
}
