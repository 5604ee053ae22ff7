//! `*_cache_background_update`: what is fresh no more is given at once, and fetched beside that by
//! a request of the cache's own, which the client neither waits for nor ends.

use framework::slot::{Slot, SlotValue};
use http::request::Request;
use http::slots::OfPass;
use http::subrequest::background;

use super::clock;
use super::lookup::CacheLookup;
use super::settings::Cache;
use super::validators::Validators;

/// What a request is to fetch that no client has sent.
static UPDATE: Slot<Update, OfPass> = Slot::new();

#[derive(Default)]
struct Update(Option<Box<CacheLookup>>);

impl SlotValue for Update {}

/// What such a request has to fetch.
pub(super) async fn take(request: &mut Request) -> Option<Box<CacheLookup>> {
    let mut lookup = request.pass.take(&UPDATE)?.0?;
    lookup.requested = clock::wall_milliseconds();
    // As a failure or a 304 has it, that is still wanted.
    lookup.stale = lookup.open_id(request, lookup.entry()).await;
    if let Some(stale) = &lookup.stale
        && lookup.revalidates
    {
        lookup.validators = Validators::of(&stale.head, lookup.policy.is_some());
    }
    Some(lookup)
}

impl CacheLookup {
    /// Has what this request asks for fetched anew beside it, by the claim that it has.
    pub(super) fn update_beside(&mut self, request: &mut Request, cache: &Cache) -> bool {
        let Some(mut child) = request.detached() else {
            return false;
        };
        let update = CacheLookup {
            store: self.store.clone(),
            key: self.key.clone(),
            outcome: self.outcome.of_update(),
            group: self.group.clone(),
            filler: self.filler.take(),
            stale: None,
            validators: Validators::default(),
            answer: None,
            beginning: None,
            file: None,
            is_update: true,
            may_store: !cache.passes_range(request),
            ..*self
        };
        child.pass.enter(&UPDATE).0 = Some(Box::new(update));
        background::detach(child);
        true
    }
}
