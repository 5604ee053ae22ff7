//! The content cache: answers of upstreams kept in files and given again.
//!
//! <https://nginx.org/en/docs/http/ngx_http_proxy_module.html#proxy_cache>, for `proxy`, `fastcgi`,
//! `uwsgi` and `scgi` alike. `directives` declares their lines, `zone` the folders and who looks
//! after them. The hooks of `passing::driver` lead here:
//!
//! ```text
//! look_up ─▶ a hit is served (`hit`)
//!    └─▶ Lookup ─▶ what is asked for ─▶ heed: may the head be stored? (`freshness`)
//!                                          └─▶ keep: the body is stored on its way (`fill`)
//! ```
//!
//! Under one key several answers may lie (`vary`). What lies on disk is `store::disk`'s business.
//! `parts` keeps ranges and makes them whole. `semantics` chooses between nginx's rules and those
//! of RFC 9111, which stand in `rules`. `lock` has one request fetch for many, `revalidation` asks
//! whether what is fresh no more is still right, `update` fetches it anew beside service, `purge`
//! has entries go.

mod confirmation;
mod directives;
mod files;
mod fill;
mod freshness;
mod hit;
mod invalidation;
mod lock;
mod memory;
pub mod numbers;
mod parts;
mod purge;
mod revalidation;
mod rules;
mod semantics;
mod sharing;
mod update;
mod vary;
mod warnings;
mod zone;

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use framework::slot::{Slot, SlotValue};
use http::exchange::{Abort, Exchange};
use http::log;
use http::request::{Request, Step};
use http::slots::OfPass;
use http::text::Text;
use proto::header::KnownField;
use proto::method::Method;
use store::disk::{
    Claim, DiskStore, EntryId, Fill, Filler, Head, Miss, OpenEntry, Presence, Progress,
};

pub use directives::{Family, Methods, Valid};
pub use revalidation::Validators;
pub use sharing::DIRECTIVES as OF_SHARING;
pub(crate) use warnings::CachedScope;
pub use warnings::passes_authorization;
pub use zone::{add, prepare};

use super::answer::AnswerHead;
use super::attempts::Attempts;
use super::family::Causes;
use super::finish;
use super::rewriting::Rewrite;
use super::settings::Passing;
use files::{Seen, Verdict};
use lock::{FillLock, LockOutcome, Waits};
use numbers::CacheOutcome;
use parts::Beginning;
use purge::{Key, Purge, PurgeRequest};
use rules::Policy;
use rules::reuse::{Beyond, Reuse, Wanted};
use rules::status::Forwarded;
use semantics::{Keeping, Semantics};
use sharing::{Credentials, Sharing};
use zone::CacheZone;

type Zone = framework::zone::Zone<CacheZone>;

/// `*_cache` of a scope, where it is on.
pub struct Cache {
    choice: Choice,
    /// Nothing where the protocol makes one.
    key: Option<Text>,
    /// `$slice_range`, if the key holds it.
    slice_range: Option<Text>,
    purge: Option<Purge>,
    valid: Box<[Valid]>,
    methods: Methods,
    min_uses: u32,
    bypass: Box<[Text]>,
    no_cache: Box<[Text]>,
    /// Ranges that begin there or behind are passed on.
    max_range_offset: Option<u64>,
    /// When an answer is given that is fresh no more.
    use_stale: Causes,
    /// One at a time fetches what is not stored.
    lock: Option<FillLock>,
    /// What is fresh no more is given, and fetched beside that.
    updates_beside: bool,
    /// The upstream is asked whether what is fresh no more is still what it has.
    revalidates: bool,
    /// HEAD is asked for as GET.
    converts_head: bool,
    is_of_applications: bool,
    /// By which rules answers are stored and given.
    semantics: Semantics,
    sharing: Sharing,
}

/// What a scope says of answers, whether they come from an upstream or from the cache.
#[derive(Clone, Copy)]
pub struct AnswerRules<'a> {
    pub(crate) passing: &'a Arc<Passing>,
    pub(crate) rewriting: &'a dyn Rewrite,
}

/// Which zone a request's answers lie in.
enum Choice {
    Fixed(Arc<Zone>),
    /// The one whose name this comes to, of those that lines with this prefix declare.
    Named(Text, &'static str),
}

/// What has come of asking the cache, `$upstream_cache_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheStatus {
    /// `MISS`: nothing fresh or stale was there.
    Miss,
    /// `BYPASS`: `*_cache_bypass` had the upstream asked.
    Bypass,
    /// `EXPIRED`: what was there was stale, and the upstream was asked.
    Expired,
    /// `STALE`: a stale answer, since the upstream failed.
    Stale,
    /// `UPDATING`: a stale answer, while another request asks the upstream.
    Updating,
    /// `REVALIDATED`: the upstream said that the stale answer still holds.
    Revalidated,
    /// `HIT`: a fresh answer.
    Hit,
}

impl CacheStatus {
    /// In the order of their numbers.
    pub const ALL: [CacheStatus; 7] = [
        CacheStatus::Miss,
        CacheStatus::Bypass,
        CacheStatus::Expired,
        CacheStatus::Stale,
        CacheStatus::Updating,
        CacheStatus::Revalidated,
        CacheStatus::Hit,
    ];

    /// As the variable has it.
    pub fn name(self) -> &'static str {
        match self {
            CacheStatus::Miss => "MISS",
            CacheStatus::Bypass => "BYPASS",
            CacheStatus::Expired => "EXPIRED",
            CacheStatus::Stale => "STALE",
            CacheStatus::Updating => "UPDATING",
            CacheStatus::Revalidated => "REVALIDATED",
            CacheStatus::Hit => "HIT",
        }
    }
}

/// What is known of a request whose answer may be stored.
pub struct CacheLookup {
    store: Arc<DiskStore>,
    key: Bytes,
    /// What the keys of all slices have in common; empty where that is the key.
    group: Bytes,
    /// The id of the key.
    main: EntryId,
    /// The id of the request's variant, where another one lies under that of the key.
    variant: Option<EntryId>,
    outcome: CacheOutcome,
    may_store: bool,
    /// What the client shows of who it is.
    credentials: Credentials,
    /// It may be kept though it says nothing of that.
    is_plain: bool,
    /// The file that the answer may be, before the upstream was asked.
    file: Option<Seen>,
    /// No client waits for the answer.
    is_update: bool,
    revalidates: bool,
    /// The client asks with HEAD, the upstream is asked with GET.
    pub is_head_converted: bool,
    is_of_application: bool,
    /// What is fresh no more.
    stale: Option<OpenEntry>,
    /// By what the upstream knows that again.
    pub validators: Validators,
    /// When it may be given all the same.
    use_stale: Causes,
    /// What the id of the entry carries.
    marker: Option<Marker>,
    /// The right to fetch it, which no other request has meanwhile.
    filler: Option<Box<Filler>>,
    /// The head of the answer, and what it says of storing it.
    answer: Option<(AnswerHead, Keeping)>,
    /// What RFC 9111 leaves open, where its rules hold.
    policy: Option<Policy>,
    /// What the client says of what it would have.
    wanted: Wanted,
    /// When the upstream is asked, at the earliest, in milliseconds since 1970.
    requested: i64,
    forwarded: Forwarded,
    /// The request may change what lies under its key.
    invalidates: bool,
    /// The client's range is passed on, and what comes of it kept.
    keeps_part: bool,
    /// What is kept of the beginning of the answer.
    beginning: Option<Box<Beginning>>,
    /// The rest of that has come.
    is_completed: bool,
}

impl CacheLookup {
    /// What `$upstream_cache_status` says of a request that asks the upstream.
    pub fn note_status(&self, request: &mut Request) {
        note_status(request, self.outcome.status);
        if !self.validators.is_empty() {
            let seen = Attempts::enter(request);
            seen.borrow_mut().validators = self.validators.clone();
        }
    }

    /// Whether the answer may be stored, as far as is known before it comes.
    pub fn may_store(&self) -> bool {
        self.may_store
    }

    /// The id under which the answer to this request lies.
    fn entry(&self) -> EntryId {
        self.variant.unwrap_or(self.main)
    }

    /// Whether the body that an application gives in answer to HEAD is read, to be stored.
    pub fn reads_body_of_head(&self) -> bool {
        self.may_store && self.is_of_application
    }

    /// Whether this field of the client's stays here: with it the upstream might not give all of
    /// its answer.
    pub fn withholds(&self, field: KnownField) -> bool {
        let is_of_part = matches!(field, KnownField::Range | KnownField::IfRange);
        self.may_store
            && !(self.keeps_part && is_of_part)
            && matches!(
                field,
                KnownField::IfModifiedSince
                    | KnownField::IfUnmodifiedSince
                    | KnownField::IfNoneMatch
                    | KnownField::IfMatch
                    | KnownField::IfRange
                    | KnownField::Range
            )
    }
}

/// Milliseconds of a clock that does not go back, and goes on while the machine sleeps.
fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    seconds * 1000 + u64::try_from(time.tv_nsec).unwrap_or_default() / 1_000_000
}

/// A cache's zone, and the folder of its answers.
type ZonedStore = (Arc<Zone>, Arc<DiskStore>);

fn wall() -> i64 {
    i64::try_from(engine::wall().as_secs()).unwrap_or(i64::MAX)
}

/// Whether one of the values is neither empty nor 0.
fn any_holds(texts: &[Text], request: &mut Request) -> bool {
    texts.iter().any(|text| {
        let value = text.evaluate(request);
        !value.is_empty() && *value != b"0"[..]
    })
}

impl Cache {
    /// Whether the client gets the Date of an answer.
    pub fn tells_date(&self) -> bool {
        self.semantics.policy().is_some()
    }

    /// Whether answers to `Authorization` are kept only where they allow it.
    pub fn heeds_authorization(&self) -> bool {
        self.semantics.policy().is_some()
    }

    /// How long an answer with this status is fresh whose head does not say it.
    fn valid(&self, status: u16) -> Option<u64> {
        let mut valid = self.valid.iter();
        let found = valid.find(|it| it.status.is_none_or(|code| code == status));
        found.map(|it| it.seconds).filter(|seconds| *seconds > 0)
    }

    /// Where this request's answers lie; the error is the status to answer with.
    fn store(&self, request: &mut Request) -> Result<Option<ZonedStore>, u16> {
        let of_zone = |zone: &Arc<Zone>| {
            let store = zone.state().store(zone.settings())?;
            Some((Arc::clone(zone), Arc::clone(store)))
        };
        let (text, prefix) = match &self.choice {
            Choice::Fixed(zone) => return Ok(of_zone(zone)),
            Choice::Named(text, prefix) => (text, *prefix),
        };
        let name = text.evaluate(request);
        if name.is_empty() || &*name == b"off" {
            return Ok(None);
        }
        let zones = &request.local.generation.zones;
        let known = std::str::from_utf8(&name).ok();
        let zone = known.and_then(|name| zones.find::<CacheZone>(name));
        match zone.filter(|zone| zone.settings().prefix == prefix) {
            Some(zone) => Ok(of_zone(&zone)),
            None => {
                let name = log::Printable(&name);
                log::error!(request, Error, "cache \"{name}\" not found");
                Err(500)
            }
        }
    }

    /// Whether the answer to a range that the client asks for is to be fetched as it is.
    fn passes_range(&self, request: &Request) -> bool {
        let (Some(max), Some(range)) = (self.max_range_offset, request.header(KnownField::Range))
        else {
            return false;
        };
        if max == 0 {
            return true;
        }
        let Some((unit, range)) = range.split_at_checked(6) else {
            return false;
        };
        if range.is_empty() || !unit.eq_ignore_ascii_case(b"bytes=") {
            return false;
        }
        let range = range.trim_ascii_start();
        if range.first() == Some(&b'-') {
            return true;
        }
        let digits = range.split(|byte| !byte.is_ascii_digit()).next();
        let digits = std::str::from_utf8(digits.unwrap_or_default()).unwrap_or_default();
        digits.parse::<u64>().unwrap_or(u64::MAX) >= max
    }
}

/// The entries that a request's answer comes from, or goes to.
static ENTRIES: Slot<Entries, OfPass> = Slot::new();

#[derive(Default)]
struct Entries(Option<(Arc<DiskStore>, [EntryId; 2])>);

impl SlotValue for Entries {}

/// Takes the answer of a request out of the cache again: a filter has found it to be of no use. An
/// answer that is being stored is not.
pub fn refuse_answer(request: &mut Request) {
    let entries = request.pass.take(&ENTRIES).and_then(|entries| entries.0);
    let Some((store, [main, variant])) = entries else {
        return;
    };
    engine::background(move || {
        // An entry that cannot be removed is noticed, and logged, where it is opened next.
        let _ = store.purge(&main);
        if variant != main {
            let _ = store.purge(&variant);
        }
    });
}

/// Looks a request up whose scope has a cache. A step answers it; otherwise the upstream is to be
/// asked, and its answer may be stored. `default_key` is for scopes without a key of their own.
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
        lookup.look_at_file(request, cache).await;
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
        // What one client may have is not fetched whole for what others may ask for.
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
        wanted: policy.map_or_else(Wanted::default, |_| semantics::wanted(request)),
        requested: semantics::wall_milliseconds(),
        forwarded: Forwarded::UriMiss,
        invalidates,
        keeps_part: false,
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
    // Whose entry the cache has been told to pass by, or is another's, has no part of it either.
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
        // Its answer is none to GET.
        lookup.may_store &= cache.is_of_applications;
    }
    lookup.look_at_file(request, cache).await;
    Ok(ControlFlow::Continue(Some(lookup)))
}

impl CacheLookup {
    /// Answers from the cache, if that has something fresh, or another request fetches it.
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
                    Given::Answer(step) => return Ok(Some(step)),
                    Given::Awaited if cache.lock.is_some() => {}
                    Given::Awaited | Given::Nothing => return Ok(None),
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
            // What one client may have is nothing that others wait for.
            let is_for_all = self.credentials == Credentials::None && !self.wanted.is_authorized;
            let Some(lock) = cache.lock.filter(|_| self.may_store && is_for_all) else {
                return Ok(None);
            };
            let turn = self.take_turn(request, exchange, rules, lock, &mut waits);
            match turn.await? {
                LockOutcome::Ask => return Ok(None),
                LockOutcome::LookAgain => {}
                LockOutcome::Answer(step) => return Ok(Some(step)),
            }
        }
    }

    /// Looks at the file that the answer may be, before the upstream is asked.
    async fn look_at_file(&mut self, request: &Request, cache: &Cache) {
        if let Some(files) = &cache.sharing.files
            && self.may_store
            && self.is_plain
        {
            self.file = files.look(request).await;
        }
    }

    /// The upstream has given what lies under this id now, or has confirmed it: notes of which file
    /// it is.
    fn note_file(&self, cache: &Cache, id: EntryId, head: &AnswerHead, length: Option<u64>) {
        let Some(files) = &cache.sharing.files else {
            return;
        };
        match self.file.as_ref().filter(|seen| seen.is(head, length)) {
            Some(seen) => files.note(id, seen),
            None => files.forget(&id),
        }
    }

    /// Whether this client may have an answer with this head, and all others the answer to it.
    fn may_share(&self, head: &Head) -> bool {
        self.credentials == Credentials::None
            || hit::parse(head).is_some_and(|head| self.credentials.permit(&head))
    }

    /// Answers with an entry, if that is fresh, or may be given though it is not.
    async fn serve_opened(
        &mut self,
        request: &mut Request,
        rules: &AnswerRules<'_>,
        cache: &Cache,
        opened: OpenEntry,
    ) -> Given {
        let verdict = match &cache.sharing.files {
            Some(files) => files.verdict(&self.entry()).await,
            None => Verdict::Unknown,
        };
        let reuse = match verdict {
            Verdict::Confirmed => Reuse::Fresh,
            Verdict::Changed => Reuse::Ask(Beyond::default()),
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
            Reuse::NotForIt => {
                self.forwarded = Forwarded::Miss;
                return Given::Nothing;
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
        if beyond.for_errors {
            self.use_stale = self.use_stale.with(OF_ERRORS);
        }
        let may_update = beyond.while_updating || self.use_stale.contains(Causes::UPDATING);
        let is_updated_beside = may_update && cache.updates_beside;
        if let Some(Marker::Failing(cause)) = self.marker
            && (is_updated_beside || self.use_stale.contains(cause))
        {
            let status = CacheStatus::Stale;
            return self.give(request, rules, opened, status).await;
        }
        match self.store.claim(&self.entry(), u64::MAX, now()) {
            Claim::Won(filler) => {
                self.filler = Some(filler);
                if is_updated_beside && self.update_beside(request, cache) {
                    let status = CacheStatus::Stale;
                    return self.give(request, rules, opened, status).await;
                }
            }
            Claim::Taken(_) if may_update => {
                let status = CacheStatus::Updating;
                return self.give(request, rules, opened, status).await;
            }
            Claim::Taken(_) if cache.sharing.awaits_updates() => return Given::Awaited,
            Claim::Taken(_) => {}
        }
        // What is known to have changed is not asked about: a time of whole seconds may not tell.
        if cache.revalidates && verdict != Verdict::Changed {
            self.validators = Validators::of(&opened.head, self.policy.is_some());
        }
        self.stale = Some(opened);
        Given::Nothing
    }

    /// The same with one that is given in any case, unless it turns out to be none.
    async fn give(
        &mut self,
        request: &mut Request,
        rules: &AnswerRules<'_>,
        opened: OpenEntry,
        status: CacheStatus,
    ) -> Given {
        let served = self.serve(request, rules, opened, status).await;
        served.map_or(Given::Nothing, Given::Answer)
    }

    /// Answers with what is fresh no more in the place of a failure or an answer, if that is to be.
    pub async fn serve_stale(
        &mut self,
        request: &mut Request,
        rules: &AnswerRules<'_>,
        instead: Instead<'_>,
    ) -> Option<Step> {
        if let Instead::Answer(head) = instead
            && let Some(step) = self.refuse_rest(request, head)
        {
            return Some(step);
        }
        let cause = match instead {
            Instead::Failure(cause) => cause,
            Instead::Answer(head) if self.is_confirmed_by(head) => {
                let served = self.serve_confirmed(request, rules, head);
                return served.await;
            }
            Instead::Answer(head) => Causes::of_status(head.status())?,
        };
        if self.is_update {
            self.mark_as(&self.entry(), Marker::Failing(cause), FAILING);
        }
        let may = self.use_stale.contains(cause);
        let opened = self.stale.take_if(|_| may)?;
        self.mark_as(&self.entry(), Marker::Failing(cause), FAILING);
        // Others may fetch it now.
        self.filler = None;
        let status = CacheStatus::Stale;
        self.serve(request, rules, opened, status).await
    }

    /// Answers from what another request has fetched whole, and what is not on disk yet.
    fn serve_fill(
        &mut self,
        request: &mut Request,
        rules: &AnswerRules<'_>,
        fill: Option<&Arc<Fill>>,
    ) -> Option<Step> {
        let fill = fill.filter(|fill| fill.progress() == Progress::Complete)?;
        let head = fill.head()?;
        let is_fresh = self.judge_entry(&head) == Reuse::Fresh;
        if head.key != self.key || !is_fresh || !self.is_of_this_variant(request, &head) {
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

    /// Opens what lies under the key for this request, if there is something.
    async fn open(&mut self, request: &Request, presence: Presence) -> Option<OpenEntry> {
        if presence != Presence::Absent
            && let Some(opened) = self.open_id(request, self.main).await
            && self.is_of_this_variant(request, &opened.head)
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

    async fn open_id(&self, request: &Request, id: EntryId) -> Option<OpenEntry> {
        let (store, key) = (Arc::clone(&self.store), self.key.clone());
        let opened = match store.open_in_memory(&id, &key, now()) {
            Some(opened) => opened,
            None => engine::blocking(move || store.open_entry(&id, &key, now())).await,
        };
        match opened {
            Ok(opened) if self.policy.is_none() && semantics::is_of_rfc_alone(&opened.head) => None,
            Ok(opened) => Some(opened),
            Err(Miss::Gone) => None,
            Err(Miss::Wrong(fault)) => {
                log::error!(request, Crit, "cache entry \"{id}\" {fault}");
                None
            }
            Err(Miss::Failed(error)) => {
                let error = log::Errno(&error);
                log::error!(
                    request,
                    Crit,
                    "open() of cache entry \"{id}\" failed {error}"
                );
                None
            }
        }
    }

    /// Heeds the head of an answer that has become the response's, or in the place of which
    /// `instead` answers.
    pub async fn heed(
        &mut self,
        request: &mut Request,
        passing: &Passing,
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
        // What has no head may be anything: it is passed on once, as by nginx.
        let has_head = self.is_of_application || head.has_status_line();
        let keeping = keeping.filter(|_| self.may_store && has_head);
        if instead.is_none() {
            self.tell_forwarded(request, head.status(), keeping.is_some());
        }
        match (instead, keeping) {
            (None, Some(keeping)) => {
                if let Keeping::Rfc(stored, _) = &keeping {
                    semantics::allow_ranges(request, true);
                    semantics::judge_conditions(request, stored.received);
                } else {
                    allow_ranges(request, passing, true);
                    request.response.conditions_judged = false;
                }
                self.answer = Some((head.clone(), keeping));
                return;
            }
            (None, None) => request.response.conditions_judged = true,
            // What `error_page` makes of it is not stored, but that there was an error is.
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

    /// No upstream has answered: that is stored, too, where a line says how long.
    pub fn fail(&self, passing: &Passing, status: u16) {
        if self.may_store && matches!(status, 502 | 504) {
            self.mark(passing, status, None);
        }
    }

    /// Stores that there is an error, for so many seconds or as long as `*_cache_valid` says, if
    /// that is to be.
    fn mark(&self, passing: &Passing, status: u16, seconds: Option<i64>) -> bool {
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

    /// Has an id carry a marker for so many milliseconds.
    fn mark_as(&self, id: &EntryId, marker: Marker, milliseconds: u64) {
        let until = now().saturating_add(milliseconds);
        self.store.mark(id, marker.number(), until, now());
    }
}

/// Whether what this entry has is a file's that has changed since.
async fn has_changed(cache: &Cache, id: &EntryId) -> bool {
    match &cache.sharing.files {
        Some(files) => files.verdict(id).await == Verdict::Changed,
        None => false,
    }
}

/// What comes of an entry that lies in the cache.
enum Given {
    Answer(Step),
    /// Another request asks whether it has changed, and this one waits for that.
    Awaited,
    /// The upstream is asked.
    Nothing,
}

/// In the place of what something else is given.
#[derive(Clone, Copy, Debug)]
pub enum Instead<'a> {
    /// No upstream has answered, for this reason.
    Failure(Causes),
    /// One has answered with this head.
    Answer(&'a AnswerHead),
}

/// What an origin answers that has failed: RFC 5861, section 4.
const OF_ERRORS: Causes = Causes::HTTP_500
    .with(Causes::HTTP_502)
    .with(Causes::HTTP_503)
    .with(Causes::HTTP_504);

/// How long an upstream that has failed is not asked again for what stands in for its answer, in
/// milliseconds.
const FAILING: u64 = 1000;

/// What an id carries for a while ([`DiskStore::mark`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marker {
    /// An error that is stored without a body.
    Error(u16),
    /// The upstream has failed so, and the entry has stood in for its answer.
    Failing(Causes),
    /// An answer was not to be stored.
    Uncacheable,
}

impl Marker {
    const FAILING: u16 = 1 << 15;
    const UNCACHEABLE: u16 = 0;

    fn of(number: u16) -> Marker {
        if number & Marker::FAILING != 0 {
            return Marker::Failing(Causes::from_bits(number & !Marker::FAILING));
        }
        match number {
            Marker::UNCACHEABLE => Marker::Uncacheable,
            status => Marker::Error(status),
        }
    }

    fn number(self) -> u16 {
        match self {
            Marker::Uncacheable => Marker::UNCACHEABLE,
            Marker::Error(status) => status,
            Marker::Failing(cause) => Marker::FAILING | cause.bits(),
        }
    }
}

/// Lets the client ask for ranges where the upstream does so, which then has nothing to say of that
/// itself.
fn allow_ranges(request: &mut Request, passing: &Passing, is_single: bool) {
    let response = &mut request.response;
    if passing.force_ranges {
        response.single_range = is_single;
    } else if response.accept_ranges.take().is_some() {
        response.remove(b"Accept-Ranges");
        response.allow_ranges = true;
        response.single_range = is_single;
    }
}

/// What `$upstream_cache_status` says of a request.
fn note_status(request: &mut Request, status: CacheStatus) {
    Attempts::enter(request).borrow_mut().cache_status = Some(status);
}
