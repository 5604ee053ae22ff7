//! Updates the entry that a 304 confirms, by the rules of RFC 9111: fields of the 304 replace
//! stored fields (`rules::update`).
//!
//! If only fields about time have changed, the entry's times are replaced in place. Otherwise, or
//! if nginx has written the entry, the entry is written again in the background, with its body.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use engine::file::File;
use http::request::Request;
use proto::header::KnownField;
use store::disk::{Claim, EntryTimes, Head, NewHead, OpenEntry, Origin};

use super::clock::now;
use super::keeping::StoredTimes;
use super::lookup::CacheLookup;
use super::rules::FieldLine;
use super::rules::storing::ExcludedFields;
use super::rules::update::{self, Change};
use super::semantics;
use super::{fill, hit, partial_entry, stored_head};
use crate::answer::AnswerHead;
use crate::settings::PassSettings;

impl CacheLookup {
    /// Returns the updated entry; `None` if the entry is unusable.
    pub(super) async fn confirm(
        &mut self,
        request: &mut Request,
        passing: &Arc<PassSettings>,
        head: &AnswerHead,
        mut opened: OpenEntry,
    ) -> Option<OpenEntry> {
        let stored = stored_head::parse(&opened.head)?;
        let tag = |head: &'_ AnswerHead| {
            let value = head.value(KnownField::ETag, &head.bytes);
            value.map(<[u8]>::to_vec)
        };
        if !update::confirms_entry(tag(&stored).as_deref(), tag(head).as_deref()) {
            // The origin has another response by now, which the next request fetches.
            self.drop_entry();
            return Some(opened);
        }
        let before: Vec<FieldLine<'_>> = stored.pairs().collect();
        let news: Vec<FieldLine<'_>> = head.pairs().collect();
        let withheld = ExcludedFields::of(head.pairs());
        let (mut fields, change) = update::merged(&before, &news, &withheld);
        if head.find(KnownField::Date).is_none() {
            // A 304 without a Date counts as sent when it was received (RFC 9110, section 6.6.1).
            fields.retain(|(name, _)| !name.eq_ignore_ascii_case(b"date"));
        }
        let status = stored.status();
        let cache = passing.cache.as_ref();
        let micro = cache.and_then(|cache| cache.sharing.micro_fresh_again(status));
        let keeping = self.judge_fields(passing, status, &fields, micro);
        let Some(StoredTimes::Rfc(kept, vary)) = keeping else {
            // The updated entry must not be stored any more; this request still uses it.
            self.drop_entry();
            return Some(opened);
        };
        let times = semantics::times_of(&kept);
        if change == Change::Times
            && opened.head.origin == Origin::Own
            && let Some(times) = with_date(times, head)
        {
            opened.head.times = times;
            let length = opened.body.end.saturating_sub(opened.body.start);
            self.refresh(request, times, length).await;
            return Some(opened);
        }
        let text = semantics::text_of_fields(&stored, fields.iter().copied(), &withheld);
        let vary = Bytes::from(vary);
        opened.head.times = times;
        opened.head.text = text.into();
        opened.head.variant = (!vary.is_empty()).then(|| self.variant_of(request, &vary));
        opened.head.vary = vary;
        // The rewritten body gets a checksum of its own, so the stored one is verified first.
        let opened = hit::checked(request, &self.store, opened).await?;
        self.rewrite_entry(request, &opened, &opened.head);
        Some(opened)
    }

    /// Writes the entry again with its current head, in our own format.
    pub(super) fn rewrite_entry(
        &mut self,
        request: &mut Request,
        opened: &OpenEntry,
        entry: &Head,
    ) {
        let body = match opened.file.as_ref().map(OwnedFd::try_clone) {
            None => fill::StoredBody::Memory(opened.first.clone()),
            Some(Ok(file)) => fill::StoredBody::File(File::from(file), opened.body.clone()),
            // The file could not be reopened for want of a file descriptor.
            Some(Err(_)) => return self.drop_entry(),
        };
        let filler = self.filler.take();
        let claim = || match self.store.claim(&self.entry(), u64::MAX, now()) {
            Claim::Won(filler) => Some(filler),
            // Another request is fetching the entry.
            Claim::Taken(_) => None,
        };
        let Some(mut filler) = filler.or_else(claim) else {
            return;
        };
        let tags = match self.policy {
            Some(_) => stored_head::parse_text(&entry.text).map(|head| semantics::tags_of(&head)),
            None => None,
        };
        let new = NewHead {
            key: self.key.clone(),
            group: self.group.clone(),
            tags: tags.unwrap_or_default(),
            vary: entry.vary.clone(),
            variant: entry.variant,
            times: entry.times,
            text: entry.text.clone(),
            body_length: Some(opened.body.end - opened.body.start),
        };
        if filler.begin(self.entry(), new).is_err() {
            logs::error!(
                request,
                Error,
                "head of the answer is too large to be stored"
            );
            return self.drop_entry();
        }
        fill::copy(request, self.outcome.zone(), body, filler);
    }

    /// Removes the entry of this request, in the background.
    fn drop_entry(&self) {
        let (store, id) = (Arc::clone(&self.store), self.entry());
        engine::background(move || {
            // If the entry cannot be removed, the next request confirms it again.
            let _ = store.purge(&id);
            let _ = store.purge(&partial_entry::part_id(&id));
        });
    }
}

/// Adds the Date of a 304 to the times; `None` if the 304 has no Date, or one that the times cannot
/// express.
fn with_date(times: EntryTimes, head: &AnswerHead) -> Option<EntryTimes> {
    semantics::with_date(times, head.value(KnownField::Date, &head.bytes)?)
}
