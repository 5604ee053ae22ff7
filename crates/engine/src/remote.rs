//! Access to a runtime from other threads: posted jobs and wake-ups, through an inbox and the
//! engine's notifier.
//!
//! A wake-up is one bit, so repeated wake-ups of a task are merged. The notifier is signalled once
//! for everything that arrives before the runtime checks its inbox.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use base::hash::Map;
use base::marks::Marks;

use crate::notifier::Notifier;

type Job = Box<dyn FnOnce() + Send>;

/// The index that stands for the future given to `block_on`, which is not in the slab of tasks.
pub(crate) const MAIN: u32 = u32::MAX;

/// A handle of a runtime for other threads. Cheap to clone.
#[derive(Clone)]
pub struct Remote(Arc<Inbox>);

/// The state that the handles of a runtime share with it.
struct Inbox {
    number: u32,
    notifier: Notifier,
    /// Set while the inbox holds something for which the runtime was notified.
    full: AtomicBool,
    /// Tasks to be polled, by index. Room for a task is made when the task is spawned.
    woken: Marks,
    /// Whether the future of `block_on` is to be polled.
    main_woken: AtomicBool,
    posted: Mutex<Posted>,
}

/// The jobs that other threads have posted.
#[derive(Default)]
struct Posted {
    /// The runtime has ended, so further jobs are dropped.
    closed: bool,
    jobs: Vec<Job>,
}

/// The runtimes of this process by number, for wake-ups from other threads. Changes only when a
/// runtime starts or ends.
static RUNTIMES: RwLock<Option<Map<u32, Weak<Inbox>>>> = RwLock::new(None);

impl Remote {
    /// Runs `job` on the runtime's thread, between two tasks. Without effect if the runtime has
    /// ended.
    ///
    /// Jobs from one thread run in the order in which they were posted. A panic in a job is
    /// reported to the panic hook and ends only that job.
    pub fn post(&self, job: Box<dyn FnOnce() + Send>) {
        let mut posted = lock(&self.0.posted);
        if posted.closed {
            return;
        }
        posted.jobs.push(job);
        drop(posted);
        self.0.tell();
    }

    pub(crate) fn new(notifier: Notifier) -> Remote {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        // Number 0 means "no runtime"; this skips it if the counter wraps around.
        let number = NEXT.fetch_add(1, Ordering::Relaxed).max(1);
        let inbox = Arc::new(Inbox {
            number,
            notifier,
            full: AtomicBool::new(false),
            woken: Marks::new(),
            main_woken: AtomicBool::new(false),
            posted: Mutex::default(),
        });
        let mut runtimes = RUNTIMES.write().unwrap_or_else(PoisonError::into_inner);
        let runtimes = runtimes.get_or_insert_default();
        runtimes.insert(number, Arc::downgrade(&inbox));
        Remote(inbox)
    }

    pub(crate) fn number(&self) -> u32 {
        self.0.number
    }

    /// Makes room for wake-ups of the tasks below `count`, and returns for how many tasks there is
    /// room.
    pub(crate) fn make_room(&self, count: u32) -> u32 {
        self.0.woken.make_room(count)
    }

    /// Calls `wake` for the tasks woken since the last call, and moves the posted jobs into `jobs`,
    /// which must be empty. Costs one load if the inbox is empty.
    pub(crate) fn take(&self, jobs: &mut Vec<Job>, mut wake: impl FnMut(u32)) {
        let inbox = &self.0;
        if !inbox.full.load(Ordering::Acquire) {
            return;
        }
        // Clear `full` first, so that whatever arrives from now on notifies again.
        inbox.full.swap(false, Ordering::AcqRel);
        if inbox.main_woken.swap(false, Ordering::AcqRel) {
            wake(MAIN);
        }
        inbox.woken.take(wake);
        std::mem::swap(&mut lock(&inbox.posted).jobs, jobs);
    }

    /// Closes the inbox; jobs that have not run are dropped.
    pub(crate) fn close(&self) {
        let mut runtimes = RUNTIMES.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtimes) = runtimes.as_mut() {
            runtimes.remove(&self.0.number);
        }
        drop(runtimes);
        let mut posted = lock(&self.0.posted);
        posted.closed = true;
        let jobs = std::mem::take(&mut posted.jobs);
        drop(posted);
        drop(jobs);
    }
}

impl Inbox {
    /// Schedules a task to be polled. Repeated wake-ups before the runtime checks its inbox notify
    /// at most once, and nothing is allocated.
    fn wake(&self, index: u32) {
        let is_new = match index {
            MAIN => !self.main_woken.swap(true, Ordering::AcqRel),
            index => self.woken.add(index),
        };
        if is_new {
            self.tell();
        }
    }

    /// Ends the wait of the runtime after something was added, unless the runtime was already
    /// notified and has not checked its inbox since.
    fn tell(&self) {
        if !self.full.swap(true, Ordering::AcqRel) {
            self.notifier.notify();
        }
    }
}

/// Wakes a task of another thread's runtime. Without effect if that runtime has ended.
pub(crate) fn wake_task(runtime: u32, index: u32) {
    let runtimes = RUNTIMES.read().unwrap_or_else(PoisonError::into_inner);
    let known = runtimes.as_ref().and_then(|known| known.get(&runtime));
    let inbox = known.and_then(Weak::upgrade);
    drop(runtimes);
    if let Some(inbox) = inbox {
        inbox.wake(index);
    }
}

/// Locks the mutex even if it is poisoned: the critical sections only push to vectors and maps.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
