//! Metrics of response caches.

use base::json;

use super::page::{Page, escaped};
use proxying::cache::numbers::CacheNumbers;

/// A metric of caches: name, type, help and source.
type Family = (
    &'static str,
    &'static str,
    &'static str,
    fn(&CacheNumbers) -> u64,
);

const FAMILIES: [Family; 13] = [
    (
        "tidegate_cache_entries",
        "gauge",
        "Entries that the cache holds.",
        |cache| cache.counts.entries,
    ),
    (
        "tidegate_cache_bytes",
        "gauge",
        "Bytes that its files take, those that are being filled included.",
        |cache| cache.counts.bytes,
    ),
    (
        "tidegate_cache_fills",
        "gauge",
        "Entries that are being fetched.",
        |cache| cache.counts.fills,
    ),
    (
        "tidegate_cache_waiting",
        "gauge",
        "Requests that wait for the answer of another (*_cache_lock).",
        |cache| cache.waiting,
    ),
    (
        "tidegate_cache_stored_total",
        "counter",
        "Answers that were stored.",
        |cache| cache.counts.stored,
    ),
    (
        "tidegate_cache_evicted_total",
        "counter",
        "Entries that had to make room.",
        |cache| cache.counts.evicted,
    ),
    (
        "tidegate_cache_expired_total",
        "counter",
        "Entries that went because they were not used for long.",
        |cache| cache.counts.expired,
    ),
    (
        "tidegate_cache_damaged_total",
        "counter",
        "Entries whose file was not what it should be.",
        |cache| cache.counts.wrong,
    ),
    (
        "tidegate_cache_memory_bytes",
        "gauge",
        "Bytes that entries and their tables take in memory.",
        |cache| cache.memory.bytes,
    ),
    (
        "tidegate_cache_memory_entries",
        "gauge",
        "Entries that memory holds.",
        |cache| cache.memory.entries,
    ),
    (
        "tidegate_cache_memory_hits_total",
        "counter",
        "Entries that were given from memory.",
        |cache| cache.memory.hits,
    ),
    (
        "tidegate_cache_memory_prebuilt_total",
        "counter",
        "Those of them that were given as whole responses laid out before.",
        |cache| cache.at_once,
    ),
    (
        "tidegate_cache_memory_evicted_total",
        "counter",
        "Entries that had to make room in memory.",
        |cache| cache.memory.evicted,
    ),
];

pub(super) fn prometheus(caches: &[CacheNumbers], page: &mut Page) {
    let requests = "tidegate_cache_requests_total";
    let help = "Requests that have asked the cache, by what $upstream_cache_status says.";
    page.family(requests, "counter", help);
    let label = |cache: &CacheNumbers| format!("zone=\"{}\"", escaped(&cache.zone));
    for cache in caches {
        for (status, number) in cache.answered {
            let labels = format!("{},status=\"{status}\"", label(cache));
            page.sample(requests, &labels, number);
        }
    }
    for (name, kind, help, number) in FAMILIES {
        page.family(name, kind, help);
        for cache in caches {
            page.sample(name, &label(cache), number(cache));
        }
    }
}

pub(super) fn json(caches: &[CacheNumbers], json: &mut json::Writer) {
    for cache in caches {
        json.object(|json| {
            json.key("zone").string(&cache.zone);
            json.key("requests").object(|json| {
                for (status, number) in cache.answered {
                    json.key(status).number(number);
                }
            });
            for (name, _, _, number) in FAMILIES {
                let name = name.strip_prefix("tidegate_cache_").unwrap_or(name);
                json.key(name.strip_suffix("_total").unwrap_or(name))
                    .number(number(cache));
            }
        });
    }
}
