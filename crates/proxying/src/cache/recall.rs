//! Answers cache hits from memory without the normal path, as [`http::response::recall`] asks for
//! in scopes with a cache.
//!
//! Only a fresh response in memory is used, and only for a request without a property that could
//! lead to another response for the same key. In every other case (stale, varying or incomplete
//! responses, special requests) the request takes the normal path to `look_up`.

use std::sync::Arc;

use http::module::RecalledResponse;
use http::request::Request;
use http::response::BodyIdentity;
use http::response::recall::laid::ValidityCheck;
use store::disk::{EntryId, WatchedEntry};

use super::clock::now;
use super::lookup::AnswerRules;
use super::numbers::ThreadHits;
use super::purge::PurgeRequest;
use super::rules::reuse::{Reuse, ReuseRequest};
use super::settings::{Cache, ZoneChoice, any_holds};
use super::sharing::Credentials;
use super::status::CacheStatus;
use super::{hit, semantics};
use crate::attempts::Attempts;
use crate::settings::PassSettings;

impl PassSettings {
    /// Whether responses of the scope may be recalled from memory: the zone must be fixed, and the
    /// key must not depend on anything else.
    #[must_use]
    pub fn may_recall(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| {
            let ZoneChoice::Fixed(zone) = &cache.choice else {
                return false;
            };
            zone.settings().memory.is_some()
                && cache.slice_range.is_none()
                && cache.sharing.files.is_none()
        })
    }
}

/// Appends the key of a request's response; false if the response must not be recalled.
/// `default_key` appends the key if the scope has no `*_cache_key`.
pub fn key(
    request: &mut Request,
    passing: &PassSettings,
    default_key: impl FnOnce(&mut Request, &mut Vec<u8>),
    key: &mut Vec<u8>,
) -> bool {
    let Some(cache) = &passing.cache else {
        return false;
    };
    if !cache.is_in_memory() || !cache.has_shared_response(request) {
        return false;
    }
    match &cache.key {
        Some(text) => text.append_to(request, key),
        None => default_key(request, key),
    }
    true
}

/// Returns the fresh response of a key, if it is in memory.
pub fn answer(
    request: &mut Request,
    rules: &AnswerRules<'_>,
    key: &[u8],
) -> Option<RecalledResponse> {
    let cache = rules.passing.cache.as_ref()?;
    let ZoneChoice::Fixed(zone) = &cache.choice else {
        return None;
    };
    let store = zone.state().store(zone.settings())?;
    let (opened, watched) = store.watch(&EntryId::of(&[key]), key, now())?;
    let policy = cache.semantics.policy();
    let head = &opened.head;
    if policy.is_none() && semantics::is_stored_by_rfc_only(head) {
        return None;
    }
    let reuse = semantics::judge_times(policy, &ReuseRequest::default(), &head.times);
    if reuse != Reuse::Fresh {
        return None;
    }
    let until = semantics::fresh_until(policy, &head.times);
    let (id, revision) = watched.version();
    let length = opened.body.end.saturating_sub(opened.body.start);
    let standing = Box::new(StandingEntry {
        hits: ThreadHits::of(zone, store.number()),
        watched,
        length,
    });
    let is_one_for_all = head.vary.is_empty() && head.variant.is_none();
    let is_whole = opened.first.len() as u64 == length;
    let declined = |standing| {
        Some(RecalledResponse {
            standing,
            until,
            body: None,
        })
    };
    if !is_one_for_all || !is_whole {
        return declined(standing);
    }
    Attempts::begin(request, Vec::new());
    let applied = hit::apply(request, rules, head, CacheStatus::Hit, None)?;
    if applied.is_some() {
        return declined(standing);
    }
    request.response.body_identity = Some(BodyIdentity::of_entry(store.number(), id.0, revision));
    Some(RecalledResponse {
        standing,
        until,
        body: Some(opened.first),
    })
}

impl Cache {
    fn is_in_memory(&self) -> bool {
        let ZoneChoice::Fixed(zone) = &self.choice else {
            return false;
        };
        let store = zone.state().store(zone.settings());
        store.is_some_and(|store| store.has_memory())
    }

    /// Whether all requests with the key of this request get the same response from the cache.
    fn has_shared_response(&self, request: &mut Request) -> bool {
        if let Some(purge) = &self.purge
            && purge.asked(request) != PurgeRequest::No
        {
            return false;
        }
        if self.sharing.passes(request) || self.sharing.credentials(request) != Credentials::None {
            return false;
        }
        if self.semantics.policy().is_some()
            && semantics::wanted(request) != ReuseRequest::default()
        {
            return false;
        }
        !any_holds(&self.bypass, request)
    }
}

/// An entry in memory that a thread sends repeatedly, and the counter of these hits.
struct StandingEntry {
    watched: WatchedEntry,
    hits: Arc<ThreadHits>,
    /// The length of the body in bytes.
    length: u64,
}

impl ValidityCheck for StandingEntry {
    fn is_current(&self) -> bool {
        self.watched.is_current()
    }

    fn version(&self) -> u128 {
        u128::from(self.watched.version().1)
    }

    fn count(&self) {
        self.hits.count(self.length);
    }
}
