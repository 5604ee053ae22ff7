//! `tidegate bench`, the load tester: each protocol, each mode, and whether its figures can be
//! trusted.

mod compare;
mod grpc;
mod http1;
mod http2;
mod modes;
mod tls;
mod trust;
