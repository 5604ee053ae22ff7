//! Regular expressions that are evaluated for requests: see [`variables::regex`].

use crate::request::Request;

pub use variables::regex::{Captures, Group, MatchError, Regexes, Spans, match_once};

/// A pattern whose named groups become variables of requests.
pub type Regex = variables::Regex<Request>;
