//! Messages about a configuration: errors, warnings, notices.
//!
//! The text of a [`Diagnostic`] is nginx's, so that people and scripts that know nginx's messages
//! know Tidegate's. Details that nginx's messages lack (the nearest known name, the exact position)
//! follow on separate lines: see [`Diagnostic::render`].

use std::fmt;
use std::fmt::Write as _;

use crate::line::Word;
use crate::position::Position;
use crate::source::SourceFile;

/// The severity of a diagnostic, the most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The configuration cannot be used.
    Emerg,
    /// The configuration can be used, but is probably not what was meant.
    Warn,
    /// Useful to know, such as a directive without effect.
    Notice,
}

impl Level {
    /// The name that log lines show in brackets, such as `[warn]`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Level::Emerg => "emerg",
            Level::Warn => "warn",
            Level::Notice => "notice",
        }
    }

    /// The colour on a terminal, for [`Style::paint`].
    #[must_use]
    pub fn colour(self) -> &'static str {
        match self {
            Level::Emerg => "1;31",
            Level::Warn => "1;33",
            Level::Notice => "36",
        }
    }
}

impl From<Level> for base::level::Level {
    fn from(level: Level) -> base::level::Level {
        match level {
            Level::Emerg => base::level::Level::Emerg,
            Level::Warn => base::level::Level::Warn,
            Level::Notice => base::level::Level::Notice,
        }
    }
}

/// One message about the configuration.
///
/// `{}` formats nginx's one line, `unknown directive "x" in FILE:LINE`; `{:#}` adds the hint on a
/// second line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The severity.
    pub level: Level,
    /// The message, without file and line.
    pub message: String,
    /// The position of the error; `None` if the diagnostic is about the configuration as a whole.
    pub position: Option<Position>,
    /// What would have worked.
    pub hint: Option<String>,
    /// A related place.
    pub related: Option<Box<Related>>,
    /// Set if the diagnostic is about a name that the configuration refers to and does not define.
    pub missing: Option<Box<Missing>>,
    /// Whether nginx finds the problem while it parses the line, although Tidegate finds it later:
    /// the diagnostic is shown before errors of later lines.
    pub while_reading: bool,
    /// Whether only the first of several diagnostics with this message is shown; its hint lists the
    /// positions of the others.
    pub once: bool,
}

/// A name that a configuration refers to and does not define. If a line that might have defined the
/// name is broken, the error about the name is only a consequence of that line's error, and is not
/// shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The missing name.
    pub name: Box<str>,
    /// The directives that define such names.
    pub definers: &'static [&'static str],
}

/// A second position that a message shows, such as the beginning of a block that is not closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Related {
    /// The second position.
    pub position: Position,
    /// The text beside the carets, such as `opened here`.
    pub label: &'static str,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)?;
        if let Some(position) = self.position
            && position.file != 0
        {
            write!(out, " in {position}")?;
        }
        match &self.hint {
            Some(hint) if out.alternate() => write!(out, "\n  hint: {hint}"),
            _ => Ok(()),
        }
    }
}

impl Diagnostic {
    /// A diagnostic without a hint.
    pub fn new(level: Level, message: impl Into<String>, position: Option<Position>) -> Diagnostic {
        Diagnostic {
            level,
            message: message.into(),
            position,
            hint: None,
            related: None,
            missing: None,
            while_reading: false,
            once: false,
        }
    }

    /// A diagnostic at the level of a warning.
    pub fn warn(message: impl Into<String>, position: Option<Position>) -> Diagnostic {
        Diagnostic::new(Level::Warn, message, position)
    }

    /// Adds a hint.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Diagnostic {
        Diagnostic {
            hint: Some(hint.into()),
            ..self
        }
    }

    /// The complete message for a terminal: nginx's line, then the source line with carets below
    /// the word, then the hint. Ends with a line feed. A notice shows no source line, because
    /// nothing in it is wrong.
    #[must_use]
    pub fn render(&self, sources: &[SourceFile]) -> String {
        format!("{self}\n{}", self.explanation(sources, Style::Plain))
    }

    /// The part of [`Diagnostic::render`] below the first line.
    #[must_use]
    pub fn explanation(&self, sources: &[SourceFile], style: Style) -> String {
        let mut text = String::new();
        let mut show = |position: Position, label| {
            if let Some(name) = position.file_name()
                && let Some(source) = sources.iter().find(|source| *source.name == *name)
            {
                let name = name.display().to_string();
                excerpt(&mut text, &name, &source.text, position, label, style);
            }
        };
        if let Some(position) = self.position
            && self.level != Level::Notice
        {
            show(position, "");
        }
        if let Some(related) = &self.related {
            show(related.position, related.label);
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(text, "  {} {hint}", style.paint(Style::HINT, "hint:"));
        }
        text
    }
}

/// Whether a text is shown with colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// For a file, a pipe, or a user who wants no colours.
    Plain,
    /// With the control sequences of ECMA-48 (SGR).
    Coloured,
}

impl Style {
    const CARET: &'static str = "1;31";
    const GUTTER: &'static str = "34";
    /// The colour of `hint:`.
    pub const HINT: &'static str = "36";

    /// A text in a colour, given as the parameters of an SGR sequence.
    #[must_use]
    pub fn paint(self, colour: &str, text: &str) -> String {
        match self {
            Style::Plain => text.to_owned(),
            Style::Coloured => format!("\x1b[{colour}m{text}\x1b[0m"),
        }
    }
}

/// Maximum length of the part of a line that an excerpt shows, in bytes.
const EXCERPT_LENGTH_MAX: usize = 160;

/// Appends the source line around a position, with carets below the word.
fn excerpt(
    out: &mut String,
    name: &str,
    source: &[u8],
    position: Position,
    label: &str,
    style: Style,
) {
    let offset = (position.offset as usize).min(source.len());
    let (before, after) = source.split_at(offset);
    let start = memchr::memrchr(b'\n', before).map_or(0, |at| at + 1);
    let before_in_line = before.get(start..).unwrap_or_default();
    let rest = after
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let line_number = 1 + memchr::memchr_iter(b'\n', before).count();
    let column = 1 + before_in_line.len();
    // The excerpt of a long line begins at the word.
    let shown_before = if before_in_line.len() + 20 > EXCERPT_LENGTH_MAX {
        &[][..]
    } else {
        before_in_line
    };
    let room = EXCERPT_LENGTH_MAX - shown_before.len();
    let visible = |bytes: &[u8]| -> String {
        let text = String::from_utf8_lossy(bytes);
        text.chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect()
    };
    let lead = visible(shown_before);
    let tail = visible(rest.get(..room.min(rest.len())).unwrap_or_default());
    let width = visible(word_at(rest))
        .chars()
        .count()
        .min(tail.chars().count())
        .max(1);
    let gutter = " ".repeat(line_number.to_string().len());
    let indent = " ".repeat(lead.chars().count());
    let carets = style.paint(Style::CARET, &"^".repeat(width));
    let bar = style.paint(Style::GUTTER, "|");
    let number = style.paint(Style::GUTTER, &line_number.to_string());
    let gap = if label.is_empty() { "" } else { " " };
    let line = format!("{lead}{tail}");
    let _ = writeln!(out, " {gutter} at {name}:{line_number}:{column}");
    let _ = writeln!(out, " {number} {bar} {}", line.trim_end());
    let _ = writeln!(out, " {gutter} {bar} {indent}{carets}{gap}{label}");
}

/// The word at the beginning of a text.
fn word_at(text: &[u8]) -> &[u8] {
    let end = match text.split_first() {
        Some((quote @ (b'"' | b'\''), rest)) => memchr::memchr(*quote, rest).map(|at| at + 2),
        // A variable within a word.
        Some((b'$', rest)) => {
            let belongs = |byte: &u8| byte.is_ascii_alphanumeric() || b"_{}".contains(byte);
            rest.iter().position(|byte| !belongs(byte)).map(|at| at + 1)
        }
        _ => text.iter().position(|byte| b" \t\r;{".contains(byte)),
    };
    text.get(..end.unwrap_or(text.len())).unwrap_or(text)
}

/// Why a directive's arguments were refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// The text, in nginx's words where nginx has the same error.
    pub message: String,
    /// The position of the error; `None` for the position of the directive.
    pub position: Option<Position>,
    /// What would have worked.
    pub hint: Option<String>,
    /// See [`Diagnostic::related`].
    pub related: Option<Box<Related>>,
    /// See [`Diagnostic::missing`].
    pub missing: Option<Box<Missing>>,
    /// See [`Diagnostic::while_reading`].
    pub while_reading: bool,
}

impl Fault {
    /// A fault of the directive as a whole.
    pub fn new(message: impl Into<String>) -> Fault {
        Fault {
            message: message.into(),
            ..Fault::default()
        }
    }

    /// A fault of one word.
    pub fn at(word: &Word, message: impl Into<String>) -> Fault {
        Fault {
            message: message.into(),
            position: Some(word.position),
            ..Fault::default()
        }
    }

    /// The fault `invalid value "x"`, in nginx's words.
    #[must_use]
    pub fn invalid_value(word: &Word) -> Fault {
        Fault::at(word, format!("invalid value \"{}\"", word.text()))
    }

    /// The fault `invalid parameter "x"`, in nginx's words.
    #[must_use]
    pub fn invalid_parameter(word: &Word) -> Fault {
        Fault::at(word, format!("invalid parameter \"{}\"", word.text()))
    }

    /// Adds a hint.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Fault {
        Fault {
            hint: Some(hint.into()),
            ..self
        }
    }

    /// Adds a second position, with a label.
    #[must_use]
    pub fn with_related(self, position: Position, label: &'static str) -> Fault {
        Fault {
            related: Some(Box::new(Related { position, label })),
            ..self
        }
    }

    /// Marks the fault as caused by the undefined `name`, which one of the directives `definers`
    /// would define: see [`Missing`].
    #[must_use]
    pub fn of_missing(self, name: &str, definers: &'static [&'static str]) -> Fault {
        let name = name.into();
        Fault {
            missing: Some(Box::new(Missing { name, definers })),
            ..self
        }
    }

    /// Sets [`Diagnostic::while_reading`].
    #[must_use]
    pub fn while_reading(self) -> Fault {
        Fault {
            while_reading: true,
            ..self
        }
    }

    /// Sets the position, unless the fault has one.
    #[must_use]
    pub fn or_at(self, position: Position) -> Fault {
        Fault {
            position: self.position.or(Some(position)),
            ..self
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Diagnostic::from(self.clone()), out)
    }
}

impl std::error::Error for Fault {}

impl From<Fault> for Diagnostic {
    fn from(fault: Fault) -> Diagnostic {
        Diagnostic {
            level: Level::Emerg,
            message: fault.message,
            position: fault.position,
            hint: fault.hint,
            related: fault.related,
            missing: fault.missing,
            while_reading: fault.while_reading,
            once: false,
        }
    }
}
