//! A server of memcached's protocols over the store.
//!
//! The pages to read in order: [`cache`] is what all threads share, `dialogue.rs` what goes on on
//! one connection without any I/O, `text.rs`, `meta.rs` and `binary.rs` what commands do,
//! `stats.rs` what the server tells of itself, [`connection_handler`] the connections of a thread,
//! `datagrams.rs` requests over UDP, [`part`] the block of a configuration.
//!
//! The reference is memcached 1.6.45: answers, their words and their order.

mod auth;
mod binary;
pub mod cache;
mod census;
pub mod connection_handler;
mod connections;
mod counts;
mod datagrams;
mod dialogue;
mod lock;
mod meta;
pub mod offline;
mod output;
pub mod part;
mod prefixes;
pub mod saved;
mod session;
mod size_classes;
mod state;
mod stats;
mod sweeper;
#[cfg(test)]
mod testing;
mod text;
pub mod tls;
mod walk;
mod watch;
mod zone;

pub use auth::{ServerAuth, UserPasswords};
pub use cache::{COMMANDS_IN_TURN, Cache, Protocol, Settings, ShutdownPolicy};
