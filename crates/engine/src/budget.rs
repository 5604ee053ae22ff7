//! A task's budget of operations that complete without waiting, per turn of the loop, so that other
//! tasks are polled in time.
//!
//! A peer that always has data ready, or always has room, never makes a task wait: two fast peers
//! could stall all other connections of the thread. So each operation that may complete at once
//! ([`recv`], [`drained`], [`read_at`]) spends a part of the budget; once the budget is spent, the
//! operation waits for the next turn, ready or not. Loops over these operations need nothing else;
//! a loop over bytes in memory calls [`yield_now`].
//!
//! [`recv`]: crate::net::Stream::recv
//! [`drained`]: crate::net::Stream::drained
//! [`read_at`]: crate::file::File::read_at
//! [`yield_now`]: crate::yield_now

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Context, Poll};

use crate::task;

/// Operations of one task that may complete at once in one turn. With receive buffers of 16 KiB
/// this is 512 KiB, so the cost of the next turn is small in comparison.
pub(crate) const SHARE: u32 = 32;

thread_local! {
    /// Operations that the current task may still complete in this turn.
    static LEFT: Cell<u32> = const { Cell::new(SHARE) };
}

/// Resets the budget; called before each poll of a task.
pub(crate) fn begin() {
    LEFT.set(SHARE);
}

/// Whether the task's budget is spent. The task is then polled again in the next turn, and the
/// caller returns `Pending`.
#[inline]
pub(crate) fn is_used_up(context: &Context<'_>) -> bool {
    if LEFT.get() > 0 {
        return false;
    }
    task::yield_task(context.waker());
    true
}

/// Spends one operation, which completed at once.
#[inline]
pub(crate) fn spend() {
    LEFT.set(LEFT.get().saturating_sub(1));
}

/// Spends one operation; waits for the next turn if the budget is spent.
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
