//! What a scope says of its cache.

use std::sync::Arc;
use std::time::Duration;

use http::request::{Request, Text};
use proto::header::KnownField;
use store::disk::DiskStore;

use super::purge_line::Purge;
use super::semantics_line::Semantics;
use super::sharing::Sharing;
use super::zone::CacheZone;
use crate::family::Causes;

pub(crate) type Zone = framework::zone::Zone<CacheZone>;

/// `*_cache` of a scope, where it is on.
pub struct Cache {
    pub(super) choice: Choice,
    /// Nothing where the protocol makes one.
    pub(super) key: Option<Text>,
    /// `$slice_range`, if the key holds it.
    pub(super) slice_range: Option<Text>,
    pub(super) purge: Option<Purge>,
    pub(super) valid: Box<[Valid]>,
    pub(super) methods: Methods,
    pub(super) min_uses: u32,
    pub(super) bypass: Box<[Text]>,
    pub(super) no_cache: Box<[Text]>,
    /// Ranges that begin there or behind are passed on.
    pub(super) max_range_offset: Option<u64>,
    /// When an answer is given that is fresh no more.
    pub(super) use_stale: Causes,
    /// `*_cache_lock`: only one request at a time fetches a missing entry.
    pub(super) lock: Option<FillLock>,
    /// `*_cache_background_update`: a stale entry is used while a background request updates it.
    pub(super) updates_beside: bool,
    /// The upstream is asked whether what is fresh no more is still what it has.
    pub(super) revalidates: bool,
    /// HEAD is asked for as GET.
    pub(super) converts_head: bool,
    pub(super) is_of_applications: bool,
    /// By which rules answers are stored and given.
    pub(super) semantics: Semantics,
    pub(super) sharing: Sharing,
}

/// Which zone a request's answers lie in.
pub(super) enum Choice {
    Fixed(Arc<Zone>),
    /// The one whose name this comes to, of those that lines with this prefix declare.
    Named(Text, &'static str),
}

/// How long answers of a status are fresh; of any where that is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Valid {
    pub(super) status: Option<u16>,
    pub(super) seconds: u64,
}

/// Methods beside GET and HEAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Methods {
    pub(super) post: bool,
}

/// `*_cache_lock` of a scope, where it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FillLock {
    /// How long others wait.
    pub(super) timeout: Duration,
    /// After how long without an answer one more asks, in milliseconds.
    pub(super) age: u64,
    /// How many wait at most.
    pub(super) waiting_max: Option<usize>,
}

/// A cache's zone, and the folder of its answers.
type ZonedStore = (Arc<Zone>, Arc<DiskStore>);

/// Whether one of the values is neither empty nor 0.
pub(super) fn any_holds(texts: &[Text], request: &mut Request) -> bool {
    texts.iter().any(|text| {
        let value = text.evaluate(request);
        !value.is_empty() && *value != b"0"[..]
    })
}

impl Cache {
    /// Whether the client gets the Date of an answer.
    pub fn tells_date(&self) -> bool {
        self.semantics.policy().is_some()
    }

    /// Whether answers to `Authorization` are kept only where they allow it.
    pub fn heeds_authorization(&self) -> bool {
        self.semantics.policy().is_some()
    }

    /// How long an answer with this status is fresh whose head does not say it.
    pub(super) fn valid(&self, status: u16) -> Option<u64> {
        let mut valid = self.valid.iter();
        let found = valid.find(|it| it.status.is_none_or(|code| code == status));
        found.map(|it| it.seconds).filter(|seconds| *seconds > 0)
    }

    /// Where this request's answers lie; the error is the status to answer with.
    pub(super) fn store(&self, request: &mut Request) -> Result<Option<ZonedStore>, u16> {
        let of_zone = |zone: &Arc<Zone>| {
            let store = zone.state().store(zone.settings())?;
            Some((Arc::clone(zone), Arc::clone(store)))
        };
        let (text, prefix) = match &self.choice {
            Choice::Fixed(zone) => return Ok(of_zone(zone)),
            Choice::Named(text, prefix) => (text, *prefix),
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

    /// Whether the answer to a range that the client asks for is to be fetched as it is.
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
