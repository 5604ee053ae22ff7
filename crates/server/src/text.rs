//! Values with variables in them, compiled: what `return 200 "$uri"` holds at run time.
//!
//! A text without variables is one shared literal and costs nothing to evaluate.

use bytes::Bytes;

use crate::http::request::Request;
use crate::variables::Variable;

/// One stretch of a [`Text`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Bytes as written.
    Literal(Bytes),
    /// A variable by index; not found counts as empty.
    Variable(Variable),
    /// `$1` … `$9` of the regex evaluated last.
    Capture(u8),
}

/// A value that may hold variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Text {
    /// No variable inside.
    Literal(Bytes),
    /// Evaluated per request.
    Parts(Box<[Part]>),
}

impl Text {
    /// From parts in order; adjacent literals need not be merged.
    pub fn new(parts: impl IntoIterator<Item = Part>) -> Text {
        let mut parts: Vec<Part> = parts.into_iter().collect();
        match parts.as_mut_slice() {
            [] => Text::Literal(Bytes::new()),
            [Part::Literal(bytes)] => Text::Literal(std::mem::take(bytes)),
            _ => Text::Parts(parts.into_boxed_slice()),
        }
    }

    /// The text itself where it holds no variable.
    pub fn literal(&self) -> Option<&Bytes> {
        match self {
            Text::Literal(bytes) => Some(bytes),
            Text::Parts(_) => None,
        }
    }

    /// Whether it is the empty literal.
    pub fn is_empty(&self) -> bool {
        matches!(self, Text::Literal(bytes) if bytes.is_empty())
    }

    /// Appends the value for this request.
    pub fn append_to(&self, request: &mut Request, out: &mut Vec<u8>) {
        match self {
            Text::Literal(bytes) => out.extend_from_slice(bytes),
            Text::Parts(parts) => {
                for part in parts {
                    match part {
                        Part::Literal(bytes) => out.extend_from_slice(bytes),
                        Part::Variable(variable) => {
                            request.append_variable(*variable, out);
                        }
                        Part::Capture(number) => {
                            out.extend_from_slice(request.captures.group(usize::from(*number)));
                        }
                    }
                }
            }
        }
    }

    /// The value for this request.
    pub fn evaluate(&self, request: &mut Request) -> Bytes {
        match self {
            Text::Literal(bytes) => bytes.clone(),
            Text::Parts(_) => {
                let mut out = Vec::new();
                self.append_to(request, &mut out);
                out.into()
            }
        }
    }
}
