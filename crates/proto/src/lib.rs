//! Protocols without I/O and without a clock.
