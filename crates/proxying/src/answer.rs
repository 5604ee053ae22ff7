//! The head of an upstream's response, which the response, the body and `$upstream_*` share.

use std::fmt;
use std::ops::Deref;

use bytes::Bytes;
use engine::Buffer;
use http::response::Field;
use http_client::ReadHead;
use proto::h1;
use proto::h1::response::ResponseHead;
use proto::header::KnownField;

/// A parsed head, possibly incomplete, and its bytes.
#[derive(Clone)]
pub struct AnswerHead {
    head: ReadHead,
    /// The bytes that the head's spans refer to. A short body that was received with the head may
    /// follow: see `AnswerHead::behind`.
    pub bytes: Bytes,
    /// The length of the head in bytes; copied bytes of the body may follow it in `bytes`.
    length: usize,
    /// The address, in the receive buffer, of the bytes behind the head that were copied; see
    /// `behind`.
    copied_from: usize,
}

/// Maximum number of bytes behind a head that are copied to free the receive buffer.
const SHORT_MAX: usize = 2048;

impl AnswerHead {
    /// The head that has been parsed from these bytes.
    pub(super) fn new(head: ReadHead, bytes: Vec<u8>) -> AnswerHead {
        AnswerHead::with_behind(head, bytes, &Buffer::empty())
    }

    /// The head with the bytes that were received behind it. A few bytes are copied behind the
    /// head: the body then needs no memory of its own, and the receive buffer is free for the next
    /// receive.
    pub(super) fn with_behind(head: ReadHead, mut bytes: Vec<u8>, behind: &Buffer) -> AnswerHead {
        let length = bytes.len();
        if behind.len() <= SHORT_MAX {
            bytes.extend_from_slice(behind);
        }
        AnswerHead {
            head,
            bytes: engine::share_bytes(bytes),
            length,
            copied_from: behind.address(),
        }
    }

    /// The copy of a part of the bytes behind the head, if they have been copied.
    pub(super) fn behind(&self, part: &Buffer) -> Option<Bytes> {
        let consumed = part.address().checked_sub(self.copied_from)?;
        let start = self.length.checked_add(consumed)?;
        let end = start.checked_add(part.len())?;
        (end <= self.bytes.len()).then(|| self.bytes.slice(start..end))
    }

    /// The head that has been parsed from shared bytes.
    pub(super) fn shared(head: ReadHead, bytes: Bytes) -> AnswerHead {
        AnswerHead {
            head,
            length: bytes.len(),
            bytes,
            copied_from: 0,
        }
    }

    /// An empty head, for a response without a head.
    pub fn none() -> AnswerHead {
        AnswerHead::new(ReadHead::default(), Vec::new())
    }

    /// The fields that count: all fields, but only the first of a name that a response must not
    /// repeat.
    pub(super) fn counting(&self) -> impl Iterator<Item = h1::Field> {
        let fields = self.fields().iter().copied();
        fields.filter(|field| earlier(self, *field).is_none())
    }

    /// A field's name and value, which share the memory of the head.
    pub(super) fn owned(&self, field: h1::Field) -> Field {
        // The spans of the name and the value are within the head's bytes.
        Field {
            name: self.bytes.slice(field.name.range()),
            value: self.bytes.slice(field.value.range()),
        }
    }

    /// The names and values of the fields that count, sharing the memory of the head.
    pub fn owned_fields(&self) -> impl Iterator<Item = Field> {
        self.counting().map(|field| self.owned(field))
    }

    /// The names and values of the fields that count.
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

/// Returns the first field with the name of `field`, if a response must not repeat that name and
/// `field` is a repetition.
pub(super) fn earlier(head: &ResponseHead, field: h1::Field) -> Option<h1::Field> {
    if !comes_once(field.known) {
        return None;
    }
    head.find(field.known).filter(|first| *first != field)
}

/// Whether a response must not repeat the field: nginx takes the first and ignores the others.
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
