//! Objects by key within a bound. This page and the files beside it are the memory tier; objects in
//! files are the business of [`disk`].
//!
//! A [`Store`] is a number of shards, each behind a lock of its own (`shard.rs`). A shard has an
//! index from a key's hash to a place (`index.rs`), segments in which small objects lie one behind
//! the other (`segment.rs`), extents for large ones (`extent.rs`), and two queues of segments that
//! S3-FIFO evicts from (`queue.rs`, `ghost.rs`). What a record looks like is `record.rs`' business,
//! `lifetime.rs` says which objects lie together because they expire together.
//!
//! Times are seconds that the caller counts: the store reads no clock. It knows no protocol, no
//! configuration, does no I/O and starts no thread. A caller's closure runs under the lock of one
//! shard: it copies at most a small value or takes a share of an extent, makes no system call and
//! asks the store nothing.

pub mod disk;
mod extent;
mod ghost;
mod index;
mod lifetime;
#[cfg(all(test, loom))]
mod models;
mod queue;
mod record;
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

use shard::{Shard, Sought};
use sync::{Mutex, MutexGuard};

/// Seconds of the caller's clock.
pub type Seconds = u32;

/// Values of at most this many bytes are copied out; larger ones lie in extents, which are lent.
pub const COPIED_MAX: usize = 16 * 1024;

/// The longest key, in bytes.
pub const KEY_LENGTH_MAX: usize = u16::MAX as usize;

/// Smallest share of the limit that a shard is made for.
const SHARD_MIN: usize = 4 << 20;

const SHARDS_MAX: usize = 256;

/// What a store is made with.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes that it may occupy, its tables included.
    pub limit: usize,
    /// The longest value that is to fit: shards are made large enough for several of them.
    pub value_max: usize,
    /// Whether objects make room for new ones. Else a full store refuses.
    pub evicts: bool,
}

/// Objects by key within a bound of memory.
pub struct Store {
    shards: Box<[Aligned]>,
    /// Length of a value from which on it lies in an extent.
    extent_min: usize,
}

/// Locks of neighbours do not share a line of the processor's cache.
#[repr(align(128))]
struct Aligned(Mutex<Shard>);

/// How far a walk over all objects has come ([`Store::visit`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    shard: usize,
    bucket: usize,
}

impl Store {
    /// Makes a store that holds nothing.
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

    /// The same store, whose shards tell an observer what goes by itself.
    #[must_use]
    pub fn observed_by(self, observer: &Arc<dyn Observer>) -> Store {
        for shard in &self.shards {
            lock(shard).be_observed(Arc::clone(observer));
        }
        self
    }

    /// How many shards there are.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// A CAS that no object has yet.
    #[must_use]
    pub fn next_cas(&self) -> u64 {
        let next = self.shards.iter().map(|shard| lock(shard).cas());
        next.max().unwrap_or(1)
    }

    /// Has objects that are stored from now on begin at this CAS, if theirs are lower.
    pub fn raise_cas(&self, least: u64) {
        for shard in &self.shards {
            lock(shard).raise_cas(least);
        }
    }

    /// Values of at least this length are best given as a [`Large`], which is taken over as it is.
    #[must_use]
    pub fn extent_min(&self) -> usize {
        self.extent_min
    }

    /// Reads an object, which counts as use of it. `read` sees it as it was before.
    pub fn get<R>(&self, key: &[u8], now: Seconds, read: impl FnOnce(Item<'_>) -> R) -> Option<R> {
        let sought = sought(key, now);
        self.shard(sought).get(sought, read)
    }

    /// Reads an object, which does not count as use of it.
    pub fn peek<R>(&self, key: &[u8], now: Seconds, read: impl FnOnce(Item<'_>) -> R) -> Option<R> {
        let sought = sought(key, now);
        self.shard(sought).peek(sought, read)
    }

    /// Looks at the object, if there is one, and does what `decide` says: no one else sees or
    /// changes it in between.
    ///
    /// Every kind of conditional change is this one. Keys longer than [`KEY_LENGTH_MAX`] are
    /// [`UpdateOutcome::TooLarge`].
    pub fn update<'a>(
        &self,
        key: &[u8],
        now: Seconds,
        decide: impl FnOnce(Option<Item<'_>>) -> ObjectChange<'a>,
    ) -> UpdateOutcome {
        let sought = sought(key, now);
        self.shard(sought).update(sought, decide)
    }

    /// Removes an object. Whether there was one.
    pub fn remove(&self, key: &[u8], now: Seconds) -> bool {
        let removed = |item: Option<Item<'_>>| match item {
            Some(_) => ObjectChange::Remove,
            None => ObjectChange::Keep,
        };
        self.update(key, now, removed) == UpdateOutcome::Removed
    }

    /// Forgets at `at` all that was stored before; at once where that has come. A later call takes
    /// the place of one whose time has not come.
    pub fn flush(&self, at: Seconds, now: Seconds) {
        for shard in &self.shards {
            lock(shard).flush(at, now);
        }
    }

    /// Looks at the objects of a few buckets. Where to go on is returned, nothing at the end.
    ///
    /// What stays where it is for the whole walk is seen at least once; what is stored meanwhile
    /// may be seen or not.
    pub fn visit(&self, from: Cursor, now: Seconds, seen: impl FnMut(Item<'_>)) -> Option<Cursor> {
        let Cursor { shard, bucket } = from;
        match lock(self.shards.get(shard)?).visit(bucket, now, seen) {
            Some(bucket) => Some(Cursor { shard, bucket }),
            None => {
                let (shard, bucket) = (shard + 1, 0);
                (shard < self.shards.len()).then_some(Cursor { shard, bucket })
            }
        }
    }

    /// Changes how much may be occupied. What is above goes by [`Store::shrink`], and with what is
    /// stored meanwhile.
    pub fn set_limit(&self, limit: usize) {
        let limit = limit / self.shards.len();
        for shard in &self.shards {
            lock(shard).set_limit(limit);
        }
    }

    /// Frees what is above the limit, for a thread that may take its time: others get at each shard
    /// in between. Whether there was anything.
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

    /// Frees what has expired, a stretch in each shard. Whether there is more.
    pub fn sweep(&self, now: Seconds) -> bool {
        let mut is_more = false;
        for shard in &self.shards {
            is_more |= lock(shard).sweep(now);
        }
        is_more
    }

    /// What all shards have counted and hold.
    #[must_use]
    pub fn counts(&self) -> StoreStatistics {
        let mut sum = StoreStatistics::default();
        for shard in &self.shards {
            sum.add(&lock(shard).counts());
        }
        sum
    }

    fn shard(&self, sought: Sought<'_>) -> MutexGuard<'_, Shard> {
        let mask = self.shards.len() - 1; // a power of two
        lock(&self.shards[sought.hash as usize & mask])
    }
}

fn sought(key: &[u8], now: Seconds) -> Sought<'_> {
    let hash = base::hash::of(key);
    Sought { hash, key, now }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shards = self.shards.len();
        f.debug_struct("Store").field("shards", &shards).finish()
    }
}

/// A panic under the lock leaves the shard in a state that nothing is known of, so it is emptied.
fn lock(shard: &Aligned) -> MutexGuard<'_, Shard> {
    sync::lock_or_renew(&shard.0, Shard::clear)
}
