//! `*_cache_background_update`: a stale response is used at once and updated by a background
//! request of the cache, for which the client does not wait and which does not end with the client.

use framework::slot::{Slot, SlotValue};
use http::request::Request;
use http::slots::PassLifetime;
use http::subrequest::background;

use super::clock;
use super::lookup::CacheLookup;
use super::settings::Cache;
use super::validators::Validators;

/// The lookup in the background request that updates the entry.
static UPDATE: Slot<Update, PassLifetime> = Slot::new();

/// The slot's value: the lookup, until the request takes it.
#[derive(Default)]
struct Update(Option<Box<CacheLookup>>);

impl SlotValue for Update {}

/// Takes the lookup of a background update.
pub(super) async fn take(request: &mut Request) -> Option<Box<CacheLookup>> {
    let mut lookup = request.pass.take(&UPDATE)?.0?;
    lookup.requested = clock::wall_milliseconds();
    // If the upstream fails or responds with 304, the stale entry is used.
    lookup.stale = lookup.open_id(request, lookup.entry()).await;
    if let Some(stale) = &lookup.stale
        && lookup.revalidates
    {
        lookup.validators = Validators::of(&stale.head, lookup.policy.is_some());
    }
    Some(lookup)
}

impl CacheLookup {
    /// Starts a background request that updates the entry and takes over this request's claim.
    /// False if there can be no such request.
    pub(super) fn update_in_background(&mut self, request: &mut Request, cache: &Cache) -> bool {
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
