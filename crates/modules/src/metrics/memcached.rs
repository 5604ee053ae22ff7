//! Metrics of `memcached` blocks, the caches that serve memcached clients, from the status of their
//! zones.

use base::json;
use framework::zone::{AnyZone, ZoneFact};
use http::request::Request;

use super::page::{Page, escaped};

/// The kind of the zones that `memcached` blocks have.
const KIND: &str = "memcached";

/// Names of the metrics with their help; those that end in `_total` are counters.
const FAMILIES: [(&str, &str); 15] = [
    ("items", "Items that the cache holds."),
    ("bytes", "Bytes that items and their tables take."),
    ("limit_bytes", "Bytes that they may take."),
    ("connections", "Connections open now."),
    ("accepted_total", "Connections accepted."),
    ("stored_total", "Items that were stored or changed."),
    ("evicted_total", "Items that had to make room."),
    ("expired_total", "Items that had expired."),
    ("get_hits_total", "Keys that were asked for and found."),
    (
        "get_misses_total",
        "Keys that were asked for and not found.",
    ),
    ("sets_total", "Commands that store a value."),
    (
        "deletes_total",
        "Items that clients have deleted by their keys.",
    ),
    (
        "received_bytes_total",
        "Bytes of commands with their values.",
    ),
    ("sent_bytes_total", "Bytes of answers with their values."),
    ("authentication_errors_total", "Passwords that were wrong."),
];

/// The numbers of one cache.
pub(super) struct MemcachedNumbers {
    zone: String,
    /// The values, in the order of [`FAMILIES`].
    numbers: [u64; FAMILIES.len()],
}

/// The metrics of all `memcached` blocks.
pub(super) fn of(request: &Request) -> Vec<MemcachedNumbers> {
    let zones = request.local.generation.zones.iter();
    zones
        .filter(|zone| zone.kind() == KIND)
        .map(numbers)
        .collect()
}

fn numbers(zone: &dyn AnyZone) -> MemcachedNumbers {
    let mut numbers = [0; FAMILIES.len()];
    zone.describe(&mut |name, fact| {
        let place = FAMILIES.iter().position(|(family, _)| *family == name);
        let known = place.and_then(|place| numbers.get_mut(place));
        if let (Some(known), ZoneFact::Number(number)) = (known, fact) {
            *known = number;
        }
    });
    MemcachedNumbers {
        zone: zone.name().to_owned(),
        numbers,
    }
}

pub(super) fn prometheus(caches: &[MemcachedNumbers], page: &mut Page) {
    for (place, (name, help)) in FAMILIES.iter().enumerate() {
        let family = format!("tidegate_memcached_{name}");
        let kind = if name.ends_with("_total") {
            "counter"
        } else {
            "gauge"
        };
        page.family(&family, kind, help);
        for cache in caches {
            let label = format!("zone=\"{}\"", escaped(&cache.zone));
            let number = cache.numbers.get(place).copied().unwrap_or(0);
            page.sample(&family, &label, number);
        }
    }
}

pub(super) fn json(caches: &[MemcachedNumbers], json: &mut json::Writer) {
    for cache in caches {
        json.object(|json| {
            json.key("zone").string(&cache.zone);
            for ((name, _), number) in FAMILIES.iter().zip(cache.numbers) {
                json.key(name.strip_suffix("_total").unwrap_or(name))
                    .number(number);
            }
        });
    }
}
