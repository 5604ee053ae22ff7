//! `Cache-Status` (RFC 9211): how a cache has handled a request.

use std::io::Write;

/// The name of this cache (section 2).
const NAME: &str = "Tidegate";

/// Why the origin was asked (section 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forwarded {
    /// The configuration bypasses the cache.
    Bypass,
    /// Responses to the method are not cached.
    Method,
    /// There is no entry with the request's key.
    UriMiss,
    /// The stored response is another variant.
    VaryMiss,
    /// The stored response is for other requests.
    Miss,
    /// The client wants a newer response.
    Request,
    /// The stored response is stale.
    Stale,
}

impl Forwarded {
    fn name(self) -> &'static str {
        match self {
            Forwarded::Bypass => "bypass",
            Forwarded::Method => "method",
            Forwarded::UriMiss => "uri-miss",
            Forwarded::VaryMiss => "vary-miss",
            Forwarded::Miss => "miss",
            Forwarded::Request => "request",
            Forwarded::Stale => "stale",
        }
    }
}

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheResult {
    /// From the cache, with this freshness lifetime left in seconds (section 2.5); negative if the
    /// response is stale.
    Hit { left: i64 },
    /// With the response that another request was fetching (section 2.7).
    Collapsed { why: Forwarded },
    /// By the origin, with this status (sections 2.3 and 2.6).
    Forwarded {
        why: Forwarded,
        status: u16,
        is_stored: bool,
    },
}

/// The value of the field.
pub(crate) fn value(handled: CacheResult) -> Vec<u8> {
    let mut out = NAME.as_bytes().to_vec();
    let written = match handled {
        CacheResult::Hit { left } => write!(out, "; hit; ttl={left}"),
        CacheResult::Collapsed { why } => write!(out, "; fwd={}; collapsed", why.name()),
        CacheResult::Forwarded {
            why,
            status,
            is_stored,
        } => {
            let stored = if is_stored { "; stored" } else { "" };
            write!(out, "; fwd={}; fwd-status={status}{stored}", why.name())
        }
    };
    debug_assert!(written.is_ok(), "memory takes what is written");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 4, its examples with our name.
    #[test]
    fn values() {
        for (handled, expected) in [
            (CacheResult::Hit { left: 376 }, "Tidegate; hit; ttl=376"),
            (CacheResult::Hit { left: -412 }, "Tidegate; hit; ttl=-412"),
            (
                CacheResult::Forwarded {
                    why: Forwarded::Stale,
                    status: 304,
                    is_stored: false,
                },
                "Tidegate; fwd=stale; fwd-status=304",
            ),
            (
                CacheResult::Forwarded {
                    why: Forwarded::UriMiss,
                    status: 200,
                    is_stored: true,
                },
                "Tidegate; fwd=uri-miss; fwd-status=200; stored",
            ),
            (
                CacheResult::Collapsed {
                    why: Forwarded::UriMiss,
                },
                "Tidegate; fwd=uri-miss; collapsed",
            ),
        ] {
            assert_eq!(value(handled), expected.as_bytes());
        }
    }
}
