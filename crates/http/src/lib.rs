//! HTTP requests, from the connection to the log line.
//!
//! Read [`request::phases`] first: it follows a request from its first byte to its log line.
//! [`config`] is the compiled configuration. [`exchange`] is one request and its response over any
//! protocol; [`h1`] and [`http2`] are the protocols. [`response`] holds the filters and the output
//! of responses, [`files`] the access to files, and [`subrequest`] requests within requests. This
//! crate names no [module](module::Module): modules are in the crate `modules`.

pub mod config;
pub mod connection;
pub mod connection_handler;
pub mod exchange;
pub mod files;
pub mod h1;
pub mod handshake;
pub mod http2;
pub mod logging;
pub mod module;
pub mod part;
pub mod request;
pub mod response;
pub mod slots;
pub mod subrequest;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod thread_state;
pub mod variables;
