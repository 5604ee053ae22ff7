//! Counters of a peer's responses: statuses, times, and a histogram of times.
//!
//! All threads share the counters. Counting begins when the counters are first requested
//! ([`count_answers`]), so that a server without monitoring counts nothing. A peer takes a kilobyte
//! for each class of statuses that occurs.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::moment::{Moment, average};

/// Whether responses are counted.
static COUNTED: AtomicBool = AtomicBool::new(false);

/// Starts counting responses, until the process ends.
pub fn count_answers() {
    // Written only once, since all threads read the flag with each response.
    if !are_counted() {
        COUNTED.store(true, Ordering::Relaxed);
    }
}

fn are_counted() -> bool {
    COUNTED.load(Ordering::Relaxed)
}

/// Upper bounds of the buckets of the histogram of response times, in milliseconds. A further
/// bucket has no upper bound.
pub const RESPONSE_BOUNDS: [u64; 11] = [5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000];

/// Classes of statuses, from 1xx to 5xx.
const CLASSES: usize = 5;

/// Number of statuses in a class.
const CLASS: usize = 100;

/// Response counters of a peer, allocated with its first response.
#[derive(Debug, Default)]
pub struct Answers(OnceLock<Box<AnswerCounters>>);

#[derive(Debug, Default)]
struct AnswerCounters {
    classes: [OnceLock<Box<[AtomicU64; CLASS]>>; CLASSES],
    /// Responses with a status outside of the five classes.
    others: AtomicU64,
    /// Moving averages of the times until the response head and until the complete response, in
    /// milliseconds.
    header_time: AtomicU64,
    response_time: AtomicU64,
    /// Histogram of the response times of complete responses: the count of each bucket alone, not
    /// cumulative.
    durations: [AtomicU64; RESPONSE_BOUNDS.len() + 1],
    /// Sum of their response times, in milliseconds.
    duration: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    /// When the peer last got a request.
    selected: Moment,
}

/// A snapshot of the response counters of a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerCounts {
    /// Each status that has occurred, and its number of responses.
    pub statuses: Vec<(u16, u64)>,
    /// Responses with a status outside of the five classes.
    pub others: u64,
    /// Moving average of the time until the response head, in milliseconds.
    pub header_time: u64,
    /// Moving average of the time until the response was complete, in milliseconds.
    pub response_time: u64,
    /// Number of complete responses in each bucket of [`RESPONSE_BOUNDS`]; the last element counts
    /// responses above all bounds. Not cumulative.
    pub durations: [u64; RESPONSE_BOUNDS.len() + 1],
    /// Sum of their response times, in milliseconds.
    pub duration: u64,
    /// Bytes sent to the peer for requests with complete responses.
    pub sent: u64,
    /// Bytes received from the peer for these requests.
    pub received: u64,
    /// When the peer last got a request, in the clock of [`crate::State`].
    pub(crate) selected: u64,
}

impl AnswerCounts {
    /// Number of responses with a status of this class, which is `2` for 2xx.
    pub fn class(&self, class: u16) -> u64 {
        let of_class = self
            .statuses
            .iter()
            .filter(|(status, _)| status / 100 == class);
        of_class.map(|(_, count)| count).sum()
    }

    /// Number of responses.
    pub fn total(&self) -> u64 {
        self.statuses.iter().map(|(_, count)| count).sum::<u64>() + self.others
    }

    /// How long ago the peer last got a request; `None` if it never did.
    pub fn selected_ago(&self, now: std::time::Instant) -> Option<Duration> {
        let ago = crate::moment::millis(now).saturating_sub(self.selected);
        (self.selected > 0).then(|| Duration::from_millis(ago))
    }
}

impl Answers {
    /// The counters, if responses are counted.
    fn counted(&self) -> Option<&AnswerCounters> {
        are_counted().then(|| &**self.0.get_or_init(Box::default))
    }

    /// Notes that the peer gets a request.
    pub(crate) fn note_request(&self, now: u64) {
        if let Some(counted) = self.counted() {
            counted.selected.set(now);
        }
    }

    /// Counts a response with this status.
    pub(crate) fn note_status(&self, status: u16) {
        let Some(counted) = self.counted() else {
            return;
        };
        let (class, of_class) = (status / 100, usize::from(status % 100));
        let class = class.checked_sub(1).map(usize::from);
        let codes = class.and_then(|class| counted.classes.get(class));
        let codes = codes.map(|codes| {
            codes.get_or_init(|| Box::new(std::array::from_fn(|_| AtomicU64::new(0))))
        });
        let count = codes.and_then(|codes| codes.get(of_class));
        count
            .unwrap_or(&counted.others)
            .fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the time until a response head to the average.
    pub(crate) fn note_header_time(&self, millis: u64) {
        if let Some(counted) = self.counted() {
            average(&counted.header_time, millis);
        }
    }

    /// Adds the time of a complete response to the average and the histogram.
    pub(crate) fn note_response_time(&self, millis: u64) {
        let Some(counted) = self.counted() else {
            return;
        };
        average(&counted.response_time, millis);
        let mut bounds = RESPONSE_BOUNDS.iter();
        let at = bounds.position(|bound| millis <= *bound);
        if let Some(part) = counted.durations.get(at.unwrap_or(RESPONSE_BOUNDS.len())) {
            part.fetch_add(1, Ordering::Relaxed);
        }
        counted.duration.fetch_add(millis, Ordering::Relaxed);
    }

    /// Counts the bytes sent and received for a request.
    pub(crate) fn note_bytes(&self, sent: u64, received: u64) {
        if let Some(counted) = self.counted() {
            counted.sent.fetch_add(sent, Ordering::Relaxed);
            counted.received.fetch_add(received, Ordering::Relaxed);
        }
    }

    /// A snapshot of the counters; `None` if nothing was counted.
    pub fn counts(&self) -> Option<AnswerCounts> {
        let counted = self.0.get()?;
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let mut statuses = Vec::new();
        for (class, codes) in (1..).zip(&counted.classes) {
            let codes = codes.get().into_iter().flat_map(|codes| codes.iter());
            let codes = (class * 100..).zip(codes.map(read));
            statuses.extend(codes.filter(|(_, count)| *count > 0));
        }
        Some(AnswerCounts {
            statuses,
            others: read(&counted.others),
            header_time: read(&counted.header_time),
            response_time: read(&counted.response_time),
            durations: std::array::from_fn(|at| counted.durations.get(at).map_or(0, read)),
            duration: read(&counted.duration),
            sent: read(&counted.sent),
            received: read(&counted.received),
            selected: counted.selected.get(),
        })
    }

    /// Resets all totals to zero; the averages stay.
    pub(crate) fn reset(&self) {
        let Some(counted) = self.0.get() else {
            return;
        };
        let codes = counted.classes.iter().filter_map(OnceLock::get);
        let codes = codes.flat_map(|codes| codes.iter());
        let others = [
            &counted.others,
            &counted.duration,
            &counted.sent,
            &counted.received,
        ];
        for count in codes.chain(&counted.durations).chain(others) {
            count.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_from_the_first_that_asks_on() {
        count_answers();
        let answers = Answers::default();
        assert_eq!(answers.counts(), None);
        for status in [200, 200, 204, 404, 599, 600, 99, 0, 1000] {
            answers.note_status(status);
        }
        answers.note_response_time(5);
        answers.note_response_time(6);
        answers.note_response_time(1 << 40);
        answers.note_bytes(3, 4);
        let counts = answers.counts().unwrap();
        let expected = [(200, 2), (204, 1), (404, 1), (599, 1)];
        assert_eq!(counts.statuses, expected);
        assert_eq!((counts.others, counts.total()), (4, 9));
        assert_eq!([2, 3, 5].map(|class| counts.class(class)), [3, 0, 1]);
        assert_eq!(counts.durations[..3], [1, 1, 0]);
        assert_eq!(counts.durations[RESPONSE_BOUNDS.len()], 1);
        assert_eq!((counts.sent, counts.received), (3, 4));
        answers.reset();
        let counts = answers.counts().unwrap();
        assert_eq!((counts.total(), counts.duration, counts.sent), (0, 0, 0));
        assert!(counts.response_time > 0);
    }
}
