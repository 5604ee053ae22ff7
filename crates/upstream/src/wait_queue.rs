//! Those who wait for their turn, first come first served, and how long that is going to take.
//!
//! No I/O, no clock: the holder of a line says when something happens. Joining, leaving and calling
//! the first cost the logarithm of the number of those who wait.

use std::collections::BTreeMap;
use std::time::Duration;

/// How fast a line forgets how fast it has moved.
const MEMORY: Duration = Duration::from_secs(5);

/// So many calls of late say how fast a line moves, or
const CALLS_MIN: f64 = 20.0;

/// fewer calls in so many seconds.
const BUSY_MIN: f64 = 2.0;

/// How many may wait in a line of which it is not known how fast it moves.
const UNKNOWN_MAX: usize = 300;

/// Those who wait, each with something of its own.
#[derive(Debug)]
pub(crate) struct WaitQueue<T> {
    places: BTreeMap<u64, T>,
    next: u64,
    pace: ServiceRate,
}

impl<T> Default for WaitQueue<T> {
    fn default() -> WaitQueue<T> {
        WaitQueue {
            places: BTreeMap::new(),
            next: 0,
            pace: ServiceRate::default(),
        }
    }
}

impl<T> WaitQueue<T> {
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether no one waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Waits behind all others; the number of the place.
    pub(crate) fn join(&mut self, waits: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.places.insert(number, waits);
        number
    }

    /// Waits no longer; what it waited with, if it still did.
    pub(crate) fn cancel(&mut self, number: u64) -> Option<T> {
        self.places.remove(&number)
    }

    /// The first, who waits no longer.
    pub(crate) fn call(&mut self) -> Option<T> {
        Some(self.places.pop_first()?.1)
    }

    /// What the holder of a place waits with, if it still does.
    pub(crate) fn at(&mut self, number: u64) -> Option<&mut T> {
        self.places.get_mut(&number)
    }

    /// What the first waits with.
    pub(crate) fn first(&mut self) -> Option<&mut T> {
        Some(self.places.first_entry()?.into_mut())
    }

    /// Whether this is the place of the first.
    pub(crate) fn is_first(&self, number: u64) -> bool {
        self.places
            .first_key_value()
            .is_some_and(|(first, _)| *first == number)
    }

    /// How fast it moves.
    pub(crate) fn pace(&mut self) -> &mut ServiceRate {
        &mut self.pace
    }

    /// How long the next to join would wait; `None` where that is not known.
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.pace.time_for(self.len() + 1)
    }

    /// Whether one more may join who wants to be served within `wait_max`, after those who wait and
    /// so many others.
    pub(crate) fn has_room(&self, others: usize, wait_max: Duration, is_known: bool) -> bool {
        let time = self.pace.time_for(self.len() + others + 1);
        match time.filter(|_| is_known) {
            Some(wait) => wait <= wait_max,
            None => self.len() < UNKNOWN_MAX,
        }
    }
}

/// How many are served in the time in which there is something to serve, the last seconds more than
/// those before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServiceRate {
    served: f64,
    busy: f64,
    is_busy: bool,
    looked_at: Duration,
}

impl ServiceRate {
    /// It is this moment, and from now on all are as busy as they can be, or not.
    pub(crate) fn advance(&mut self, now: Duration, is_busy: bool) {
        // Each thread has its own idea of now: no time passes twice.
        let now = now.max(self.looked_at);
        let time = now.saturating_sub(self.looked_at).as_secs_f64();
        let memory = MEMORY.as_secs_f64();
        let kept = (-time / memory).exp();
        self.served *= kept;
        self.busy *= kept;
        if self.is_busy {
            self.busy += memory * (1.0 - kept);
        }
        self.is_busy = is_busy;
        self.looked_at = now;
    }

    /// One has been served in such a time.
    pub(crate) fn served(&mut self) {
        if self.is_busy {
            self.served += 1.0;
        }
    }

    /// How long it takes to serve so many.
    fn time_for(&self, places: usize) -> Option<Duration> {
        let is_known = self.served >= CALLS_MIN || self.busy >= BUSY_MIN;
        // Where none has been served, one may be at any moment: nothing says that it takes longer
        // than it has.
        let time = places as f64 * self.busy / self.served.max(1.0);
        is_known.then(|| Duration::from_secs_f64(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn those_who_wait_are_called_in_their_order() {
        let mut line = WaitQueue::default();
        let places = ['a', 'b', 'c'].map(|name| line.join(name));
        assert!(line.is_first(places[0]));
        assert_eq!(line.cancel(places[1]), Some('b'));
        assert_eq!(line.cancel(places[1]), None);
        assert_eq!(line.call(), Some('a'));
        assert!(line.is_first(places[2]) && line.len() == 1);
        assert_eq!(line.at(places[2]), Some(&mut 'c'));
        assert_eq!(line.first(), Some(&mut 'c'));
        assert_eq!(line.call(), Some('c'));
        assert!(line.is_empty());
    }

    #[test]
    fn how_long_it_takes_is_told_by_how_fast_it_moves() {
        let mut pace = ServiceRate::default();
        let mut now = SECOND;
        pace.advance(now, true);
        assert_eq!(pace.time_for(1), None);
        for _ in 0..100 {
            now += SECOND / 100;
            pace.advance(now, true);
            pace.served();
        }
        let wait = pace.time_for(100).unwrap();
        assert!(
            wait > SECOND * 9 / 10 && wait < SECOND * 11 / 10,
            "{wait:?}"
        );
        // Where nothing moves, it takes longer and longer.
        pace.advance(now + SECOND * 5, true);
        assert!(pace.time_for(100).unwrap() > SECOND * 10);
        pace.advance(now + SECOND * 5000, true);
        assert!(pace.time_for(2).unwrap() > SECOND * 9);
        // No time passes twice where those who look have different ideas of now.
        let mut pace = ServiceRate::default();
        pace.advance(SECOND, true);
        for _ in 0..1000 {
            pace.advance(SECOND + SECOND / 100, true);
            pace.advance(SECOND, true);
            pace.served();
        }
        assert!(pace.time_for(1000).unwrap() <= SECOND / 100);
        let mut pace = ServiceRate::default();
        pace.advance(now, true);
        (0..20).for_each(|_| pace.served());
        // While there is nothing to do, all of that is forgotten.
        pace.advance(now + SECOND * 5001, false);
        pace.advance(now + SECOND * 5020, false);
        assert_eq!(pace.time_for(1), None);
    }
}
