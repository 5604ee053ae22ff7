//! How a group shares requests out, as its configuration says it.

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
    /// By a ring of hashes with bounded load: no peer gets many more requests than the others.
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
