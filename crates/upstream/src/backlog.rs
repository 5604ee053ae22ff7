//! Unix sockets that take no connection now because those that they have not accepted yet are as
//! many as they may be (`connect()` says EAGAIN): those who want to be connected wait here, first
//! come first served.
//!
//! Only the first tries, again and again: soon after a connection to the socket has ended, and now
//! and then by itself, since others use it as well. A line is that of a socket, whatever groups and
//! generations lead there, of all threads.

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

/// The most that wait for one socket.
const WAITING_MAX: usize = 10_000;

/// One that would have to wait for longer until its answer, by what is known when it comes, does
/// not begin to: the socket's backlog is to be waited for as well as the line.
const EXPECTED_MAX: Duration = Duration::from_secs(6);

/// How long the first pauses after its first try in vain, and twice as long after each further one
/// up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Lines in which none waits are kept, since they know how fast they have moved of late, up to so
/// many sockets.
const EMPTY_MAX: usize = 100;

/// The lines of sockets that have been full. Locked where a backlog is full, which is seldom, and
/// for as long as it takes to look up one of them.
static LINES: Mutex<BTreeMap<PathBuf, WaitQueue<Waits>>> = Mutex::new(BTreeMap::new());

/// In how many of them others wait, for those who look without locking.
static LINES_COUNT: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug, Default)]
struct Waits {
    waker: Option<Waker>,
    /// There may be room.
    is_called: bool,
}

type Lines = BTreeMap<PathBuf, WaitQueue<Waits>>;

fn lock() -> MutexGuard<'static, Lines> {
    // Nothing in these sections can panic half way.
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether others wait to be connected there: who comes now is behind them.
pub fn is_full(address: &Address) -> bool {
    match address {
        Address::Unix(path) if LINES_COUNT.load(Ordering::Acquire) > 0 => {
            let lines = lock();
            let line = lines.get(path.as_path());
            line.is_some_and(|line| !line.is_empty())
        }
        Address::Unix(_) | Address::Inet(_) => false,
    }
}

/// A connection there has ended: there may be room for another.
pub(crate) fn note_end(address: &Address) {
    let Address::Unix(path) = address else { return };
    if LINES_COUNT.load(Ordering::Acquire) > 0 {
        let mut lines = lock();
        let called = lines.get_mut(path.as_path()).and_then(call_first);
        drop(lines);
        called.into_iter().for_each(Waker::wake);
    }
}

fn call_first(line: &mut WaitQueue<Waits>) -> Option<Waker> {
    let first = line.first()?;
    first.is_called = true;
    first.waker.take()
}

/// A place among those who wait to be connected to a socket, until it is dropped.
#[derive(Debug)]
pub struct BacklogSlot {
    path: PathBuf,
    number: u64,
    pause: Duration,
    is_connected: bool,
}

impl BacklogSlot {
    /// Waits behind all others; `None` where too many wait already, or for too long.
    /// `connect_timeout` is how long it may wait, `unheard` how many requests the peer has still to
    /// answer, those that wait included.
    pub fn wait(
        path: &Path,
        now: Instant,
        connect_timeout: Duration,
        unheard: usize,
    ) -> Option<BacklogSlot> {
        let mut lines = lock();
        if lines.len() >= EMPTY_MAX {
            lines.retain(|_, line| !line.is_empty());
        }
        let line = lines.entry(path.to_owned()).or_default();
        line.pace().advance(since_beginning(now), true);
        let expected_max = EXPECTED_MAX.min(connect_timeout);
        let others = unheard.saturating_sub(line.len() + 1);
        if line.len() >= WAITING_MAX || !line.has_room(others, expected_max, true) {
            let is_busy = !line.is_empty();
            line.pace().advance(since_beginning(now), is_busy);
            return None;
        }
        if line.is_empty() {
            LINES_COUNT.fetch_add(1, Ordering::Release);
        }
        let number = line.join(Waits::default());
        Some(BacklogSlot {
            path: path.to_owned(),
            number,
            pause: PAUSE_MIN,
            is_connected: false,
        })
    }

    /// Waits until it is the first.
    pub async fn is_first(&self) {
        poll_fn(|context| {
            let mut lines = lock();
            let Some(line) = lines.get_mut(&self.path) else {
                return Poll::Ready(());
            };
            if line.is_first(self.number) {
                return Poll::Ready(());
            }
            if let Some(waits) = line.at(self.number) {
                waits.waker = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// It has tried in vain: waits until it is worth another try.
    pub async fn pause(&mut self) {
        let called = poll_fn(|context| {
            let mut lines = lock();
            let waits = lines
                .get_mut(&self.path)
                .and_then(|line| line.at(self.number));
            let Some(waits) = waits else {
                return Poll::Ready(());
            };
            if std::mem::take(&mut waits.is_called) {
                return Poll::Ready(());
            }
            waits.waker = Some(context.waker().clone());
            Poll::Pending
        });
        either(called, engine::sleep(self.pause)).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// It is connected, by whatever way.
    pub fn connected(mut self) {
        self.is_connected = true;
    }
}

impl Drop for BacklogSlot {
    fn drop(&mut self) {
        let now = since_beginning(engine::now());
        let mut lines = lock();
        let Some(line) = lines.get_mut(&self.path) else {
            return;
        };
        let was_first = line.is_first(self.number);
        line.cancel(self.number);
        if self.is_connected {
            line.pace().served();
        }
        let is_busy = !line.is_empty();
        line.pace().advance(now, is_busy);
        let mut called = None;
        if line.is_empty() {
            LINES_COUNT.fetch_sub(1, Ordering::Release);
        } else if was_first {
            called = call_first(line);
        }
        drop(lines);
        called.into_iter().for_each(Waker::wake);
    }
}
