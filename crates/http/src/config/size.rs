//! Sizes and rates of requests that may hold variables, such as `limit_rate $rate`.

use crate::request::Request;

pub use variables::size::WrittenSize;

/// A size for requests.
pub type Size = variables::size::Size<Request>;
