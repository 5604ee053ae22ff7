//! The handshake: RFC 9293, section 3.5, started by either end or by both at once.

use std::time::Duration;

use super::challenge::Challenges;
use super::inbox::InboxMemory;
use super::round_trip::RoundTrip;
use super::state::{Reason, State};
use super::{Beginning, Connection, Effects, NegotiatedOptions, Outgoing, Settings, clock};
use crate::wire::sequence::Sequence;
use crate::wire::tcp::{Flags, Options, Segment, Timestamps};

/// A SYN that is retransmitted until it is answered.
#[derive(Debug)]
struct Syn {
    /// The initial sequence number of the SYN.
    ours: Sequence,
    clock: u32,
    began: Duration,
    /// When it was last sent, and how many times it was sent.
    sent: Duration,
    count: u32,
    round_trip: RoundTrip,
    is_due: bool,
    deadline: Option<Duration>,
}

impl Syn {
    fn new(now: Duration, ours: Sequence, clock: u32) -> Syn {
        Syn {
            ours,
            clock,
            began: now,
            sent: now,
            count: 0,
            round_trip: RoundTrip::new(),
            is_due: true,
            deadline: None,
        }
    }

    /// Whether the SYN must be sent now.
    fn poll(&mut self, now: Duration) -> bool {
        if !std::mem::take(&mut self.is_due) {
            return false;
        }
        self.sent = now;
        self.count += 1;
        self.deadline = Some(now + self.round_trip.timeout());
        true
    }

    /// Retransmits the SYN after its timeout. Returns whether the attempts have taken too long.
    fn handle_timeout(&mut self, now: Duration, settings: &Settings) -> bool {
        if self.deadline.is_none_or(|at| at > now) {
            return false;
        }
        if now.saturating_sub(self.began) >= settings.give_up {
            return true;
        }
        self.round_trip.back_off();
        self.is_due = true;
        self.deadline = None;
        false
    }

    /// The round trip time from the answer (Karn's algorithm; RFC 6298, section 5.7), and whether
    /// the SYN was lost.
    fn answered(&self, now: Duration) -> (RoundTrip, bool) {
        if self.count > 1 {
            return (RoundTrip::after_lost_syn(), true);
        }
        let mut round_trip = RoundTrip::new();
        round_trip.sample(now.saturating_sub(self.sent));
        (round_trip, false)
    }

    /// The options of a SYN that starts a handshake.
    fn offer(&self, now: Duration, settings: &Settings) -> Options {
        Options {
            segment_max: Some(settings.segment_max),
            window_shift: settings.window_scale.then(|| settings.window_shift()),
            sack_permitted: settings.sack,
            timestamps: settings.timestamps.then(|| Timestamps {
                value: clock(now, self.clock),
                echo: 0,
            }),
            ..Options::default()
        }
    }
}

/// The SYN that answers another SYN: it has the options that both ends support.
pub(crate) fn answer(
    settings: &Settings,
    agreed: &NegotiatedOptions,
    clock: u32,
    (ours, theirs): (Sequence, Sequence),
) -> Outgoing {
    let options = Options {
        segment_max: Some(settings.segment_max),
        window_shift: agreed.is_scaled.then_some(agreed.receive_shift),
        sack_permitted: agreed.sack,
        timestamps: agreed.timestamps.map(|clocks| Timestamps {
            value: clock,
            echo: clocks.recent,
        }),
        ..Options::default()
    };
    Outgoing {
        window: settings.window_first(),
        options,
        ..Outgoing::bare(ours, theirs + 1, Flags::SYN.with(Flags::ACK))
    }
}

/// SYN-SENT: this end has sent a SYN.
#[derive(Debug)]
pub(crate) struct SynSent {
    syn: Syn,
}

impl SynSent {
    pub(crate) fn new(now: Duration, ours: Sequence, clock: u32) -> SynSent {
        SynSent {
            syn: Syn::new(now, ours, clock),
        }
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.syn.deadline
    }

    pub(crate) fn handle_timeout(&mut self, now: Duration, settings: &Settings) -> Effects {
        if self.syn.handle_timeout(now, settings) {
            return Effects::closed(Reason::TimedOut);
        }
        Effects::default()
    }

    pub(crate) fn poll_segment(&mut self, now: Duration, settings: &Settings) -> Option<Outgoing> {
        self.syn.poll(now).then(|| Outgoing {
            window: settings.window_first(),
            options: self.syn.offer(now, settings),
            ..Outgoing::bare(self.syn.ours, Sequence(0), Flags::SYN)
        })
    }

    pub(crate) fn handle_segment(
        &mut self,
        now: Duration,
        settings: &Settings,
        segment: &Segment<'_>,
    ) -> Effects {
        let header = &segment.header;
        let has_ack = header.flags.has(Flags::ACK);
        if has_ack && header.acknowledgment != self.syn.ours + 1 {
            return Effects {
                reset: Outgoing::reset_for(segment).map(Box::new),
                ..Effects::default()
            };
        }
        if header.flags.has(Flags::RST) {
            return if has_ack {
                Effects::closed(Reason::Refused)
            } else {
                Effects::default()
            };
        }
        if !header.flags.has(Flags::SYN) {
            return Effects::default();
        }
        let agreed = NegotiatedOptions::new(settings, &header.options, now, self.syn.clock);
        if !has_ack {
            // A simultaneous open (section 3.5, figure 8): our sequence number stays, and our SYN
            // is sent again as an answer.
            let syn = Syn::new(now, self.syn.ours, self.syn.clock);
            let received = SynReceived {
                syn,
                theirs: header.sequence,
                agreed,
                window: u32::from(header.window),
                is_passive: false,
                challenges: Challenges::default(),
                challenge_is_due: false,
            };
            return Effects {
                next: Some(Box::new(State::SynReceived(received))),
                ..Effects::default()
            };
        }
        let (round_trip, was_lost) = self.syn.answered(now);
        let beginning = Beginning {
            agreed,
            ours: self.syn.ours,
            theirs: header.sequence,
            window: u32::from(header.window),
            round_trip,
            was_lost,
        };
        let mut connection = Connection::new(now, settings, beginning);
        connection.acknowledge_now();
        // Other contents of the segment with the SYN (section 3.10.7.3, fifth step) are ignored
        // until the peer retransmits them.
        Effects {
            next: Some(Box::new(State::Synchronized(Box::new(connection)))),
            writable: true,
            ..Effects::default()
        }
    }

    /// Handles ICMP's report that no host or port was reached; the sequence number must be that of
    /// our SYN (RFC 5927, section 4.1).
    pub(crate) fn handle_refused(&self, sequence: Sequence) -> Effects {
        if sequence == self.syn.ours {
            Effects::closed(Reason::Refused)
        } else {
            Effects::default()
        }
    }
}

/// SYN-RECEIVED: both SYNs have been sent, and ours is not acknowledged.
#[derive(Debug)]
pub(crate) struct SynReceived {
    syn: Syn,
    theirs: Sequence,
    agreed: NegotiatedOptions,
    window: u32,
    /// Whether a listener received the SYN; otherwise the state before was SYN-SENT.
    pub(crate) is_passive: bool,
    challenges: Challenges,
    challenge_is_due: bool,
}

impl SynReceived {
    /// The state after a listener has received this SYN.
    pub(crate) fn new(
        now: Duration,
        settings: &Settings,
        segment: &Segment<'_>,
        ours: Sequence,
        clock: u32,
    ) -> SynReceived {
        SynReceived {
            syn: Syn::new(now, ours, clock),
            theirs: segment.header.sequence,
            agreed: NegotiatedOptions::new(settings, &segment.header.options, now, clock),
            window: u32::from(segment.header.window),
            is_passive: true,
            challenges: Challenges::default(),
            challenge_is_due: false,
        }
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.syn.deadline
    }

    pub(crate) fn handle_timeout(&mut self, now: Duration, settings: &Settings) -> Effects {
        if self.syn.handle_timeout(now, settings) {
            return Effects::closed(Reason::TimedOut);
        }
        Effects::default()
    }

    pub(crate) fn poll_segment(&mut self, now: Duration, settings: &Settings) -> Option<Outgoing> {
        let time = clock(now, self.syn.clock);
        if self.syn.poll(now) {
            let numbers = (self.syn.ours, self.theirs);
            return Some(answer(settings, &self.agreed, time, numbers));
        }
        std::mem::take(&mut self.challenge_is_due).then(|| Outgoing {
            // Rounded up like all windows, so that no window is smaller than the SYN's.
            window: settings
                .window_first()
                .div_ceil(1 << self.agreed.receive_shift),
            options: Options {
                timestamps: self.agreed.timestamps.map(|clocks| Timestamps {
                    value: time,
                    echo: clocks.recent,
                }),
                ..Options::default()
            },
            ..Outgoing::bare(self.syn.ours + 1, self.theirs + 1, Flags::ACK)
        })
    }

    /// Section 3.10.7.4, for this state.
    pub(crate) fn handle_segment(
        &mut self,
        now: Duration,
        settings: &Settings,
        segment: &Segment<'_>,
        memory: &mut InboxMemory,
    ) -> Effects {
        let header = &segment.header;
        let flags = header.flags;
        let next = self.theirs + 1;
        let is_within = next <= header.sequence && header.sequence <= next + settings.receive_max;
        if flags.has(Flags::RST) {
            // RFC 5961, section 3.2: only a reset with exactly this number is valid, others may be
            // guesses.
            return if header.sequence == next {
                Effects::closed(if self.is_passive {
                    Reason::Reset
                } else {
                    Reason::Refused
                })
            } else {
                self.challenge_is_due |= is_within && self.challenges.permit(now);
                Effects::default()
            };
        }
        if flags.has(Flags::SYN) && header.sequence == self.theirs && !flags.has(Flags::ACK) {
            // The peer has not received our SYN.
            self.syn.is_due |= self.challenges.permit(now);
            return Effects::default();
        }
        if flags.has(Flags::ACK) && header.acknowledgment != self.syn.ours + 1 {
            return Effects {
                reset: Outgoing::reset_for(segment).map(Box::new),
                ..Effects::default()
            };
        }
        let is_crossing = flags.has(Flags::SYN) && header.sequence == self.theirs;
        if !is_crossing && (!is_within || flags.has(Flags::SYN)) {
            self.challenge_is_due |= self.challenges.permit(now);
            return Effects::default();
        }
        if !flags.has(Flags::ACK) {
            return Effects::default();
        }
        let (round_trip, was_lost) = self.syn.answered(now);
        let beginning = Beginning {
            agreed: self.agreed,
            ours: self.syn.ours,
            theirs: self.theirs,
            window: self.window,
            round_trip,
            was_lost,
        };
        establish(now, settings, beginning, segment, memory)
    }

    /// Aborts the handshake with a reset.
    pub(crate) fn abort(&self) -> Effects {
        let flags = Flags::RST.with(Flags::ACK);
        let reset = Outgoing::bare(self.syn.ours + 1, self.theirs + 1, flags);
        Effects {
            reset: Some(Box::new(reset)),
            ..Effects::closed(Reason::Aborted)
        }
    }

    pub(crate) fn handle_refused(&self, sequence: Sequence) -> Effects {
        if sequence == self.syn.ours && !self.is_passive {
            Effects::closed(Reason::Refused)
        } else {
            Effects::default()
        }
    }
}

/// The connection after the acknowledgment of our SYN, with other contents of that segment.
pub(crate) fn establish(
    now: Duration,
    settings: &Settings,
    beginning: Beginning,
    segment: &Segment<'_>,
    memory: &mut InboxMemory,
) -> Effects {
    let mut connection = Box::new(Connection::new(now, settings, beginning));
    let effects = if segment.header.flags.has(Flags::SYN) {
        // A simultaneous open: the peer's SYN arrived with the acknowledgment of ours.
        connection.acknowledge_now();
        Effects::default()
    } else {
        connection.handle_segment(now, segment, memory)
    };
    Effects {
        next: effects
            .next
            .or_else(|| Some(Box::new(State::Synchronized(connection)))),
        readable: effects.readable,
        writable: true,
        reset: effects.reset,
        reuse: None,
    }
}

/// The connection after an acknowledgment with a SYN cookie.
pub(crate) fn from_cookie(
    now: Duration,
    settings: &Settings,
    offer: &Options,
    clock: u32,
    segment: &Segment<'_>,
) -> Beginning {
    Beginning {
        agreed: NegotiatedOptions::new(settings, offer, now, clock),
        ours: segment.header.acknowledgment - 1,
        theirs: segment.header.sequence - 1,
        window: u32::from(segment.header.window),
        round_trip: RoundTrip::new(),
        was_lost: false,
    }
}
