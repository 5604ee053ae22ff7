//! The counters of a cache, which `metrics` prints. A request is counted when it ends.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::config::plan_builder::PlanBuilder;
use http::module::{OnRequestEnd, Shortcut};
use http::request::Request;
use store::disk::{Counts, MemoryCounts, Purged};

use super::settings::Zone;
use super::status::CacheStatus;
use super::zone::CacheZone;
use crate::attempts::Attempts;

/// The minimum interval in milliseconds between log lines about responses that could not be stored.
const TOLD_EVERY: u64 = 1000;

/// Limits log lines of one kind to one per [`TOLD_EVERY`] for all threads.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// When the next line is due, by [`super::now`].
    due: AtomicU64,
    /// The number of suppressed lines since the last one.
    left_out: AtomicU64,
}

impl Notices {
    /// Returns the number of lines that were suppressed since the last one, if a line may be
    /// written now. Otherwise counts this line as suppressed.
    pub(super) fn next(&self, now: u64) -> Option<u64> {
        let due = self.due.load(Ordering::Relaxed);
        let next = now.saturating_add(TOLD_EVERY);
        let (set, read) = (Ordering::Relaxed, Ordering::Relaxed);
        if now < due || self.due.compare_exchange(due, next, set, read).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.left_out.swap(0, Ordering::Relaxed))
    }
}

/// The counters of a zone, shared by all threads.
#[derive(Debug, Default)]
pub(super) struct CacheCounters {
    /// Notices that the disk has refused responses.
    pub(super) failed: Notices,
    /// Notices that there was no room for responses.
    pub(super) no_room: Notices,
    /// Requests by cache status.
    answered: [AtomicU64; CacheStatus::ALL.len()],
    /// Bytes of bodies by cache status, sent from the cache or received from an upstream.
    bytes: [AtomicU64; CacheStatus::ALL.len()],
    /// Stored responses and the bytes of their bodies, by cache status.
    written: [[AtomicU64; 2]; CacheStatus::ALL.len()],
    /// Requests that wait for another request's response.
    waiting: AtomicU64,
    /// Hits that `recall` has answered; each thread has a counter of its own.
    at_once: Mutex<Vec<Arc<ThreadHits>>>,
}

/// One thread's counter of hits that `recall` has answered. Only that thread writes the counter,
/// which has a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct ThreadHits {
    count: AtomicU64,
    /// Bytes of the bodies of these hits.
    bytes: AtomicU64,
}

thread_local! {
    /// The hit counters of this thread, by the number of their store.
    static OF_THREAD: RefCell<Vec<(u64, Arc<ThreadHits>)>> = const { RefCell::new(Vec::new()) };
}

impl ThreadHits {
    /// This thread's counter of a zone, whose store has this number.
    pub(super) fn of(zone: &Zone, store: u64) -> Arc<ThreadHits> {
        OF_THREAD.with_borrow_mut(|of_thread| {
            if let Some((_, hits)) = of_thread.iter().find(|(number, _)| *number == store) {
                return Arc::clone(hits);
            }
            // Drop counters whose zone is gone, to which only this thread refers.
            of_thread.retain(|(_, hits)| Arc::strong_count(hits) > 1);
            let hits = Arc::new(ThreadHits::default());
            zone.state()
                .counters()
                .lock_at_once()
                .push(Arc::clone(&hits));
            of_thread.push((store, Arc::clone(&hits)));
            hits
        })
    }

    /// Counts one hit with a body of this many bytes.
    pub(super) fn count(&self, bytes: u64) {
        for (counter, number) in [(&self.count, 1), (&self.bytes, bytes)] {
            let before = counter.load(Ordering::Relaxed);
            counter.store(before.wrapping_add(number), Ordering::Relaxed);
        }
    }
}

impl CacheCounters {
    fn note(&self, status: CacheStatus) {
        if let Some(counter) = self.answered.get(status as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn lock_at_once(&self) -> MutexGuard<'_, Vec<Arc<ThreadHits>>> {
        self.at_once.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of hits that `recall` has answered in all threads, and the bytes of their bodies.
    pub(super) fn at_once(&self) -> (u64, u64) {
        let threads = self.lock_at_once();
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let hits = threads
            .iter()
            .map(|hits| (of(&hits.count), of(&hits.bytes)));
        hits.fold((0, 0), |sum, hits| (sum.0 + hits.0, sum.1 + hits.1))
    }

    fn note_bytes(&self, status: CacheStatus, bytes: u64) {
        if let Some(counter) = self.bytes.get(status as usize) {
            counter.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Counts a stored response by its cache status, and the bytes of its body.
    pub(super) fn note_written(&self, status: CacheStatus, bytes: u64) {
        if let Some([responses, written]) = self.written.get(status as usize) {
            responses.fetch_add(1, Ordering::Relaxed);
            written.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

/// The outcome of a cache lookup, which is counted when the request is done with the cache.
#[derive(Debug)]
pub(super) struct CacheOutcome {
    zone: Arc<Zone>,
    pub(super) status: CacheStatus,
}

impl CacheOutcome {
    pub(super) fn of(zone: &Arc<Zone>) -> CacheOutcome {
        CacheOutcome {
            zone: Arc::clone(zone),
            status: CacheStatus::Miss,
        }
    }

    pub(super) fn zone(&self) -> &Arc<Zone> {
        &self.zone
    }

    /// The outcome of a background update that the cache itself requests.
    pub(super) fn of_update(&self) -> CacheOutcome {
        CacheOutcome {
            zone: Arc::clone(&self.zone),
            status: CacheStatus::Expired,
        }
    }

    /// Counts the request among those that wait for another request's response, until the guard is
    /// dropped.
    pub(super) fn wait(&self) -> WaitingGuard {
        let counters = self.zone.state().counters();
        counters.waiting.fetch_add(1, Ordering::Relaxed);
        WaitingGuard(Arc::clone(&self.zone))
    }
}

impl Drop for CacheOutcome {
    fn drop(&mut self) {
        self.zone.state().counters().note(self.status);
    }
}

/// Counts a waiting request until dropped.
pub(super) struct WaitingGuard(Arc<Zone>);

impl Drop for WaitingGuard {
    fn drop(&mut self) {
        let counters = self.0.state().counters();
        counters.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The numbers of a zone at one moment.
pub struct CacheNumbers {
    /// The name of the zone.
    pub zone: String,
    /// Requests by the value of `$upstream_cache_status`.
    pub answered: [(&'static str, u64); CacheStatus::ALL.len()],
    /// Bytes of bodies in the same order: sent from the cache, or received from upstreams. Only
    /// counted in scopes for which [`count_bytes`] has been called.
    pub bytes: [u64; CacheStatus::ALL.len()],
    /// Stored responses and the bytes of their bodies, in the same order.
    pub written: [(u64, u64); CacheStatus::ALL.len()],
    /// Requests that wait for another request's response.
    pub waiting: u64,
    /// The limit of the files in bytes, if there is one.
    pub max_size: Option<u64>,
    /// The directory has not been scanned yet.
    pub is_cold: bool,
    /// All entries are in memory.
    pub is_in_memory: bool,
    /// Entries and their bytes on disk.
    pub counts: Counts,
    /// Entries and their bytes in memory.
    pub memory: MemoryCounts,
    /// Hits that `recall` has answered.
    pub at_once: u64,
}

impl CacheNumbers {
    /// Bytes of the cache's entries, on disk or in memory.
    pub fn occupied(&self) -> u64 {
        if self.is_in_memory {
            self.memory.bytes
        } else {
            self.counts.bytes
        }
    }

    /// The number of entries.
    pub fn held(&self) -> u64 {
        if self.is_in_memory {
            self.memory.entries
        } else {
            self.counts.entries
        }
    }
}

/// Adds the counting of body bytes to the plan of a scope, if the scope or one around it has a
/// cache.
pub fn count_bytes(plan: &mut PlanBuilder<'_>) {
    const DIRECTIVES: [&str; 4] = ["proxy_cache", "fastcgi_cache", "uwsgi_cache", "scgi_cache"];
    let mut around = std::iter::successors(Some(plan.scope), |scope| scope.parent());
    let has_cache = around.any(|scope| {
        let mut lines = scope.lines().iter();
        lines.any(|line| DIRECTIVES.iter().any(|name| line.is(name)))
    });
    if has_cache {
        plan.ending(&Arc::new(ByteCounting));
        plan.shortcut(Shortcut::Same);
    }
}

/// Counts the body bytes of a response by its cache status when the request ends.
struct ByteCounting;

impl OnRequestEnd for ByteCounting {
    fn ended(&self, request: &mut Request) {
        let Some(history) = Attempts::of(request).map(|seen| seen.borrow()) else {
            return;
        };
        let (Some(status), Some(zone)) = (history.cache_status, &history.cache) else {
            return;
        };
        let bytes = match status {
            CacheStatus::Hit
            | CacheStatus::Stale
            | CacheStatus::Updating
            | CacheStatus::Revalidated => request.sent.body_bytes,
            CacheStatus::Miss | CacheStatus::Bypass | CacheStatus::Expired => {
                let answered = history.attempts.last();
                answered.map_or(0, |attempt| attempt.response_length)
            }
        };
        zone.state().counters().note_bytes(status, bytes);
    }
}

/// Returns a function that removes every entry of a cache and waits for the disk; `None` if there
/// is no cache of this name.
pub fn purging(
    request: &Request,
    name: &str,
) -> Option<impl FnOnce() -> Purged + Send + 'static + use<>> {
    let zone = request.local.generation.zones.find::<CacheZone>(name)?;
    let store = Arc::clone(zone.state().store(zone.settings())?);
    Some(move || store.purge_all())
}

/// The counters of all caches in the generation of a request.
pub fn of(request: &Request) -> Vec<CacheNumbers> {
    let zones = &request.local.generation.zones;
    let caches = zones.iter().filter_map(|zone| {
        let zone = zones.find::<CacheZone>(zone.name())?;
        let counters = zone.state().counters();
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (at_once, bytes_at_once) = counters.at_once();
        let hits = |status, number| {
            if status == CacheStatus::Hit {
                number
            } else {
                0
            }
        };
        Some(CacheNumbers {
            zone: zone.name().to_owned(),
            answered: CacheStatus::ALL.map(|status| {
                let counter = counters.answered.get(status as usize);
                let more = hits(status, at_once);
                (status.name(), counter.map_or(0, of) + more)
            }),
            bytes: CacheStatus::ALL.map(|status| {
                let counter = counters.bytes.get(status as usize);
                counter.map_or(0, of) + hits(status, bytes_at_once)
            }),
            written: CacheStatus::ALL.map(|status| {
                let counters = counters.written.get(status as usize);
                counters.map_or((0, 0), |[responses, bytes]| (of(responses), of(bytes)))
            }),
            waiting: of(&counters.waiting),
            max_size: zone.settings().bound(),
            is_cold: zone.state().is_cold(),
            is_in_memory: zone.settings().is_in_memory(),
            counts: zone.state().counts(),
            memory: zone.state().memory_counts(),
            at_once,
        })
    });
    caches.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_tells_of_those_left_out() {
        let notices = Notices::default();
        assert_eq!(notices.next(5000), Some(0));
        assert_eq!(notices.next(5000), None);
        assert_eq!(notices.next(5999), None);
        assert_eq!(notices.next(6000), Some(2));
        assert_eq!(notices.next(6500), None);
        assert_eq!(notices.next(60_000), Some(1));
    }
}
