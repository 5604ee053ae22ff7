//! A request's lease of a peer: counts the request at the peer, and reports times and results of
//! the attempt to the peer's state.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::net::Address;

use crate::backlog;
use crate::balancer::{Method, Timed, Until};
use crate::latency::Latency;
use crate::moment::millis;
use crate::outliers::{Outliers, PutOut};
use crate::peer::Peer;
use crate::peers::{PeerSide, Peers};
use crate::sparing;

/// A lease counts as one request of the peer until it is dropped, however the request ends.
#[derive(Debug)]
pub struct Lease {
    peers: Arc<Peers>,
    side: PeerSide,
    index: usize,
    method: Method,
    /// When the lease began.
    since: u64,
    /// If this request is the trial of a peer after failures: the time of the previous trial, to
    /// which a trial without a result is taken back. `None` once the result is known.
    trial: Option<u64>,
    /// Whether the request is counted in [`InFlight`](crate::in_flight::InFlight).
    in_flight: bool,
    /// Whether the request is counted in [`State::unheard`](crate::State::unheard).
    is_unheard: bool,
    /// Whether no time has been reported to `p2c` yet.
    is_open: bool,
    /// The time until the head of the response in milliseconds, until `least_time` is updated.
    header: Option<u64>,
    /// Whether a connection to the peer was established. If so, the end of the lease wakes a
    /// request that waits for the peer's listen backlog.
    pub(crate) is_connected: bool,
}

impl Lease {
    /// Assigns a request to the peer with this index.
    pub(crate) fn begin(
        peers: &Arc<Peers>,
        side: PeerSide,
        index: usize,
        now: u64,
        method: Method,
    ) -> Option<Lease> {
        let peer = peers.side(side).get(index)?;
        let trial = peer.state().begin(now, peer.fail_timeout);
        let timed = method.timed();
        let in_flight = timed.is_some_and(|timed| timed.in_flight) && !peers.is_single();
        if in_flight {
            peer.state().in_flight.begin(now);
        }
        let is_unheard = matches!(peer.address, Address::Unix(_));
        if is_unheard {
            peer.state().note_unheard(true);
        }
        Some(Lease {
            peers: Arc::clone(peers),
            side,
            index,
            method,
            since: now,
            trial,
            in_flight,
            is_unheard,
            is_open: true,
            header: None,
            is_connected: false,
        })
    }

    /// The peer of the lease.
    pub fn peer(&self) -> Option<&Peer> {
        self.peers.side(self.side).get(self.index)
    }

    /// Counts a failed attempt. Returns whether the peer is unavailable now (`max_fails`).
    pub(crate) fn fail(&mut self, now: Instant) -> bool {
        self.settle(now, |latency, now, after| latency.note_failure(now, after));
        let now = millis(now);
        self.trial = None;
        let is_single = self.peers.is_single();
        match self.peer() {
            Some(peer) if !is_single => {
                let _turn = self.peers.take_turn();
                let state = peer.state();
                state.fail(now, peer.weight, peer.max_fails)
            }
            _ => false,
        }
    }

    /// Counts a failed attempt, or a response that shows a broken server, for outlier detection.
    /// Returns the ejection if the peer is ejected because of it.
    pub(crate) fn err(&self, now: Instant, outliers: &Outliers) -> Option<PutOut> {
        let _turn = self.peers.take_turn();
        sparing::fail(
            self.peers.side(self.side),
            self.index,
            millis(now),
            outliers,
        )
    }

    /// Reports the time since the begin of the lease to `p2c` by `tell`. Only the first call has an
    /// effect.
    fn settle(&mut self, now: Instant, tell: impl FnOnce(&Latency, u64, Duration)) {
        if std::mem::take(&mut self.is_open)
            && self.method == Method::PowerOfTwoChoices
            && let Some(peer) = self.peer()
        {
            let now = millis(now);
            let after = Duration::from_millis(now.saturating_sub(self.since));
            tell(&peer.state().latency, now, after);
        }
    }

    /// Counts a success.
    pub(crate) fn succeed(&mut self) {
        self.trial = None;
        let Some(peer) = self.peer() else { return };
        if self.peers.is_single() {
            peer.state().forgive()
        } else {
            peer.state().succeed(peer.max_fails)
        }
    }

    /// Notes that the response head came `after` the begin of the attempt.
    pub fn head_came(&mut self, after: Duration) {
        self.heard();
        if let Some(peer) = self.peer() {
            peer.state().answers.note_header_time(as_millis(after));
        }
        self.settle(engine::now(), |latency, now, _| latency.note(now, after));
        let Some(timed) = self.method.timed() else {
            return;
        };
        let after = as_millis(after);
        self.header = Some(after);
        // In other cases, `end` notes the time when the response is complete.
        if timed.in_flight && (timed.until != Until::LastByte) {
            let was_in_flight = std::mem::take(&mut self.in_flight);
            let Some(peer) = self.peer() else { return };
            let _turn = self.peers.take_turn();
            peer.state().note_header_time(after);
            if was_in_flight {
                peer.state().in_flight.end(millis(engine::now()), after);
            }
        }
    }

    /// Notes that a session was connected `after` the begin of the attempt. This counts as the
    /// response head, unless the method measures the time until the first byte.
    pub fn session_began(&mut self, after: Duration) {
        let awaits_head = |timed: Timed| timed.until == Until::Head;
        if !self.method.timed().is_some_and(awaits_head) {
            self.head_came(after);
        }
    }

    /// Notes that the first byte of a session came `after` the begin of the attempt.
    pub fn first_byte_came(&mut self, after: Duration) {
        if self.header.is_none() {
            self.head_came(after);
        }
    }

    /// Notes that the response was complete `after` the begin of the attempt.
    pub fn answer_came(&mut self, after: Duration) {
        if let Some(peer) = self.peer() {
            peer.state().answers.note_response_time(as_millis(after));
        }
        self.end(millis(engine::now()), as_millis(after));
    }

    /// Updates the times of `least_time`, at the end of a response or of a cancelled request, which
    /// took `after` milliseconds. Only the first call has an effect. As in nginx, a request with a
    /// response head counts as answered even if the response is incomplete.
    fn end(&mut self, now: u64, after: u64) {
        let Some(timed) = self.method.timed() else {
            return;
        };
        let was_in_flight = std::mem::take(&mut self.in_flight);
        let header = self.header.take();
        if !was_in_flight && header.is_none() {
            return;
        }
        let Some(peer) = self.peer() else { return };
        let _turn = self.peers.take_turn();
        if was_in_flight {
            peer.state().in_flight.end(now, after);
        }
        if let Some(header) = header {
            peer.state().note_response_time(after);
            if !(timed.in_flight && (timed.until != Until::LastByte)) {
                peer.state().note_header_time(header);
            }
        }
    }

    /// Counts the bytes sent to and received from the peer.
    pub fn note_bytes(&self, sent: u64, received: u64) {
        if let Some(peer) = self.peer() {
            peer.state().answers.note_bytes(sent, received);
        }
    }

    /// Removes the request from [`State::unheard`](crate::State::unheard), once.
    fn heard(&mut self) {
        if std::mem::take(&mut self.is_unheard)
            && let Some(peer) = self.peer()
        {
            peer.state().note_unheard(false);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.heard();
        let now = millis(engine::now());
        self.end(now, now.saturating_sub(self.since));
        self.settle(engine::now(), |latency, now, after| {
            latency.note_at_least(now, after);
        });
        if let Some(peer) = self.peer() {
            peer.state().give_back();
            if let Some(before) = self.trial {
                peer.state().take_back_trial(self.since, before);
            }
            if self.is_connected {
                backlog::note_end(&peer.address);
            }
        }
        self.peers.queue().call_next();
    }
}

fn as_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
