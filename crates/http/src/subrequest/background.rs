//! Subrequests that run beside a request, each in a task of its own.
//!
//! The answers of [`Background`] subrequests go to no client. As in nginx, the request's line in
//! the access log and the next request of its connection come after them, so that a client cannot
//! have more of them at work than its connections allow; the response itself waits for none. A
//! request that is given up takes them with it.
//!
//! Neither its request nor its connection waits for what [`detach`] starts, and it goes on where
//! they end.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use engine::select::{Either, either};
use framework::panics;
use framework::workers::Hold;

use crate::exchange::{Abort, Exchange};
use crate::logging::request_log;
use crate::request::{self, Request, Step};

/// The background subrequests of one request. Those that still run are given up when it is
/// dropped.
#[derive(Default)]
pub struct Background {
    /// Those that have not started, in their order.
    #[expect(clippy::vec_box, reason = "their tasks take them in their boxes")]
    held: Vec<Box<Request>>,
    running: Vec<RunningSubrequest>,
}

impl Background {
    /// Takes a subrequest that starts with the next [`Background::start`].
    pub fn hold(&mut self, child: Box<Request>) {
        self.held.push(child);
    }

    /// Starts those that are held, which begin when the caller waits next.
    pub fn start(&mut self) {
        for child in self.held.drain(..) {
            self.running.push(RunningSubrequest::start(
                child,
                Exchange::sink(),
                AccessLogTiming::AtItsEnd,
            ));
        }
    }

    /// Waits until all have ended.
    pub async fn ended(&mut self) {
        self.start();
        for running in &self.running {
            // Whatever came of it has been logged.
            let _ = running.ended().await;
        }
    }
}

/// A subrequest at work. It is given up when this is dropped.
pub struct RunningSubrequest(Rc<Task>);

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
struct Task {
    /// What came of it, until the request takes it.
    outcome: Cell<Option<Result<Completed, Abort>>>,
    ended: Cell<bool>,
    given_up: Cell<bool>,
    /// Wakes the task itself.
    worker: RefCell<Option<Waker>>,
    /// Wakes the request that waits for its end.
    waiter: RefCell<Option<Waker>>,
}

impl RunningSubrequest {
    /// Starts a subrequest, which begins when the caller waits next.
    pub fn start(
        child: Box<Request>,
        exchange: Exchange,
        line: AccessLogTiming,
    ) -> RunningSubrequest {
        let task = Rc::new(Task::default());
        engine::spawn(run(child, exchange, Rc::clone(&task), line));
        RunningSubrequest(task)
    }

    /// Waits for its end: what it leaves, the first time.
    pub async fn ended(&self) -> Result<Completed, Abort> {
        let task = &self.0;
        poll_fn(|context| {
            if task.ended.get() {
                return Poll::Ready(());
            }
            task.waiter.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
        task.outcome.take().unwrap_or(Ok(Completed::default()))
    }
}

impl Drop for RunningSubrequest {
    fn drop(&mut self) {
        self.0.given_up.set(true);
        let worker = self.0.worker.take();
        worker.into_iter().for_each(Waker::wake);
    }
}

/// Says that the task has ended, however it did.
struct EndNotifier(Rc<Task>);

impl Drop for EndNotifier {
    fn drop(&mut self) {
        self.0.ended.set(true);
        let waiter = self.0.waiter.take();
        waiter.into_iter().for_each(Waker::wake);
    }
}

/// Has a request ([`Request::detached`]) answered by what answers in its plan. The answer is
/// dropped as soon as it has a head. A thread that ends gracefully waits for it.
pub fn detach(mut child: Box<Request>) {
    let held = Hold::new();
    engine::spawn(async move {
        let _held = held;
        let mut exchange = Exchange::sink();
        let answered = Box::pin(request::content(&mut child, &mut exchange));
        match panics::catch(answered).await {
            Ok(answered) => {
                if let Ok(Step::Finish(status)) = answered {
                    child.response.status = status;
                }
                if let Some(asked) = &child.upstream {
                    asked.end();
                }
                if child.plan.core.log_subrequest {
                    request_log::log(&mut child);
                }
            }
            Err(panicked) => note_panic(&child, &panicked),
        }
    });
}

fn note_panic(child: &Request, panicked: &panics::Panicked) {
    let panics::Panicked { place, message } = panicked;
    child.connection.worker.counts().panics.add(1);
    logs::error!(
        child,
        Alert,
        "panicked at {place}: {message}: the subrequest is lost"
    );
}

async fn run(
    mut child: Box<Request>,
    mut exchange: Exchange,
    task: Rc<Task>,
    line: AccessLogTiming,
) {
    let end = EndNotifier(task);
    let given_up = poll_fn(|context| {
        if end.0.given_up.get() {
            Poll::Ready(())
        } else {
            end.0.worker.replace(Some(context.waker().clone()));
            Poll::Pending
        }
    });
    let answered = Box::pin(request::handle(&mut child, &mut exchange));
    match panics::catch(either(answered, given_up)).await {
        Ok(Either::First(outcome)) => {
            let mut ended = Completed {
                status: child.response.status,
                sending: child.activity.sending,
                unlogged: None,
            };
            if child.plan.core.log_subrequest {
                match line {
                    AccessLogTiming::AtItsEnd => request_log::log(&mut child),
                    AccessLogTiming::InItsTurn => ended.unlogged = Some(child),
                }
            }
            let outcome = match (outcome, line) {
                // As in nginx an upstream that breaks off ends what is included; the page goes on
                // behind what came.
                (Ok(()), _) | (Err(Abort::Upstream), AccessLogTiming::InItsTurn) => Ok(ended),
                (Err(abort), _) => Err(abort),
            };
            end.0.outcome.set(Some(outcome));
        }
        Ok(Either::Second(())) => {}
        Err(panicked) => {
            note_panic(&child, &panicked);
            let lost = Abort::Internal("a subrequest was lost");
            end.0.outcome.set(Some(Err(lost)));
        }
    }
    drop(exchange);
    drop(end);
}
