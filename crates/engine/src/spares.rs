//! Values that a thread keeps after use, so that the next value of the same kind reuses their
//! memory. They are freed after a busy time.

use std::cell::{Cell, RefCell};

use bytes::Bytes;

use crate::memory::on_idle;

/// Number of byte buffers that a thread keeps, and the largest capacity of each, in bytes.
const BYTES_MAX: usize = 1024;
const EACH_BYTES_MAX: usize = 4096;

thread_local! {
    static BYTES: Spares<Vec<u8>, BYTES_MAX> = const { Spares::new(|| BYTES.with(Spares::clear)) };
}

/// A byte buffer for short-lived data, such as a head being written, with a capacity of at least
/// `usual` bytes. Long-lived data needs memory of its own, since a spare buffer may be much larger
/// than its content.
#[must_use]
pub fn spare_bytes(usual: usize) -> Vec<u8> {
    let mut bytes = BYTES.with(Spares::take).unwrap_or_default();
    bytes.reserve(usual);
    bytes
}

/// Returns a buffer of [`spare_bytes`] to the thread's spares.
pub fn recycle_bytes(mut bytes: Vec<u8>) {
    if (1..=EACH_BYTES_MAX).contains(&bytes.capacity()) {
        bytes.clear();
        // A thread that is ending keeps nothing.
        let _ = BYTES.try_with(|spares| spares.keep(bytes));
    }
}

/// Shares a buffer as `Bytes`. The thread that drops the last reference keeps the buffer as a
/// spare.
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
            recycle_bytes(std::mem::take(&mut self.0));
        }
    }
    Bytes::from_owner(Shared(bytes))
}

/// Spare values of one type, at most `MAX` of them, for a `thread_local!`. The caller empties each
/// value and limits the memory that it holds.
pub struct Spares<T, const MAX: usize> {
    kept: RefCell<Vec<T>>,
    /// The callback for [`on_idle`], which empties this set.
    clear: fn(),
    /// Whether [`on_idle`] has been called on this thread.
    is_known: Cell<bool>,
}

impl<T, const MAX: usize> Spares<T, MAX> {
    /// An empty set. `clear` must call [`Spares::clear`] on the thread's instance.
    #[must_use]
    pub const fn new(clear: fn()) -> Spares<T, MAX> {
        Spares {
            kept: RefCell::new(Vec::new()),
            clear,
            is_known: Cell::new(false),
        }
    }

    /// Removes and returns the value that was kept last, if there is one.
    #[must_use]
    pub fn take(&self) -> Option<T> {
        self.kept.borrow_mut().pop()
    }

    /// Keeps a value, or drops it if there are `MAX` already.
    pub fn keep(&self, value: T) {
        if !self.is_known.replace(true) {
            on_idle(self.clear);
        }
        let mut kept = self.kept.borrow_mut();
        if kept.len() < MAX {
            kept.push(value);
        }
    }

    /// The number of kept values.
    #[must_use]
    pub fn count(&self) -> usize {
        self.kept.borrow().len()
    }

    /// Drops all values.
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
        recycle_bytes(Vec::with_capacity(EACH_BYTES_MAX + 1));
        assert_eq!(BYTES.with(Spares::count), 0);
    }

    #[test]
    fn after_a_busy_time_none_is_left() {
        SPARES.with(|spares| spares.keep(vec![1]));
        memory::rest();
        assert_eq!(SPARES.with(Spares::count), 1);
        memory::note_idle(memory::Allocator::NotTold);
        memory::rest();
        assert_eq!(SPARES.with(Spares::count), 0);
    }
}
