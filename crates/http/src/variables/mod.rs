//! The variables of requests.

use crate::request::Request;

pub mod core;

pub use variables::{Cached, Compiling, Context};

/// A variable of requests.
pub type Variable = variables::Variable<Request>;

/// Where the value of a request's variable comes from.
pub type Source = variables::Source<Request>;

/// All variables of requests that a configuration names.
pub type Table = variables::Table<Request>;

/// Collects the names of requests' variables.
pub type TableBuilder = variables::TableBuilder<Request>;

/// A built-in variable of requests.
pub type BuiltinVariable = variables::BuiltinVariable<Request>;

/// Appends the value for a request; false if there is no value.
pub type Evaluate = variables::Evaluate<Request>;

/// Appends the value of a family's member for a request.
pub type EvaluateFamily = variables::EvaluateFamily<Request>;
