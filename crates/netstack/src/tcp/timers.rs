//! What happens when nothing comes: retransmission (RFC 6298), probes of a closed window (RFC 9293,
//! section 3.8.6.1), delayed acknowledgments, keep-alive (section 3.8.4), and the end of
//! connections that no application holds.

use std::time::Duration;

use super::recovery::Mode;
use super::state::{Reason, Transition};
use super::{Connection, Effects};

/// How long an acknowledgment waits for data to go with, or for a second segment: half a second at
/// most (MUST-58 of RFC 9293, section 3.8.6.3); Linux begins with this.
pub(crate) const ACK_DELAY: Duration = Duration::from_millis(40);

/// What the sending direction waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendTimer {
    Off,
    /// An acknowledgment, until then.
    Acknowledgment(Duration),
    /// A window that is large enough, until then.
    Window(Duration),
}

/// When what has come is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckTimer {
    /// There is nothing to acknowledge.
    Off,
    /// With the next data, or then.
    Delayed(Duration),
    Now,
}

/// How a silent connection is asked whether it still stands (off unless it is set: MUST-25).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Silence before the first question.
    pub idle: Duration,
    /// Time between two questions.
    pub interval: Duration,
    /// Questions without an answer after which the connection is dead.
    pub probes_max: u32,
}

impl Default for KeepAlive {
    /// Linux's values; the two hours are the RFC's (MUST-28).
    fn default() -> Self {
        KeepAlive {
            idle: Duration::from_secs(7200),
            interval: Duration::from_secs(75),
            probes_max: 9,
        }
    }
}

/// How long the other end has been silent.
#[derive(Debug)]
pub(crate) struct KeepAliveTimer {
    settings: Option<KeepAlive>,
    heard: Duration,
    /// When it was last asked, and how often since it was heard.
    asked: Duration,
    unanswered: u32,
    pub(crate) is_due: bool,
}

impl KeepAliveTimer {
    pub(crate) fn new(now: Duration) -> KeepAliveTimer {
        KeepAliveTimer {
            settings: None,
            heard: now,
            asked: now,
            unanswered: 0,
            is_due: false,
        }
    }

    pub(crate) fn set(&mut self, settings: Option<KeepAlive>) {
        self.settings = settings;
    }

    /// The other end is there.
    pub(crate) fn hear(&mut self, now: Duration) {
        self.heard = now;
        self.unanswered = 0;
        self.is_due = false;
    }

    fn deadline(&self) -> Option<Duration> {
        let settings = self.settings?;
        Some(match self.unanswered {
            0 => self.heard + settings.idle,
            _ => self.asked + settings.interval,
        })
    }

    /// Asks, if it is time. Whether it has asked often enough in vain.
    fn handle_timeout(&mut self, now: Duration) -> bool {
        let Some(settings) = self.settings else {
            return false;
        };
        if self.deadline().is_none_or(|at| at > now) {
            return false;
        }
        if self.unanswered >= settings.probes_max {
            return true;
        }
        self.unanswered += 1;
        self.asked = now;
        self.is_due = true;
        false
    }
}

impl Connection {
    /// Asks the other end now and then whether it still stands.
    pub(crate) fn set_keep_alive(&mut self, settings: Option<KeepAlive>) {
        self.keep_alive.set(settings);
    }

    /// The next time at which something is to happen.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let mut first = match self.send_timer {
            // With something in flight the other timer asks already.
            SendTimer::Off => self.keep_alive.deadline().unwrap_or(Duration::MAX),
            SendTimer::Acknowledgment(at) | SendTimer::Window(at) => at,
        };
        if let AckTimer::Delayed(at) = self.ack_timer {
            first = first.min(at);
        }
        if let Some(at) = self.orphan_until {
            first = first.min(at);
        }
        (first < Duration::MAX).then_some(first)
    }

    /// Does what has become due.
    pub(crate) fn handle_timeout(&mut self, now: Duration) -> Effects {
        if self.orphan_until.is_some_and(|at| at <= now) {
            return self.abort();
        }
        if matches!(self.ack_timer, AckTimer::Delayed(at) if at <= now) {
            self.ack_timer = AckTimer::Now;
        }
        let has_given_up = self
            .unheard_since
            .is_some_and(|since| now.saturating_sub(since) >= self.give_up);
        match self.send_timer {
            SendTimer::Acknowledgment(at) | SendTimer::Window(at) if at <= now && has_given_up => {
                return self.end(Transition::Closed(Reason::TimedOut));
            }
            SendTimer::Acknowledgment(at) if at <= now => self.retransmit(now),
            SendTimer::Window(at) if at <= now => {
                self.probe_is_due = true;
                self.round_trip.back_off();
                self.send_timer = SendTimer::Window(now + self.round_trip.timeout());
            }
            SendTimer::Off if self.keep_alive.handle_timeout(now) => {
                return self.end(Transition::Closed(Reason::TimedOut));
            }
            _ => {}
        }
        Effects::default()
    }

    /// The retransmission timer is over (RFC 6298, sections 5.4 to 5.6).
    fn retransmit(&mut self, now: Duration) {
        let flight = self.flight();
        let in_flight = match self.recovery.mode {
            Mode::Open => flight.size(),
            Mode::Fast | Mode::Timeout => self.recovery.in_flight(flight),
        };
        self.congestion.on_timeout(in_flight, self.timeouts == 0);
        self.timeouts += 1;
        self.recovery.on_timeout(flight);
        // What is sent twice cannot be timed (Karn's algorithm, section 3).
        self.timed = None;
        self.round_trip.back_off();
        self.send_timer = SendTimer::Acknowledgment(now + self.round_trip.timeout());
    }

    /// Has the timer run that what is outstanding, or waits, needs.
    pub(crate) fn arm_send_timer(&mut self, now: Duration) {
        let is_outstanding = self.send_next > self.acknowledged;
        if !is_outstanding && !self.has_unsent() {
            self.send_timer = SendTimer::Off;
            self.unheard_since = None;
            return;
        }
        let later = || now + self.round_trip.timeout();
        self.send_timer = match self.send_timer {
            SendTimer::Window(at) if self.send_window == 0 || !is_outstanding => {
                SendTimer::Window(at)
            }
            _ if self.send_window == 0 || !is_outstanding => SendTimer::Window(later()),
            SendTimer::Acknowledgment(at) => SendTimer::Acknowledgment(at),
            SendTimer::Off | SendTimer::Window(_) => SendTimer::Acknowledgment(later()),
        };
        self.unheard_since.get_or_insert(now);
    }
}
