//! A segment of a stream's output. The engines send it.

use std::sync::Arc;

use bytes::Bytes;

use crate::file::File;
use crate::kernel_tls::SealingKeys;
use crate::pipe::Pipe;

/// A segment of a stream's output.
#[derive(Clone, Debug)]
pub enum Segment {
    /// Bytes in memory.
    Bytes(Bytes),
    /// A range of a file, sent without copying it through this process. If the file is shorter than
    /// the range, the stream fails with `UnexpectedEof`.
    File {
        /// The file that the segment reads from.
        file: File,
        /// Offset of the range in the file.
        offset: u64,
        /// Length of the range in bytes.
        length: u64,
    },
    /// Bytes in a pipe, from [`Stream::splice`](super::Stream::splice), sent without copying them
    /// through this process.
    Piped {
        /// The pipe, with the segment's bytes at its front.
        pipe: Arc<Pipe>,
        /// The number of the segment's bytes.
        length: u64,
    },
    /// Keys for kernel TLS: the kernel encrypts everything after this segment. The stream fails if
    /// the kernel rejects the keys.
    Keys(Arc<SealingKeys>),
    /// A TLS record with a content type of its own, which the kernel encrypts.
    Record {
        /// The content type (RFC 8446 section 5.1).
        content_type: u8,
        /// The record's content.
        bytes: Bytes,
    },
}

impl Segment {
    /// The number of bytes that the segment sends.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Segment::Bytes(bytes) => bytes.len() as u64,
            Segment::File { length, .. } | Segment::Piped { length, .. } => *length,
            Segment::Keys(_) => 0,
            Segment::Record { bytes, .. } => bytes.len() as u64,
        }
    }

    /// Whether the segment has no effect.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && !matches!(self, Segment::Keys(_))
    }

    /// Removes `count` bytes from the front.
    pub(crate) fn advance(&mut self, count: u64) {
        match self {
            Segment::Bytes(bytes) | Segment::Record { bytes, .. } => {
                let count = usize::try_from(count)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                bytes::Buf::advance(bytes, count);
            }
            Segment::File { offset, length, .. } => {
                *offset += count;
                *length = length.saturating_sub(count);
            }
            Segment::Piped { length, .. } => *length = length.saturating_sub(count),
            Segment::Keys(_) => {}
        }
    }
}

impl From<Bytes> for Segment {
    fn from(bytes: Bytes) -> Segment {
        Segment::Bytes(bytes)
    }
}
