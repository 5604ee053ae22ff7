//! The rules of HTTP caches: RFC 9111 for a shared cache, with RFC 5861, RFC 9211 and RFC 9213.
//!
//! Read RFC 9111 first; each rule names its section. Nothing here does I/O or reads a clock: heads
//! and times are the input, verdicts and texts the output. The module `semantics`, one level up,
//! connects the rules with requests and entries.
//!
//! ```text
//! storing       may a response be stored, how long is it fresh?      ─▶ Stored
//!   directives    Cache-Control          (section 5.2)
//!   targeted      CDN-Cache-Control      (RFC 9213)
//!   dates         Date, Expires          (RFC 9110, section 5.6.7)
//! reuse         may a request use a stored response?                 ─▶ Reuse
//! conditions    does the client get a 304?         (section 4.3.2)
//! update        how a 304 updates an entry         (sections 3.2, 4.3.4)
//! partial       ranges of parts, and completing them (sections 3.3, 3.4)
//! invalidation  targets of an unsafe request       (section 4.4)
//! selecting     which request fields are equivalent (section 4.1)
//! tags          Surrogate-Key, Cache-Tag
//! status        Cache-Status                       (RFC 9211)
//! ```

pub(super) mod conditions;
mod dates;
pub(super) mod directives;
pub(super) mod invalidation;
pub(super) mod partial;
#[cfg(any(test, feature = "testing"))]
pub(super) mod plain;
pub(super) mod reuse;
pub(super) mod selecting;
pub(super) mod status;
pub(super) mod storing;
pub(super) mod tags;
mod targeted;
pub(super) mod update;

/// The choices that RFC 9111 leaves to a cache, as `*_cache_semantics` sets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Heuristic freshness lifetime in percent of the time since Last-Modified, for responses that
    /// state no lifetime; 0 for none.
    pub heuristic_percent: u32,
    /// Seconds for which a stale response may replace a failed one, unless the response states them
    /// itself.
    pub stale_if_error: u32,
    /// Seconds for which a stale response may be used while it is updated, unless the response
    /// states them itself.
    pub stale_while_revalidate: u32,
    /// Milliseconds after an entry was fetched or confirmed in which no client can force another
    /// update.
    pub reload_interval: u64,
}

/// A field's name and value.
pub(super) type FieldLine<'a> = (&'a [u8], &'a [u8]);

/// The maximum of delta-seconds (section 1.2.2); a larger number counts as this one.
pub(super) const SECONDS_MAX: u64 = 1 << 31;

/// Parses a number of digits only (section 1.2.2), limited to [`SECONDS_MAX`].
fn delta_seconds(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let mut seconds = 0_u64;
    for byte in text {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        seconds = (seconds * 10 + u64::from(digit)).min(SECONDS_MAX);
    }
    Some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9111, section 1.2.2.
    #[test]
    fn seconds_are_digits_and_have_an_end() {
        assert_eq!(delta_seconds(b"0"), Some(0));
        assert_eq!(delta_seconds(b"003600"), Some(3600));
        assert_eq!(delta_seconds(b"2147483647"), Some(2_147_483_647));
        assert_eq!(delta_seconds(b"99999999999999999999999"), Some(1 << 31));
        for wrong in ["", "-1", "+1", "1.0", "1a", "a1", " 1", "'1'"] {
            assert_eq!(delta_seconds(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
