//! The first of two futures, or both.

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

/// Waits for both of two futures, which run at the same time.
pub async fn both<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
    let mut first = pin!(first);
    let mut second = pin!(second);
    let (mut of_first, mut of_second) = (None, None);
    poll_fn(|context| {
        if of_first.is_none()
            && let Poll::Ready(output) = first.as_mut().poll(context)
        {
            of_first = Some(output);
        }
        if of_second.is_none()
            && let Poll::Ready(output) = second.as_mut().poll(context)
        {
            of_second = Some(output);
        }
        match (of_first.take(), of_second.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (first, second) => {
                (of_first, of_second) = (first, second);
                Poll::Pending
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};
    use std::task::{Context, Waker};

    #[test]
    fn both_are_waited_for_and_polled_until_they_are_ready() {
        let mut context = Context::from_waker(Waker::noop());
        let mut polls = 0;
        let slow = poll_fn(|_| {
            polls += 1;
            if polls < 3 {
                Poll::Pending
            } else {
                Poll::Ready(2)
            }
        });
        let mut pair = pin!(both(ready(1), slow));
        assert_eq!(pair.as_mut().poll(&mut context), Poll::Pending);
        assert_eq!(pair.as_mut().poll(&mut context), Poll::Pending);
        assert_eq!(pair.as_mut().poll(&mut context), Poll::Ready((1, 2)));
    }

    #[test]
    fn first_wins_and_a_pending_one_is_passed_over() {
        let mut context = Context::from_waker(Waker::noop());
        let both = pin!(either(ready(1), ready(2)));
        assert_eq!(both.poll(&mut context), Poll::Ready(Either::First(1)));
        let second = pin!(either(pending::<i32>(), ready(2)));
        assert_eq!(second.poll(&mut context), Poll::Ready(Either::Second(2)));
    }
}
