//! The HTTP server of Tidegate: listeners, the request loop, filters and modules.
//!
//! The page to read first is [`http::request`]: one request from its first byte to its log
//! line. This crate knows the directives (each beside the code it serves, collected in
//! [`table`]); it does not know processes, signals or how configuration files are read.

pub mod accepted;
pub mod compile;
pub mod counters;
pub mod events;
pub mod explain;
pub mod generation;
pub mod http;
pub mod idle;
pub mod json;
pub mod listen;
pub mod log;
pub mod panics;
pub mod random;
pub mod reference;
pub mod regex;
pub mod registry;
pub mod resolver;
pub mod slot;
pub mod table;
pub mod text;
pub mod tls;
pub mod transport;
pub mod variables;
pub mod warm;
pub mod watch;
pub mod workers;
pub mod zone;

pub use compile::{Compiled, Environment, compile};
pub use generation::Generation;
pub use workers::Workers;
