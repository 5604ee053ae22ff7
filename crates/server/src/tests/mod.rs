//! Tests of everything together, in memory: what a client gets on the wire is for the tests of the
//! program.

mod api;
mod filters;
mod handlers;
mod handshake;
mod new_module;
mod panics;
mod second_protocol;
mod shortcuts;

use http::module::Entry;
use http::part::Modules;
use http::request::Request;
use http::testing::serve_by;

use crate::features::FEATURES;

/// Runs `work` in simulated time with a request of this head, under a configuration of all modules:
/// see [`serve_by`].
pub(crate) fn serve<T>(text: &str, head: &str, work: impl AsyncFnOnce(Request) -> T) -> T {
    serve_by(features(), text, head, work)
}

/// The directives of the process, which configurations of tests write too.
const PROCESS: Entry = Entry::of(crate::protocols::DIRECTIVES);

/// All modules.
pub(crate) fn features() -> Modules {
    features_and(PROCESS)
}

/// All modules and this one.
pub(crate) fn features_and(entry: Entry) -> Modules {
    let all = FEATURES.0.iter().copied().chain([PROCESS, entry]);
    Modules(Box::leak(all.collect()))
}
