//! Small building blocks that every other crate uses: slab, timer wheel, a queue that usually holds
//! one entry, byte scans (some with vector instructions), a keyed hash map, named limits, a
//! concurrent set of numbers, pieces of streams, a JSON writer, the levels of log lines, and
//! messages to syslog servers.
//!
//! Only [`syslog`] does I/O. Nothing here reads a clock or starts a thread, so the crate runs under
//! Miri.

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
