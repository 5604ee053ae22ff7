//! Requests of HTTP: from a connection to a log line.
//!
//! The page to read first is [`request`]: one request from its first byte to its log line.
//! [`compile`] and [`plan`] are what a configuration amounts to; [`exchange`] is one request and
//! its response on whatever protocol; [`chain`] what a response passes on its way out. No
//! [module](module::Module) is known here: those are the crate `modules`.

pub mod access_phase;
pub mod activity;
pub mod address;
pub mod background_subrequests;
pub mod body;
pub mod chain;
pub mod client_head;
pub mod compile;
pub mod connection;
pub mod connection_task;
pub mod constant;
pub mod context;
pub mod core;
pub mod credentials;
pub mod disable_symlinks;
pub mod door;
pub mod error_page;
pub mod exchange;
pub mod file;
pub mod handshake;
pub mod head;
pub mod http2;
pub mod http3;
pub mod ignored_directives;
pub mod included_subrequests;
pub mod internal_request;
pub mod listen;
pub mod location;
pub mod logging;
pub mod module;
pub mod not_modified;
pub mod open_file_cache;
pub mod output;
pub mod part;
pub mod plan;
pub mod plan_builder;
pub mod pool;
pub mod prebuilt;
pub mod range;
pub mod redirect;
pub mod regex;
pub mod rename;
pub mod request;
pub mod response;
pub mod secure;
pub mod server_tokens;
pub mod shared;
pub mod size;
pub mod slots;
pub mod source;
pub mod spill;
pub mod state;
pub mod status_page;
pub mod tables;
pub mod tasks;
pub mod temporary_file;
pub mod temporary_paths;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod text;
pub mod thread_state;
pub mod types;
pub mod upstream_report;
pub mod variables;
