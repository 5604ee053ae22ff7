//! Values with variables: `$name`, `${name}`, `$1`.
//!
//! A template contains the names of variables as written. Whether a variable exists is checked by
//! the program, not here.

use crate::diagnostic::Fault;
use crate::line::Word;

/// A value with variables, split into parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Template {
    /// The parts in order; adjacent literals are merged.
    pub parts: Vec<TemplatePart>,
}

/// One part of a [`Template`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TemplatePart {
    /// Literal bytes.
    Literal(Box<[u8]>),
    /// A variable, written `$name` or `${name}`.
    Variable(Box<str>),
    /// `$1` to `$9`: a capture group of the regular expression that matched last.
    Capture(u8),
}

impl Template {
    /// Splits a word at its variables. As in nginx, `$12` is the first capture and a `2`, and
    /// `${1}` is a variable named `1`.
    ///
    /// # Errors
    /// `invalid variable name` for a `$` without a name; `the closing bracket in "x" variable is
    /// missing`.
    pub fn parse(word: &Word) -> Result<Template, Fault> {
        let mut parts = Vec::new();
        let mut rest: &[u8] = &word.bytes;
        while !rest.is_empty() {
            let literal = memchr::memchr(b'$', rest).unwrap_or(rest.len());
            let (bytes, after) = rest.split_at(literal);
            if !bytes.is_empty() {
                parts.push(TemplatePart::Literal(bytes.into()));
            }
            rest = match after.split_first() {
                Some((_dollar, after)) => {
                    let (part, after) = reference(word, after)?;
                    parts.push(part);
                    after
                }
                None => break,
            };
        }
        Ok(Template { parts })
    }

    /// A template without variables.
    #[must_use]
    pub fn literal(bytes: &[u8]) -> Template {
        let part = (!bytes.is_empty()).then(|| TemplatePart::Literal(bytes.into()));
        Template {
            parts: part.into_iter().collect(),
        }
    }

    /// The parts in order.
    #[must_use]
    pub fn parts(&self) -> &[TemplatePart] {
        &self.parts
    }

    /// The value, if it contains no variable and no capture.
    #[must_use]
    pub fn as_literal(&self) -> Option<&[u8]> {
        match &*self.parts {
            [] => Some(&[]),
            [TemplatePart::Literal(bytes)] => Some(bytes),
            _ => None,
        }
    }
}

/// Parses the variable or capture after a `$`, and returns it with the rest of the text.
fn reference<'a>(word: &Word, text: &'a [u8]) -> Result<(TemplatePart, &'a [u8]), Fault> {
    let (name, after) = match text.split_first() {
        Some((digit @ b'1'..=b'9', after)) => {
            return Ok((TemplatePart::Capture(digit - b'0'), after));
        }
        Some((b'{', inner)) => {
            let (name, after) = inner.split_at(name_length(inner));
            match after.strip_prefix(b"}") {
                Some(after) => (name, after),
                None if inner.is_empty() => (name, after),
                None => {
                    let name = String::from_utf8_lossy(name);
                    let text = format!("the closing bracket in \"{name}\" variable is missing");
                    return Err(Fault::at(word, text));
                }
            }
        }
        _ => text.split_at(name_length(text)),
    };
    match std::str::from_utf8(name) {
        Ok(name) if !name.is_empty() => Ok((TemplatePart::Variable(name.into()), after)),
        _ => Err(Fault::at(word, "invalid variable name")),
    }
}

/// Length of the variable name at the beginning of a text, in bytes.
fn name_length(text: &[u8]) -> usize {
    let belongs = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    text.iter()
        .position(|byte| !belongs(byte))
        .unwrap_or(text.len())
}
