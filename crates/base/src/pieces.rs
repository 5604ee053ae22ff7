//! Pieces of a byte stream, charged by the memory that they occupy.
//!
//! A peer that sends one byte per segment must not cost a buffer, an allocator block and a list
//! entry for each byte. So every queue of pieces joins small ones here. Then the total length of
//! the pieces is the memory that they occupy within a factor of two, and a limit of length limits
//! memory.

use bytes::{Bytes, BytesMut};

/// Pieces of up to this many bytes are copied behind the previous piece. Larger ones get an entry
/// of their own.
pub const SMALL_MAX: usize = 1024;

/// Length of a piece, in bytes, at which nothing more is appended, so that the slack of growing
/// blocks stays small.
pub const BLOCK_MAX: usize = 4096;

/// Appends `more` to `last` if `more` is small and both fit into one block. Returns the previous
/// memory of `last` for the caller to drop; empty if `last` has grown in place. `None` if nothing
/// was appended.
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
    // Twice the length, but at most `BLOCK_MAX`: a vector's own growth would exceed that limit.
    let mut own = BytesMut::with_capacity(length.saturating_mul(2).min(BLOCK_MAX));
    own.extend_from_slice(&before);
    own.extend_from_slice(more);
    *last = own.freeze();
    Some(before)
}

/// Converts a vector to `Bytes`, and gives back its unused capacity if that is more than half.
#[must_use]
pub fn fitted(mut bytes: Vec<u8>) -> Bytes {
    if bytes.len() < bytes.capacity() / 2 {
        bytes.shrink_to_fit();
    }
    bytes.into()
}

/// Consecutive pieces of a stream, small ones joined.
#[derive(Clone, Debug, Default)]
pub struct Pieces(Vec<Bytes>);

impl Pieces {
    /// A sequence without any piece.
    #[must_use]
    pub const fn new() -> Pieces {
        Pieces(Vec::new())
    }

    /// Appends a piece. A small one is copied behind the last piece.
    pub fn push(&mut self, piece: Bytes) {
        if let Some(last) = self.0.last_mut()
            && join(last, &piece).is_some()
        {
            return;
        }
        self.0.push(piece);
    }

    /// Removes all pieces and returns them in order.
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
        // A small piece behind a shared one does not change the shared memory.
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
