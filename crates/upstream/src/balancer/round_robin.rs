//! Weighted round robin, smooth as nginx has it: a peer with weight 5 beside two with 1 is chosen
//! as `a a b a c a a`, not five times in a row.

use super::{Asked, Balancer};

#[derive(Debug)]
pub(super) struct RoundRobin;

impl Balancer for RoundRobin {
    fn choose(&self, asked: &mut Asked<'_>) -> Option<usize> {
        let places = 0..asked.side.len();
        spread(asked, places, |_| true)
    }
}

/// A round over those peers among `places` that `belongs` takes.
pub(super) fn spread(
    asked: &Asked<'_>,
    places: std::ops::Range<usize>,
    belongs: impl Fn(&crate::Peer) -> bool,
) -> Option<usize> {
    let mut total = 0_i64;
    let mut best: Option<(usize, i64)> = None;
    for index in places {
        let Some(peer) = asked.live(index).filter(|peer| belongs(peer)) else {
            continue;
        };
        let (by, current) = peer.state().grow(peer.weight);
        total = total.saturating_add(by);
        if best.is_none_or(|(_, weight)| current > weight) {
            best = Some((index, current));
        }
    }
    let (index, _) = best?;
    if let Some(peer) = asked.side.get(index) {
        peer.state().pay(total);
    }
    Some(index)
}
