//! Queues for Unix sockets whose listen backlog is full: `connect()` fails with EAGAIN instead of
//! waiting. Requests that need a connection wait here, first come first served.
//!
//! Only the first request of a queue retries `connect()`: when a connection to the socket has
//! closed, or after a pause, since connections of other processes close unnoticed. There is one
//! queue for each socket path, shared by all threads, upstream groups and generations.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use engine::net::Address;
use engine::select::either;

use crate::moment::since_beginning;
use crate::wait_queue::WaitQueue;

/// Maximum number of requests that wait for one socket.
const WAITING_MAX: usize = 10_000;

/// Maximum expected time until the response of a new request; if the estimate is longer, the
/// request is rejected at once instead of queued. The estimate covers the queue and the requests
/// that the server has accepted but not yet answered.
const EXPECTED_WAIT_MAX: Duration = Duration::from_secs(6);

/// Pause after the first failed `connect()`; doubled after each further failure, up to `PAUSE_MAX`.
const PAUSE_MIN: Duration = Duration::from_millis(2);
/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Number of queues from which on empty queues are dropped. Below, an empty queue is kept for its
/// measured service rate.
const QUEUES_KEPT_MAX: usize = 100;

/// The queue of each socket whose backlog has been full. Only locked while a backlog is full, which
/// is rare, and for the time of one look-up.
static QUEUES: Mutex<BTreeMap<PathBuf, WaitQueue<Waiter>>> = Mutex::new(BTreeMap::new());

/// The number of queues that are not empty, to be read without the lock.
static BUSY_COUNT: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug, Default)]
struct Waiter {
    waker: Option<Waker>,
    /// The backlog may have room: retry now.
    is_called: bool,
}

type Queues = BTreeMap<PathBuf, WaitQueue<Waiter>>;

fn lock() -> MutexGuard<'static, Queues> {
    // No critical section can panic half-way, so a poisoned lock is still consistent.
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether requests wait for a connection to this address, so that a new request must queue behind
/// them.
pub fn is_full(address: &Address) -> bool {
    match address {
        Address::Unix(path) if BUSY_COUNT.load(Ordering::Acquire) > 0 => {
            let queues = lock();
            let queue = queues.get(path.as_path());
            queue.is_some_and(|queue| !queue.is_empty())
        }
        Address::Unix(_) | Address::Inet(_) => false,
    }
}

/// Notes that a connection to this address has closed, and wakes the first in the queue: the
/// backlog may have room.
pub(crate) fn note_end(address: &Address) {
    let Address::Unix(path) = address else { return };
    if BUSY_COUNT.load(Ordering::Acquire) > 0 {
        let mut queues = lock();
        let called = queues.get_mut(path.as_path()).and_then(call_first);
        drop(queues);
        called.into_iter().for_each(Waker::wake);
    }
}

/// Tells the first in the queue to retry; returns its waker if it sleeps.
fn call_first(queue: &mut WaitQueue<Waiter>) -> Option<Waker> {
    let first = queue.first()?;
    first.is_called = true;
    first.waker.take()
}

/// A request's place in the queue of a socket. Dropping it leaves the queue.
#[derive(Debug)]
pub struct BacklogSlot {
    path: PathBuf,
    number: u64,
    pause: Duration,
    is_connected: bool,
}

impl BacklogSlot {
    /// Joins the end of the queue. `None` if the queue is full, or if the expected wait exceeds
    /// `connect_timeout` or `EXPECTED_WAIT_MAX`. `unheard` is the number of requests that the peer
    /// has yet to answer, including those in the queue.
    pub fn wait(
        path: &Path,
        now: Instant,
        connect_timeout: Duration,
        unheard: usize,
    ) -> Option<BacklogSlot> {
        let mut queues = lock();
        if queues.len() >= QUEUES_KEPT_MAX {
            queues.retain(|_, queue| !queue.is_empty());
        }
        let queue = queues.entry(path.to_owned()).or_default();
        queue.pace().advance(since_beginning(now), true);
        let expected_wait_max = EXPECTED_WAIT_MAX.min(connect_timeout);
        let others = unheard.saturating_sub(queue.len() + 1);
        if queue.len() >= WAITING_MAX || !queue.has_room(others, expected_wait_max, true) {
            let is_busy = !queue.is_empty();
            queue.pace().advance(since_beginning(now), is_busy);
            return None;
        }
        if queue.is_empty() {
            BUSY_COUNT.fetch_add(1, Ordering::Release);
        }
        let number = queue.join(Waiter::default());
        Some(BacklogSlot {
            path: path.to_owned(),
            number,
            pause: PAUSE_MIN,
            is_connected: false,
        })
    }

    /// Waits until this place is the first in the queue.
    pub async fn is_first(&self) {
        poll_fn(|context| {
            let mut queues = lock();
            let Some(queue) = queues.get_mut(&self.path) else {
                return Poll::Ready(());
            };
            if queue.is_first(self.number) {
                return Poll::Ready(());
            }
            if let Some(waiter) = queue.at(self.number) {
                waiter.waker = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// After a failed `connect()`, waits until this request should retry: until a connection to the
    /// socket has closed, or the pause is over.
    pub async fn pause(&mut self) {
        let called = poll_fn(|context| {
            let mut queues = lock();
            let waiter = queues
                .get_mut(&self.path)
                .and_then(|queue| queue.at(self.number));
            let Some(waiter) = waiter else {
                return Poll::Ready(());
            };
            if std::mem::take(&mut waiter.is_called) {
                return Poll::Ready(());
            }
            waiter.waker = Some(context.waker().clone());
            Poll::Pending
        });
        either(called, engine::sleep(self.pause)).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// Leaves the queue because the request has a connection, which counts for the queue's service
    /// rate.
    pub fn connected(mut self) {
        self.is_connected = true;
    }
}

impl Drop for BacklogSlot {
    fn drop(&mut self) {
        let now = since_beginning(engine::now());
        let mut queues = lock();
        let Some(queue) = queues.get_mut(&self.path) else {
            return;
        };
        let was_first = queue.is_first(self.number);
        queue.cancel(self.number);
        if self.is_connected {
            queue.pace().served();
        }
        let is_busy = !queue.is_empty();
        queue.pace().advance(now, is_busy);
        let mut called = None;
        if queue.is_empty() {
            BUSY_COUNT.fetch_sub(1, Ordering::Release);
        } else if was_first {
            called = call_first(queue);
        }
        drop(queues);
        called.into_iter().for_each(Waker::wake);
    }
}
