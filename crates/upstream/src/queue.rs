//! Requests that wait because no peer may be asked: in the order in which they have come, over all threads.
//!
//! ```text
//!             no peer is free                  a peer is free again
//! (a request) ───────────────▶ waits ────────────────────────────────▶ called ── asks for a peer ──▶ (goes on)
//!                                │  leaves, or its time is over            │  leaves: the next is called
//!                                └──────────▶ (gone) ◀────────────────────┘
//! ```

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use engine::select::either;

/// How often one who waits looks by itself: peers that had failed may be asked again after a time, which calls no one.
const LOOK: Duration = Duration::from_secs(1);

/// Those of a group who wait.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<VecDeque<Arc<Ticket>>>,
    /// How many there are, for those who look without locking.
    length: AtomicUsize,
}

#[derive(Debug, Default)]
struct Ticket(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    called: bool,
    waker: Option<Waker>,
}

impl Ticket {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls it, unless it has been called; whether it was waiting for that.
    fn call(&self) -> bool {
        let mut state = self.lock();
        let is_first = !std::mem::replace(&mut state.called, true);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        is_first
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Ticket>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.length.load(Ordering::Relaxed)
    }

    /// Whether no one waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A peer may be free: the first who has not been called is.
    pub(crate) fn call_next(&self) {
        if self.is_empty() {
            return;
        }
        let waiting = self.lock();
        let _ = waiting.iter().any(|ticket| ticket.call());
    }

    /// Waits behind all others; `None` where so many wait already.
    pub(crate) fn enter(self: &Arc<Queue>, length_max: usize) -> Option<Place> {
        let ticket = Arc::<Ticket>::default();
        let mut waiting = self.lock();
        if waiting.len() >= length_max {
            return None;
        }
        waiting.push_back(Arc::clone(&ticket));
        self.length.store(waiting.len(), Ordering::Relaxed);
        drop(waiting);
        Some(Place {
            queue: Arc::clone(self),
            ticket,
        })
    }
}

/// A place among those who wait, as long as it is held. One who has been called and leaves without having been served has the next
/// one called.
#[derive(Debug)]
pub struct Place {
    queue: Arc<Queue>,
    ticket: Arc<Ticket>,
}

impl Place {
    /// Waits until a peer may be free. It may be taken again by then: whoever finds none waits once more, in the same place.
    pub async fn called(&self) {
        let calling = poll_fn(|context| {
            let mut state = self.ticket.lock();
            if std::mem::take(&mut state.called) {
                return Poll::Ready(());
            }
            state.waker = Some(context.waker().clone());
            Poll::Pending
        });
        either(calling, engine::sleep(LOOK)).await;
    }

    /// It has what it waited for.
    pub fn served(self) {
        self.ticket.lock().called = false;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut waiting = self.queue.lock();
        waiting.retain(|ticket| !Arc::ptr_eq(ticket, &self.ticket));
        self.queue.length.store(waiting.len(), Ordering::Relaxed);
        drop(waiting);
        if self.ticket.lock().called {
            self.queue.call_next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_called(place: &Place) -> bool {
        place.ticket.lock().called
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
        // It leaves as it is called.
        drop(first);
        assert!(is_called(&third));
        second.served();
        third.served();
        assert!(queue.is_empty());
        // A call that finds no one is no call for who comes later.
        queue.call_next();
        assert!(!is_called(&queue.enter(3).unwrap()));
    }
}
