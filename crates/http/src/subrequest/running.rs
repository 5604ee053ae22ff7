//! Subrequests at work, as the request sees them that has started them: what they leave, and how
//! they are given up.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

use crate::exchange::abort::Abort;
use crate::request::Request;

/// The background subrequests of one request. Those that still run are given up when it is
/// dropped.
#[derive(Default)]
pub struct Background {
    /// Subrequests that have not started, in order.
    #[expect(clippy::vec_box, reason = "their tasks take them in their boxes")]
    pub(super) held: Vec<Box<Request>>,
    pub(super) running: Vec<RunningSubrequest>,
}

/// A subrequest at work. It is given up when this is dropped.
pub struct RunningSubrequest(pub(super) Rc<Task>);

/// What a subrequest that has ended leaves.
#[derive(Default)]
pub struct Completed {
    /// The status of its response.
    pub status: u16,
    /// What was being done while its response was sent (see `Activity::sending`).
    pub sending: &'static str,
    /// The subrequest, where its line of the access log is still to be written.
    pub unlogged: Option<Box<Request>>,
}

/// When the line of the access log is written, where `log_subrequest` asks for one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum AccessLogTiming {
    /// As soon as the subrequest has ended.
    AtItsEnd,
    /// By the request that takes [`Completed`], once the subrequest's turn has come: as in nginx
    /// one whose turn never comes has no line.
    InItsTurn,
}

/// A running subrequest, as its task and the request that has started it see it.
#[derive(Default)]
pub(super) struct Task {
    /// What came of it, until the request takes it.
    pub(super) outcome: Cell<Option<Result<Completed, Abort>>>,
    pub(super) ended: Cell<bool>,
    pub(super) given_up: Cell<bool>,
    /// Wakes the task itself.
    pub(super) worker: RefCell<Option<Waker>>,
    /// Wakes the request that waits for its end.
    pub(super) waiter: RefCell<Option<Waker>>,
}

impl Drop for RunningSubrequest {
    fn drop(&mut self) {
        self.0.given_up.set(true);
        let worker = self.0.worker.take();
        worker.into_iter().for_each(Waker::wake);
    }
}
