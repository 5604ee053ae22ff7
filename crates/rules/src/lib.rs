//! What protocols with clients have in common, for any kind of context: `access_log` with its formats, and `geoip2`.
//!
//! A protocol says what its context is ([`access_log::Logged`]), and when a line is written; here is what the line says and
//! where it goes.

pub mod access_log;
pub mod format;
pub mod geoip2;

#[cfg(test)]
mod tests;
