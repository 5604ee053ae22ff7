//! Reaching a runtime from other threads: posted jobs and wake-ups, through an inbox and the engine's notifier.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use base::hash::Map;

use crate::engine::Notifier;
use crate::worker::enter;

type Job = Box<dyn FnOnce() + Send>;

/// A handle on a runtime for other threads. Cheap to clone.
#[derive(Clone)]
pub struct Remote(Arc<Inbox>);

struct Inbox {
    number: u32,
    notifier: Notifier,
    /// Set when the inbox holds something that the runtime was told about.
    full: AtomicBool,
    content: Mutex<Content>,
}

#[derive(Default)]
struct Content {
    closed: bool,
    jobs: Vec<Job>,
    wakes: Vec<u32>,
}

/// The runtimes of this process by number, for wake-ups across threads.
static RUNTIMES: Mutex<Option<Map<u32, Weak<Inbox>>>> = Mutex::new(None);

/// The current thread's runtime, as other threads may use it.
///
/// # Panics
/// When the thread has no runtime.
#[must_use]
pub fn remote() -> Remote {
    enter(|worker| worker.remote.clone())
}

impl Remote {
    /// Has `job` run on the runtime's thread, between two tasks. Without effect when the runtime has ended.
    ///
    /// Jobs of one thread run in the order in which they were posted. A panic in one is told to the panic hook and ends
    /// that job alone.
    pub fn post(&self, job: Box<dyn FnOnce() + Send>) {
        self.0.put(|content| content.jobs.push(job));
    }

    pub(crate) fn new(notifier: Notifier) -> Remote {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        // Number 0 means "no runtime"; after 2^32 runtimes of one process it would be skipped here.
        let number = NEXT.fetch_add(1, Ordering::Relaxed).max(1);
        let inbox = Arc::new(Inbox {
            number,
            notifier,
            full: AtomicBool::new(false),
            content: Mutex::default(),
        });
        lock(&RUNTIMES)
            .get_or_insert_default()
            .insert(number, Arc::downgrade(&inbox));
        Remote(inbox)
    }

    pub(crate) fn number(&self) -> u32 {
        self.0.number
    }

    /// What came since the last time. Costs one load when nothing has.
    pub(crate) fn take(&self) -> Option<(Vec<Job>, Vec<u32>)> {
        if !self.0.full.load(Ordering::Acquire) {
            return None;
        }
        let mut content = lock(&self.0.content);
        self.0.full.store(false, Ordering::Release);
        Some((
            std::mem::take(&mut content.jobs),
            std::mem::take(&mut content.wakes),
        ))
    }

    /// Takes nothing any more; jobs that were not run are dropped.
    pub(crate) fn close(&self) {
        if let Some(runtimes) = lock(&RUNTIMES).as_mut() {
            runtimes.remove(&self.0.number);
        }
        let mut content = lock(&self.0.content);
        content.closed = true;
        let jobs = std::mem::take(&mut content.jobs);
        drop(content);
        drop(jobs);
    }
}

impl Inbox {
    fn put(&self, add: impl FnOnce(&mut Content)) {
        let mut content = lock(&self.content);
        if content.closed {
            return;
        }
        add(&mut content);
        let told = self.full.swap(true, Ordering::AcqRel);
        drop(content);
        if !told {
            self.notifier.notify();
        }
    }
}

/// Wakes a task of another thread's runtime; nothing happens when that has ended.
pub(crate) fn wake_task(runtime: u32, index: u32) {
    let inbox = lock(&RUNTIMES)
        .as_ref()
        .and_then(|runtimes| runtimes.get(&runtime)?.upgrade());
    if let Some(inbox) = inbox {
        inbox.put(|content| content.wakes.push(index));
    }
}

/// Locks, also after a panic of another holder: these sections only push to vectors and maps.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
