//! Work of a thread that no client waits for, such as an update of a cache beside service: where
//! the thread ends gracefully, that comes first.

use std::rc::Rc;

use super::{Worker, worker};

/// Such work; the thread may end when this is dropped.
pub struct Hold(Option<Rc<Worker>>);

impl Hold {
    /// Begins it on this thread. One without a worker ends as its owner says.
    #[expect(
        clippy::new_without_default,
        reason = "that it is made means something"
    )]
    pub fn new() -> Hold {
        let worker = worker::of_thread();
        if let Some(worker) = &worker {
            worker.held.set(worker.held.get() + 1);
        }
        Hold(worker)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(worker) = &self.0 {
            worker.held.set(worker.held.get() - 1);
            worker.end_if_idle();
        }
    }
}
