//! `Cache-Status`: RFC 9211, what a cache has done with a request.

use std::io::Write;

/// The name that this cache goes by (section 2).
const NAME: &str = "Tidegate";

/// Why the origin was asked (section 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forwarded {
    /// The configuration has the cache passed by.
    Bypass,
    /// The method is none that is answered from a cache.
    Method,
    /// Nothing lies under the request's key.
    UriMiss,
    /// What lies there is of another variant.
    VaryMiss,
    /// What lies there is for other requests.
    Miss,
    /// The client wants it newer.
    Request,
    /// What lies there is fresh no more.
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
pub(crate) enum Handled {
    /// From the cache, for so many seconds more (section 2.5); fewer than none where it is fresh
    /// no more.
    Hit { left: i64 },
    /// With what another request was fetching (section 2.7).
    Collapsed { why: Forwarded },
    /// By the origin, with this status (sections 2.3 and 2.6).
    Forwarded {
        why: Forwarded,
        status: u16,
        is_stored: bool,
    },
}

/// The value of the field.
pub(crate) fn value(handled: Handled) -> Vec<u8> {
    let mut out = NAME.as_bytes().to_vec();
    let written = match handled {
        Handled::Hit { left } => write!(out, "; hit; ttl={left}"),
        Handled::Collapsed { why } => write!(out, "; fwd={}; collapsed", why.name()),
        Handled::Forwarded {
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
            (Handled::Hit { left: 376 }, "Tidegate; hit; ttl=376"),
            (Handled::Hit { left: -412 }, "Tidegate; hit; ttl=-412"),
            (
                Handled::Forwarded {
                    why: Forwarded::Stale,
                    status: 304,
                    is_stored: false,
                },
                "Tidegate; fwd=stale; fwd-status=304",
            ),
            (
                Handled::Forwarded {
                    why: Forwarded::UriMiss,
                    status: 200,
                    is_stored: true,
                },
                "Tidegate; fwd=uri-miss; fwd-status=200; stored",
            ),
            (
                Handled::Collapsed {
                    why: Forwarded::UriMiss,
                },
                "Tidegate; fwd=uri-miss; collapsed",
            ),
        ] {
            assert_eq!(value(handled), expected.as_bytes());
        }
    }
}
