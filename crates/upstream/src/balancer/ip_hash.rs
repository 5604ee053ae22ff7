//! `ip_hash`: <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#ip_hash>.

use std::net::IpAddr;

use super::input::{Balancer, BalancerInput, Key};

/// The initial value of a request's hash.
const SEED: u32 = 89;

#[derive(Debug)]
pub(super) struct IpHash;

impl Balancer for IpHash {
    fn choose(&self, asked: &mut BalancerInput<'_>) -> Option<usize> {
        let Key::Client(client) = asked.key else {
            return None;
        };
        if asked.side.len() < 2 || asked.search.is_over() {
            return None;
        }
        if let Some(hinted) = asked.hinted() {
            return Some(hinted);
        }
        let mut octets = [0; 16];
        let octets = match client {
            Some(IpAddr::V4(address)) => {
                let [a, b, c, _] = address.octets();
                octets = [a, b, c, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                octets.first_chunk::<3>().map(|three| &three[..])
            }
            Some(IpAddr::V6(address)) => {
                octets = address.octets();
                Some(&octets[..])
            }
            None => octets.first_chunk::<3>().map(|three| &three[..]),
        }?;
        let mut hash = match asked.search.rounds {
            0 => SEED,
            _ => asked.search.hash,
        };
        loop {
            for octet in octets {
                hash = (hash * 113 + u32::from(*octet)) % 6271;
            }
            let total = u64::try_from(asked.side.total_weight()).ok()?;
            let share = u64::from(hash).checked_rem(total)?;
            let place = asked.side.at_weight(share)?;
            if asked.live(place).is_some() {
                asked.search.rounds += 1;
                asked.search.hash = hash;
                return Some(place);
            }
            if asked.search.miss() {
                return None;
            }
        }
    }
}
