//! The content cache: stores responses of upstreams in files or memory, and reuses them.
//!
//! <https://nginx.org/en/docs/http/ngx_http_proxy_module.html#proxy_cache>, for `proxy`, `fastcgi`,
//! `uwsgi` and `scgi`. `directives` declares the directives, `settings` holds their values in a
//! scope, and `zone` holds the directories and maintains them. `driver` calls the cache in these
//! steps:
//!
//! ```text
//! look_up ─▶ a hit is served (`hit`)
//!    └─▶ CacheLookup ─▶ the upstream is asked ─▶ decide_storing: by the head (`freshness`)
//!                                             └─▶ keep: stores the body (`fill`)
//! ```
//!
//! One key may have several responses (`vary`). `store::disk` defines the files. `parts` stores
//! ranges and completes them. `semantics` chooses between nginx's rules and those of RFC 9111,
//! which are in `rules`. `lock` lets one request fetch a response for many, `revalidation` asks the
//! upstream whether a stale entry is still current, `update` fetches a new response in the
//! background, and `purge` removes entries. `recall` responds to hits from memory before any of
//! these steps.

mod clock;
mod confirmation;
mod directives;
mod files;
mod fill;
mod freshness;
mod hit;
mod invalidation;
mod keeping;
mod lock;
mod lookup;
mod memory;
pub mod numbers;
mod partial_entry;
mod parts;
mod purge;
mod purge_line;
pub mod recall;
mod revalidation;
mod rules;
mod semantics;
mod semantics_line;
mod settings;
mod sharing;
mod status;
mod stored_head;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod update;
mod validators;
mod vary;
mod warnings;
mod zone;

use std::ops::ControlFlow;
use std::sync::Arc;

use framework::slot::{Slot, SlotValue};
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::request::{Request, Step};
use http::slots::PassLifetime;
use proto::method::Method;
use store::disk::{Claim, DiskStore, EntryId, Fill, Head, Miss, OpenEntry, Presence, Progress};

pub use directives::Family;
pub use lookup::{AnswerRules, CacheLookup};
pub(crate) use settings::Zone;
pub use settings::{Cache, Methods, Valid};
pub use sharing::DIRECTIVES as OF_SHARING;
pub use status::CacheStatus;
pub use validators::Validators;
pub(crate) use warnings::CachedScope;
pub use warnings::passes_authorization;
pub use zone::{add, prepare};

use super::answer::AnswerHead;
use super::attempts::Attempts;
use super::family::Causes;
use super::finish;
use super::settings::PassSettings;
use clock::now;
use files::Verdict;
use hit::allow_ranges;
use keeping::StoredTimes;
use lock::{LockOutcome, Waits};
use lookup::{Marker, note_status};
use numbers::CacheOutcome;
use purge::{Key, PurgeRequest};
use rules::reuse::{Reuse, ReuseRequest, StaleUses};
use rules::status::Forwarded;
use settings::any_holds;
use sharing::Credentials;

/// The cache entries that the request's response is read from or stored in.
static ENTRIES: Slot<Entries, PassLifetime> = Slot::new();

/// The store, with the id of the key and that of the variant, which may be the same.
#[derive(Default)]
struct Entries(Option<(Arc<DiskStore>, [EntryId; 2])>);

impl SlotValue for Entries {}

/// Removes the response of a request from the cache, because a filter has found it to be invalid. A
/// response that is still being stored is not removed.
pub fn refuse_answer(request: &mut Request) {
    let entries = request.pass.take(&ENTRIES).and_then(|entries| entries.0);
    let Some((store, [main, variant])) = entries else {
        return;
    };
    engine::background(move || {
        // A failed removal is logged when the entry is opened next.
        let _ = store.purge(&main);
        if variant != main {
            let _ = store.purge(&variant);
        }
    });
}

/// Looks a request up in the cache of its scope. Returns a step that answers the request; else the
/// upstream must be asked, and its response may be stored. `default_key` is the key unless
/// `*_cache_key` is set.
pub async fn look_up(
    request: &mut Request,
    exchange: &mut Exchange,
    rules: &AnswerRules<'_>,
    cache: &Cache,
    default_key: impl FnOnce(&mut Request) -> Vec<u8>,
) -> Result<ControlFlow<Step, Option<Box<CacheLookup>>>, Abort> {
    let may_answer = match request.method {
        Method::Get | Method::Head => true,
        Method::Post => cache.methods.post,
        _ => false,
    };
    let policy = cache.semantics.policy();
    let invalidates = policy.is_some() && !may_answer && invalidation::is_unsafe(request);
    let purges = match &cache.purge {
        Some(purge) => purge.asked(request),
        None => PurgeRequest::No,
    };
    let passes = !may_answer || cache.sharing.passes(request);
    if passes && purges == PurgeRequest::No && !invalidates {
        return Ok(ControlFlow::Continue(None));
    }
    let (zone, store) = match cache.store(request) {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(ControlFlow::Continue(None)),
        Err(status) => return Ok(ControlFlow::Break(finish(request, status))),
    };
    if let Some(mut lookup) = update::take(request).await {
        lookup.examine_file(request, cache).await;
        return Ok(ControlFlow::Continue(Some(lookup)));
    }
    let key = match &cache.key {
        Some(key) => key.evaluate(request),
        None => default_key(request).into(),
    };
    let key = Key::of(key, cache.slice_range.as_ref(), request);
    if purges != PurgeRequest::No {
        let by_tags = policy.is_some();
        let step = purge::answer(request, purges, store, key, by_tags).await;
        return Ok(ControlFlow::Break(step));
    }
    let Key { key, group } = key;
    let credentials = cache.sharing.credentials(request);
    Attempts::enter(request).borrow_mut().cache = Some(Arc::clone(&zone));
    let mut lookup = Box::new(CacheLookup {
        store,
        main: EntryId::of(&[&key]),
        key,
        group,
        variant: None,
        outcome: CacheOutcome::of(&zone),
        may_store: !invalidates,
        credentials,
        is_plain: cache.sharing.is_plain(request),
        file: None,
        is_update: false,
        revalidates: cache.revalidates,
        // HEAD is not converted to GET for a response that belongs to one client.
        is_head_converted: cache.converts_head
            && request.method == Method::Head
            && credentials == Credentials::None,
        is_of_application: cache.is_of_applications,
        stale: None,
        validators: Validators::default(),
        use_stale: cache.use_stale,
        marker: None,
        filler: None,
        answer: None,
        policy,
        wanted: policy.map_or_else(ReuseRequest::default, |_| semantics::wanted(request)),
        requested: clock::wall_milliseconds(),
        forwarded: Forwarded::UriMiss,
        invalidates,
        stores_partial: false,
        beginning: None,
        is_completed: false,
    });
    if invalidates {
        lookup.outcome.status = CacheStatus::Bypass;
        lookup.forwarded = Forwarded::Method;
        return Ok(ControlFlow::Continue(Some(lookup)));
    }
    let mut hit = None;
    if any_holds(&cache.bypass, request) {
        lookup.outcome.status = CacheStatus::Bypass;
        lookup.forwarded = Forwarded::Bypass;
    } else {
        hit = lookup.answer(request, exchange, rules, cache).await?;
    }
    let entries = [lookup.main, lookup.variant.unwrap_or(lookup.main)];
    request.pass.enter(&ENTRIES).0 = Some((Arc::clone(&lookup.store), entries));
    if let Some(step) = hit {
        return Ok(ControlFlow::Break(step));
    }
    let is_its_own =
        lookup.credentials != Credentials::None || lookup.marker == Some(Marker::Uncacheable);
    // A request that bypasses the cache, or whose entry belongs to another client, does not use
    // parts either.
    let may_use_parts = policy.is_some()
        && lookup.forwarded != Forwarded::Bypass
        && lookup.credentials == Credentials::None;
    if cache.sharing.asks_as_client(request, is_its_own) {
        lookup.may_store = false;
        lookup.filler = None;
    } else if cache.passes_range(request) {
        lookup.filler = None;
        if !may_use_parts {
            lookup.may_store = false;
        } else if let Some(step) = lookup.serve_part(request, rules).await {
            return Ok(ControlFlow::Break(step));
        }
    } else if may_use_parts && cache.max_range_offset.is_some() {
        lookup.find_beginning(request).await;
    }
    if lookup.wanted.directives.only_if_cached {
        // RFC 9111, section 5.2.1.7.
        return Ok(ControlFlow::Break(finish(request, 504)));
    }
    if policy.is_some() && request.method == Method::Head && !lookup.is_head_converted {
        // The response to HEAD must not answer GET.
        lookup.may_store &= cache.is_of_applications;
    }
    lookup.examine_file(request, cache).await;
    Ok(ControlFlow::Continue(Some(lookup)))
}

impl CacheLookup {
    /// Answers from the cache, if it has a fresh entry or another request is fetching one.
    async fn answer(
        &mut self,
        request: &mut Request,
        exchange: &mut Exchange,
        rules: &AnswerRules<'_>,
        cache: &Cache,
    ) -> Result<Option<Step>, Abort> {
        let mut waits = Waits::default();
        loop {
            let known = self.store.lookup(&self.main, now());
            self.marker = known.marker.map(Marker::of);
            if let Some(Marker::Error(status)) = self.marker {
                self.outcome.status = CacheStatus::Hit;
                note_status(request, CacheStatus::Hit);
                return Ok(Some(finish(request, status)));
            }
            if known.fill.is_some() && has_changed(cache, &self.main).await {
                return Ok(None);
            }
            if let Some(step) = self.serve_fill(request, rules, known.fill.as_ref()) {
                return Ok(Some(step));
            }
            if let Some(opened) = self.open(request, known.presence).await {
                if !self.may_share(&opened.head) {
                    return Ok(None);
                }
                match self.serve_opened(request, rules, cache, opened).await {
                    EntryOutcome::Answer(step) => return Ok(Some(step)),
                    EntryOutcome::Awaited if cache.lock.is_some() => {}
                    EntryOutcome::Awaited | EntryOutcome::Nothing => return Ok(None),
                }
            }
            if let Some(variant) = self.variant {
                let fill = self.store.lookup(&variant, now()).fill;
                if fill.is_some() && has_changed(cache, &variant).await {
                    return Ok(None);
                }
                if let Some(step) = self.serve_fill(request, rules, fill.as_ref()) {
                    return Ok(Some(step));
                }
            }
            if cache.min_uses > 1 && known.presence != Presence::Present {
                let uses = match known.uses {
                    0 => self.store.note_use(&self.main, now()),
                    uses => uses,
                };
                self.may_store = uses >= cache.min_uses;
            }
            // Other requests do not wait for a response that only this client may have.
            let is_for_all = self.credentials == Credentials::None && !self.wanted.is_authorized;
            let Some(lock) = cache.lock.filter(|_| self.may_store && is_for_all) else {
                return Ok(None);
            };
            let turn = self.take_turn(request, exchange, rules, lock, &mut waits);
            match turn.await? {
                LockOutcome::Ask => return Ok(None),
                LockOutcome::RecheckCache => {}
                LockOutcome::Answer(step) => return Ok(Some(step)),
            }
        }
    }

    /// Checks the file that the response may come from, before the upstream is asked.
    async fn examine_file(&mut self, request: &Request, cache: &Cache) {
        if let Some(files) = &cache.sharing.files
            && self.may_store
            && self.is_plain
        {
            self.file = files.look(&self.entry(), request).await;
        }
    }

    /// Notes the file that the entry of this id comes from, since the upstream has just sent or
    /// confirmed it.
    fn note_file(&self, cache: &Cache, id: EntryId, head: &AnswerHead, length: Option<u64>) {
        let Some(files) = &cache.sharing.files else {
            return;
        };
        match self.file.as_ref().filter(|seen| seen.is(head, length)) {
            Some(seen) => files.note(id, seen),
            None => files.forget(&id),
        }
    }

    /// Whether this client may share a response with this head with all other clients.
    fn may_share(&self, head: &Head) -> bool {
        self.credentials == Credentials::None
            || stored_head::parse(head).is_some_and(|head| self.credentials.permit(&head))
    }

    /// Answers with an entry, if it is fresh or may be used stale.
    async fn serve_opened(
        &mut self,
        request: &mut Request,
        rules: &AnswerRules<'_>,
        cache: &Cache,
        opened: OpenEntry,
    ) -> EntryOutcome {
        let verdict = match &cache.sharing.files {
            Some(files) => files.verdict(&self.entry()).await,
            None => Verdict::Unknown,
        };
        let reuse = match verdict {
            Verdict::Confirmed => Reuse::Fresh,
            Verdict::Changed => Reuse::Ask(StaleUses::default()),
            Verdict::Unknown => self.judge_entry(&opened.head),
        };
        let beyond = match reuse {
            Reuse::Fresh => {
                let status = CacheStatus::Hit;
                return self.give(request, rules, opened, status).await;
            }
            Reuse::StaleAsAllowed => {
                let status = CacheStatus::Stale;
                return self.give(request, rules, opened, status).await;
            }
            Reuse::Mismatched => {
                self.forwarded = Forwarded::Miss;
                return EntryOutcome::Nothing;
            }
            Reuse::Ask(beyond) => beyond,
        };
        self.outcome.status = CacheStatus::Expired;
        self.forwarded = self.reason_of(&opened.head);
        if beyond.is_forbidden {
            self.use_stale = Causes::NONE;
        }
        if beyond.for_failures {
            self.use_stale = self.use_stale.with(Causes::FAILURES);
        }
        if beyond.for_error_responses {
            self.use_stale = self.use_stale.with(OF_ERRORS);
        }
        let may_update = beyond.while_updating || self.use_stale.contains(Causes::UPDATING);
        let is_updated_beside = may_update && cache.updates_in_background;
        if let Some(Marker::Failing(cause)) = self.marker
            && (is_updated_beside || self.use_stale.contains(cause))
        {
            let status = CacheStatus::Stale;
            return self.give(request, rules, opened, status).await;
        }
        match self.store.claim(&self.entry(), u64::MAX, now()) {
            Claim::Won(filler) => {
                self.filler = Some(filler);
                if is_updated_beside && self.update_in_background(request, cache) {
                    let status = CacheStatus::Stale;
                    return self.give(request, rules, opened, status).await;
                }
            }
            Claim::Taken(_) if may_update => {
                let status = CacheStatus::Updating;
                return self.give(request, rules, opened, status).await;
            }
            Claim::Taken(_) if cache.sharing.awaits_updates() => return EntryOutcome::Awaited,
            Claim::Taken(_) => {}
        }
        // An entry that is known to have changed is not revalidated: a time in whole seconds may
        // not show the change.
        if cache.revalidates && verdict != Verdict::Changed {
            self.validators = Validators::of(&opened.head, self.policy.is_some());
        }
        self.stale = Some(opened);
        EntryOutcome::Nothing
    }

    /// Answers with an entry whether it is fresh or not, unless it turns out to be invalid.
    async fn give(
        &mut self,
        request: &mut Request,
        rules: &AnswerRules<'_>,
        opened: OpenEntry,
        status: CacheStatus,
    ) -> EntryOutcome {
        let served = self.serve(request, rules, opened, status).await;
        served.map_or(EntryOutcome::Nothing, EntryOutcome::Answer)
    }

    /// Answers with a stale entry instead of a failure or an error response, if `*_cache_use_stale`
    /// allows it.
    pub async fn serve_stale(
        &mut self,
        request: &mut Request,
        rules: &AnswerRules<'_>,
        instead: StaleTrigger<'_>,
    ) -> Option<Step> {
        if let StaleTrigger::Answer(head) = instead
            && let Some(step) = self.refuse_rest(request, head)
        {
            return Some(step);
        }
        let cause = match instead {
            StaleTrigger::Failure(cause) => cause,
            StaleTrigger::Answer(head) if self.is_confirmed_by(head) => {
                let served = self.serve_confirmed(request, rules, head);
                return served.await;
            }
            StaleTrigger::Answer(head) => Causes::of_status(head.status())?,
        };
        if self.is_update {
            self.mark_as(&self.entry(), Marker::Failing(cause), FAILING);
        }
        let may = self.use_stale.contains(cause);
        let opened = self.stale.take_if(|_| may)?;
        self.mark_as(&self.entry(), Marker::Failing(cause), FAILING);
        // Other requests may now fetch the entry.
        self.filler = None;
        let status = CacheStatus::Stale;
        self.serve(request, rules, opened, status).await
    }

    /// Answers with a response that another request has fetched completely and that is not on disk
    /// yet.
    fn serve_fill(
        &mut self,
        request: &mut Request,
        rules: &AnswerRules<'_>,
        fill: Option<&Arc<Fill>>,
    ) -> Option<Step> {
        let fill = fill.filter(|fill| fill.progress() == Progress::Complete)?;
        let head = fill.head()?;
        let is_fresh = self.judge_entry(&head) == Reuse::Fresh;
        if head.key != self.key || !is_fresh || !self.matches_variant(request, &head) {
            return None;
        }
        if !self.may_share(&head) {
            return None;
        }
        let step = hit::serve_fill(request, rules, &head, fill.reader()?)?;
        self.outcome.status = CacheStatus::Hit;
        Some(step)
    }

    /// Answers with an entry.
    async fn serve(
        &mut self,
        request: &mut Request,
        rules: &AnswerRules<'_>,
        opened: OpenEntry,
        status: CacheStatus,
    ) -> Option<Step> {
        let step = hit::serve(request, rules, &self.store, opened, status).await?;
        self.outcome.status = status;
        Some(step)
    }

    /// Opens the entry of the request's key, if there is one.
    async fn open(&mut self, request: &Request, presence: Presence) -> Option<OpenEntry> {
        if presence != Presence::Absent
            && let Some(opened) = self.open_id(request, self.main).await
            && self.matches_variant(request, &opened.head)
        {
            return Some(opened);
        }
        let variant = self.variant?;
        let known = self.store.lookup(&variant, now());
        self.marker = known.marker.map(Marker::of);
        if known.presence == Presence::Absent {
            return None;
        }
        let opened = self.open_id(request, variant).await?;
        let is_it = opened.head.variant == Some(variant)
            && self.variant_of(request, &opened.head.vary) == variant;
        is_it.then_some(opened)
    }

    /// Opens the entry with this id, if the request's rules allow its use; logs failures.
    async fn open_id(&self, request: &Request, id: EntryId) -> Option<OpenEntry> {
        let (store, key) = (Arc::clone(&self.store), self.key.clone());
        let opened = match store.open_in_memory(&id, &key, now()) {
            Some(opened) => opened,
            None => engine::blocking(move || store.open_entry(&id, &key, now())).await,
        };
        match opened {
            Ok(opened)
                if self.policy.is_none() && semantics::is_stored_by_rfc_only(&opened.head) =>
            {
                None
            }
            Ok(opened) => Some(opened),
            Err(Miss::Gone) => None,
            Err(Miss::Wrong(fault)) => {
                logs::error!(request, Crit, "cache entry \"{id}\" {fault}");
                None
            }
            Err(Miss::Failed(error)) => {
                let error = logs::Errno(&error);
                logs::error!(
                    request,
                    Crit,
                    "open() of cache entry \"{id}\" failed {error}"
                );
                None
            }
        }
    }

    /// Decides by the head of a response whether to store the response. The head has been applied
    /// to the client's response, unless `instead` is the step that responds in its place.
    pub async fn decide_storing(
        &mut self,
        request: &mut Request,
        passing: &PassSettings,
        head: &AnswerHead,
        instead: Option<&Step>,
    ) {
        if self.invalidates {
            self.invalidate(request, head).await;
        }
        let whole = self.complete(request, passing, head);
        self.is_completed = whole.is_some();
        let head = whole.as_ref().unwrap_or(head);
        let keeping = self.judge_answer(passing, head);
        // A response without a status line (HTTP/0.9) is passed on and not stored, as in nginx.
        let has_head = self.is_of_application || head.has_status_line();
        let keeping = keeping.filter(|_| self.may_store && has_head);
        if instead.is_none() {
            self.add_cache_status(request, head.status(), keeping.is_some());
        }
        match (instead, keeping) {
            (None, Some(keeping)) => {
                if let StoredTimes::Rfc(stored, _) = &keeping {
                    semantics::allow_ranges(request, true);
                    semantics::judge_conditions(request, stored.received);
                } else {
                    allow_ranges(request, passing, true);
                    request.response.conditions_evaluated = false;
                }
                self.answer = Some((head.clone(), keeping));
                return;
            }
            (None, None) => request.response.conditions_evaluated = true,
            // The page of `error_page` is not stored, only a marker with the status.
            (Some(Step::Finish(status)), Some(keeping)) if *status == head.status() => {
                let until = keeping.seconds_left();
                if self.mark(passing, *status, until) {
                    return;
                }
            }
            (Some(_), _) => {}
        }
        self.refuse();
    }

    /// Stores a marker for a request to which no upstream has responded, if `*_cache_valid` has a
    /// time for the status.
    pub fn fail(&self, passing: &PassSettings, status: u16) {
        if self.may_store && matches!(status, 502 | 504) {
            self.mark(passing, status, None);
        }
    }

    /// Stores an error marker for `seconds`, else for the time of `*_cache_valid`. False if neither
    /// is given.
    fn mark(&self, passing: &PassSettings, status: u16, seconds: Option<i64>) -> bool {
        let said = seconds.map(|seconds| u64::try_from(seconds).unwrap_or_default());
        let cache = passing.cache.as_ref();
        let seconds = said.or_else(|| cache.and_then(|cache| cache.valid(status)));
        let Some(seconds) = seconds.filter(|seconds| *seconds > 0) else {
            return false;
        };
        let milliseconds = seconds.saturating_mul(1000);
        self.mark_as(&self.main, Marker::Error(status), milliseconds);
        true
    }

    /// Sets a marker on an id for this time.
    fn mark_as(&self, id: &EntryId, marker: Marker, milliseconds: u64) {
        let until = now().saturating_add(milliseconds);
        self.store.mark(id, marker.number(), until, now());
    }
}

/// Whether the entry is a file that has changed since.
async fn has_changed(cache: &Cache, id: &EntryId) -> bool {
    match &cache.sharing.files {
        Some(files) => files.verdict(id).await == Verdict::Changed,
        None => false,
    }
}

/// The outcome of looking at a stored entry.
enum EntryOutcome {
    /// The request is answered by this step.
    Answer(Step),
    /// Another request is revalidating the entry, and this one waits for it.
    Awaited,
    /// The upstream must be asked.
    Nothing,
}

/// The failure or response that a stale entry may replace.
#[derive(Clone, Copy, Debug)]
pub enum StaleTrigger<'a> {
    /// No upstream has responded, for this cause.
    Failure(Causes),
    /// An upstream has responded with this head.
    Answer(&'a AnswerHead),
}

/// The statuses that count as errors for `stale-if-error` (RFC 5861, section 4).
const OF_ERRORS: Causes = Causes::HTTP_500
    .with(Causes::HTTP_502)
    .with(Causes::HTTP_503)
    .with(Causes::HTTP_504);

/// How long the upstream is not asked again after it has failed and a stale entry was used, in
/// milliseconds.
const FAILING: u64 = 1000;
