//! The load tester behind `tidegate bench`: clients of HTTP/1.1 and HTTP/2 on the engine that the
//! server runs on, a thread per core.
//!
//! Read in this order: [`plan`] is what is to be done, `run.rs` starts the threads, `client` is one
//! connection of either protocol, `connection.rs` its bytes and [`tls`] what may lie between,
//! `response.rs` checks what comes back ([`grpc`] that of calls), [`tally`] counts, [`report`]
//! prints. `schedule.rs` says when requests start, [`drawn`] what changes from one to the next,
//! `machine.rs` what the machine allows and whether the tool itself was the limit. [`conditions`]
//! heads a report, [`saved`] keeps a run in a file, so that several can be merged.
//!
//! [`compare`] puts two servers side by side, [`statistics`] says what the figures of that allow to
//! say.
//!
//! [`memcached`] is load for memcached servers and [`echo`] load for proxies of TCP and UDP, apart
//! from all that.
//!
//! Not here: command lines (src/bench), the frames of HTTP/2 (`proto::h2`), proxies.

mod client;
pub mod compare;
pub mod conditions;
mod connection;
pub mod drawn;
pub mod echo;
pub mod grpc;
pub mod machine;
pub mod memcached;
pub mod plan;
mod reach;
pub mod report;
mod response;
mod run;
pub mod saved;
mod schedule;
pub mod statistics;
pub mod tally;
mod target;
pub mod tls;

pub use conditions::Conditions;
pub use plan::Plan;
pub use reach::reach;
pub use run::{Connections, First, Progress, RunResult, Sample, run};
pub use target::{Target, TargetError};
