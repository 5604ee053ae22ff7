//! Runs futures on a thread that may block, and lets its sleeps be interrupted.
//!
//! The API of `instant-acme` is asynchronous, but the futures here wait only for [`crate::http`],
//! which blocks. They are therefore ready at the first poll, and no runtime is needed.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to completion on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// A signal that stops a thread and interrupts its sleep.
#[derive(Clone, Default)]
pub(crate) struct StopSignal(Arc<(Mutex<bool>, Condvar)>);

impl StopSignal {
    pub(crate) fn stop(&self) {
        let (stopped, told) = &*self.0;
        *stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        told.notify_all();
    }

    /// Whether the thread has been told to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps for this time, or until the signal is set. Returns whether it is set.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        let (stopped, told) = &*self.0;
        let end = Instant::now() + time;
        let mut stopped = stopped.lock().unwrap_or_else(PoisonError::into_inner);
        while !*stopped {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            (stopped, _) = told
                .wait_timeout(stopped, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_future_that_is_woken_by_another_thread_ends() {
        let mut polls = 0;
        let value = block_on(std::future::poll_fn(|context| {
            polls += 1;
            if polls == 3 {
                return Poll::Ready(polls);
            }
            let waker = context.waker().clone();
            std::thread::spawn(move || waker.wake());
            Poll::Pending
        }));
        assert_eq!(value, 3);
    }

    #[test]
    fn sleeping_ends_when_somebody_says_so() {
        let stop = StopSignal::default();
        assert!(!stop.sleep(Duration::from_millis(1)));
        let other = stop.clone();
        let teller = std::thread::spawn(move || other.stop());
        assert!(stop.sleep(Duration::from_secs(3600)));
        assert!(stop.is_stopped());
        teller.join().unwrap();
    }
}
