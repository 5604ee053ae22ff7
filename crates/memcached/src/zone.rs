//! A cache that a configuration names: its items outlive reloads, for as long as the next
//! configuration names a cache of the same size and settings.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use framework::zone::{State, Zone, ZoneFact, ZoneFactSink};
use store::Seconds;

use crate::cache::{Cache, Settings};

/// The clock of a zone's cache begins here, so that what a process before has used long ago still
/// has a time: some two years.
const CLOCK_BEGIN: Seconds = 1 << 26;

/// What a configuration says of a cache beside its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneSettings {
    /// The largest item in bytes (`item_size_max`).
    pub item_max: usize,
    /// The longest key in bytes (`key_length_max`).
    pub key_max: usize,
    /// Where items are kept over a restart (`state=`).
    pub state: Option<PathBuf>,
}

impl ZoneSettings {
    /// Whether a cache may go on under other settings.
    fn may_become(&self, next: &ZoneSettings) -> bool {
        (self.item_max, self.key_max) == (next.item_max, next.key_max)
    }
}

/// The cache of a zone, made for its first client.
pub struct ZonedCache {
    size: u64,
    cache: OnceLock<Arc<Cache>>,
}

impl ZonedCache {
    /// The cache, made where there is none yet.
    pub(crate) fn cache(&self, settings: &ZoneSettings) -> Arc<Cache> {
        let is_restored = settings.state.is_some();
        let begin = || {
            let settings = Settings {
                limit: usize::try_from(self.size).unwrap_or(usize::MAX),
                item_max: settings.item_max,
                key_max: settings.key_max,
                memory_file: settings.state.clone(),
                threads: 0, // those that join it are counted
                connections_max: None,
                allows_shutdown: false,
                ..Settings::default()
            };
            // Clients cannot end the server: nothing of theirs asks for that.
            let cache = Cache::new(settings, Instant::now(), Box::new(|_| {}));
            let cache = cache.with_clock_from(CLOCK_BEGIN);
            if is_restored {
                // A client may come before the service that reads the items has started.
                cache.overtaken().begin();
            }
            Arc::new(cache)
        };
        Arc::clone(self.cache.get_or_init(begin))
    }

    /// The cache, if it has had a client.
    pub(crate) fn existing(&self) -> Option<&Arc<Cache>> {
        self.cache.get()
    }
}

impl State for ZonedCache {
    const KIND: &'static str = "memcached";

    type Settings = ZoneSettings;

    fn new(size: u64) -> ZonedCache {
        ZonedCache {
            size,
            cache: OnceLock::new(),
        }
    }

    fn reconcile(
        zone: &Zone<ZonedCache>,
        previous: &Zone<ZonedCache>,
    ) -> Result<Arc<ZonedCache>, String> {
        if previous.settings().may_become(zone.settings()) {
            Ok(zone.all_of(previous))
        } else {
            Ok(Arc::new(ZonedCache::new(zone.size())))
        }
    }

    fn describe(&self, settings: &ZoneSettings, tell: &mut ZoneFactSink<'_>) {
        tell("item_size_max", ZoneFact::Number(settings.item_max as u64));
        tell("key_length_max", ZoneFact::Number(settings.key_max as u64));
        if let Some(cache) = self.existing() {
            cache.describe(tell);
        }
    }
}
