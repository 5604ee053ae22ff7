//! `proxy_limit_rate`: how fast an upstream's body is read.
//!
//! As in nginx: what has come is waited for as long as it should have taken, and in whole seconds
//! no more is read than the rate gives. What the engine has received beyond that is kept back here,
//! and nothing more is received meanwhile.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use engine::{Buffer, Sleep};

/// The reading of one body.
pub(super) struct ReadPace {
    rate: u64,
    began: Instant,
    /// How many bytes count as read.
    read: u64,
    /// What has been received and does not count yet.
    held: Buffer,
    /// When more may be read, and the wait for that.
    until: Instant,
    wait: Option<Sleep>,
}

impl ReadPace {
    /// A pace of `rate` bytes a second, if there is one. Of what has come already, `beyond` bytes
    /// at its end are still to be read.
    pub(super) fn begin(
        rate: u64,
        arrived: &mut Buffer,
        beyond: u64,
        now: Instant,
    ) -> Option<ReadPace> {
        if rate == 0 {
            return None;
        }
        let mut pace = ReadPace {
            rate,
            began: now,
            read: 0,
            held: Buffer::empty(),
            until: now,
            wait: None,
        };
        let beyond = usize::try_from(beyond).unwrap_or(usize::MAX);
        let first = arrived.len().saturating_sub(beyond);
        pace.held = std::mem::take(arrived);
        *arrived = pace.take(first, now);
        Some(pace)
    }

    /// Whether there is nothing that has been received and not been read.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Takes what has been received.
    pub(super) fn hold(&mut self, received: Buffer) {
        self.held = received;
    }

    /// What of it may be read now; nothing before its time.
    pub(super) fn release(&mut self, now: Instant) -> Buffer {
        if self.held.is_empty() || now < self.until {
            return Buffer::empty();
        }
        let seconds = now.saturating_duration_since(self.began).as_secs();
        let allowed = self.rate.saturating_mul(seconds.saturating_add(1));
        if allowed <= self.read {
            self.wait_for(self.read - allowed, Duration::from_millis(1), now);
            return Buffer::empty();
        }
        let length = usize::try_from(allowed - self.read).unwrap_or(usize::MAX);
        self.take(length.min(self.held.len()), now)
    }

    /// Waits until more may be read.
    pub(super) fn poll_ready(&mut self, now: Instant, context: &mut Context<'_>) -> Poll<()> {
        if now >= self.until {
            self.wait = None;
            return Poll::Ready(());
        }
        let until = self.until;
        let wait = self.wait.get_or_insert_with(|| engine::sleep_until(until));
        let waited = Pin::new(wait).poll(context);
        if waited.is_ready() {
            self.wait = None;
        }
        waited
    }

    fn take(&mut self, length: usize, now: Instant) -> Buffer {
        self.read += length as u64;
        self.wait_for(length as u64, Duration::ZERO, now);
        if length >= self.held.len() {
            return std::mem::take(&mut self.held);
        }
        let taken = Buffer::copy_of(self.held.get(..length).unwrap_or_default());
        self.held.advance(length);
        taken
    }

    /// Lets pass what so many bytes take at this rate, and `more`.
    fn wait_for(&mut self, bytes: u64, more: Duration, now: Instant) {
        let milliseconds = bytes.saturating_mul(1000) / self.rate;
        let until = now.checked_add(Duration::from_millis(milliseconds) + more);
        self.until = until.unwrap_or(self.until);
        self.wait = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_at_their_rate() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut arrived = Buffer::copy_of(&[0; 500]);
        assert!(ReadPace::begin(0, &mut arrived, 0, start).is_none());
        let mut pace = ReadPace::begin(1000, &mut arrived, 300, start).unwrap();
        assert_eq!(arrived.len(), 200);
        assert!(!pace.is_empty());
        assert_eq!(pace.release(at(199)).len(), 0);
        assert_eq!(pace.release(at(200)).len(), 300);
        assert!(pace.is_empty());
        pace.hold(Buffer::copy_of(&[0; 5000]));
        assert_eq!(pace.release(at(499)).len(), 0);
        // Of the first second 500 are left.
        assert_eq!(pace.release(at(500)).len(), 500);
        assert_eq!(pace.release(at(1000)).len(), 1000);
        assert_eq!(pace.release(at(1999)).len(), 0);
        assert_eq!(pace.release(at(9000)).len(), 3500);
        assert!(pace.is_empty());
    }
}
