//! Chooses peers: one file per balancing method.

mod consistent_hash;
mod hash;
mod input;
mod ip_hash;
mod least;
mod method;
mod p2c;
mod random;
mod round_robin;

use crate::peer::PeerSet;

pub(crate) use input::{Balancer, BalancerInput, Key, SearchProgress};
pub use method::{Bound, Method, Timed, Until};

/// Makes the balancer of a method; `side` are the primary peers.
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

/// Chooses a peer by round robin.
pub(crate) fn round_robin(asked: &mut BalancerInput<'_>) -> Option<usize> {
    round_robin::RoundRobin.choose(asked)
}
