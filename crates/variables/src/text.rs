//! Compiled texts with variables, such as the text of `return 200 "$uri"`.
//!
//! A text without variables is one shared literal and costs nothing to evaluate.

use std::fmt;

use bytes::Bytes;

use crate::{Context, Variable};

/// One part of a [`Text`].
pub enum TextPart<C> {
    /// Literal bytes.
    Literal(Bytes),
    /// A variable. If it is not found, its value is empty.
    Variable(Variable<C>),
    /// `$1` to `$9`: a capture group of the regex that matched last.
    Capture(u8),
}

/// A text that may contain variables and captures, compiled for a kind of context.
pub enum Text<C> {
    /// A text without variables and captures.
    Literal(Bytes),
    /// A text that is evaluated for each context.
    Parts(Box<[TextPart<C>]>),
}

// Implemented by hand, so that the context need not implement the traits.
impl<C> Clone for TextPart<C> {
    fn clone(&self) -> TextPart<C> {
        match self {
            TextPart::Literal(bytes) => TextPart::Literal(bytes.clone()),
            TextPart::Variable(variable) => TextPart::Variable(*variable),
            TextPart::Capture(number) => TextPart::Capture(*number),
        }
    }
}

impl<C> PartialEq for TextPart<C> {
    fn eq(&self, other: &TextPart<C>) -> bool {
        match (self, other) {
            (TextPart::Literal(one), TextPart::Literal(other)) => one == other,
            (TextPart::Variable(one), TextPart::Variable(other)) => one == other,
            (TextPart::Capture(one), TextPart::Capture(other)) => one == other,
            _ => false,
        }
    }
}

impl<C> fmt::Debug for TextPart<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextPart::Literal(bytes) => bytes.fmt(f),
            TextPart::Variable(variable) => variable.fmt(f),
            TextPart::Capture(number) => write!(f, "Capture({number})"),
        }
    }
}

impl<C> Clone for Text<C> {
    fn clone(&self) -> Text<C> {
        match self {
            Text::Literal(bytes) => Text::Literal(bytes.clone()),
            Text::Parts(parts) => Text::Parts(parts.clone()),
        }
    }
}

impl<C> PartialEq for Text<C> {
    fn eq(&self, other: &Text<C>) -> bool {
        match (self, other) {
            (Text::Literal(one), Text::Literal(other)) => one == other,
            (Text::Parts(one), Text::Parts(other)) => one == other,
            _ => false,
        }
    }
}

impl<C> Eq for Text<C> {}

impl<C> fmt::Debug for Text<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Text::Literal(bytes) => bytes.fmt(f),
            Text::Parts(parts) => parts.fmt(f),
        }
    }
}

impl<C> Text<C> {
    /// A text of these parts in order. Adjacent literals are not merged.
    pub fn new(parts: impl IntoIterator<Item = TextPart<C>>) -> Text<C> {
        let mut parts: Vec<TextPart<C>> = parts.into_iter().collect();
        match parts.as_mut_slice() {
            [] => Text::Literal(Bytes::new()),
            [TextPart::Literal(bytes)] => Text::Literal(std::mem::take(bytes)),
            _ => Text::Parts(parts.into_boxed_slice()),
        }
    }

    /// The literal, if the text has no variables.
    pub fn literal(&self) -> Option<&Bytes> {
        match self {
            Text::Literal(bytes) => Some(bytes),
            Text::Parts(_) => None,
        }
    }

    /// Whether the text is the empty literal.
    pub fn is_empty(&self) -> bool {
        matches!(self, Text::Literal(bytes) if bytes.is_empty())
    }
}

impl<C: Context> Text<C> {
    /// Appends the value for this context.
    pub fn append_to(&self, context: &mut C, out: &mut Vec<u8>) {
        match self {
            Text::Literal(bytes) => out.extend_from_slice(bytes),
            Text::Parts(parts) => {
                for part in parts {
                    match part {
                        TextPart::Literal(bytes) => out.extend_from_slice(bytes),
                        TextPart::Variable(variable) => {
                            context.append_variable(*variable, out);
                        }
                        TextPart::Capture(number) => {
                            out.extend_from_slice(context.captures().group(usize::from(*number)));
                        }
                    }
                }
            }
        }
    }

    /// The value for this context.
    pub fn evaluate(&self, context: &mut C) -> Bytes {
        match self {
            Text::Literal(bytes) => bytes.clone(),
            Text::Parts(_) => {
                let mut out = Vec::new();
                self.append_to(context, &mut out);
                out.into()
            }
        }
    }
}
