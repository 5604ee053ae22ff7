//! The handles by which a request gets the outcome of its running subrequests, or cancels them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

use crate::exchange::abort::Abort;
use crate::request::Request;

/// The background subrequests of one request. Dropping this value cancels those that are still
/// running.
#[derive(Default)]
pub struct Background {
    /// Subrequests that have not started, in order.
    #[expect(clippy::vec_box, reason = "their tasks take them in their boxes")]
    pub(super) held: Vec<Box<Request>>,
    /// The subrequests that have been started.
    pub(super) running: Vec<RunningSubrequest>,
}

/// The handle of a running subrequest. Dropping the handle cancels the subrequest.
pub struct RunningSubrequest(pub(super) Rc<Task>);

/// The outcome of a subrequest that has ended.
#[derive(Default)]
pub struct Completed {
    /// The status of the subrequest's response.
    pub status: u16,
    /// The activity while the subrequest's response was sent (see `Activity::sending`).
    pub sending: &'static str,
    /// The subrequest, if its access log line has not been written yet.
    pub unlogged: Option<Box<Request>>,
}

/// The time at which a subrequest's access log line is written, if `log_subrequest` is on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum AccessLogTiming {
    /// When the subrequest has ended.
    AtItsEnd,
    /// When the request that has included the subrequest takes [`Completed`], at the subrequest's
    /// position in the response. As in nginx, a subrequest whose position is never reached has no
    /// line.
    InItsTurn,
}

/// The state that a running subrequest's task shares with the request that has started it.
#[derive(Default)]
pub(super) struct Task {
    /// The outcome, until the request takes it.
    pub(super) outcome: Cell<Option<Result<Completed, Abort>>>,
    /// Whether the task has ended.
    pub(super) ended: Cell<bool>,
    /// Whether the handle was dropped, so that the subrequest is cancelled.
    pub(super) is_abandoned: Cell<bool>,
    /// The waker of the task.
    pub(super) worker: RefCell<Option<Waker>>,
    /// The waker of the request that waits for the task's end.
    pub(super) waiter: RefCell<Option<Waker>>,
}

impl Drop for RunningSubrequest {
    fn drop(&mut self) {
        self.0.is_abandoned.set(true);
        let worker = self.0.worker.take();
        worker.into_iter().for_each(Waker::wake);
    }
}
