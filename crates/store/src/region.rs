//! Memory for segments, mapped from the system (mmap(2)) instead of taken from the allocator.
//!
//! The allocator has an arena for each of several threads. A segment that one thread frees stays
//! in the arena of the thread that allocated it, is broken up there by smaller allocations, and
//! cannot hold a segment that another thread opens. A process would thus outgrow the limit of its
//! store. Here every piece of a [`Region`] has one size, any thread may claim it, and the pages of
//! a free piece go back to the system.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Number of pieces in a region: one bit each of [`Region::claimed`].
///
/// A mapping for each piece would run into the system's limit of mappings (65,530 by default).
const PIECES: usize = u64::BITS as usize;

/// Maximum size of a page of the system, in bytes: of x86-64, or of any other architecture.
const PAGE_MAX: usize = if cfg!(target_arch = "x86_64") {
    4 * 1024
} else {
    64 * 1024
};

/// The regions that contain the segments of one shard.
pub(crate) struct Regions {
    /// Length of a piece in bytes, a power of two.
    piece: usize,
    /// The mapped regions.
    all: Vec<Arc<Region>>,
}

impl Regions {
    /// Prepares pieces of this length in bytes, a power of two. Nothing is mapped yet.
    pub(crate) fn new(piece: usize) -> Regions {
        let all = Vec::new();
        Regions { piece, all }
    }

    /// Claims a piece, if need be of a new region. The content is arbitrary. `None` if the system
    /// has no memory left.
    pub(crate) fn claim(&mut self) -> Option<Piece> {
        // The first region with a free piece, so that later regions become empty.
        for region in &self.all {
            if let Some(piece) = Region::claim(region, self.piece) {
                return Some(piece);
            }
        }
        let region = Arc::new(Region::map(self.piece * PIECES)?);
        let piece = Region::claim(&region, self.piece);
        self.all.push(region);
        piece
    }

    /// Unmaps regions without a claimed piece.
    pub(crate) fn unmap_empty(&mut self) {
        self.all.retain(|region| Arc::strong_count(region) > 1);
    }
}

/// A mapping of [`PIECES`] pieces. It is unmapped when neither [`Regions`] nor a [`Piece`] refers
/// to it any more.
struct Region {
    start: NonNull<u8>,
    length: usize,
    /// A bit for each piece: whether a [`Piece`] exists for it.
    claimed: AtomicU64,
}

// SAFETY: `start` is the address of a mapping that belongs to the region alone. Bytes of it are
// only reached through a `Piece`, and there is at most one for each part of the mapping.
unsafe impl Send for Region {}
// SAFETY: as above; a shared region only hands out pieces, by an atomic operation on `claimed`.
unsafe impl Sync for Region {}

impl Region {
    fn map(length: usize) -> Option<Region> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the system's choice aliases nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, protection, MapFlags::PRIVATE)
        };
        Some(Region {
            start: NonNull::new(start.ok()?.cast())?,
            length,
            claimed: AtomicU64::new(0),
        })
    }

    /// Claims the first free piece of a region. `length` is a piece's, the same in each call.
    fn claim(region: &Arc<Region>, length: usize) -> Option<Piece> {
        let claimed = region.claimed.load(Ordering::Relaxed);
        let number = claimed.trailing_ones();
        if number as usize >= PIECES {
            return None;
        }
        // Synchronizes with the release of the bit by the piece's last owner.
        let before = region.claimed.fetch_or(1 << number, Ordering::Acquire);
        if before >> number & 1 != 0 {
            return None; // another thread was faster; the caller takes another region
        }
        // SAFETY: the mapping has `PIECES` pieces of this length, and `number` is below that.
        let start = unsafe { region.start.add(number as usize * length) };
        let region = Some(Arc::clone(region));
        Some(Piece {
            start,
            length,
            number,
            region,
        })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: every piece refers to the region, so none is left that points into the mapping.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// A claimed piece of a [`Region`], or no memory at all ([`Piece::default`]).
///
/// When it is dropped, its pages go back to the system and other segments may claim it. Pieces
/// smaller than [`PAGE_MAX`] keep their pages until the region is unmapped.
pub(crate) struct Piece {
    start: NonNull<u8>,
    length: usize,
    number: u32,
    region: Option<Arc<Region>>,
}

// SAFETY: a piece is the only owner of its bytes, as a boxed slice is.
unsafe impl Send for Piece {}
// SAFETY: a shared piece only allows reading, as a boxed slice does.
unsafe impl Sync for Piece {}

impl Default for Piece {
    fn default() -> Piece {
        Piece {
            start: NonNull::dangling(),
            length: 0,
            number: 0,
            region: None,
        }
    }
}

impl Deref for Piece {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the piece has `length` bytes, which the system has zeroed or a segment has
        // written; they are mapped as long as `region` lives, and belong to this piece alone.
        // Without a region `length` is 0.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for Piece {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let Some(region) = self.region.take() else {
            return;
        };
        // madvise(2) rounds the length up to whole pages, so it is not called for a part of a page,
        // whose rest belongs to other pieces. Miri does not support madvise(2).
        if self.length.is_multiple_of(PAGE_MAX) && !cfg!(miri) {
            let (start, length) = (self.start.as_ptr().cast(), self.length);
            // SAFETY: the pages are this piece's alone, and nothing reads them any more. They read
            // as zeros for the next owner. A refusal is of no consequence: they are kept then.
            let _ = unsafe { rustix::mm::madvise(start, length, Advice::LinuxDontNeed) };
        }
        let bit = 1 << self.number;
        region.claimed.fetch_and(!bit, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Short under Miri, which needs a minute for a megabyte.
    const PIECE: usize = if cfg!(miri) { 128 } else { 16 * 1024 };

    #[test]
    fn pieces_do_not_overlap_and_are_claimed_again() {
        let mut regions = Regions::new(PIECE);
        let mut pieces: Vec<Piece> = (0..PIECES + 2)
            .map(|number| {
                let mut piece = regions.claim().unwrap();
                piece.fill(number as u8);
                piece
            })
            .collect();
        assert_eq!(regions.all.len(), 2);
        for (number, piece) in pieces.iter().enumerate() {
            assert!(piece.len() == PIECE && piece.iter().all(|byte| *byte == number as u8));
        }
        let freed = pieces.remove(5);
        let address = freed.as_ptr();
        std::thread::spawn(move || drop(freed)).join().unwrap();
        assert_eq!(regions.claim().unwrap().as_ptr(), address);
        pieces.truncate(3);
        regions.unmap_empty();
        assert_eq!(regions.all.len(), 1);
        drop(regions);
        assert!(pieces[2].iter().all(|byte| *byte == 2));
    }

    #[test]
    fn pieces_that_share_a_page_leave_one_another_alone() {
        let mut regions = Regions::new(1024);
        let mut pieces: Vec<Piece> = (0..8).map(|_| regions.claim().unwrap()).collect();
        for piece in &mut pieces {
            piece.fill(7);
        }
        for first_of_page in [4, 0] {
            drop(pieces.remove(first_of_page));
        }
        assert!(
            pieces
                .iter()
                .all(|piece| piece.iter().all(|byte| *byte == 7))
        );
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    #[cfg_attr(miri, ignore = "Miri has neither madvise nor mincore")]
    fn pages_of_a_dropped_piece_go_back_to_the_system() {
        let mut regions = Regions::new(PIECE);
        let mut first = regions.claim().unwrap();
        let mut second = regions.claim().unwrap();
        first.fill(1);
        second.fill(2);
        drop(first);
        let first = regions.claim().unwrap();
        assert!(first.iter().all(|byte| *byte == 0), "the pages are new");
        assert!(second.iter().all(|byte| *byte == 2));
    }
}
