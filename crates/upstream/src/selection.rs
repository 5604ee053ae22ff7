//! Chooses the peers for one request of a group, never one that it has tried.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::balancer::{self, BalancerInput, Key, SearchProgress};
use crate::gate::Load;
use crate::group::Group;
use crate::lease::Lease;
use crate::moment::millis;
use crate::outliers::PutOut;
use crate::peer::Peer;
use crate::peers::{PeerSide, Peers};
use crate::queue::QueueTicket;
use crate::sparing;
use crate::tried_peers::Tried;

/// The peers of one request. The caller calls [`Selection::next`] for each attempt and then reports
/// the result, by [`Selection::failed`] or [`Selection::answered`] for instance, until a peer has
/// responded or no attempt is left.
#[derive(Debug)]
pub struct Selection {
    group: Arc<Group>,
    peers: Arc<Peers>,
    side: PeerSide,
    tried: Tried,
    /// Maximum number of attempts; 0 is no limit.
    tries_max: usize,
    tries_left: usize,
    tries_made: usize,
    key: Key,
    /// The id of the preferred peer.
    hint: Option<Bytes>,
    search: SearchProgress,
    /// The peer chosen last, by side and index, until it has failed or responded.
    chosen: Option<(PeerSide, usize)>,
    /// A peer, by side and index, that may be tried once more if no other peer is left: see
    /// [`Selection::try_once_more`].
    again: Option<(PeerSide, usize)>,
    /// The lease of the chosen peer, until the result of the attempt is known.
    lease: Option<Lease>,
    /// Whether this is the first request of the chosen peer since the end of its ejection as an
    /// outlier.
    is_back: bool,
    /// Whether the request has been counted for the retry budget.
    is_counted: bool,
}

/// The effect of a failure on the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailureEffect {
    /// Whether the peer has reached `max_fails` and is unavailable for `fail_timeout`.
    pub disabled: bool,
    /// The ejection of the peer as an outlier, if the failure has caused one.
    pub put_out: Option<PutOut>,
}

impl Selection {
    /// A selection that tries each peer of the group once, in at most `tries_max` attempts; 0 is no
    /// limit.
    pub fn new(group: &Arc<Group>, tries_max: usize) -> Selection {
        let peers = group.peers();
        Selection {
            group: Arc::clone(group),
            side: PeerSide::Peers,
            tried: Tried::default(),
            tries_max,
            tries_left: tries(&peers, tries_max),
            peers,
            tries_made: 0,
            key: Key::Nothing,
            hint: None,
            search: SearchProgress::default(),
            chosen: None,
            again: None,
            lease: None,
            is_back: false,
            is_counted: false,
        }
    }

    /// Sets the text that the group's method hashes.
    pub fn by_text(mut self, text: Bytes) -> Selection {
        self.key = Key::Text(text);
        self
    }

    /// Sets the client's address that the group's method hashes; `None` if the client has no IP
    /// address.
    pub fn by_client(mut self, client: Option<IpAddr>) -> Selection {
        self.key = Key::Client(client);
        self
    }

    /// Sets the id ([`Peer::id`]) of the peer that the next choices prefer. Another peer is only
    /// chosen if the preferred peer is not available. A draining peer is chosen if it is preferred.
    pub fn want(&mut self, id: Option<Bytes>) {
        self.hint = id.filter(|id| !id.is_empty());
    }

    /// The group of the selection.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// The number of attempts left, the current one included.
    pub fn tries_left(&self) -> usize {
        self.tries_left
    }

    /// Makes the last attempt not count: the peer may not have received the request, because the
    /// connection was reused or shared and has ended. If the peer was [let off](Self::let_off), it
    /// may be tried again.
    pub fn try_once_more(&mut self) {
        self.tries_left += 1;
        self.again = self.chosen.take().or(self.again);
    }

    /// Chooses a peer, which is leased until the selection is told the result; `None` if no peer is
    /// available.
    pub fn next(&mut self, now: Instant) -> Option<&Peer> {
        self.lease = None;
        let now = millis(now);
        if !std::mem::replace(&mut self.is_counted, true) && self.group.retry_budget.is_some() {
            self.peers.retries().request(now);
        }
        self.lease = self.take_next(now);
        let peer = self.lease.as_ref()?.peer()?;
        self.is_back = self.group.outliers.is_some() && peer.state().standing.comes_back(now);
        Some(peer)
    }

    /// Whether the chosen peer's ejection as an outlier has ended, and this is its first request
    /// since.
    pub fn is_back(&self) -> bool {
        self.is_back
    }

    /// Takes a retry out of the group's budget; `false` if the budget is used up.
    pub fn may_retry(&self, now: Instant) -> bool {
        match self.group.retry_budget {
            Some(budget) => self.peers.retries().retry(millis(now), budget),
            None => true,
        }
    }

    /// Whether a peer has been chosen and the result of the attempt has not been reported yet.
    pub fn is_given(&self) -> bool {
        self.lease.is_some()
    }

    /// The chosen peer, until the result of the attempt is reported.
    pub fn given(&self) -> Option<&Peer> {
        self.lease.as_ref()?.peer()
    }

    /// Whether there is an available peer that has been neither tried nor chosen.
    pub fn has_others(&self, now: Instant) -> bool {
        let now = millis(now);
        let here = self.peers.side(self.side).iter().enumerate();
        let mut untried = here.filter(|(index, _)| !self.tried.contains(*index));
        let is_of_peers = self.side == PeerSide::Peers;
        let mut backup = self.peers.backup.iter();
        let looks_out = self.group.outliers.is_some();
        let may_be_asked =
            |peer: &Peer| peer.is_live(now) && !(looks_out && peer.state().standing.is_out(now));
        self.tries_left > 1
            && (untried.any(|(_, peer)| may_be_asked(peer))
                || (is_of_peers && backup.any(may_be_asked)))
    }

    /// Whether any attempt has ended.
    pub fn has_tried(&self) -> bool {
        self.tries_made > 0
    }

    /// The number of requests without a response at the chosen peer, this one included, if the peer
    /// is a Unix socket.
    pub(crate) fn unheard(&self) -> usize {
        self.given().map_or(0, |peer| peer.state().unheard())
    }

    /// The state of the limit of requests in flight; `None` if there is no limit.
    pub(crate) fn load(&self) -> Option<Load> {
        self.group.load()
    }

    /// How long this request may wait if no peer is available; `None` if the group has no queue, or
    /// if the request has tried a peer already.
    pub(crate) fn queue_timeout(&self) -> Option<Duration> {
        let queueing = self.group.queueing.filter(|_| !self.has_tried())?;
        Some(match self.group.concurrency {
            Some(_) => self.group.waiting_time(),
            None => queueing.timeout(),
        })
    }

    /// Whether other requests wait for a peer, so that a new request must queue behind them.
    pub fn has_to_wait(&self) -> bool {
        self.group.queueing.is_some() && !self.peers.queue().is_empty()
    }

    /// Joins the queue, if the group has one with room.
    pub fn wait(&self) -> Option<QueueTicket> {
        let queueing = self.group.queueing?;
        let queue = self.peers.queue();
        let place = queue.enter(queueing.length);
        // The end of a request calls the queue. If no request is in flight, the first in the queue
        // must look for a peer without being called.
        queue.call_next();
        place
    }

    /// Starts again with the group's current list of peers, as if none had been tried.
    pub fn begin_again(&mut self) {
        self.peers = self.group.peers();
        self.tries_left = tries(&self.peers, self.tries_max);
        self.side = PeerSide::Peers;
        self.tried = Tried::default();
        self.search = SearchProgress::default();
        (self.chosen, self.again) = (None, None);
    }

    fn take_next(&mut self, now: u64) -> Option<Lease> {
        let peers = Arc::clone(&self.peers);
        let _turn = peers.take_turn();
        if peers.is_single() {
            let peer = peers.primary.first()?;
            let is_wanted = self.hint.as_ref().is_some_and(|id| *id == peer.id);
            let is_given = (is_wanted && peer.is_live_by_name(now))
                || (peer.is_open() && !peer.draining && !peer.is_full());
            return is_given.then(|| self.lease(0, now)).flatten();
        }
        // Without `eject_outliers`, peers that were ejected before a reload may be chosen.
        let despite_outliers = self.group.outliers.is_none();
        let mut chosen = self.choose(now, despite_outliers);
        if chosen.is_none() && self.side == PeerSide::Peers && !peers.backup.is_empty() {
            self.side = PeerSide::Backups;
            self.tried = Tried::default();
            chosen = self.choose(now, despite_outliers);
        }
        if chosen.is_none()
            && !despite_outliers
            && self.tries_made == 0
            && sparing::are_all_there_is(peers.side(self.side), now)
        {
            self.search = SearchProgress::default();
            chosen = self.choose(now, true);
        }
        let Some(chosen) = chosen else {
            return self.take_again(now);
        };
        self.tried.insert(chosen);
        self.chosen = Some((self.side, chosen));
        self.lease(chosen, now)
    }

    /// Leases the peer that may be tried once more, because no other peer is left.
    fn take_again(&mut self, now: u64) -> Option<Lease> {
        let (side, index) = self.again.take()?;
        let peer = self.peers.side(side).get(index)?;
        if !peer.is_live_by_name(now) {
            return None;
        }
        self.chosen = Some((side, index));
        Lease::begin(&self.peers, side, index, now, self.group.method())
    }

    fn lease(&self, index: usize, now: u64) -> Option<Lease> {
        Lease::begin(&self.peers, self.side, index, now, self.group.method())
    }

    fn choose(&mut self, now: u64, despite_outliers: bool) -> Option<usize> {
        let mut asked = BalancerInput {
            side: self.peers.side(self.side),
            tried: &self.tried,
            now,
            key: &self.key,
            hint: self.hint.as_deref(),
            search: &mut self.search,
            despite_outliers,
        };
        let is_of_peers = self.side == PeerSide::Peers;
        let chosen = if is_of_peers || self.group.method().is_for_backups() {
            self.peers.balancer().choose(&mut asked)
        } else {
            None
        };
        chosen.or_else(|| balancer::round_robin(&mut asked))
    }

    /// Notes that the chosen peer has failed, which counts as its failure, and ends the lease.
    pub fn failed(&mut self, now: Instant) -> FailureEffect {
        self.count_try();
        self.chosen = None;
        let put_out = self.judge(now, false);
        let disabled = self.lease.take().is_some_and(|mut lease| lease.fail(now));
        FailureEffect { disabled, put_out }
    }

    /// Counts the response of the chosen peer for outlier detection: `is_well` is false if the
    /// response shows a broken server. Returns the ejection if the peer is ejected because of it.
    /// [`Selection::answered`] must follow.
    pub fn judge(&self, now: Instant, is_well: bool) -> Option<PutOut> {
        let outliers = self.group.outliers.as_ref()?;
        let lease = self.lease.as_ref()?;
        if !is_well {
            return lease.err(now, outliers);
        }
        let standing = &lease.peer()?.state().standing;
        standing.succeed(millis(now), outliers);
        None
    }

    /// Notes that the connection to the chosen peer is established.
    pub fn connected(&mut self) {
        if let Some(lease) = &mut self.lease {
            lease.is_connected = true;
        }
    }

    /// Notes that the chosen peer could not process the request, which says nothing about its
    /// health, and ends the lease.
    pub fn let_off(&mut self) {
        self.count_try();
        self.lease = None;
    }

    /// Notes that the chosen peer lacks what was requested, which is not its fault, and ends the
    /// lease.
    pub fn passed_by(&mut self, now: Instant) {
        self.judge(now, true);
        self.answered();
    }

    /// Notes that the chosen peer has responded, and returns the lease to the reader of the
    /// response.
    pub fn answered(&mut self) -> Option<Lease> {
        self.count_try();
        self.chosen = None;
        let mut lease = self.lease.take()?;
        lease.succeed();
        Some(lease)
    }

    fn count_try(&mut self) {
        self.tries_made += 1;
        self.tries_left = if self.peers.is_single() {
            0
        } else {
            self.tries_left.saturating_sub(1)
        };
    }
}

/// The number of attempts of a request: at most `most`, or unlimited if `most` is 0, and at most
/// one for each peer.
fn tries(peers: &Peers, most: usize) -> usize {
    match most {
        0 => peers.tries(),
        most => peers.tries().min(most),
    }
}
