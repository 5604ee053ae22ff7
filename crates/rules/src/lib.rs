//! Features that several protocols have in common, for any kind of context, such as a request or
//! session: `allow` and `deny`, `limit_conn`, `realip`, `geoip2`, `keyval`, `server_name`,
//! `access_log` with its formats, and the `upstream` block.
//!
//! A protocol implements a trait for its context ([`access_log::Loggable`],
//! [`limit_conn::ConnectionCounting`], [`realip::ByProxy`], [`upstream::Upstreams`]), decides when
//! a feature is evaluated, and applies the result.

pub mod access;
pub mod access_log;
pub mod format;
pub mod geoip2;
mod kept_file;
pub mod keyval;
pub mod limit_conn;
pub mod limited;
pub mod realip;
pub mod server_name;
pub mod service_thread;
pub mod session_zones;
pub mod upstream;

#[cfg(test)]
mod tests;
