//! What is known of a request that asks the cache, and of the entry that it asks for.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Request;
use proto::header::KnownField;
use store::disk::{DiskStore, EntryId, Filler, OpenEntry};

use super::files::Seen;
use super::keeping::Keeping;
use super::kept_part::Beginning;
use super::numbers::CacheOutcome;
use super::rules::Policy;
use super::rules::reuse::Wanted;
use super::rules::status::Forwarded;
use super::sharing::Credentials;
use super::status::CacheStatus;
use super::validators::Validators;
use crate::answer::AnswerHead;
use crate::attempts::Attempts;
use crate::family::Causes;
use crate::rewriting::Rewrite;
use crate::settings::Passing;

/// What a scope says of answers, whether they come from an upstream or from the cache.
#[derive(Clone, Copy)]
pub struct AnswerRules<'a> {
    /// What the scope says of passing requests on.
    pub passing: &'a Arc<Passing>,
    /// What changes in the fields of an answer.
    pub rewriting: &'a dyn Rewrite,
}

impl<'a> AnswerRules<'a> {
    /// The rules of a scope that rewrites no fields.
    pub fn plain(passing: &'a Arc<Passing>) -> AnswerRules<'a> {
        let rewriting = &crate::rewriting::Unchanged;
        AnswerRules { passing, rewriting }
    }
}

/// What is known of a request whose answer may be stored.
pub struct CacheLookup {
    pub(super) store: Arc<DiskStore>,
    pub(super) key: Bytes,
    /// What the keys of all slices have in common; empty where that is the key.
    pub(super) group: Bytes,
    /// The id of the key.
    pub(super) main: EntryId,
    /// The id of the request's variant, where another one lies under that of the key.
    pub(super) variant: Option<EntryId>,
    pub(super) outcome: CacheOutcome,
    pub(super) may_store: bool,
    /// The credentials that the client sends.
    pub(super) credentials: Credentials,
    /// A response without explicit freshness may be stored.
    pub(super) is_plain: bool,
    /// The file that the answer may be, before the upstream was asked.
    pub(super) file: Option<Seen>,
    /// No client waits for the answer.
    pub(super) is_update: bool,
    pub(super) revalidates: bool,
    /// The client asks with HEAD, the upstream is asked with GET.
    pub is_head_converted: bool,
    pub(super) is_of_application: bool,
    /// What is fresh no more.
    pub(super) stale: Option<OpenEntry>,
    /// By what the upstream knows that again.
    pub validators: Validators,
    /// When it may be given all the same.
    pub(super) use_stale: Causes,
    /// What the id of the entry carries.
    pub(super) marker: Option<Marker>,
    /// The right to fetch it, which no other request has meanwhile.
    pub(super) filler: Option<Box<Filler>>,
    /// The head of the answer, and what it says of storing it.
    pub(super) answer: Option<(AnswerHead, Keeping)>,
    /// What RFC 9111 leaves open, where its rules hold.
    pub(super) policy: Option<Policy>,
    /// What the client says of what it would have.
    pub(super) wanted: Wanted,
    /// When the upstream is asked, at the earliest, in milliseconds since 1970.
    pub(super) requested: i64,
    pub(super) forwarded: Forwarded,
    /// The request may change what lies under its key.
    pub(super) invalidates: bool,
    /// The client's range is passed on, and what comes of it kept.
    pub(super) keeps_part: bool,
    /// What is kept of the beginning of the answer.
    pub(super) beginning: Option<Box<Beginning>>,
    /// The rest of that has come.
    pub(super) is_completed: bool,
}

impl CacheLookup {
    /// What `$upstream_cache_status` says of a request that asks the upstream.
    pub fn note_status(&self, request: &mut Request) {
        note_status(request, self.outcome.status);
        if !self.validators.is_empty() {
            let seen = Attempts::enter(request);
            seen.borrow_mut().validators = self.validators.clone();
        }
    }

    /// Whether the answer may be stored, as far as is known before it comes.
    pub fn may_store(&self) -> bool {
        self.may_store
    }

    /// The id under which the answer to this request lies.
    pub(super) fn entry(&self) -> EntryId {
        self.variant.unwrap_or(self.main)
    }

    /// Whether the body that an application gives in answer to HEAD is read, to be stored.
    pub fn reads_body_of_head(&self) -> bool {
        self.may_store && self.is_of_application
    }

    /// Whether this field of the client's stays here: with it the upstream might not give all of
    /// its answer.
    pub fn withholds(&self, field: KnownField) -> bool {
        let is_of_part = matches!(field, KnownField::Range | KnownField::IfRange);
        self.may_store
            && !(self.keeps_part && is_of_part)
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

/// What an id carries for a while ([`DiskStore::mark`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    /// An error that is stored without a body.
    Error(u16),
    /// The upstream has failed so, and the entry has stood in for its answer.
    Failing(Causes),
    /// An answer was not to be stored.
    Uncacheable,
}

impl Marker {
    const FAILING: u16 = 1 << 15;
    const UNCACHEABLE: u16 = 0;

    pub(super) fn of(number: u16) -> Marker {
        if number & Marker::FAILING != 0 {
            return Marker::Failing(Causes::from_bits(number & !Marker::FAILING));
        }
        match number {
            Marker::UNCACHEABLE => Marker::Uncacheable,
            status => Marker::Error(status),
        }
    }

    pub(super) fn number(self) -> u16 {
        match self {
            Marker::Uncacheable => Marker::UNCACHEABLE,
            Marker::Error(status) => status,
            Marker::Failing(cause) => Marker::FAILING | cause.bits(),
        }
    }
}

/// What `$upstream_cache_status` says of a request.
pub(super) fn note_status(request: &mut Request, status: CacheStatus) {
    Attempts::enter(request).borrow_mut().cache_status = Some(status);
}
