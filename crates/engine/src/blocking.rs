//! A small thread pool of the process for calls that may block: opening and reading cold files, resolving names.
//!
//! Threads are made when jobs wait and none is idle, up to [`THREADS_MAX`], and end after [`IDLE_TIME`] without work. In a
//! simulation a job runs at once on the thread that asks, so that runs repeat.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::remote::lock;
use crate::worker::try_enter;

/// Most threads that block at the same time, for all runtimes of the process together.
const THREADS_MAX: usize = 32;

/// How long a thread waits for its next job before it ends.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// Stack of a pool thread. The C library's resolver is the hungriest job.
const STACK_SIZE: usize = 512 * 1024;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Pool {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

static POOL: Mutex<Option<Pool>> = Mutex::new(None);
static WORK: Condvar = Condvar::new();

/// Runs `f` on a thread of the pool and resolves to its result. It begins at the first poll and then runs to its end, even
/// if the future is dropped. A panic in `f` goes on in the task that awaits it.
pub fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = T> {
    Blocking {
        f: Some(f),
        shared: Arc::new(Mutex::new(Shared {
            result: None,
            waker: None,
        })),
    }
}

/// Gives `job` to the pool.
pub(crate) fn run(job: Job) {
    let mut guard = lock(&POOL);
    let pool = guard.get_or_insert_default();
    pool.jobs.push_back(job);
    if pool.idle >= pool.jobs.len() {
        WORK.notify_one();
        return;
    }
    if pool.threads >= THREADS_MAX {
        return;
    }
    pool.threads += 1;
    drop(guard);
    let thread = std::thread::Builder::new()
        .name("blocking".to_owned())
        .stack_size(STACK_SIZE)
        .spawn(work);
    if thread.is_err() {
        run_without_thread();
    }
}

/// The kernel gives no thread: if there is none at all, the jobs are done here, for want of anything better.
fn run_without_thread() {
    let mut guard = lock(&POOL);
    let pool = guard.get_or_insert_default();
    pool.threads -= 1;
    if pool.threads > 0 {
        return;
    }
    let jobs = std::mem::take(&mut pool.jobs);
    drop(guard);
    jobs.into_iter().for_each(|job| job());
}

/// The life of a pool thread.
fn work() {
    let mut guard = lock(&POOL);
    loop {
        let pool = guard.get_or_insert_default();
        if let Some(job) = pool.jobs.pop_front() {
            drop(guard);
            // Jobs keep their panics for whoever awaits them; see `Blocking`.
            let _ = catch_unwind(AssertUnwindSafe(job));
            guard = lock(&POOL);
            continue;
        }
        pool.idle += 1;
        let (woken, timeout) = WORK
            .wait_timeout(guard, IDLE_TIME)
            .unwrap_or_else(PoisonError::into_inner);
        guard = woken;
        let pool = guard.get_or_insert_default();
        pool.idle -= 1;
        if timeout.timed_out() && pool.jobs.is_empty() {
            pool.threads -= 1;
            return;
        }
    }
}

struct Blocking<F, T> {
    f: Option<F>,
    shared: Arc<Mutex<Shared<T>>>,
}

struct Shared<T> {
    result: Option<std::thread::Result<T>>,
    waker: Option<Waker>,
}

// Nothing in it is pinned: `f` is moved out and called elsewhere.
impl<F, T> Unpin for Blocking<F, T> {}

impl<F, T> Future for Blocking<F, T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        if let Some(f) = self.f.take() {
            if try_enter(|worker| worker.blocks_inline) == Some(true) {
                return Poll::Ready(f());
            }
            lock(&self.shared).waker = Some(context.waker().clone());
            let shared = Arc::clone(&self.shared);
            run(Box::new(move || {
                let result = catch_unwind(AssertUnwindSafe(f));
                let mut shared = lock(&shared);
                shared.result = Some(result);
                let waker = shared.waker.take();
                drop(shared);
                waker.into_iter().for_each(Waker::wake);
            }));
            return Poll::Pending;
        }
        let mut shared = lock(&self.shared);
        match shared.result.take() {
            Some(Ok(value)) => Poll::Ready(value),
            Some(Err(panic)) => {
                drop(shared);
                resume_unwind(panic)
            }
            None => {
                shared.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
