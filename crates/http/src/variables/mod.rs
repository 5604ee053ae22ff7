//! The variables of requests.

use crate::request::Request;

pub mod core;

pub use variables::{Cached, Compiling, Context};

/// A variable of requests.
pub type Variable = variables::Variable<Request>;

/// The source of the value of a request's variable.
pub type Source = variables::Source<Request>;

/// The table of all variables of requests that a configuration names.
pub type Table = variables::Table<Request>;

/// Collects the names of variables of requests.
pub type TableBuilder = variables::TableBuilder<Request>;

/// A built-in variable of requests.
pub type BuiltinVariable = variables::BuiltinVariable<Request>;

/// Appends the value for a request; false if there is no value.
pub type Evaluate = variables::Evaluate<Request>;

/// Appends the value of a member of a family for a request.
pub type EvaluateFamily = variables::EvaluateFamily<Request>;
