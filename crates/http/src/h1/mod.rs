//! HTTP/1 with clients: requests one after the other on one connection.
//!
//! What the bytes say is [`proto::h1`]'s; how a connection goes on is in [`connection_task`], the
//! exchange of one request in [`exchange`], and what a client sends behind the head of a request in
//! [`intake`].

pub mod connection_task;
pub mod exchange;
pub mod intake;
