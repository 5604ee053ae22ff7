//! Combinators of futures: the first of two, both, or all of several.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

/// The output of the future that completed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first argument was ready.
    First(A),
    /// The second argument was ready.
    Second(B),
}

thread_local! {
    /// State of the pseudo-random generator; never 0.
    static DRAW: Cell<u32> = const { Cell::new(SEED) };
}

const SEED: u32 = 0x9e37_79b9;

/// Resets the generator when a runtime starts on this thread, so that simulations are repeatable.
pub(crate) fn begin() {
    DRAW.set(SEED);
}

/// Which of two futures is polled first: random at first, since loops create a new pair each round;
/// then alternating.
struct Turn {
    first: bool,
}

impl Turn {
    /// Draws at random which future is polled first.
    fn draw() -> Turn {
        // Xorshift (Marsaglia 2003). A counter would not do: with two pairs in a loop, each pair
        // might always draw the same value.
        let mut drawn = DRAW.get();
        drawn ^= drawn << 13;
        drawn ^= drawn >> 17;
        drawn ^= drawn << 5;
        DRAW.set(drawn);
        Turn {
            first: drawn & 1 == 0,
        }
    }

    /// Whether the first future is polled first this time. Alternates with each call.
    fn next(&mut self) -> bool {
        self.first = !self.first;
        self.first
    }
}

/// Waits for the first of two futures and drops the other. If both are ready, either may win, so
/// that neither starves the other, however often it is ready.
///
/// The futures of this crate are cancel-safe: a dropped receive leaves its bytes for the next
/// receive.
pub async fn either<A: Future, B: Future>(first: A, second: B) -> Either<A::Output, B::Output> {
    let mut first = pin!(first);
    let mut second = pin!(second);
    let mut turn = Turn::draw();
    poll_fn(|context| {
        if turn.next() {
            if let Poll::Ready(output) = first.as_mut().poll(context) {
                return Poll::Ready(Either::First(output));
            }
            return second.as_mut().poll(context).map(Either::Second);
        }
        if let Poll::Ready(output) = second.as_mut().poll(context) {
            return Poll::Ready(Either::Second(output));
        }
        first.as_mut().poll(context).map(Either::First)
    })
    .await
}

/// The output of a future that completes at its first poll; `None` otherwise. The future is dropped
/// either way.
pub async fn at_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Runs two futures concurrently and waits for both.
pub async fn both<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
    let mut first = pin!(first);
    let mut second = pin!(second);
    let (mut of_first, mut of_second) = (None, None);
    let mut turn = Turn::draw();
    poll_fn(|context| {
        for is_first in [turn.next(), !turn.first] {
            if is_first {
                if of_first.is_none()
                    && let Poll::Ready(output) = first.as_mut().poll(context)
                {
                    of_first = Some(output);
                }
            } else if of_second.is_none()
                && let Poll::Ready(output) = second.as_mut().poll(context)
            {
                of_second = Some(output);
            }
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

/// Runs several futures concurrently and waits for all of them. The outputs are in the order of the
/// futures.
pub async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let begin = |future| -> (Pin<Box<F>>, Option<F::Output>) { (Box::pin(future), None) };
    let mut running: Vec<_> = futures.into_iter().map(begin).collect();
    poll_fn(|context| {
        let mut polled = Poll::Ready(());
        for (future, output) in &mut running {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(returned) => *output = Some(returned),
                    Poll::Pending => polled = Poll::Pending,
                }
            }
        }
        polled
    })
    .await;
    let outputs = running.into_iter().filter_map(|(_, output)| output);
    outputs.collect()
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
    fn all_are_waited_for_and_keep_their_order() {
        let mut context = Context::from_waker(Waker::noop());
        let late = |polls: u32| {
            let mut left = polls;
            poll_fn(move |_| {
                let is_ready = left == 0;
                left = left.saturating_sub(1);
                if is_ready {
                    Poll::Ready(polls)
                } else {
                    Poll::Pending
                }
            })
        };
        let mut several = pin!(all([2, 0, 1].map(late)));
        assert_eq!(several.as_mut().poll(&mut context), Poll::Pending);
        assert_eq!(several.as_mut().poll(&mut context), Poll::Pending);
        let ended = several.as_mut().poll(&mut context);
        assert_eq!(ended, Poll::Ready(vec![2, 0, 1]));
    }

    #[test]
    fn a_pending_one_is_passed_over() {
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..8 {
            let second = pin!(either(pending::<i32>(), ready(2)));
            assert_eq!(second.poll(&mut context), Poll::Ready(Either::Second(2)));
            let first = pin!(either(ready(1), pending::<i32>()));
            assert_eq!(first.poll(&mut context), Poll::Ready(Either::First(1)));
        }
    }

    #[test]
    fn of_two_that_are_always_ready_each_wins() {
        let mut context = Context::from_waker(Waker::noop());
        // Two pairs each round: the draw of one must not decide that of the other.
        let (mut outer, mut inner) = ([0; 2], [0; 2]);
        for _ in 0..1000 {
            for wins in [&mut outer, &mut inner] {
                match pin!(either(ready(()), ready(()))).poll(&mut context) {
                    Poll::Ready(Either::First(())) => wins[0] += 1,
                    Poll::Ready(Either::Second(())) => wins[1] += 1,
                    Poll::Pending => unreachable!("both are ready"),
                }
            }
        }
        for count in [outer, inner].concat() {
            assert!((300..=700).contains(&count), "{outer:?} {inner:?}");
        }
    }

    #[test]
    fn two_that_use_up_their_share_go_first_in_turn() {
        let mut context = Context::from_waker(Waker::noop());
        let order = std::cell::RefCell::new(String::new());
        let party = |name: char| {
            let order = &order;
            poll_fn(move |_| {
                order.borrow_mut().push(name);
                Poll::<()>::Pending
            })
        };
        let mut pair = pin!(either(party('a'), party('b')));
        for _ in 0..4 {
            assert!(pair.as_mut().poll(&mut context).is_pending());
        }
        let order = order.borrow();
        assert!(*order == "abbaabba" || *order == "baabbaab", "{order}");
    }

    #[test]
    fn at_once_does_not_wait() {
        let mut context = Context::from_waker(Waker::noop());
        let none = pin!(at_once(pending::<i32>()));
        assert_eq!(none.poll(&mut context), Poll::Ready(None));
        let some = pin!(at_once(ready(1)));
        assert_eq!(some.poll(&mut context), Poll::Ready(Some(1)));
    }
}
