//! HTTP/2 towards upstreams: requests share connections.
//!
//! ```text
//! tries::connect ─▶ links::acquire ─┬▶ a link that has room ──────────────┐
//!                                   └▶ connects, and link::begin spawns ──┤
//!                                      the task of a new one              ▼
//! conversation::talk ─▶ StreamHandle::open ─▶ head, upload ─▶ (answer) ─▶ dropped: the stream's place is free
//! ```
//!
//! A `link` is one connection; its task alone touches the transport. Each request has a `stream` of
//! it, whose [`StreamFlow`](flow::StreamFlow) is what it shares with that task. `links` are those
//! of a thread.
//! `dialogue` is what `proxy_pass` and `grpc_pass` have in common; `head` is a request's, `upload`
//! its body on the way, `body` that of the answer, `whole` an answer that is read at once, `faults`
//! has nginx's words for what peers do wrong. The protocol itself is `proto::h2::client`.

pub(super) mod body;
pub mod dialogue;
mod faults;
mod flow;
pub mod head;
mod link;
pub(super) mod links;
pub mod stream;
pub mod upload;
pub mod whole;
