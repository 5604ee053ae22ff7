//! `p2c`, which nginx does not have: the power of two choices. Of two random peers the one with the
//! lower expected time is chosen: its recent response time, multiplied by the requests that it
//! would have, divided by its weight.
//!
//! Read first: M. Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001).

use super::input::{Balancer, BalancerInput};
use crate::peer::Peer;

#[derive(Debug)]
pub(super) struct PowerOfTwoChoices;

impl Balancer for PowerOfTwoChoices {
    fn choose(&self, asked: &mut BalancerInput<'_>) -> Option<usize> {
        if let Some(hinted) = asked.hinted() {
            return Some(hinted);
        }
        let total: i64 = asked
            .all_live()
            .map(|(_, peer)| parts(peer, asked.now))
            .sum();
        let (first, of_first) = draw(asked, total, None)?;
        let rest = total.saturating_sub(parts(of_first, asked.now));
        let Some((second, of_second)) = draw(asked, rest, Some(first)) else {
            return Some(first);
        };
        // A new peer counts with the average of the others, so that it does not get all requests at
        // once.
        let latency = |peer: &Peer| {
            let known = peer.state().latency.look(asked.now);
            known.unwrap_or_else(|| mean(asked))
        };
        let load = |peer: &Peer| {
            let requests = peer.state().connections().saturating_add(1);
            (latency(peer) + 1.0) * requests as f64 / parts(peer, asked.now) as f64
        };
        Some(if load(of_second) < load(of_first) {
            second
        } else {
            first
        })
    }
}

/// The current weight of a peer, which is reduced during a slow start.
fn parts(peer: &Peer, now: u64) -> i64 {
    peer.weight.saturating_mul(peer.share_of_weight(now))
}

/// A random live peer by weight, except for `without`. `total` is the sum of the weights.
fn draw<'a>(
    asked: &'a BalancerInput<'_>,
    total: i64,
    without: Option<usize>,
) -> Option<(usize, &'a Peer)> {
    let mut share = framework::random::below(usize::try_from(total).ok()?) as i64;
    let mut others = asked.all_live().filter(|(at, _)| Some(*at) != without);
    others.find(|(_, peer)| {
        share = share.saturating_sub(parts(peer, asked.now));
        share < 0
    })
}

/// The mean of the known response times in microseconds; 0 if none is known.
fn mean(asked: &BalancerInput<'_>) -> f64 {
    let known = asked.side.iter();
    let known = known.filter_map(|peer| peer.state().latency.look(asked.now));
    let (sum, count) = known.fold((0.0, 0_u32), |(sum, count), micros| {
        (sum + micros, count.saturating_add(1))
    });
    sum / f64::from(count.max(1))
}
