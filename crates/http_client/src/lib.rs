//! HTTP client connections to upstreams, for any caller.
//!
//! Requests share HTTP/2 connections:
//!
//! ```text
//! acquire ─┬▶ a link that has room ───────────────────┐
//!          └▶ a permit: the caller connects, and      │
//!             Permit::begin spawns the task of a link ┤
//!                                                     ▼
//!               StreamHandle::open ─▶ head, body ─▶ (answer) ─▶ dropped: the stream's place is free
//! ```
//!
//! A `link` is one connection; only its task reads from and writes to the transport. Each request
//! has a [`StreamHandle`] of a link, and shares a [`StreamFlow`] with the link's task. `links`
//! holds the links of a thread. `faults` has the log texts for faults of peers, and a [`ReadHead`]
//! is the head of a response of any HTTP version. `proto::h1` and `proto::h2::client` implement the
//! protocols.
//!
//! The user of a connection, such as a request, is a [`Caller`](upstream::Caller): this crate knows
//! neither requests nor directives.

mod acquire;
mod faults;
mod flow;
mod link;
mod links;
mod read_head;
mod stream;
mod stream_end;

pub use acquire::{Acquired, acquire};
pub use faults::{INFORMATIONAL_MAX, TOO_LARGE, TOO_MANY_INFORMATIONAL};
pub use flow::{ReceivedBytes, StreamFlow, StreamHead};
pub use links::{LinkOptions, Permit};
pub use read_head::ReadHead;
pub use stream::{Sender, StreamHandle};
pub use stream_end::StreamEnd;
