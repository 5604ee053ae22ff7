//! The cache lookup of a request: its key, its entry, and whether its response may be stored.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Request;
use proto::header::KnownField;
use store::disk::{DiskStore, EntryId, Filler, OpenEntry};

use super::files::Seen;
use super::keeping::StoredTimes;
use super::numbers::CacheOutcome;
use super::partial_entry::StoredPrefix;
use super::rules::Policy;
use super::rules::reuse::ReuseRequest;
use super::rules::status::Forwarded;
use super::sharing::Credentials;
use super::status::CacheStatus;
use super::validators::Validators;
use crate::answer::AnswerHead;
use crate::attempts::Attempts;
use crate::family::Causes;
use crate::rewriting::Rewrite;
use crate::settings::PassSettings;

/// The settings of a scope for responses, from an upstream or from the cache.
#[derive(Clone, Copy)]
pub struct AnswerRules<'a> {
    /// The `*_pass` settings of the scope.
    pub passing: &'a Arc<PassSettings>,
    /// The rewriting of header fields.
    pub rewriting: &'a dyn Rewrite,
}

impl<'a> AnswerRules<'a> {
    /// The rules of a scope that rewrites no fields.
    pub fn plain(passing: &'a Arc<PassSettings>) -> AnswerRules<'a> {
        let rewriting = &crate::rewriting::Unchanged;
        AnswerRules { passing, rewriting }
    }
}

/// The cache lookup of a request.
pub struct CacheLookup {
    pub(super) store: Arc<DiskStore>,
    pub(super) key: Bytes,
    /// The group that all slices share; empty if the key has no slice range.
    pub(super) group: Bytes,
    /// The id of the key.
    pub(super) main: EntryId,
    /// The id of the request's `Vary` variant, if another variant has the id of the key.
    pub(super) variant: Option<EntryId>,
    /// The result of the lookup, which is counted when the lookup is dropped.
    pub(super) outcome: CacheOutcome,
    /// Whether the response may be stored, as far as is known.
    pub(super) may_store: bool,
    /// The credentials that the client sends.
    pub(super) credentials: Credentials,
    /// A response that states no lifetime may be stored for this request.
    pub(super) is_plain: bool,
    /// The file that the response may be, as checked before the upstream is asked.
    pub(super) file: Option<Seen>,
    /// A background update: no client waits for the response.
    pub(super) is_update: bool,
    /// Stale entries are revalidated by conditional requests.
    pub(super) revalidates: bool,
    /// The client asks with HEAD, the upstream is asked with GET.
    pub is_head_converted: bool,
    /// The upstream is an application server (FastCGI and similar protocols).
    pub(super) is_of_application: bool,
    /// The stale entry.
    pub(super) stale: Option<OpenEntry>,
    /// The validators for revalidating the stale entry.
    pub validators: Validators,
    /// The causes for which the stale entry may be used.
    pub(super) use_stale: Causes,
    /// The marker under the entry's id.
    pub(super) marker: Option<Marker>,
    /// The claim on fetching the entry.
    pub(super) filler: Option<Box<Filler>>,
    /// The head of the response, and the decision to store it.
    pub(super) answer: Option<(AnswerHead, StoredTimes)>,
    /// The cache policy, if the rules of RFC 9111 apply.
    pub(super) policy: Option<Policy>,
    /// The client's cache directives.
    pub(super) wanted: ReuseRequest,
    /// A lower bound of the time at which the upstream is asked, in milliseconds since 1970.
    pub(super) requested: i64,
    /// Why the upstream is asked, for `Cache-Status`.
    pub(super) forwarded: Forwarded,
    /// The request's method may change the resource, so its entry must be invalidated.
    pub(super) invalidates: bool,
    /// The client's range is passed on to the upstream, and the partial response is stored.
    pub(super) stores_partial: bool,
    /// The stored beginning of the response.
    pub(super) beginning: Option<Box<StoredPrefix>>,
    /// The rest of the response has been received.
    pub(super) is_completed: bool,
}

impl CacheLookup {
    /// Sets `$upstream_cache_status` of a request that asks the upstream, and the cache that counts
    /// its bytes: the attempts have begun anew since the lookup.
    pub fn note_status(&self, request: &mut Request) {
        note_status(request, self.outcome.status);
        Attempts::enter(request).borrow_mut().cache = Some(Arc::clone(self.outcome.zone()));
        if !self.validators.is_empty() {
            let seen = Attempts::enter(request);
            seen.borrow_mut().validators = self.validators.clone();
        }
    }

    /// Whether the response may be stored, as far as is known before it has been received.
    pub fn may_store(&self) -> bool {
        self.may_store
    }

    /// The id of the request's entry.
    pub(super) fn entry(&self) -> EntryId {
        self.variant.unwrap_or(self.main)
    }

    /// Whether the body that an application sends in response to HEAD is read and stored.
    pub fn reads_body_of_head(&self) -> bool {
        self.may_store && self.is_of_application
    }

    /// Whether this header field of the client is withheld, since with it the upstream might not
    /// send the complete response.
    pub fn withholds(&self, field: KnownField) -> bool {
        let is_of_part = matches!(field, KnownField::Range | KnownField::IfRange);
        self.may_store
            && !(self.stores_partial && is_of_part)
            && matches!(
                field,
                KnownField::IfModifiedSince
                    | KnownField::IfUnmodifiedSince
                    | KnownField::IfNoneMatch
                    | KnownField::IfMatch
                    | KnownField::IfRange
                    | KnownField::Range
            )
    }
}

/// A marker on an id, which expires ([`DiskStore::mark`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    /// An error that is stored without a body.
    Error(u16),
    /// The upstream has failed for this cause, and the stale entry was used.
    Failing(Causes),
    /// A response was not cacheable.
    Uncacheable,
}

impl Marker {
    const FAILING: u16 = 1 << 15;
    const UNCACHEABLE: u16 = 0;

    /// The marker that is stored as this number.
    pub(super) fn of(number: u16) -> Marker {
        if number & Marker::FAILING != 0 {
            return Marker::Failing(Causes::from_bits(number & !Marker::FAILING));
        }
        match number {
            Marker::UNCACHEABLE => Marker::Uncacheable,
            status => Marker::Error(status),
        }
    }

    /// The number as which the marker is stored.
    pub(super) fn number(self) -> u16 {
        match self {
            Marker::Uncacheable => Marker::UNCACHEABLE,
            Marker::Error(status) => status,
            Marker::Failing(cause) => Marker::FAILING | cause.bits(),
        }
    }
}

/// Sets `$upstream_cache_status` of a request.
pub(super) fn note_status(request: &mut Request, status: CacheStatus) {
    Attempts::enter(request).borrow_mut().cache_status = Some(status);
}
