//! The start times of requests: random numbers, and the arrivals of the open loop.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use engine::Alarm;

use crate::plan::Spacing;

/// A deterministic random number generator: SplitMix64 (Steele, Lea, Flood: "Fast splittable
/// pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A random number from 0 (inclusive) to 1 (exclusive).
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A random number from 0 (inclusive) to `end` (exclusive); 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}

/// Cumulative weights of a list's elements, for a random choice by binary search.
#[derive(Debug)]
pub(crate) struct Weights(Vec<u64>);

impl Weights {
    pub(crate) fn new(weights: impl Iterator<Item = u64>) -> Weights {
        let sum = |sum: &mut u64, weight: u64| {
            *sum = sum.saturating_add(weight);
            Some(*sum)
        };
        Weights(weights.scan(0, sum).collect())
    }

    /// The sum of all weights.
    pub(crate) fn total(&self) -> u64 {
        self.0.last().copied().unwrap_or_default()
    }

    /// A random index, with probabilities according to the weights; 0 if the list is empty.
    pub(crate) fn pick(&self, random: &mut Random) -> usize {
        let drawn = random.below(self.total());
        self.0.partition_point(|sum| *sum <= drawn)
    }
}

/// The sequence of arrivals of the open loop.
#[derive(Debug)]
struct ArrivalSchedule {
    spacing: Spacing,
    /// Mean interval between arrivals, in seconds.
    mean: f64,
    /// The next arrival, in seconds from the beginning.
    next: f64,
    random: Random,
}

impl ArrivalSchedule {
    fn advance(&mut self) {
        self.next += match self.spacing {
            Spacing::Constant => self.mean,
            Spacing::Poisson => -(1.0 - self.random.fraction()).ln() * self.mean,
        };
    }
}

/// Marks whether a connection is in the queue for arrivals, so that it is queued only once, even if
/// it starts waiting repeatedly.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArrivalWaiter {
    is_taken: Rc<Cell<bool>>,
}

/// The open loop of one thread. Each arrival is taken by one connection, in order, as soon as one
/// is free. An arrival in the past is still taken and keeps its time, so that waiting for a slow
/// server counts as response time (no coordinated omission).
pub(crate) struct OpenLoop {
    begin: Instant,
    moments: RefCell<ArrivalSchedule>,
    /// Connections that wait for an arrival.
    idle: RefCell<VecDeque<(Waker, ArrivalWaiter)>>,
    /// The dispatcher's waker, while no connection is waiting.
    dispatcher: RefCell<Option<Waker>>,
    taken: Cell<u64>,
}

impl OpenLoop {
    /// Arrivals from `begin` on, `rate` per second. The first one is `offset` seconds later, so
    /// that the threads do not start requests simultaneously.
    pub(crate) fn new(
        begin: Instant,
        rate: f64,
        spacing: Spacing,
        offset: f64,
        seed: u64,
    ) -> OpenLoop {
        let moments = ArrivalSchedule {
            spacing,
            mean: 1.0 / rate,
            next: offset,
            random: Random::new(seed),
        };
        OpenLoop {
            begin,
            moments: RefCell::new(moments),
            idle: RefCell::default(),
            dispatcher: RefCell::default(),
            taken: Cell::new(0),
        }
    }

    fn next_moment(&self) -> Instant {
        self.begin + Duration::from_secs_f64(self.moments.borrow().next.clamp(0.0, 1e9))
    }

    /// Takes the next arrival, if it is not later than `now`.
    pub(crate) fn try_take(&self, now: Instant) -> Option<Instant> {
        let moment = self.next_moment();
        if moment > now {
            return None;
        }
        self.moments.borrow_mut().advance();
        self.taken.set(self.taken.get() + 1);
        Some(moment)
    }

    /// Waits for the next arrival and takes it. Cancel-safe.
    pub(crate) async fn take(&self, seat: &ArrivalWaiter) -> Instant {
        poll_fn(|context| {
            if let Some(moment) = self.try_take(Instant::now()) {
                return Poll::Ready(moment);
            }
            if !seat.is_taken.replace(true) {
                let waiting = (context.waker().clone(), seat.clone());
                self.idle.borrow_mut().push_back(waiting);
            }
            let dispatcher = self.dispatcher.take();
            if let Some(dispatcher) = dispatcher {
                dispatcher.wake();
            }
            Poll::Pending
        })
        .await
    }

    /// Wakes connections at arrivals. Returns only on errors.
    pub(crate) async fn dispatch(&self, alarm: &Alarm) -> io::Result<()> {
        loop {
            alarm.wait_until(self.next_moment()).await?;
            let waiting = self.idle.borrow_mut().pop_front();
            match waiting {
                // The connection may have ended; then the next iteration wakes another one.
                Some((connection, seat)) => {
                    seat.is_taken.set(false);
                    connection.wake();
                    engine::yield_now().await;
                }
                None => self.waiting_connection().await,
            }
        }
    }

    /// Waits until a connection is waiting.
    async fn waiting_connection(&self) {
        poll_fn(|context| {
            if !self.idle.borrow().is_empty() {
                return Poll::Ready(());
            }
            *self.dispatcher.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// The number of arrivals before `end` that no connection has taken.
    pub(crate) fn left_over(&self, end: Instant) -> u64 {
        let mut moments = self.moments.borrow_mut();
        let end = end.saturating_duration_since(self.begin).as_secs_f64();
        let mut count = 0;
        while moments.next < end {
            moments.advance();
            count += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_are_those_of_the_paper() {
        // The first outputs for the seed 1234567, equal in all implementations of SplitMix64.
        let mut random = Random::new(1_234_567);
        let expected = [6_457_827_717_110_365_317_u64, 3_203_168_211_198_807_973];
        assert_eq!([random.next(), random.next()], expected);
        assert!((0..1000).all(|_| random.below(7) < 7 && random.fraction() < 1.0));
    }

    #[test]
    fn what_weighs_more_comes_more_often() {
        let weights = Weights::new([1, 0, 9].into_iter());
        let mut random = Random::new(7);
        let mut counts = [0; 3];
        for _ in 0..10_000 {
            counts[weights.pick(&mut random)] += 1;
        }
        assert_eq!((weights.total(), counts[1]), (10, 0));
        // The expected count is 1,000, with a standard deviation of 30.
        assert!((850..1150).contains(&counts[0]), "{counts:?}");
        assert_eq!(Weights::new([].into_iter()).pick(&mut random), 0);
    }

    #[test]
    fn moments_keep_their_rate() {
        let begin = Instant::now();
        for spacing in [Spacing::Constant, Spacing::Poisson] {
            let pace = OpenLoop::new(begin, 1000.0, spacing, 0.0, 7);
            let mut last = begin;
            for _ in 0..10_000 {
                let moment = pace.try_take(begin + Duration::from_secs(60)).unwrap();
                assert!(moment >= last);
                last = moment;
            }
            let seconds = (last - begin).as_secs_f64();
            // The mean of 10,000 exponential intervals deviates by more than 4 % for one seed in
            // 16,000; this seed is fixed.
            assert!((seconds - 10.0).abs() < 0.4, "{spacing:?}: {seconds}");
            assert_eq!(pace.try_take(last), None);
            let left = pace.left_over(last + Duration::from_secs(1));
            assert!((900..1100).contains(&left), "{spacing:?}: {left}");
        }
    }
}
