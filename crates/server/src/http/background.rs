//! Subrequests that run beside a request: nobody waits for their answers, which go to nobody.
//!
//! As in nginx, the request's line in the access log and the next request of its connection come
//! after them, so that a client cannot have more of them at work than its connections allow; the
//! response itself waits for none. A request that is given up takes them with it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use engine::select::{Either, either};

use crate::http::exchange::Exchange;
use crate::http::exchange::memory::Recorder;
use crate::http::request::{self, Request};
use crate::{log, panics};

/// The background subrequests of one request. Those that still run are given up when it is
/// dropped.
#[derive(Default)]
pub struct Background(Vec<Rc<Task>>);

/// One of them, as the request and its own task see it.
#[derive(Default)]
struct Task {
    ended: Cell<bool>,
    given_up: Cell<bool>,
    /// Wakes the task itself.
    worker: RefCell<Option<Waker>>,
    /// Wakes the request that waits for its end.
    waiter: RefCell<Option<Waker>>,
}

impl Background {
    /// Starts a subrequest, which begins when the caller waits next.
    pub fn start(&mut self, child: Box<Request>) {
        let task = Rc::new(Task::default());
        self.0.push(Rc::clone(&task));
        engine::spawn(run(child, task));
    }

    /// Waits until all have ended.
    pub async fn ended(&self) {
        for task in &self.0 {
            poll_fn(|context| {
                if task.ended.get() {
                    return Poll::Ready(());
                }
                task.waiter.replace(Some(context.waker().clone()));
                Poll::Pending
            })
            .await;
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        for task in &self.0 {
            task.given_up.set(true);
            let worker = task.worker.take();
            worker.into_iter().for_each(Waker::wake);
        }
    }
}

/// Says that the task has ended, however it did.
struct End(Rc<Task>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.ended.set(true);
        let waiter = self.0.waiter.take();
        waiter.into_iter().for_each(Waker::wake);
    }
}

async fn run(mut child: Box<Request>, task: Rc<Task>) {
    let end = End(task);
    let given_up = poll_fn(|context| match end.0.given_up.get() {
        true => Poll::Ready(()),
        false => {
            end.0.worker.replace(Some(context.waker().clone()));
            Poll::Pending
        }
    });
    let mut nobody = Exchange::memory(Recorder::default());
    let answered = Box::pin(request::handle(&mut child, &mut nobody));
    match panics::catch(either(answered, given_up)).await {
        // Whatever came of it has been logged.
        Ok(Either::First(_)) if child.plan.core.log_subrequest => log::write_access(&mut child),
        Ok(_) => {}
        Err(panics::Panicked { place, message }) => {
            child.connection.worker.counts().panics.add(1);
            log::error!(
                child,
                Alert,
                "panicked at {place}: {message}: the background subrequest is lost"
            );
        }
    }
    drop(child);
    drop(end);
}
