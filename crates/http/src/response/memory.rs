//! Memory for whole responses and compressed bodies, within the process's limit `response_memory`.
//!
//! Half of the memory is a store that all threads share. It holds small files with their metadata,
//! and bodies that were [compressed once](BODY). The other half is divided equally among the
//! threads. Each thread keeps the responses that it sends repeatedly in its part, serialized with a
//! `Date` ([`PrebuiltCache`](super::prebuilt::PrebuiltCache)). A hit in a thread's part touches no
//! memory that another thread writes. The store is only searched after a miss in the thread's part.
//!
//! Cached responses of upstreams are not in the store: they are in the memory of their cache and,
//! serialized, in the threads' parts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use conf::{Contexts, Declared, Setting, parse};
use framework::generation::Generation;
use framework::service::{RunningService, Service};
use store::{Cas, Content, Item, Large, ObjectChange, Store, StoreStatistics, Tags, Write};

/// `response_memory`
pub static RESPONSE_MEMORY: Setting<u64> = Setting::new("response_memory", &["size"], parse::size)
    .contexts(Contexts::HTTP)
    .default("128m")
    .manual(
        "Memory that the process takes for whole responses (small files, pages that say that \
             there is none, hits of caches that lie in memory) and for bodies that were compressed \
             once. Half of it belongs to the threads, in equal parts; the other half is shared by \
             all. What is asked for seldom makes room. With `0` nothing is kept: each request \
             takes the long way, and each body is compressed each time.",
    );

/// The directive of this file.
pub const DIRECTIVES: &[&dyn Declared] = &[&RESPONSE_MEMORY];

/// The default of `response_memory`, in bytes.
pub(crate) const DEFAULT_LIMIT: usize = 128 << 20;

/// Maximum length of a value in bytes; the longest values are compressed bodies.
pub const VALUE_MAX: usize = 1 << 20;

/// The kind of keys for files with their metadata. The kind is the first byte of a key.
pub const FILE: u8 = 1;

/// The kind of keys for compressed bodies.
pub const BODY: u8 = 2;

/// `response_memory` of the process, in bytes.
static LIMIT: AtomicUsize = AtomicUsize::new(DEFAULT_LIMIT);

/// The number of threads that have a part.
static PARTS: AtomicUsize = AtomicUsize::new(0);

static STORE: OnceLock<Store> = OnceLock::new();

fn store() -> &'static Store {
    STORE.get_or_init(|| {
        Store::new(store::Settings {
            limit: LIMIT.load(Ordering::Relaxed) / 2,
            value_max: VALUE_MAX,
            evicts: true,
        })
    })
}

fn now() -> store::Seconds {
    store::Seconds::try_from(engine::uptime().as_secs()).unwrap_or(store::Seconds::MAX)
}

/// Calls `read` with the value of a key; `None` if the key has no value.
pub fn get<R>(key: &[u8], read: impl FnOnce(Item<'_>) -> R) -> Option<R> {
    store().get(key, now(), read)
}

/// Stores a value with a number of the caller's choice, and replaces the previous value of the
/// value's key.
pub fn put(value: Large, number: u32) {
    let key = value.key().to_vec();
    let write = Write {
        content: Content::Given(value),
        flags: number,
        expires: None,
        cas: Cas::Next,
        marks: 0,
        tags: Tags::None,
    };
    store().update(&key, now(), |_| ObjectChange::Write(write));
}

/// Removes the value of a key.
pub fn remove(key: &[u8]) {
    store().remove(key, now());
}

/// Whether the limit is above 0.
pub fn is_on() -> bool {
    LIMIT.load(Ordering::Relaxed) > 0
}

/// The statistics of the shared store.
pub fn statistics() -> StoreStatistics {
    store().counts()
}

/// One thread's part of the memory.
#[derive(Debug)]
pub(crate) enum Part {
    /// Nothing has been stored in the part yet, so it does not count: threads that serve no clients
    /// do not reduce the parts of others.
    Unused,
    Joined(JoinedThread),
    /// Nothing may be stored in the part, since the generation has been replaced.
    Retired,
}

/// Counts a thread among those with a part until it is dropped.
#[derive(Debug)]
pub(crate) struct JoinedThread(());

impl Part {
    /// Counts the thread among those with a part. Called before the first value is stored.
    pub(crate) fn join(&mut self) {
        if let Part::Unused = self {
            PARTS.fetch_add(1, Ordering::Relaxed);
            *self = Part::Joined(JoinedThread(()));
        }
    }

    /// The limit of the part in bytes, which shrinks when another thread joins.
    pub(crate) fn bound(&self) -> usize {
        let parts = PARTS.load(Ordering::Relaxed).max(1);
        match self {
            Part::Retired => 0,
            Part::Unused | Part::Joined(_) => LIMIT.load(Ordering::Relaxed) / 2 / parts,
        }
    }

    /// Whether other threads may have stored values in the shared store.
    pub(crate) fn has_others(&self) -> bool {
        let own = usize::from(matches!(self, Part::Joined(_)));
        PARTS.load(Ordering::Relaxed) > own
    }
}

impl Drop for JoinedThread {
    fn drop(&mut self) {
        PARTS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The service that applies a configuration's `response_memory`, in bytes.
pub(crate) struct ResponseMemoryLimit(pub(crate) usize);

impl Service for ResponseMemoryLimit {
    fn key(&self) -> String {
        "response memory".to_owned()
    }

    fn start(&self, _: &Arc<Generation>, _: Option<RunningService>) -> Option<RunningService> {
        LIMIT.store(self.0, Ordering::Relaxed);
        if let Some(store) = STORE.get() {
            store.set_limit(self.0 / 2);
            if store.counts().occupied > self.0 / 2 {
                let moment = now();
                let shrink = move || {
                    store.shrink(moment);
                    engine::trim_now();
                };
                let thread = std::thread::Builder::new().name("response memory".to_owned());
                if let Err(error) = thread.spawn(shrink) {
                    logs::event!(Alert, "response memory does not shrink at once: {error}");
                }
            }
        }
        Some(Box::new(()))
    }
}
