//! Requests of HTTP: from a connection to a log line.
//!
//! The page to read first is [`request::phases`]: one request from its first byte to its log line.
//! [`config`] is what a configuration amounts to; [`exchange`] is one request and its response on
//! whatever protocol, [`h1`] and [`http2`] those that there are; [`response`] is what an answer
//! passes on its way out, [`files`] what answers have of the disk, [`subrequest`] requests within
//! requests. No [module](module::Module) is known here: those are the crate `modules`.

pub mod config;
pub mod connection;
pub mod door;
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
