//! HTTP/2 connections of clients, with many concurrent requests.
//!
//! [`proto::h2`] parses and builds frames. [`connection_task`] drives a connection, [`stream`] is
//! the state that the tasks of requests share with the connection, [`exchange`] is the exchange of
//! one request, [`tunnel`] is an upgraded exchange, and [`head`] encodes heads of responses. The
//! directives are in [`settings`].

pub mod connection_task;
mod early_answer;
pub mod exchange;
pub mod head;
pub mod settings;
pub mod stream;
pub mod tunnel;
pub mod upload;
pub mod variables;

pub use settings::{Http2, OBSOLETE};
