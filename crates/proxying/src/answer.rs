//! The head of an upstream's answer, which the response, the body and `$upstream_*` share.

use std::fmt;
use std::ops::Deref;

use bytes::Bytes;
use engine::Buffer;
use http::response::Field;
use http_client::ReadHead;
use proto::h1;
use proto::h1::response::ResponseHead;
use proto::header::KnownField;

/// A head, as far as it has been read, with the bytes that it consists of.
#[derive(Clone)]
pub struct AnswerHead {
    head: ReadHead,
    /// The bytes that the spans of the head point into. A short body that has come with the head
    /// may lie behind it: see `AnswerHead::behind`.
    pub bytes: Bytes,
    /// How many of them are the head's.
    length: usize,
    /// Where in memory that body began when it was copied.
    behind_from: usize,
}

/// Bytes behind a head that are copied at most, in order to free the receive buffer.
const SHORT_MAX: usize = 2048;

impl AnswerHead {
    /// The head that has been read from these bytes.
    pub(super) fn new(head: ReadHead, bytes: Vec<u8>) -> AnswerHead {
        AnswerHead::with_behind(head, bytes, &Buffer::empty())
    }

    /// The head, and the bytes that were received behind it. If those are few they are copied
    /// behind the head: the body then needs no memory of its own, and its buffer is free for the
    /// next receive.
    pub(super) fn with_behind(head: ReadHead, mut bytes: Vec<u8>, behind: &Buffer) -> AnswerHead {
        let length = bytes.len();
        if behind.len() <= SHORT_MAX {
            bytes.extend_from_slice(behind);
        }
        AnswerHead {
            head,
            bytes: engine::share_bytes(bytes),
            length,
            behind_from: behind.address(),
        }
    }

    /// The bytes of this part of what has come behind the head, where they lie beside it.
    pub(super) fn behind(&self, part: &Buffer) -> Option<Bytes> {
        let consumed = part.address().checked_sub(self.behind_from)?;
        let start = self.length.checked_add(consumed)?;
        let end = start.checked_add(part.len())?;
        (end <= self.bytes.len()).then(|| self.bytes.slice(start..end))
    }

    /// The head that has been read from bytes that others share.
    pub(super) fn shared(head: ReadHead, bytes: Bytes) -> AnswerHead {
        AnswerHead {
            head,
            length: bytes.len(),
            bytes,
            behind_from: 0,
        }
    }

    /// The head of an answer that has none.
    pub fn none() -> AnswerHead {
        AnswerHead::new(ReadHead::default(), Vec::new())
    }

    /// The fields that count: of those that come once, the first.
    pub(super) fn counting(&self) -> impl Iterator<Item = h1::Field> {
        let fields = self.fields().iter().copied();
        fields.filter(|field| earlier(self, *field).is_none())
    }

    /// A field's name and value, which share the memory of the head.
    pub(super) fn owned(&self, field: h1::Field) -> Field {
        // Both lie within the head.
        Field {
            name: self.bytes.slice(field.name.range()),
            value: self.bytes.slice(field.value.range()),
        }
    }

    /// The fields that count.
    pub fn owned_fields(&self) -> impl Iterator<Item = Field> {
        self.counting().map(|field| self.owned(field))
    }

    /// Their names and values.
    pub fn pairs(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let fields = self.counting();
        fields.map(|field| (field.name(&self.bytes), field.value(&self.bytes)))
    }
}

impl Deref for AnswerHead {
    type Target = ResponseHead;

    fn deref(&self) -> &ResponseHead {
        &self.head
    }
}

impl fmt::Debug for AnswerHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnswerHead({})", self.bytes.escape_ascii())
    }
}

/// The field of the same name before one of a name that comes once.
pub(super) fn earlier(head: &ResponseHead, field: h1::Field) -> Option<h1::Field> {
    if !comes_once(field.known) {
        return None;
    }
    head.find(field.known).filter(|first| *first != field)
}

/// Fields of which an answer has one: nginx takes the first and ignores others.
fn comes_once(known: KnownField) -> bool {
    matches!(
        known,
        KnownField::ContentType
            | KnownField::Date
            | KnownField::ETag
            | KnownField::Expires
            | KnownField::LastModified
            | KnownField::Location
            | KnownField::Refresh
            | KnownField::Server
            | KnownField::Status
            | KnownField::XAccelExpires
            | KnownField::XAccelLimitRate
            | KnownField::XAccelRedirect
    )
}
