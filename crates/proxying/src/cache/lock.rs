//! `*_cache_lock`: of all requests for a response that is not stored, one fetches it, and the
//! others share the response while it is received.
//!
//! ```text
//! nothing stored ─▶ claim ─▶ won ───────────────▶ the upstream is asked
//!      ▲              └─▶ taken ─▶ wait for the head
//!      │                             ├─▶ it matches, too ─▶ share the body that is received
//!      └─ broken off, of a variant ──┤
//!                                    └─▶ not cacheable, timeout ─▶ the upstream is asked
//! ```
//!
//! A request that ends before its response releases the claim, and the next request gets it at
//! once. An uncacheable response leaves a marker, so that later requests do not wait for each
//! other.

use std::future::poll_fn;
use std::time::{Duration, Instant};

use engine::select::{Either, either};
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::request::{Request, Step};
use proto::header::KnownField;
use store::disk::{Claim, Fill, Head, Progress, Reader};

use super::clock::now;
use super::lookup::{AnswerRules, CacheLookup, Marker};
use super::rules::reuse::Reuse;
use super::rules::status::Forwarded;
use super::settings::FillLock;
use super::status::CacheStatus;
use super::{hit, stored_head};
use crate::settings::PassSettings;

/// How long requests for a key do not wait for each other after an uncacheable response, in
/// milliseconds.
const UNCACHEABLE: u64 = 10_000;

/// Maximum number of fills of other variants that a request waits for.
const VARIANTS_MAX: usize = 4;

/// The progress of a request's wait for the lock.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// When the wait ends (`*_cache_lock_timeout`).
    until: Option<Instant>,
    /// The number of awaited fills whose response was not cacheable.
    refusals: usize,
    /// The number of awaited fills whose response was another variant.
    variants: usize,
    /// Whether the cache has been checked once more after the claim.
    has_rechecked: bool,
}

/// What a request does once it has the claim, or has waited.
pub(super) enum LockOutcome {
    /// Ask the upstream.
    Ask,
    /// Look into the cache again.
    RecheckCache,
    /// The step responds with the response that another request is fetching.
    Answer(Step),
}

impl CacheLookup {
    /// Claims the fetch of a missing entry, or waits for the request that holds the claim.
    pub(super) async fn take_turn(
        &mut self,
        request: &mut Request,
        exchange: &mut Exchange,
        rules: &AnswerRules<'_>,
        lock: FillLock,
        waits: &mut Waits,
    ) -> Result<LockOutcome, Abort> {
        if self.marker == Some(Marker::Uncacheable) {
            return Ok(LockOutcome::Ask);
        }
        let sought = self.entry();
        let fill = match self.store.claim(&sought, lock.age, now()) {
            Claim::Won(filler) => {
                let is_first = !std::mem::replace(&mut waits.has_rechecked, true);
                if is_first && self.store.has(&sought) {
                    return Ok(LockOutcome::RecheckCache);
                }
                self.filler = Some(filler);
                return Ok(LockOutcome::Ask);
            }
            Claim::Taken(fill) => fill,
        };
        let has_come = fill.progress() != Progress::Asked;
        let is_full = lock.waiting_max.is_some_and(|max| fill.readers() >= max);
        if lock.timeout.is_zero() || (is_full && !has_come) {
            self.may_store = false;
            return Ok(LockOutcome::Ask);
        }
        // If the beginning of the body is gone, the fill cannot be shared.
        let Some(mut reader) = fill.reader() else {
            return Ok(LockOutcome::Ask);
        };
        let has_waited = fill.progress() == Progress::Asked;
        let until = *waits
            .until
            .get_or_insert_with(|| engine::now() + lock.timeout);
        let waiting = self.outcome.wait();
        let came = wait(request, exchange, rules.passing, lock, &mut reader, until).await?;
        drop(waiting);
        Ok(match came {
            Some(Some(head)) => {
                self.answer_from_fill(request, rules, &head, reader, has_waited, waits)
            }
            Some(None) if fill.progress() == Progress::Refused => {
                // The next response may be cacheable, for example if this one set a cookie.
                waits.refusals += 1;
                match waits.refusals {
                    1 => LockOutcome::RecheckCache,
                    _ => LockOutcome::Ask,
                }
            }
            Some(None) => LockOutcome::RecheckCache,
            None if engine::now() >= until => {
                logs::error!(request, Info, "cache lock timeout");
                self.may_store = false;
                LockOutcome::Ask
            }
            None => LockOutcome::RecheckCache,
        })
    }

    /// Answers with a fill whose head has been received, if it matches this request.
    fn answer_from_fill(
        &mut self,
        request: &mut Request,
        rules: &AnswerRules<'_>,
        head: &Head,
        reader: Reader,
        has_waited: bool,
        waits: &mut Waits,
    ) -> LockOutcome {
        if !self.matches_variant(request, head) {
            waits.variants += 1;
            return match waits.variants {
                0..=VARIANTS_MAX => LockOutcome::RecheckCache,
                _ => LockOutcome::Ask,
            };
        }
        // By RFC 9111 only a fresh response is shared. By nginx's rules a response is also shared,
        // fresh or not, by the requests that waited for its head.
        let is_shared = has_waited && self.policy.is_none();
        let is_late = !is_shared && self.judge_entry(head) != Reuse::Fresh;
        if head.key != self.key || is_late || sets_cookie(rules.passing, head) {
            return LockOutcome::Ask;
        }
        let why = self.forwarded;
        let Some(step) = hit::serve_filling(request, rules, head, reader, why) else {
            return LockOutcome::Ask;
        };
        self.outcome.status = CacheStatus::Hit;
        LockOutcome::Answer(step)
    }

    /// Whether a head matches the request's variant. If not, looks for the request's own variant
    /// from now on.
    pub(super) fn matches_variant(&mut self, request: &Request, head: &Head) -> bool {
        if head.vary.is_empty() {
            return true;
        }
        let variant = self.variant_of(request, &head.vary);
        let is_it = head.variant == Some(variant);
        if !is_it {
            self.forwarded = Forwarded::VaryMiss;
            self.variant = Some(variant);
        }
        is_it
    }

    /// Releases the claim because the fetched response is not cacheable, and leaves a marker so
    /// that no request waits for the next one.
    pub fn refuse(&mut self) {
        let filler = self.filler.take();
        // No request waits for a background update, and the update sets a more specific marker
        // itself.
        if let Some(filler) = filler.filter(|_| !self.is_update) {
            let until = now().saturating_add(UNCACHEABLE);
            filler.refuse(Some((Marker::Uncacheable.number(), until)), now());
        }
    }

    /// Releases the claim like [`refuse`](Self::refuse), but leaves no marker: the response is not
    /// stored because of this client's request, and another response may be.
    pub(super) fn refuse_once(&mut self) {
        if let Some(filler) = self.filler.take() {
            filler.refuse(None, now());
        }
    }
}

/// Waits for the head of a fill; `None` on timeout, `Some(None)` if the fill has ended without a
/// head.
async fn wait(
    request: &mut Request,
    exchange: &mut Exchange,
    passing: &PassSettings,
    lock: FillLock,
    reader: &mut Reader,
    until: Instant,
) -> Result<Option<Option<Head>>, Abort> {
    let until = until.min(overdue(reader.fill(), lock).unwrap_or(until));
    let head = poll_fn(|context| reader.poll_head(context));
    let head = either(head, engine::sleep_until(until));
    let came = if passing.tries.ignore_client_abort {
        head.await
    } else {
        match either(head, exchange.client_gone()).await {
            Either::First(came) => came,
            Either::Second(_) => {
                logs::error!(request, Info, "client prematurely closed connection");
                return Err(request.client_left(exchange));
            }
        }
    };
    Ok(match came {
        Either::First(head) => Some(head),
        Either::Second(()) => None,
    })
}

/// The time at which another request may take over the claim (`*_cache_lock_age`).
fn overdue(fill: &Fill, lock: FillLock) -> Option<Instant> {
    let left = fill.since().saturating_add(lock.age).saturating_sub(now());
    engine::now().checked_add(Duration::from_millis(left))
}

/// Whether sharing the stored response would give a client another client's cookie.
fn sets_cookie(passing: &PassSettings, stored: &Head) -> bool {
    !passing.hidden.contains_known(KnownField::SetCookie)
        && stored_head::parse(stored).is_some_and(|head| head.find(KnownField::SetCookie).is_some())
}
