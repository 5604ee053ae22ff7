//! Tasks: a slab of futures, and the queue of those that are to be polled.
//!
//! A waker's data is the index of its task and the number of its runtime, so cloning and dropping
//! one costs nothing. A wake on the runtime's own thread appends the index to a vector, which the
//! loop swaps for an empty one each turn. A wake on another thread goes to the runtime's inbox,
//! where it is one bit. Waking a task that has ended, or another that took its place, does no harm:
//! futures bear being polled for nothing.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use base::slab::Slab;

use crate::budget;
use crate::remote::{self, MAIN, Remote};

type BoxedTask = Pin<Box<dyn Future<Output = ()>>>;

thread_local! {
    static QUEUE: RefCell<Queue> = const { RefCell::new(Queue::new()) };
    /// A task is taken out while it is polled, so that the slab is not borrowed then.
    static TASKS: RefCell<Slab<Option<BoxedTask>>> = const { RefCell::new(Slab::new()) };
}

/// Which tasks are to be polled.
struct Queue {
    /// The runtime of this thread, 0 for none.
    runtime: u32,
    /// How other threads reach it.
    remote: Option<Remote>,
    /// For the wakes of how many tasks there is room there.
    remote_room: u32,
    ready: Vec<u32>,
    /// Tasks that let others go first: they are polled after the next wait.
    yielded: Vec<u32>,
    /// By index: whether the task is in `ready`.
    queued: Vec<bool>,
    main: bool,
}

impl Queue {
    const fn new() -> Queue {
        Queue {
            runtime: 0,
            remote: None,
            remote_room: 0,
            ready: Vec::new(),
            yielded: Vec::new(),
            queued: Vec::new(),
            main: false,
        }
    }

    fn wake(&mut self, index: u32) {
        if index == MAIN {
            self.main = true;
            return;
        }
        let place = index as usize;
        if place >= self.queued.len() {
            self.queued.resize(place + 1, false);
        }
        if !std::mem::replace(&mut self.queued[place], true) {
            self.ready.push(index);
        }
    }
}

/// Starts a task on this thread. It runs when the current task waits next.
///
/// A panic in it ends that task alone; the panic hook has been told by then.
///
/// # Panics
/// When the thread has no runtime.
pub fn spawn(future: impl Future<Output = ()> + 'static) {
    let future: BoxedTask = Box::pin(future);
    QUEUE.with_borrow_mut(|queue| {
        assert!(queue.runtime != 0, "this thread has no tidegate runtime");
        let key = TASKS.with_borrow_mut(|tasks| tasks.insert(Some(future)));
        if key.index >= queue.remote_room
            && let Some(remote) = &queue.remote
        {
            queue.remote_room = remote.make_room(key.index + 1);
        }
        queue.wake(key.index);
    });
}

/// Lets the other tasks and the kernel have their turn.
pub fn yield_now() -> impl Future<Output = ()> {
    let mut yielded = false;
    poll_fn(move |context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        yield_task(context.waker());
        Poll::Pending
    })
}

/// Has the task of this waker polled again after the next wait of the loop.
pub(crate) fn yield_task(waker: &Waker) {
    let data = waker.data().addr();
    let ours = QUEUE.with_borrow_mut(|queue| {
        let ours = std::ptr::eq(waker.vtable(), &VTABLE) && runtime_of(data) == queue.runtime;
        if ours {
            queue.yielded.push(index_of(data));
        }
        ours
    });
    if !ours {
        waker.wake_by_ref();
    }
}

/// Makes this runtime the one that this thread's tasks belong to.
pub(crate) fn begin(remote: &Remote) {
    QUEUE.with_borrow_mut(|queue| {
        queue.runtime = remote.number();
        queue.remote = Some(remote.clone());
    });
}

/// Drops all tasks of this thread, those too that are started by the destructors of others.
pub(crate) fn end() {
    loop {
        let key = TASKS.with_borrow(|tasks| tasks.iter().next().map(|(key, _)| key));
        let Some(key) = key else { break };
        let task = TASKS.with_borrow_mut(|tasks| tasks.remove(key));
        let _ = catch_unwind(AssertUnwindSafe(|| drop(task)));
    }
    QUEUE.with_borrow_mut(|queue| *queue = Queue::new());
    TASKS.with_borrow_mut(|tasks| *tasks = Slab::new());
}

/// The waker of a task of this thread's runtime.
pub(crate) fn waker(index: u32) -> Waker {
    let runtime = QUEUE.with_borrow(|queue| queue.runtime);
    waker_of(runtime, index)
}

/// Queues a task of this thread.
pub(crate) fn wake(index: u32) {
    QUEUE.with_borrow_mut(|queue| queue.wake(index));
}

/// Whether the future of `block_on` was woken since it was last asked.
pub(crate) fn take_main() -> bool {
    QUEUE.with_borrow_mut(|queue| std::mem::take(&mut queue.main))
}

/// Whether anything is to be polled.
pub(crate) fn any_ready() -> bool {
    QUEUE.with_borrow(|queue| queue.main || !queue.ready.is_empty() || !queue.yielded.is_empty())
}

/// Queues the tasks that have let others go first.
pub(crate) fn resume_yielded() {
    QUEUE.with_borrow_mut(|queue| {
        let mut yielded = std::mem::take(&mut queue.yielded);
        for index in yielded.drain(..) {
            queue.wake(index);
        }
        queue.yielded = yielded;
    });
}

/// Polls each task that was ready when this was called, once. False when none was. `batch` is room
/// to work in.
pub(crate) fn poll_ready(batch: &mut Vec<u32>) -> bool {
    QUEUE.with_borrow_mut(|queue| {
        std::mem::swap(&mut queue.ready, batch);
        // Each task stands there once: to wake one never allocates.
        queue.ready.reserve(queue.queued.len());
        for &index in batch.iter() {
            queue.queued[index as usize] = false;
        }
    });
    let any = !batch.is_empty();
    for index in batch.drain(..) {
        poll_task(index);
    }
    any
}

fn poll_task(index: u32) {
    let taken = TASKS.with_borrow_mut(|tasks| {
        let key = tasks.key_at(index)?;
        Some((key, tasks.get_mut(key)?.take()?))
    });
    let Some((key, mut task)) = taken else { return };

    let waker = waker(index);
    let mut context = Context::from_waker(&waker);
    budget::begin();
    // The future is not touched again after a panic, except to be dropped.
    let result = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(&mut context)));
    if matches!(result, Ok(Poll::Pending)) {
        TASKS.with_borrow_mut(|tasks| {
            if let Some(place) = tasks.get_mut(key) {
                *place = Some(task);
            }
        });
        return;
    }
    TASKS.with_borrow_mut(|tasks| tasks.remove(key));
    let _ = catch_unwind(AssertUnwindSafe(|| drop(task)));
}

const _: () = assert!(
    usize::BITS == 64,
    "a waker's data holds two numbers of 32 bits"
);

fn runtime_of(data: usize) -> u32 {
    (data >> 32) as u32
}

fn index_of(data: usize) -> u32 {
    data as u32
}

fn waker_of(runtime: u32, index: u32) -> Waker {
    let data = (runtime as usize) << 32 | index as usize;
    let raw = RawWaker::new(std::ptr::without_provenance(data), &VTABLE);
    // SAFETY: the functions of the table take the data for two numbers, never for an address; they
    // may be called on any thread, any number of times, and dropping does nothing. So the contract
    // of `RawWaker` holds trivially.
    unsafe { Waker::from_raw(raw) }
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(
    |data| RawWaker::new(data, &VTABLE),
    |data| wake_anywhere(data.addr()),
    |data| wake_anywhere(data.addr()),
    |_| {},
);

fn wake_anywhere(data: usize) {
    let (runtime, index) = (runtime_of(data), index_of(data));
    let here = QUEUE.try_with(|queue| {
        let mut queue = queue.borrow_mut();
        if queue.runtime == runtime {
            queue.wake(index);
        }
        queue.runtime == runtime
    });
    if here != Ok(true) {
        remote::wake_task(runtime, index);
    }
}
