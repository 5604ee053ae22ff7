//! Values with variables of requests: see [`variables::text`].

use crate::request::Request;

/// A value that may hold variables.
pub type Text = variables::Text<Request>;

/// A part of a [`Text`]: bytes as written, a variable, or a group of the regex evaluated last.
pub type Part = variables::TextPart<Request>;
