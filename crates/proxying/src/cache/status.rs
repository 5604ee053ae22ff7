//! The results of cache lookups.

/// The result of a cache lookup, `$upstream_cache_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheStatus {
    /// `MISS`: there was no entry.
    Miss,
    /// `BYPASS`: the upstream was asked because of `*_cache_bypass`.
    Bypass,
    /// `EXPIRED`: the entry was stale, and the upstream was asked.
    Expired,
    /// `STALE`: a stale entry was used, since the upstream failed.
    Stale,
    /// `UPDATING`: a stale entry was used while another request asks the upstream.
    Updating,
    /// `REVALIDATED`: the upstream confirmed that the stale entry is still current.
    Revalidated,
    /// `HIT`: a fresh entry was used.
    Hit,
}

impl CacheStatus {
    /// All results in the order of their discriminants.
    pub const ALL: [CacheStatus; 7] = [
        CacheStatus::Miss,
        CacheStatus::Bypass,
        CacheStatus::Expired,
        CacheStatus::Stale,
        CacheStatus::Updating,
        CacheStatus::Revalidated,
        CacheStatus::Hit,
    ];

    /// The value of `$upstream_cache_status`.
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
