//! The HTTP server of Tidegate: listeners, the request loop, filters and modules.
//!
//! The page to read first is [`http::request`]: one request from its first byte to its log
//! line. This crate knows the directives (each beside the code it serves, collected in
//! [`features`]); it does not know processes, signals or how configuration files are read.

pub mod accepted;
pub mod assemble;
pub mod doors;
pub mod events;
pub mod explain;
pub mod features;
pub mod http;
pub mod log;
#[cfg(test)]
mod planted;
pub mod reference;
pub mod regex;
pub mod text;
pub mod variables;

pub use assemble::{Compiled, compile};
pub use framework::door::ListenerId;
pub use framework::workers;
pub use transport::{listen, resolver, tls};
