//! `*_cache_revalidate`: asks the upstream by a conditional request whether a stale entry is still
//! current. A 304 makes the entry fresh again.

use bytes::Bytes;
use http::request::{Request, Step};
use proto::date;
use proto::header::KnownField;
use store::disk::{EntryTimes, Head, Miss, OpenEntry, Origin};

use super::clock::{now, wall};
use super::freshness::Freshness;
use super::lookup::{AnswerRules, CacheLookup};
use super::status::CacheStatus;
use super::validators::Validators;
use super::{fill, stored_head};
use crate::answer::AnswerHead;
use crate::settings::PassSettings;

/// Maximum length in bytes of a body with which an entry in memory is updated on the event loop,
/// which copies the body.
const COPIED_AT_ONCE_MAX: u64 = 64 * 1024;

impl Validators {
    /// The validators of an entry. As in nginx, `Last-Modified` is parsed and formatted again,
    /// unless the rules of RFC 9111 apply (`is_rfc`).
    pub(super) fn of(stored: &Head, is_rfc: bool) -> Validators {
        let head = stored_head::parse(stored).filter(|head| matches!(head.status(), 200 | 206));
        let Some(head) = head else {
            return Validators::default();
        };
        let value = |known| {
            let field = head.find(known)?;
            let value = field.value(&head.bytes);
            (!value.is_empty()).then(|| head.bytes.slice_ref(value))
        };
        let last_modified = value(KnownField::LastModified);
        let as_time = |value: Bytes| date::parse_http(&value).map(http_date);
        Validators {
            last_modified: if is_rfc {
                last_modified
            } else {
                last_modified.and_then(as_time)
            },
            etag: value(KnownField::ETag),
            rest: None,
        }
    }
}

fn http_date(time: i64) -> Bytes {
    let mut text = [0; date::HTTP_LENGTH];
    date::format_http(time, &mut text);
    Bytes::copy_from_slice(&text)
}

impl CacheLookup {
    /// Whether the response with this head says that the entry is still current.
    pub(super) fn is_confirmed_by(&self, head: &AnswerHead) -> bool {
        head.status() == 304 && !self.validators.is_empty()
    }

    /// Responds with the entry after a 304. The entry is fresh again, for the time that the 304,
    /// the stored head or the configuration states.
    pub(super) async fn serve_confirmed(
        &mut self,
        request: &mut Request,
        rules: &AnswerRules<'_>,
        head: &AnswerHead,
    ) -> Option<Step> {
        let mut opened = self.stale.take()?;
        if self.policy.is_some() {
            opened = self.confirm(request, rules.passing, head, opened).await?;
        } else if let Some(times) = renewed(rules.passing, head, &opened) {
            if opened.head.origin == Origin::Nginx {
                self.take_over(request, times, &opened);
            } else {
                let length = opened.body.end.saturating_sub(opened.body.start);
                self.refresh(request, times, length).await;
            }
        }
        let stored = stored_head::parse(&opened.head);
        if let (Some(cache), Some(stored)) = (&rules.passing.cache, stored) {
            let length = opened.body.end.saturating_sub(opened.body.start);
            self.note_file(cache, self.entry(), &stored, Some(length));
        }
        // Other requests may fetch the entry now.
        self.filler = None;
        let status = CacheStatus::Revalidated;
        self.serve(request, rules, opened, status).await
    }

    /// Rewrites an entry that nginx has written in our format, with these times: the times in
    /// nginx's format cannot be replaced in place.
    fn take_over(&mut self, request: &mut Request, times: EntryTimes, opened: &OpenEntry) {
        let Some(stored) = stored_head::parse(&opened.head) else {
            return;
        };
        let mut head = opened.head.clone();
        head.times = times;
        head.text = fill::text_of(&stored).into();
        self.rewrite_entry(request, opened, &head);
    }

    /// Replaces the times of the entry; `length` is the length of its body in bytes.
    pub(super) async fn refresh(&self, request: &Request, times: EntryTimes, length: u64) {
        let (store, key) = (self.store.clone(), self.key.clone());
        let id = self.entry();
        let refreshed = if store.is_in_memory() && length <= COPIED_AT_ONCE_MAX {
            store.refresh(&id, &key, &times, now())
        } else {
            engine::blocking(move || store.refresh(&id, &key, &times, now())).await
        };
        match refreshed {
            // If the entry is gone, the next request fetches it.
            Ok(()) | Err(Miss::Gone) => {}
            Err(miss) => {
                logs::error!(request, Crit, "cache entry \"{id}\" not refreshed: {miss}");
            }
        }
    }
}

/// The new times of an entry that the upstream has confirmed with this 304; `None` if the head
/// forbids storing the response.
fn renewed(passing: &PassSettings, head: &AnswerHead, opened: &OpenEntry) -> Option<EntryTimes> {
    let now = wall();
    let said = |head: &AnswerHead| {
        let fields = head.counting();
        let fields = fields.map(|field| (field.known, field.value(&head.bytes)));
        Freshness::of(fields, &passing.ignored, now)
    };
    let mut freshness = said(head);
    if freshness.forbids() {
        return None;
    }
    let stored = stored_head::parse(&opened.head)?;
    if freshness.valid_until.is_none() {
        freshness = said(&stored);
    }
    let cache = passing.cache.as_ref()?;
    let valid = || {
        let valid = cache.valid(stored.status());
        let valid = valid.map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX));
        let seconds = valid.or_else(|| cache.sharing.micro_fresh_again(stored.status()))?;
        Some(now.saturating_add(seconds))
    };
    let until = freshness.valid_until.or_else(valid)?;
    Some(fill::times(&freshness, until))
}
