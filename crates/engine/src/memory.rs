//! Gives the memory that a thread needed in a busy time back to the allocator, and to the system.
//!
//! Half of the spare buffers that were unused for a second are freed each second. When most
//! connections of a thread have closed, and their number no longer falls, registered callbacks
//! ([`on_idle`]) free further memory, and the allocator returns free pages to the system
//! (malloc_trim(3)). A thread without memory to give back sets no timer, so an idle thread sleeps.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::blocking::{self, Weight};
use crate::buffer;
use crate::pooled_future;
use crate::worker::{self, Reactor, Timer};

/// Interval of the check for spare memory, in milliseconds.
const INTERVAL_MS: u64 = 1000;

/// Minimum interval of trims that [`note_freed`] causes, in milliseconds, since on a busy thread
/// it is called all the time.
const TRIM_INTERVAL_MS: u64 = 10_000;

/// A thread must have had this many streams for a trim to pay.
const STREAMS_MIN: usize = 32;

/// A trim is due when at most one in this many streams is left.
const LEFT: usize = 8;

thread_local! {
    /// Callbacks that free further memory.
    static OTHERS: RefCell<Vec<fn()>> = const { RefCell::new(Vec::new()) };
    /// `Some` if the callbacks are due; the value says whether the allocator is trimmed after them.
    static DUE: Cell<Option<Allocator>> = const { Cell::new(None) };
}

/// Registers a callback that frees memory. It is called after every busy time of this thread, at
/// the end of a turn.
pub fn on_idle(give_back: fn()) {
    OTHERS.with_borrow_mut(|others| others.push(give_back));
}

/// Whether the allocator is trimmed after a busy time.
pub(crate) enum Allocator {
    /// The allocator is trimmed.
    Told,
    /// The allocator is not trimmed, because simulated threads have no pool thread for it.
    NotTold,
}

/// Notes that a busy time has ended.
pub(crate) fn note_idle(allocator: Allocator) {
    DUE.set(Some(allocator));
}

/// Runs the callbacks if they are due. Called at the end of a turn, while the thread's state is not
/// borrowed.
pub(crate) fn rest() {
    let Some(allocator) = DUE.take() else { return };
    let others = OTHERS.with_borrow(Vec::clone);
    others.iter().for_each(|give_back| give_back());
    if matches!(allocator, Allocator::Told) {
        trim();
    }
}

/// The state of this module in a thread.
#[derive(Default)]
pub(crate) struct Memory {
    /// The largest number of streams since the last trim.
    streams_max: usize,
    /// The number of streams at the last check.
    streams_before: usize,
    /// [`note_freed`] was called since the last trim.
    has_freed_memory: bool,
    /// Time of the last trim, in milliseconds of the thread's clock.
    trimmed_ms: u64,
    /// Whether the timer is set.
    waiting: bool,
}

/// Notes that much memory unknown to this module was freed, such as that of a connection with many
/// concurrent requests. The allocator is trimmed some time later.
pub fn note_freed() {
    worker::try_enter(|worker| worker.memory.has_freed_memory = true);
}

impl Reactor {
    /// Sets the timer if there may be memory to give back. Called before each wait.
    pub(crate) fn watch_memory(&mut self) {
        let streams = self.streams.len();
        self.memory.streams_max = self.memory.streams_max.max(streams);
        if !self.memory.waiting && (buffer::has_spares() || self.was_busy()) {
            self.memory.waiting = true;
            let then = self.clock.now_ms() + INTERVAL_MS;
            self.timers.schedule(then, Timer::Memory);
        }
    }

    /// Handles the timer: frees spare buffers, and after a busy time also schedules the callbacks
    /// and the trim.
    pub(crate) fn give_memory_back(&mut self) {
        self.memory.waiting = false;
        buffer::shrink();
        let streams = self.streams.len();
        let fall = std::mem::replace(&mut self.memory.streams_before, streams) > streams;
        let now = self.clock.now_ms();
        let is_due =
            now >= self.memory.trimmed_ms + TRIM_INTERVAL_MS || !self.memory.has_freed_memory;
        if self.was_busy() && is_due && !fall && !buffer::has_spares() {
            self.memory.streams_max = streams;
            self.memory.has_freed_memory = false;
            self.memory.trimmed_ms = now;
            self.spare_queues.clear();
            pooled_future::shrink();
            note_idle(if self.blocks_inline {
                Allocator::NotTold
            } else {
                Allocator::Told
            });
        }
    }

    /// Whether most connections have closed, or [`note_freed`] was called.
    fn was_busy(&self) -> bool {
        let most = self.memory.streams_max;
        self.memory.has_freed_memory || most >= STREAMS_MIN && self.streams.len() <= most / LEFT
    }
}

/// Trims the allocator on a pool thread, because a trim walks all free memory. Threads that become
/// idle together cause one trim.
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

/// Returns all free pages of the allocator to the system. This walks all free memory, so call it
/// only on a thread that serves no connections.
pub fn trim_now() {
    // Other allocators return memory on their own.
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` takes no pointer, and does not move memory in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
