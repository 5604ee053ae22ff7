//! A flag that any thread raises, and that a task of one thread waits for.
//!
//! For rare events, such as the end of a service: it takes a lock. Unlike a channel it has no
//! queue: raising a flag that is up changes nothing.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// A handle to a flag; all clones have the same one.
#[derive(Clone, Debug, Default)]
pub struct Flag(Arc<Mutex<FlagState>>);

#[derive(Debug, Default)]
struct FlagState {
    is_up: bool,
    /// The last task that has begun to wait.
    waiting: Option<Waker>,
}

impl Flag {
    fn lock(&self) -> MutexGuard<'_, FlagState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raises the flag, and wakes the task that waits for it.
    pub fn raise(&self) {
        let waiting = {
            let mut state = self.lock();
            state.is_up = true;
            state.waiting.take()
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits until the flag is up, and leaves it up. Of several waiting tasks, only the task that
    /// began to wait last is woken.
    pub async fn wait(&self) {
        poll_fn(|context| {
            let mut state = self.lock();
            if state.is_up {
                return Poll::Ready(());
            }
            state.waiting = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Waits until the flag is up, and lowers it.
    pub async fn take(&self) {
        self.wait().await;
        self.lock().is_up = false;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn it_is_up_until_it_is_taken() {
        let flag = Flag::default();
        let mut context = Context::from_waker(Waker::noop());
        let mut waits = pin!(flag.wait());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        assert!(flag.lock().waiting.is_some());
        flag.clone().raise();
        assert!(flag.lock().waiting.is_none(), "it has been woken");
        assert!(waits.as_mut().poll(&mut context).is_ready());
        assert!(pin!(flag.take()).poll(&mut context).is_ready());
        assert!(pin!(flag.take()).poll(&mut context).is_pending());
    }
}
