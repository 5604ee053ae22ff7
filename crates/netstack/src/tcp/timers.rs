//! The timers of a connection: retransmission (RFC 6298), window probes (RFC 9293, section
//! 3.8.6.1), delayed acknowledgments, keep-alive (section 3.8.4), and the limit of connections that
//! the application has released.

use std::time::Duration;

use super::recovery::Mode;
use super::state::{Reason, Transition};
use super::{Connection, Effects};

/// Delay of an acknowledgment, in which data or a second segment may follow. The RFC permits up to
/// half a second (RFC 9293, section 3.8.6.3, MUST-58); this is Linux's minimum.
pub(crate) const ACK_DELAY: Duration = Duration::from_millis(40);

/// The timer of the sending direction. The times are deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendTimer {
    Off,
    /// The retransmission timer, while data are in flight.
    Acknowledgment(Duration),
    /// The window probe timer, while the peer's window is too small.
    Window(Duration),
}

/// When received data are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckTimer {
    /// There is nothing to acknowledge.
    Off,
    /// With the next data that we send, or at this time.
    Delayed(Duration),
    Now,
}

/// Settings of keep-alive probes, which are off by default (MUST-25).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Idle time before the first probe.
    pub idle: Duration,
    /// Interval between probes.
    pub interval: Duration,
    /// Number of unanswered probes after which the connection is closed.
    pub probes_max: u32,
}

impl Default for KeepAlive {
    /// The defaults of Linux. The RFC requires at least two hours of idle time (MUST-28).
    fn default() -> Self {
        KeepAlive {
            idle: Duration::from_secs(7200),
            interval: Duration::from_secs(75),
            probes_max: 9,
        }
    }
}

/// The state of keep-alive probes.
#[derive(Debug)]
pub(crate) struct KeepAliveTimer {
    settings: Option<KeepAlive>,
    heard: Duration,
    /// The time of the last probe, and the number of probes since the last segment of the peer.
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

    /// Handles a segment from the peer.
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

    /// Makes a probe due at its deadline. Returns whether the limit of unanswered probes is
    /// reached.
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
    /// Enables or disables keep-alive probes.
    pub(crate) fn set_keep_alive(&mut self, settings: Option<KeepAlive>) {
        self.keep_alive.set(settings);
    }

    /// The deadline of the earliest timer.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let mut first = match self.send_timer {
            // Keep-alive is only needed while no other timer runs.
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

    /// Handles expired timers.
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

    /// Handles the expiry of the retransmission timer (RFC 6298, rules 5.4 to 5.6).
    fn retransmit(&mut self, now: Duration) {
        let flight = self.flight();
        let in_flight = match self.recovery.mode {
            Mode::Open => flight.size(),
            Mode::Fast | Mode::Timeout => self.recovery.in_flight(flight),
        };
        self.congestion.on_timeout(in_flight, self.timeouts == 0);
        self.timeouts += 1;
        self.recovery.on_timeout(flight);
        // The round trip of retransmitted data cannot be measured (Karn's algorithm, section 3).
        self.timed = None;
        self.round_trip.back_off();
        self.send_timer = SendTimer::Acknowledgment(now + self.round_trip.timeout());
    }

    /// Starts or stops the timer of the sending direction, as data in flight or unsent data need
    /// it.
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
