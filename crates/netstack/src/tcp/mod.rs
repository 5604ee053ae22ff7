//! TCP: RFC 9293 with what its section 3.8 and later RFCs add.
//!
//! Read `state.rs` first, which has the diagram. A connection begins in `handshake.rs` or by a
//! `cookie`, is a `Connection` while data flow, and ends in `time_wait.rs`. Of a `Connection`,
//! `input.rs` says what a segment does to it, `output.rs` what it sends next, `timers.rs` what
//! happens when nothing does. They share what has a file of its own: `queue.rs` (what was sent),
//! `inbox.rs` and `reassembly.rs` (what was received), `recovery.rs` with `scoreboard.rs` (what was
//! lost), `congestion.rs` (how much may be on its way), `round_trip.rs` (how long to wait).
//!
//! Nothing here knows frames, addresses of cards, or other connections.

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

/// What a peer that offers no size of segments takes (RFC 9293, section 3.7.1, MUST-15).
pub(crate) const SEGMENT_DEFAULT: u16 = 536;

/// The smallest segments that are sent, whatever a peer offers: with less, headers alone would be
/// the load.
pub(crate) const SEGMENT_MIN: u16 = 48;

/// Both ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// Address and port of the stack.
    pub local: SocketAddrV4,
    /// Address and port of the peer.
    pub remote: SocketAddrV4,
}

impl Hash for Tuple {
    /// Two words in place of six fields: each segment is looked up by its tuple.
    fn hash<H: Hasher>(&self, state: &mut H) {
        for end in [self.local, self.remote] {
            state.write_u64(u64::from(end.ip().to_bits()) << 16 | u64::from(end.port()));
        }
    }
}

/// The settings of one connection.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The largest segment that the way to us takes, which the other end is told: the MTU without
    /// 40 bytes.
    pub segment_max: u16,
    /// Bytes that wait for the application at most; they are the window that is offered.
    pub receive_max: u32,
    /// Bytes that wait to be sent and acknowledged at most.
    pub send_max: u32,
    /// Whether timestamps are offered and taken (RFC 7323).
    pub timestamps: bool,
    /// Whether selective acknowledgments are offered and taken (RFC 2018).
    pub sack: bool,
    /// Whether windows may be larger than 64 KB (RFC 7323).
    pub window_scale: bool,
    /// Whether a part of a segment leaves while others have not been acknowledged (no Nagle,
    /// SHLD-7).
    pub no_delay: bool,
    /// How long TIME-WAIT lasts: two maximum segment lifetimes. The RFC takes two minutes for one;
    /// every system takes between half a minute and two for both.
    pub time_wait: Duration,
    /// How long the other end may be silent while it has something to acknowledge: R2 of RFC 9293,
    /// section 3.8.3, of three minutes at least for a SYN (MUST-23).
    pub give_up: Duration,
    /// What the clocks of sequence numbers and timestamps show when the stack's time begins. With
    /// a secret that outlives a stack they go on from the stack before it (RFC 6528, section 3), so
    /// that a peer can tell new connections from those that it has in TIME-WAIT.
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
    /// How far windows have to be shifted for all of them to fit into 16 bits.
    fn window_shift(&self) -> u8 {
        (0..WINDOW_SHIFT_MAX)
            .find(|shift| self.receive_max >> shift <= u32::from(u16::MAX))
            .unwrap_or(WINDOW_SHIFT_MAX)
    }

    /// The window of a SYN, which is never shifted (RFC 7323, section 2.2).
    fn window_first(&self) -> u16 {
        u16::try_from(self.receive_max).unwrap_or(u16::MAX)
    }
}

/// What both ends have agreed on in their SYNs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NegotiatedOptions {
    /// Bytes of options and data in segments to the other end.
    segment_max: u16,
    /// Whether windows are shifted, and how far.
    is_scaled: bool,
    send_shift: u8,
    receive_shift: u8,
    sack: bool,
    timestamps: Option<Clocks>,
}

/// Both ends' clocks (RFC 7323).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    /// What is added to milliseconds to make our clock.
    offset: u32,
    /// TS.Recent, and when it was heard.
    recent: u32,
    heard: Duration,
}

impl Clocks {
    fn now(&self, now: Duration) -> u32 {
        clock(now, self.offset)
    }
}

/// Our clock for a connection: milliseconds (RFC 7323, section 5.4, has it go between 1 ms and 1
/// s).
pub(crate) fn clock(now: Duration, offset: u32) -> u32 {
    (now.as_millis() as u32).wrapping_add(offset)
}

impl NegotiatedOptions {
    /// What comes of the other end's offer and our settings.
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
    /// Bytes of options and data in a segment.
    pub(crate) fn segment_max(&self) -> u16 {
        self.segment_max
    }

    /// What can be agreed on by a cookie: without clocks nothing would bring back that windows are
    /// shifted.
    pub(crate) fn for_cookie(mut self) -> NegotiatedOptions {
        if self.timestamps.is_none() {
            self.is_scaled = false;
            self.sack = false;
        }
        self
    }
}

/// A segment that is to be sent: its ports are the connection's, its data stand in the connection's
/// queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) sequence: Sequence,
    pub(crate) acknowledgment: Sequence,
    pub(crate) flags: Flags,
    pub(crate) window: u16,
    pub(crate) options: Options,
    /// Where the data begin in the queue, and how many there are.
    pub(crate) offset: usize,
    pub(crate) length: usize,
}

impl Outgoing {
    /// A segment of nothing but its flags.
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

    /// The reset that answers a segment of no connection (RFC 9293, section 3.10.7.1); none answers
    /// a reset.
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

/// What an event has done to a connection beside what it remembers.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// The state that takes the place of this one.
    pub(crate) next: Option<Box<State>>,
    /// A reset that is to be sent.
    pub(crate) reset: Option<Box<Outgoing>>,
    /// There is something to read: bytes, an end, or an error.
    pub(crate) readable: bool,
    /// There is room to send again.
    pub(crate) writable: bool,
    /// A SYN has come that begins the next connection between the same ends; its sequence numbers
    /// are to begin there or later.
    pub(crate) reuse: Option<Sequence>,
}

impl Effects {
    /// The connection is over before it stood.
    pub(crate) fn closed(reason: Reason) -> Effects {
        Effects {
            next: Some(Box::new(State::Closed(reason, Inbox::default()))),
            readable: true,
            writable: true,
            ..Effects::default()
        }
    }
}

/// Why a call of the application did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// There is no such connection (any more).
    Unknown,
    /// The connection does not stand yet.
    Connecting,
    /// This end has finished already.
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

/// A connection both of whose ends know each other's sequence numbers. The RFC's names of variables
/// (section 3.3.1) stand beside ours.
#[derive(Debug)]
pub(crate) struct Connection {
    phase: Phase,
    agreed: NegotiatedOptions,
    no_delay: bool,
    give_up: Duration,
    time_wait: Duration,
    /// Nobody takes what comes: the application has let go of the connection.
    pub(crate) is_orphan: bool,

    /// SND.UNA: the first place that has not been acknowledged.
    acknowledged: Sequence,
    /// Bytes that have been acknowledged, as far as a window may matter.
    acknowledged_count: u32,
    /// SND.NXT: the next place to send new data from.
    send_next: Sequence,
    /// SND.WND, and the largest that it has been.
    send_window: u32,
    send_window_max: u32,
    /// SND.WL1 and SND.WL2: the segment that brought that window.
    window_sequence: Sequence,
    window_acknowledgment: Sequence,
    /// Data from `queue_begins` on.
    queue: Queue,
    queue_begins: Sequence,
    queue_max: usize,
    /// The application wants a FIN behind the queue.
    is_finished: bool,
    /// The application waits for room.
    wants_room: bool,
    congestion: Congestion,
    recovery: Recovery,
    round_trip: RoundTrip,
    /// A segment that is timed, by its end, where there are no timestamps.
    timed: Option<(Sequence, Duration)>,
    /// The end of what was sent again and is not acknowledged, and our clock when that began.
    resent: Option<(Sequence, u32)>,
    last_sent: Duration,
    /// Segments that were sent again since the stack last counted them.
    pub(crate) sent_again: u32,
    send_timer: SendTimer,
    /// The timer for a closed window is over: something has to be sent into it.
    probe_is_due: bool,
    /// The place behind the last probe of a closed window. A probe moves SND.NXT only once it has
    /// been taken: what is sent meanwhile must stand where the other end expects it.
    probe_end: Sequence,
    /// Timeouts since something was last acknowledged.
    timeouts: u32,
    /// Since when something has waited for the other end in vain; `None` when nothing does.
    unheard_since: Option<Duration>,

    /// RCV.NXT: the next byte that is expected.
    receive_next: Sequence,
    /// RCV.NXT + RCV.WND as the other end was told, which never goes back (SHLD-14).
    receive_edge: Sequence,
    receive_max: u32,
    inbox: Inbox,
    reassembly: Reassembly,
    /// Where the other end finishes, once that is known.
    fin_at: Option<Sequence>,
    /// Last.ACK.sent of RFC 7323.
    acknowledgment_sent: Sequence,
    /// Segments with data that have come since then.
    segments_unacknowledged: u8,
    ack_timer: AckTimer,
    challenges: Challenges,
    keep_alive: KeepAliveTimer,
    /// When a connection that nobody holds is given up; later with everything that the other end
    /// acknowledges.
    orphan_until: Option<Duration>,
}

/// What is known when both ends know each other's sequence numbers.
#[derive(Debug)]
pub(crate) struct Beginning {
    pub(crate) agreed: NegotiatedOptions,
    /// Our initial sequence number.
    pub(crate) ours: Sequence,
    pub(crate) theirs: Sequence,
    /// The window of their SYN.
    pub(crate) window: u32,
    pub(crate) round_trip: RoundTrip,
    /// Our SYN had to be sent again.
    pub(crate) was_lost: bool,
}

impl Connection {
    /// Reads a word of each part.
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
        // Without shifts no larger window can be told.
        let receive_max = match agreed.receive_shift {
            0 => settings.receive_max.min(u32::from(u16::MAX)),
            _ => settings.receive_max,
        };
        // As far as a challenge within the handshake may have said, which rounds up.
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

    /// Bytes of data in a full segment (SMSS), or without room for options that only some have.
    fn segment(&self) -> u32 {
        let options = match self.agreed.timestamps {
            Some(_) => 12,
            None => 0,
        };
        u32::from(self.agreed.segment_max) - options
    }

    /// The place behind all data that the application has sent.
    fn queue_ends(&self) -> Sequence {
        // The queue holds less than 2^31 bytes.
        self.queue_begins + self.queue.len() as u32
    }

    /// Whether our FIN has been sent.
    fn fin_was_sent(&self) -> bool {
        self.is_finished && self.send_next > self.queue_ends()
    }

    /// Memory that the connection takes beside itself.
    pub(crate) fn occupied(&self) -> usize {
        self.queue.occupied() + self.inbox.occupied() + self.reassembly.occupied()
    }

    /// Bytes that the application may send now.
    pub(crate) fn room(&self) -> usize {
        self.queue_max.saturating_sub(self.queue.occupied())
    }

    /// The application is told when there is room again.
    pub(crate) fn want_room(&mut self) {
        self.wants_room = true;
    }

    /// Takes as much of `bytes` as there is room for. How much.
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

    /// Takes a whole response, if there is room for any of it: `false` where there is none.
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

    /// Moves bytes that have come into `into`: how many, or `None` when there are none yet; 0 at
    /// the end.
    pub(crate) fn receive(&mut self, into: &mut [u8], memory: &mut InboxMemory) -> Option<usize> {
        let count = self.inbox.take(into, memory);
        if count == 0 && !self.inbox.ended && !into.is_empty() {
            return None;
        }
        // A window that has grown enough is told at once, since the other end may wait for it.
        let edge = self.window_edge();
        if edge.since(self.receive_edge) >= self.receive_max / 2
            || self.receive_edge.since(self.receive_next) == 0 && edge > self.receive_edge
        {
            self.ack_timer = AckTimer::Now;
        }
        Some(count)
    }

    /// The application sends nothing more: a FIN follows what is queued.
    pub(crate) fn finish(&mut self) {
        self.phase = self.phase.on_finish();
        self.is_finished = true;
    }

    /// The application wants nothing more of the connection. A reset follows where data were left
    /// unread, or come later (RFC 9293, section 3.6.1; RFC 2525, section 2.17); else it ends in
    /// order.
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

    /// What the other end has sent is acknowledged with the next segment, which is due.
    pub(crate) fn acknowledge_now(&mut self) {
        self.ack_timer = AckTimer::Now;
    }

    /// Fills `into` with data of a segment; their sum.
    pub(crate) fn copy(&mut self, offset: usize, into: &mut [u8]) -> crate::wire::checksum::Sum {
        self.queue.copy(offset, into)
    }

    /// Goes on to `next`, where that is another phase; else says what takes the place of the
    /// connection.
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

    /// The connection is over.
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
