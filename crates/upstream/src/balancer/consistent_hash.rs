//! `hash … consistent`: a hash ring with 160 points per unit of a server's weight, with the
//! function of Cache::Memcached::Fast: `crc32(HOST \0 PORT PREVIOUS)`.
//!
//! With `bounded`, which nginx does not have, a server with its full share of the requests in
//! flight is skipped in favour of the next on the ring: V. Mirrokni, M. Thorup and M.
//! Zadimoghaddam, "Consistent Hashing with Bounded Loads" (2018).

use crc32fast::Hasher;

use super::input::{Balancer, BalancerInput, Key};
use super::method::Bound;
use crate::peer::{Peer, PeerSet};
use crate::tried_peers::Tried;

/// Points per unit of a server's weight.
const POINTS: i64 = 160;

/// The sorted points of the ring, each with the index of the first peer of its server.
#[derive(Debug)]
pub(super) struct Ring {
    points: Box<[(u32, usize)]>,
    bound: Option<Bound>,
}

impl Ring {
    pub(super) fn new(side: &PeerSet, bound: Option<Bound>) -> Ring {
        let mut points = Vec::new();
        for (place, peer) in side.iter().enumerate() {
            let (host, port) = parts(&peer.server);
            let mut base = Hasher::new();
            base.update(host);
            base.update(b"\0");
            base.update(port);
            let mut previous = 0_u32;
            for _ in 0..peer.weight.saturating_mul(POINTS) {
                let mut hasher = base.clone();
                hasher.update(&previous.to_le_bytes());
                previous = hasher.finalize();
                points.push((previous, place));
            }
        }
        points.sort_by_key(|(hash, _)| *hash);
        points.dedup_by_key(|(hash, _)| *hash);
        Ring {
            points: points.into(),
            bound,
        }
    }

    /// The index of the first peer of the server at the current point of the search.
    fn place(&self, asked: &BalancerInput<'_>) -> Option<usize> {
        let at = (asked.search.hash as usize).checked_rem(self.points.len())?;
        self.points.get(at).map(|(_, place)| *place)
    }

    /// The next live peer on the ring that has fewer requests in flight than its share allows.
    fn choose_within(&self, asked: &mut BalancerInput<'_>, bound: Bound) -> Option<usize> {
        let share = Share::of_each(asked, bound);
        let mut seen = Tried::default();
        for _ in 0..self.points.len() {
            let place = self.place(asked)?;
            if !seen.contains(place) {
                seen.insert(place);
                let server = &asked.side.get(place)?.server;
                let chosen = super::round_robin::spread(asked, 0..asked.side.len(), |peer| {
                    peer.server == *server && share.has_room(peer)
                });
                if chosen.is_some() {
                    return chosen;
                }
            }
            asked.search.hash = asked.search.hash.wrapping_add(1);
        }
        None
    }
}

/// The total of requests in flight at all live peers, with the new request, and the total weight of
/// these peers: a peer's fair share is its part of the weight.
struct Share {
    bound: Bound,
    requests: u128,
    weight: u128,
}

impl Share {
    /// Adds up requests and weights of the live peers.
    fn of_each(asked: &BalancerInput<'_>, bound: Bound) -> Share {
        let live = asked.all_live().map(|(_, peer)| parts_of(peer));
        let (requests, weight) = live.fold((1, 0), |(requests, total), (more, weight)| {
            (requests + more, total + weight)
        });
        Share {
            bound,
            requests,
            weight,
        }
    }

    /// Whether the peer has fewer requests in flight than its share times the bound. This is true
    /// of at least one live peer: if all had their full share, the sum of their requests would
    /// exceed the total.
    fn has_room(&self, peer: &Peer) -> bool {
        let (requests, weight) = parts_of(peer);
        requests * self.weight * 1000 < u128::from(self.bound.0) * self.requests * weight
    }
}

/// The peer's requests in flight, and its weight.
fn parts_of(peer: &Peer) -> (u128, u128) {
    let requests = peer.state().connections() as u128;
    (requests, u128::from(peer.weight.unsigned_abs()))
}

/// Splits the configured text of a server into host and port.
fn parts(server: &[u8]) -> (&[u8], &[u8]) {
    if let Some((scheme, path)) = server.split_at_checked(5)
        && scheme.eq_ignore_ascii_case(b"unix:")
    {
        return (path, b"");
    }
    let digits = server.iter().rev().take_while(|byte| byte.is_ascii_digit());
    let port = server.len() - digits.count();
    match port.checked_sub(1) {
        Some(colon) if server.get(colon) == Some(&b':') => (
            server.get(..colon).unwrap_or_default(),
            server.get(port..).unwrap_or_default(),
        ),
        _ => (server, b""),
    }
}

impl Balancer for Ring {
    fn choose(&self, asked: &mut BalancerInput<'_>) -> Option<usize> {
        let Key::Text(key) = asked.key else {
            return None;
        };
        if key.is_empty() || self.points.is_empty() || asked.search.is_over() {
            return None;
        }
        if let Some(hinted) = asked.hinted() {
            return Some(hinted);
        }
        if asked.search.rounds == 0 {
            let hash = crc32fast::hash(key);
            let point = self.points.partition_point(|(point, _)| *point < hash);
            asked.search.hash = u32::try_from(point).ok()?;
            asked.search.rounds = 1;
        }
        if let Some(bound) = self.bound {
            return self.choose_within(asked, bound);
        }
        loop {
            let server = &asked.side.get(self.place(asked)?)?.server;
            let places = 0..asked.side.len();
            let chosen = super::round_robin::spread(asked, places, |peer| peer.server == *server);
            if chosen.is_some() {
                return chosen;
            }
            asked.search.hash = asked.search.hash.wrapping_add(1);
            if asked.search.miss() {
                return None;
            }
        }
    }
}
