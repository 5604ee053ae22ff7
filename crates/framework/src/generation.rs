//! One compiled configuration (a generation), and the state that each thread keeps for it.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use base::hash::Map;

use crate::counters::ThreadCounters;
use crate::service::Service;
use crate::slot::{Slot, SlotStates, Thread, ThreadGeneration, ThreadState};
use crate::zone::Zones;

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// The number of generations that still exist, except those of [`Generation::without_requests`].
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// The number of generations that requests, connections or threads still use.
pub fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// A compiled configuration. It is dropped when the last request that uses it ends.
pub struct Generation {
    /// Serial number within the process, from 1.
    pub number: u64,
    /// State that all threads share by name, and that the next generation may take over.
    pub zones: Zones,
    /// The background services that this configuration wants.
    pub services: Vec<Arc<dyn Service>>,
    /// Whether the configuration needs the turns of the event loop counted.
    pub counts_turns: bool,
    parts: Map<TypeId, Arc<dyn Any + Send + Sync>>,
    on_end: Option<Box<dyn FnOnce() + Send + Sync>>,
    /// Whether the generation counts in [`live`].
    is_counted: bool,
}

impl Generation {
    /// A generation with these zones and without parts.
    pub fn new(zones: Zones) -> Generation {
        LIVE.fetch_add(1, Ordering::Relaxed);
        let mut generation = Generation::without_requests(zones);
        generation.is_counted = true;
        generation
    }

    /// A generation for a thread that serves no requests. It stands for no configuration and does
    /// not count in [`live`], so that the thread keeps no configuration alive.
    pub fn without_requests(zones: Zones) -> Generation {
        Generation {
            is_counted: false,
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            zones,
            services: Vec::new(),
            counts_turns: false,
            parts: Map::default(),
            on_end: None,
        }
    }

    /// Adds the compiled part of a protocol or a module, which is looked up by its type and dropped
    /// with the generation.
    pub fn add<T: Any + Send + Sync>(&mut self, part: T) {
        self.parts.insert(TypeId::of::<T>(), Arc::new(part));
    }

    /// The part of this type. Threads look it up only once, when they start to serve, since a
    /// lookup costs a hash and an increment of a shared counter.
    pub fn part<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let part = self.parts.get(&TypeId::of::<T>())?;
        Arc::clone(part).downcast().ok()
    }

    /// Sets a function to be called when the last request of the generation has ended.
    pub fn on_end(&mut self, hook: impl FnOnce() + Send + Sync + 'static) {
        self.on_end = Some(Box::new(hook));
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if self.is_counted {
            LIVE.fetch_sub(1, Ordering::Relaxed);
        }
        self.parts.clear();
        if let Some(hook) = self.on_end.take() {
            hook();
        }
    }
}

/// One worker thread's view of a generation, with the modules' state for that thread and
/// generation. Requests hold the view by `Rc`, so serving one touches no counter that another
/// thread touches.
pub struct GenerationView {
    /// The generation, shared by all threads.
    pub generation: Arc<Generation>,
    /// The counters of the thread, over all generations.
    pub counts: Arc<ThreadCounters>,
    retired: Cell<bool>,
    /// The modules' state for this thread and generation.
    rooms: SlotStates,
    /// The modules' state that the thread keeps over all generations.
    rooms_of_thread: Rc<SlotStates>,
}

impl GenerationView {
    /// A thread's view of its first generation.
    pub fn new(generation: Arc<Generation>, counts: Arc<ThreadCounters>) -> GenerationView {
        GenerationView {
            generation,
            counts,
            retired: Cell::new(false),
            rooms: SlotStates::default(),
            rooms_of_thread: Rc::default(),
        }
    }

    /// The same thread's view of the next generation. Both views share the state that the thread
    /// keeps over all generations.
    pub fn followed_by(&self, generation: Arc<Generation>) -> GenerationView {
        GenerationView {
            rooms_of_thread: Rc::clone(&self.rooms_of_thread),
            ..GenerationView::new(generation, Arc::clone(&self.counts))
        }
    }

    /// Whether a newer generation has replaced this one on this thread.
    pub fn is_retired(&self) -> bool {
        self.retired.get()
    }

    /// A module's state for this thread and generation, created at the first call.
    pub fn at<T: ThreadState>(&self, slot: &Slot<T, ThreadGeneration>) -> Rc<RefCell<T>> {
        self.rooms.at(slot, self)
    }

    /// A module's state for this thread over all generations, created at the first call.
    pub fn of_thread<T: ThreadState>(&self, slot: &Slot<T, Thread>) -> Rc<RefCell<T>> {
        self.rooms_of_thread.at(slot, self)
    }

    /// Drops the caches among the thread's state, because the thread is ending.
    pub fn retire_thread(&self) {
        self.rooms_of_thread.retire();
    }

    /// Drops the caches of this view, because a newer generation has replaced it on this thread.
    pub fn retire(&self) {
        self.retired.set(true);
        self.rooms.retire();
    }
}
