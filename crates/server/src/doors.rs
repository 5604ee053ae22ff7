//! What the server's threads accept for: one door for each protocol.

use std::rc::Rc;
use std::sync::Arc;

use framework::counters::Counters;
use framework::door::Door;
use framework::generation::Generation;
use framework::workers::Worker;
use http::log::ToErrorLog;

/// The doors of a thread.
pub fn doors() -> Vec<Rc<dyn Door>> {
    vec![http::door::door()]
}

/// The worker of a thread that is no one of [`framework::workers::Workers`]: for one question, or in a simulated network.
pub fn worker(
    generation: Arc<Generation>,
    connections_max: usize,
    counters: Arc<Counters>,
) -> Rc<Worker> {
    Worker::start(generation, connections_max, counters, doors(), &ToErrorLog)
}
