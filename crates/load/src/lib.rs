//! The load tester behind `tidegate bench`: clients of HTTP/1.1 and HTTP/2 on the engine that the
//! server runs on, a thread per core.
//!
//! Read in this order: [`plan`] is the run as the command line asks for it. `run.rs` starts the
//! threads. `client` drives one connection, of HTTP/1.1 or HTTP/2; `connection.rs` reads and writes
//! its bytes, through [`tls`] where the target is `https`. `response.rs` checks each response
//! ([`grpc`] checks those of gRPC calls), [`tally`] counts them, [`report`] prints the outcome.
//!
//! Other parts: `schedule.rs` decides when requests start, and [`drawn`] which numbers differ
//! between requests. `machine.rs` reads the limits of the machine and determines whether the load
//! tester itself was the bottleneck. [`conditions`] prints the first line of a report. [`saved`]
//! writes a run to a file, so that the runs of several machines can be merged.
//!
//! [`compare`] measures two servers of HTTP in turns, [`beside`] two of another protocol;
//! [`statistics`] decides whether their figures differ by more than noise.
//!
//! [`memcached`] and [`echo`] are load testers of their own, for memcached servers and for proxies
//! of TCP and UDP. They share the connections, the histograms and the statistics with the rest, and
//! none of the HTTP code.
//!
//! Not here: parsing command lines (src/bench), the frames of HTTP/2 (`proto::h2`), requests
//! through a forward proxy.

pub mod beside;
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
