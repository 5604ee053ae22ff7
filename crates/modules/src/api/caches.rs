//! Caches in the API: their sizes and the statistics of their responses; and the removal of their
//! entries, which NGINX Plus does not have.

use base::json;
use bytes::Bytes;
use http::request::Request;
use proxying::cache::numbers::{self, CacheNumbers};

use super::failure::ApiError;
use super::server::{lock, resets};
use super::show::{self, Fields};

/// The cache statuses in output order: the name of each in the API, and its value of
/// `$upstream_cache_status`.
const ANSWERS: [(&str, &str); 7] = [
    ("hit", "HIT"),
    ("stale", "STALE"),
    ("updating", "UPDATING"),
    ("revalidated", "REVALIDATED"),
    ("miss", "MISS"),
    ("expired", "EXPIRED"),
    ("bypass", "BYPASS"),
];

/// The responses of a cache, in the order of [`ANSWERS`].
pub(super) type CacheAnswers = [CacheAnswer; ANSWERS.len()];

/// The responses with one cache status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CacheAnswer {
    responses: u64,
    /// Bytes of bodies, sent from the cache or received from the upstream.
    bytes: u64,
    /// Stored responses and their bytes; only for responses from an upstream.
    written: Option<(u64, u64)>,
}

impl CacheAnswer {
    /// The responses that were counted after `earlier`, a previous reading of the same counters.
    fn since(self, earlier: CacheAnswer) -> CacheAnswer {
        let before = earlier.written.unwrap_or_default();
        CacheAnswer {
            responses: self.responses.saturating_sub(earlier.responses),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            written: self.written.map(|(responses, bytes)| {
                let responses = responses.saturating_sub(before.0);
                (responses, bytes.saturating_sub(before.1))
            }),
        }
    }
}

/// The responses that a cache has counted, by cache status.
fn answers(cache: &CacheNumbers) -> CacheAnswers {
    ANSWERS.map(|(_, status)| {
        let counted = cache.answered.iter().zip(cache.bytes).zip(cache.written);
        let mut counted = counted.filter(|(((name, _), _), _)| *name == status);
        let Some((((_, responses), bytes), written)) = counted.next() else {
            return CacheAnswer::default();
        };
        let is_of_upstream = matches!(status, "MISS" | "EXPIRED" | "BYPASS");
        CacheAnswer {
            responses: *responses,
            bytes,
            written: is_of_upstream.then_some(written),
        }
    })
}

fn find(request: &Request, name: &Bytes) -> Result<CacheNumbers, ApiError> {
    let mut all = numbers::of(request).into_iter();
    let found = all.find(|cache| cache.zone.as_bytes() == name);
    found.ok_or(ApiError::CacheNotFound)
}

/// Writes the statistics of all caches, or of the cache with this name.
pub(super) fn show(
    request: &Request,
    only: Option<&Bytes>,
    json: &mut json::Writer,
    fields: &Fields,
) -> Result<(), ApiError> {
    let all = match only {
        None => numbers::of(request),
        Some(name) => {
            cache(request, &find(request, name)?, json, fields);
            return Ok(());
        }
    };
    json.object(|json| {
        for known in &all {
            cache(request, known, json.key(&known.zone), fields);
        }
    });
    Ok(())
}

/// Writes the statistics of one cache, counted since the last reset.
fn cache(request: &Request, cache: &CacheNumbers, json: &mut json::Writer, fields: &Fields) {
    let zone = resets(&request.local.generation);
    let earlier = zone.and_then(|zone| {
        let known = lock(&zone.state().caches);
        known.get(cache.zone.as_bytes()).copied()
    });
    let answered = answers(cache).into_iter();
    let answered = answered.zip(earlier.unwrap_or_default());
    show::object(json, fields, |object| {
        object.number("size", cache.occupied());
        if let Some(max_size) = cache.max_size {
            object.number("max_size", max_size);
        }
        object.boolean("cold", cache.is_cold);
        for ((name, _), (answer, before)) in ANSWERS.into_iter().zip(answered) {
            let answer = answer.since(before);
            object.field(name, |json| {
                show::complete_object(json, |object| {
                    object.number("responses", answer.responses);
                    object.number("bytes", answer.bytes);
                    if let Some((responses, bytes)) = answer.written {
                        object.number("responses_written", responses);
                        object.number("bytes_written", bytes);
                    }
                });
            });
        }
        object.number("entries", cache.held());
    });
}

/// Resets the response statistics of a cache.
pub(super) fn reset(request: &Request, name: &Bytes) -> Result<(), ApiError> {
    let found = find(request, name)?;
    if let Some(zone) = resets(&request.local.generation) {
        lock(&zone.state().caches).insert(name.clone(), answers(&found));
    }
    Ok(())
}

/// Removes all entries of a cache.
pub(super) async fn purge(request: &Request, name: &Bytes, user: &Bytes) -> Result<(), ApiError> {
    let found = find(request, name)?;
    let purging = numbers::purging(request, &found.zone).ok_or(ApiError::CacheNotFound)?;
    let purged = engine::blocking_long(purging).await;
    let by = if user.is_empty() {
        String::new()
    } else {
        format!(", by user \"{}\"", logs::Printable(user))
    };
    logs::error!(
        request,
        Notice,
        "api: {} entries of cache \"{}\" are purged{by}",
        purged.entries,
        logs::Printable(name)
    );
    match purged.failed {
        0 => Ok(()),
        _ => Err(ApiError::NotPurged),
    }
}
