//! Memory for whole responses and compressed bodies, within the bound that `response_memory` says
//! for the process.
//!
//! Half of it is a store that all threads share: small files with what is known of them, and bodies
//! that were [compressed once](BODY). The other half belongs to the threads in equal parts: each
//! keeps there what it gives again and again, head and body laid out with a `Date`
//! ([`PrebuiltCache`](super::prebuilt::PrebuiltCache)). A hit in a thread's part touches nothing
//! that another thread writes; the store is asked where that part has nothing.
//!
//! Not here: hits of caches. They lie in the memory of their cache, and laid out in the threads'
//! parts.

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

/// What the default says.
pub(crate) const DEFAULT_LIMIT: usize = 128 << 20;

/// The longest value: a compressed body.
pub const VALUE_MAX: usize = 1 << 20;

/// Kinds of what is kept, the first byte of each key: a file with what is known of it.
pub const FILE: u8 = 1;

/// A body as it was compressed once.
pub const BODY: u8 = 2;

/// Bytes that the process may take.
static LIMIT: AtomicUsize = AtomicUsize::new(DEFAULT_LIMIT);

/// Parts of threads that there are now.
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

/// Reads what is kept by a key.
pub fn get<R>(key: &[u8], read: impl FnOnce(Item<'_>) -> R) -> Option<R> {
    store().get(key, now(), read)
}

/// Keeps a value, with a number of the caller's, in place of what has been kept by its key.
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

/// Forgets what is kept by a key.
pub fn remove(key: &[u8]) {
    store().remove(key, now());
}

/// Whether anything is kept.
pub fn is_on() -> bool {
    LIMIT.load(Ordering::Relaxed) > 0
}

/// What the threads share now.
pub fn statistics() -> StoreStatistics {
    store().counts()
}

/// One thread's part of the memory.
#[derive(Debug)]
pub(crate) enum Part {
    /// Nothing has been kept in it: threads that serve no clients take none away from others.
    Unused,
    Joined(JoinedThread),
    /// Nothing is kept in it any more.
    Retired,
}

/// A thread that counts among those that have a part, for as long as this lives.
#[derive(Debug)]
pub(crate) struct JoinedThread(());

impl Part {
    /// Something is to be kept in it.
    pub(crate) fn join(&mut self) {
        if let Part::Unused = self {
            PARTS.fetch_add(1, Ordering::Relaxed);
            *self = Part::Joined(JoinedThread(()));
        }
    }

    /// Bytes of it: fewer once another thread has joined.
    pub(crate) fn bound(&self) -> usize {
        let parts = PARTS.load(Ordering::Relaxed).max(1);
        match self {
            Part::Retired => 0,
            Part::Unused | Part::Joined(_) => LIMIT.load(Ordering::Relaxed) / 2 / parts,
        }
    }

    /// Whether there are others that may have shared something.
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

/// Puts the bound of a configuration in force.
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
