//! A bounded store of objects by key. This file and its siblings are the memory tier; [`disk`]
//! stores objects in files.
//!
//! A [`Store`] consists of shards, each behind a lock of its own (`shard.rs`). A shard has an index
//! from a key's hash to a location (`index.rs`), segments of small objects stored in sequence
//! (`segment.rs`, with memory by `region.rs`), extents for large objects (`extent.rs`), and the two
//! queues of segments of the S3-FIFO eviction policy (`queue.rs`, `ghost.rs`). `record.rs` defines
//! the format of a record, and `lifetime.rs` groups objects that expire at about the same time.
//!
//! Times are seconds of the caller's clock: the store reads no clock. It knows no protocol and no
//! configuration, does no I/O and starts no thread. A caller's closure runs under the lock of one
//! shard: it copies at most a small value or takes a reference to an extent, makes no system call
//! and does not call the store.

pub mod disk;
mod extent;
mod ghost;
mod index;
mod lifetime;
#[cfg(all(test, loom))]
mod models;
mod queue;
mod record;
mod region;
mod segment;
mod shard;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;

pub use extent::Large;
pub use shard::{
    Cas, Content, Item, ObjectChange, Observer, Revision, StoreStatistics, Tags, UpdateOutcome,
    Value, Write,
};

use shard::{KeyQuery, Shard};
use sync::{Mutex, MutexGuard};

/// A time in seconds of the caller's clock.
pub type Seconds = u32;

/// Maximum length of a value that is copied out, in bytes; larger values are in extents, which are
/// lent by reference.
pub const COPIED_MAX: usize = 16 * 1024;

/// Maximum length of a key, in bytes.
pub const KEY_LENGTH_MAX: usize = u16::MAX as usize;

/// Minimum size of a shard, in bytes.
const SHARD_MIN: usize = 4 << 20;

const SHARDS_MAX: usize = 256;

/// Removed extents of one part in this many of the limit make a trim of the allocator due.
const TRIM_SHARE: usize = 8;

/// The settings of a store.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Limit of the memory occupied, in bytes, including tables.
    pub limit: usize,
    /// Maximum length of a value that must fit: a shard has room for several.
    pub value_max: usize,
    /// Whether old objects are evicted for new ones. Otherwise a full store refuses new objects.
    pub evicts: bool,
}

/// A bounded store of objects by key, in memory.
pub struct Store {
    shards: Box<[Aligned]>,
    /// Minimum length of a value that is stored in an extent.
    extent_min: usize,
}

/// Aligned, so that the locks of neighbouring shards do not share a cache line.
#[repr(align(128))]
struct Aligned(Mutex<Shard>);

/// The position of a walk over all objects ([`Store::visit`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    shard: usize,
    /// The position in the shard's index.
    position: u64,
}

impl Store {
    /// Creates an empty store.
    #[must_use]
    pub fn new(settings: Settings) -> Store {
        let least = SHARD_MIN.max(settings.value_max.saturating_mul(8));
        let count = (settings.limit / least).clamp(1, SHARDS_MAX);
        let count = 1 << count.ilog2();
        let limit = settings.limit / count;
        let shards = (0..count)
            .map(|number| Shard::new(limit, settings.evicts, number as u64, count as u64));
        let shards: Box<[Aligned]> = shards.map(|shard| Aligned(Mutex::new(shard))).collect();
        let extent_min = shards.first().map_or(0, |first| lock(first).extent_min());
        Store { shards, extent_min }
    }

    /// Sets the observer of evictions and expiries in all shards.
    #[must_use]
    pub fn observed_by(self, observer: &Arc<dyn Observer>) -> Store {
        for shard in &self.shards {
            lock(shard).set_observer(Arc::clone(observer));
        }
        self
    }

    /// The number of shards.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The next unused CAS.
    #[must_use]
    pub fn next_cas(&self) -> u64 {
        let next = self.shards.iter().map(|shard| lock(shard).cas());
        next.max().unwrap_or(1)
    }

    /// Raises the CAS of objects stored from now on to at least this value.
    pub fn raise_cas(&self, least: u64) {
        for shard in &self.shards {
            lock(shard).raise_cas(least);
        }
    }

    /// Minimum length of values that are best passed as a [`Large`], which is stored without a
    /// copy.
    #[must_use]
    pub fn extent_min(&self) -> usize {
        self.extent_min
    }

    /// Reads an object and counts it as a use. `read` gets the object's state from before this use.
    pub fn get<R>(&self, key: &[u8], now: Seconds, read: impl FnOnce(Item<'_>) -> R) -> Option<R> {
        let sought = sought(key, now);
        self.shard(sought).get(sought, read)
    }

    /// Reads an object without counting it as a use.
    pub fn peek<R>(&self, key: &[u8], now: Seconds, read: impl FnOnce(Item<'_>) -> R) -> Option<R> {
        let sought = sought(key, now);
        self.shard(sought).peek(sought, read)
    }

    /// Atomically reads an object, if there is one, and applies the change that `decide` returns.
    ///
    /// All conditional changes are expressed by this function. Keys longer than [`KEY_LENGTH_MAX`]
    /// are [`UpdateOutcome::TooLarge`].
    pub fn update<'a>(
        &self,
        key: &[u8],
        now: Seconds,
        decide: impl FnOnce(Option<Item<'_>>) -> ObjectChange<'a>,
    ) -> UpdateOutcome {
        let sought = sought(key, now);
        self.shard(sought).update(sought, decide)
    }

    /// Removes an object. False if there was none.
    pub fn remove(&self, key: &[u8], now: Seconds) -> bool {
        let removed = |item: Option<Item<'_>>| match item {
            Some(_) => ObjectChange::Remove,
            None => ObjectChange::Keep,
        };
        self.update(key, now, removed) == UpdateOutcome::Removed
    }

    /// Removes at the time `at` all objects stored before; at once if that time has passed. A later
    /// call replaces a flush that is still pending.
    pub fn flush(&self, at: Seconds, now: Seconds) {
        for shard in &self.shards {
            lock(shard).flush(at, now);
        }
    }

    /// Visits the objects of a few buckets. Returns where to continue, or `None` at the end.
    ///
    /// An object that exists during the whole walk is visited at least once, whatever is stored and
    /// removed meanwhile; an object stored meanwhile may be visited or not.
    pub fn visit(&self, from: Cursor, now: Seconds, seen: impl FnMut(Item<'_>)) -> Option<Cursor> {
        let Cursor { shard, position } = from;
        match lock(self.shards.get(shard)?).visit(position, now, seen) {
            Some(position) => Some(Cursor { shard, position }),
            None => {
                let (shard, position) = (shard + 1, 0);
                (shard < self.shards.len()).then_some(Cursor { shard, position })
            }
        }
    }

    /// Changes the memory limit. Memory above the limit is freed by [`Store::shrink`], and by
    /// stores of objects meanwhile.
    pub fn set_limit(&self, limit: usize) {
        let limit = limit / self.shards.len();
        for shard in &self.shards {
            lock(shard).set_limit(limit);
        }
    }

    /// Frees memory above the limit, in steps: other threads can use each shard in between. False
    /// if there was nothing to free.
    pub fn shrink(&self, now: Seconds) -> bool {
        let is_above = |shard: &&Aligned| lock(shard).is_above_limit();
        let mut left: Vec<&Aligned> = self.shards.iter().filter(is_above).collect();
        let has_freed = !left.is_empty();
        while !left.is_empty() {
            left.retain(|shard| lock(shard).shrink(now));
            std::thread::yield_now();
        }
        has_freed
    }

    /// Frees some expired objects in each shard. Returns whether there are more.
    pub fn sweep(&self, now: Seconds) -> bool {
        let mut is_more = false;
        for shard in &self.shards {
            is_more |= lock(shard).sweep(now);
        }
        is_more
    }

    /// Whether extents of an eighth of the limit were removed since this last returned true. The
    /// caller then trims the allocator: by itself it does not give pages back to the system from
    /// the midst of an arena, and large values of several threads would take twice the limit.
    #[must_use]
    pub fn is_trim_due(&self) -> bool {
        let (mut removed, mut limit) = (0, 0);
        for shard in &self.shards {
            let shard = lock(shard);
            removed += shard.removed_extent_bytes;
            limit += shard.limit();
        }
        let is_due = removed > limit / TRIM_SHARE;
        if is_due {
            for shard in &self.shards {
                lock(shard).removed_extent_bytes = 0;
            }
        }
        is_due
    }

    /// The statistics of all shards together.
    #[must_use]
    pub fn counts(&self) -> StoreStatistics {
        let mut sum = StoreStatistics::default();
        for shard in &self.shards {
            sum.add(&lock(shard).counts());
        }
        sum
    }

    fn shard(&self, sought: KeyQuery<'_>) -> MutexGuard<'_, Shard> {
        let mask = self.shards.len() - 1; // a power of two
        lock(&self.shards[sought.hash as usize & mask])
    }
}

/// The query for a key at a time.
fn sought(key: &[u8], now: Seconds) -> KeyQuery<'_> {
    let hash = base::hash::of(key);
    KeyQuery { hash, key, now }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shards = self.shards.len();
        f.debug_struct("Store").field("shards", &shards).finish()
    }
}

/// Locks a shard. A panic under the lock may leave a shard inconsistent, so it is emptied then.
fn lock(shard: &Aligned) -> MutexGuard<'_, Shard> {
    sync::lock_or_renew(&shard.0, Shard::clear)
}
