//! What all threads of the server share: the store, the settings, what has been counted, and time
//! as memcached counts it.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use framework::zone::{ZoneFact, ZoneFactSink};
use proto::memcached::command::KEY_LENGTH_MAX;
use store::{Cas, Item, Observer, Seconds, Store};

use crate::auth::{AuthProtocol, UserPasswords};
use crate::census::GoneItems;
use crate::connections::{OpenSockets, shown_number};
use crate::counts::{COUNTERS, CacheCounters, ClassSums, Counter, NO_CLASS_SUMS, Sums};
use crate::lock::lock;
use crate::prefixes::Prefixes;
use crate::saved::Overtaken;
use crate::size_classes::{class_of, item_size};
use crate::tls::TlsFiles;
use crate::watch::{EscapedKey, EventKind, Watchers};

/// Smallest limit that `cache_memlimit` takes, in megabytes.
pub(crate) const LIMIT_MIN_MEGABYTES: u32 = 8;

/// Commands of a connection before others have their turn, unless `-R` says so: what is answered
/// bounds a turn, too.
pub const COMMANDS_IN_TURN: u32 = 1000;

/// memcached's hash tables have two to the power of this many buckets when it starts.
const HASH_POWER_MIN: u32 = 16;

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
    /// `-o key_length_max`: the longest key, in bytes.
    pub key_max: usize,
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
    /// `-W` turns it off: the command `watch`.
    pub allows_watch: bool,
    /// `-C` turns it off: without it every item's CAS is 0.
    pub with_cas: bool,
    /// `-Y`: the file of users who say by lines who they are.
    pub auth_file: Option<PathBuf>,
    /// `-S`: clients say by SASL who they are, in packets.
    pub with_sasl: bool,
    /// `-D`: what parts a key's prefix from the rest.
    pub prefix_delimiter: u8,
    /// `-D` also begins to count by prefixes at once.
    pub counts_prefixes: bool,
    /// `-o watcher_logbuf_size`: lines that wait for a watcher, in bytes.
    pub watcher_buffer: usize,
    /// `-R`: commands of a connection before others have their turn.
    pub commands_in_turn: u32,
    /// Whether memcached's crawler would run; expired items go by themselves in any case.
    pub crawls: bool,
    /// `-Z` with `-o ssl_…`: clients speak TLS.
    pub tls: Option<Arc<TlsFiles>>,
    /// `-e`: where items are kept over a restart.
    pub memory_file: Option<PathBuf>,
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
            key_max: KEY_LENGTH_MAX,
            connections_max: Some(1024),
            threads: 4,
            backlog: 1024,
            protocol: Protocol::Auto,
            allows_flush: true,
            allows_dump: true,
            allows_watch: true,
            with_cas: true,
            auth_file: None,
            with_sasl: false,
            prefix_delimiter: b':',
            counts_prefixes: false,
            watcher_buffer: 256 * 1024,
            commands_in_turn: COMMANDS_IN_TURN,
            crawls: true,
            tls: None,
            memory_file: None,
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
    /// Whether what memcached's crawler does is on.
    pub(crate) crawls: AtomicBool,
    /// Items that have gone by themselves, and watchers.
    pub(crate) gone: Arc<GoneItems>,
    pub(crate) prefixes: Prefixes,
    /// What is being read from a file.
    restoring: Overtaken,
    pub(crate) sockets: OpenSockets,
    /// Users, where clients must say who they are.
    credentials: RwLock<Arc<UserPasswords>>,
    /// Logarithm of the buckets that memcached would have, see [`Cache::hash_power`].
    hash_power: AtomicU32,
    /// Seconds that the clock is ahead, for tests.
    ahead: AtomicU32,
    /// The time of the store's clock at `started`.
    clock_begin: AtomicU32,
    counts: Mutex<Vec<Arc<CacheCounters>>>,
    /// What had been counted when it was last begun anew.
    forgotten: Mutex<Sums>,
    forgotten_classes: Mutex<ClassSums>,
    forgotten_items: Mutex<store::StoreStatistics>,
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
        let watchers = Watchers::new(settings.watcher_buffer);
        let gone = Arc::new(GoneItems::new(store.shards(), watchers));
        let observer: Arc<dyn Observer> = Arc::clone(&gone) as Arc<dyn Observer>;
        Cache {
            store: store.observed_by(&observer),
            crawls: AtomicBool::new(settings.crawls),
            gone,
            prefixes: Prefixes::new(settings.prefix_delimiter, settings.counts_prefixes),
            restoring: Overtaken::default(),
            sockets: OpenSockets::default(),
            credentials: RwLock::default(),
            hash_power: AtomicU32::new(HASH_POWER_MIN),
            ahead: AtomicU32::new(0),
            clock_begin: AtomicU32::new(CLOCK_BEGIN),
            verbosity: AtomicU32::new(settings.verbosity),
            limit: AtomicUsize::new(settings.limit),
            connections: AtomicUsize::new(0),
            accepted: AtomicUsize::new(0),
            end,
            counts: Mutex::default(),
            forgotten: Mutex::new([0; COUNTERS]),
            forgotten_classes: Mutex::new(NO_CLASS_SUMS),
            forgotten_items: Mutex::default(),
            started,
            settings,
        }
    }

    /// Frees some of what has expired. Whether there is more.
    pub fn sweep(&self, now: Instant) -> bool {
        self.store.sweep(self.seconds(now))
    }

    /// Whether the allocator is to be trimmed, so that the process keeps to the limit although
    /// large values come and go. Called after each sweep, on a thread that serves no connections.
    #[must_use]
    pub fn is_trim_due(&self) -> bool {
        self.store.is_trim_due()
    }

    /// Frees what is above a limit that has shrunk. Whether there was anything.
    pub(crate) fn shrink(&self, now: Instant) -> bool {
        self.store.shrink(self.seconds(now))
    }

    /// Tells what the cache holds, for people and monitoring.
    pub(crate) fn describe(&self, tell: &mut ZoneFactSink<'_>) {
        let (counts, sums) = (self.store.counts(), self.all_sums());
        let sum = |counter: Counter| sums.get(counter as usize).copied().unwrap_or(0);
        let connections = self.connections.load(Ordering::Relaxed) as u64;
        let accepted = self.accepted.load(Ordering::Relaxed) as u64;
        for (name, number) in [
            ("items", counts.objects),
            ("bytes", counts.occupied as u64),
            ("limit_bytes", self.limit.load(Ordering::Relaxed) as u64),
            ("connections", connections),
            ("accepted_total", accepted),
            ("stored_total", counts.stored),
            ("evicted_total", counts.evicted),
            ("expired_total", counts.expired),
            ("get_hits_total", sum(Counter::GetHits)),
            ("get_misses_total", sum(Counter::GetMisses)),
            ("sets_total", sum(Counter::Stores)),
            ("deletes_total", sum(Counter::DeleteHits)),
            ("received_bytes_total", sum(Counter::BytesRead)),
            ("sent_bytes_total", sum(Counter::BytesWritten)),
            ("authentication_errors_total", sum(Counter::AuthErrors)),
        ] {
            tell(name, ZoneFact::Number(number));
        }
    }

    /// The time for the store.
    pub(crate) fn seconds(&self, now: Instant) -> Seconds {
        let passed = now.saturating_duration_since(self.started).as_secs();
        Seconds::try_from(passed)
            .unwrap_or(Seconds::MAX)
            .saturating_add(self.clock_begin.load(Ordering::Relaxed))
            .saturating_add(self.ahead.load(Ordering::Relaxed))
    }

    /// Seconds since the cache was made.
    pub(crate) fn uptime(&self, now: Seconds) -> Seconds {
        (now + 1).saturating_sub(self.clock_begin.load(Ordering::Relaxed))
    }

    /// Has the clock go ahead, or back as far as it has gone ahead.
    pub(crate) fn move_clock(&self, seconds: i32) {
        let ahead = self.ahead.load(Ordering::Relaxed);
        let moved = ahead.saturating_add_signed(seconds);
        self.ahead.store(moved, Ordering::Relaxed);
    }

    /// Who may come in from now on.
    pub fn set_credentials(&self, credentials: UserPasswords) {
        let mut now = self
            .credentials
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *now = Arc::new(credentials);
    }

    /// Who may come in.
    pub(crate) fn credentials(&self) -> Arc<UserPasswords> {
        let now = self.credentials.read();
        Arc::clone(&now.unwrap_or_else(PoisonError::into_inner))
    }

    /// Logarithm of the number of buckets that memcached would have for the items that there are,
    /// or have been: it grows at one and a half items a bucket.
    pub(crate) fn hash_power(&self) -> u32 {
        let items = self.store.counts().objects;
        let fits = |power: &u32| items <= (1 << power) / 2 * 3;
        let wanted = (HASH_POWER_MIN..32).find(fits).unwrap_or(32);
        self.hash_power
            .fetch_max(wanted, Ordering::Relaxed)
            .max(wanted)
    }

    /// Whether clients speak TLS.
    pub(crate) fn with_tls(&self) -> bool {
        self.settings.tls.is_some()
    }

    /// Seconds since certificates were read.
    pub(crate) fn certificates_age(&self, now: Seconds) -> Seconds {
        let tls = self.settings.tls.as_ref();
        tls.map_or(0, |tls| tls.age(now))
    }

    /// Reads certificates again, where the command line has named them.
    pub(crate) fn refresh_certificates(&self) -> Option<Result<(), String>> {
        let now = self.seconds(engine::now());
        let tls = self.settings.tls.as_ref()?;
        Some(tls.read_again(now))
    }

    /// A client changes the item of a key, or takes it away: what is being read from a file must
    /// not bring it back.
    #[inline]
    pub(crate) fn overtake(&self, key: &[u8]) {
        if self.restoring.is_under_way() {
            self.restoring.note(key);
        }
    }

    /// What clients have changed since a file is being read, or is to be.
    pub(crate) fn overtaken(&self) -> &Overtaken {
        &self.restoring
    }

    /// Has the clock begin at this time. Must be called before anybody asks for the time.
    pub(crate) fn with_clock_from(self, begin: Seconds) -> Cache {
        self.clock_begin.store(begin, Ordering::Relaxed);
        self
    }

    /// Has the clock go on from here, and memcached's hash table have this size at least.
    pub(crate) fn go_on_from(&self, now: Seconds, hash_power: u32) {
        let passed = self.seconds(Instant::now()) - self.clock_begin.load(Ordering::Relaxed);
        let begin = now.saturating_sub(passed).max(CLOCK_BEGIN);
        self.clock_begin.store(begin, Ordering::Relaxed);
        self.keep_hash_power(hash_power);
    }

    /// Has memcached's hash table have this size at least.
    pub(crate) fn keep_hash_power(&self, hash_power: u32) {
        self.hash_power
            .fetch_max(hash_power.min(32), Ordering::Relaxed);
    }

    /// Another socket listens for this cache.
    pub fn listen(&self, address: engine::net::Address, is_datagrams: bool) {
        self.sockets.listen(address, is_datagrams);
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

    /// The threads that serve it: those of `-t`, or all that have.
    pub(crate) fn threads(&self) -> usize {
        match self.settings.threads {
            0 => lock(&self.counts).len(),
            threads => threads,
        }
    }

    /// What all threads have counted since the start or the last [`Cache::forget_counts`].
    pub(crate) fn sums(&self) -> Sums {
        let mut sums = self.all_sums();
        for (sum, forgotten) in sums.iter_mut().zip(lock(&self.forgotten).iter()) {
            *sum = sum.saturating_sub(*forgotten);
        }
        sums
    }

    /// The same by the classes that memcached would keep items in.
    pub(crate) fn class_sums(&self) -> ClassSums {
        let mut sums = self.all_class_sums();
        let forgotten = lock(&self.forgotten_classes);
        for (sum, forgotten) in sums.iter_mut().flatten().zip(forgotten.iter().flatten()) {
            *sum = sum.saturating_sub(*forgotten);
        }
        sums
    }

    /// Begins to count anew.
    pub(crate) fn forget_counts(&self) {
        *lock(&self.forgotten) = self.all_sums();
        *lock(&self.forgotten_classes) = self.all_class_sums();
        *lock(&self.forgotten_items) = self.store.counts();
        self.gone.forget();
        self.prefixes.clear();
    }

    /// What the store has counted when counting was last begun anew.
    pub(crate) fn forgotten_items(&self) -> store::StoreStatistics {
        *lock(&self.forgotten_items)
    }

    fn all_class_sums(&self) -> ClassSums {
        let mut sums = NO_CLASS_SUMS;
        for counts in lock(&self.counts).iter() {
            counts.add_classes_to(&mut sums);
        }
        sums
    }

    fn all_sums(&self) -> Sums {
        let mut sums = [0; COUNTERS];
        for counts in lock(&self.counts).iter() {
            counts.add_to(&mut sums);
        }
        sums
    }
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
    /// The connection whose commands are carried out, by its serial number; 0 for datagrams.
    pub(crate) connection: Cell<u64>,
}

impl ThreadContext {
    pub(crate) fn new(cache: Arc<Cache>) -> ThreadContext {
        let counts = cache.join();
        ThreadContext {
            cache,
            counts,
            connection: Cell::new(0),
        }
    }

    /// The number that watchers know the connection by.
    pub(crate) fn shown_connection(&self) -> u64 {
        shown_number(self.connection.get())
    }

    /// Where the CAS of what is stored comes from.
    pub(crate) fn cas(&self, given: Option<u64>) -> Cas {
        match given {
            _ if !self.cache.settings.with_cas => Cas::Given(0),
            Some(given) => Cas::Given(given),
            None => Cas::Next,
        }
    }

    /// How clients say who they are, where they must; `by_lines` is how this one speaks.
    pub(crate) fn auth_protocol(&self, by_lines: bool) -> Option<AuthProtocol> {
        let settings = &self.cache.settings;
        if by_lines {
            settings.auth_file.as_ref().map(|_| AuthProtocol::Text)
        } else {
            settings.with_sasl.then_some(AuthProtocol::Sasl)
        }
    }

    /// Tells watchers of a key that was looked for.
    #[inline]
    pub(crate) fn tell_fetched(&self, key: &[u8], found: Option<&Item<'_>>) {
        let watchers = &self.cache.gone.watchers;
        if watchers.want(EventKind::Fetchers) {
            let status = if found.is_some() {
                "found"
            } else {
                "not_found"
            };
            let (class, size) = found.map_or((0, 0), class_and_size);
            let (key, connection) = (EscapedKey(key), self.shown_connection());
            watchers.tell(
                EventKind::Fetchers,
                format_args!(
                    "type=item_get key={key} status={status} clsid={class} cfd={connection} \
                     size={size}"
                ),
            );
        }
    }

    /// Tells watchers of an item that a client deletes.
    #[inline]
    pub(crate) fn tell_deleted(&self, command: &str, item: &Item<'_>) {
        let watchers = &self.cache.gone.watchers;
        if watchers.want(EventKind::Deletions) {
            let (class, size) = class_and_size(item);
            let (key, connection) = (EscapedKey(item.key), self.shown_connection());
            watchers.tell(
                EventKind::Deletions,
                format_args!(
                    "type=deleted key={key} cmd={command} clsid={class} cfd={connection} \
                     size={size}"
                ),
            );
        }
    }

    /// What is above the limit then goes with what is stored, and by the sweeper.
    pub(crate) fn set_limit(&self, megabytes: u32) {
        let limit = (megabytes as usize) << 20;
        self.cache.limit.store(limit, Ordering::Relaxed);
        self.cache.store.set_limit(limit);
    }
}

/// The class that memcached would keep an item in, and the length of its value.
fn class_and_size(item: &Item<'_>) -> (usize, usize) {
    let size = item_size(item.key.len(), item.flags, item.value.len());
    (class_of(size), item.value.len())
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
