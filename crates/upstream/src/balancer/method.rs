//! The balancing methods of groups, as configured.

/// The balancing method of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Smooth weighted round robin.
    RoundRobin,
    /// A hash of the request's key, as in Cache::Memcached.
    Hash,
    /// A hash ring, as in Cache::Memcached::Fast (ketama): few keys move if a peer is added or
    /// removed.
    ConsistentHash,
    /// A hash ring with bounded load: no peer gets many more requests in flight than its share.
    BoundedHash(Bound),
    /// A hash of the client's address; of an IPv4 address, only the first three bytes.
    IpHash,
    /// The peer with the fewest requests for its weight.
    LeastConnections,
    /// The peer with the lowest product of expected response time and requests, for its weight.
    LeastTime(Timed),
    /// A random peer.
    Random,
    /// Of two random peers, the one with the fewest requests for its weight.
    RandomTwo,
    /// Of two random peers, the one with the shortest expected time.
    PowerOfTwoChoices,
}

impl Method {
    /// The response times that the method uses; `None` if it uses none.
    pub(crate) fn timed(self) -> Option<Timed> {
        match self {
            Method::LeastTime(timed) => Some(timed),
            _ => None,
        }
    }

    /// Whether the method also applies to backups, instead of round robin.
    pub(crate) fn is_for_backups(self) -> bool {
        let by_load = matches!(self, Method::LeastConnections | Method::PowerOfTwoChoices);
        by_load || self.timed().is_some()
    }
}

/// The limit of a peer's requests in flight, in thousandths of its fair share; at least 1000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound(pub u32);

/// The kind of time that `least_time` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// The end of the measurement.
    pub until: Until,
    /// Whether the waiting times of requests without a response count too (`inflight`).
    pub in_flight: bool,
}

/// The end of a measured time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The establishment of the connection. Only for sessions of `stream`, whose servers may send
    /// nothing.
    Connected,
    /// The head of the response, or the first byte of a session.
    Head,
    /// The last byte of the response.
    LastByte,
}
