//! The server as a whole: the list of its modules, the compilation of a configuration, and the
//! connection handlers of its listening addresses.
//!
//! [`features`] lists the modules with their directives, which are declared next to the code that
//! uses them; [`assemble`] compiles a configuration to a generation; [`explain`] describes the
//! processing of an imagined request. Requests are served by the crates `http`, whose first page to
//! read is [`http::request`], and `modules`. This crate contains no processes, no signals and no
//! reading of configuration files.

pub mod assemble;
pub mod events;
pub mod explain;
pub mod features;
pub mod protocols;
pub mod reference;
#[cfg(test)]
mod tests;
pub mod unknown;

pub use assemble::{Compiled, compile};
pub use framework::connection_handler::ListenerId;
pub use framework::workers;
