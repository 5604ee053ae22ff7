//! The contents of a `limit_req` zone: a leaky bucket per key, most recently used first.
//!
//! The algorithm and its numbers are those of nginx's `ngx_http_limit_req_lookup`, `…_account` and
//! `…_expire`. One lock guards a zone. It covers a hash lookup and moving one entry to the front,
//! so that keys are evicted in nginx's order whichever thread used them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use base::hash::Map;
use framework::handover::{StateReader, StateWriter, Unfit};
use framework::zone::{State, Zone, ZoneBudget, ZoneFact, ZoneFactSink};

use super::LimitOutcome;
use super::settings::ZoneSettings;

/// Size of nginx's entry without its key, in bytes.
const ENTRY_SIZE: usize = 80;

/// Size of nginx's data about the zone as a whole, in bytes.
const HEAD_SIZE: u64 = 80;

/// Time without requests after which an empty bucket is removed, in milliseconds.
const FORGOTTEN_AFTER_MS: u64 = 60_000;

/// Number of entries that are copied under one hold of the lock.
const SAVED_AT_ONCE: usize = 1024;

/// The absence of an entry: the end of the list.
const NONE: u32 = u32::MAX;

/// Milliseconds on a clock that all threads share.
pub(super) fn now_ms() -> u64 {
    // A new bucket counts as last emptied at 0, which must be long before now.
    const BEFORE: Duration = Duration::from_secs(24 * 60 * 60);
    static START: OnceLock<Instant> = OnceLock::new();
    let now = engine::now();
    let elapsed = now.saturating_duration_since(*START.get_or_init(|| now));
    (BEFORE + elapsed).as_millis() as u64
}

/// An entry that is not evicted until a request is counted in it or it is unpinned.
#[derive(Clone, Copy, Debug)]
pub(super) struct PinnedEntry(u32);

/// The result of a lookup. Numbers are thousandths of requests above the rate.
#[derive(Debug)]
pub(super) enum Admission {
    /// The request was counted.
    Counted(u64),
    /// The bucket has room; nothing was counted.
    PinnedEntry(PinnedEntry),
    /// The bucket is full; nothing was counted.
    Exceeded(u64),
    /// The zone is full.
    Full,
}

/// The buckets of a zone.
pub struct Buckets {
    table: Mutex<Table>,
    /// Requests by outcome: see [`LimitOutcome`].
    outcomes: [AtomicU64; 5],
}

impl State for Buckets {
    const KIND: &'static str = "limit_req";

    type Settings = ZoneSettings;

    fn new(size: u64) -> Buckets {
        Buckets {
            table: Mutex::new(Table::new(ZoneBudget::new(size, HEAD_SIZE))),
            outcomes: Default::default(),
        }
    }

    /// Fails if the key has changed, since the buckets of one key say nothing about another. A
    /// changed rate empties the same buckets.
    fn reconcile(zone: &Zone<Self>, previous: &Zone<Self>) -> Result<Arc<Self>, String> {
        let (key, old) = (&zone.settings().key_text, &previous.settings().key_text);
        if key == old || zone.size() != previous.size() {
            return Ok(zone.all_of(previous));
        }
        let name = zone.name();
        Err(format!(
            "limit_req \"{name}\" uses the \"{key}\" key while previously it used the \"{old}\" key"
        ))
    }

    const SAVED_VERSION: Option<u64> = Some(1);

    fn save(&self, settings: &ZoneSettings, out: &mut StateWriter) {
        out.text(settings.key_text.as_bytes());
        for count in &self.outcomes {
            out.number(count.load(Ordering::Relaxed));
        }
        let now = now_ms();
        let mut place = 0;
        while let Some(entries) = self.entries_from(place) {
            for (key, last, excess) in entries {
                out.text(&key);
                out.number(now.saturating_sub(last));
                out.number(excess);
            }
            place += SAVED_AT_ONCE;
        }
    }

    fn restore(&self, settings: &ZoneSettings, saved: &mut StateReader<'_>) -> Result<(), Unfit> {
        let key_text = saved.text()?;
        if key_text != settings.key_text.as_bytes() {
            let (key, old) = (&settings.key_text, String::from_utf8_lossy(key_text));
            let text = format!("its key is \"{key}\" and was \"{old}\"");
            return Err(Unfit::new(text));
        }
        let mut outcomes = [0; 5];
        for count in &mut outcomes {
            *count = saved.count()?;
        }
        let mut entries = Vec::new();
        while !saved.is_empty() {
            entries.push((saved.text()?, saved.number()?, saved.count()?));
        }
        // The most recently counted entry is inserted last, and becomes the newest.
        entries.sort_by_key(|(_, age, _)| std::cmp::Reverse(*age));
        let now = now_ms();
        let elapsed = u64::try_from(saved.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut table = self.table();
        for (key, age, excess) in entries {
            let last = now.saturating_sub(age.saturating_add(elapsed));
            table.put(key, last, excess);
        }
        for (count, known) in self.outcomes.iter().zip(outcomes) {
            count.store(known, Ordering::Relaxed);
        }
        Ok(())
    }

    fn describe(&self, settings: &ZoneSettings, tell: &mut ZoneFactSink<'_>) {
        tell("key", ZoneFact::Text(&settings.key_text));
        tell("rate", ZoneFact::Number(settings.rate));
        tell("keys", ZoneFact::Number(self.table().by_key.len() as u64));
        for outcome in LimitOutcome::ALL {
            let count = self.count_of(outcome).load(Ordering::Relaxed);
            tell(outcome.fact(), ZoneFact::Number(count));
        }
    }
}

/// A saved entry for the next process: its key, its last time and its excess.
type SavedEntry = (Arc<[u8]>, u64, u64);

impl Buckets {
    /// Copies entries from this index on; `None` beyond the last.
    fn entries_from(&self, place: usize) -> Option<Vec<SavedEntry>> {
        let table = self.table();
        let entries = table.entries.get(place..).filter(|rest| !rest.is_empty())?;
        let used = entries.iter().take(SAVED_AT_ONCE);
        // A free entry has no key in the map.
        let used = used.filter(|entry| table.by_key.contains_key(&entry.key));
        let known = used.map(|entry| (Arc::clone(&entry.key), entry.last, entry.excess));
        Some(known.collect())
    }

    /// Counts the outcome of a request.
    pub(super) fn note(&self, outcome: LimitOutcome) {
        self.count_of(outcome).fetch_add(1, Ordering::Relaxed);
    }

    fn count_of(&self, outcome: LimitOutcome) -> &AtomicU64 {
        &self.outcomes[outcome as usize] // invariant: one counter per outcome
    }

    /// Finds or creates a key's bucket. With `count` the request is added to it at once, else the
    /// entry is pinned. `rate` is in thousandths of requests per second; `burst`, the size of the
    /// bucket, is in thousandths of requests.
    pub(super) fn look_up(
        &self,
        key: &[u8],
        now: u64,
        rate: u64,
        burst: u64,
        count: bool,
    ) -> Admission {
        self.table().look_up(key, now, rate, burst, count)
    }

    /// Counts a request in a pinned entry and unpins it; returns its excess.
    pub(super) fn count(&self, pinned: PinnedEntry, now: u64, rate: u64) -> u64 {
        self.table().count(pinned, now, rate)
    }

    /// Unpins an entry.
    pub(super) fn unpin(&self, pinned: PinnedEntry) {
        self.table().unpin(pinned);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No code under the lock panics.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entries of a zone, in a map by key and in a list with the most recently used first.
struct Table {
    entries: Vec<Entry>,
    /// Free indexes of `entries`.
    free: Vec<u32>,
    by_key: Map<Arc<[u8]>, u32>,
    /// The first entry of the list, which was used last; [`NONE`] if the list is empty.
    newest: u32,
    /// The last entry of the list; [`NONE`] if the list is empty.
    oldest: u32,
    room: ZoneBudget,
}

/// The bucket of one key.
struct Entry {
    key: Arc<[u8]>,
    newer: u32,
    older: u32,
    /// Time of the last count, in milliseconds.
    last: u64,
    /// Thousandths of requests above the rate at that time.
    excess: u64,
    /// Requests that have pinned the entry and not counted yet.
    pins: u32,
}

impl Entry {
    /// Milliseconds since the last count. The clocks of threads may differ slightly; a time that is
    /// more than a minute ahead means that the clock was reset.
    fn elapsed(&self, now: u64) -> u64 {
        match now.checked_sub(self.last) {
            Some(elapsed) => elapsed,
            None if self.last - now > 60_000 => 1,
            None => 0,
        }
    }

    /// The excess with one more request, after the leak since the last count.
    fn next_excess(&self, elapsed: u64, rate: u64) -> u64 {
        let leaked = rate.saturating_mul(elapsed) / 1000;
        (self.excess + 1000).saturating_sub(leaked)
    }

    fn set(&mut self, excess: u64, elapsed: u64, now: u64) {
        self.excess = excess;
        if elapsed > 0 {
            self.last = now;
        }
    }
}

impl Table {
    fn new(room: ZoneBudget) -> Table {
        Table {
            entries: Vec::new(),
            free: Vec::new(),
            by_key: Map::default(),
            newest: NONE,
            oldest: NONE,
            room,
        }
    }

    fn look_up(&mut self, key: &[u8], now: u64, rate: u64, burst: u64, count: bool) -> Admission {
        let Some(index) = self.by_key.get(key).copied() else {
            return self.begin(key, now, rate, count);
        };
        self.move_to_front(index);
        let Some(entry) = self.entry(index) else {
            return Admission::Full; // unreachable: each key has its entry
        };
        let elapsed = entry.elapsed(now);
        let excess = entry.next_excess(elapsed, rate);
        if excess > burst {
            return Admission::Exceeded(excess);
        }
        if count {
            entry.set(excess, elapsed, now);
            return Admission::Counted(excess);
        }
        entry.pins += 1;
        Admission::PinnedEntry(PinnedEntry(index))
    }

    /// Handles the first request of a key.
    fn begin(&mut self, key: &[u8], now: u64, rate: u64, count: bool) -> Admission {
        self.forget_unused(now, rate);
        let size = ENTRY_SIZE + key.len();
        if !self.room.take(size) {
            self.forget_oldest(now, rate);
            if !self.room.take(size) {
                return Admission::Full;
            }
        }
        let index = self.insert(Entry {
            key: key.into(),
            newer: NONE,
            older: NONE,
            last: if count { now } else { 0 },
            excess: 0,
            pins: u32::from(!count),
        });
        if count {
            Admission::Counted(0)
        } else {
            Admission::PinnedEntry(PinnedEntry(index))
        }
    }

    /// Inserts a saved entry as the newest, if there is room.
    fn put(&mut self, key: &[u8], last: u64, excess: u64) {
        if !self.by_key.contains_key(key) && self.room.take(ENTRY_SIZE + key.len()) {
            self.insert(Entry {
                key: key.into(),
                newer: NONE,
                older: NONE,
                last,
                excess,
                pins: 0,
            });
        }
    }

    fn count(&mut self, pinned: PinnedEntry, now: u64, rate: u64) -> u64 {
        let Some(entry) = self.entry(pinned.0) else {
            return 0; // unreachable: pinned entries are kept
        };
        let elapsed = entry.elapsed(now);
        let excess = entry.next_excess(elapsed, rate);
        entry.set(excess, elapsed, now);
        entry.pins = entry.pins.saturating_sub(1);
        excess
    }

    fn unpin(&mut self, pinned: PinnedEntry) {
        if let Some(entry) = self.entry(pinned.0) {
            entry.pins = entry.pins.saturating_sub(1);
        }
    }

    /// Removes up to two of the oldest entries if they are empty.
    fn forget_unused(&mut self, now: u64, rate: u64) {
        for _ in 0..2 {
            let oldest = self.oldest;
            let Some(entry) = self.entry(oldest) else {
                return;
            };
            let idle = now.abs_diff(entry.last);
            let leaked = rate.saturating_mul(idle) / 1000;
            if entry.pins > 0 || idle < FORGOTTEN_AFTER_MS || entry.excess > leaked {
                return;
            }
            self.remove(oldest);
        }
    }

    /// Removes the oldest entry whatever its excess, and then empty ones.
    fn forget_oldest(&mut self, now: u64, rate: u64) {
        let oldest = self.oldest;
        // Lookups move entries to the front: if the oldest is pinned, so are the others.
        if self.entry(oldest).is_some_and(|entry| entry.pins == 0) {
            self.remove(oldest);
            self.forget_unused(now, rate);
        }
    }

    fn entry(&mut self, index: u32) -> Option<&mut Entry> {
        self.entries.get_mut(index as usize)
    }

    fn insert(&mut self, entry: Entry) -> u32 {
        let key = Arc::clone(&entry.key);
        let index = match self.free.pop() {
            Some(index) => {
                if let Some(place) = self.entry(index) {
                    *place = entry;
                }
                index
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32 // overflows only in a zone of 4 TiB
            }
        };
        self.by_key.insert(key, index);
        self.link_front(index);
        index
    }

    fn remove(&mut self, index: u32) {
        self.unlink(index);
        let Some(entry) = self.entry(index) else {
            return;
        };
        let key = std::mem::take(&mut entry.key);
        self.room.give(ENTRY_SIZE + key.len());
        self.by_key.remove(&key);
        self.free.push(index);
    }

    fn move_to_front(&mut self, index: u32) {
        if self.newest != index {
            self.unlink(index);
            self.link_front(index);
        }
    }

    fn link_front(&mut self, index: u32) {
        let second = std::mem::replace(&mut self.newest, index);
        if let Some(entry) = self.entry(index) {
            entry.newer = NONE;
            entry.older = second;
        }
        match self.entry(second) {
            Some(second) => second.newer = index,
            None => self.oldest = index,
        }
    }

    fn unlink(&mut self, index: u32) {
        let Some(entry) = self.entry(index) else {
            return;
        };
        let (newer, older) = (entry.newer, entry.older);
        match self.entry(newer) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
        match self.entry(older) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 86_400_000;

    fn table(size: u64) -> Table {
        Table::new(ZoneBudget::new(size, HEAD_SIZE))
    }

    fn excess(admission: &Admission) -> Result<u64, u64> {
        match admission {
            Admission::Counted(excess) => Ok(*excess),
            Admission::Exceeded(excess) => Err(*excess),
            _ => panic!("{admission:?}"),
        }
    }

    /// Calculated from `ngx_http_limit_req_lookup`.
    #[test]
    fn a_bucket_leaks_at_its_rate() {
        let mut table = table(32768);
        let mut at = |ms: u64| excess(&table.look_up(b"key", START + ms, 2000, 1500, true));
        assert_eq!(at(0), Ok(0));
        assert_eq!(at(0), Ok(1000));
        assert_eq!(at(0), Err(2000)); // not counted
        assert_eq!(at(250), Ok(1500));
        assert_eq!(at(249), Err(2500)); // the clock of another thread
        assert_eq!(at(1000), Ok(1000));
        assert_eq!(at(60_000), Ok(0));
    }

    #[test]
    fn of_several_zones_all_count_or_none() {
        let mut table = table(32768);
        let Admission::PinnedEntry(first) = table.look_up(b"a", START, 1000, 0, false) else {
            panic!("a new key");
        };
        assert_eq!(table.count(first, START, 1000), 0);
        assert_eq!(
            excess(&table.look_up(b"a", START + 100, 1000, 0, false)),
            Err(900)
        );
        let Admission::PinnedEntry(second) = table.look_up(b"a", START + 1000, 1000, 0, false)
        else {
            panic!("one second later");
        };
        table.unpin(second);
        // The second request was not counted.
        assert_eq!(
            excess(&table.look_up(b"a", START + 1000, 1000, 0, true)),
            Ok(0)
        );
    }

    /// nginx 1.31 keeps 191 keys of four bytes in 32 KiB, and evicts the least recently used.
    #[test]
    fn a_full_zone_forgets_the_oldest() {
        let mut table = table(32768);
        for key in 0..10_000_u32 {
            let answer = table.look_up(&key.to_le_bytes(), START, 1000, 0, true);
            assert_eq!(excess(&answer), Ok(0));
        }
        assert_eq!(table.by_key.len(), 191);
        assert_eq!(table.entries.len(), 191);
        assert!(table.by_key.contains_key(&9_809_u32.to_le_bytes()[..]));
        // A lookup makes a key the newest again.
        let look = |table: &mut Table, key: u32| {
            excess(&table.look_up(&key.to_le_bytes(), START, 1000, 0, true))
        };
        assert_eq!(look(&mut table, 9_809), Err(1000));
        assert_eq!(look(&mut table, 20_000), Ok(0));
        assert_eq!(look(&mut table, 9_809), Err(1000));
        assert_eq!(look(&mut table, 9_810), Ok(0));
    }

    #[test]
    fn what_has_run_empty_is_forgotten_two_at_a_time() {
        let mut table = table(1 << 20);
        for key in 0..10_u32 {
            table.look_up(&key.to_le_bytes(), START, 1000, 0, true);
        }
        table.look_up(b"later", START + 59_999, 1000, 0, true);
        assert_eq!(table.by_key.len(), 11);
        table.look_up(b"more", START + 60_000, 1000, 0, true);
        assert_eq!(table.by_key.len(), 10);
    }

    #[test]
    fn pinned_entries_stay() {
        let mut table = table(32768);
        let mut pinned = Vec::new();
        for key in 0..191_u32 {
            let Admission::PinnedEntry(entry) =
                table.look_up(&key.to_le_bytes(), START, 1000, 0, false)
            else {
                panic!("a new key");
            };
            pinned.push(entry);
        }
        let more = table.look_up(b"more", START, 1000, 0, true);
        assert!(matches!(more, Admission::Full));
        table.unpin(pinned[0]);
        let more = table.look_up(b"more", START, 1000, 0, true);
        assert_eq!(excess(&more), Ok(0));
    }
}
