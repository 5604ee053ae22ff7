//! The server as a whole: the list of its modules, what comes of a configuration, and the
//! connection handlers behind its addresses.
//!
//! [`features`] collects the directives, each declared beside the code it serves; [`assemble`]
//! makes a generation of a configuration; [`explain`] tells the way of an imagined request. What
//! happens to a request is the crate `http`, whose page to read first is [`http::request`], and
//! `modules`. This crate does not know processes, signals or how configuration files are read.

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
