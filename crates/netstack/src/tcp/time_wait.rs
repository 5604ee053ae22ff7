//! TIME-WAIT: the remainder of a connection whose segments may still be in the network (RFC 9293,
//! section 3.6).

use std::time::Duration;

use super::challenge::Challenges;
use super::inbox::Inbox;
use super::state::{Reason, State};
use super::{Clocks, Connection, Effects, Outgoing, clock};
use crate::wire::sequence::Sequence;
use crate::wire::tcp::{Flags, Options, Segment, Timestamps};

/// Minimum distance between the last sequence number of a connection and the initial one of the
/// next connection between the same endpoints.
const REUSE_DISTANCE: u32 = 65_535;

/// The state that is needed to answer late segments, and the data that the application has not
/// read.
#[derive(Debug)]
pub(crate) struct TimeWait {
    until: Duration,
    lasts: Duration,
    send_next: Sequence,
    receive_next: Sequence,
    window: u16,
    timestamps: Option<Clocks>,
    pub(crate) inbox: Inbox,
    challenges: Challenges,
    /// Whether an acknowledgment is due.
    is_due: bool,
}

impl TimeWait {
    /// The state of a connection after both directions have ended.
    pub(crate) fn new(until: Duration, connection: &mut Connection) -> TimeWait {
        let left = connection.receive_edge.since(connection.receive_next);
        let window = left.div_ceil(1 << connection.agreed.receive_shift);
        TimeWait {
            until,
            lasts: connection.time_wait,
            send_next: connection.send_next,
            receive_next: connection.receive_next,
            window: u16::try_from(window).unwrap_or(u16::MAX),
            timestamps: connection.agreed.timestamps,
            inbox: std::mem::take(&mut connection.inbox),
            challenges: Challenges::default(),
            // The last FIN may not be acknowledged yet.
            is_due: connection.acknowledgment_sent != connection.receive_next,
        }
    }

    /// The end of TIME-WAIT.
    pub(crate) fn deadline(&self) -> Duration {
        self.until
    }

    /// Handles the timer: at its deadline the connection is closed.
    pub(crate) fn handle_timeout(&mut self, now: Duration) -> Effects {
        if self.until > now {
            return Effects::default();
        }
        let inbox = std::mem::take(&mut self.inbox);
        Effects {
            next: Some(Box::new(State::Closed(Reason::Finished, inbox))),
            ..Effects::default()
        }
    }

    /// Handles a segment of this connection, or the SYN of the next one.
    pub(crate) fn handle_segment(&mut self, now: Duration, segment: &Segment<'_>) -> Effects {
        let header = &segment.header;
        // RFC 1337: a late reset must not end TIME-WAIT.
        if header.flags.has(Flags::RST) {
            return Effects::default();
        }
        if header.flags.has(Flags::SYN) && !header.flags.has(Flags::ACK) && self.is_new(segment) {
            return Effects {
                reuse: Some(self.send_next + REUSE_DISTANCE),
                ..Effects::default()
            };
        }
        let is_fin_again = header.flags.has(Flags::FIN) && segment.end() == self.receive_next;
        if is_fin_again {
            self.until = now + self.lasts;
        }
        let says_nothing = segment.length() == 0 && header.sequence == self.receive_next;
        if !says_nothing && self.challenges.permit(now) {
            self.is_due = true;
        }
        Effects::default()
    }

    /// Whether a SYN starts a new connection, and is no old duplicate (RFC 9293, MAY-2; RFC 6191,
    /// section 2).
    fn is_new(&self, segment: &Segment<'_>) -> bool {
        let theirs = segment.header.options.timestamps;
        if let (Some(clocks), Some(timestamps)) = (self.timestamps, theirs) {
            let elapsed = timestamps.value.wrapping_sub(clocks.recent).cast_signed();
            if elapsed != 0 {
                return elapsed > 0;
            }
        }
        segment.header.sequence > self.receive_next
    }

    /// The acknowledgment, if one is due.
    pub(crate) fn poll_segment(&mut self, now: Duration) -> Option<Outgoing> {
        if !std::mem::take(&mut self.is_due) {
            return None;
        }
        let timestamps = self.timestamps.map(|clocks| Timestamps {
            value: clock(now, clocks.offset),
            echo: clocks.recent,
        });
        Some(Outgoing {
            window: self.window,
            options: Options {
                timestamps,
                ..Options::default()
            },
            ..Outgoing::bare(self.send_next, self.receive_next, Flags::ACK)
        })
    }
}
