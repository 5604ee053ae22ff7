//! A first-come-first-served queue that estimates how long a new entry would wait.
//!
//! Without I/O and clock: the owner passes the time. Joining, leaving, and removing the first entry
//! take logarithmic time.

use std::collections::BTreeMap;
use std::time::Duration;

/// The time constant of the service rate's moving average.
const MEMORY: Duration = Duration::from_secs(5);

/// The service rate counts as known if at least this many entries were served recently.
const CALLS_MIN: f64 = 20.0;

/// With fewer served entries, the service rate counts as known after this many recent busy seconds.
const BUSY_MIN: f64 = 2.0;

/// Entries that may wait while the service rate is not known.
const UNKNOWN_MAX: usize = 300;

/// The queue, with a value for each entry.
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

    /// Whether the queue is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Joins the end of the queue; returns the number of the entry.
    pub(crate) fn join(&mut self, waits: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.places.insert(number, waits);
        number
    }

    /// Removes an entry, and returns its value if it was still in the queue.
    pub(crate) fn cancel(&mut self, number: u64) -> Option<T> {
        self.places.remove(&number)
    }

    /// Removes the first entry and returns its value.
    pub(crate) fn call(&mut self) -> Option<T> {
        Some(self.places.pop_first()?.1)
    }

    /// The value of an entry, if it is still in the queue.
    pub(crate) fn at(&mut self, number: u64) -> Option<&mut T> {
        self.places.get_mut(&number)
    }

    /// The value of the first entry.
    pub(crate) fn first(&mut self) -> Option<&mut T> {
        Some(self.places.first_entry()?.into_mut())
    }

    /// Whether this entry is the first.
    pub(crate) fn is_first(&self, number: u64) -> bool {
        self.places
            .first_key_value()
            .is_some_and(|(first, _)| *first == number)
    }

    /// The service rate, which the owner updates.
    pub(crate) fn pace(&mut self) -> &mut ServiceRate {
        &mut self.pace
    }

    /// How long a new entry would wait; `None` if the service rate is not known.
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.pace.time_for(self.len() + 1)
    }

    /// Whether a new entry, behind all entries of the queue and `others` more, would probably be
    /// served within `wait_max`. If `is_known` is false or the service rate is not known, only the
    /// length of the queue is limited.
    pub(crate) fn has_room(&self, others: usize, wait_max: Duration, is_known: bool) -> bool {
        let time = self.pace.time_for(self.len() + others + 1);
        match time.filter(|_| is_known) {
            Some(wait) => wait <= wait_max,
            None => self.len() < UNKNOWN_MAX,
        }
    }
}

/// Entries served per busy second: a moving average that weighs recent seconds more.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServiceRate {
    served: f64,
    busy: f64,
    is_busy: bool,
    looked_at: Duration,
}

impl ServiceRate {
    /// Advances the time. `is_busy` says whether, from now on, entries wait because the servers
    /// work at their limit: only such time counts.
    pub(crate) fn advance(&mut self, now: Duration, is_busy: bool) {
        // The threads' clocks differ slightly: never go back, so that no time counts twice.
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

    /// Counts a served entry, unless the servers are not busy.
    pub(crate) fn served(&mut self) {
        if self.is_busy {
            self.served += 1.0;
        }
    }

    /// How long it takes to serve this many entries; `None` if the service rate is not known.
    fn time_for(&self, places: usize) -> Option<Duration> {
        let is_known = self.served >= CALLS_MIN || self.busy >= BUSY_MIN;
        // If no entry has been served yet, assume that one is served now, since it has taken at
        // least this long.
        let time = places as f64 * self.busy / self.served.max(1.0);
        is_known.then(|| Duration::from_secs_f64(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn entries_are_called_in_order() {
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
    fn the_wait_follows_from_the_service_rate() {
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
        // If nothing is served, the estimate grows.
        pace.advance(now + SECOND * 5, true);
        assert!(pace.time_for(100).unwrap() > SECOND * 10);
        pace.advance(now + SECOND * 5000, true);
        assert!(pace.time_for(2).unwrap() > SECOND * 9);
        // No time counts twice if the threads' clocks differ.
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
