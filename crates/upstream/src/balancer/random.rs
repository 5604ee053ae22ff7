//! `random`: <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#random>.

use super::input::{Balancer, BalancerInput};

#[derive(Debug)]
pub(super) struct Random {
    /// Whether two peers are drawn, of which the one with fewer requests for its weight is chosen.
    pub(super) two: bool,
}

impl Balancer for Random {
    fn choose(&self, asked: &mut BalancerInput<'_>) -> Option<usize> {
        if asked.side.len() < 2 || asked.search.is_over() {
            return None;
        }
        if let Some(hinted) = asked.hinted() {
            return Some(hinted);
        }
        let total = usize::try_from(asked.side.total_weight()).ok()?;
        let mut first = None;
        loop {
            let share = framework::random::below(total);
            let place = asked.side.at_weight(share as u64)?;
            if asked.live(place).is_some() && first != Some(place) {
                match first {
                    None if self.two => first = Some(place),
                    None => return Some(place),
                    Some(first) => return Some(lighter(asked, first, place)),
                }
                continue;
            }
            if asked.search.miss() {
                return None;
            }
        }
    }
}

/// Of two peers, the one with the fewest requests for its weight; the second if they are equal.
fn lighter(asked: &BalancerInput<'_>, first: usize, second: usize) -> usize {
    let load = |of: usize, by: usize| {
        let peers = asked.side.get(of).zip(asked.side.get(by));
        peers.map(|(of, by)| of.state().connections() as i128 * i128::from(by.weight))
    };
    if load(second, first) > load(first, second) {
        first
    } else {
        second
    }
}
