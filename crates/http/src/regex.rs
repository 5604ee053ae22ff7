//! Regular expressions that are evaluated for requests: see [`variables::regex`].

use crate::request::Request;

pub use variables::regex::{Captures, Failed, Group, match_once};

/// A pattern whose named groups become variables of requests.
pub type Regex = variables::Regex<Request>;

/// What a match disturbs once the response's head is made.
pub const WHILE_SENDING: &str = " while sending response to client";

/// The same of a response that an upstream has made, and from then on.
pub const WHILE_SENDING_ON: &str = " while sending to client";
