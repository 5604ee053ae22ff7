//! HTTP: from a connection to a log line.
//!
//! [`request`] holds the way of a request; [`compile`] and [`plan`] what a configuration
//! amounts to; [`exchange`] one request and its response on whatever protocol; [`filters`]
//! what a response passes on its way out; [`modules`] one feature a file.

pub mod access_phase;
pub mod address;
pub mod ahead;
pub mod asked;
pub mod background;
pub mod body;
pub mod chain;
pub mod client_head;
pub mod compile;
pub mod connection;
pub mod context;
pub mod core;
pub mod credentials;
pub mod disable_symlinks;
pub mod door;
pub mod ending;
pub mod error_page;
pub mod exchange;
pub mod file;
pub mod filters;
pub mod handshake;
pub mod head;
pub mod hot;
pub mod local;
pub mod location;
pub mod module;
pub mod modules;
pub mod not_modified;
pub mod open_file_cache;
pub mod output;
pub mod plan;
pub mod plan_builder;
pub mod pool;
pub mod range;
pub mod redirect;
pub mod request;
pub mod response;
pub mod secure;
pub mod server_name;
pub mod shared;
pub mod slots;
pub mod source;
pub mod status_page;
pub mod subject;
pub mod tables;
pub mod tasks;
pub mod temporary_paths;
pub mod types;
