//! The first of two futures.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// What the first future to be ready has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first argument was ready.
    First(A),
    /// The second argument was ready.
    Second(B),
}

/// Waits for the first of two futures and drops the other. When both are ready, `first` wins.
///
/// Futures of this crate lose nothing when they are dropped: a receive that was cut short keeps its bytes for the next.
pub async fn either<A: Future, B: Future>(first: A, second: B) -> Either<A::Output, B::Output> {
    let mut first = pin!(first);
    let mut second = pin!(second);
    poll_fn(|context| {
        if let Poll::Ready(output) = first.as_mut().poll(context) {
            return Poll::Ready(Either::First(output));
        }
        second.as_mut().poll(context).map(Either::Second)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};
    use std::task::{Context, Waker};

    #[test]
    fn first_wins_and_a_pending_one_is_passed_over() {
        let mut context = Context::from_waker(Waker::noop());
        let both = pin!(either(ready(1), ready(2)));
        assert_eq!(both.poll(&mut context), Poll::Ready(Either::First(1)));
        let second = pin!(either(pending::<i32>(), ready(2)));
        assert_eq!(second.poll(&mut context), Poll::Ready(Either::Second(2)));
    }
}
