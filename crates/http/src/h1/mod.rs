//! HTTP/1 connections of clients, which carry one request after another.
//!
//! [`proto::h1`] parses bytes; [`connection_task`] drives a connection, [`exchange`] is the
//! exchange of one request, and [`intake`] holds the bytes that a client sends after a head.

pub mod connection_task;
pub mod exchange;
pub mod intake;
