//! HTTP/2 towards upstreams: what is a request's own there.
//!
//! Requests share connections, which are the business of the crate `http_client`: a request has a
//! stream of one. `dialogue` is what `proxy_pass` and `grpc_pass` have in common on it; `head` is a
//! request's, `upload` its body on the way, `body` that of the answer, `whole` an answer that is
//! read at once.

pub(super) mod body;
pub mod dialogue;
pub mod head;
pub mod upload;
pub mod whole;
