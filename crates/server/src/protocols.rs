//! The list of all protocols that the server speaks with its clients. No other file names the
//! protocols: directives, variables and connection handlers are collected from this list.

use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use conf::{Declared, Registry};
use framework::compile::Feature;
use framework::connection_handler::ConnectionHandler;
use framework::counters::Counters;
use framework::generation::Generation;
use framework::protocol_part::{Directives, ProtocolPart};
use framework::workers::Worker;
use logs::{ErrorLog, ErrorLogReporter};

use crate::events::Events;
use crate::features::FEATURES;

/// Every protocol's part of a server.
pub const PARTS: &[&dyn ProtocolPart] =
    &[&FEATURES, stream::part::STREAM, memcached::part::MEMCACHED];

/// Directives that do not belong to any protocol.
pub(crate) const DIRECTIVES: &[Directives] = &[Events::DIRECTIVES, ErrorLog::DIRECTIVES];

/// All directives of the server. A directive that several modules use occurs several times.
pub fn directives() -> impl Iterator<Item = &'static dyn Declared> {
    let of_parts = PARTS.iter().flat_map(|part| part.directives());
    let tables = DIRECTIVES.iter().copied().chain(of_parts);
    tables.flatten().copied()
}

/// The directives of all parts, and those of the caller (of the process).
pub fn registry(others: &'static [&'static [&'static dyn Declared]]) -> &'static Registry {
    static NAMES: OnceLock<Vec<&'static str>> = OnceLock::new();
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| {
        let of_parts = PARTS.iter().flat_map(|part| part.directives());
        let tables = DIRECTIVES.iter().copied().chain(of_parts);
        let tables: Vec<_> = tables.chain(others.iter().copied()).collect();
        let names = NAMES.get_or_init(|| {
            let names = PARTS.iter().flat_map(|part| part.module_names());
            names.collect()
        });
        Registry::new(&tables)
            .with_modules(names)
            .with_elsewhere(crate::reference::ELSEWHERE)
            .with_removed(crate::reference::removed)
    })
}

/// Whether a protocol has a built-in variable with this name (in lower case, without `$`).
pub fn has_variable(name: &str) -> bool {
    PARTS.iter().any(|part| part.has_variable(name))
}

/// A connection handler for each protocol, for one thread.
pub fn handlers() -> Vec<Rc<dyn ConnectionHandler>> {
    PARTS.iter().map(|part| part.handler()).collect()
}

/// A worker for a thread outside [`framework::workers::Workers`]: to answer a question, or in a
/// simulated network.
pub fn worker(
    generation: Arc<Generation>,
    connections_max: usize,
    counters: Arc<Counters>,
) -> Rc<Worker> {
    Worker::start(
        generation,
        connections_max,
        counters,
        handlers(),
        &ErrorLogReporter,
    )
}
