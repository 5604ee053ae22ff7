//! The compiled configuration of HTTP: the `http` block is compiled ([`compile`]) into virtual
//! servers and a [`plan`] for every scope. The directives of nginx's core module ([`core`]) are
//! here too.

pub mod address;
pub mod compile;
pub mod core;
pub mod http3;
pub mod ignored_directives;
pub mod listen;
pub mod location;
pub mod plan;
pub mod plan_builder;
pub mod server_tokens;
pub mod tables;
pub mod tasks;
pub mod temporary_paths;
pub mod types;
