//! Robustness: what clients, upstreams, files, logs, limits and signals can do to a running server.
//!
//! Every test starts servers of its own on free ports of the loopback, on each engine, and stops
//! them by their process number. Upstreams are closures in threads. What is compared with nginx
//! byte by byte is in tests/parity; here it is what lasts: no request is taken for another, none
//! is lost, nothing hangs and the server goes on.
//!
//! `TIDEGATE_ENGINES` names the engines (see `support::engines`).

mod client;
mod server;
mod upstream;

mod addresses;
mod connections;
mod crash;
mod drip;
mod fairness;
mod files;
mod framing;
mod leaving;
mod limits;
mod logs;
mod process;
mod proxying;
mod reload;
