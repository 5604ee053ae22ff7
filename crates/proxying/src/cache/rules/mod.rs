//! The rules of HTTP caches: RFC 9111 for a shared cache, with RFC 5861, RFC 9211 and RFC 9213.
//!
//! Read RFC 9111 first; each rule names its section. Nothing here does I/O or reads a clock: heads
//! and times go in, verdicts and texts come out. What a request and an entry are, and who does
//! what a verdict says, is the business of `semantics`, one level up.
//!
//! ```text
//! storing       may an answer be stored, and until when is it what?  ─▶ Stored
//!   directives    Cache-Control          (section 5.2)
//!   targeted      CDN-Cache-Control      (RFC 9213)
//!   dates         Date, Expires          (RFC 9110, section 5.6.7)
//! reuse         may a request have what is stored?                   ─▶ Reuse
//! conditions    is it 304 for this client?         (section 4.3.2)
//! update        what a 304 changes in an entry     (sections 3.2, 4.3.4)
//! partial       what a part has, and what makes it whole (sections 3.3, 3.4)
//! invalidation  what an unsafe request makes void  (section 4.4)
//! selecting     which fields of requests are alike (section 4.1)
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

/// What RFC 9111 leaves to a cache, as `*_cache_semantics` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Percent of the time since Last-Modified for which an answer is fresh that says nothing of
    /// that; 0 for none.
    pub heuristic_percent: u32,
    /// Seconds beyond its freshness for which an answer stands in for one that could not be had,
    /// where it does not say it itself.
    pub stale_if_error: u32,
    /// Seconds beyond its freshness for which an answer is given while it is fetched anew, where
    /// it does not say it itself.
    pub stale_while_revalidate: u32,
    /// Milliseconds after an entry has been fetched or confirmed in which no client can have that
    /// done again.
    pub reload_interval: u64,
}

/// A field's name and its value.
pub(super) type FieldLine<'a> = (&'a [u8], &'a [u8]);

/// The largest number of seconds that is told apart from larger ones, as section 1.2.2 has it.
pub(super) const SECONDS_MAX: u64 = 1 << 31;

/// Digits and nothing else (section 1.2.2). Larger numbers than [`SECONDS_MAX`] are that.
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
