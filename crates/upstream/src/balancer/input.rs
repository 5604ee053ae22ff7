//! The input of balancers, and their interface.

use std::fmt::Debug;
use std::net::IpAddr;

use crate::peer::{Peer, PeerSet};
use crate::tried_peers::Tried;

/// The request and the peers, as the input of a balancer.
pub(crate) struct BalancerInput<'a> {
    /// The peers to choose from.
    pub side: &'a PeerSet,
    /// The peers that this request has tried.
    pub tried: &'a Tried,
    /// The time, in milliseconds of [`millis`](crate::moment::millis).
    pub now: u64,
    /// The key of the request.
    pub key: &'a Key,
    /// The id of the peer that the request prefers ([`Peer::id`]), for sticky sessions.
    pub hint: Option<&'a [u8]>,
    /// The progress of this request's search.
    pub search: &'a mut SearchProgress,
    /// Whether peers that were ejected as outliers may be chosen.
    pub despite_outliers: bool,
}

impl BalancerInput<'_> {
    /// The peer with this index, if it may be chosen.
    pub(super) fn live(&self, index: usize) -> Option<&Peer> {
        let peer = self.side.get(index)?;
        (peer.is_live(self.now) && !self.is_passed_over(index, peer)).then_some(peer)
    }

    /// The index of the peer that the request prefers, if it may be chosen.
    pub(super) fn hinted(&self) -> Option<usize> {
        let place = self.side.named(self.hint?)?;
        let peer = self.side.get(place)?;
        (peer.is_live_by_name(self.now) && !self.is_passed_over(place, peer)).then_some(place)
    }

    /// All peers that may be chosen, with their indexes.
    pub(super) fn all_live(&self) -> impl Iterator<Item = (usize, &Peer)> {
        let all = self.side.iter().enumerate();
        all.filter(|(index, peer)| peer.is_live(self.now) && !self.is_passed_over(*index, peer))
    }

    /// Whether a peer is skipped because it has been tried, or was ejected as an outlier.
    fn is_passed_over(&self, index: usize, peer: &Peer) -> bool {
        self.tried.contains(index)
            || (!self.despite_outliers && peer.state().standing.is_out(self.now))
    }
}

/// The key of a request, if its group's method uses one.
#[derive(Clone, Debug, Default)]
pub(crate) enum Key {
    #[default]
    Nothing,
    Text(bytes::Bytes),
    /// The client's address; `None` for clients of a Unix socket.
    Client(Option<IpAddr>),
}

/// The progress of a search with several attempts.
#[derive(Debug, Default)]
pub(crate) struct SearchProgress {
    /// Unsuccessful attempts.
    pub misses: u32,
    /// Number of hashes computed.
    pub rounds: u32,
    pub hash: u32,
}

/// Maximum number of unsuccessful attempts; after that, round robin is used.
const MISSES_MAX: u32 = 20;

impl SearchProgress {
    /// Counts an unsuccessful attempt; true if the search must end.
    pub(super) fn miss(&mut self) -> bool {
        self.misses += 1;
        self.misses > MISSES_MAX
    }

    pub(super) fn is_over(&self) -> bool {
        self.misses > MISSES_MAX
    }
}

/// A balancing method.
pub(crate) trait Balancer: Debug + Send + Sync {
    /// The index of the next peer: the request's preferred peer, if that may be chosen. `None` if
    /// the method finds no peer, so that round robin must be used.
    fn choose(&self, asked: &mut BalancerInput<'_>) -> Option<usize>;
}
