//! What a configuration amounts to: from the `http` block ([`compile`]) to virtual servers and a
//! [`plan`] for every scope, and the directives of nginx's core module ([`core`]), which belong to
//! no single feature.

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
