//! Responds with entries of the cache, and with responses that are being stored.

use std::sync::Arc;

use engine::file::File;
use http::request::{Request, Step};
use http::response::BodyIdentity;
use http::response::piece::Piece;
use http::response::source::Body;
use store::disk::{CHECKED_FIRST_MAX, DiskStore, Head, OpenEntry, Reader};

use super::clock::wall;
use super::fill::FollowerBody;
use super::freshness::Freshness;
use super::lookup::{AnswerRules, note_status};
use super::rules::partial::Part;
use super::rules::status::Forwarded;
use super::status::CacheStatus;
use super::{fill, semantics, stored_head};
use crate::response::{self, HeadEffect};
use crate::settings::PassSettings;

/// Responds with an entry; `None` if it turns out to be invalid.
pub(super) async fn serve(
    request: &mut Request,
    rules: &AnswerRules<'_>,
    store: &Arc<DiskStore>,
    mut opened: OpenEntry,
    status: CacheStatus,
) -> Option<Step> {
    let length = opened.body.end.saturating_sub(opened.body.start);
    if opened.is_unchecked() {
        if length <= CHECKED_FIRST_MAX {
            opened = checked(request, store, opened).await?;
        } else {
            verify_in_background(store, &opened);
        }
    }
    if let Some(step) = apply(request, rules, &opened.head, status, None)? {
        return Some(step);
    }
    store.note_given(&opened);
    let version = opened.version();
    request.response.body_identity =
        version.map(|(id, revision)| BodyIdentity::of_entry(store.number(), id.0, revision));
    let body = if length == 0 {
        Body::Empty
    } else if opened.first.len() as u64 == length {
        Body::bytes(opened.first.clone())
    } else {
        let offset = opened.body.start;
        Body::file(File::from(opened.into_file()?), offset, length)
    };
    Some(Step::Respond(body))
}

/// Responds with the range `cut` of a stored part of a response.
pub(super) async fn serve_cut(
    request: &mut Request,
    rules: &AnswerRules<'_>,
    store: &Arc<DiskStore>,
    opened: OpenEntry,
    part: Part,
    cut: Part,
) -> Option<Step> {
    let opened = checked(request, store, opened).await?;
    if let Some(step) = apply(request, rules, &opened.head, CacheStatus::Hit, None)? {
        return Some(step);
    }
    request.response.set_content_range(cut.text());
    request.response.content_length = Some(cut.length());
    let piece = stretch(opened, cut.first - part.first, cut.length())?;
    Some(Step::Respond(Body::Pieces(vec![piece])))
}

/// A range of an entry's body from the offset `skipped`: of its file, or of memory if the entry was
/// read from memory.
pub(super) fn stretch(opened: OpenEntry, skipped: u64, length: u64) -> Option<Piece> {
    if opened.file.is_none() {
        let begin = usize::try_from(skipped).ok()?;
        let end = begin.checked_add(usize::try_from(length).ok()?)?;
        let is_there = end <= opened.first.len();
        return is_there.then(|| Piece::Bytes(opened.first.slice(begin..end)));
    }
    let offset = opened.body.start + skipped;
    Some(Piece::File {
        file: File::from(opened.into_file()?),
        offset,
        length,
    })
}

/// Responds with a response that has been received completely and is still being written to the
/// cache.
pub(super) fn serve_fill(
    request: &mut Request,
    rules: &AnswerRules<'_>,
    head: &Head,
    reader: Reader,
) -> Option<Step> {
    if let Some(step) = apply(request, rules, head, CacheStatus::Hit, None)? {
        return Some(step);
    }
    Some(Step::Respond(Body::Pieces(fill::pieces_of(reader)?)))
}

/// Responds with a response that is still being received.
pub(super) fn serve_filling(
    request: &mut Request,
    rules: &AnswerRules<'_>,
    head: &Head,
    reader: Reader,
    why: Forwarded,
) -> Option<Step> {
    if let Some(step) = apply(request, rules, head, CacheStatus::Hit, Some(why))? {
        return Some(step);
    }
    Some(Step::Respond(Body::Source(Box::new(FollowerBody::new(
        reader,
    )))))
}

/// Applies the head of an entry to the client's response. `filling` is why the origin was asked, if
/// the response is still being received; the client may then request only one range. `None` if the
/// head is invalid; `Some(Some(step))` if another response is sent instead.
pub(super) fn apply(
    request: &mut Request,
    rules: &AnswerRules<'_>,
    stored: &Head,
    status: CacheStatus,
    filling: Option<Forwarded>,
) -> Option<Option<Step>> {
    let AnswerRules { passing, rewriting } = *rules;
    let Some(head) = stored_head::parse(stored) else {
        logs::error!(request, Crit, "cache entry contains invalid header");
        return None;
    };
    note_status(request, status);
    response::remember(request, &head);
    for field in head.counting() {
        response::apply_field(request, passing, field.known, field.value(&head.bytes));
    }
    if let HeadEffect::Step(step) = response::apply(request, passing, rewriting, &head) {
        return Some(Some(step));
    }
    let cache = passing.cache.as_ref();
    if cache.is_some_and(|cache| cache.semantics.policy().is_some()) {
        semantics::set_cache_fields(request, stored, status, filling);
        return Some(None);
    }
    let fields = head.counting();
    let fields = fields.map(|field| (field.known, field.value(&head.bytes)));
    let freshness = Freshness::of(fields, &passing.ignored, wall());
    request.response.conditions_evaluated = !freshness.may_store();
    allow_ranges(request, passing, filling.is_some());
    Some(None)
}

/// Returns the entry after verifying its body's checksum; `None` if the body is corrupt.
pub(super) async fn checked(
    request: &Request,
    store: &Arc<DiskStore>,
    mut opened: OpenEntry,
) -> Option<OpenEntry> {
    if !opened.is_unchecked() {
        return Some(opened);
    }
    let store = Arc::clone(store);
    let checked = engine::blocking(move || {
        let checked = opened.check_body(&store);
        checked.map(|()| opened)
    });
    match checked.await {
        Ok(opened) => Some(opened),
        Err(miss) => {
            logs::error!(request, Crit, "body of cache entry: {miss}");
            None
        }
    }
}

/// Verifies the body of an entry in the background; a corrupt entry is removed.
fn verify_in_background(store: &Arc<DiskStore>, opened: &OpenEntry) {
    // Without a free file descriptor the check is left to a later use of the entry.
    let Ok(Some(check)) = opened.later_check(store) else {
        return;
    };
    let store = Arc::clone(store);
    engine::spawn(async move {
        let checked = engine::blocking_long(move || check.run(&store)).await;
        if let Err(miss) = checked {
            logs::event!(Crit, "body of cache entry: {miss}");
        }
    });
}

/// Allows ranges if the upstream does, and removes its `Accept-Ranges`.
pub(super) fn allow_ranges(request: &mut Request, passing: &PassSettings, is_single: bool) {
    let response = &mut request.response;
    if passing.force_ranges {
        response.single_range = is_single;
    } else if response.accept_ranges.take().is_some() {
        response.remove(b"Accept-Ranges");
        response.allow_ranges = true;
        response.single_range = is_single;
    }
}
