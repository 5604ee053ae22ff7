//! Boxed futures whose memory is pooled per thread.
//!
//! The state of a waiting request takes a few kilobytes for as long as the request lasts.
//! Allocators are fast with small blocks and slow with these, and every proxied request needs two
//! of them.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

/// Block sizes are multiples of this many bytes.
const STEP: usize = 512;

/// Minimum size of a pooled block, in bytes. The allocator is fast with smaller ones.
const KEPT_FROM: usize = 1024;

/// The size of the largest pooled block, in steps.
const STEPS_MAX: usize = 16;

/// Maximum total size of the blocks that one thread pools, in bytes: enough for about a hundred
/// concurrent requests.
const KEPT_BYTES_MAX: usize = 1024 * 1024;

/// Alignment of every pooled block.
const ALIGNMENT: usize = 16;

/// A boxed future, like `Pin<Box<dyn Future>>`, in memory of the thread's pool.
pub struct PooledFuture<'a, T> {
    /// Valid and owned, in memory from [`allocate`]. The future does not move until it is dropped.
    future: NonNull<dyn Future<Output = T> + 'a>,
    owned: PhantomData<Box<dyn Future<Output = T> + 'a>>,
}

impl<'a, T> PooledFuture<'a, T> {
    /// Boxes a future.
    pub fn new<F: Future<Output = T> + 'a>(future: F) -> PooledFuture<'a, T> {
        let place = match size_of::<F>() {
            0 => NonNull::<F>::dangling(),
            _ => allocate(Layout::new::<F>()).cast::<F>(),
        };
        // SAFETY: the memory is unused, large enough and aligned for an `F`.
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
        // SAFETY: the box owns the future, which is valid, and no other reference to it exists.
        let future = unsafe { self.get_mut().future.as_mut() };
        // SAFETY: the future stays in place until the box drops it there, even if the box moves.
        unsafe { Pin::new_unchecked(future) }.poll(context)
    }
}

impl<T> Drop for PooledFuture<'_, T> {
    fn drop(&mut self) {
        // SAFETY: the future is valid until it is dropped, here and only once.
        let layout = unsafe {
            let layout = Layout::for_value(self.future.as_ref());
            self.future.drop_in_place();
            layout
        };
        // SAFETY: the future was stored in memory from `allocate` with its own layout, and has been
        // dropped.
        unsafe { free(self.future.cast(), layout) };
    }
}

/// The size, in steps, of the pooled block for this layout; `None` if such blocks are not pooled.
fn steps(layout: Layout) -> Option<usize> {
    let steps = layout.size().div_ceil(STEP);
    let is_kept = layout.size() >= KEPT_FROM && steps <= STEPS_MAX && layout.align() <= ALIGNMENT;
    is_kept.then_some(steps)
}

/// The layouts of pooled blocks, by their number of steps.
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

/// The layout of a block of `steps` steps, from 1 to [`STEPS_MAX`].
fn block(steps: usize) -> Layout {
    BLOCKS.get(steps).copied().unwrap_or(Layout::new::<()>())
}

/// The pooled blocks of this thread, by their number of steps.
struct BlockPool {
    /// Each pointer owns a block with the layout [`block`].
    blocks: [Vec<NonNull<u8>>; STEPS_MAX + 1],
    bytes: usize,
}

impl BlockPool {
    /// Returns all pooled blocks to the allocator.
    fn clear(&mut self) {
        self.bytes = 0;
        for (steps, blocks) in self.blocks.iter_mut().enumerate() {
            for place in blocks.drain(..) {
                // SAFETY: the block was allocated with this layout, and is unused.
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

/// Returns the thread's pooled blocks to the allocator.
pub(crate) fn shrink() {
    KEPT.with_borrow_mut(BlockPool::clear);
}

/// Allocates memory for a value of this layout, which must not be empty. Free it with the same
/// layout.
///
/// The C calling convention never unwinds, so the compiler needs no cleanup for the future here: it
/// builds the future in place, instead of copying kilobytes.
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
        // While the thread ends, the pool may be gone.
        _ => allocated(block(steps)),
    }
}

/// Allocates memory of a layout that is not empty.
fn allocated(layout: Layout) -> NonNull<u8> {
    assert!(layout.size() > 0);
    // SAFETY: the layout is not empty.
    NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
}

/// Frees memory from [`allocate`].
///
/// # Safety
/// The memory comes from [`allocate`] with the same layout, unless that is empty, and is no longer
/// used.
unsafe fn free(place: NonNull<u8>, layout: Layout) {
    if layout.size() == 0 {
        return;
    }
    let Some(steps) = steps(layout) else {
        // SAFETY: memory of such a layout comes from the allocator with the same layout.
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
        // SAFETY: pooled in between or not, the memory was allocated as a block of this many steps.
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

    /// A future of about `SIZE` bytes that waits once and returns its last byte.
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
            // Half of the futures complete; the others are dropped while they wait.
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
