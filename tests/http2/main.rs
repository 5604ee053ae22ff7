//! HTTP/2 towards clients and upstreams, and gRPC over it.

mod clients;
mod floods;
mod grpc;
mod http1_upstreams;
mod http2_upstreams;
mod streams;
