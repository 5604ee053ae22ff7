//! An upstream connection that several requests share, as HTTP/2 streams do: each request takes a
//! place of `worker_connections`, as if it had a connection of its own.
//!
//! In nginx every request has its own connection. If sharing requests took no place, a request that
//! is proxied back to its own server would be proxied again and again until the connections run out
//! of streams, after thousands of requests.

use std::cell::Cell;
use std::rc::Rc;

use super::{TooManyConnections, Worker, worker};

/// The requests that share one connection. The first of them uses the place of the connection
/// itself.
pub struct SharedRequests {
    /// `None` on a thread without a worker, which has no limit.
    worker: Option<Rc<Worker>>,
    /// The number of requests that use the connection.
    requests: Cell<usize>,
}

impl SharedRequests {
    /// The value for a connection that this thread has just established and no request uses yet.
    pub fn begin() -> SharedRequests {
        SharedRequests {
            worker: worker::of_thread(),
            requests: Cell::new(0),
        }
    }

    /// Checks that one more request may [enter](Self::enter). Waits only if idle connections are
    /// being closed.
    ///
    /// # Errors
    /// If no place is free.
    pub async fn has_room(&self) -> Result<(), TooManyConnections> {
        match &self.worker {
            Some(worker) if self.requests.get() > 0 => worker.has_room_for_outgoing().await,
            _ => Ok(()),
        }
    }

    /// Notes that a request starts to use the connection, until it [releases](Self::release) its
    /// place.
    pub fn enter(&self) {
        let others = self.requests.get();
        self.requests.set(others + 1);
        if let Some(worker) = self.worker.as_ref().filter(|_| others > 0) {
            worker.sharing.set(worker.sharing.get() + 1);
        }
    }

    /// Notes that a request no longer uses the connection.
    pub fn release(&self) {
        let others = self.requests.get() - 1;
        self.requests.set(others);
        if let Some(worker) = self.worker.as_ref().filter(|_| others > 0) {
            worker.sharing.set(worker.sharing.get() - 1);
        }
    }
}
