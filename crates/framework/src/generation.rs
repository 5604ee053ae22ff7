//! One compiled configuration, and what each thread keeps for it.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use base::hash::Map;

use crate::counters::ThreadCounters;
use crate::service::Service;
use crate::slot::{OfThread, Rooms, Slot, Thread, ThreadGeneration};
use crate::zone::Zones;

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// Generations that are still held.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// How many generations requests, connections or threads still use.
pub fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// A configuration that serves requests. It ends when the last request that uses it ends.
pub struct Generation {
    /// Counts up from 1 within a process.
    pub number: u64,
    /// What all threads share by name, and the next generation may take over.
    pub zones: Zones,
    /// What it wants to run beside requests.
    pub services: Vec<Arc<dyn Service>>,
    /// Whether it asks for the turns of the event loop to be counted.
    pub counts_turns: bool,
    parts: Map<TypeId, Arc<dyn Any + Send + Sync>>,
    on_end: Option<Box<dyn FnOnce() + Send + Sync>>,
    /// Whether it is one of the [`live`] ones.
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

    /// One that stands for no configuration: what a thread has that serves no requests, and must
    /// not hold on to those of others.
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

    /// Adds what a protocol or module has compiled; it is found by its type. It ends with the
    /// generation.
    pub fn add<T: Any + Send + Sync>(&mut self, part: T) {
        self.parts.insert(TypeId::of::<T>(), Arc::new(part));
    }

    /// What has been added of this type. Threads look once, when they begin to serve: it costs a
    /// hash and a count that all threads share.
    pub fn part<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let part = self.parts.get(&TypeId::of::<T>())?;
        Arc::clone(part).downcast().ok()
    }

    /// Sets what is done when its last request has ended.
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

/// A generation as one worker thread sees it, with what modules keep of both. Requests hold it
/// by `Rc`, so serving one touches no counter that another thread touches.
pub struct GenerationView {
    /// The shared part of the generation view.
    pub generation: Arc<Generation>,
    /// What the thread counts, over all generations.
    pub counts: Arc<ThreadCounters>,
    retired: Cell<bool>,
    rooms: Rooms,
    /// What is kept over all generations.
    rooms_of_thread: Rc<Rooms>,
}

impl GenerationView {
    /// A thread's view of its first generation.
    pub fn new(generation: Arc<Generation>, counts: Arc<ThreadCounters>) -> GenerationView {
        GenerationView {
            generation,
            counts,
            retired: Cell::new(false),
            rooms: Rooms::default(),
            rooms_of_thread: Rc::default(),
        }
    }

    /// The view of the next generation by the same thread, which keeps the thread's own state.
    pub fn followed_by(&self, generation: Arc<Generation>) -> GenerationView {
        GenerationView {
            rooms_of_thread: Rc::clone(&self.rooms_of_thread),
            ..GenerationView::new(generation, Arc::clone(&self.counts))
        }
    }

    /// Whether a newer generation has replaced it on this thread.
    pub fn is_retired(&self) -> bool {
        self.retired.get()
    }

    /// What a module keeps here, made when it is first asked for.
    pub fn at<T: OfThread>(&self, slot: &Slot<T, ThreadGeneration>) -> Rc<RefCell<T>> {
        self.rooms.at(slot, self)
    }

    /// What a module keeps over all generations, made when it is first asked for.
    pub fn of_thread<T: OfThread>(&self, slot: &Slot<T, Thread>) -> Rc<RefCell<T>> {
        self.rooms_of_thread.at(slot, self)
    }

    /// The thread begins to end: what is kept over all generations goes.
    pub fn retire_thread(&self) {
        self.rooms_of_thread.retire();
    }

    /// A newer generation has replaced it on this thread: what is kept for quickness alone goes.
    pub fn retire(&self) {
        self.retired.set(true);
        self.rooms.retire();
    }
}
