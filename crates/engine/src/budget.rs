//! A task's share of a turn of the loop: how much it may do without waiting before the others have
//! theirs.
//!
//! A peer that always has something to read, or always has room, never makes a task wait: two quick
//! ones would hold all other connections of the thread up for as long as they like. So whatever is
//! ready at once ([`recv`], [`drained`], [`read_at`]) takes a part of the share, and once that is
//! used up it waits for the next turn, ready or not. Loops over these need nothing of their own; a
//! loop that works on bytes in memory calls [`yield_now`].
//!
//! [`recv`]: crate::net::Stream::recv
//! [`drained`]: crate::net::Stream::drained
//! [`read_at`]: crate::file::File::read_at
//! [`yield_now`]: crate::yield_now

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Context, Poll};

use crate::task;

/// Operations that are ready at once, of one task in one turn. With receive buffers of 16 KiB that
/// is half a megabyte, beside which the turn that follows costs little.
pub(crate) const SHARE: u32 = 32;

thread_local! {
    static LEFT: Cell<u32> = const { Cell::new(SHARE) };
}

/// A task is about to be polled.
pub(crate) fn begin() {
    LEFT.set(SHARE);
}

/// Whether the task's share is used up. It is then polled again in the next turn, and the caller
/// returns `Pending`.
#[inline]
pub(crate) fn is_used_up(context: &Context<'_>) -> bool {
    if LEFT.get() > 0 {
        return false;
    }
    task::yield_task(context.waker());
    true
}

/// Something was ready at once.
#[inline]
pub(crate) fn spend() {
    LEFT.set(LEFT.get().saturating_sub(1));
}

/// Takes a part of the share; waits for the next turn where none is left.
pub(crate) async fn take() {
    poll_fn(|context| {
        if is_used_up(context) {
            Poll::Pending
        } else {
            spend();
            Poll::Ready(())
        }
    })
    .await;
}
