//! Values with variables of requests: see [`variables::text`].

use crate::request::Request;

/// A value that may hold variables.
pub type Text = variables::Text<Request>;

/// One stretch of a [`Text`].
pub type Part = variables::Part<Request>;
