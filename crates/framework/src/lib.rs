//! The base of all protocols and modules, which names none of them: compiling directives
//! ([`compile`]), collections that modules fill meanwhile ([`registry`]), the resulting
//! [`generation`] and the state that every thread keeps for it ([`slot`]), [`zone`]s and
//! [`service`]s that outlive a generation, the handover of zones to another process ([`handover`]),
//! [`counters`], and the threads that accept connections ([`workers`]). Further modules parse and
//! display what all protocols have in common: addresses, networks, the machine's name, untrusted
//! bytes.

pub mod address;
pub mod compile;
pub mod connection_handler;
pub mod counters;
pub mod display;
pub mod flag;
pub mod generation;
pub mod handover;
pub mod host;
pub mod idle;
pub mod network;
pub mod panics;
pub mod places;
pub mod protocol_part;
pub mod random;
pub mod registry;
pub mod reloads;
pub mod report;
pub mod service;
pub mod slot;
pub mod tables;
pub mod usage;
pub mod warm;
pub mod watch;
pub mod workers;
pub mod zone;
