//! What balancers go by, and what each of them is.

use std::fmt::Debug;
use std::net::IpAddr;

use crate::peer::{Peer, PeerSet};
use crate::tried_peers::Tried;

/// What a balancer goes by.
pub(crate) struct BalancerInput<'a> {
    /// The peers of the balancer input.
    pub side: &'a PeerSet,
    /// Those that this request has tried.
    pub tried: &'a Tried,
    /// In milliseconds of [`millis`](crate::moment::millis).
    pub now: u64,
    /// What a request is placed by.
    pub key: &'a Key,
    /// The name of the peer that the request wants.
    pub hint: Option<&'a [u8]>,
    /// How far the search of this request has come.
    pub search: &'a mut SearchProgress,
    /// Those may be asked that are put out because they do worse than others.
    pub despite_outliers: bool,
}

impl BalancerInput<'_> {
    /// The peer at a place, if it may be asked.
    pub(super) fn live(&self, index: usize) -> Option<&Peer> {
        let peer = self.side.get(index)?;
        (peer.is_live(self.now) && !self.is_passed_over(index, peer)).then_some(peer)
    }

    /// The place of the peer that the request names, if it may be asked.
    pub(super) fn hinted(&self) -> Option<usize> {
        let place = self.side.named(self.hint?)?;
        let peer = self.side.get(place)?;
        (peer.is_live_by_name(self.now) && !self.is_passed_over(place, peer)).then_some(place)
    }

    /// All that may be asked, with their places.
    pub(super) fn all_live(&self) -> impl Iterator<Item = (usize, &Peer)> {
        let all = self.side.iter().enumerate();
        all.filter(|(index, peer)| peer.is_live(self.now) && !self.is_passed_over(*index, peer))
    }

    /// Whether a peer that may be asked is not: it has been, or others do better.
    fn is_passed_over(&self, index: usize, peer: &Peer) -> bool {
        self.tried.contains(index)
            || (!self.despite_outliers && peer.state().standing.is_out(self.now))
    }
}

/// What a request is placed by, where its group does that.
#[derive(Clone, Debug, Default)]
pub(crate) enum Key {
    #[default]
    Nothing,
    Text(bytes::Bytes),
    /// The client's; none where it has come by a Unix socket.
    Client(Option<IpAddr>),
}

/// How far the search of a request has come that looks again and again.
#[derive(Debug, Default)]
pub(crate) struct SearchProgress {
    /// Places that were no good.
    pub misses: u32,
    /// How often a hash has been made.
    pub rounds: u32,
    pub hash: u32,
}

/// How often places are looked at before the turns of all decide.
const MISSES_MAX: u32 = 20;

impl SearchProgress {
    /// One place more was no good. Whether it is time to give up.
    pub(super) fn miss(&mut self) -> bool {
        self.misses += 1;
        self.misses > MISSES_MAX
    }

    pub(super) fn is_over(&self) -> bool {
        self.misses > MISSES_MAX
    }
}

/// A way to choose.
pub(crate) trait Balancer: Debug + Send + Sync {
    /// The place of the peer to ask next, the one that the request names before all; `None` where
    /// this way finds none and the turns of all are to decide.
    fn choose(&self, asked: &mut BalancerInput<'_>) -> Option<usize>;
}
