//! Memory that a thread has had to use in a busy time, given back after it.
//!
//! Spare buffers that lie unused for a second go, half of them each time. When most connections of
//! a thread are gone, and no more of them go, what has asked for it ([`on_rest`]) gives its own
//! memory back, and the allocator is told to give pages back that it keeps between what is still in
//! use (malloc_trim(3)). A thread that has nothing to give back sets no timer, so an idle one
//! sleeps.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::blocking::{self, Weight};
use crate::buffer;
use crate::pooled_future;
use crate::worker::{self, Reactor, Timer};

/// How often a thread that has spare memory looks at it, in milliseconds.
const INTERVAL_MS: u64 = 1000;

/// How often the allocator is told at most because of what others say, in milliseconds: a busy
/// thread has such moments all the time.
const TRIM_INTERVAL_MS: u64 = 10_000;

/// Streams that a thread must have had for the allocator to be told: fewer leave little behind.
const STREAMS_MIN: usize = 32;

/// Of how many streams one may be left then.
const LEFT: usize = 8;

thread_local! {
    /// What else gives memory back.
    static OTHERS: RefCell<Vec<fn()>> = const { RefCell::new(Vec::new()) };
    /// They are to do so, and the allocator then.
    static DUE: Cell<Option<Allocator>> = const { Cell::new(None) };
}

/// Has `give_back` called after every busy time of this thread from now on, at the end of a turn.
pub fn on_rest(give_back: fn()) {
    OTHERS.with_borrow_mut(|others| others.push(give_back));
}

/// Whether the allocator is told.
pub(crate) enum Allocator {
    Told,
    /// Simulated threads have no pool that could do it.
    NotTold,
}

/// A busy time is over.
pub(crate) fn rest_soon(allocator: Allocator) {
    DUE.set(Some(allocator));
}

/// At the end of a turn, while no state of the thread is borrowed: what is to give memory back does
/// so.
pub(crate) fn rest() {
    let Some(allocator) = DUE.take() else { return };
    let others = OTHERS.with_borrow(Vec::clone);
    others.iter().for_each(|give_back| give_back());
    if matches!(allocator, Allocator::Told) {
        trim();
    }
}

/// What a thread remembers for it.
#[derive(Default)]
pub(crate) struct Memory {
    /// The most streams since the allocator was last told.
    streams_max: usize,
    /// Those that there were when it was last looked at.
    streams_before: usize,
    /// Somebody has said that much has been let go.
    has_let_go: bool,
    /// When the allocator was last told, in milliseconds of the thread's clock.
    trimmed_ms: u64,
    /// Whether the timer runs.
    waiting: bool,
}

/// Tells the thread that memory of which it knows nothing by itself has been let go: a connection
/// has ended that was many requests at once. The allocator gives back what it keeps of that in a
/// while.
pub fn note_let_go() {
    worker::try_enter(|worker| worker.memory.has_let_go = true);
}

impl Reactor {
    /// Before each wait: sees to it that memory is looked at, if there may be some to give back.
    pub(crate) fn watch_memory(&mut self) {
        let streams = self.streams.len();
        self.memory.streams_max = self.memory.streams_max.max(streams);
        if !self.memory.waiting && (buffer::has_spares() || self.was_busy()) {
            self.memory.waiting = true;
            let then = self.clock.now_ms() + INTERVAL_MS;
            self.timers.schedule(then, Timer::Memory);
        }
    }

    /// The timer has fired.
    pub(crate) fn give_memory_back(&mut self) {
        self.memory.waiting = false;
        buffer::shrink();
        let streams = self.streams.len();
        let fall = std::mem::replace(&mut self.memory.streams_before, streams) > streams;
        let now = self.clock.now_ms();
        let is_due = now >= self.memory.trimmed_ms + TRIM_INTERVAL_MS || !self.memory.has_let_go;
        if self.was_busy() && is_due && !fall && !buffer::has_spares() {
            self.memory.streams_max = streams;
            self.memory.has_let_go = false;
            self.memory.trimmed_ms = now;
            self.spare_queues.clear();
            pooled_future::shrink();
            rest_soon(if self.blocks_inline {
                Allocator::NotTold
            } else {
                Allocator::Told
            });
        }
    }

    /// Whether most connections are gone, or much else is.
    fn was_busy(&self) -> bool {
        let most = self.memory.streams_max;
        self.memory.has_let_go || most >= STREAMS_MIN && self.streams.len() <= most / LEFT
    }
}

/// Tells the allocator, on a thread of the pool: it goes through all that is free. Threads that end
/// their busy time together need it once.
fn trim() {
    static UNDER_WAY: AtomicBool = AtomicBool::new(false);
    if UNDER_WAY.swap(true, Ordering::AcqRel) {
        return;
    }
    let job = Box::new(|| {
        trim_now();
        UNDER_WAY.store(false, Ordering::Release);
    });
    blocking::run(Weight::Large, job);
}

/// Has the allocator give back all pages that it keeps between what is in use. It goes through all
/// that is free: for threads beside service.
pub fn trim_now() {
    // Other allocators see to that by themselves.
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and leaves all that is in use where it is.
    unsafe {
        libc::malloc_trim(0);
    }
}
