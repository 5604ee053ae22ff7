//! What all threads of the server share: the store, the settings, what has been counted, and time
//! as memcached counts it.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use framework::zone::{Fact, Tell};
use store::{Seconds, Store};

use crate::counts::{COUNTERS, CacheCounters, Sums};

/// Smallest limit that `cache_memlimit` takes, in megabytes.
pub(crate) const LIMIT_MIN_MEGABYTES: u32 = 8;

/// Up to so many seconds an expiry is from now on; above it is a time of the wall clock.
const RELATIVE_MAX: i64 = 60 * 60 * 24 * 30;

/// The clock begins here, so that 1 is a time that has passed.
const CLOCK_BEGIN: Seconds = 2;

const PASSED: Seconds = 1;

/// What the server was started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `-m`: memory for objects and their tables, in bytes.
    pub limit: usize,
    /// `-M`: a full cache refuses instead of evicting.
    pub refuses_when_full: bool,
    /// `-I`: the largest item, in bytes, as memcached counts them.
    pub item_max: usize,
    /// `-c`: connections at a time; `None` where `worker_connections` bounds them.
    pub connections_max: Option<usize>,
    /// The number of threads, `-t` of memcached.
    pub threads: usize,
    /// The length of the backlog, `-b` of memcached.
    pub backlog: i32,
    /// The protocol of the listeners, `-B` of memcached.
    pub protocol: Protocol,
    /// `-F` turns it off: `flush_all`.
    pub allows_flush: bool,
    /// `-X` turns it off: dumps of keys.
    pub allows_dump: bool,
    /// `-A`: the command `shutdown`.
    pub allows_shutdown: bool,
    /// How often `-v` was written.
    pub verbosity: u32,
    /// `-o idle_timeout`: idle connections are closed after so long.
    pub idle_timeout: Option<Duration>,
    /// The port that statistics name, 0 for none.
    pub port: u16,
    /// `-U`: the UDP port that statistics name, 0 for none.
    pub udp_port: u16,
    /// The addresses of `-l` as they were written.
    pub interfaces: Option<String>,
    /// The path of `-s`.
    pub socket_path: Option<String>,
    /// The mask of `-a`.
    pub socket_mask: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            limit: 64 << 20,
            refuses_when_full: false,
            item_max: 1 << 20,
            connections_max: Some(1024),
            threads: 4,
            backlog: 1024,
            protocol: Protocol::Auto,
            allows_flush: true,
            allows_dump: true,
            allows_shutdown: false,
            verbosity: 0,
            idle_timeout: None,
            port: 0,
            udp_port: 0,
            interfaces: None,
            socket_path: None,
            socket_mask: 0o700,
        }
    }
}

/// Which protocols clients may speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// A connection's first byte says which.
    #[default]
    Auto,
    /// The text protocol with meta commands.
    Text,
    /// The binary protocol, made of packets.
    Binary,
}

impl Protocol {
    /// memcached's word for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Protocol::Auto => "auto-negotiate",
            Protocol::Text => "ascii",
            Protocol::Binary => "binary",
        }
    }
}

/// How a client may end the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownPolicy {
    /// The command `shutdown` ends the server at once.
    Now,
    /// The command `shutdown graceful` lets connections end.
    Graceful,
}

/// Ends the server when a client asks for it.
pub type ShutdownHook = Box<dyn Fn(ShutdownPolicy) + Send + Sync>;

/// The cache and its books.
pub struct Cache {
    pub(crate) store: Store,
    pub(crate) settings: Settings,
    pub(crate) verbosity: AtomicU32,
    /// Bytes that the store may occupy.
    pub(crate) limit: AtomicUsize,
    /// Connections that are open.
    pub(crate) connections: AtomicUsize,
    /// Connections that have been accepted since the start.
    pub(crate) accepted: AtomicUsize,
    pub(crate) end: ShutdownHook,
    counts: Mutex<Vec<Arc<CacheCounters>>>,
    /// What had been counted when it was last begun anew.
    forgotten: Mutex<Sums>,
    started: Instant,
}

impl Cache {
    /// An empty cache; its clock begins at `started`.
    #[must_use]
    pub fn new(settings: Settings, started: Instant, end: ShutdownHook) -> Cache {
        let store = Store::new(store::Settings {
            limit: settings.limit,
            value_max: settings.item_max,
            evicts: !settings.refuses_when_full,
        });
        Cache {
            store,
            verbosity: AtomicU32::new(settings.verbosity),
            limit: AtomicUsize::new(settings.limit),
            connections: AtomicUsize::new(0),
            accepted: AtomicUsize::new(0),
            end,
            counts: Mutex::default(),
            forgotten: Mutex::new([0; COUNTERS]),
            started,
            settings,
        }
    }

    /// Frees some of what has expired. Whether there is more.
    pub fn sweep(&self, now: Instant) -> bool {
        self.store.sweep(self.seconds(now))
    }

    /// Tells what the cache holds, for people and monitoring.
    pub(crate) fn describe(&self, tell: &mut Tell<'_>) {
        let counts = self.store.counts();
        tell("items", Fact::Number(counts.objects));
        tell("bytes", Fact::Number(counts.occupied as u64));
        tell("evictions", Fact::Number(counts.evicted));
    }

    /// The time for the store.
    pub(crate) fn seconds(&self, now: Instant) -> Seconds {
        let passed = now.saturating_duration_since(self.started).as_secs();
        Seconds::try_from(passed)
            .unwrap_or(Seconds::MAX)
            .saturating_add(CLOCK_BEGIN)
    }

    /// The time of a turn of the loop.
    pub(crate) fn moment(&self) -> CommandTime {
        CommandTime {
            now: self.seconds(engine::now()),
            wall: engine::wall().as_secs(),
        }
    }

    /// What another thread counts by.
    pub(crate) fn join(&self) -> Arc<CacheCounters> {
        let counts = Arc::new(CacheCounters::new());
        lock(&self.counts).push(Arc::clone(&counts));
        counts
    }

    /// What all threads have counted since the start or the last [`Cache::forget_counts`].
    pub(crate) fn sums(&self) -> Sums {
        let mut sums = self.all_sums();
        for (sum, forgotten) in sums.iter_mut().zip(lock(&self.forgotten).iter()) {
            *sum = sum.saturating_sub(*forgotten);
        }
        sums
    }

    /// Begins to count anew.
    pub(crate) fn forget_counts(&self) {
        *lock(&self.forgotten) = self.all_sums();
    }

    fn all_sums(&self) -> Sums {
        let mut sums = [0; COUNTERS];
        for counts in lock(&self.counts).iter() {
            counts.add_to(&mut sums);
        }
        sums
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time at which commands are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandTime {
    pub(crate) now: Seconds,
    pub(crate) wall: u64,
}

impl CommandTime {
    /// When what a client says expires, does: 0 is never, below it at once, up to 30 days so much
    /// later, else a time of the wall clock.
    pub(crate) fn expiry(self, said: i64) -> Option<Seconds> {
        match said {
            0 => None,
            ..0 => Some(PASSED),
            1..=RELATIVE_MAX => {
                let seconds = Seconds::try_from(said).unwrap_or(Seconds::MAX);
                Some(self.now.saturating_add(seconds))
            }
            _ => {
                let left = said.unsigned_abs().saturating_sub(self.wall);
                let left = Seconds::try_from(left).unwrap_or(Seconds::MAX);
                match left {
                    0 => Some(PASSED),
                    left => Some(self.now.saturating_add(left)),
                }
            }
        }
    }

    /// The time of the wall clock at one of the store's.
    pub(crate) fn wall_at(self, at: Seconds) -> u64 {
        (self.wall + u64::from(at)).saturating_sub(u64::from(self.now))
    }
}

/// What commands of one thread have at hand.
pub(crate) struct ThreadContext {
    pub(crate) cache: Arc<Cache>,
    pub(crate) counts: Arc<CacheCounters>,
}

impl ThreadContext {
    pub(crate) fn new(cache: Arc<Cache>) -> ThreadContext {
        let counts = cache.join();
        ThreadContext { cache, counts }
    }

    pub(crate) fn set_limit(&self, megabytes: u32, moment: CommandTime) {
        let limit = (megabytes as usize) << 20;
        self.cache.limit.store(limit, Ordering::Relaxed);
        self.cache.store.set_limit(limit, moment.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_relative_up_to_thirty_days() {
        let moment = CommandTime {
            now: 100,
            wall: 1_800_000_000,
        };
        assert_eq!(moment.expiry(0), None);
        assert_eq!(moment.expiry(-1), Some(PASSED));
        assert_eq!(moment.expiry(i64::from(i32::MIN)), Some(PASSED));
        assert_eq!(moment.expiry(1), Some(101));
        assert_eq!(moment.expiry(2_592_000), Some(2_592_100));
        assert_eq!(moment.expiry(2_592_001), Some(PASSED));
        assert_eq!(moment.expiry(1_800_000_000), Some(PASSED));
        assert_eq!(moment.expiry(1_800_000_001), Some(101));
        assert_eq!(moment.wall_at(101), 1_800_000_001);
    }
}
