//! Whether a response may be stored, and how long it may be used fresh and stale: RFC 9111,
//! sections 3 and 4.2.

use super::directives::{ResponseDirectives, elements};
use super::{FieldLine, Policy, dates, delta_seconds, targeted};

/// Properties of a request that decide whether its response may be stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StorageRequest {
    /// The request had an `Authorization` field (section 3.5).
    pub is_authorized: bool,
    /// The request had `no-store` (section 5.2.1.5).
    pub has_no_store: bool,
    /// A 206 response may be stored: the cache key contains the range (slices), or the response is
    /// stored as a part with an id of its own.
    pub is_part_by_key: bool,
}

/// When a response was requested and received, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExchangeTimes {
    /// `request_time` of section 4.2.3.
    pub requested: i64,
    /// `response_time` of section 4.2.3.
    pub received: i64,
}

/// How long a stored response may be used, and under which conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Milliseconds since 1970 at which the response becomes stale.
    pub fresh_until: i64,
    /// Milliseconds since 1970 at which the response was received.
    pub received: i64,
    /// The age in seconds at `received`: `corrected_initial_age` of section 4.2.3.
    pub initial_age: u32,
    /// Seconds for which the stale response may be used while it is updated.
    pub updating: u32,
    /// Seconds for which the stale response may replace a failed one.
    pub error: u32,
    /// The response itself states `stale-if-error`: the stale response may then also replace an
    /// error response of the origin (RFC 5861, section 4).
    pub covers_error_responses: bool,
    /// The response must be revalidated before each use (section 5.2.2.4).
    pub needs_validation: bool,
    /// The response must never be used stale (section 4.2.4).
    pub never_stale: bool,
    /// The response may be used for requests with `Authorization` (section 3.5).
    pub allows_authorized: bool,
}

/// The fields of a response's head that the rules for storing use.
#[derive(Clone, Debug, Default)]
struct ResponseFields {
    directives: ResponseDirectives,
    /// The directives come from a targeted field, which replaces Expires.
    is_targeted: bool,
    /// `X-Accel-Expires`: seconds from the arrival, or a time in seconds since 1970.
    accel: Option<Accel>,
    /// In seconds since 1970; an invalid Expires counts as far in the past (section 5.3).
    expires: Option<i64>,
    date: Option<i64>,
    age: Option<u64>,
    last_modified: Option<i64>,
    has_validator: bool,
    sets_cookie: bool,
    varies_by_all: bool,
}

/// The value of `X-Accel-Expires`: seconds from the arrival, or until a time since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accel {
    Seconds(i64),
    Until(i64),
}

/// The source of a freshness lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The response states it.
    Explicit,
    /// The configuration, or a heuristic (section 4.2.2).
    Assigned,
}

/// Judges a response with this status and these fields. `assigned` is the freshness lifetime in
/// seconds of a response that states none; the policy may supply another. Returns `None` if the
/// response may not be stored, or storing it has no use.
pub(crate) fn judge<'a>(
    status: u16,
    fields: impl Iterator<Item = FieldLine<'a>>,
    asked: StorageRequest,
    exchanged: ExchangeTimes,
    assigned: Option<u64>,
    policy: &Policy,
) -> Option<Stored> {
    let response_fields = ResponseFields::of(fields, exchanged.received.div_euclid(1000));
    if !response_fields.may_be_stored(status, asked) {
        return None;
    }
    let initial_age = response_fields.initial_age(exchanged);
    let lifetime = response_fields.lifetime(status, exchanged, initial_age, assigned, policy);
    let is_explicit = matches!(lifetime, Some((_, Source::Explicit)));
    // By section 3 a response without explicit freshness is only stored if its status allows it. A
    // response without any lifetime must also have a validator, since each use must be confirmed.
    let is_whole = status == 200 || (status == 206 && asked.is_part_by_key);
    let may_be_confirmed = response_fields.has_validator && is_whole;
    if lifetime.is_none() && !may_be_confirmed {
        return None;
    }
    let directives = &response_fields.directives;
    let needs_validation = directives.no_cache && response_fields.accel.is_none();
    let seconds = match lifetime {
        Some((seconds, _)) if !needs_validation => seconds,
        _ => initial_age,
    };
    let left = seconds.saturating_sub(initial_age);
    let never_stale = response_fields.never_stale();
    // Only a response that states its freshness lifetime is used stale.
    let beyond = |response_fields: Option<u64>, otherwise: u32| match response_fields {
        _ if never_stale || needs_validation => 0,
        Some(seconds) => u32::try_from(seconds).unwrap_or(u32::MAX),
        None if is_explicit && !directives.is_strict_by_s_maxage() => otherwise,
        None => 0,
    };
    let stored = Stored {
        fresh_until: exchanged.received.saturating_add(left.saturating_mul(1000)),
        received: exchanged.received,
        initial_age: u32::try_from(initial_age).unwrap_or(u32::MAX),
        updating: beyond(
            directives.stale_while_revalidate,
            policy.stale_while_revalidate,
        ),
        error: beyond(directives.stale_if_error, policy.stale_if_error),
        covers_error_responses: directives.stale_if_error.is_some(),
        needs_validation,
        never_stale: never_stale || directives.is_strict_by_s_maxage(),
        allows_authorized: directives.allow_authorized(),
    };
    let is_of_use = left > 0 || may_be_confirmed || stored.updating > 0;
    is_of_use.then_some(stored)
}

impl ResponseDirectives {
    fn allow_authorized(&self) -> bool {
        self.public || self.must_revalidate || self.s_maxage.is_some()
    }

    /// Section 5.2.2.10: s-maxage forbids stale use, unless the same response allows it by name
    /// (RFC 5861).
    fn is_strict_by_s_maxage(&self) -> bool {
        self.s_maxage.is_some()
            && self.stale_while_revalidate.is_none()
            && self.stale_if_error.is_none()
    }
}

impl ResponseFields {
    /// Parses the fields of a head; `now` is in seconds since 1970.
    fn of<'a>(fields: impl Iterator<Item = FieldLine<'a>>, now: i64) -> ResponseFields {
        let mut response_fields = ResponseFields::default();
        let mut targeted = Vec::new();
        for (name, value) in fields {
            match &*name.to_ascii_lowercase() {
                b"cache-control" => response_fields.directives.take(value),
                b"cdn-cache-control" => {
                    if !targeted.is_empty() {
                        targeted.extend_from_slice(b", ");
                    }
                    targeted.extend_from_slice(value);
                }
                b"x-accel-expires" if response_fields.accel.is_none() => {
                    response_fields.accel = Accel::parse(value)
                }
                // Section 5.3: an invalid date counts as far in the past.
                b"expires" if response_fields.expires.is_none() => {
                    response_fields.expires = Some(dates::parse(value, now).unwrap_or(i64::MIN));
                }
                b"date" if response_fields.date.is_none() => {
                    response_fields.date = dates::parse(value, now)
                }
                b"age" if response_fields.age.is_none() => {
                    response_fields.age = Some(age_of(value).unwrap_or(0))
                }
                b"last-modified" => {
                    response_fields.last_modified = dates::parse(value, now);
                    response_fields.has_validator |= response_fields.last_modified.is_some();
                }
                b"etag" => response_fields.has_validator |= !value.is_empty(),
                b"set-cookie" => response_fields.sets_cookie = true,
                b"vary" => {
                    response_fields.varies_by_all |= elements(value).any(|element| element == b"*");
                }
                _ => {}
            }
        }
        if let Some(directives) = targeted::parse(&targeted) {
            response_fields.directives = directives;
            response_fields.is_targeted = true;
        }
        response_fields
    }

    fn may_be_stored(&self, status: u16, asked: StorageRequest) -> bool {
        let directives = &self.directives;
        // A 206 is only stored under a key or id of its own, and a 304 is not stored itself.
        let is_part = status == 206 && !asked.is_part_by_key;
        let is_final = status >= 200 && status != 304 && !is_part;
        let is_understood = !directives.must_understand || is_understood(status);
        let has_no_store = directives.no_store && !directives.must_understand;
        let forbids = self.accel.is_none() && (has_no_store || directives.private);
        let is_for_all = !asked.is_authorized || directives.allow_authorized();
        let never = self.accel == Some(Accel::Seconds(0));
        is_final
            && is_understood
            && !forbids
            && !never
            && is_for_all
            && !asked.has_no_store
            && !self.sets_cookie
            && !self.varies_by_all
    }

    /// Section 4.2.4: the response must not be used stale.
    fn never_stale(&self) -> bool {
        let directives = &self.directives;
        directives.must_revalidate || directives.proxy_revalidate || directives.no_cache
    }

    /// `corrected_initial_age` of section 4.2.3, in seconds.
    fn initial_age(&self, exchanged: ExchangeTimes) -> i64 {
        let received = exchanged.received.div_euclid(1000);
        let apparent = self.date.map_or(0, |date| received.saturating_sub(date));
        let delay = exchanged.received.saturating_sub(exchanged.requested);
        let age = i64::try_from(self.age.unwrap_or(0)).unwrap_or(i64::MAX);
        let corrected = age.saturating_add(delay.max(0).div_euclid(1000));
        apparent.max(corrected).max(0)
    }

    /// Section 4.2.1: the freshness lifetime in seconds, and its source.
    fn lifetime(
        &self,
        status: u16,
        exchanged: ExchangeTimes,
        initial_age: i64,
        assigned: Option<u64>,
        policy: &Policy,
    ) -> Option<(i64, Source)> {
        let received = exchanged.received.div_euclid(1000);
        let explicit = |seconds: i64| Some((seconds.max(0), Source::Explicit));
        match self.accel {
            Some(Accel::Seconds(seconds)) => {
                return explicit(initial_age.saturating_add(seconds));
            }
            Some(Accel::Until(time)) => {
                let left = time.saturating_sub(received);
                return explicit(initial_age.saturating_add(left));
            }
            None => {}
        }
        let directives = &self.directives;
        if let Some(seconds) = directives.s_maxage.or(directives.max_age) {
            return explicit(i64::try_from(seconds).unwrap_or(i64::MAX));
        }
        if let Some(expires) = self.expires.filter(|_| !self.is_targeted) {
            let date = self.date.unwrap_or(received);
            return explicit(expires.saturating_sub(date));
        }
        let assigned = assigned.and_then(|seconds| i64::try_from(seconds).ok());
        let seconds = assigned.or_else(|| self.heuristic(status, received, policy))?;
        Some((seconds, Source::Assigned))
    }

    /// Section 4.2.2: a share of the time since the last change, up to a day.
    fn heuristic(&self, status: u16, received: i64, policy: &Policy) -> Option<i64> {
        let may = is_heuristically_cacheable(status) || self.directives.public;
        let since = self.date.unwrap_or(received) - self.last_modified?;
        if !may || policy.heuristic_percent == 0 || since <= 0 {
            return None;
        }
        let share = since.saturating_mul(i64::from(policy.heuristic_percent)) / 100;
        Some(share.min(HEURISTIC_MAX))
    }
}

/// The longest heuristic lifetime, in seconds.
const HEURISTIC_MAX: i64 = 24 * 60 * 60;

impl Accel {
    /// nginx's syntax: seconds, or `@` and a time in seconds since 1970.
    fn parse(value: &[u8]) -> Option<Accel> {
        let number = |text: &[u8]| {
            let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
            std::str::from_utf8(text)
                .ok()
                .filter(|_| is_number)?
                .parse()
                .ok()
        };
        match value.strip_prefix(b"@") {
            Some(time) => number(time).map(Accel::Until),
            None => number(value).map(Accel::Seconds),
        }
    }
}

/// Parses an Age (section 5.1): the first of several values counts, and a semicolon ends the value.
/// `None` if the value is invalid.
fn age_of(value: &[u8]) -> Option<u64> {
    let first = value.split(|byte| *byte == b',').next()?;
    let first = first.split(|byte| *byte == b';').next()?;
    delta_seconds(first.trim_ascii())
}

/// Whether the status is defined in RFC 9110, section 15, so that its caching is understood here.
fn is_understood(status: u16) -> bool {
    matches!(
        status,
        200..=206 | 300..=305 | 307 | 308 | 400..=417 | 421 | 422 | 426 | 500..=505
    )
}

/// Whether the status is heuristically cacheable by RFC 9110, section 15.1.
fn is_heuristically_cacheable(status: u16) -> bool {
    matches!(
        status,
        200 | 203 | 204 | 206 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501
    )
}

/// Names of fields that are not stored: section 3.1, and the fields that a response withholds.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExcludedFields(Vec<Vec<u8>>);

impl ExcludedFields {
    /// The names for a response with these fields.
    pub(crate) fn of<'a>(fields: impl Iterator<Item = FieldLine<'a>>) -> ExcludedFields {
        let mut directives = ResponseDirectives::default();
        for (name, value) in fields {
            if name.eq_ignore_ascii_case(b"connection") {
                let names = elements(value).map(<[u8]>::to_ascii_lowercase);
                directives.withheld.extend(names);
            } else if name.eq_ignore_ascii_case(b"cache-control") {
                directives.take(value);
            }
        }
        // Fields that delimit the body or state its type are stored even if the response withholds
        // them.
        let mut names = directives.withheld;
        names.retain(|name| !NEEDED.contains(&name.as_slice()));
        ExcludedFields(names)
    }

    /// Whether the field with this name is not stored.
    pub(crate) fn contains(&self, name: &[u8]) -> bool {
        let is_it = |other: &[u8]| other.eq_ignore_ascii_case(name);
        OF_CONNECTIONS.iter().any(|other| is_it(other)) || self.0.iter().any(|other| is_it(other))
    }
}

/// Fields without which the stored body would be misinterpreted.
const NEEDED: [&[u8]; 8] = [
    b"content-length",
    b"content-encoding",
    b"content-range",
    b"content-type",
    b"cache-control",
    b"vary",
    b"date",
    b"age",
];

/// Fields that concern a single connection or a proxy: RFC 9110, section 7.6.1, and RFC 9111,
/// section 3.1.
const OF_CONNECTIONS: [&[u8]; 9] = [
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"te",
    b"transfer-encoding",
    b"upgrade",
    b"proxy-authenticate",
    b"proxy-authentication-info",
    b"proxy-authorization",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Sun, 09 Sep 2001 01:46:40 GMT, and half a second.
    const NOW: i64 = 1_000_000_000_500;
    const DATE: &str = "Sun, 09 Sep 2001 01:46:40 GMT";
    const BEFORE_10: &str = "Sun, 09 Sep 2001 01:46:30 GMT";
    const BEFORE_100: &str = "Sun, 09 Sep 2001 01:45:00 GMT";
    const AFTER_10: &str = "Sun, 09 Sep 2001 01:46:50 GMT";
    const AFTER_20: &str = "Sun, 09 Sep 2001 01:47:00 GMT";

    const POLICY: Policy = Policy {
        heuristic_percent: 0,
        stale_if_error: 60,
        stale_while_revalidate: 0,
        reload_interval: 0,
    };

    fn judged(status: u16, fields: &[(&str, &str)], asked: StorageRequest) -> Option<Stored> {
        let pairs = fields
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let exchanged = ExchangeTimes {
            requested: NOW,
            received: NOW,
        };
        judge(status, pairs, asked, exchanged, None, &POLICY)
    }

    /// The freshness lifetime in seconds of a response with these fields, from its arrival.
    fn left(fields: &[(&str, &str)]) -> Option<i64> {
        let stored = judged(200, fields, StorageRequest::default())?;
        Some((stored.fresh_until - NOW) / 1000)
    }

    /// Sections 4.2.1, 5.2.2.10 and 5.3.
    #[test]
    fn lifetimes() {
        let cc = "Cache-Control";
        for (fields, expected) in [
            (&[(cc, "max-age=3600")][..], Some(3600)),
            (&[(cc, "max-age=1, s-maxage=3600")], Some(3600)),
            (&[(cc, "max-age=3600"), (cc, "s-maxage=1")], Some(1)),
            (&[(cc, "max-age=99999999999")], Some(1 << 31)),
            (&[(cc, "max-age=0"), ("Expires", AFTER_10)], None),
            (&[(cc, "max-age=5"), ("Expires", BEFORE_10)], Some(5)),
            (&[(cc, "max-age=5"), ("Expires", "0")], Some(5)),
            (&[("Expires", AFTER_10), ("Date", DATE)], Some(10)),
            (&[("Expires", AFTER_10)], Some(10)),
            (&[("Expires", AFTER_10), ("Date", "foo")], Some(10)),
            (&[("Expires", DATE), ("Date", DATE)], None),
            (&[("Expires", AFTER_10), ("Date", AFTER_20)], None),
            (&[("Expires", AFTER_20), ("Date", AFTER_10)], Some(10)),
            (&[("Expires", "0"), ("Date", DATE)], None),
            (&[("Expires", "Sun, 09 Sep 2001 01:46:50 UTC")], None),
            // The first of several counts.
            (&[("Expires", "x"), ("Expires", AFTER_10)], None),
            (&[], None),
            (&[(cc, "public")], None),
            // Fields of nginx.
            (&[("X-Accel-Expires", "7"), (cc, "no-store")], Some(7)),
            (&[("X-Accel-Expires", "@1000000009")], Some(9)),
            (&[("X-Accel-Expires", "0"), (cc, "max-age=5")], None),
            (&[("X-Accel-Expires", "x"), (cc, "max-age=5")], Some(5)),
        ] {
            assert_eq!(left(fields), expected, "{fields:?}");
        }
    }

    /// Section 4.2.3, and section 5.1 for what an Age is.
    #[test]
    fn ages() {
        let fresh = ("Cache-Control", "max-age=3600");
        for (fields, expected) in [
            (&[("Age", "30")][..], 30),
            (&[("Age", "30"), ("Date", BEFORE_10)], 30),
            (&[("Age", "5"), ("Date", BEFORE_10)], 10),
            (&[("Date", BEFORE_10)], 10),
            (&[("Date", AFTER_10)], 0),
            (&[("Age", "0, 7200")], 0),
            (&[("Age", "0"), ("Age", "7200")], 0),
            (&[("Age", "30, 0")], 30),
            (&[("Age", "30"), ("Age", "0")], 30),
            (&[("Age", "30;foo=bar")], 30),
            (&[("Age", "30;foo=111")], 30),
            (&[("Age", "abc")], 0),
            (&[("Age", "-7200")], 0),
            (&[("Age", "7200.0")], 0),
        ] {
            let fields = [&[fresh], fields].concat();
            let stored = judged(200, &fields, StorageRequest::default()).unwrap();
            assert_eq!(stored.initial_age, expected, "{fields:?}");
            let left = (stored.fresh_until - NOW) / 1000;
            assert_eq!(left, 3600 - i64::from(expected), "{fields:?}");
        }
        for old in ["7200", "2147483647", "2147483648", "99999999999", "7200, 0"] {
            assert_eq!(left(&[fresh, ("Age", old)]), None, "{old}");
        }
    }

    /// Section 4.2.3: the delay of the response is added to its Age.
    #[test]
    fn delay_makes_older() {
        let exchanged = ExchangeTimes {
            requested: NOW - 5000,
            received: NOW,
        };
        let fields = [
            (&b"Cache-Control"[..], &b"max-age=10"[..]),
            (b"Age", b"2"),
            (b"Date", DATE.as_bytes()),
        ];
        let asked = StorageRequest::default();
        let stored = judge(200, fields.into_iter(), asked, exchanged, None, &POLICY).unwrap();
        assert_eq!(stored.initial_age, 7);
        assert_eq!(stored.fresh_until, NOW + 3000);
    }

    /// Section 4.2.2, and RFC 9110, section 15.1.
    #[test]
    fn guesses_are_a_share_of_the_time_since_the_last_change() {
        let policy = Policy {
            heuristic_percent: 10,
            ..POLICY
        };
        let left = |status: u16, fields: &[(&str, &str)]| {
            let pairs = fields
                .iter()
                .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
            let exchanged = ExchangeTimes {
                requested: NOW,
                received: NOW,
            };
            let stored = judge(
                status,
                pairs,
                StorageRequest::default(),
                exchanged,
                None,
                &policy,
            )?;
            Some((stored.fresh_until - NOW) / 1000)
        };
        let changed = ("Last-Modified", BEFORE_100);
        for status in [200, 203, 204, 300, 301, 308, 404, 405, 410, 414, 501] {
            assert_eq!(
                left(status, &[changed, ("Date", DATE)]),
                Some(10),
                "{status}"
            );
        }
        for status in [201, 202, 302, 403, 502, 503, 504, 599] {
            assert_eq!(left(status, &[changed]), None, "{status}");
        }
        let public = ("Cache-Control", "public");
        assert_eq!(left(599, &[changed, public]), Some(10));
        let long_ago = ("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(left(200, &[long_ago]), Some(86_400));
        // A stated lifetime takes precedence over the heuristic.
        assert_eq!(left(404, &[changed, ("Expires", "0")]), None);
        assert_eq!(left(200, &[("Last-Modified", AFTER_10)]), Some(0));
    }

    /// Section 3, section by section of 5.2.2.
    #[test]
    fn what_may_be_stored() {
        let cc = "Cache-Control";
        let fresh = (cc, "max-age=9");
        for (status, fields, expected) in [
            (200, &[fresh][..], true),
            (404, &[fresh], true),
            (599, &[fresh], true),
            (206, &[fresh], false),
            (304, &[fresh], false),
            (103, &[fresh], false),
            (200, &[(cc, "no-store, max-age=9")], false),
            (200, &[(cc, "No-StOrE, max-age=9")], false),
            (200, &[(cc, "private, max-age=9")], false),
            (200, &[(cc, "private=\"a\", max-age=9")], true),
            (200, &[fresh, ("Vary", "*")], false),
            (200, &[fresh, ("Vary", "*, *")], false),
            (200, &[fresh, ("Vary", ", *")], false),
            (200, &[fresh, ("Vary", ""), ("Vary", "*")], false),
            (200, &[fresh, ("Vary", "Foo, *")], false),
            (200, &[fresh, ("Vary", "Foo")], true),
            (200, &[fresh, ("Set-Cookie", "a=b")], false),
            // Section 5.2.2.3.
            (200, &[(cc, "max-age=9, no-store, must-understand")], true),
            (599, &[(cc, "max-age=9, no-store, must-understand")], false),
            (599, &[(cc, "max-age=9, must-understand")], false),
            // Useful once the origin has confirmed the response.
            (200, &[("ETag", "\"a\"")], true),
            (200, &[(cc, "no-cache"), ("ETag", "\"a\"")], true),
            (200, &[(cc, "no-cache, max-age=9")], false),
            (404, &[("ETag", "\"a\"")], false),
        ] {
            let stored = judged(status, fields, StorageRequest::default());
            assert_eq!(stored.is_some(), expected, "{status} {fields:?}");
        }
        let refuses = StorageRequest {
            has_no_store: true,
            ..StorageRequest::default()
        };
        assert_eq!(judged(200, &[fresh], refuses), None);
        let slice = StorageRequest {
            is_part_by_key: true,
            ..StorageRequest::default()
        };
        assert!(judged(206, &[fresh], slice).is_some());
        assert!(judged(206, &[("ETag", "\"a\"")], slice).is_some());
    }

    /// RFC 9213, section 2.2.
    #[test]
    fn the_targeted_field_goes_first() {
        let cdn = "CDN-Cache-Control";
        let cc = "Cache-Control";
        for (fields, expected) in [
            (&[(cdn, "max-age=9"), (cc, "max-age=1")][..], Some(9)),
            (&[(cdn, "max-age=9"), (cc, "no-store")], Some(9)),
            (&[(cdn, "max-age=9"), ("Expires", "0")], Some(9)),
            (&[(cdn, "max-age=0"), ("Expires", AFTER_10)], None),
            (&[(cdn, "no-store"), (cc, "max-age=9")], None),
            (&[(cdn, "private"), (cc, "max-age=9")], None),
            (&[(cdn, "no-cache"), (cc, "max-age=9")], None),
            (&[(cdn, "max-age=9, &&&"), (cc, "max-age=1")], Some(1)),
            (&[(cdn, "max-age=9, &&&"), (cc, "no-store")], None),
            (&[(cdn, ""), (cc, "max-age=1")], Some(1)),
            (&[(cdn, "foo"), (cdn, "max-age=7")], Some(7)),
        ] {
            assert_eq!(left(fields), expected, "{fields:?}");
        }
    }

    /// Section 3.5.
    #[test]
    fn answers_to_authorized_requests() {
        let asked = StorageRequest {
            is_authorized: true,
            ..StorageRequest::default()
        };
        for (value, expected) in [
            ("max-age=9", false),
            ("max-age=9, public", true),
            ("max-age=9, must-revalidate", true),
            ("s-maxage=9", true),
            ("max-age=9, proxy-revalidate", false),
        ] {
            let stored = judged(200, &[("Cache-Control", value)], asked);
            assert_eq!(stored.is_some(), expected, "{value}");
            let stored = judged(200, &[("Cache-Control", value)], StorageRequest::default());
            assert_eq!(stored.unwrap().allows_authorized, expected, "{value}");
        }
    }

    /// Section 4.2.4, and RFC 5861, sections 3 and 4.
    #[test]
    fn what_is_good_beyond_its_freshness() {
        for (value, expected) in [
            ("max-age=9", (0, 60)),
            ("max-age=9, stale-while-revalidate=5", (5, 60)),
            ("max-age=9, stale-if-error=7", (0, 7)),
            ("max-age=9, must-revalidate", (0, 0)),
            ("max-age=9, proxy-revalidate", (0, 0)),
            ("s-maxage=9", (0, 0)),
            ("max-age=9, must-revalidate, stale-if-error=7", (0, 0)),
            ("s-maxage=9, stale-while-revalidate=5", (5, 60)),
        ] {
            let fields = [("Cache-Control", value), ("ETag", "\"a\"")];
            let stored = judged(200, &fields, StorageRequest::default()).unwrap();
            assert_eq!((stored.updating, stored.error), expected, "{value}");
            assert_eq!(stored.never_stale, expected == (0, 0), "{value}");
        }
        let fields = [("Cache-Control", "no-cache, max-age=9"), ("ETag", "\"a\"")];
        let stored = judged(200, &fields, StorageRequest::default()).unwrap();
        assert!(stored.needs_validation && stored.never_stale && stored.error == 0);
        assert_eq!(stored.fresh_until, NOW);
        // A response that does not state its lifetime is not used stale.
        let stored = judged(200, &[("ETag", "\"a\"")], StorageRequest::default()).unwrap();
        assert_eq!((stored.updating, stored.error), (0, 0));
    }

    /// Section 3.1.
    #[test]
    fn fields_that_are_not_stored() {
        let withheld = ExcludedFields::of(
            [
                (&b"Connection"[..], &b"a, B, Content-Type"[..]),
                (b"Cache-Control", b"no-cache=\"c\", private=\"d, date\""),
            ]
            .into_iter(),
        );
        for name in ["A", "b", "c", "D", "Keep-Alive", "transfer-encoding", "TE"] {
            assert!(withheld.contains(name.as_bytes()), "{name}");
        }
        for name in ["e", "Content-Type", "Date", "Cache-Control", "Proxy-Status"] {
            assert!(!withheld.contains(name.as_bytes()), "{name}");
        }
    }
}
