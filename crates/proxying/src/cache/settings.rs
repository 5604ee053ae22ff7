//! The cache settings of a scope.

use std::sync::Arc;
use std::time::Duration;

use http::request::{Request, Text};
use proto::header::KnownField;
use store::disk::DiskStore;

use super::purge_line::Purge;
use super::semantics_line::Semantics;
use super::sharing::SharingSettings;
use super::zone::CacheZone;
use crate::family::Causes;

pub(crate) type Zone = framework::zone::Zone<CacheZone>;

/// The settings of a scope in which `*_cache` is on.
pub struct Cache {
    pub(super) choice: ZoneChoice,
    /// The key; `None` for the default key of the protocol.
    pub(super) key: Option<Text>,
    /// `$slice_range`, if the key contains it.
    pub(super) slice_range: Option<Text>,
    pub(super) purge: Option<Purge>,
    pub(super) valid: Box<[Valid]>,
    pub(super) methods: Methods,
    pub(super) min_uses: u32,
    pub(super) bypass: Box<[Text]>,
    pub(super) no_cache: Box<[Text]>,
    /// Ranges that begin at this offset or later are passed on.
    pub(super) max_range_offset: Option<u64>,
    /// When a stale response may be used.
    pub(super) use_stale: Causes,
    /// `*_cache_lock`: only one request at a time fetches a missing entry.
    pub(super) lock: Option<FillLock>,
    /// `*_cache_background_update`: a stale entry is used while a background request updates it.
    pub(super) updates_in_background: bool,
    /// Stale entries are revalidated by conditional requests.
    pub(super) revalidates: bool,
    /// HEAD is sent to the upstream as GET.
    pub(super) converts_head: bool,
    /// The upstreams are application servers (FastCGI and similar protocols).
    pub(super) is_of_applications: bool,
    /// The rules by which responses are stored and reused.
    pub(super) semantics: Semantics,
    pub(super) sharing: SharingSettings,
}

/// How the zone of a request's response is chosen.
pub(super) enum ZoneChoice {
    Fixed(Arc<Zone>),
    /// The declared zone whose name is the value of this text, with the prefix of the module.
    Named(Text, &'static str),
}

/// A `*_cache_valid` line: the freshness lifetime of responses with this status; any status if
/// `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Valid {
    pub(super) status: Option<u16>,
    pub(super) seconds: u64,
}

/// Cacheable methods besides GET and HEAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Methods {
    pub(super) post: bool,
}

/// `*_cache_lock` and related directives, in a scope in which the lock is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FillLock {
    /// How long other requests wait.
    pub(super) timeout: Duration,
    /// The time in milliseconds after which another request is sent to the upstream, if the first
    /// has no response by then.
    pub(super) age: u64,
    /// The maximum number of waiting requests.
    pub(super) waiting_max: Option<usize>,
}

/// The zone of a cache, and its store.
type ZonedStore = (Arc<Zone>, Arc<DiskStore>);

/// Whether the value of one of the texts is neither empty nor `0`.
pub(super) fn any_holds(texts: &[Text], request: &mut Request) -> bool {
    texts.iter().any(|text| {
        let value = text.evaluate(request);
        !value.is_empty() && *value != b"0"[..]
    })
}

impl Cache {
    /// Whether the client gets the Date that is stored with a response.
    pub fn passes_date(&self) -> bool {
        self.semantics.policy().is_some()
    }

    /// Whether responses to requests with `Authorization` are only stored if they allow it.
    pub fn restricts_authorized(&self) -> bool {
        self.semantics.policy().is_some()
    }

    /// The freshness lifetime in seconds that `*_cache_valid` gives a response with this status.
    pub(super) fn valid(&self, status: u16) -> Option<u64> {
        let mut valid = self.valid.iter();
        let found = valid.find(|it| it.status.is_none_or(|code| code == status));
        found.map(|it| it.seconds).filter(|seconds| *seconds > 0)
    }

    /// The zone and store of this request's responses; the error is the status of the response.
    pub(super) fn store(&self, request: &mut Request) -> Result<Option<ZonedStore>, u16> {
        let of_zone = |zone: &Arc<Zone>| {
            let store = zone.state().store(zone.settings())?;
            Some((Arc::clone(zone), Arc::clone(store)))
        };
        let (text, prefix) = match &self.choice {
            ZoneChoice::Fixed(zone) => return Ok(of_zone(zone)),
            ZoneChoice::Named(text, prefix) => (text, *prefix),
        };
        let name = text.evaluate(request);
        if name.is_empty() || &*name == b"off" {
            return Ok(None);
        }
        let zones = &request.local.generation.zones;
        let known = std::str::from_utf8(&name).ok();
        let zone = known.and_then(|name| zones.find::<CacheZone>(name));
        match zone.filter(|zone| zone.settings().prefix == prefix) {
            Some(zone) => Ok(of_zone(&zone)),
            None => {
                let name = logs::Printable(&name);
                logs::error!(request, Error, "cache \"{name}\" not found");
                Err(500)
            }
        }
    }

    /// Whether a requested range is passed on to the upstream.
    pub(super) fn passes_range(&self, request: &Request) -> bool {
        let (Some(max), Some(range)) = (self.max_range_offset, request.header(KnownField::Range))
        else {
            return false;
        };
        if max == 0 {
            return true;
        }
        let Some((unit, range)) = range.split_at_checked(6) else {
            return false;
        };
        if range.is_empty() || !unit.eq_ignore_ascii_case(b"bytes=") {
            return false;
        }
        let range = range.trim_ascii_start();
        if range.first() == Some(&b'-') {
            return true;
        }
        let digits = range.split(|byte| !byte.is_ascii_digit()).next();
        let digits = std::str::from_utf8(digits.unwrap_or_default()).unwrap_or_default();
        digits.parse::<u64>().unwrap_or(u64::MAX) >= max
    }
}
