//! `proxy_limit_rate`: limits the rate at which an upstream's body is read.
//!
//! As in nginx, a pause of its length divided by the rate follows each read, and within each whole
//! second no more bytes are read than the rate permits. Received bytes beyond that are held back
//! here, and meanwhile nothing more is received.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use engine::{Buffer, Sleep};

/// Limits the rate at which one body is read.
pub(super) struct ReadPace {
    /// Bytes per second.
    rate: u64,
    /// When reading began.
    began: Instant,
    /// The number of bytes that count as read.
    read: u64,
    /// Received bytes that do not count as read yet.
    held: Buffer,
    /// When more bytes may be read; `wait` is the timer for that time.
    until: Instant,
    wait: Option<Sleep>,
}

impl ReadPace {
    /// Begins to read at `rate` bytes per second; `None` if there is no limit. The last `beyond` of
    /// the `arrived` bytes do not count as read yet.
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

    /// Whether no received bytes are held back.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Holds back received bytes.
    pub(super) fn hold(&mut self, received: Buffer) {
        self.held = received;
    }

    /// Releases the held bytes that may be read now: none before the pause is over.
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

    /// Takes `length` of the held bytes, and pauses for the time that they take.
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

    /// Pauses for the time that `bytes` take at the rate, plus `more`.
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
        // 500 bytes are left of the first second.
        assert_eq!(pace.release(at(500)).len(), 500);
        assert_eq!(pace.release(at(1000)).len(), 1000);
        assert_eq!(pace.release(at(1999)).len(), 0);
        assert_eq!(pace.release(at(9000)).len(), 3500);
        assert!(pace.is_empty());
    }
}
