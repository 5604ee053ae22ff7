//! Values that have served, kept by a thread for the memory they hold: the next one of their kind
//! finds it. After a busy time they go.

use std::cell::{Cell, RefCell};

use bytes::Bytes;

use crate::memory::on_rest;

/// Pieces of memory for bytes that a thread keeps, and how large each may be.
const BYTES_MAX: usize = 1024;
const EACH_BYTES_MAX: usize = 4096;

thread_local! {
    static BYTES: Spares<Vec<u8>, BYTES_MAX> = const { Spares::new(|| BYTES.with(Spares::clear)) };
}

/// Memory for bytes that are soon of no more use, such as a head on its way, with room for `usual`
/// bytes at least. What lives long has memory of its own: a spare piece may be much larger than
/// what is put there.
#[must_use]
pub fn spare_bytes(usual: usize) -> Vec<u8> {
    let mut bytes = BYTES.with(Spares::take).unwrap_or_default();
    bytes.reserve(usual);
    bytes
}

/// Gives such memory back.
pub fn keep_bytes(mut bytes: Vec<u8>) {
    if (1..=EACH_BYTES_MAX).contains(&bytes.capacity()) {
        bytes.clear();
        // A thread that ends keeps nothing.
        let _ = BYTES.try_with(|spares| spares.keep(bytes));
    }
}

/// Bytes to be shared, whose memory is given back by the thread that drops the last of them.
#[must_use]
pub fn share_bytes(bytes: Vec<u8>) -> Bytes {
    struct Shared(Vec<u8>);
    impl AsRef<[u8]> for Shared {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Shared {
        fn drop(&mut self) {
            keep_bytes(std::mem::take(&mut self.0));
        }
    }
    Bytes::from_owner(Shared(bytes))
}

/// Spare values of a kind, at most `MAX` of them; for a `thread_local!`. How much memory each may
/// hold is for the caller to say, who empties it before.
pub struct Spares<T, const MAX: usize> {
    kept: RefCell<Vec<T>>,
    clear: fn(),
    /// The thread knows it.
    is_known: Cell<bool>,
}

impl<T, const MAX: usize> Spares<T, MAX> {
    /// None. `clear` calls [`Spares::clear`] of this thread's.
    #[must_use]
    pub const fn new(clear: fn()) -> Spares<T, MAX> {
        Spares {
            kept: RefCell::new(Vec::new()),
            clear,
            is_known: Cell::new(false),
        }
    }

    /// The one that was kept last, if there is one.
    #[must_use]
    pub fn take(&self) -> Option<T> {
        self.kept.borrow_mut().pop()
    }

    /// Keeps one, if there is room; else it is dropped.
    pub fn keep(&self, value: T) {
        if !self.is_known.replace(true) {
            on_rest(self.clear);
        }
        let mut kept = self.kept.borrow_mut();
        if kept.len() < MAX {
            kept.push(value);
        }
    }

    /// How many are kept.
    #[must_use]
    pub fn count(&self) -> usize {
        self.kept.borrow().len()
    }

    /// Lets go of all.
    pub fn clear(&self) {
        drop(self.kept.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;

    thread_local! {
        static SPARES: Spares<Vec<u8>, 2> = const { Spares::new(clear) };
    }

    fn clear() {
        SPARES.with(Spares::clear);
    }

    #[test]
    fn no_more_are_kept_than_there_is_room_for() {
        SPARES.with(|spares| {
            assert!(spares.take().is_none());
            for capacity in [8, 16, 32] {
                spares.keep(Vec::with_capacity(capacity));
            }
            assert_eq!(spares.count(), 2);
            assert_eq!(spares.take().map(|kept| kept.capacity()), Some(16));
            assert_eq!(spares.take().map(|kept| kept.capacity()), Some(8));
            assert!(spares.take().is_none());
        });
    }

    #[test]
    fn bytes_leave_their_memory_behind() {
        let mut bytes = spare_bytes(100);
        assert!(bytes.capacity() >= 100);
        bytes.extend_from_slice(b"secret");
        let place = bytes.as_ptr();
        let shared = share_bytes(bytes);
        let part = shared.slice(1..3);
        drop(shared);
        assert_eq!(part, "ec");
        drop(part);
        let again = spare_bytes(1);
        assert!(again.is_empty());
        assert_eq!(again.as_ptr(), place);
        keep_bytes(Vec::with_capacity(EACH_BYTES_MAX + 1));
        assert_eq!(BYTES.with(Spares::count), 0);
    }

    #[test]
    fn after_a_busy_time_none_is_left() {
        SPARES.with(|spares| spares.keep(vec![1]));
        memory::rest();
        assert_eq!(SPARES.with(Spares::count), 1);
        memory::rest_soon(memory::Allocator::NotTold);
        memory::rest();
        assert_eq!(SPARES.with(Spares::count), 0);
    }
}
