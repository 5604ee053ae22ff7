//! Small building blocks that every other room uses: slab, timer wheel, a queue of mostly one, byte
//! scans, some of them by vector instructions, a keyed hash map, named limits, a set of numbers
//! that threads share, pieces of streams, JSON that is written, the levels of log lines, and
//! messages to syslog servers.
//!
//! Nothing here but [`syslog`] does I/O, and nothing reads a clock or starts a thread, so that it
//! can run under Miri.

pub mod hash;
pub mod json;
pub mod level;
pub mod limits;
pub mod marks;
pub mod pieces;
pub mod queue;
pub mod scan;
pub mod slab;
pub mod syslog;
pub mod vector;
pub mod wheel;
