//! Timers for tasks. Dropping a [`Sleep`] cancels it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use base::slab::Key;
use base::wheel::Entry;

use crate::clock::{self, Deadline};
use crate::worker::{Timer, enter, try_enter};

/// Waits for `duration`, counted from the beginning of this turn of the loop. The resolution is one
/// millisecond; the wait never ends early.
pub fn sleep(duration: Duration) -> Sleep {
    // A duration that overflows the clock, such as `Duration::MAX`, is replaced by a century.
    let deadline = clock::now().checked_add(duration);
    sleep_until(deadline.unwrap_or_else(|| clock::now() + Duration::from_secs(3_155_760_000)))
}

/// Waits until `deadline`. The resolution is one millisecond; the wait never ends early.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep {
        deadline,
        sleeper: None,
    }
}

/// The future of [`sleep`] and [`sleep_until`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep {
    deadline: Instant,
    /// The record of the sleep in the thread's table, once it was polled.
    sleeper: Option<Key>,
}

/// The thread's record of a started sleep.
pub(crate) struct Sleeper {
    waker: Option<Waker>,
    /// The entry in the timer wheel, until it fires.
    entry: Option<Entry>,
}

impl Sleeper {
    /// Notes that the timer wheel has removed the entry, and returns the waker to call.
    pub(crate) fn fire(&mut self) -> Option<Waker> {
        self.entry = None;
        self.waker.take()
    }
}

impl Sleep {
    /// The deadline of the sleep.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let (deadline, sleeper) = (self.deadline, self.sleeper);
        let waiting = enter(|worker| {
            let deadline_ms = Deadline::from(Some(deadline)).ms();
            if deadline_ms <= worker.clock.now_ms() {
                return None;
            }
            let waker = Some(context.waker().clone());
            if let Some(key) = sleeper
                && let Some(sleeper) = worker.sleepers.get_mut(key)
            {
                sleeper.waker = waker;
                return Some(key);
            }
            let key = worker.sleepers.insert(Sleeper { waker, entry: None });
            let entry = worker.timers.schedule(deadline_ms, Timer::Sleeper(key));
            if let Some(sleeper) = worker.sleepers.get_mut(key) {
                sleeper.entry = Some(entry);
            }
            Some(key)
        });
        match waiting {
            Some(key) => {
                self.sleeper = Some(key);
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let Some(key) = self.sleeper else { return };
        try_enter(|worker| {
            if let Some(sleeper) = worker.sleepers.remove(key)
                && let Some(entry) = sleeper.entry
            {
                worker.timers.cancel(entry);
            }
        });
    }
}
