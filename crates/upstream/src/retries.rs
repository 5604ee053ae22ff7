//! The retry budget of a group: limits retries to a percentage of the requests of the last seconds,
//! plus a few.
//!
//! Retries are additional load at the very time when servers are overloaded; the budget limits this
//! load. All threads share the counts, and reloads keep them. They need no lock, because the counts
//! of a second are one atomic word.

use std::sync::atomic::{AtomicU64, Ordering};

/// The share of requests that may be retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBudget {
    /// Maximum number of retries for a hundred requests.
    pub percent: u64,
    /// Number of retries per second that are allowed in addition, so that a lone request may be
    /// retried.
    pub floor: u64,
}

/// The number of seconds that count, the current second included.
const WINDOW: u64 = 10;

/// The counts of the last seconds.
#[derive(Debug, Default)]
pub(crate) struct Retries([AtomicU64; WINDOW as usize]);

/// The counts of one second, packed in a word: the second's number modulo 2²⁰, and requests and
/// retries of 22 bits each, which saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Second {
    number: u64,
    requests: u64,
    retries: u64,
}

const NUMBER_MAX: u64 = (1 << 20) - 1;
const COUNT_MAX: u64 = (1 << 22) - 1;

impl Second {
    fn unpack(word: u64) -> Second {
        Second {
            number: word >> 44,
            requests: (word >> 22) & COUNT_MAX,
            retries: word & COUNT_MAX,
        }
    }

    fn pack(self) -> u64 {
        let (requests, retries) = (self.requests.min(COUNT_MAX), self.retries.min(COUNT_MAX));
        self.number << 44 | requests << 22 | retries
    }
}

impl Retries {
    /// Counts a request. `now` is in milliseconds of [`millis`](crate::moment::millis), here and
    /// below.
    pub(crate) fn request(&self, now: u64) {
        self.count(now, |second| second.requests += 1);
    }

    /// Takes a retry out of the budget; `false` if the budget is used up.
    pub(crate) fn retry(&self, now: u64, budget: RetryBudget) -> bool {
        // The retry is counted before the check, so that two threads cannot both take the last
        // retry.
        self.count(now, |second| second.retries += 1);
        let (requests, retries) = self.sum(now);
        let share = requests.saturating_mul(budget.percent) / 100;
        let most = share.saturating_add(budget.floor.saturating_mul(WINDOW));
        let is_within = retries <= most;
        if !is_within {
            self.count(now, |second| {
                second.retries = second.retries.saturating_sub(1);
            });
        }
        is_within
    }

    /// Changes the counts of the current second.
    fn count(&self, now: u64, change: impl Fn(&mut Second)) {
        let second = now / 1000;
        let Some(word) = self.0.get((second % WINDOW) as usize) else {
            return;
        };
        let number = second & NUMBER_MAX;
        let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            let mut known = Second::unpack(word);
            if known.number != number {
                known = Second {
                    number,
                    ..Second::default()
                };
            }
            change(&mut known);
            Some(known.pack())
        });
    }

    /// The numbers of requests and retries of the last [`WINDOW`] seconds.
    fn sum(&self, now: u64) -> (u64, u64) {
        let number = (now / 1000) & NUMBER_MAX;
        let is_recent = |second: &Second| number.wrapping_sub(second.number) & NUMBER_MAX < WINDOW;
        let words = self.0.iter().map(|word| word.load(Ordering::Relaxed));
        let recent = words.map(Second::unpack).filter(is_recent);
        recent.fold((0, 0), |(requests, retries), second| {
            (requests + second.requests, retries + second.retries)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(percent: u64, floor: u64) -> RetryBudget {
        RetryBudget { percent, floor }
    }

    fn granted(retries: &Retries, now: u64, wanted: usize, budget: RetryBudget) -> usize {
        (0..wanted).filter(|_| retries.retry(now, budget)).count()
    }

    #[test]
    fn a_share_of_the_requests_may_be_retried() {
        let retries = Retries::default();
        (0..50).for_each(|_| retries.request(1000));
        assert_eq!(granted(&retries, 1500, 100, budget(20, 0)), 10);
        // Refused retries do not count.
        retries.request(2000);
        (0..4).for_each(|_| retries.request(3000));
        assert_eq!(granted(&retries, 3000, 100, budget(20, 0)), 1);
        assert_eq!(granted(&retries, 3000, 100, budget(40, 0)), 11);
    }

    #[test]
    fn a_few_may_be_retried_in_any_case() {
        let retries = Retries::default();
        assert_eq!(granted(&retries, 1000, 100, budget(20, 0)), 0);
        assert_eq!(granted(&retries, 1000, 100, budget(20, 3)), 30);
        assert_eq!(granted(&retries, 10_999, 100, budget(20, 3)), 0);
        assert_eq!(granted(&retries, 11_000, 100, budget(20, 3)), 30);
    }

    #[test]
    fn what_is_longer_ago_does_not_count() {
        let retries = Retries::default();
        for second in 1..=20 {
            (0..10).for_each(|_| retries.request(second * 1000));
        }
        assert_eq!(retries.sum(20_999), (100, 0));
        assert_eq!(retries.sum(25_000), (50, 0));
        assert_eq!(retries.sum(40_000), (0, 0));
        // The number of a second wraps every twelve days.
        let late = (NUMBER_MAX + 1) * 1000;
        let retries = Retries::default();
        retries.request(late - 1000);
        retries.request(late);
        assert_eq!(retries.sum(late), (2, 0));
    }

    #[test]
    fn a_second_holds_no_more_than_its_word() {
        let full = Second {
            number: NUMBER_MAX,
            requests: COUNT_MAX + 5,
            retries: COUNT_MAX + 1,
        };
        let kept = Second::unpack(full.pack());
        assert_eq!((kept.requests, kept.retries), (COUNT_MAX, COUNT_MAX));
        assert_eq!(kept.number, NUMBER_MAX);
    }

    #[test]
    fn threads_share_it() {
        let retries = Retries::default();
        (0..1000).for_each(|_| retries.request(1000));
        let total: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| granted(&retries, 1000, 1000, budget(10, 0))))
                .collect();
            threads.into_iter().map(|it| it.join().unwrap()).sum()
        });
        // Threads that want the last retries at the same time may leave one each, but never take
        // too many.
        assert!((97..=100).contains(&total), "{total}");
    }
}
