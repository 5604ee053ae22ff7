//! Parts of responses, by the rules of RFC 9111 (`rules::partial`). The response to a range that
//! `*_cache_max_range_offset` has passed on to the upstream is stored as a part. Requests for
//! ranges within the part are served from it. If the part is the beginning of the response, it can
//! be completed.
//!
//! ```text
//! request with a Range ─▶ the part contains it ─▶ 206 from the cache
//!                      └▶ passed on ─▶ 206 ─▶ stored in place of an earlier part
//! request without one ─▶ the part is the beginning ─▶ the rest is requested ─▶ 200, stored whole
//! ```
//!
//! An entry, or a variant of an entry, has at most one part, with its own id.

use std::fmt;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::exchange::abort::Abort;
use http::request::{Request, Step};
use http::response::Field;
use http::response::piece::Piece;
use http::response::source::{BodyError, DeferredLog, Source, SourceEvent};
use proto::header::KnownField;
use proto::method::Method;
use store::disk::OpenEntry;

use super::lookup::{AnswerRules, CacheLookup};
use super::partial_entry::{StoredPrefix, part_id, part_of};
use super::rules::partial::{ClientRange, Part, are_of_one};
use super::rules::reuse::Reuse;
use super::rules::storing::ExcludedFields;
use super::rules::{FieldLine, update};
use super::status::CacheStatus;
use super::{hit, stored_head};
use crate::answer::AnswerHead;
use crate::finish;
use crate::settings::PassSettings;

/// The single range that a client requests, if the request has no condition.
fn wanted(request: &Request) -> Option<ClientRange> {
    let conditions = [
        KnownField::IfRange,
        KnownField::IfNoneMatch,
        KnownField::IfModifiedSince,
        KnownField::IfMatch,
        KnownField::IfUnmodifiedSince,
    ];
    let is_bare = conditions
        .iter()
        .all(|known| request.header(*known).is_none());
    let range = request.header(KnownField::Range).filter(|_| is_bare)?;
    ClientRange::parse(range)
}

impl CacheLookup {
    /// Responds with a stored part if it contains the requested range. Otherwise the response to
    /// the range may be stored.
    pub(super) async fn serve_part(
        &mut self,
        request: &mut Request,
        rules: &AnswerRules<'_>,
    ) -> Option<Step> {
        if request.method != Method::Get || self.stale.is_some() || !self.may_store {
            self.may_store = false;
            return None;
        }
        self.stores_partial = true;
        let wanted = wanted(request)?;
        let (opened, _, part) = self.open_part(request).await?;
        let cut = part.cut(wanted)?;
        let step = hit::serve_cut(request, rules, &self.store, opened, part, cut).await?;
        self.outcome.status = CacheStatus::Hit;
        Some(step)
    }

    /// Looks for the stored beginning of a response that the client requests as a whole.
    pub(super) async fn find_beginning(&mut self, request: &Request) {
        let is_plain = request.method == Method::Get && request.header(KnownField::Range).is_none();
        if !is_plain || self.stale.is_some() || !self.may_store {
            return;
        }
        let Some((opened, head, part)) = self.open_part(request).await else {
            return;
        };
        let etag = head.value(KnownField::ETag, &head.bytes);
        if let Some(etag) = etag.filter(|etag| are_of_one(Some(etag), Some(etag)))
            && part.first == 0
        {
            let etag = Bytes::copy_from_slice(etag);
            let beginning = StoredPrefix { opened, part, etag };
            self.validators.rest = Some(beginning.conditions());
            self.beginning = Some(Box::new(beginning));
        }
    }

    /// Returns the fresh stored part that matches this request, if there is one.
    async fn open_part(&self, request: &Request) -> Option<(OpenEntry, AnswerHead, Part)> {
        let id = part_id(&self.entry());
        if !self.store.has(&id) {
            return None;
        }
        let opened = self.open_id(request, id).await?;
        let vary = &opened.head.vary;
        let is_its = vary.is_empty() || opened.head.variant == Some(self.variant_of(request, vary));
        if !is_its || self.judge_entry(&opened.head) != Reuse::Fresh {
            return None;
        }
        let head = stored_head::parse(&opened.head)?;
        let part = part_of(&head)?;
        let opened = hit::checked(request, &self.store, opened).await?;
        Some((opened, head, part))
    }

    /// Refuses a response that is neither the requested rest nor the whole: the client, which has
    /// not requested a part, gets an error, and the next request fetches the whole.
    pub(super) fn refuse_rest(&mut self, request: &mut Request, head: &AnswerHead) -> Option<Step> {
        let beginning = self.beginning.as_ref()?;
        let is_rest = part_of(head).is_some_and(|rest| {
            let tag = head.value(KnownField::ETag, &head.bytes);
            beginning.part.is_completed_by(rest) && are_of_one(Some(&beginning.etag), tag)
        });
        if is_rest || !matches!(head.status(), 206 | 416) {
            return None;
        }
        let (store, id) = (self.store.clone(), part_id(&self.entry()));
        engine::background(move || {
            let _ = store.purge(&id);
        });
        logs::error!(
            request,
            Error,
            "upstream sent no rest of what is kept of an answer"
        );
        Some(finish(request, 502))
    }

    /// Turns a response with the rest into one of the whole. Returns the head of the whole as it
    /// will be stored.
    pub(super) fn complete(
        &self,
        request: &mut Request,
        passing: &PassSettings,
        rest: &AnswerHead,
    ) -> Option<AnswerHead> {
        let beginning = self.beginning.as_ref().filter(|_| rest.status() == 206)?;
        let stored = stored_head::parse(&beginning.opened.head)?;
        let before: Vec<FieldLine<'_>> = stored.pairs().collect();
        let news: Vec<FieldLine<'_>> = rest.pairs().collect();
        let (fields, _) = update::merged(&before, &news, &ExcludedFields::of(rest.pairs()));
        let total = beginning.part.total.to_string();
        let of_part: [&[u8]; 2] = [b"content-range", b"content-length"];
        let fields = fields.into_iter().filter(|(name, _)| {
            let mut names = of_part.iter();
            !names.any(|other| other.eq_ignore_ascii_case(name))
        });
        let mut text = b"HTTP/1.1 200 OK\r\n".to_vec();
        let length: FieldLine<'_> = (b"Content-Length", total.as_bytes());
        for (name, value) in fields.chain([length]) {
            text.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
        }
        text.extend_from_slice(b"\r\n");
        let whole = stored_head::parse_text(&text.into())?;
        let response = &mut request.response;
        response.status = 200;
        response.status_text = None;
        response.remove_content_range();
        response.content_length = Some(beginning.part.total);
        for field in whole.owned_fields() {
            let is_new = rest
                .pairs()
                .any(|(name, _)| name.eq_ignore_ascii_case(&field.name));
            let is_length = field.name.eq_ignore_ascii_case(b"content-length");
            if !is_new && !is_length && !passing.hidden.contains_name(&field.name) {
                response.fields.push(field);
            }
        }
        Some(whole)
    }

    /// Returns the body of the whole: the stored beginning, followed by the body of the rest.
    pub(super) fn joined(&mut self, rest: Box<dyn Source>) -> Box<dyn Source> {
        let Some(beginning) = self.beginning.take().filter(|_| self.is_completed) else {
            return rest;
        };
        let StoredPrefix { opened, part, .. } = *beginning;
        Box::new(PrefixedBody {
            first: hit::stretch(opened, 0, part.length()),
            rest,
        })
    }
}

/// The stored beginning of a body, followed by the rest while it is received.
struct PrefixedBody {
    /// The stored beginning, until it is passed on.
    first: Option<Piece>,
    rest: Box<dyn Source>,
}

impl fmt::Debug for PrefixedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Joined")
    }
}

impl Source for PrefixedBody {
    fn next(&mut self) -> SourceEvent {
        match self.first.take() {
            Some(piece) => SourceEvent::Piece(piece),
            None => self.rest.next(),
        }
    }

    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self.first {
            Some(_) => Poll::Ready(()),
            None => self.rest.poll_more(context),
        }
    }

    fn poll_prefetch(&mut self, context: &mut Context<'_>) -> Poll<Result<DeferredLog, BodyError>> {
        self.rest.poll_prefetch(context)
    }

    fn queued_max(&self) -> Option<usize> {
        self.rest.queued_max()
    }

    fn is_whole(&self) -> bool {
        self.first.is_none() && self.rest.is_whole()
    }

    fn outlives_client(&self) -> bool {
        self.rest.outlives_client()
    }

    fn trailers(&mut self) -> Vec<Field> {
        self.rest.trailers()
    }

    fn give_up(&mut self, left: &Abort) -> DeferredLog {
        self.rest.give_up(left)
    }

    fn beginning(&self) -> &'static str {
        self.rest.beginning()
    }
}
