//! Bytes that are kept, charged by what they occupy.
//!
//! Who sends one byte a segment must not cost a buffer, a block of the allocator and an entry of a
//! list for each: whatever keeps pieces of a stream copies small ones together here. Then what
//! pieces say is what they occupy, give or take a factor of two, and a bound on their length bounds
//! memory.

use bytes::{Bytes, BytesMut};

/// Pieces of up to so many bytes are copied behind the one before. Larger ones are worth an entry
/// of their own.
pub const SMALL_MAX: usize = 1024;

/// Bytes of a piece behind which nothing more is copied: what growing blocks leave behind stays
/// small as well.
pub const BLOCK_MAX: usize = 4096;

/// Copies `more` behind `last`, if it is small and both fit into a block. What `last` was made of
/// comes back then, for the caller to drop; it is empty where `last` has grown in its place.
pub fn join(last: &mut Bytes, more: &[u8]) -> Option<Bytes> {
    let length = last.len() + more.len();
    if more.len() > SMALL_MAX || length > BLOCK_MAX {
        return None;
    }
    let before = match std::mem::take(last).try_into_mut() {
        Ok(mut own) if own.capacity() >= length => {
            own.extend_from_slice(more);
            *last = own.freeze();
            return Some(Bytes::new());
        }
        Ok(own) => own.freeze(),
        Err(shared) => shared,
    };
    // Twice as much, but no more than it may ever hold: a vector's own growth would go beyond that.
    let mut own = BytesMut::with_capacity(length.saturating_mul(2).min(BLOCK_MAX));
    own.extend_from_slice(&before);
    own.extend_from_slice(more);
    *last = own.freeze();
    Some(before)
}

/// A vector as bytes, without the room that it does not use if that is most of it.
#[must_use]
pub fn fitted(mut bytes: Vec<u8>) -> Bytes {
    if bytes.len() < bytes.capacity() / 2 {
        bytes.shrink_to_fit();
    }
    bytes.into()
}

/// Consecutive pieces, small ones together.
#[derive(Clone, Debug, Default)]
pub struct Pieces(Vec<Bytes>);

impl Pieces {
    /// A sequence without any piece.
    #[must_use]
    pub const fn new() -> Pieces {
        Pieces(Vec::new())
    }

    /// Appends a piece; small ones are copied together.
    pub fn push(&mut self, piece: Bytes) {
        if let Some(last) = self.0.last_mut()
            && join(last, &piece).is_some()
        {
            return;
        }
        self.0.push(piece);
    }

    /// Takes them all out.
    pub fn drain(&mut self) -> impl Iterator<Item = Bytes> {
        self.0.drain(..)
    }

    /// Removes all pieces from the sequence.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl std::ops::Deref for Pieces {
    type Target = [Bytes];

    fn deref(&self) -> &[Bytes] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_bytes_come_together() {
        let mut pieces = Pieces::new();
        let all: Vec<u8> = (0..40_000_u32).map(|n| n as u8).collect();
        for byte in &all {
            pieces.push(Bytes::copy_from_slice(&[*byte]));
        }
        assert_eq!(pieces.len(), all.len().div_ceil(BLOCK_MAX));
        assert_eq!(pieces.concat(), all);
    }

    #[test]
    fn large_pieces_stay_what_they_are() {
        let mut pieces = Pieces::new();
        let large = Bytes::from(vec![1; SMALL_MAX + 1]);
        pieces.push(large.clone());
        pieces.push(large.clone());
        assert_eq!(pieces.len(), 2);
        assert_eq!(pieces[1].as_ptr(), large.as_ptr());
        // A small one behind a shared one leaves that to those who share it.
        pieces.push(Bytes::from_static(b"x"));
        assert_eq!(pieces.len(), 2);
        assert_eq!(
            (pieces[1].len(), large.len()),
            (SMALL_MAX + 2, SMALL_MAX + 1)
        );
    }

    #[test]
    fn a_block_is_not_exceeded() {
        let mut last = Bytes::from(vec![0; BLOCK_MAX - 1]);
        assert!(join(&mut last, b"ab").is_none());
        assert!(join(&mut last, b"a").is_some());
        assert!(join(&mut last, b"a").is_none());
        assert_eq!(last.len(), BLOCK_MAX);
        let mut of_a_constant = Bytes::from_static(b"a");
        let before = join(&mut of_a_constant, b"b");
        assert_eq!(before, Some(Bytes::from_static(b"a")));
        assert_eq!(&of_a_constant[..], b"ab");
    }

    #[test]
    fn unused_room_is_given_back() {
        let mut roomy = Vec::with_capacity(32 * 1024);
        roomy.push(1);
        assert_eq!(fitted(roomy).try_into_mut().unwrap().capacity(), 1);
    }
}
