//! Background work of a thread, such as the update of a cache entry. A thread that ends gracefully
//! finishes this work first.

use std::rc::Rc;

use super::{Worker, worker};

/// A guard for background work; the thread may end once the guard is dropped.
pub struct WorkGuard(Option<Rc<Worker>>);

impl WorkGuard {
    /// Registers background work on this thread. Without a worker on this thread, the guard has no
    /// effect.
    #[expect(
        clippy::new_without_default,
        reason = "that it is made means something"
    )]
    pub fn new() -> WorkGuard {
        let worker = worker::of_thread();
        if let Some(worker) = &worker {
            worker.held.set(worker.held.get() + 1);
        }
        WorkGuard(worker)
    }
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        if let Some(worker) = &self.0 {
            worker.held.set(worker.held.get() - 1);
            worker.end_if_idle();
        }
    }
}
