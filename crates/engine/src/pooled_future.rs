//! Futures in boxes whose memory a thread keeps for the next ones.
//!
//! What is done for a request while it waits lies in a few kilobytes, for as long as the request
//! takes. An allocator that is quick with small blocks is slow with such, and every request that is
//! passed on needs two.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

/// Blocks come in multiples of so many bytes.
const STEP: usize = 512;

/// Smaller ones the allocator has at hand itself.
const KEPT_FROM: usize = 1024;

/// The largest block that is kept is of so many steps.
const STEPS_MAX: usize = 16;

/// How many bytes a thread keeps in all: those of a hundred requests that are under way at once.
const KEPT_BYTES_MAX: usize = 1024 * 1024;

/// How every kept block is aligned.
const ALIGNMENT: usize = 16;

/// A boxed future, like `Pin<Box<dyn Future>>`, whose memory the thread keeps.
pub struct PooledFuture<'a, T> {
    /// Valid and owned; in memory of [`allocate`]. It does not move until it is dropped.
    future: NonNull<dyn Future<Output = T> + 'a>,
    owned: PhantomData<Box<dyn Future<Output = T> + 'a>>,
}

impl<'a, T> PooledFuture<'a, T> {
    /// Puts a future into a box.
    pub fn new<F: Future<Output = T> + 'a>(future: F) -> PooledFuture<'a, T> {
        let place = match size_of::<F>() {
            0 => NonNull::<F>::dangling(),
            _ => allocate(Layout::new::<F>()).cast::<F>(),
        };
        // SAFETY: the memory is nobody else's, and large enough and aligned for an `F`.
        unsafe { place.write(future) };
        PooledFuture {
            future: place,
            owned: PhantomData,
        }
    }
}

impl<T> Future for PooledFuture<'_, T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // SAFETY: the box owns the future, which is valid, and nobody else has a reference to it.
        let future = unsafe { self.get_mut().future.as_mut() };
        // SAFETY: it stays where it is until the box drops it there, however the box moves.
        unsafe { Pin::new_unchecked(future) }.poll(context)
    }
}

impl<T> Drop for PooledFuture<'_, T> {
    fn drop(&mut self) {
        // SAFETY: the future is valid until it is dropped, which is done here and once.
        let layout = unsafe {
            let layout = Layout::for_value(self.future.as_ref());
            self.future.drop_in_place();
            layout
        };
        // SAFETY: it was put into memory of `allocate` with the layout of its type, and is gone
        // from there.
        unsafe { free(self.future.cast(), layout) };
    }
}

/// The block that holds this, if it is one of those that are kept: how many steps it has.
fn steps(layout: Layout) -> Option<usize> {
    let steps = layout.size().div_ceil(STEP);
    let is_kept = layout.size() >= KEPT_FROM && steps <= STEPS_MAX && layout.align() <= ALIGNMENT;
    is_kept.then_some(steps)
}

/// The layouts of blocks, by their number of steps.
const BLOCKS: [Layout; STEPS_MAX + 1] = {
    let mut blocks = [Layout::new::<()>(); STEPS_MAX + 1];
    let mut steps = 1;
    while steps <= STEPS_MAX {
        blocks[steps] = match Layout::from_size_align(steps * STEP, ALIGNMENT) {
            Ok(layout) => layout,
            Err(_) => panic!("the largest block is far from the largest layout"),
        };
        steps += 1;
    }
    blocks
};

/// The layout of a block of so many steps, of which there are at least one and at most
/// [`STEPS_MAX`].
fn block(steps: usize) -> Layout {
    BLOCKS.get(steps).copied().unwrap_or(Layout::new::<()>())
}

/// Blocks that this thread keeps, by their number of steps.
struct BlockPool {
    /// Each is a block of [`block`], and owned.
    blocks: [Vec<NonNull<u8>>; STEPS_MAX + 1],
    bytes: usize,
}

impl BlockPool {
    /// Gives all of them to the allocator.
    fn clear(&mut self) {
        self.bytes = 0;
        for (steps, blocks) in self.blocks.iter_mut().enumerate() {
            for place in blocks.drain(..) {
                // SAFETY: it was allocated with this layout, and nobody uses it.
                unsafe { dealloc(place.as_ptr(), block(steps)) };
            }
        }
    }
}

impl Drop for BlockPool {
    fn drop(&mut self) {
        self.clear();
    }
}

thread_local! {
    static KEPT: RefCell<BlockPool> = const {
        RefCell::new(BlockPool {
            blocks: [const { Vec::new() }; STEPS_MAX + 1],
            bytes: 0,
        })
    };
}

/// Gives what this thread keeps to the allocator.
pub(crate) fn shrink() {
    KEPT.with_borrow_mut(BlockPool::clear);
}

/// Memory for a value of this layout, which is not empty, to be given back with the same.
///
/// As it never unwinds (by its calling convention), no future has to be dropped on the way to its
/// place: the compiler makes it there, and copies no kilobytes.
#[allow(improper_ctypes_definitions)]
extern "C" fn allocate(layout: Layout) -> NonNull<u8> {
    let Some(steps) = steps(layout) else {
        return allocated(layout);
    };
    let kept = KEPT.try_with(|kept| {
        let kept = &mut *kept.borrow_mut();
        let place = kept.blocks.get_mut(steps)?.pop()?;
        kept.bytes -= steps * STEP;
        Some(place)
    });
    match kept {
        Ok(Some(place)) => place,
        // While the thread ends it may keep nothing any more.
        _ => allocated(block(steps)),
    }
}

/// Memory from the allocator; of a layout that is not empty.
fn allocated(layout: Layout) -> NonNull<u8> {
    assert!(layout.size() > 0);
    // SAFETY: the layout is not empty.
    NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
}

/// Gives memory back.
///
/// # Safety
/// It comes from [`allocate`] with the same layout, unless that is empty, and nobody uses it any
/// more.
unsafe fn free(place: NonNull<u8>, layout: Layout) {
    if layout.size() == 0 {
        return;
    }
    let Some(steps) = steps(layout) else {
        // SAFETY: such memory comes from the allocator with this layout.
        return unsafe { dealloc(place.as_ptr(), layout) };
    };
    let kept = KEPT.try_with(|kept| {
        let kept = &mut *kept.borrow_mut();
        let bytes = kept.bytes + steps * STEP;
        let blocks = kept
            .blocks
            .get_mut(steps)
            .filter(|_| bytes <= KEPT_BYTES_MAX);
        let Some(blocks) = blocks else { return false };
        blocks.push(place);
        kept.bytes = bytes;
        true
    });
    if !matches!(kept, Ok(true)) {
        // SAFETY: whether it was kept meanwhile or not, it was allocated as a block of so many
        // steps.
        unsafe { dealloc(place.as_ptr(), block(steps)) };
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::task::Waker;

    use super::*;

    fn poll<T>(future: &mut PooledFuture<'_, T>) -> Poll<T> {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    /// A future of about this size that waits once and gives its last byte.
    async fn of_size<const SIZE: usize>(owner: Rc<()>) -> u8 {
        let bytes = [7_u8; SIZE];
        yield_once().await;
        let _owner = owner;
        bytes.last().copied().unwrap_or(1)
    }

    #[test]
    fn what_is_kept_is_given_back() {
        for _ in 0..2 {
            let owner = Rc::new(());
            drop(PooledFuture::new(of_size::<2000>(owner)));
            assert!(KEPT.with_borrow(|kept| kept.bytes) > 0);
            shrink();
            KEPT.with_borrow(|kept| {
                assert_eq!(kept.bytes, 0);
                assert!(kept.blocks.iter().all(Vec::is_empty));
            });
        }
    }

    async fn yield_once() {
        let mut is_first = true;
        std::future::poll_fn(|_| {
            if std::mem::take(&mut is_first) {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
    }

    fn check<const SIZE: usize>() {
        let owner = Rc::new(());
        for _ in 0..3 {
            let mut all: Vec<_> = (0..100)
                .map(|_| PooledFuture::new(of_size::<SIZE>(Rc::clone(&owner))))
                .collect();
            assert!(all.iter_mut().all(|future| poll(future).is_pending()));
            // Half of them end, the others are dropped as they are.
            for future in all.iter_mut().step_by(2) {
                assert_eq!(poll(future), Poll::Ready(if SIZE == 0 { 1 } else { 7 }));
            }
        }
        assert_eq!(Rc::strong_count(&owner), 1);
    }

    #[test]
    fn futures_of_every_size() {
        check::<0>();
        check::<500>();
        check::<1024>();
        check::<5000>();
        check::<{ STEP * STEPS_MAX }>();
        check::<20_000>();
        KEPT.with_borrow(|kept| {
            let bytes: usize = kept
                .blocks
                .iter()
                .enumerate()
                .map(|(n, b)| n * STEP * b.len())
                .sum();
            assert_eq!(bytes, kept.bytes);
            assert!(bytes > 0 && bytes <= KEPT_BYTES_MAX);
        });
    }

    #[test]
    fn memory_is_used_again() {
        let address = |future: &PooledFuture<'_, u8>| future.future.cast::<u8>();
        let first = PooledFuture::new(of_size::<3000>(Rc::new(())));
        let place = address(&first);
        drop(first);
        let second = PooledFuture::new(of_size::<3000>(Rc::new(())));
        assert_eq!(address(&second), place);
    }

    #[test]
    fn nothing_and_what_is_aligned_have_their_place() {
        #[repr(align(64))]
        struct Aligned([u8; 2000]);
        assert_eq!(
            poll(&mut PooledFuture::new(std::future::ready(()))),
            Poll::Ready(())
        );
        let aligned = std::future::ready(Aligned([3; 2000]));
        let mut aligned = PooledFuture::new(aligned);
        let Poll::Ready(aligned) = poll(&mut aligned) else {
            panic!("it is ready");
        };
        assert_eq!(aligned.0, [3; 2000]);
    }
}
