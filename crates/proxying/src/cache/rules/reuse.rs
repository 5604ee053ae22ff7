//! Whether a stored response may be used for a request: RFC 9111, sections 4, 4.2.4 and 5.2.1.

use super::Policy;
use super::directives::RequestDirectives;
use super::storing::Stored;

/// Whether a stored response may be used for a request (RFC 9111 section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// The response is fresh and may be used.
    Fresh,
    /// The response is stale, but the client accepts that (`max-stale`).
    StaleAsAllowed,
    /// The origin must be asked; see [`StaleUses`] for uses of the stale response meanwhile or
    /// instead.
    Ask(StaleUses),
    /// The stored response does not match the request: proceed as if nothing were stored.
    Mismatched,
}

/// What a stale response may be used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StaleUses {
    /// The stale response may be used while it is updated (`stale-while-revalidate`).
    pub while_updating: bool,
    /// The stale response may be used if no origin responds (`stale-if-error`).
    pub for_failures: bool,
    /// The stale response may also be used if an origin responds with 500, 502, 503 or 504 (RFC
    /// 5861, section 4).
    pub for_error_responses: bool,
    /// The response forbids stale use, so `*_cache_use_stale` does not apply.
    pub is_forbidden: bool,
}

/// The properties of a request that decide about reuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReuseRequest {
    pub directives: RequestDirectives,
    pub is_authorized: bool,
}

/// Decides at the time `now`, in milliseconds since 1970.
pub(crate) fn decide(stored: &Stored, wanted: &ReuseRequest, now: i64, policy: &Policy) -> Reuse {
    if wanted.is_authorized && !stored.allows_authorized {
        return Reuse::Mismatched;
    }
    let wishes = wanted.directives;
    let interval = i64::try_from(policy.reload_interval).unwrap_or(i64::MAX);
    // A client cannot force another fetch of a response that was fetched a moment ago.
    let is_new = now.saturating_sub(stored.received) < interval;
    let wants_newer = !is_new && (wishes.no_cache || is_older(stored, wishes.max_age, now));
    let left = stored.fresh_until.saturating_sub(now);
    let min_left = milliseconds(wishes.min_fresh.unwrap_or(0));
    let is_fresh = left > 0 && (is_new || left > min_left) && !stored.needs_validation;
    if is_fresh && !wants_newer {
        return Reuse::Fresh;
    }
    let late = left.saturating_neg();
    let is_forbidden = stored.needs_validation || stored.never_stale;
    // A client that wants a newer response must not get a staler one.
    let may = |seconds: u32| !wants_newer && late <= milliseconds(u64::from(seconds));
    if let Some(seconds) = wishes.max_stale
        && !is_forbidden
        && !wants_newer
        && late <= milliseconds(seconds)
        && wishes.min_fresh.is_none()
    {
        return Reuse::StaleAsAllowed;
    }
    // `updating` and `error` are in seconds; 0 forbids stale use.
    Reuse::Ask(StaleUses {
        while_updating: stored.updating > 0 && may(stored.updating),
        for_failures: stored.error > 0 && may(stored.error),
        for_error_responses: stored.covers_error_responses && stored.error > 0 && may(stored.error),
        is_forbidden,
    })
}

/// `current_age` of section 4.2.3, in seconds.
pub(crate) fn age(stored: &Stored, now: i64) -> u64 {
    let resident = now.saturating_sub(stored.received).max(0) / 1000;
    u64::from(stored.initial_age) + u64::try_from(resident).unwrap_or_default()
}

fn is_older(stored: &Stored, max_age: Option<u64>, now: i64) -> bool {
    max_age.is_some_and(|max| age(stored, now) > max || max == 0)
}

fn milliseconds(seconds: u64) -> i64 {
    i64::try_from(seconds.saturating_mul(1000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000_000_000;

    const POLICY: Policy = Policy {
        heuristic_percent: 0,
        stale_if_error: 0,
        stale_while_revalidate: 0,
        reload_interval: 0,
    };

    /// A response received ten seconds ago at an age of five seconds, and fresh for another ten.
    fn stored() -> Stored {
        Stored {
            fresh_until: NOW + 10_000,
            received: NOW - 10_000,
            initial_age: 5,
            updating: 3,
            error: 7,
            ..Stored::default()
        }
    }

    fn wanted(text: &str) -> ReuseRequest {
        let mut directives = RequestDirectives::default();
        directives.take(text.as_bytes());
        ReuseRequest {
            directives,
            is_authorized: false,
        }
    }

    fn decided(stored: &Stored, text: &str, now: i64) -> Reuse {
        decide(stored, &wanted(text), now, &POLICY)
    }

    /// Section 4.2: fresh as long as the lifetime is greater than the age.
    #[test]
    fn freshness_ends_at_its_end() {
        assert_eq!(decided(&stored(), "", NOW + 9999), Reuse::Fresh);
        assert!(matches!(
            decided(&stored(), "", NOW + 10_000),
            Reuse::Ask(_)
        ));
    }

    /// Section 4.2.3.
    #[test]
    fn age_grows() {
        assert_eq!(age(&stored(), NOW), 15);
        assert_eq!(age(&stored(), NOW + 999), 15);
        assert_eq!(age(&stored(), NOW + 1000), 16);
        // The wall clock has gone back.
        assert_eq!(age(&stored(), NOW - 20_000), 5);
    }

    /// Section 5.2.1.
    #[test]
    fn clients_have_wishes() {
        for (text, is_fresh) in [
            ("", true),
            ("no-store", true),
            ("no-cache", false),
            ("max-age=15", true),
            ("max-age=14", false),
            ("max-age=0", false),
            ("min-fresh=9", true),
            ("min-fresh=10", false),
            ("max-stale", true),
        ] {
            let is = decided(&stored(), text, NOW) == Reuse::Fresh;
            assert_eq!(is, is_fresh, "{text}");
        }
        let late = NOW + 20_000;
        for (text, is_given) in [
            ("max-stale", true),
            ("max-stale=10", true),
            ("max-stale=9", false),
            ("max-stale, no-cache", false),
            ("max-stale, max-age=35", true),
            ("max-stale, max-age=34", false),
            ("max-stale, min-fresh=1", false),
        ] {
            let is = decided(&stored(), text, late) == Reuse::StaleAsAllowed;
            assert_eq!(is, is_given, "{text}");
        }
    }

    /// The reload interval, which prevents clients from causing load on the origin.
    #[test]
    fn reloads_have_an_interval() {
        let policy = Policy {
            reload_interval: 1000,
            ..POLICY
        };
        let new = Stored {
            received: NOW - 999,
            ..stored()
        };
        for text in ["no-cache", "max-age=0", "min-fresh=100"] {
            assert_eq!(decide(&new, &wanted(text), NOW, &policy), Reuse::Fresh);
            let decided = decide(&new, &wanted(text), NOW + 1, &policy);
            assert!(matches!(decided, Reuse::Ask(_)), "{text}");
        }
    }

    /// Section 4.2.4, and RFC 5861.
    #[test]
    fn beyond_freshness() {
        let at = |stored: &Stored, late: i64| match decided(stored, "", NOW + 10_000 + late) {
            Reuse::Ask(beyond) => (beyond.while_updating, beyond.for_failures),
            other => panic!("{other:?}"),
        };
        assert_eq!(at(&stored(), 3000), (true, true));
        assert_eq!(at(&stored(), 3001), (false, true));
        assert_eq!(at(&stored(), 7001), (false, false));
        let strict = Stored {
            never_stale: true,
            updating: 0,
            error: 0,
            ..stored()
        };
        assert_eq!(at(&strict, 0), (false, false));
        let decided = decided(&strict, "max-stale", NOW + 10_000);
        assert!(matches!(decided, Reuse::Ask(beyond) if beyond.is_forbidden));
    }

    /// Section 5.2.2.4.
    #[test]
    fn what_needs_validation_is_never_fresh() {
        let stored = Stored {
            needs_validation: true,
            ..stored()
        };
        assert!(matches!(decided(&stored, "", NOW), Reuse::Ask(_)));
        assert!(matches!(decided(&stored, "max-stale", NOW), Reuse::Ask(_)));
    }

    /// Section 3.5.
    #[test]
    fn authorized_requests_need_permission() {
        let wanted = ReuseRequest {
            is_authorized: true,
            ..ReuseRequest::default()
        };
        let decided = |stored: &Stored| decide(stored, &wanted, NOW, &POLICY);
        assert_eq!(decided(&stored()), Reuse::Mismatched);
        let public = Stored {
            allows_authorized: true,
            ..stored()
        };
        assert_eq!(decided(&public), Reuse::Fresh);
    }
}
