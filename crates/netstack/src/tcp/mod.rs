//! TCP: RFC 9293 with what its section 3.8 and later RFCs add.
//!
//! Read `state.rs` first, which has the diagram. A connection starts in `handshake.rs` or by a SYN
//! `cookie`, is a `Connection` while data flow, and ends in `time_wait.rs`. Of a `Connection`,
//! `input.rs` handles segments, `output.rs` selects the next segment to send, and `timers.rs`
//! handles timeouts. They share parts with files of their own: `queue.rs` (sent data), `inbox.rs`
//! and `reassembly.rs` (received data), `recovery.rs` with `scoreboard.rs` (losses),
//! `congestion.rs` (the congestion window), `round_trip.rs` (the retransmission timeout).
//!
//! Nothing here knows frames, hardware addresses, or other connections.

pub(crate) mod challenge;
mod congestion;
pub(crate) mod cookie;
pub(crate) mod handshake;
pub(crate) mod inbox;
mod input;
mod output;
mod queue;
mod reassembly;
mod recovery;
mod round_trip;
mod scoreboard;
mod secret;
mod state;
pub(crate) mod time_wait;
mod timers;

use std::hash::{Hash, Hasher};
use std::net::SocketAddrV4;
use std::time::Duration;

use bytes::Bytes;

use crate::wire::sequence::Sequence;
use crate::wire::tcp::{Flags, Options, Segment, WINDOW_SHIFT_MAX};
use challenge::Challenges;
use congestion::Congestion;
use inbox::{Inbox, InboxMemory};
use queue::Queue;
use reassembly::Reassembly;
use recovery::Recovery;
use round_trip::RoundTrip;
use time_wait::TimeWait;
use timers::{AckTimer, KeepAliveTimer, SendTimer};

pub use queue::Prebuilt;
pub use secret::Secret;
pub use state::Reason;
pub use timers::KeepAlive;

pub(crate) use secret::Purpose;
pub(crate) use state::{Phase, State, Transition};

/// The segment size for a peer that announces none (RFC 9293, section 3.7.1, MUST-15).
pub(crate) const SEGMENT_DEFAULT: u16 = 536;

/// The smallest segment size used, whatever the peer announces: with smaller segments, most of the
/// traffic would be headers.
pub(crate) const SEGMENT_MIN: u16 = 48;

/// The endpoints of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// Address and port of the stack.
    pub local: SocketAddrV4,
    /// Address and port of the peer.
    pub remote: SocketAddrV4,
}

impl Hash for Tuple {
    /// Hashes two words instead of six fields, since each segment is looked up by its tuple.
    fn hash<H: Hasher>(&self, state: &mut H) {
        for end in [self.local, self.remote] {
            state.write_u64(u64::from(end.ip().to_bits()) << 16 | u64::from(end.port()));
        }
    }
}

/// The settings of one connection.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The maximum segment size announced to peers: the MTU minus 40 bytes.
    pub segment_max: u16,
    /// Limit of received bytes that the application has not read, which is the announced window.
    pub receive_max: u32,
    /// Limit of bytes that wait to be sent or acknowledged.
    pub send_max: u32,
    /// Whether timestamps are offered and accepted (RFC 7323).
    pub timestamps: bool,
    /// Whether selective acknowledgments are offered and accepted (RFC 2018).
    pub sack: bool,
    /// Whether windows may be larger than 64 KB (RFC 7323).
    pub window_scale: bool,
    /// Whether a partial segment is sent while earlier data are unacknowledged (disables Nagle's
    /// algorithm, SHLD-7).
    pub no_delay: bool,
    /// Duration of TIME-WAIT: two maximum segment lifetimes. The RFC assumes two minutes for one;
    /// systems use between half a minute and two minutes for both.
    pub time_wait: Duration,
    /// How long the peer may leave data unacknowledged: R2 of RFC 9293, section 3.8.3, at least
    /// three minutes for a SYN (MUST-23).
    pub give_up: Duration,
    /// The values of the clocks of sequence numbers and timestamps at the stack's start. With a
    /// secret that outlives the stack, the clocks continue those of the previous stack (RFC 6528,
    /// section 3), so that a peer can tell new connections from those that it has in TIME-WAIT.
    pub clock_begins: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            segment_max: 1460,
            receive_max: 256 * 1024,
            send_max: 256 * 1024,
            timestamps: true,
            sack: true,
            window_scale: true,
            no_delay: true,
            time_wait: Duration::from_secs(60),
            give_up: Duration::from_secs(180),
            clock_begins: Duration::ZERO,
        }
    }
}

impl Settings {
    /// The window scale that makes all windows fit into 16 bits.
    fn window_shift(&self) -> u8 {
        (0..WINDOW_SHIFT_MAX)
            .find(|shift| self.receive_max >> shift <= u32::from(u16::MAX))
            .unwrap_or(WINDOW_SHIFT_MAX)
    }

    /// The window of a SYN, which is never scaled (RFC 7323, section 2.2).
    fn window_first(&self) -> u16 {
        u16::try_from(self.receive_max).unwrap_or(u16::MAX)
    }
}

/// The options negotiated in both SYNs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NegotiatedOptions {
    /// Maximum length of options and data in segments to the peer.
    segment_max: u16,
    /// Whether windows are scaled, and by how many bits.
    is_scaled: bool,
    send_shift: u8,
    receive_shift: u8,
    sack: bool,
    timestamps: Option<Clocks>,
}

/// The timestamp clocks of both ends (RFC 7323).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    /// The offset of our clock, in milliseconds.
    offset: u32,
    /// TS.Recent, and when it was received.
    recent: u32,
    heard: Duration,
}

impl Clocks {
    fn now(&self, now: Duration) -> u32 {
        clock(now, self.offset)
    }
}

/// Our timestamp clock for a connection, in milliseconds (RFC 7323, section 5.4, permits ticks
/// between 1 ms and 1 s).
pub(crate) fn clock(now: Duration, offset: u32) -> u32 {
    (now.as_millis() as u32).wrapping_add(offset)
}

impl NegotiatedOptions {
    /// The options that result from the peer's offer and our settings.
    pub(crate) fn new(
        settings: &Settings,
        offer: &Options,
        now: Duration,
        clock: u32,
    ) -> NegotiatedOptions {
        let shifts = offer.window_shift.filter(|_| settings.window_scale);
        let segment = offer.segment_max.unwrap_or(SEGMENT_DEFAULT);
        let timestamps = offer.timestamps.filter(|_| settings.timestamps);
        NegotiatedOptions {
            segment_max: segment.min(settings.segment_max).max(SEGMENT_MIN),
            is_scaled: shifts.is_some(),
            send_shift: shifts.unwrap_or_default(),
            receive_shift: shifts.map_or(0, |_| settings.window_shift()),
            sack: offer.sack_permitted && settings.sack,
            timestamps: timestamps.map(|timestamps| Clocks {
                offset: clock,
                recent: timestamps.value,
                heard: now,
            }),
        }
    }
}

impl NegotiatedOptions {
    /// Maximum length of options and data in a segment.
    pub(crate) fn segment_max(&self) -> u16 {
        self.segment_max
    }

    /// The options that a SYN cookie can carry: without timestamps the window scale cannot be
    /// recovered.
    pub(crate) fn for_cookie(mut self) -> NegotiatedOptions {
        if self.timestamps.is_none() {
            self.is_scaled = false;
            self.sack = false;
        }
        self
    }
}

/// A segment to send. Its ports are the connection's, and its data are in the connection's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) sequence: Sequence,
    pub(crate) acknowledgment: Sequence,
    pub(crate) flags: Flags,
    pub(crate) window: u16,
    pub(crate) options: Options,
    /// The offset of the data in the queue, and their length.
    pub(crate) offset: usize,
    pub(crate) length: usize,
}

impl Outgoing {
    /// A segment with nothing but flags.
    pub(crate) fn bare(sequence: Sequence, acknowledgment: Sequence, flags: Flags) -> Outgoing {
        Outgoing {
            sequence,
            acknowledgment,
            flags,
            window: 0,
            options: Options::default(),
            offset: 0,
            length: 0,
        }
    }

    /// The reset for a segment without a connection (RFC 9293, section 3.10.7.1); `None` for a
    /// reset.
    pub(crate) fn reset_for(segment: &Segment<'_>) -> Option<Outgoing> {
        let header = &segment.header;
        if header.flags.has(Flags::RST) {
            return None;
        }
        Some(if header.flags.has(Flags::ACK) {
            Outgoing::bare(header.acknowledgment, Sequence(0), Flags::RST)
        } else {
            let flags = Flags::RST.with(Flags::ACK);
            Outgoing::bare(Sequence(0), segment.end(), flags)
        })
    }
}

/// The effects of an event beyond the connection's own state.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// The state that replaces this one.
    pub(crate) next: Option<Box<State>>,
    /// A reset to send.
    pub(crate) reset: Option<Box<Outgoing>>,
    /// Data, the end of data or an error can be received.
    pub(crate) readable: bool,
    /// There is room for sending again.
    pub(crate) writable: bool,
    /// A SYN starts a new connection between the same endpoints; its initial sequence number must
    /// be this one or later.
    pub(crate) reuse: Option<Sequence>,
}

impl Effects {
    /// The connection ended before it was established.
    pub(crate) fn closed(reason: Reason) -> Effects {
        Effects {
            next: Some(Box::new(State::Closed(reason, Inbox::default()))),
            readable: true,
            writable: true,
            ..Effects::default()
        }
    }
}

/// Why a call of the application failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// There is no such connection (any more).
    Unknown,
    /// The connection is not established yet.
    Connecting,
    /// The application has finished sending.
    Finished,
    /// The connection has ended.
    Ended(Reason),
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CallError::Unknown => f.write_str("no such connection"),
            CallError::Connecting => f.write_str("the connection does not stand yet"),
            CallError::Finished => f.write_str("this end has finished"),
            CallError::Ended(reason) => write!(f, "the connection has ended: {reason:?}"),
        }
    }
}

impl std::error::Error for CallError {}

/// A synchronized connection. The RFC's names of the variables (section 3.3.1) are given with ours.
#[derive(Debug)]
pub(crate) struct Connection {
    phase: Phase,
    agreed: NegotiatedOptions,
    no_delay: bool,
    give_up: Duration,
    time_wait: Duration,
    /// The application has released the connection, so received data are not kept.
    pub(crate) is_orphan: bool,

    /// SND.UNA: the first unacknowledged sequence number.
    acknowledged: Sequence,
    /// Bytes acknowledged so far; saturates beyond any possible window.
    acknowledged_count: u32,
    /// SND.NXT: the next sequence number for new data.
    send_next: Sequence,
    /// SND.WND, and the largest window so far.
    send_window: u32,
    send_window_max: u32,
    /// SND.WL1 and SND.WL2: the segment that announced the window.
    window_sequence: Sequence,
    window_acknowledgment: Sequence,
    /// The data from `queue_begins` on.
    queue: Queue,
    queue_begins: Sequence,
    queue_max: usize,
    /// Whether a FIN follows the queue.
    is_finished: bool,
    /// Whether the application waits for room.
    wants_room: bool,
    congestion: Congestion,
    recovery: Recovery,
    round_trip: RoundTrip,
    /// The segment whose round trip is timed, by its end; used without timestamps.
    timed: Option<(Sequence, Duration)>,
    /// The end of retransmitted data that are not acknowledged, and our clock at the first
    /// retransmission.
    resent: Option<(Sequence, u32)>,
    last_sent: Duration,
    /// Retransmitted segments that the stack has not counted yet.
    pub(crate) sent_again: u32,
    send_timer: SendTimer,
    /// The persist timer has expired: a probe must be sent into the closed window.
    probe_is_due: bool,
    /// The sequence number after the last window probe. A probe advances SND.NXT only once the peer
    /// has accepted it: data sent meanwhile must start where the peer expects them.
    probe_end: Sequence,
    /// Timeouts since the last acknowledgment of new data.
    timeouts: u32,
    /// Since when the peer has not responded although it should; `None` if no response is due.
    unheard_since: Option<Duration>,

    /// RCV.NXT: the next expected sequence number.
    receive_next: Sequence,
    /// RCV.NXT + RCV.WND as announced to the peer; never decreases (SHLD-14).
    receive_edge: Sequence,
    receive_max: u32,
    inbox: Inbox,
    reassembly: Reassembly,
    /// The sequence number of the peer's FIN, once known.
    fin_at: Option<Sequence>,
    /// Last.ACK.sent of RFC 7323.
    acknowledgment_sent: Sequence,
    /// Segments with data received since then.
    segments_unacknowledged: u8,
    ack_timer: AckTimer,
    challenges: Challenges,
    keep_alive: KeepAliveTimer,
    /// When an orphaned connection is given up; postponed with each acknowledgment of the peer.
    orphan_until: Option<Duration>,
}

/// The state of both ends at the end of the handshake.
#[derive(Debug)]
pub(crate) struct Beginning {
    pub(crate) agreed: NegotiatedOptions,
    /// Our initial sequence number.
    pub(crate) ours: Sequence,
    pub(crate) theirs: Sequence,
    /// The window in the peer's SYN.
    pub(crate) window: u32,
    pub(crate) round_trip: RoundTrip,
    /// Our SYN was retransmitted.
    pub(crate) was_lost: bool,
}

impl Connection {
    /// Reads a word of each part, to prefetch it.
    fn touch(&self) -> usize {
        let words = [
            self.acknowledged.0,
            self.window_acknowledgment.0,
            self.probe_end.0,
            self.timeouts,
            self.receive_next.0,
            self.acknowledgment_sent.0,
            self.sent_again,
            u32::from(self.agreed.segment_max),
        ];
        let words: u32 = words.into_iter().fold(0, u32::wrapping_add);
        let times = [Some(self.last_sent), self.unheard_since, self.orphan_until];
        let times = times.into_iter().flatten().map(|time| time.subsec_nanos());
        let times = times.fold(words, u32::wrapping_add);
        times as usize + self.queue.len() + self.queue_max + self.inbox.len()
    }

    pub(crate) fn new(now: Duration, settings: &Settings, beginning: Beginning) -> Connection {
        let Beginning {
            agreed,
            ours,
            theirs,
            window,
            round_trip,
            was_lost,
        } = beginning;
        let options = if agreed.timestamps.is_some() { 12 } else { 0 };
        let segment = u32::from(agreed.segment_max) - options;
        // Without window scaling, no larger window can be announced.
        let receive_max = match agreed.receive_shift {
            0 => settings.receive_max.min(u32::from(u16::MAX)),
            _ => settings.receive_max,
        };
        // A challenge ACK during the handshake may have announced up to this, because it rounds up.
        let shift = agreed.receive_shift;
        let first_window = u32::from(settings.window_first().div_ceil(1 << shift)) << shift;
        Connection {
            phase: Phase::Established,
            agreed,
            no_delay: settings.no_delay,
            give_up: settings.give_up,
            time_wait: settings.time_wait,
            is_orphan: false,
            acknowledged: ours + 1,
            acknowledged_count: 0,
            send_next: ours + 1,
            send_window: window,
            send_window_max: window,
            window_sequence: theirs,
            window_acknowledgment: ours + 1,
            queue: Queue::default(),
            queue_begins: ours + 1,
            queue_max: settings.send_max as usize,
            is_finished: false,
            wants_room: false,
            congestion: Congestion::new(segment, was_lost),
            recovery: Recovery::new(ours, agreed.sack),
            round_trip,
            timed: None,
            resent: None,
            last_sent: now,
            sent_again: 0,
            send_timer: SendTimer::Off,
            probe_is_due: false,
            probe_end: ours + 1,
            timeouts: 0,
            unheard_since: None,
            receive_next: theirs + 1,
            receive_edge: theirs + 1 + first_window,
            receive_max,
            inbox: Inbox::default(),
            reassembly: Reassembly::default(),
            fin_at: None,
            acknowledgment_sent: theirs + 1,
            segments_unacknowledged: 0,
            ack_timer: AckTimer::Off,
            challenges: Challenges::default(),
            keep_alive: KeepAliveTimer::new(now),
            orphan_until: None,
        }
    }

    /// Bytes of data in a full segment (SMSS), after the timestamps; options of only some segments
    /// are not subtracted.
    fn segment(&self) -> u32 {
        let options = match self.agreed.timestamps {
            Some(_) => 12,
            None => 0,
        };
        u32::from(self.agreed.segment_max) - options
    }

    /// The sequence number after all data queued by the application.
    fn queue_ends(&self) -> Sequence {
        // The queue holds less than 2^31 bytes.
        self.queue_begins + self.queue.len() as u32
    }

    /// Whether our FIN has been sent.
    fn fin_was_sent(&self) -> bool {
        self.is_finished && self.send_next > self.queue_ends()
    }

    /// Heap memory of the connection, in bytes.
    pub(crate) fn occupied(&self) -> usize {
        self.queue.occupied() + self.inbox.occupied() + self.reassembly.occupied()
    }

    /// Bytes that the application may send now.
    pub(crate) fn room(&self) -> usize {
        self.queue_max.saturating_sub(self.queue.occupied())
    }

    /// Requests an event when there is room again.
    pub(crate) fn want_room(&mut self) {
        self.wants_room = true;
    }

    /// Queues as much of `bytes` as there is room for. Returns that length.
    pub(crate) fn send(&mut self, mut bytes: Bytes) -> Result<usize, CallError> {
        if !self.phase.may_send() {
            return Err(CallError::Finished);
        }
        let count = bytes.len().min(self.room());
        self.wants_room |= count < bytes.len();
        bytes.truncate(count);
        self.queue.push(bytes);
        Ok(count)
    }

    /// Queues a complete response if there is any room; `false` otherwise.
    pub(crate) fn send_prebuilt(&mut self, prebuilt: Prebuilt) -> Result<bool, CallError> {
        if !self.phase.may_send() {
            return Err(CallError::Finished);
        }
        let has_room = self.room() > 0;
        if has_room {
            self.queue.push_prebuilt(prebuilt);
        } else {
            self.wants_room = true;
        }
        Ok(has_room)
    }

    /// Copies received bytes to `into` and returns their number; 0 at the end of the data, `None`
    /// if there are none yet.
    pub(crate) fn receive(&mut self, into: &mut [u8], memory: &mut InboxMemory) -> Option<usize> {
        let count = self.inbox.take(into, memory);
        if count == 0 && !self.inbox.ended && !into.is_empty() {
            return None;
        }
        // A sufficiently larger window is announced at once, since the peer may wait for it.
        let edge = self.window_edge();
        if edge.since(self.receive_edge) >= self.receive_max / 2
            || self.receive_edge.since(self.receive_next) == 0 && edge > self.receive_edge
        {
            self.ack_timer = AckTimer::Now;
        }
        Some(count)
    }

    /// Finishes the sending side: a FIN follows the queued data.
    pub(crate) fn finish(&mut self) {
        self.phase = self.phase.on_finish();
        self.is_finished = true;
    }

    /// Releases the connection. If unread data remain, or data arrive later, the connection is
    /// reset (RFC 9293, section 3.6.1; RFC 2525, section 2.17); otherwise it ends gracefully.
    pub(crate) fn release(&mut self, now: Duration) -> Effects {
        self.is_orphan = true;
        if self.inbox.len() > 0 {
            return self.abort();
        }
        self.finish();
        self.reassembly.clear();
        self.orphan_until = Some(now + self.time_wait);
        Effects::default()
    }

    /// Ends the connection by a reset (RFC 9293, section 3.10.5).
    pub(crate) fn abort(&mut self) -> Effects {
        let flags = Flags::RST.with(Flags::ACK);
        let reset = Outgoing::bare(self.send_next, self.receive_next, flags);
        Effects {
            reset: Some(Box::new(reset)),
            ..self.end(Transition::Closed(Reason::Aborted))
        }
    }

    /// Makes an acknowledgment due at once, in the next segment.
    pub(crate) fn acknowledge_now(&mut self) {
        self.ack_timer = AckTimer::Now;
    }

    /// Copies a segment's data to `into` and returns their checksum.
    pub(crate) fn copy(&mut self, offset: usize, into: &mut [u8]) -> crate::wire::checksum::Sum {
        self.queue.copy(offset, into)
    }

    /// Changes to the next phase, or returns the state that replaces the connection.
    fn go_on(&mut self, now: Duration, next: Transition) -> Effects {
        match next {
            Transition::Phase(phase) => {
                self.phase = phase;
                Effects::default()
            }
            Transition::TimeWait => {
                let state = TimeWait::new(now + self.time_wait, self);
                Effects {
                    next: Some(Box::new(State::TimeWait(state))),
                    readable: true,
                    ..Effects::default()
                }
            }
            ended @ Transition::Closed(_) => self.end(ended),
        }
    }

    /// Ends the connection.
    fn end(&mut self, next: Transition) -> Effects {
        let Transition::Closed(reason) = next else {
            return Effects::default();
        };
        let inbox = std::mem::take(&mut self.inbox);
        Effects {
            next: Some(Box::new(State::Closed(reason, inbox))),
            readable: true,
            writable: true,
            ..Effects::default()
        }
    }
}
