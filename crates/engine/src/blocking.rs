//! A small thread pool, one per process, for calls that may block: opening and reading cold files,
//! resolving names.
//!
//! A thread is created when jobs wait and no thread is idle, up to [`THREADS_MAX`], and ends after
//! [`IDLE_TIME`] without work. In a simulation a job runs at once on the calling thread, so that
//! runs are repeatable.
//!
//! Jobs are [small](Weight::Small) or [large](Weight::Large). Small jobs are taken first, and some
//! threads take no large ones, so that reading a 4 KB page does not wait behind a dozen downloads
//! from a slow disk. [Unhurried](unhurried) jobs are gathered by one thread: it also runs those
//! that arrive meanwhile, naps, and checks once more before it leaves, so that many of them cost
//! one wake-up.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::remote::lock;
use crate::worker::try_enter;

/// The largest number of pool threads, for all runtimes of the process together.
const THREADS_MAX: usize = 32;

/// The number of pool threads that may run large jobs at the same time.
const LARGE_THREADS_MAX: usize = 24;

/// The number of small jobs that may be taken before a large one that has waited longer.
const OVERTAKEN_MAX: usize = 16;

/// The largest read from a file, in bytes, that counts as a small job.
const SMALL_READ_MAX: u64 = 64 * 1024;

/// How long the gathering thread naps before it checks for more unhurried jobs.
const NAP: Duration = Duration::from_millis(4);

/// The number of unhurried jobs that may wait for the gathering thread. If more wait, its jobs take
/// long, and other threads help.
const GATHERED_MAX: usize = 8;

/// How long a thread waits for its next job before it ends.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// Stack size of a pool thread, in bytes. The C library's resolver needs the most.
const STACK_SIZE: usize = 512 * 1024;

type Job = Box<dyn FnOnce() + Send>;

/// How long a job is likely to occupy its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// About one access to the disk.
    Small,
    /// Possibly many accesses to the disk.
    Large,
    /// Small, and no task waits for the result.
    Unhurried,
}

impl Weight {
    /// The weight of reading `length` bytes of a file.
    pub(crate) fn of_read(length: u64) -> Weight {
        if length <= SMALL_READ_MAX {
            Weight::Small
        } else {
            Weight::Large
        }
    }
}

#[derive(Default)]
struct Pool {
    small: VecDeque<Job>,
    large: VecDeque<Job>,
    unhurried: VecDeque<Job>,
    /// Whether a thread is gathering unhurried jobs, even if it naps.
    is_gathering: bool,
    /// The number of threads that are running a large job.
    busy_with_large: usize,
    /// The number of small jobs taken while the large job at the front waited.
    overtaken: usize,
    /// The number of pool threads.
    threads: usize,
    /// The number of threads that wait for a job.
    idle: usize,
}

impl Pool {
    fn push(&mut self, weight: Weight, job: Job) {
        match weight {
            Weight::Small => self.small.push_back(job),
            Weight::Large => self.large.push_back(job),
            Weight::Unhurried => self.unhurried.push_back(job),
        }
    }

    /// The number of unhurried jobs that threads other than the gathering one may take.
    fn ready_unhurried(&self) -> usize {
        let gathered = if self.is_gathering { GATHERED_MAX } else { 0 };
        self.unhurried.len().saturating_sub(gathered)
    }

    /// The number of waiting jobs that a thread may start now.
    fn ready(&self) -> usize {
        let large = LARGE_THREADS_MAX.saturating_sub(self.busy_with_large);
        self.small.len() + self.ready_unhurried() + self.large.len().min(large)
    }

    /// Removes the next job to run. A large one counts as running until [`Pool::done`].
    fn take(&mut self) -> Option<(Weight, Job)> {
        let may_be_large = self.busy_with_large < LARGE_THREADS_MAX && !self.large.is_empty();
        if (!may_be_large || self.overtaken < OVERTAKEN_MAX)
            && let Some(job) = self.small.pop_front()
        {
            self.overtaken += usize::from(may_be_large);
            return Some((Weight::Small, job));
        }
        if (!may_be_large || self.overtaken < OVERTAKEN_MAX)
            && self.ready_unhurried() > 0
            && let Some(job) = self.unhurried.pop_front()
        {
            self.overtaken += usize::from(may_be_large);
            return Some((Weight::Unhurried, job));
        }
        if !may_be_large {
            return None;
        }
        let job = self.large.pop_front()?;
        self.overtaken = 0;
        self.busy_with_large += 1;
        Some((Weight::Large, job))
    }

    /// Notes that a job which [`Pool::take`] returned has ended.
    fn done(&mut self, weight: Weight) {
        if weight == Weight::Large {
            self.busy_with_large -= 1;
        }
    }
}

static POOL: Mutex<Option<Pool>> = Mutex::new(None);
/// Wakes an idle thread when a job is queued.
static WORK: Condvar = Condvar::new();

/// Runs `f` on a pool thread and resolves to its result. The job is queued by the first poll and
/// then runs to completion, even if the future is dropped. A panic in `f` resumes in the task that
/// awaits the future.
///
/// The job counts as small; [`blocking_long`] is for jobs that may take long.
pub fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = T> {
    weighed(Weight::Small, f)
}

/// Like [`blocking`], for jobs that may take long: the job counts as large.
pub fn blocking_long<T: Send + 'static>(
    f: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = T> {
    weighed(Weight::Large, f)
}

/// Runs `f` on the pool without a result, for cleanup such as removing a file. Without a runtime,
/// and in a simulation, `f` runs at once on the calling thread. A panic in `f` is reported to the
/// panic hook.
///
/// [`finish_background`] waits for the job before the process ends.
pub fn background(f: impl FnOnce() + Send + 'static) {
    in_background(Weight::Small, f);
}

/// Runs a [`background`] job of the given weight.
fn in_background(weight: Weight, f: impl FnOnce() + Send + 'static) {
    if try_enter(|worker| worker.blocks_inline) != Some(false) {
        f();
        return;
    }
    let unfinished = ExitBlocker::new();
    let job = Box::new(move || {
        let _ = catch_unwind(AssertUnwindSafe(f));
        drop(unfinished);
    });
    run(weight, job);
}

/// Like [`background`], for jobs that may be delayed by some milliseconds, such as storing a
/// response that the client has already received. Many such jobs share one wake-up of a thread.
pub fn unhurried(f: impl FnOnce() + Send + 'static) {
    in_background(Weight::Unhurried, f);
}

/// Work that the process must finish before it ends: [`finish_background`] waits until this guard
/// is dropped, or until its deadline.
#[derive(Debug)]
pub struct ExitBlocker {
    /// Its number in the list of work with a deadline; `None` without a deadline.
    limited: Option<u64>,
}

impl ExitBlocker {
    /// Marks work as unfinished until dropped.
    #[expect(
        clippy::new_without_default,
        reason = "that it is made means something"
    )]
    pub fn new() -> ExitBlocker {
        lock(&BACKGROUND).unlimited += 1;
        ExitBlocker { limited: None }
    }

    /// Marks work as unfinished until dropped, or until `limit` has passed. The work is then
    /// abandoned, and reported under the name `what`.
    pub fn for_at_most(limit: Duration, what: &'static str) -> ExitBlocker {
        let mut left = lock(&BACKGROUND);
        let number = left.next;
        left.next += 1;
        let deadline = left.hastened(Instant::now() + limit);
        left.limited.push(Limited {
            number,
            deadline,
            what,
        });
        ExitBlocker {
            limited: Some(number),
        }
    }

    /// Whether the work has been abandoned, because its deadline has passed.
    pub fn is_given_up(&self) -> bool {
        let Some(number) = self.limited else {
            return false;
        };
        let left = lock(&BACKGROUND);
        let limited = left.limited.iter().find(|one| one.number == number);
        limited.is_none_or(|one| one.deadline <= Instant::now())
    }
}

impl Drop for ExitBlocker {
    fn drop(&mut self) {
        let mut left = lock(&BACKGROUND);
        match self.limited {
            Some(number) => left.limited.retain(|one| one.number != number),
            None => left.unlimited -= 1,
        }
        let is_awaited = left.waiting > 0;
        drop(left);
        // Notifying is a system call even if no thread waits.
        if is_awaited {
            BACKGROUND_DONE.notify_all();
        }
    }
}

/// Waits until all [`background`] jobs and all other [`ExitBlocker`] work of every thread is done.
/// Returns the names of the work whose deadline has passed; each is returned to only one of the
/// waiting threads.
pub fn finish_background() -> Vec<&'static str> {
    let mut given_up = Vec::new();
    let mut left = lock(&BACKGROUND);
    left.waiting += 1;
    loop {
        let now = Instant::now();
        left.limited.retain(|one| {
            let is_over = one.deadline <= now;
            given_up.extend(is_over.then_some(one.what));
            !is_over
        });
        if left.unlimited == 0 && left.limited.is_empty() {
            left.waiting -= 1;
            return given_up;
        }
        let first = left.limited.iter().map(|one| one.deadline).min();
        left = match first {
            Some(deadline) => {
                let waited = BACKGROUND_DONE.wait_timeout(left, deadline - now);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => BACKGROUND_DONE
                .wait(left)
                .unwrap_or_else(PoisonError::into_inner),
        };
    }
}

/// Shortens all deadlines to at most `limit` from now, because the process is about to end. This
/// includes deadlines that are set later.
pub fn shorten_background_deadlines(limit: Duration) {
    let mut left = lock(&BACKGROUND);
    let end = left.hastened(Instant::now() + limit);
    left.end = Some(end);
    for one in &mut left.limited {
        one.deadline = one.deadline.min(end);
    }
    drop(left);
    BACKGROUND_DONE.notify_all();
}

/// The work that the process finishes before it ends.
struct Background {
    /// The number of [`ExitBlocker`]s without a deadline.
    unlimited: usize,
    /// Threads in [`finish_background`], which are woken as work ends.
    waiting: usize,
    /// The [`ExitBlocker`]s with a deadline.
    limited: Vec<Limited>,
    /// The number of the next work with a deadline.
    next: u64,
    /// The latest deadline allowed, once the process has been
    /// [hastened](shorten_background_deadlines).
    end: Option<Instant>,
}

/// Work that is abandoned after its deadline.
struct Limited {
    number: u64,
    deadline: Instant,
    /// The name under which abandoned work is reported.
    what: &'static str,
}

impl Background {
    /// The earlier of `deadline` and `end`.
    fn hastened(&self, deadline: Instant) -> Instant {
        self.end.map_or(deadline, |end| end.min(deadline))
    }
}

static BACKGROUND: Mutex<Background> = Mutex::new(Background {
    unlimited: 0,
    waiting: 0,
    limited: Vec::new(),
    next: 0,
    end: None,
});
/// Wakes the threads in [`finish_background`] when work ends.
static BACKGROUND_DONE: Condvar = Condvar::new();

/// Like [`blocking`], with a given weight.
pub(crate) fn weighed<T: Send + 'static>(
    weight: Weight,
    f: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = T> {
    Blocking {
        f: Some(f),
        weight,
        shared: Arc::new(Mutex::new(JobResult {
            result: None,
            waker: None,
        })),
    }
}

/// Queues `job` for the pool.
pub(crate) fn run(weight: Weight, job: Job) {
    let mut guard = lock(&POOL);
    let pool = guard.get_or_insert_default();
    pool.push(weight, job);
    let ready = pool.ready();
    if weight == Weight::Unhurried && pool.ready_unhurried() == 0 {
        // The gathering thread checks again before it leaves.
        return;
    }
    if pool.idle >= ready {
        // Unlock first, since the woken thread takes the lock at once.
        drop(guard);
        WORK.notify_one();
        return;
    }
    if pool.threads >= THREADS_MAX || ready == 0 {
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

/// Handles a failed thread creation: if the pool has no thread at all, the queued jobs run on this
/// thread.
fn run_without_thread() {
    let mut guard = lock(&POOL);
    let pool = guard.get_or_insert_default();
    pool.threads -= 1;
    if pool.threads > 0 {
        return;
    }
    let small = std::mem::take(&mut pool.small);
    let unhurried = std::mem::take(&mut pool.unhurried);
    let large = std::mem::take(&mut pool.large);
    drop(guard);
    let all = small.into_iter().chain(unhurried).chain(large);
    all.for_each(|job| job());
}

/// The main loop of a pool thread.
fn work() {
    let mut guard = lock(&POOL);
    loop {
        let pool = guard.get_or_insert_default();
        if let Some((weight, job)) = pool.take() {
            if weight == Weight::Unhurried && !pool.is_gathering {
                pool.is_gathering = true;
                drop(guard);
                guard = gather(job);
                continue;
            }
            drop(guard);
            // A job catches its own panic for the task that awaits it; see `Blocking`.
            let _ = catch_unwind(AssertUnwindSafe(job));
            guard = lock(&POOL);
            guard.get_or_insert_default().done(weight);
            continue;
        }
        pool.idle += 1;
        let (woken, timeout) = WORK
            .wait_timeout(guard, IDLE_TIME)
            .unwrap_or_else(PoisonError::into_inner);
        guard = woken;
        let pool = guard.get_or_insert_default();
        pool.idle -= 1;
        if timeout.timed_out() && pool.ready() == 0 {
            pool.threads -= 1;
            return;
        }
    }
}

/// Runs unhurried jobs, starting with `job`, until none has arrived during a nap.
fn gather(job: Job) -> MutexGuard<'static, Option<Pool>> {
    let mut next = Some(job);
    loop {
        let has_napped = next.is_none();
        match next {
            Some(job) => {
                let _ = catch_unwind(AssertUnwindSafe(job));
            }
            None => std::thread::sleep(NAP),
        }
        let mut guard = lock(&POOL);
        let pool = guard.get_or_insert_default();
        next = pool.unhurried.pop_front();
        if next.is_none() && has_napped {
            pool.is_gathering = false;
            return guard;
        }
    }
}

/// The future of [`weighed`].
struct Blocking<F, T> {
    f: Option<F>,
    weight: Weight,
    shared: Arc<Mutex<JobResult<T>>>,
}

/// The state that the future shares with its job.
struct JobResult<T> {
    result: Option<std::thread::Result<T>>,
    waker: Option<Waker>,
}

// Nothing in `Blocking` is pinned: `f` is moved out and called elsewhere.
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
            let job = Box::new(move || {
                let result = catch_unwind(AssertUnwindSafe(f));
                let mut shared = lock(&shared);
                shared.result = Some(result);
                let waker = shared.waker.take();
                drop(shared);
                waker.into_iter().for_each(Waker::wake);
            });
            run(self.weight, job);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(small: usize, large: usize) -> Pool {
        let mut pool = Pool::default();
        (0..large).for_each(|_| pool.push(Weight::Large, Box::new(|| ())));
        (0..small).for_each(|_| pool.push(Weight::Small, Box::new(|| ())));
        pool
    }

    fn next(pool: &mut Pool) -> Option<Weight> {
        pool.take().map(|(weight, _)| weight)
    }

    #[test]
    fn small_jobs_go_first_but_not_for_ever() {
        let mut pool = pool(OVERTAKEN_MAX + 2, 1);
        for _ in 0..OVERTAKEN_MAX {
            assert_eq!(next(&mut pool), Some(Weight::Small));
        }
        assert_eq!(next(&mut pool), Some(Weight::Large));
        assert_eq!(next(&mut pool), Some(Weight::Small));
        assert_eq!(next(&mut pool), Some(Weight::Small));
        assert_eq!(next(&mut pool), None);
    }

    #[test]
    fn large_jobs_leave_threads_to_small_ones() {
        let mut pool = pool(0, LARGE_THREADS_MAX + 5);
        assert_eq!(pool.ready(), LARGE_THREADS_MAX);
        for _ in 0..LARGE_THREADS_MAX {
            assert_eq!(next(&mut pool), Some(Weight::Large));
        }
        assert_eq!((pool.ready(), next(&mut pool)), (0, None));
        pool.push(Weight::Small, Box::new(|| ()));
        assert_eq!((pool.ready(), next(&mut pool)), (1, Some(Weight::Small)));
        pool.done(Weight::Large);
        assert_eq!(next(&mut pool), Some(Weight::Large));
    }

    /// All in one test, since unfinished work belongs to the process.
    #[test]
    fn what_has_a_deadline_is_waited_for_until_then() {
        const LONG: Duration = Duration::from_secs(600);
        let begun = Instant::now();
        let work = ExitBlocker::for_at_most(LONG, "short work");
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            assert!(!work.is_given_up());
        });
        assert_eq!(finish_background(), [""; 0]);
        thread.join().unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(50));

        let work = ExitBlocker::for_at_most(Duration::from_millis(20), "long work");
        assert!(!work.is_given_up());
        assert_eq!(finish_background(), ["long work"]);
        assert!(work.is_given_up());
        assert_eq!(finish_background(), [""; 0], "it is told once");
        drop(work);

        let work = ExitBlocker::for_at_most(LONG, "work");
        let waiting = std::thread::spawn(finish_background);
        std::thread::sleep(Duration::from_millis(20));
        shorten_background_deadlines(Duration::from_millis(20));
        assert_eq!(waiting.join().unwrap(), ["work"]);
        drop(work);
        let late = ExitBlocker::for_at_most(LONG, "late work");
        shorten_background_deadlines(LONG);
        assert_eq!(finish_background(), ["late work"], "it stays hastened");
        drop(late);
        assert!(begun.elapsed() < LONG);
    }

    #[test]
    fn unhurried_jobs_wait_for_who_gathers_them_but_for_a_backlog() {
        let mut pool = pool(1, 1);
        pool.push(Weight::Unhurried, Box::new(|| ()));
        assert_eq!(pool.ready(), 3);
        pool.is_gathering = true;
        assert_eq!(pool.ready(), 2);
        assert_eq!(next(&mut pool), Some(Weight::Small));
        assert_eq!(next(&mut pool), Some(Weight::Large));
        assert_eq!(next(&mut pool), None);
        (0..GATHERED_MAX).for_each(|_| pool.push(Weight::Unhurried, Box::new(|| ())));
        assert_eq!(
            (pool.ready(), next(&mut pool)),
            (1, Some(Weight::Unhurried))
        );
        assert_eq!((pool.ready(), next(&mut pool)), (0, None));
        pool.is_gathering = false;
        for _ in 0..GATHERED_MAX {
            assert_eq!(next(&mut pool), Some(Weight::Unhurried));
        }
        assert_eq!(next(&mut pool), None);
    }

    /// One thread runs jobs that arrive one by one; while that thread is blocked, others run a
    /// backlog.
    #[test]
    fn unhurried_jobs_are_gathered() {
        use std::sync::mpsc::channel;
        const LONG: Duration = Duration::from_secs(60);
        let (send, done) = channel();
        let give = |number: usize, before: Box<dyn FnOnce() + Send>| {
            let send = send.clone();
            let job = move || {
                before();
                let _ = send.send((number, std::thread::current().id()));
            };
            run(Weight::Unhurried, Box::new(job));
        };
        let mut threads = Vec::new();
        for number in 0..20 {
            give(number, Box::new(|| ()));
            let (came, thread) = done.recv_timeout(LONG).unwrap();
            assert_eq!(came, number);
            threads.push(thread);
        }
        threads.dedup();
        // On a busy machine a nap may pass between two jobs.
        assert!(threads.len() < 5, "{threads:?}");

        let (begin, begun) = channel();
        let (open, gate) = channel::<()>();
        let hold_up = move || {
            begin.send(()).unwrap();
            gate.recv_timeout(LONG).unwrap();
        };
        give(100, Box::new(hold_up));
        begun.recv_timeout(LONG).unwrap();
        for number in 101..=100 + GATHERED_MAX + 3 {
            give(number, Box::new(|| ()));
        }
        let mut before: Vec<usize> = (0..3).map(|_| done.recv_timeout(LONG).unwrap().0).collect();
        before.sort_unstable();
        assert_eq!(before, [101, 102, 103]);
        open.send(()).unwrap();
        (0..=GATHERED_MAX).for_each(|_| {
            done.recv_timeout(LONG).unwrap();
        });
    }

    #[test]
    fn what_is_read_decides_about_the_weight() {
        assert_eq!(Weight::of_read(SMALL_READ_MAX), Weight::Small);
        assert_eq!(Weight::of_read(SMALL_READ_MAX + 1), Weight::Large);
    }
}
