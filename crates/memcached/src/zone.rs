//! A cache that a configuration names: its items outlive reloads, for as long as the next
//! configuration names a cache of the same size and settings.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use framework::zone::{Fact, State, Tell, Zone};

use crate::cache::{Cache, Settings};

/// What a configuration says of a cache beside its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneSettings {
    /// The largest item in bytes (`item_size_max`).
    pub item_max: usize,
}

/// The cache of a zone, made for its first client.
pub struct ZonedCache {
    size: u64,
    cache: OnceLock<Arc<Cache>>,
}

impl ZonedCache {
    /// The cache, which so many threads serve.
    pub(crate) fn cache(&self, settings: ZoneSettings, threads: usize) -> Arc<Cache> {
        let begin = || {
            let settings = Settings {
                limit: usize::try_from(self.size).unwrap_or(usize::MAX),
                item_max: settings.item_max,
                threads,
                connections_max: None,
                allows_shutdown: false,
                ..Settings::default()
            };
            // Clients cannot end the server: nothing of theirs asks for that.
            Arc::new(Cache::new(settings, Instant::now(), Box::new(|_| {})))
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
        if zone.settings() == previous.settings() {
            Ok(zone.all_of(previous))
        } else {
            Ok(Arc::new(ZonedCache::new(zone.size())))
        }
    }

    fn describe(&self, settings: &ZoneSettings, tell: &mut Tell<'_>) {
        tell("item_size_max", Fact::Number(settings.item_max as u64));
        if let Some(cache) = self.existing() {
            cache.describe(tell);
        }
    }
}
