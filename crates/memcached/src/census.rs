//! Items counted by the slab classes that memcached would keep them in.
//!
//! What is there is counted when a client asks, by a walk over the store a few buckets at a time;
//! what has gone by itself is counted as it goes.

use std::sync::atomic::{AtomicU64, Ordering};

use store::{Cursor, Item, Observer, Seconds};

use crate::cache::{CommandTime, ThreadContext};
use crate::counts::ClassCounter;
use crate::lock::lock;
use crate::output::Output;
use crate::size_classes::{CHUNKS, CLASSES, class_of, item_size};
use crate::stats::StatsWriter;
use crate::watch::{EscapedKey, EventKind, Watchers};

/// Bytes of a page, as memcached gives them to its classes.
const PAGE: usize = 1 << 20;

/// `stats sizes` counts by so many bytes.
const SIZE_STEP: usize = 32;

/// What somebody wants to know of all items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CensusKind {
    /// `stats items`: ages and what has gone, by class.
    Items,
    /// `stats slabs`: memory by class.
    Slabs,
    /// `stats sizes`: how many there are of each size.
    Sizes,
}

/// A walk over all items.
#[derive(Debug)]
pub(crate) struct Census {
    kind: CensusKind,
    cursor: Cursor,
    classes: Vec<ClassCensus>,
    sizes: std::collections::BTreeMap<usize, u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ClassCensus {
    items: u64,
    bytes: u64,
    /// When the one that has not been used for longest was.
    oldest: Option<Seconds>,
}

impl Census {
    pub(crate) fn new(kind: CensusKind) -> Census {
        Census {
            kind,
            cursor: Cursor::default(),
            classes: vec![ClassCensus::default(); CLASSES],
            sizes: std::collections::BTreeMap::new(),
        }
    }

    /// Looks at a few items more. Whether all have been seen.
    pub(crate) fn step(&mut self, shared: &ThreadContext, moment: CommandTime) -> bool {
        let Census {
            kind,
            cursor,
            classes,
            sizes,
        } = self;
        let seen = |item: Item<'_>| {
            let size = size_of(&item);
            if *kind == CensusKind::Sizes {
                let step = size.next_multiple_of(SIZE_STEP);
                *sizes.entry(step).or_default() += 1;
            } else if let Some(class) = classes.get_mut(class_of(size)) {
                class.items += 1;
                class.bytes += size as u64;
                let oldest = class.oldest.unwrap_or(item.used);
                class.oldest = Some(oldest.min(item.used));
            }
        };
        match shared.cache.store.visit(*cursor, moment.now, seen) {
            Some(next) => *cursor = next,
            None => return true,
        }
        false
    }

    /// Tells what has been found.
    pub(crate) fn tell(
        &self,
        shared: &ThreadContext,
        moment: CommandTime,
        report: &mut StatsWriter<'_>,
    ) {
        match self.kind {
            CensusKind::Sizes => {
                for (size, items) in &self.sizes {
                    report.stat(&size.to_string(), items);
                }
            }
            CensusKind::Items => self.tell_items(shared, moment, report),
            CensusKind::Slabs => self.tell_slabs(shared, report),
        }
    }

    fn tell_items(
        &self,
        shared: &ThreadContext,
        moment: CommandTime,
        report: &mut StatsWriter<'_>,
    ) {
        let gone = shared.cache.gone.sums();
        for (class, counted) in self.classes.iter().enumerate() {
            let gone = gone.get(class).copied().unwrap_or_default();
            if counted.items == 0 && gone.iter().all(|number| *number == 0) {
                continue;
            }
            let mut stat = |name: &str, value: u64| {
                report.stat(&format!("items:{class}:{name}"), value);
            };
            let of = |what: ItemLoss| gone.get(what as usize).copied().unwrap_or(0);
            stat("number", counted.items);
            let age = counted.oldest.map_or(0, |at| moment.now.saturating_sub(at));
            stat("age", u64::from(age));
            stat("mem_requested", counted.bytes);
            stat("evicted", of(ItemLoss::Evicted));
            stat("evicted_nonzero", of(ItemLoss::EvictedWithExpiry));
            stat("evicted_time", of(ItemLoss::EvictedAge));
            stat("outofmemory", 0);
            stat("tailrepairs", 0);
            stat("reclaimed", of(ItemLoss::Expired));
            stat("expired_unfetched", of(ItemLoss::ExpiredUnread));
            stat("evicted_unfetched", of(ItemLoss::EvictedUnread));
            stat("crawler_reclaimed", of(ItemLoss::Swept));
        }
    }

    fn tell_slabs(&self, shared: &ThreadContext, report: &mut StatsWriter<'_>) {
        let (mut active, mut all_pages) = (0, 0);
        let gone = shared.cache.gone.all();
        let sums = shared.cache.class_sums();
        for (class, counted) in self.classes.iter().enumerate() {
            let has_been = gone
                .get(class)
                .is_some_and(|gone| gone.iter().any(|number| *number > 0));
            let of_class = sums.get(class).copied().unwrap_or_default();
            let is_used = counted.items > 0 || has_been || of_class != [0; 3];
            let Some(chunk) = CHUNKS.get(class).filter(|_| is_used) else {
                continue;
            };
            active += 1;
            let per_page = (PAGE / chunk).max(1) as u64;
            // A class keeps its page in memcached.
            let pages = counted.items.div_ceil(per_page).max(1);
            all_pages += pages;
            let mut stat = |name: &str, value: u64| {
                report.stat(&format!("{class}:{name}"), value);
            };
            stat("chunk_size", *chunk as u64);
            stat("chunks_per_page", per_page);
            stat("total_pages", pages);
            stat("total_chunks", pages * per_page);
            stat("used_chunks", counted.items);
            stat("free_chunks", pages * per_page - counted.items);
            stat("free_chunks_end", 0);
            for (name, counter) in [
                ("cmd_set", ClassCounter::Stores),
                ("cas_hits", ClassCounter::CasHits),
                ("cas_badval", ClassCounter::CasBadValues),
            ] {
                stat(name, of_class.get(counter as usize).copied().unwrap_or(0));
            }
        }
        report.stat("active_slabs", active);
        report.stat("total_malloced", all_pages * PAGE as u64);
    }
}

/// What memcached would take for an item.
pub(crate) fn size_of(item: &Item<'_>) -> usize {
    item_size(item.key.len(), item.flags, item.value.len())
}

/// What is counted of items that have gone by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemLoss {
    Evicted,
    /// With a time to expire at.
    EvictedWithExpiry,
    EvictedUnread,
    /// How long the last one had not been used, in seconds: no sum.
    EvictedAge,
    Expired,
    ExpiredUnread,
    /// Expired, and nobody has asked for them any more.
    Swept,
}

const GONE: usize = ItemLoss::Swept as usize + 1;

type GoneSums = [u64; GONE];

/// Items that have gone by themselves, counted by classes in each shard of the store.
pub(crate) struct GoneItems {
    /// A shard's counts are written under its lock alone.
    shards: Vec<Box<[[AtomicU64; GONE]]>>,
    /// What had been counted when it was last begun anew.
    forgotten: std::sync::Mutex<Vec<GoneSums>>,
    pub(crate) watchers: Watchers,
}

impl GoneItems {
    pub(crate) fn new(shards: usize, watchers: Watchers) -> GoneItems {
        let classes = || (0..CLASSES).map(|_| Default::default()).collect();
        GoneItems {
            shards: (0..shards).map(|_| classes()).collect(),
            forgotten: std::sync::Mutex::new(vec![[0; GONE]; CLASSES]),
            watchers,
        }
    }

    fn all(&self) -> Vec<GoneSums> {
        let mut sums = vec![[0; GONE]; CLASSES];
        for shard in &self.shards {
            for (sum, counts) in sums.iter_mut().zip(shard) {
                for (what, (sum, count)) in sum.iter_mut().zip(counts).enumerate() {
                    let count = count.load(Ordering::Relaxed);
                    *sum = if what == ItemLoss::EvictedAge as usize {
                        count.max(*sum)
                    } else {
                        *sum + count
                    };
                }
            }
        }
        sums
    }

    /// What has gone since the start or the last [`GoneItems::forget`], by class.
    fn sums(&self) -> Vec<GoneSums> {
        let mut sums = self.all();
        let forgotten = lock(&self.forgotten);
        for (sum, forgotten) in sums.iter_mut().zip(forgotten.iter()) {
            for (what, (sum, forgotten)) in sum.iter_mut().zip(forgotten).enumerate() {
                if what != ItemLoss::EvictedAge as usize {
                    *sum = sum.saturating_sub(*forgotten);
                }
            }
        }
        sums
    }

    /// Begins to count anew.
    pub(crate) fn forget(&self) {
        *lock(&self.forgotten) = self.all();
    }

    fn class(&self, shard: usize, item: &Item<'_>) -> Option<&[AtomicU64; GONE]> {
        self.shards.get(shard)?.get(class_of(size_of(item)))
    }
}

/// Counts one more. Only the holder of a shard's lock may.
fn count(counts: &[AtomicU64; GONE], what: ItemLoss, more: bool) {
    if let Some(number) = counts.get(what as usize) {
        let before = number.load(Ordering::Relaxed);
        number.store(before + u64::from(more), Ordering::Relaxed);
    }
}

impl Observer for GoneItems {
    fn evicted(&self, shard: usize, item: &Item<'_>, now: Seconds) {
        let idle = now.saturating_sub(item.used);
        if let Some(counts) = self.class(shard, item) {
            count(counts, ItemLoss::Evicted, true);
            count(counts, ItemLoss::EvictedWithExpiry, item.expires.is_some());
            count(counts, ItemLoss::EvictedUnread, !item.is_read);
            if let Some(age) = counts.get(ItemLoss::EvictedAge as usize) {
                age.store(u64::from(idle), Ordering::Relaxed);
            }
        }
        if self.watchers.want(EventKind::Evictions) {
            let left = item.expires.map_or(-1, |at| i64::from(at) - i64::from(now));
            let fetch = if item.is_read { "yes" } else { "no" };
            let (key, class) = (EscapedKey(item.key), class_of(size_of(item)));
            let size = item.value.len();
            self.watchers.tell(
                EventKind::Evictions,
                format_args!(
                    "type=eviction key={key} fetch={fetch} ttl={left} la={idle} clsid={class} \
                     size={size}"
                ),
            );
        }
    }

    fn expired(&self, shard: usize, item: &Item<'_>, is_sought: bool) {
        if let Some(counts) = self.class(shard, item) {
            count(counts, ItemLoss::Expired, true);
            count(counts, ItemLoss::ExpiredUnread, !item.is_read);
            count(counts, ItemLoss::Swept, !is_sought);
        }
    }
}

/// `stats cachedump`: keys of a class, up to so many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheDump {
    pub(crate) class: usize,
    pub(crate) left: u32,
}

impl CacheDump {
    pub(crate) fn tell(&mut self, item: &Item<'_>, moment: CommandTime, out: &mut Output) {
        if self.left == 0 || class_of(size_of(item)) != self.class {
            return;
        }
        self.left -= 1;
        let expires = item.expires.map_or(0, |at| moment.wall_at(at));
        out.text(b"ITEM ");
        out.text(item.key);
        out.line(&format!(" [{} b; {expires} s]", item.value.len()));
    }
}
