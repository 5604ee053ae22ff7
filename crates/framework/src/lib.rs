//! What everything that serves builds on, as containers that name no protocol and no module: what
//! directives amount to ([`compile`]), what is gathered meanwhile ([`registry`]), the
//! [`generation`] that comes of it with what each thread keeps for it ([`slot`]), [`zone`]s and
//! [`service`]s that outlive it, what of zones another process goes on with ([`handover`]), and
//! what is counted ([`counters`]). Beside them stand what all read and show alike: addresses,
//! networks, the machine's name, foreign bytes.

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
