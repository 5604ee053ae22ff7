//! Smooth weighted round robin as in nginx: a peer with weight 5 beside two with weight 1 is chosen
//! as `a a b a c a a`, not five times in a row.

use super::input::{Balancer, BalancerInput};

#[derive(Debug)]
pub(super) struct RoundRobin;

impl Balancer for RoundRobin {
    fn choose(&self, asked: &mut BalancerInput<'_>) -> Option<usize> {
        let Some(hinted) = asked.hinted() else {
            let places = 0..asked.side.len();
            return spread(asked, places, |_| true);
        };
        let peer = asked.side.get(hinted)?;
        // A preferred peer pays for its choice in the round robin like any other; but the debt is
        // limited, so that a peer preferred by many requests does not lose its regular turns for
        // long.
        if !peer
            .state()
            .has_overdrawn(asked.side.total_weight() - peer.weight)
        {
            let (total, _) = grow(asked, 0..asked.side.len(), |_| true);
            peer.state().pay(total);
        }
        Some(hinted)
    }
}

/// Chooses by one round of round robin, among the live peers with an index in `places` for which
/// `belongs` is true.
pub(super) fn spread(
    asked: &BalancerInput<'_>,
    places: std::ops::Range<usize>,
    belongs: impl Fn(&crate::Peer) -> bool,
) -> Option<usize> {
    let (total, best) = grow(asked, places, belongs);
    let index = best?;
    if let Some(peer) = asked.side.get(index) {
        peer.state().pay(total);
    }
    Some(index)
}

/// Increases the current weight of all live peers by their weight. Returns the sum of the weights,
/// and the peer with the largest current weight.
fn grow(
    asked: &BalancerInput<'_>,
    places: std::ops::Range<usize>,
    belongs: impl Fn(&crate::Peer) -> bool,
) -> (i64, Option<usize>) {
    let mut total = 0_i64;
    let mut best: Option<(usize, i64)> = None;
    for index in places {
        let Some(peer) = asked.live(index).filter(|peer| belongs(peer)) else {
            continue;
        };
        let (by, current) = peer.grow(asked.now);
        total = total.saturating_add(by);
        if best.is_none_or(|(_, weight)| current > weight) {
            best = Some((index, current));
        }
    }
    (total, best.map(|(index, _)| index))
}
