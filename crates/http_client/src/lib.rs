//! HTTP spoken with upstreams, for any caller: what is not a request's own.
//!
//! Connections of HTTP/2 are shared by requests:
//!
//! ```text
//! acquire ─┬▶ a link that has room ───────────────────┐
//!          └▶ a permit: the caller connects, and      │
//!             Permit::begin spawns the task of a link ┤
//!                                                     ▼
//!               StreamHandle::open ─▶ head, body ─▶ (answer) ─▶ dropped: the stream's place is free
//! ```
//!
//! A `link` is one connection; its task alone touches the transport. Each request has a
//! [`StreamHandle`] of it, whose [`StreamFlow`] is what it shares with that task. `links` are those
//! of a thread. `faults` has nginx's words for what peers do wrong, and a [`ReadHead`] is the head
//! of an answer by any version of HTTP. The protocols themselves are `proto::h1` and
//! `proto::h2::client`.
//!
//! A request, or what else asks, is a [`Caller`](upstream::Caller). What it sends, and what becomes
//! of the answer, is no business of this crate: it knows neither requests nor directives.

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
