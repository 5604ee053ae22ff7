//! Small building blocks that every other room uses: slab, timer wheel, byte scans, a keyed hash map, named limits and
//! the levels of log lines.
//!
//! Nothing here does I/O, reads a clock or starts a thread, so that all of it can run under Miri.

pub mod hash;
pub mod level;
pub mod limits;
pub mod scan;
pub mod slab;
pub mod wheel;
