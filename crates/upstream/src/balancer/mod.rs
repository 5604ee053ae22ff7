//! Which peer is asked: a file for each way to choose.

mod consistent_hash;
mod hash;
mod ip_hash;
mod least;
mod p2c;
mod random;
mod round_robin;

use std::fmt::Debug;
use std::net::IpAddr;

use crate::peer::{Peer, PeerSet};
use crate::tried_peers::Tried;

pub(crate) use p2c::Latency;

/// How a group shares requests out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// By weight, in turns that are spread.
    RoundRobin,
    /// By a hash of the request's key, as Cache::Memcached has it.
    Hash,
    /// By a ring of hashes, as Cache::Memcached::Fast has it (ketama): few keys move where a peer
    /// comes or goes.
    ConsistentHash,
    /// The same, but no peer has many more requests than others.
    BoundedHash(Bound),
    /// By the client's address; of IPv4 the first three bytes.
    IpHash,
    /// To the peer with the fewest requests for its weight.
    LeastConnections,
    /// To the peer that would be done first by what it has needed until now.
    LeastTime(Timed),
    /// A peer is drawn by chance.
    Random,
    /// By chance two, and of these the one with the fewest requests for its weight.
    RandomTwo,
    /// By chance two, and of these the one from which an answer is to be expected first.
    PowerOfTwoChoices,
}

impl Method {
    /// Which times of answers it goes by; `None` where that is none.
    pub(crate) fn timed(self) -> Option<Timed> {
        match self {
            Method::LeastTime(timed) => Some(timed),
            _ => None,
        }
    }

    /// Whether backups are chosen among in its way as well, and not by turns.
    pub(crate) fn is_for_backups(self) -> bool {
        let by_load = matches!(self, Method::LeastConnections | Method::PowerOfTwoChoices);
        by_load || self.timed().is_some()
    }
}

/// How many times its fair share of the requests under way a peer has at most, in thousandths; at
/// least 1000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound(pub u32);

/// Which times of its answers a peer is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// Until when they are measured.
    pub until: Until,
    /// Also those of requests that have not been answered.
    pub in_flight: bool,
}

/// Until when the time of an answer is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// There is a connection: of sessions alone, whose answers may never begin.
    Connected,
    /// Its head, or the first byte of a session.
    Head,
    /// Until the last byte of the answer.
    LastByte,
}

/// What a balancer goes by.
pub(crate) struct BalancerInput<'a> {
    /// The peers of the balancer input.
    pub side: &'a PeerSet,
    /// Those that this request has tried.
    pub tried: &'a Tried,
    /// In milliseconds of [`millis`](crate::state::millis).
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
    fn live(&self, index: usize) -> Option<&Peer> {
        let peer = self.side.get(index)?;
        (peer.is_live(self.now) && !self.is_passed_over(index, peer)).then_some(peer)
    }

    /// The place of the peer that the request names, if it may be asked.
    fn hinted(&self) -> Option<usize> {
        let place = self.side.named(self.hint?)?;
        let peer = self.side.get(place)?;
        (peer.is_live_by_name(self.now) && !self.is_passed_over(place, peer)).then_some(place)
    }

    /// All that may be asked, with their places.
    fn all_live(&self) -> impl Iterator<Item = (usize, &Peer)> {
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
    fn miss(&mut self) -> bool {
        self.misses += 1;
        self.misses > MISSES_MAX
    }

    fn is_over(&self) -> bool {
        self.misses > MISSES_MAX
    }
}

/// A way to choose.
pub(crate) trait Balancer: Debug + Send + Sync {
    /// The place of the peer to ask next, the one that the request names before all; `None` where
    /// this way finds none and the turns of all are to decide.
    fn choose(&self, asked: &mut BalancerInput<'_>) -> Option<usize>;
}

/// The way for a method, over these peers.
pub(crate) fn of(method: Method, side: &PeerSet) -> Box<dyn Balancer> {
    match method {
        Method::RoundRobin => Box::new(round_robin::RoundRobin),
        Method::Hash => Box::new(hash::Hash),
        Method::ConsistentHash => Box::new(consistent_hash::Ring::new(side, None)),
        Method::BoundedHash(bound) => Box::new(consistent_hash::Ring::new(side, Some(bound))),
        Method::IpHash => Box::new(ip_hash::IpHash),
        Method::LeastConnections => Box::new(least::Least(None)),
        Method::LeastTime(timed) => Box::new(least::Least(Some(timed))),
        Method::Random => Box::new(random::Random { two: false }),
        Method::RandomTwo => Box::new(random::Random { two: true }),
        Method::PowerOfTwoChoices => Box::new(p2c::PowerOfTwoChoices),
    }
}

/// By the turns of all.
pub(crate) fn round_robin(asked: &mut BalancerInput<'_>) -> Option<usize> {
    round_robin::RoundRobin.choose(asked)
}
