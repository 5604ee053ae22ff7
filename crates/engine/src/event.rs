//! A one-time event that any number of tasks of the same thread may wait for.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A one-time event of one thread.
#[derive(Debug, Default)]
pub struct Event {
    happened: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl Event {
    /// An event that has not happened.
    #[must_use]
    pub fn new() -> Event {
        Event::default()
    }

    /// Triggers the event, and wakes every waiting task.
    pub fn set(&self) {
        self.happened.set(true);
        for waker in self.waiting.take() {
            waker.wake();
        }
    }

    /// Whether the event has happened.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.happened.get()
    }

    /// Waits until the event has happened.
    pub async fn wait(&self) {
        poll_fn(|context| {
            if self.happened.get() {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::Context;

    #[test]
    fn waits_until_it_has_happened() {
        let event = Event::new();
        let mut context = Context::from_waker(Waker::noop());
        let mut waiting = pin!(event.wait());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        event.set();
        assert!(waiting.as_mut().poll(&mut context).is_ready());
        assert!(pin!(event.wait()).poll(&mut context).is_ready());
    }
}
