//! Subrequests that run in the background of a request, each in its own task.
//!
//! The responses of [`Background`] subrequests are discarded. The response of the request does not
//! wait for them. As in nginx, the request's access log line and the next request on its connection
//! do, so that a client cannot have more of them running than its connections allow. If the request
//! is cancelled, its background subrequests are cancelled too.
//!
//! A subrequest that [`detach`] starts continues after the end of the request and of its
//! connection, which do not wait for it.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use engine::select::{Either, either};
use framework::panics;
use framework::workers::WorkGuard;

use crate::exchange::Exchange;
use crate::exchange::abort::Abort;
use crate::logging::request_log;
use crate::request::phases;
use crate::request::{Request, Step};
use crate::subrequest::running::{AccessLogTiming, Background, Completed, RunningSubrequest, Task};

impl Background {
    /// Adds a subrequest that starts with the next [`Background::start`].
    pub fn hold(&mut self, child: Box<Request>) {
        self.held.push(child);
    }

    /// Starts the added subrequests, which begin to run when the caller waits next.
    pub fn start(&mut self) {
        for child in self.held.drain(..) {
            self.running.push(RunningSubrequest::start(
                child,
                Exchange::sink(),
                AccessLogTiming::AtItsEnd,
            ));
        }
    }

    /// Waits until all subrequests have ended.
    pub async fn ended(&mut self) {
        self.start();
        for running in &self.running {
            // The outcome has been logged.
            let _ = running.ended().await;
        }
    }
}

impl RunningSubrequest {
    /// Starts a subrequest, which begins to run when the caller waits next.
    pub fn start(
        child: Box<Request>,
        exchange: Exchange,
        line: AccessLogTiming,
    ) -> RunningSubrequest {
        let task = Rc::new(Task::default());
        engine::spawn(run(child, exchange, Rc::clone(&task), line));
        RunningSubrequest(task)
    }

    /// Waits for the subrequest's end. The first call returns the real outcome.
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

/// Marks the task as ended when dropped, even after a panic.
struct EndNotifier(Rc<Task>);

impl Drop for EndNotifier {
    fn drop(&mut self) {
        self.0.ended.set(true);
        let waiter = self.0.waiter.take();
        waiter.into_iter().for_each(Waker::wake);
    }
}

/// Runs a request of [`Request::detached`] with the content handler of its plan. The response is
/// dropped as soon as its head is available. A thread that ends gracefully waits for the
/// subrequest.
pub fn detach(mut child: Box<Request>) {
    let held = WorkGuard::new();
    engine::spawn(async move {
        let _held = held;
        let mut exchange = Exchange::sink();
        let answered = Box::pin(phases::content(&mut child, &mut exchange));
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

/// The task of a subrequest.
async fn run(
    mut child: Box<Request>,
    mut exchange: Exchange,
    task: Rc<Task>,
    line: AccessLogTiming,
) {
    let end = EndNotifier(task);
    let is_abandoned = poll_fn(|context| {
        if end.0.is_abandoned.get() {
            Poll::Ready(())
        } else {
            end.0.worker.replace(Some(context.waker().clone()));
            Poll::Pending
        }
    });
    let answered = Box::pin(phases::handle(&mut child, &mut exchange));
    match panics::catch(either(answered, is_abandoned)).await {
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
                // As in nginx, an upstream that breaks off only ends the included response. The
                // page continues after the received part.
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
