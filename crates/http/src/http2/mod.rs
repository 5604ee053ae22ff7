//! HTTP/2 with clients: many requests at once on one connection.
//!
//! What the bytes say is [`proto::h2`]'s; how a connection goes on is in [`connection_task`], what
//! the tasks of its requests share with it in [`stream`], the exchange of one request in
//! [`exchange`], what it becomes once it is upgraded in [`tunnel`], and how the head of a response
//! is written in [`head`]. The directives are in [`settings`].

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
