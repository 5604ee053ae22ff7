//! HTTP/2 to upstreams: the parts that belong to one request.
//!
//! The crate `http_client` manages the connections, which requests share: each request has a
//! stream. `dialogue` is the common part of `proxy_pass` and `grpc_pass`, `head` builds the head of
//! a request, `upload` sends its body, `body` reads the body of the response, and `whole` reads a
//! whole response for probes.

pub(super) mod body;
pub mod dialogue;
pub mod head;
pub mod upload;
pub mod whole;
