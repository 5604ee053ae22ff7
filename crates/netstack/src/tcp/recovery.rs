//! Loss detection and recovery: RFC 5681 with limited transmit (RFC 3042); NewReno (RFC 6582) for
//! peers without SACK, RFC 6675 for peers with SACK.
//!
//! ```text
//!            three duplicate ACKs, or a segment that is lost according to SACK blocks
//!  Open ────────────────────────────────────────────────────────────────────▶ Fast
//!   ▲ ▲                                                                        │
//!   │ └──────────────── everything sent before that is acknowledged ───────────┤
//!   │                                                                          │ timeout
//!   └──── everything sent before that is acknowledged ──── Timeout ◀───────────┘ (from Open, too)
//! ```
//!
//! In `Fast` without SACK, exactly the first unacknowledged segment counts as lost, and each
//! partial acknowledgment makes the next one count as lost. In all other cases, all data before
//! `lost_before` that no SACK block has reported count as lost; they are retransmitted from
//! `resent` on.

use super::congestion::Congestion;
use super::scoreboard::{DUPLICATES_LOST, Scoreboard};
use crate::wire::sequence::Sequence;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// No loss has been detected.
    Open,
    /// Fast recovery: acknowledgments have indicated a loss.
    Fast,
    /// Recovery after a retransmission timeout.
    Timeout,
}

/// The loss recovery state of the sending direction.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) mode: Mode,
    has_sack: bool,
    /// Recovery ends when this number is acknowledged (`recover`, RecoveryPoint).
    recover: Sequence,
    duplicates: u32,
    lost_before: Sequence,
    /// The end of the retransmitted data (HighRxt).
    resent: Sequence,
    /// Whether the first segment is to be retransmitted regardless of the window (RFC 6675, section
    /// 5, step 4.3).
    is_forced: bool,
    /// NewReno's congestion window, inflated by the segments that have left the network according
    /// to duplicate acknowledgments.
    inflated: u32,
    scoreboard: Scoreboard,
}

/// The data in flight: SND.UNA, SND.NXT and the segment size in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) acknowledged: Sequence,
    pub(crate) next: Sequence,
    pub(crate) segment: u32,
}

impl Flight {
    /// Number of unacknowledged bytes (FlightSize).
    pub(crate) fn size(&self) -> u32 {
        self.next.since(self.acknowledged)
    }
}

impl Recovery {
    /// The state of a connection whose initial sequence number is `initial`.
    pub(crate) fn new(initial: Sequence, has_sack: bool) -> Recovery {
        Recovery {
            mode: Mode::Open,
            has_sack,
            recover: initial,
            duplicates: 0,
            lost_before: initial,
            resent: initial,
            is_forced: false,
            inflated: 0,
            scoreboard: Scoreboard::default(),
        }
    }

    /// Whether NewReno's fast recovery is in progress, which counts only the first segment as lost.
    fn is_counting(&self) -> bool {
        self.mode == Mode::Fast && !self.has_sack
    }

    /// Estimate of the bytes in the network (`SetPipe` of RFC 6675).
    pub(crate) fn in_flight(&self, flight: Flight) -> u32 {
        if self.is_counting() {
            return flight.size();
        }
        let has_news = self.duplicates > 0 || !self.scoreboard.is_empty();
        if self.mode == Mode::Open && !has_news {
            return flight.size();
        }
        let again = self
            .scoreboard
            .missing(flight.acknowledged, self.resent.max(flight.acknowledged));
        let first_time = self
            .scoreboard
            .missing(self.lost_before.max(flight.acknowledged), flight.next);
        if self.mode == Mode::Open && !self.has_sack {
            // Limited transmit (RFC 3042): each of the first two duplicates permits a new segment.
            let left = self.duplicates.min(DUPLICATES_LOST - 1) * flight.segment;
            return first_time.saturating_sub(left);
        }
        again + first_time
    }

    /// The limit of bytes in the network.
    pub(crate) fn window(&self, congestion: &Congestion) -> u32 {
        if self.is_counting() {
            self.inflated
        } else {
            congestion.window()
        }
    }

    /// Adds SACK blocks. Returns whether any of them is new.
    pub(crate) fn report(&mut self, blocks: &[(Sequence, Sequence)], flight: Flight) -> bool {
        let mut has_news = false;
        for &(from, to) in blocks {
            // A block below SND.UNA reports a duplicate (RFC 2883), and a block above SND.NXT is
            // invalid. Both ends are compared by their distance from SND.UNA: the order of sequence
            // numbers alone would accept a block that covers half of their range.
            let offset = |place: Sequence| place.0.wrapping_sub(flight.acknowledged.0);
            if offset(from) < offset(to) && offset(to) <= flight.size() {
                has_news |= self.scoreboard.add(from, to);
            }
        }
        if has_news
            && self.mode != Mode::Open
            && let Some(lost) = self.scoreboard.lost_before(flight.segment)
        {
            self.lost_before = self.lost_before.max(lost);
        }
        has_news
    }

    /// Handles a duplicate acknowledgment, or one with new SACK blocks.
    pub(crate) fn on_duplicate(&mut self, flight: Flight, congestion: &mut Congestion) {
        self.duplicates += 1;
        if self.is_counting() {
            // RFC 6582, step 3: a segment has left the network.
            self.inflated = self.inflated.saturating_add(flight.segment);
        }
        if self.mode != Mode::Open {
            return;
        }
        let lost = self.scoreboard.lost_before(flight.segment);
        let is_lost = lost.is_some_and(|lost| lost > flight.acknowledged);
        // RFC 6582, step 1: after a timeout, unnecessary retransmissions may cause duplicates.
        let may_count = self.has_sack || flight.acknowledged > self.recover;
        if is_lost || self.duplicates >= DUPLICATES_LOST && may_count {
            self.mode = Mode::Fast;
            self.recover = flight.next;
            self.lost_before = lost.unwrap_or(flight.acknowledged).max(flight.acknowledged);
            self.resent = flight.acknowledged;
            self.is_forced = true;
            congestion.on_loss(flight.size());
            self.inflated = congestion.window() + DUPLICATES_LOST * flight.segment;
        }
    }

    /// Handles the acknowledgment of `count` bytes; `flight` are the data in flight after it.
    pub(crate) fn on_acknowledged(
        &mut self,
        count: u32,
        was_full: bool,
        flight: Flight,
        congestion: &mut Congestion,
    ) {
        self.duplicates = 0;
        self.scoreboard.advance(flight.acknowledged);
        self.resent = self.resent.max(flight.acknowledged);
        self.lost_before = self.lost_before.max(flight.acknowledged);
        let is_mended = flight.acknowledged >= self.recover;
        match self.mode {
            Mode::Open => congestion.on_acknowledged(count, was_full),
            Mode::Timeout => {
                congestion.on_acknowledged(count, true);
                if is_mended {
                    self.mode = Mode::Open;
                }
            }
            Mode::Fast if is_mended => {
                self.mode = Mode::Open;
                self.is_forced = false;
                congestion.on_mended(flight.size());
            }
            // A partial acknowledgment (RFC 6582, step 3): the next segment counts as lost, too.
            Mode::Fast if !self.has_sack => {
                self.is_forced = true;
                self.inflated = self.inflated.saturating_sub(count);
                if count >= flight.segment {
                    self.inflated += flight.segment;
                }
                self.inflated = self.inflated.max(flight.segment);
            }
            Mode::Fast => {}
        }
    }

    /// Handles a retransmission timeout: all unreported data count as lost. If the first segment
    /// was reported and is still not acknowledged, the peer has discarded reported data, and all
    /// reports are dropped (RFC 2018, section 8).
    pub(crate) fn on_timeout(&mut self, flight: Flight) {
        if self.scoreboard.has(flight.acknowledged) {
            self.scoreboard.clear();
        }
        self.mode = Mode::Timeout;
        self.recover = flight.next;
        self.duplicates = 0;
        self.lost_before = flight.next;
        self.resent = flight.acknowledged;
        self.is_forced = false;
    }

    /// The next lost part to retransmit, if the window permits it.
    pub(crate) fn next_again(&self, flight: Flight, window: u32) -> Option<(Sequence, Sequence)> {
        if self.mode == Mode::Open || flight.size() == 0 {
            return None;
        }
        if self.is_forced {
            return self
                .scoreboard
                .first_missing(flight.acknowledged, flight.next);
        }
        if self.is_counting() || self.in_flight(flight) >= window {
            return None;
        }
        let from = self.resent.max(flight.acknowledged);
        self.scoreboard
            .first_missing(from, self.lost_before.min(flight.next))
    }

    /// The next part to retransmit although it may only be delayed, if there are no new data to
    /// send (`NextSeg`, rule 3).
    pub(crate) fn next_perhaps(&self, flight: Flight, window: u32) -> Option<(Sequence, Sequence)> {
        if self.mode != Mode::Fast || !self.has_sack || self.in_flight(flight) >= window {
            return None;
        }
        let from = self.resent.max(flight.acknowledged);
        self.scoreboard.first_missing(from, self.scoreboard.end()?)
    }

    /// Records that the missing data before `end` have been retransmitted.
    pub(crate) fn on_sent_again(&mut self, end: Sequence) {
        self.resent = self.resent.max(end);
        self.is_forced = false;
    }

    /// Makes all data in flight be retransmitted in smaller segments, after a router has reported
    /// that one was too large.
    pub(crate) fn on_refused(&mut self, flight: Flight) {
        self.mode = Mode::Timeout;
        self.recover = flight.next;
        self.lost_before = flight.next;
        self.resent = flight.acknowledged;
        self.is_forced = true;
    }
}
