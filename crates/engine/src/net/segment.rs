//! A piece of what a stream sends. What is done with it is an engine's business.

use std::sync::Arc;

use bytes::Bytes;

use crate::file::File;
use crate::kernel_tls::SealingKeys;

/// A piece of what a stream sends.
#[derive(Clone, Debug)]
pub enum Segment {
    /// Bytes that lie in memory.
    Bytes(Bytes),
    /// A range of a file, sent without copying it through this process. If the file turns out
    /// shorter, the stream fails with `UnexpectedEof`.
    File {
        /// The file that the segment reads from.
        file: File,
        /// Where the range begins.
        offset: u64,
        /// How long it is.
        length: u64,
    },
    /// Keys: the kernel seals everything behind them (TLS). The stream fails where it does not take
    /// them.
    Keys(Arc<SealingKeys>),
    /// A record of TLS with a type of its own, which the kernel seals.
    Record {
        /// Its type (RFC 8446 section 5.1).
        content_type: u8,
        /// What is in it.
        bytes: Bytes,
    },
}

impl Segment {
    /// How many bytes it will send.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Segment::Bytes(bytes) => bytes.len() as u64,
            Segment::File { length, .. } => *length,
            Segment::Keys(_) => 0,
            Segment::Record { bytes, .. } => bytes.len() as u64,
        }
    }

    /// Whether it does nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && !matches!(self, Segment::Keys(_))
    }

    /// Drops `count` bytes from its front.
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
            Segment::Keys(_) => {}
        }
    }
}

impl From<Bytes> for Segment {
    fn from(bytes: Bytes) -> Segment {
        Segment::Bytes(bytes)
    }
}
