//! One request's way through a group, and through the sessions of that group.

use std::time::{Duration, Instant};

use ::upstream::{Entry, Failed, Lease, Load, Place, PutOut};
use bytes::Bytes;
use engine::net::Address;
use http::request::Request;

use super::sticky::{AtEnd, Sticking};

/// A selection of the crate `upstream` that knows what sessions the group has: see `sticky`.
#[derive(Debug)]
pub struct Selection {
    peers: ::upstream::Selection,
    sticking: Option<Sticking>,
}

/// A peer that has been chosen.
pub struct Chosen {
    /// Where it is.
    pub address: Address,
    /// The address as `$upstream_addr` and log lines show it.
    pub name: Bytes,
}

impl Selection {
    pub(super) fn new(peers: ::upstream::Selection, sticking: Option<Sticking>) -> Selection {
        Selection { peers, sticking }
    }

    /// The name of the group that it chooses from.
    pub fn group_name(&self) -> Bytes {
        self.peers.group().name.clone()
    }

    /// How many tries there may still be, the one under way included.
    pub fn tries_left(&self) -> usize {
        self.peers.tries_left()
    }

    /// A try that does not count: its connection had been kept, and may have ended before the peer saw the request.
    pub fn try_once_more(&mut self) {
        self.peers.try_once_more();
    }

    /// Chooses a peer: that of the request's session, if it may be asked. `None` when none is left.
    pub fn next(&mut self, request: &mut Request, now: Instant) -> Option<Chosen> {
        if let Some(sticking) = &self.sticking {
            self.peers.want(sticking.wanted(request));
        }
        let peer = self.peers.next(now)?;
        if let Some(sticking) = &mut self.sticking {
            sticking.asks(request, peer.id.clone());
        }
        self.given()
    }

    /// The peer that has been chosen, where nothing has come of that yet.
    pub fn given(&self) -> Option<Chosen> {
        let peer = self.peers.given()?;
        Some(Chosen {
            address: peer.address.clone(),
            name: peer.name.clone(),
        })
    }

    /// Asks to be let through to the group, where that bounds how many requests are under way.
    pub fn enter(&self, now: Instant) -> Option<Entry> {
        self.peers.group().enter(now)
    }

    /// How long a request may wait until it is let through.
    pub fn waiting_time(&self) -> Duration {
        self.peers.group().waiting_time()
    }

    /// How many requests are under way; `None` where that is not bounded.
    pub fn load(&self) -> Option<Load> {
        self.peers.group().load()
    }

    /// How long requests wait where no peer may be asked; `None` where they do not, or this one has tried a peer already.
    pub fn queue_timeout(&self) -> Option<Duration> {
        let group = self.peers.group();
        let queueing = group.queueing.filter(|_| !self.peers.has_tried())?;
        Some(match group.concurrency {
            Some(_) => group.waiting_time(),
            None => queueing.timeout(),
        })
    }

    /// Whether others have been waiting: whoever comes now is behind them.
    pub fn has_to_wait(&self) -> bool {
        self.peers.has_to_wait()
    }

    /// A place among those that wait, if there is room.
    pub fn wait(&self) -> Option<Place> {
        self.peers.wait()
    }

    /// Begins anew among the peers that there are now.
    pub fn begin_again(&mut self) {
        self.peers.begin_again();
    }

    /// Whether the peer chosen last had been put out as an outlier, and this is the first request since then.
    pub fn is_back(&self) -> bool {
        self.peers.is_back()
    }

    /// Takes another try out of the group's budget; `false` where nothing is left of that.
    pub fn may_retry(&self, now: Instant) -> bool {
        self.peers.may_retry(now)
    }

    /// The peer chosen last has failed, which is its own fault.
    pub fn failed(&mut self, now: Instant) -> Failed {
        self.has_failed();
        self.peers.failed(now)
    }

    /// There is a connection to the peer chosen last.
    pub fn connected(&mut self) {
        self.peers.connected();
    }

    /// How many requests the peer chosen last, if that is a Unix socket, has still to answer, this one included.
    pub fn unheard(&self) -> usize {
        let peer = self.peers.given();
        peer.map_or(0, |peer| peer.state().unheard())
    }

    /// Whether there is another peer that may be asked now.
    pub fn has_others(&self, now: Instant) -> bool {
        self.peers.has_others(now)
    }

    /// The peer chosen last could not take the request, which tells nothing of how it does.
    pub fn let_off(&mut self) {
        self.has_failed();
        self.peers.let_off();
    }

    /// The peer chosen last lacks what was asked for, which is no fault of its own.
    pub fn passed_by(&mut self, now: Instant) {
        self.has_failed();
        self.peers.passed_by(now);
    }

    /// The peer chosen last has answered, and [`Selection::answered`] follows: whether as one that is well, or as one that is broken
    /// itself. What that has put it out for, if it has.
    pub fn judge(&self, now: Instant, is_well: bool) -> Option<PutOut> {
        self.peers.judge(now, is_well)
    }

    fn has_failed(&mut self) {
        if let Some(sticking) = &mut self.sticking {
            sticking.has_failed();
        }
    }

    /// The peer chosen last has answered: who reads the answer has the lease.
    pub fn answered(&mut self) -> Option<Lease> {
        self.peers.answered()
    }

    /// The head of its answer goes to the client.
    pub fn head_came(&self, request: &mut Request) {
        if let Some(sticking) = &self.sticking {
            sticking.head_came(request);
        }
    }

    /// What is learned of the session when this is dropped, once the answer has come or will come no more.
    pub fn at_end(&self, request: &mut Request) -> Option<Box<AtEnd>> {
        self.sticking.as_ref()?.at_end(request).map(Box::new)
    }
}
