//! `least_conn` and `least_time`: chooses the peer with the lowest load for its weight, or with the
//! shortest expected time. Equal peers are chosen by round robin.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#least_conn>

use super::input::{Balancer, BalancerInput};
use super::method::{Timed, Until};
use crate::peer::Peer;
use crate::slow_start::WHOLE;

/// Times above this limit, in milliseconds, count as this limit, so that the number of requests
/// decides.
const TIME_MAX: u64 = 5000;

/// Times are compared in steps of this many milliseconds.
const ALIKE: u64 = 20;

/// `None` is `least_conn`, which compares numbers of requests in flight. `Some` is `least_time`,
/// which multiplies them by expected times.
#[derive(Debug)]
pub(super) struct Least(pub(super) Option<Timed>);

impl Least {
    /// The load of a peer.
    fn load(&self, peer: &Peer, now: u64) -> u64 {
        let connections = peer.state().connections() as u64;
        match self.0 {
            None => connections,
            Some(timed) => time_of(peer, timed, now).saturating_mul(1 + connections),
        }
    }
}

/// The expected time of a request at a peer.
fn time_of(peer: &Peer, timed: Timed, now: u64) -> u64 {
    let state = peer.state();
    let (header, response) = state.times();
    let mut time = match timed.until {
        Until::Connected | Until::Head => header,
        Until::LastByte => response,
    };
    // The time of a peer that has not been used for long decays, so that the peer is tried again.
    let fail_timeout = peer.fail_timeout.as_secs();
    if let Some(unchecked) = state.unchecked_for(now).map(|millis| millis / 1000)
        && unchecked > fail_timeout
    {
        let halvings = unchecked / (fail_timeout + 1);
        time = time
            .checked_shr(u32::try_from(halvings).unwrap_or(u32::MAX))
            .unwrap_or(0);
    }
    // A peer whose pending requests have waited longer than its average counts as slower.
    if timed.in_flight
        && let Some(waiting) = state.in_flight.look(now)
    {
        time = time.max(waiting);
    }
    if time > TIME_MAX {
        TIME_MAX
    } else {
        time + ALIKE - time % ALIKE
    }
}

impl Balancer for Least {
    fn choose(&self, asked: &mut BalancerInput<'_>) -> Option<usize> {
        if let Some(hinted) = asked.hinted() {
            return Some(hinted);
        }
        // If any peer is in its `slow_start`, the new request is counted at every peer: a peer
        // without requests would otherwise have load 0 and get the request, however small its
        // current weight is.
        let starts_slowly = |(_, peer): (usize, &Peer)| peer.share_of_weight(asked.now) < WHOLE;
        let at_hand = u64::from(asked.all_live().any(starts_slowly));
        // Loads and weights are read only once, because other threads change them.
        let mut best: Option<(usize, u64, i64)> = None;
        let mut alike = Vec::new();
        let per_weight = |load: u64, weight: i64| i128::from(load) * i128::from(weight);
        for (index, peer) in asked.all_live() {
            let load = self.load(peer, asked.now).saturating_add(at_hand);
            let parts = peer.weight.saturating_mul(peer.share_of_weight(asked.now));
            let order = best.map(|(_, least, best_parts)| {
                per_weight(load, best_parts).cmp(&per_weight(least, parts))
            });
            match order {
                None | Some(std::cmp::Ordering::Less) => {
                    best = Some((index, load, parts));
                    alike.clear();
                }
                Some(std::cmp::Ordering::Equal) => alike.push(index),
                Some(std::cmp::Ordering::Greater) => {}
            }
        }
        let (first, ..) = best?;
        if alike.is_empty() {
            return Some(first);
        }
        let mut total = 0_i64;
        let mut best: Option<(usize, i64)> = None;
        for index in std::iter::once(first).chain(alike) {
            let Some(peer) = asked.side.get(index) else {
                continue;
            };
            let (by, current) = peer.grow(asked.now);
            total = total.saturating_add(by);
            if best.is_none_or(|(_, weight)| current > weight) {
                best = Some((index, current));
            }
        }
        let (index, _) = best?;
        asked.side.get(index)?.state().pay(total);
        Some(index)
    }
}
