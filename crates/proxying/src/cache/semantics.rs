//! `*_cache_semantics`: whether responses are stored and reused by nginx's rules or those of RFC
//! 9111.
//!
//! nginx's rules are in `freshness`, those of RFC 9111 in `rules`, which know neither requests nor
//! entries. This module calls both with the data of a request and an entry:
//!
//! ```text
//! a response is received ─▶ judge_answer      is it stored, and with which times?
//! an entry is found      ─▶ judge_entry       is it used, or the origin asked?
//! an entry is used       ─▶ set_cache_fields  Age, Date, Content-Length, ranges, 304, Cache-Status
//! ```

use std::io::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::request::Request;
use http::response::not_modified::forget_body;
use proto::date;
use proto::header::KnownField;
use proto::method::Method;
use store::disk::{EntryTimes, Head};

use super::clock::{wall, wall_milliseconds};
use super::freshness::Freshness;
use super::keeping::StoredTimes;
use super::lookup::CacheLookup;
use super::rules::conditions::{Conditions, Selected};
use super::rules::directives::{RequestDirectives, elements};
use super::rules::reuse::{Reuse, ReuseRequest, StaleUses, age, decide};
use super::rules::status::{self, CacheResult, Forwarded};
use super::rules::storing::{ExchangeTimes, ExcludedFields, StorageRequest, Stored, judge};
use super::rules::{FieldLine, Policy, tags};
use super::status::CacheStatus;
use super::stored_head;
use crate::answer::AnswerHead;
use crate::settings::PassSettings;

/// The longest `Vary` of a response that is stored by RFC 9111, in bytes.
const VARY_LENGTH_MAX: usize = 1024;

/// The flags that are stored with the times of an entry.
const BY_RULES: u32 = 1;
const NEEDS_VALIDATION: u32 = 1 << 1;
const NEVER_STALE: u32 = 1 << 2;
const FOR_AUTHORIZED: u32 = 1 << 3;
const COVERS_ANSWERS: u32 = 1 << 4;
/// The flags' upper half then holds the Date of a later 304, in seconds relative to its receipt.
const HAS_DATE: u32 = 1 << 5;

/// The times of a response as they are stored with its entry.
pub(super) fn times_of(stored: &Stored) -> EntryTimes {
    let flag = |holds: bool, flag: u32| if holds { flag } else { 0 };
    EntryTimes {
        valid_until: stored.fresh_until,
        received: stored.received,
        age: stored.initial_age,
        updating: stored.updating,
        error: stored.error,
        flags: BY_RULES
            | flag(stored.needs_validation, NEEDS_VALIDATION)
            | flag(stored.never_stale, NEVER_STALE)
            | flag(stored.allows_authorized, FOR_AUTHORIZED)
            | flag(stored.covers_error_responses, COVERS_ANSWERS),
    }
}

/// Reads the times of an entry back; `None` if it was stored in nginx's format.
fn stored_of(times: &EntryTimes) -> Option<Stored> {
    let has = |flag: u32| times.flags & flag != 0;
    has(BY_RULES).then(|| Stored {
        fresh_until: times.valid_until,
        received: times.received,
        initial_age: times.age,
        updating: times.updating,
        error: times.error,
        covers_error_responses: has(COVERS_ANSWERS),
        needs_validation: has(NEEDS_VALIDATION),
        never_stale: has(NEVER_STALE),
        allows_authorized: has(FOR_AUTHORIZED),
    })
}

/// Adds the Date of a 304 to the times of the entry that the 304 confirms; `None` if the Date is
/// invalid or too far from the time of receipt.
pub(super) fn with_date(mut times: EntryTimes, value: &[u8]) -> Option<EntryTimes> {
    let date = date::parse_http(value)?;
    let offset = date.checked_sub(times.received.div_euclid(1000))?;
    let offset = u16::from_ne_bytes(i16::try_from(offset).ok()?.to_ne_bytes());
    times.flags |= HAS_DATE | u32::from(offset) << 16;
    Some(times)
}

/// The Date of a later 304 in seconds since 1970, if there was one.
fn date_of(times: &EntryTimes) -> Option<i64> {
    let offset = u16::try_from(times.flags >> 16).ok()?;
    let offset = i16::from_ne_bytes(offset.to_ne_bytes());
    let date = times.received.div_euclid(1000) + i64::from(offset);
    (times.flags & HAS_DATE != 0).then_some(date)
}

/// Whether nginx's rules would not have stored the entry.
pub(super) fn is_stored_by_rfc_only(head: &Head) -> bool {
    head.times.flags & NEEDS_VALIDATION != 0
}

/// What a request demands of a stored response.
pub(super) fn wanted(request: &Request) -> ReuseRequest {
    let mut directives = RequestDirectives::default();
    let mut is_authorized = false;
    for (known, _, value) in request.client.known_headers() {
        match known {
            KnownField::CacheControl => directives.take(value),
            KnownField::Authorization => is_authorized = true,
            _ => {}
        }
    }
    ReuseRequest {
        directives,
        is_authorized,
    }
}

/// The names in all lines of `Vary`, joined.
fn vary_of<'a>(fields: impl Iterator<Item = FieldLine<'a>>) -> Vec<u8> {
    let of_name = fields.filter(|(name, _)| name.eq_ignore_ascii_case(b"vary"));
    let names: Vec<&[u8]> = of_name.flat_map(|(_, value)| elements(value)).collect();
    names.join(&b", "[..])
}

/// Whether an entry with these times may be used for a request with these demands.
pub(super) fn judge_times(
    policy: Option<Policy>,
    wanted: &ReuseRequest,
    times: &EntryTimes,
) -> Reuse {
    if let Some(policy) = policy {
        return match stored_of(times) {
            Some(stored) => decide(&stored, wanted, wall_milliseconds(), &policy),
            // The entry was stored by nginx's rules.
            None => Reuse::Mismatched,
        };
    }
    if times.valid_until >= wall().saturating_mul(1000) {
        return Reuse::Fresh;
    }
    let late = wall().saturating_sub(times.valid_until / 1000);
    Reuse::Ask(StaleUses {
        while_updating: late <= i64::from(times.updating),
        for_failures: late <= i64::from(times.error),
        for_error_responses: false,
        is_forbidden: false,
    })
}

/// The time, since 1970, until which a fresh entry stays fresh.
pub(super) fn fresh_until(policy: Option<Policy>, times: &EntryTimes) -> Duration {
    let until = Duration::from_millis(u64::try_from(times.valid_until).unwrap_or_default());
    match policy {
        Some(_) => until,
        // By nginx's rules an entry is fresh up to the end of its last whole second.
        None => Duration::from_secs(until.as_secs().saturating_add(1)),
    }
}

impl CacheLookup {
    /// The times with which a response is stored; `None` if it is not stored.
    pub(super) fn judge_answer(
        &self,
        passing: &PassSettings,
        head: &AnswerHead,
    ) -> Option<StoredTimes> {
        if !self.credentials.permit(head) {
            return None;
        }
        if self.policy.is_some() {
            let fields: Vec<FieldLine<'_>> = head.pairs().collect();
            let micro = self.micro_fresh(passing, head);
            return self.judge_fields(passing, head.status(), &fields, micro);
        }
        let fields = head.counting();
        let fields = fields.map(|field| (field.known, field.value(&head.bytes)));
        let freshness = Freshness::of(fields, &passing.ignored, wall());
        freshness
            .may_store()
            .then_some(StoredTimes::Nginx(freshness))
    }

    /// The freshness lifetime in seconds by `proxy_cache_microcache`, if the rule applies to this
    /// request and response.
    pub(super) fn micro_fresh(&self, passing: &PassSettings, head: &AnswerHead) -> Option<i64> {
        let sharing = &passing.cache.as_ref().filter(|_| self.is_plain)?.sharing;
        sharing.micro_fresh(head, self.file.as_ref())
    }

    /// Judges by RFC 9111 whether a response with these header fields is stored, and with which
    /// times; fields that `*_ignore_headers` names do not count. `micro` is the freshness lifetime,
    /// in seconds, of a response that states none and that no `*_cache_valid` matches.
    pub(super) fn judge_fields(
        &self,
        passing: &PassSettings,
        status: u16,
        fields: &[FieldLine<'_>],
        micro: Option<i64>,
    ) -> Option<StoredTimes> {
        let asked = StorageRequest {
            is_authorized: self.wanted.is_authorized,
            has_no_store: self.wanted.directives.no_store,
            // A slice has its range in the cache key, and a stored part has its own id.
            is_part_by_key: !self.group.is_empty() || self.stores_partial,
        };
        let exchanged = ExchangeTimes {
            requested: self.requested,
            received: wall_milliseconds(),
        };
        let cache = passing.cache.as_ref();
        let micro = micro.and_then(|seconds| u64::try_from(seconds).ok());
        let assigned = cache.and_then(|it| it.valid(status)).or(micro);
        let policy = self.policy?;
        let heeded = || {
            let fields = fields.iter().copied();
            fields.filter(|(name, _)| !passing.ignored.contains_name(name))
        };
        let stored = judge(status, heeded(), asked, exchanged, assigned, &policy)?;
        // With a microcache, a response that neither states a lifetime nor has one assigned is not
        // stored.
        let is_silent = stored.fresh_until <= stored.received && !stored.needs_validation;
        let is_bounded = cache.is_some_and(|cache| cache.sharing.microcache.is_some());
        if is_bounded && is_silent && assigned.is_none() {
            return None;
        }
        let vary = vary_of(heeded());
        (vary.len() <= VARY_LENGTH_MAX).then_some(StoredTimes::Rfc(stored, vary))
    }

    /// Whether an existing entry may be used for this request.
    pub(super) fn judge_entry(&self, head: &Head) -> Reuse {
        judge_times(self.policy, &self.wanted, &head.times)
    }

    /// Why the origin is asked although there is an entry.
    pub(super) fn reason_of(&self, head: &Head) -> Forwarded {
        if head.times.valid_until > wall_milliseconds() && self.policy.is_some() {
            Forwarded::Request
        } else {
            Forwarded::Stale
        }
    }

    /// Adds the `Cache-Status` for a request that the origin has answered.
    pub(super) fn add_cache_status(&self, request: &mut Request, status: u16, is_stored: bool) {
        if self.policy.is_some() {
            let why = self.forwarded;
            tell(
                request,
                CacheResult::Forwarded {
                    why,
                    status,
                    is_stored,
                },
            );
        }
    }
}

/// The head of a response as it is stored by RFC 9111: with a Date, and without the fields that
/// must not be stored.
pub(super) fn text_of(head: &AnswerHead) -> Vec<u8> {
    text_of_fields(head, head.pairs(), &ExcludedFields::of(head.pairs()))
}

/// The head as it is stored by RFC 9111, with these fields in place of those of `head`.
pub(super) fn text_of_fields<'a>(
    head: &AnswerHead,
    fields: impl Iterator<Item = FieldLine<'a>>,
    withheld: &ExcludedFields,
) -> Vec<u8> {
    let mut text = stored_head::first_line(head);
    let mut append = |name: &[u8], value: &[u8]| {
        text.extend_from_slice(name);
        text.extend_from_slice(b": ");
        text.extend_from_slice(value);
        text.extend_from_slice(b"\r\n");
    };
    let mut has_date = false;
    for (name, value) in fields.filter(|(name, _)| !withheld.contains(name)) {
        has_date |= name.eq_ignore_ascii_case(b"date");
        append(name, value);
    }
    if !has_date {
        append(b"Date", &http_date(wall()));
    }
    text.extend_from_slice(b"\r\n");
    text
}

fn http_date(time: i64) -> [u8; date::HTTP_LENGTH] {
    let mut text = [0; date::HTTP_LENGTH];
    date::format_http(time, &mut text);
    text
}

/// The cache tags of a response.
pub(super) fn tags_of(head: &AnswerHead) -> Vec<Bytes> {
    let tags = tags::all(head.pairs()).into_iter();
    tags.map(Bytes::copy_from_slice).collect()
}

/// Gives the client's response the fields of one from a cache. `collapsed` is why the origin was
/// asked, if another request has fetched the response.
pub(super) fn set_cache_fields(
    request: &mut Request,
    entry: &Head,
    status: CacheStatus,
    collapsed: Option<Forwarded>,
) {
    let now = wall_milliseconds();
    let response = &mut request.response;
    response.remove(b"Age");
    let stored = stored_of(&entry.times).unwrap_or_default();
    let mut digits = Vec::with_capacity(10);
    let written = write!(digits, "{}", age(&stored, now));
    debug_assert!(written.is_ok(), "memory takes what is written");
    response.add("Age", digits);
    if let Some(date) = date_of(&entry.times) {
        response.remove(b"Date");
        response.add("Date", Bytes::copy_from_slice(&http_date(date)));
        response.date = Some(Bytes::new());
    }
    if response.content_length.is_none() && response.status != 204 {
        response.content_length = entry.body_length;
    }
    allow_ranges(request, entry.body_length.is_none());
    judge_conditions(request, stored.received);
    let left = stored.fresh_until.saturating_sub(now).div_euclid(1000);
    let handled = match (collapsed, status) {
        (Some(why), _) => CacheResult::Collapsed { why },
        (None, CacheStatus::Revalidated) => CacheResult::Forwarded {
            why: Forwarded::Stale,
            status: 304,
            is_stored: false,
        },
        (None, _) => CacheResult::Hit { left },
    };
    tell(request, handled);
}

/// Lets the client request ranges of a complete response, even if the origin permits none.
pub(super) fn allow_ranges(request: &mut Request, is_single: bool) {
    let response = &mut request.response;
    if response.status == 200 {
        response.accept_ranges = None;
        response.remove(b"Accept-Ranges");
        response.allow_ranges = true;
        response.single_range = is_single;
    }
}

/// Turns the response into a 304 if the client already has it.
pub(super) fn judge_conditions(request: &mut Request, received: i64) {
    request.response.conditions_evaluated = true;
    let may_be_met = matches!(request.method, Method::Get | Method::Head);
    if !request.is_main() || !may_be_met || request.response.status != 200 {
        return;
    }
    let conditions = Conditions {
        none_match: request.header(KnownField::IfNoneMatch),
        modified_since: request.header(KnownField::IfModifiedSince),
    };
    let field = |name: &[u8]| request.response.field(name).map(|value| &value[..]);
    let are_met = conditions.is_not_modified(&Selected {
        etag: field(b"ETag"),
        last_modified: field(b"Last-Modified"),
        date: field(b"Date"),
        received: received.div_euclid(1000),
    });
    if are_met {
        request.response.status = 304;
        forget_body(&mut request.response);
    }
}

/// Adds the `Cache-Status` field.
fn tell(request: &mut Request, handled: CacheResult) {
    let value = status::value(handled);
    request.response.add("Cache-Status", value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let stored = Stored {
            fresh_until: 5,
            received: 3,
            initial_age: 2,
            updating: 7,
            error: 8,
            covers_error_responses: true,
            needs_validation: false,
            never_stale: true,
            allows_authorized: true,
        };
        assert_eq!(stored_of(&times_of(&stored)), Some(stored));
        let stored = Stored {
            needs_validation: true,
            never_stale: false,
            ..stored
        };
        assert_eq!(stored_of(&times_of(&stored)), Some(stored));
        assert_eq!(stored_of(&EntryTimes::default()), None);
    }

    #[test]
    fn dates_of_confirmations_are_kept() {
        let times = EntryTimes {
            received: 784_111_777_900,
            ..times_of(&Stored::default())
        };
        for date in [784_111_777, 784_111_770, 784_111_787, 784_111_777 - 32_768] {
            let noted = with_date(times, &http_date(date)).unwrap();
            assert_eq!(date_of(&noted), Some(date));
        }
        assert_eq!(with_date(times, &http_date(784_111_777 - 32_769)), None);
        assert_eq!(with_date(times, b"x"), None);
        assert_eq!(date_of(&times), None);
    }
}
