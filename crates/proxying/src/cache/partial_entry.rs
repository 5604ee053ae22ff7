//! Stored parts of responses: the id of a part, and its range of the whole.

use bytes::Bytes;
use proto::header::KnownField;
use store::disk::{EntryId, OpenEntry};

use super::rules::partial::Part;
use crate::answer::AnswerHead;

/// The stored beginning of a body whose rest is requested from the upstream.
#[derive(Debug)]
pub(super) struct StoredPrefix {
    /// The entry with the beginning.
    pub(super) opened: OpenEntry,
    /// The range of the beginning.
    pub(super) part: Part,
    /// The ETag that the rest must have, too.
    pub(super) etag: Bytes,
}

impl StoredPrefix {
    /// The fields that request the rest, or the whole if the representation has changed.
    pub(super) fn conditions(&self) -> [(&'static [u8], Bytes); 2] {
        let range = format!("bytes={}-", self.part.end);
        [(b"Range", range.into()), (b"If-Range", self.etag.clone())]
    }
}

/// The id of the part that belongs to the entry with this id.
pub(super) fn part_id(id: &EntryId) -> EntryId {
    EntryId::of(&[&id.0, b"part"])
}

/// The range of a response, if its body can be stored as a part: its length must be that of the
/// range.
pub(super) fn part_of(head: &AnswerHead) -> Option<Part> {
    let part = Part::parse(head.value(KnownField::ContentRange, &head.bytes)?)?;
    let is_sound = head.status() == 206 && head.content_length() == Some(part.length());
    is_sound.then_some(part)
}
