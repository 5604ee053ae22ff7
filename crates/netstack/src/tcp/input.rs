//! Handling of segments by a connection: RFC 9293, section 3.10.7.4, with RFC 5961 and RFC 7323, in
//! the order of the RFCs.

use std::time::Duration;

use super::inbox::InboxMemory;
use super::recovery::Mode;
use super::state::{Reason, Transition};
use super::timers::{ACK_DELAY, AckTimer, SendTimer};
use super::{Connection, Effects};
use crate::wire::sequence::Sequence;
use crate::wire::tcp::{Flags, Segment};

/// How long TS.Recent is valid: the peer's clock may have wrapped around after that (RFC 7323,
/// section 5.5).
const CLOCK_OUTDATED: Duration = Duration::from_secs(24 * 24 * 3600);

/// Unacknowledged segments with data after which an acknowledgment is sent at once (RFC 9293,
/// section 3.8.6.3, SHLD-19).
const SEGMENTS_PER_ACK: u8 = 2;

impl Connection {
    /// Handles a segment; its data are stored in `memory` as far as there is room.
    pub(crate) fn handle_segment(
        &mut self,
        now: Duration,
        segment: &Segment<'_>,
        memory: &mut InboxMemory,
    ) -> Effects {
        let effects = self.take_segment(now, segment, memory);
        if effects.next.is_none() {
            self.arm_send_timer(now);
        }
        effects
    }

    fn take_segment(
        &mut self,
        now: Duration,
        segment: &Segment<'_>,
        memory: &mut InboxMemory,
    ) -> Effects {
        let flags = segment.header.flags;
        if !flags.has(Flags::RST) && !self.is_timely(now, segment) {
            return Effects::default();
        }
        if !self.is_acceptable(segment) {
            if !flags.has(Flags::RST) {
                self.answer_unacceptable(now, segment);
            }
            return Effects::default();
        }
        if flags.has(Flags::RST) {
            return self.take_reset(now, segment);
        }
        if flags.has(Flags::SYN) {
            // RFC 5961, section 4: if the peer has lost the connection, it answers the challenge
            // with a reset.
            self.challenge(now);
            return Effects::default();
        }
        self.keep_alive.hear(now);
        if !flags.has(Flags::ACK) || !self.is_plausible(now, segment) {
            return Effects::default();
        }
        self.note_clock(now, segment);
        let mut effects = Effects::default();
        if let Some(next) = self.take_acknowledgment(now, segment, &mut effects) {
            let ended = self.go_on(now, next);
            if ended.next.is_some() {
                return ended;
            }
        }
        self.take_data(now, segment, memory, effects)
    }

    /// Protection against old segments (PAWS; RFC 7323, section 5.3, R1).
    fn is_timely(&mut self, now: Duration, segment: &Segment<'_>) -> bool {
        let Some(clocks) = self.agreed.timestamps else {
            return true;
        };
        let Some(timestamps) = segment.header.options.timestamps else {
            // Section 3.2: a segment without timestamps is silently dropped.
            return false;
        };
        let is_old = timestamps.value.wrapping_sub(clocks.recent).cast_signed() < 0;
        if is_old && now.saturating_sub(clocks.heard) < CLOCK_OUTDATED {
            self.challenge(now);
            return false;
        }
        true
    }

    /// Whether any part of the segment is in the window (section 3.10.7.4, table 6). A segment that
    /// starts at the edge of a closed window is accepted too, for its acknowledgment (MUST-66), and
    /// so is an empty segment at the very end of a window.
    fn is_acceptable(&self, segment: &Segment<'_>) -> bool {
        let (first, end) = (segment.header.sequence, segment.end());
        let begins_within = self.receive_next <= first && first < self.receive_edge;
        let ends_within = self.receive_next < end && end <= self.receive_edge;
        if segment.length() == 0 {
            self.receive_next <= first && first <= self.receive_edge
        } else {
            first == self.receive_next || begins_within || ends_within
        }
    }

    /// Sends the peer our sequence numbers. A segment with data needs that answer: the
    /// acknowledgment may have been lost.
    fn answer_unacceptable(&mut self, now: Duration, segment: &Segment<'_>) {
        let is_challenge = segment.header.flags.has(Flags::SYN) || segment.length() == 0;
        if is_challenge {
            self.challenge(now);
        } else {
            self.ack_timer = AckTimer::Now;
        }
    }

    /// Sends a challenge ACK (RFC 5961), within the rate limit.
    fn challenge(&mut self, now: Duration) {
        if self.challenges.permit(now) {
            self.ack_timer = AckTimer::Now;
        }
    }

    /// Handles a reset: valid only at exactly the expected sequence number; elsewhere in the window
    /// it may be a guess (RFC 5961, section 3).
    fn take_reset(&mut self, now: Duration, segment: &Segment<'_>) -> Effects {
        if segment.header.sequence != self.receive_next {
            self.challenge(now);
            return Effects::default();
        }
        self.end(Transition::Closed(Reason::Reset))
    }

    /// Whether the acknowledgment is for data that were sent, and not too old (RFC 5961, section
    /// 5). Nothing was sent before the first byte, however large the windows are.
    fn is_plausible(&mut self, now: Duration, segment: &Segment<'_>) -> bool {
        let acknowledgment = segment.header.acknowledgment;
        let span = self.send_window_max.min(self.acknowledged_count);
        let oldest = self.acknowledged - span;
        let latest = self.send_next.max(self.probe_end);
        let is_plausible = oldest <= acknowledgment && acknowledgment <= latest;
        if !is_plausible {
            self.challenge(now);
        }
        is_plausible
    }

    /// Updates TS.Recent (RFC 7323, section 4.3).
    fn note_clock(&mut self, now: Duration, segment: &Segment<'_>) {
        let acknowledged = self.acknowledgment_sent;
        if let (Some(clocks), Some(timestamps)) = (
            &mut self.agreed.timestamps,
            segment.header.options.timestamps,
        ) {
            let is_new = timestamps.value.wrapping_sub(clocks.recent).cast_signed() >= 0;
            let is_outdated = now.saturating_sub(clocks.heard) >= CLOCK_OUTDATED;
            if (is_new || is_outdated) && segment.header.sequence <= acknowledged {
                clocks.recent = timestamps.value;
                clocks.heard = now;
            }
        }
    }

    /// Handles the acknowledgment and the window. Returns the transition if our FIN is
    /// acknowledged.
    fn take_acknowledgment(
        &mut self,
        now: Duration,
        segment: &Segment<'_>,
        effects: &mut Effects,
    ) -> Option<Transition> {
        let header = &segment.header;
        let blocks = header.options.sack.as_slice();
        let has_news = self.agreed.sack && self.recovery.report(blocks, self.flight());
        let window = u32::from(header.window) << self.agreed.send_shift;
        if header.acknowledgment > self.acknowledged {
            self.advance(now, segment);
            effects.writable = self.has_room_again();
            if has_news {
                // SACK blocks of a segment that also advances count as well (RFC 6675, section 5,
                // step B).
                self.recovery
                    .on_duplicate(self.flight(), &mut self.congestion);
            }
        } else if header.acknowledgment == self.acknowledged {
            // RFC 5681, section 2: same number and window, no data, while data are outstanding.
            let is_duplicate = segment.length() == 0
                && window == self.send_window
                && self.send_next > self.acknowledged;
            let counts = if self.agreed.sack {
                has_news
            } else {
                is_duplicate
            };
            if counts {
                self.recovery
                    .on_duplicate(self.flight(), &mut self.congestion);
            }
        }
        self.update_window(segment, window);
        let fin_is_acknowledged = self.fin_was_sent() && self.acknowledged > self.queue_ends();
        fin_is_acknowledged.then(|| self.phase.on_fin_acknowledged())
    }

    /// Releases newly acknowledged data.
    fn advance(&mut self, now: Duration, segment: &Segment<'_>) {
        let acknowledgment = segment.header.acknowledgment;
        let before = self.flight();
        let window = self.recovery.window(&self.congestion);
        let was_full = self.recovery.in_flight(before) + before.segment >= window;
        let count = acknowledgment.since(self.acknowledged);
        let data = acknowledgment
            .min(self.queue_ends())
            .since(self.queue_begins);
        self.queue.release(data as usize);
        self.queue_begins += data;
        self.acknowledged = acknowledgment;
        self.acknowledged_count = self.acknowledged_count.saturating_add(count);
        self.send_next = self.send_next.max(acknowledgment);
        self.time_round_trip(now, segment);
        self.timeouts = 0;
        self.unheard_since = None;
        let flight = self.flight();
        self.recovery
            .on_acknowledged(count, was_full, flight, &mut self.congestion);
        // RFC 6298, sections 5.2 and 5.3: the timer is restarted, or stopped.
        if matches!(self.send_timer, SendTimer::Acknowledgment(_)) {
            self.send_timer = SendTimer::Off;
        }
        if let Some(until) = &mut self.orphan_until {
            *until = now + self.time_wait;
        }
    }

    /// Measures the round trip by RFC 7323, section 4.1, with timestamps; otherwise by the one
    /// timed segment (RFC 6298, section 3).
    fn time_round_trip(&mut self, now: Duration, segment: &Segment<'_>) {
        if let (Some(clocks), Some(timestamps)) =
            (self.agreed.timestamps, segment.header.options.timestamps)
        {
            let elapsed = clocks.now(now).wrapping_sub(timestamps.echo);
            // An echo from the future, or from weeks ago, is invalid.
            let is_ours = elapsed < u32::MAX / 2;
            if is_ours && !self.is_late(timestamps.echo) {
                let sample = Duration::from_millis(u64::from(elapsed));
                self.round_trip.sample(sample);
            }
        } else if let Some((end, sent)) = self.timed
            && end <= self.acknowledged
        {
            self.timed = None;
            self.round_trip.sample(now.saturating_sub(sent));
        }
    }

    /// Whether an acknowledgment is for the original transmission of retransmitted data. Its
    /// predecessor was lost then, so the elapsed time includes the timeout: such samples would
    /// double the timeout with each lost acknowledgment.
    fn is_late(&mut self, echo: u32) -> bool {
        let Some((end, began)) = self.resent else {
            return false;
        };
        if end <= self.acknowledged {
            self.resent = None;
        }
        echo.wrapping_sub(began).cast_signed() < 0
    }

    /// Whether the application waits for room, and there is enough of it again.
    fn has_room_again(&mut self) -> bool {
        let is_enough = self.wants_room && self.room() >= self.queue_max / 4;
        if is_enough {
            self.wants_room = false;
        }
        is_enough
    }

    /// Updates SND.WND from the newest segment (section 3.10.7.4; MUST-34: it may also shrink).
    fn update_window(&mut self, segment: &Segment<'_>, window: u32) {
        let header = &segment.header;
        let is_newer = self.window_sequence < header.sequence
            || self.window_sequence == header.sequence
                && self.window_acknowledgment <= header.acknowledgment;
        if header.acknowledgment < self.acknowledged || !is_newer {
            return;
        }
        if self.send_window == 0 {
            // The peer has answered a probe, and counts as alive as long as it answers (section
            // 3.8.6.1).
            self.unheard_since = None;
            if window > 0 {
                self.round_trip.forget_back_off();
                self.send_timer = SendTimer::Off;
                self.timeouts = 0;
            }
        }
        self.send_window = window;
        self.send_window_max = self.send_window_max.max(window);
        self.window_sequence = header.sequence;
        self.window_acknowledgment = header.acknowledgment;
    }

    /// Handles data and FIN.
    fn take_data(
        &mut self,
        now: Duration,
        segment: &Segment<'_>,
        memory: &mut InboxMemory,
        mut effects: Effects,
    ) -> Effects {
        if segment.length() == 0 {
            return effects;
        }
        if !self.phase.may_receive() {
            // A retransmitted FIN: its acknowledgment was lost.
            self.ack_timer = AckTimer::Now;
            return effects;
        }
        let known = self.receive_next.since(segment.header.sequence) as usize;
        let fitting = self.receive_edge.since(segment.header.sequence) as usize;
        let from = segment.header.sequence.max(self.receive_next);
        let end = segment.data.len().min(fitting);
        let data = segment.data.get(known..end).unwrap_or_default();
        if self.is_orphan && !data.is_empty() {
            return self.abort();
        }
        if data.len() > memory.room {
            return effects;
        }
        let has_fin = segment.header.flags.has(Flags::FIN) && end == segment.data.len();
        if has_fin && self.fin_at.is_none() {
            self.fin_at = Some(segment.end() - 1);
        }
        effects.readable |= self.keep(now, from, data, memory);
        if data.len() < segment.data.len() {
            self.ack_timer = AckTimer::Now;
        }
        if self.fin_at != Some(self.receive_next) {
            return effects;
        }
        self.receive_next += 1;
        self.receive_edge = self.receive_edge.max(self.receive_next);
        self.inbox.ended = true;
        self.ack_timer = AckTimer::Now;
        let ended = self.go_on(now, self.phase.on_fin());
        Effects {
            readable: true,
            writable: effects.writable,
            ..ended
        }
    }

    /// Stores data in order. Returns whether the application can read more.
    fn keep(
        &mut self,
        now: Duration,
        from: Sequence,
        data: &[u8],
        memory: &mut InboxMemory,
    ) -> bool {
        if data.is_empty() {
            return false;
        }
        if from != self.receive_next {
            // Acknowledged at once, so that the peer learns of the gap (RFC 5681, section 4.2).
            self.reassembly.insert(from, data);
            self.ack_timer = AckTimer::Now;
            return false;
        }
        self.inbox.push(data, memory);
        self.receive_next += data.len() as u32;
        self.segments_unacknowledged = self.segments_unacknowledged.saturating_add(1);
        let filled_a_gap = !self.reassembly.is_empty();
        while let Some(more) = self.reassembly.take(self.receive_next) {
            self.inbox.push(&more, memory);
            self.receive_next += more.len() as u32;
        }
        if filled_a_gap || self.segments_unacknowledged >= SEGMENTS_PER_ACK {
            self.ack_timer = AckTimer::Now;
        } else if self.ack_timer == AckTimer::Off {
            self.ack_timer = AckTimer::Delayed(now + ACK_DELAY);
        }
        true
    }

    /// Handles ICMP's report that a segment of ours with the don't-fragment bit was too large (RFC
    /// 1191, section 6.4). Only outstanding data can have been rejected (RFC 5927, section 4.1).
    pub(crate) fn handle_too_large(&mut self, sequence: Sequence, segment_max: u16) {
        let is_ours = self.acknowledged <= sequence && sequence < self.send_next;
        if !is_ours || segment_max >= self.agreed.segment_max {
            return;
        }
        self.agreed.segment_max = segment_max;
        self.congestion.set_segment(self.segment());
        if self.recovery.mode == Mode::Open {
            self.recovery.on_refused(self.flight());
        }
        self.timed = None;
    }
}
