//! A connection to an upstream that requests share, as streams of HTTP/2 do: each of them takes a
//! place among `worker_connections`, as if it had a connection of its own.
//!
//! In nginx each has one. Were they free, a request that leads back to its own server would nest
//! until connections have as many streams as they may have, thousands in all.

use std::cell::Cell;
use std::rc::Rc;

use super::{NotEnough, Worker, worker};

/// The requests that share one connection. The first of them uses the place that the connection
/// has by itself.
pub struct Sharing {
    /// `None` on a thread that has no worker, which is not limited.
    worker: Option<Rc<Worker>>,
    requests: Cell<usize>,
}

impl Sharing {
    /// Of a connection that has just been made by this thread, and that no request uses yet.
    pub fn begin() -> Sharing {
        Sharing {
            worker: worker::of_thread(),
            requests: Cell::new(0),
        }
    }

    /// Whether one more request may [enter](Self::enter). It waits for that only where idle
    /// connections are about to end.
    ///
    /// # Errors
    /// No place is left.
    pub async fn has_room(&self) -> Result<(), NotEnough> {
        match &self.worker {
            Some(worker) if self.requests.get() > 0 => worker.has_room_for_outgoing().await,
            _ => Ok(()),
        }
    }

    /// A request begins to use the connection, until it [releases](Self::release) its place.
    pub fn enter(&self) {
        let others = self.requests.get();
        self.requests.set(others + 1);
        if let Some(worker) = self.worker.as_ref().filter(|_| others > 0) {
            worker.sharing.set(worker.sharing.get() + 1);
        }
    }

    /// A request that has entered uses it no more.
    pub fn release(&self) {
        let others = self.requests.get() - 1;
        self.requests.set(others);
        if let Some(worker) = self.worker.as_ref().filter(|_| others > 0) {
            worker.sharing.set(worker.sharing.get() - 1);
        }
    }
}
