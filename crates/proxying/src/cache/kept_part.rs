//! A part of an answer that is kept: under which id, and what of the whole it is.

use bytes::Bytes;
use proto::header::KnownField;
use store::disk::{EntryId, OpenEntry};

use super::rules::partial::Part;
use crate::answer::AnswerHead;

/// The beginning of a body, whose rest is asked for.
#[derive(Debug)]
pub(super) struct Beginning {
    pub(super) opened: OpenEntry,
    pub(super) part: Part,
    pub(super) etag: Bytes,
}

impl Beginning {
    /// The fields by which the rest is asked for: all of it if it is of the same whole no more.
    pub(super) fn conditions(&self) -> [(&'static [u8], Bytes); 2] {
        let range = format!("bytes={}-", self.part.end);
        [(b"Range", range.into()), (b"If-Range", self.etag.clone())]
    }
}

/// The id of the part of what lies under this one.
pub(super) fn part_id(id: &EntryId) -> EntryId {
    EntryId::of(&[&id.0, b"part"])
}

/// Which part an answer has, if it is one that can be kept: its body is as long as it says.
pub(super) fn part_of(head: &AnswerHead) -> Option<Part> {
    let part = Part::parse(head.value(KnownField::ContentRange, &head.bytes)?)?;
    let is_sound = head.status() == 206 && head.content_length() == Some(part.length());
    is_sound.then_some(part)
}
