//! The queue of a group (`queue`): requests that wait because no peer is available, in order of
//! arrival, over all threads.
//!
//! ```text
//!             no peer is free                  a peer is free again
//! (a request) ───────────────▶ waits ────────────────────────────────▶ called ── asks for a peer ──▶ (goes on)
//!                                │  leaves, or its time is over            │  leaves: the next is called
//!                                └──────────▶ (gone) ◀────────────────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use engine::select::either;

/// How often a waiting request looks for a peer without being called: no call announces that the
/// `fail_timeout` of a failed peer is over.
const LOOK: Duration = Duration::from_secs(1);

/// The waiting requests of a group. Joining, calling and leaving take logarithmic time.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    /// Number of waiting requests, to be read without the lock.
    length: AtomicUsize,
}

#[derive(Debug, Default)]
struct Waiting {
    /// The waker of each waiting request, by number in order of arrival.
    places: BTreeMap<u64, Option<Waker>>,
    /// The numbers of the requests that have not been called.
    uncalled: BTreeSet<u64>,
    next: u64,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        self.length.load(Ordering::Relaxed)
    }

    /// Whether no request waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls the first request that has not been called: a peer may be available.
    pub(crate) fn call_next(&self) {
        if self.is_empty() {
            return;
        }
        let mut waiting = self.lock();
        let first = waiting.uncalled.pop_first();
        let place = first.and_then(|number| waiting.places.get_mut(&number));
        let waker = place.and_then(Option::take);
        drop(waiting);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Joins the end of the queue; `None` if `length_max` requests wait already.
    pub(crate) fn enter(self: &Arc<Queue>, length_max: usize) -> Option<QueueTicket> {
        let mut waiting = self.lock();
        if waiting.places.len() >= length_max {
            return None;
        }
        let number = waiting.next;
        waiting.next += 1;
        waiting.places.insert(number, None);
        waiting.uncalled.insert(number);
        self.length.store(waiting.places.len(), Ordering::Relaxed);
        drop(waiting);
        Some(QueueTicket {
            queue: Arc::clone(self),
            number,
        })
    }
}

/// A request's place in the queue, until dropped. If the request leaves the queue after it was
/// called, the next request is called, because the peer may still be free.
#[derive(Debug)]
pub struct QueueTicket {
    queue: Arc<Queue>,
    number: u64,
}

impl QueueTicket {
    /// Waits until a peer may be available. Another request may take the peer first; this request
    /// then waits again, at the same place in the queue.
    pub async fn called(&self) {
        let calling = poll_fn(|context| {
            let mut waiting = self.queue.lock();
            if waiting.uncalled.insert(self.number) {
                return Poll::Ready(());
            }
            waiting
                .places
                .insert(self.number, Some(context.waker().clone()));
            Poll::Pending
        });
        either(calling, engine::sleep(LOOK)).await;
    }
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        let mut waiting = self.queue.lock();
        waiting.places.remove(&self.number);
        let was_called = !waiting.uncalled.remove(&self.number);
        self.queue
            .length
            .store(waiting.places.len(), Ordering::Relaxed);
        drop(waiting);
        if was_called {
            self.queue.call_next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_called(place: &QueueTicket) -> bool {
        !place.queue.lock().uncalled.contains(&place.number)
    }

    #[test]
    fn the_first_is_called_first_and_leaves_its_call_to_the_next() {
        let queue = Arc::<Queue>::default();
        let [first, second, third] = [(); 3].map(|()| queue.enter(3).unwrap());
        assert!(queue.enter(3).is_none());
        queue.call_next();
        assert!(is_called(&first) && !is_called(&second));
        queue.call_next();
        assert!(is_called(&second) && !is_called(&third));
        // The first leaves with an unused call.
        drop(first);
        assert!(is_called(&third));
        drop(second);
        drop(third);
        assert!(queue.is_empty());
        // A call of an empty queue does not call a request that comes later.
        queue.call_next();
        assert!(!is_called(&queue.enter(3).unwrap()));
    }
}
