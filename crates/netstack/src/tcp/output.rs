//! Selection of the next segment to send: a retransmission, new data, a FIN, a probe, or a bare
//! acknowledgment.

use std::time::Duration;

use super::recovery::{Flight, Mode};
use super::timers::AckTimer;
use super::{Connection, Outgoing};
use crate::wire::sequence::Sequence;
use crate::wire::tcp::{Flags, Options, SACK_BLOCKS_MAX, Timestamps};

/// Whether a segment may carry our FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fin {
    Yes,
    No,
}

impl Connection {
    /// The next segment to send, or `None` if there is none now. Call it until it returns `None`.
    pub(crate) fn poll_segment(&mut self, now: Duration) -> Option<Outgoing> {
        let segment = self.next_segment(now);
        self.arm_send_timer(now);
        segment
    }

    fn next_segment(&mut self, now: Duration) -> Option<Outgoing> {
        if self.probe_is_due {
            self.probe_is_due = false;
            return Some(self.probe(now));
        }
        let window = self.recovery.window(&self.congestion);
        let flight = self.flight();
        let may_send_again = self.recovery.mode != Mode::Open && self.send_window > 0;
        if may_send_again && let Some((from, to)) = self.recovery.next_again(flight, window) {
            return Some(self.send_again(now, from, to));
        }
        if let Some((length, fin)) = self.next_new(flight, window) {
            return Some(self.send_new(now, length, fin));
        }
        if may_send_again && let Some((from, to)) = self.recovery.next_perhaps(flight, window) {
            return Some(self.send_again(now, from, to));
        }
        if self.keep_alive.is_due {
            // The probe repeats the last sequence number, which has been acknowledged (section
            // 3.8.4).
            self.keep_alive.is_due = false;
            return Some(self.segment_at(now, self.send_next - 1, 0, Fin::No));
        }
        match self.ack_timer {
            AckTimer::Now => {
                // A window that has shrunk may end before SND.NXT; the peer would drop a segment
                // beyond its window.
                let edge = self.acknowledged + self.send_window;
                Some(self.segment_at(now, self.send_next.min(edge), 0, Fin::No))
            }
            AckTimer::Off | AckTimer::Delayed(_) => None,
        }
    }

    /// Whether [`poll_segment`](Self::poll_segment) may return a segment. If this is `false`, it
    /// returns `None`.
    pub(crate) fn may_have_segment(&self) -> bool {
        self.probe_is_due
            || self.keep_alive.is_due
            || self.ack_timer == AckTimer::Now
            || self.has_unsent()
            || self.recovery.mode != Mode::Open
    }

    /// The data in flight: sent, but not acknowledged.
    pub(crate) fn flight(&self) -> Flight {
        Flight {
            acknowledged: self.acknowledged,
            next: self.send_next,
            segment: self.segment(),
        }
    }

    /// Whether there are data, or a FIN, that have never been sent.
    pub(crate) fn has_unsent(&self) -> bool {
        self.queue_ends() > self.send_next || self.is_finished && !self.fin_was_sent()
    }

    /// The number of new bytes to send now, and whether a FIN follows them; `None` if no segment
    /// may be sent. Respects the congestion window (RFC 5681) and avoids the silly window syndrome
    /// (section 3.8.6.2.1).
    fn next_new(&self, flight: Flight, congestion_window: u32) -> Option<(u32, Fin)> {
        if !self.has_unsent() {
            return None;
        }
        let data = self.queue_ends().since(self.send_next);
        let usable = (self.acknowledged + self.send_window).since(self.send_next);
        let in_flight = self.recovery.in_flight(flight);
        let allowed = usable.min(congestion_window.saturating_sub(in_flight));
        let length = data.min(allowed).min(flight.segment);
        let is_last = length == data;
        let fin = if self.is_finished && is_last && allowed > length {
            Fin::Yes
        } else {
            Fin::No
        };
        let is_alone = flight.size() == 0;
        let may_go = length == flight.segment
            || fin == Fin::Yes
            || length > 0 && is_last && (self.no_delay || is_alone)
            || length > 0 && length == usable && length >= self.send_window_max / 2;
        may_go.then_some((length, fin))
    }

    /// A segment with new data, and the FIN if `fin` permits it.
    fn send_new(&mut self, now: Duration, length: u32, fin: Fin) -> Outgoing {
        if self.acknowledged == self.send_next {
            let idle = now.saturating_sub(self.last_sent);
            self.congestion.on_idle(idle, self.round_trip.timeout());
        }
        let outgoing = self.segment_at(now, self.send_next, length, fin);
        self.send_next = end_of(&outgoing);
        self.last_sent = now;
        if self.timed.is_none() && self.agreed.timestamps.is_none() {
            self.timed = Some((self.send_next, now));
        }
        outgoing
    }

    /// A retransmission of data between `from` and `to`.
    fn send_again(&mut self, now: Duration, from: Sequence, to: Sequence) -> Outgoing {
        let length = to.min(self.queue_ends()).since(from).min(self.segment());
        let fin = if to > self.queue_ends() {
            Fin::Yes
        } else {
            Fin::No
        };
        let outgoing = self.segment_at(now, from, length, fin);
        let end = end_of(&outgoing);
        self.recovery.on_sent_again(end);
        self.sent_again += 1;
        self.timed = None;
        if let Some(clocks) = self.agreed.timestamps {
            let (before, began) = self.resent.unwrap_or((end, clocks.now(now)));
            self.resent = Some((before.max(end), began));
        }
        outgoing
    }

    /// A window probe: one byte or a FIN if the window is zero, otherwise as much as fits into the
    /// small window.
    fn probe(&mut self, now: Duration) -> Outgoing {
        let data = self.queue_ends().since(self.acknowledged);
        let length = data.min(self.send_window.clamp(1, self.segment()));
        let fin = if self.is_finished && (data == 0 || self.send_window > data) {
            Fin::Yes
        } else {
            Fin::No
        };
        let outgoing = self.segment_at(now, self.acknowledged, length, fin);
        let end = end_of(&outgoing);
        if self.send_window > 0 {
            self.send_next = self.send_next.max(end);
        }
        self.probe_end = self.probe_end.max(end);
        self.timed = None;
        outgoing
    }

    /// A segment with `length` bytes from `sequence` on, or fewer if the options leave less room.
    /// It carries the FIN only if its bytes are the last.
    fn segment_at(&mut self, now: Duration, sequence: Sequence, length: u32, fin: Fin) -> Outgoing {
        let options = self.options(now);
        let room = u32::from(self.agreed.segment_max).saturating_sub(options.length() as u32);
        let length = length.min(room);
        let is_last = sequence + length == self.queue_ends();
        let mut flags = Flags::ACK;
        if length > 0 && is_last {
            flags = flags.with(Flags::PSH);
        }
        if fin == Fin::Yes && is_last {
            flags = flags.with(Flags::FIN);
        }
        let window = self.offer_window();
        self.ack_timer = AckTimer::Off;
        self.segments_unacknowledged = 0;
        self.acknowledgment_sent = self.receive_next;
        Outgoing {
            sequence,
            acknowledgment: self.receive_next,
            flags,
            window,
            options,
            offset: sequence.since(self.queue_begins) as usize,
            length: length as usize,
        }
    }

    /// The options of a segment without SYN.
    fn options(&self, now: Duration) -> Options {
        let timestamps = self.agreed.timestamps.map(|clocks| Timestamps {
            value: clocks.now(now),
            echo: clocks.recent,
        });
        let mut options = Options {
            timestamps,
            ..Options::default()
        };
        if self.agreed.sack && !self.reassembly.is_empty() {
            let count_max = match timestamps {
                Some(_) => SACK_BLOCKS_MAX - 1,
                None => SACK_BLOCKS_MAX,
            };
            options.sack = self.reassembly.report(count_max);
        }
        options
    }

    /// The end of the receive window. It advances only in steps of a segment, or of half the buffer
    /// (section 3.8.6.2.2), to avoid the silly window syndrome.
    pub(crate) fn window_edge(&self) -> Sequence {
        let free = self.receive_max.saturating_sub(self.inbox.len() as u32);
        let edge = self.receive_next + free;
        let step = (self.receive_max / 2).min(u32::from(self.agreed.segment_max));
        if edge.since(self.receive_edge) >= step {
            edge
        } else {
            self.receive_edge
        }
    }

    /// The window field of a segment that is sent now. It is rounded up, so that the window's end
    /// never moves back.
    fn offer_window(&mut self) -> u16 {
        let shift = self.agreed.receive_shift;
        let wanted = self.window_edge().since(self.receive_next);
        let field = wanted.div_ceil(1 << shift).min(u32::from(u16::MAX));
        let edge = self.receive_next + (field << shift);
        self.receive_edge = self.receive_edge.max(edge);
        field as u16
    }
}

/// The sequence number after a segment.
fn end_of(outgoing: &Outgoing) -> Sequence {
    let fin = u32::from(outgoing.flags.has(Flags::FIN));
    outgoing.sequence + outgoing.length as u32 + fin
}
