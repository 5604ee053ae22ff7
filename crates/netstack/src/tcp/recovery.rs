//! What is known of losses, and what follows: NewReno (RFC 6582) for peers without selective
//! acknowledgments, RFC 6675 for those with them, RFC 5681 for both, RFC 3042 before it is certain.
//!
//! ```text
//!            three duplicates, or a segment that is lost by its SACK blocks
//!  Open ────────────────────────────────────────────────────────────────────▶ Fast
//!   ▲ ▲                                                                        │
//!   │ └──────────────── everything sent before that is acknowledged ───────────┤
//!   │                                                                          │ timeout
//!   └──── everything sent before that is acknowledged ──── Timeout ◀───────────┘ (from Open, too)
//! ```
//!
//! In `Fast` without SACK exactly one segment is lost, the first one, and each acknowledgment of a
//! part says so of the next. Everywhere else all that lies before `lost_before`, and was not
//! reported, is lost, and is sent again from `resent` on.

use super::congestion::Congestion;
use super::scoreboard::{DUPLICATES_LOST, Scoreboard};
use crate::wire::sequence::Sequence;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Nothing is known to be lost.
    Open,
    /// Acknowledgments have told of a loss.
    Fast,
    /// Acknowledgments did not come at all.
    Timeout,
}

/// The sending end's picture of what is on its way.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) mode: Mode,
    has_sack: bool,
    /// Once this is acknowledged, the loss is mended (`recover`, RecoveryPoint).
    recover: Sequence,
    duplicates: u32,
    lost_before: Sequence,
    /// What has been sent again ends here (HighRxt).
    resent: Sequence,
    /// The first segment is to be sent again whatever is in flight (RFC 6675, section 5, step 4.3).
    is_forced: bool,
    /// The window of NewReno, inflated by what duplicates say has left the network.
    inflated: u32,
    scoreboard: Scoreboard,
}

/// The places of a connection that its losses are about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) acknowledged: Sequence,
    pub(crate) next: Sequence,
    pub(crate) segment: u32,
}

impl Flight {
    /// Bytes that have not been acknowledged (FlightSize).
    pub(crate) fn size(&self) -> u32 {
        self.next.since(self.acknowledged)
    }
}

impl Recovery {
    /// Nothing has been sent but a SYN with the number `initial`.
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

    /// NewReno's way, in which only the first segment is known to be lost.
    fn is_counting(&self) -> bool {
        self.mode == Mode::Fast && !self.has_sack
    }

    /// Bytes that are on their way as far as is known (`SetPipe` of RFC 6675).
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
            // Limited transmit (RFC 3042): the first two duplicates let one new segment go each.
            let left = self.duplicates.min(DUPLICATES_LOST - 1) * flight.segment;
            return first_time.saturating_sub(left);
        }
        again + first_time
    }

    /// Bytes that may be on their way.
    pub(crate) fn window(&self, congestion: &Congestion) -> u32 {
        if self.is_counting() {
            self.inflated
        } else {
            congestion.window()
        }
    }

    /// Notes what the other end reports to have. Whether any of it is news.
    pub(crate) fn report(&mut self, blocks: &[(Sequence, Sequence)], flight: Flight) -> bool {
        let mut has_news = false;
        for &(from, to) in blocks {
            // A block below what is acknowledged tells of a duplicate (RFC 2883); one that was
            // never sent is none. Both ends are measured from one place: a block of half of all
            // numbers would be behind the first and before the last by the order of two at a time.
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

    /// A duplicate acknowledgment, or one with news of what has come behind a gap.
    pub(crate) fn on_duplicate(&mut self, flight: Flight, congestion: &mut Congestion) {
        self.duplicates += 1;
        if self.is_counting() {
            // Step 3: a segment has left the network.
            self.inflated = self.inflated.saturating_add(flight.segment);
        }
        if self.mode != Mode::Open {
            return;
        }
        let lost = self.scoreboard.lost_before(flight.segment);
        let is_lost = lost.is_some_and(|lost| lost > flight.acknowledged);
        // RFC 6582, step 1: after a timeout, duplicates may come from what was sent in vain.
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

    /// `count` bytes were acknowledged; `flight` is what is left.
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
            // A partial acknowledgment (RFC 6582, step 3): the next segment is lost as well.
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

    /// No acknowledgment has come: everything counts as lost that was not reported. A first segment
    /// that was reported and is not acknowledged says that reports do not hold (RFC 2018, section
    /// 8).
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

    /// The part to send again now, if there is any and `window` allows it.
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

    /// The part to send again although it may only be late, when nothing new may be sent
    /// (`NextSeg`, rule 3).
    pub(crate) fn next_perhaps(&self, flight: Flight, window: u32) -> Option<(Sequence, Sequence)> {
        if self.mode != Mode::Fast || !self.has_sack || self.in_flight(flight) >= window {
            return None;
        }
        let from = self.resent.max(flight.acknowledged);
        self.scoreboard.first_missing(from, self.scoreboard.end()?)
    }

    /// Everything that was missing up to `end` has been sent again.
    pub(crate) fn on_sent_again(&mut self, end: Sequence) {
        self.resent = self.resent.max(end);
        self.is_forced = false;
    }

    /// What of `flight` has to be sent anew in smaller segments because a router has refused it.
    pub(crate) fn on_refused(&mut self, flight: Flight) {
        self.mode = Mode::Timeout;
        self.recover = flight.next;
        self.lost_before = flight.next;
        self.resent = flight.acknowledged;
        self.is_forced = true;
    }
}
