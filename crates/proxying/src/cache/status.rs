//! The results of cache lookups.

/// The result of a cache lookup, `$upstream_cache_status`.
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
