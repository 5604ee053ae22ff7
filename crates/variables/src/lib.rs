//! Variables: names become indices when a configuration is compiled, and values are evaluated when
//! they are needed.
//!
//! Variables are evaluated for a [`Context`], such as a request, a handshake or a session. Texts,
//! regexes, `map`, `geo` and `split_clients` are generic over the kind of context for which they
//! are compiled. A value is cached for the context, unless its source is evaluated on every use.

pub mod blocks;
pub mod context;
pub mod forwarded;
pub mod geo;
pub mod map;
pub mod name;
pub mod num_map;
pub mod process;
pub mod regex;
pub mod scratch;
pub mod size;
pub mod split_clients;
pub mod table;
pub mod text;
pub mod write;

pub use context::{Cached, Context, Scope, Values};
pub use regex::{Captures, Regex};
pub use scratch::Scratch;
pub use table::{
    BuiltinVariable, Compiling, Definition, Evaluate, EvaluateFamily, Find, Source, Table,
    TableBuilder, Value, Variable,
};
pub use text::{Text, TextPart};

#[cfg(test)]
mod tests;
