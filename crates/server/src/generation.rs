//! One compiled configuration, and what each thread keeps for it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::http::compile::Http;
use crate::http::hot::HotCache;
use crate::http::modules::access::Peers;
use crate::http::modules::acme::Acme;
use crate::http::modules::metrics::meter::{Meter, Meters};
use crate::log::{ErrorLog, LogFile};
use crate::slot::{OfThread, Rooms, Slot, ThreadGeneration};
use crate::variables::Table;
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
    /// The `http` block.
    pub http: Http,
    /// Variables by index.
    pub variables: Table,
    /// What all threads share by name, and the next generation may take over.
    pub zones: Zones,
    /// Certificates that come by themselves.
    pub acme: Acme,
    /// Log files that it writes to, kept open as long as it lives.
    pub logs: Vec<Arc<LogFile>>,
    /// The main level's `error_log`, for what concerns no request.
    pub error_log: Arc<ErrorLog>,
    /// `debug_connection`: whose connections are logged in every detail.
    pub debug_connections: Arc<Peers>,
    on_end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Generation {
    /// A generation from its compiled parts.
    pub fn new(
        http: Http,
        variables: Table,
        logs: Vec<Arc<LogFile>>,
        error_log: Arc<ErrorLog>,
    ) -> Generation {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        LIVE.fetch_add(1, Ordering::Relaxed);
        Generation {
            number,
            http,
            variables,
            zones: Zones::default(),
            acme: Acme::default(),
            logs,
            error_log,
            debug_connections: Arc::default(),
            on_end: None,
        }
    }
}

impl Generation {
    /// Sets what is done when its last request has ended.
    pub fn on_end(&mut self, hook: impl FnOnce() + Send + Sync + 'static) {
        self.on_end = Some(Box::new(hook));
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::Relaxed);
        for file in &self.logs {
            file.retire();
        }
        if let Some(hook) = self.on_end.take() {
            hook();
        }
    }
}

/// A generation as one worker thread sees it, with the thread's caches for it. Requests hold it
/// by `Rc`, so serving one touches no counter that another thread touches.
pub struct Local {
    /// The shared part.
    pub generation: Arc<Generation>,
    /// Complete responses kept in memory.
    pub hot: RefCell<HotCache>,
    /// What this thread counts of the scopes, by the numbers of their plans; empty where nobody
    /// asks (`metrics`).
    pub meters: Box<[Arc<Meter>]>,
    /// Whether a newer generation has replaced it on this thread.
    pub retired: Cell<bool>,
    /// What modules keep.
    rooms: Rooms,
}

impl Local {
    /// A thread's view of a generation, with empty caches.
    pub fn new(generation: Arc<Generation>, meters: &Meters) -> Local {
        Local {
            meters: meters.of(&generation.http.scopes),
            generation,
            hot: RefCell::default(),
            retired: Cell::new(false),
            rooms: Rooms::default(),
        }
    }

    /// What a module keeps here, made when it is first asked for.
    pub fn at<T: OfThread>(&self, slot: &Slot<T, ThreadGeneration>) -> Rc<RefCell<T>> {
        self.rooms.at(slot, self)
    }

    /// A newer generation has replaced it on this thread: what is kept for quickness alone goes.
    pub fn retire(&self) {
        self.retired.set(true);
        self.hot.borrow_mut().clear();
        self.rooms.retire();
    }
}
