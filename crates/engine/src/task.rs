//! Tasks: a slab of futures, and the queue of those that are ready to be polled.
//!
//! A waker's data is the index of its task and the number of its runtime, so cloning and dropping a
//! waker costs nothing. A wake-up on the runtime's own thread appends the index to a vector, which
//! the loop swaps for an empty one each turn. A wake-up from another thread goes to the runtime's
//! inbox, as one bit. Waking a task that has ended, or a later task with the same index, is
//! harmless, since futures tolerate spurious polls.
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
    /// A task is taken out of its slot while it is polled, so that the slab is not borrowed
    /// meanwhile.
    static TASKS: RefCell<Slab<Option<BoxedTask>>> = const { RefCell::new(Slab::new()) };
}

/// The tasks that are to be polled.
struct Queue {
    /// The number of this thread's runtime; 0 if there is none.
    runtime: u32,
    /// The runtime's handle for other threads.
    remote: Option<Remote>,
    /// The number of tasks for which the inbox has room.
    remote_room: u32,
    /// The indexes of tasks that are polled in the next round.
    ready: Vec<u32>,
    /// Tasks that have yielded: they are polled after the next wait.
    yielded: Vec<u32>,
    /// By task index: whether the task is in `ready`.
    queued: Vec<bool>,
    /// Whether the future of `block_on` is to be polled.
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

/// Spawns a task on this thread. It first runs when the current task waits.
///
/// A panic in the task ends only that task; the panic hook has reported it by then.
///
/// # Panics
/// If the thread has no runtime.
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

/// Yields to the other tasks and the kernel until the next turn.
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

/// Schedules the waker's task to be polled again after the next wait of the loop.
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

/// Attaches this thread's tasks to a runtime.
pub(crate) fn begin(remote: &Remote) {
    QUEUE.with_borrow_mut(|queue| {
        queue.runtime = remote.number();
        queue.remote = Some(remote.clone());
    });
}

/// Drops all tasks of this thread, including those that destructors of tasks spawn.
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

/// Marks a task of this thread as ready.
pub(crate) fn wake(index: u32) {
    QUEUE.with_borrow_mut(|queue| queue.wake(index));
}

/// Whether the future of `block_on` was woken since the last call.
pub(crate) fn take_main() -> bool {
    QUEUE.with_borrow_mut(|queue| std::mem::take(&mut queue.main))
}

/// Whether anything is ready to be polled.
pub(crate) fn any_ready() -> bool {
    QUEUE.with_borrow(|queue| queue.main || !queue.ready.is_empty() || !queue.yielded.is_empty())
}

/// Marks the tasks that have yielded as ready.
pub(crate) fn resume_yielded() {
    QUEUE.with_borrow_mut(|queue| {
        let mut yielded = std::mem::take(&mut queue.yielded);
        for index in yielded.drain(..) {
            queue.wake(index);
        }
        queue.yielded = yielded;
    });
}

/// Polls each task that was ready at the call once. False if none was. `batch` is a reused buffer.
pub(crate) fn poll_ready(batch: &mut Vec<u32>) -> bool {
    QUEUE.with_borrow_mut(|queue| {
        std::mem::swap(&mut queue.ready, batch);
        // Each task is in `ready` at most once, so a wake-up never allocates.
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

/// Polls a task once, and removes it if it has ended.
fn poll_task(index: u32) {
    let taken = TASKS.with_borrow_mut(|tasks| {
        let key = tasks.key_at(index)?;
        Some((key, tasks.get_mut(key)?.take()?))
    });
    let Some((key, mut task)) = taken else { return };

    let waker = waker(index);
    let mut context = Context::from_waker(&waker);
    budget::begin();
    // After a panic the future is only dropped.
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
    // SAFETY: the functions of the table treat the data as two numbers, never as an address. They
    // may be called on any thread, any number of times, and dropping does nothing, so they fulfil
    // the contract of `RawWaker`.
    unsafe { Waker::from_raw(raw) }
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(
    |data| RawWaker::new(data, &VTABLE),
    |data| wake_anywhere(data.addr()),
    |data| wake_anywhere(data.addr()),
    |_| {},
);

/// Wakes the task of a waker, on this thread or another.
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
