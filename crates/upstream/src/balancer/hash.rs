//! `hash`: <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#hash>, by the function of
//! Cache::Memcached: `((crc32([REHASH] KEY) >> 16) & 0x7fff)`, added to the hash of the previous
//! round.

use crc32fast::Hasher;

use super::input::{Balancer, BalancerInput, Key};

#[derive(Debug)]
pub(super) struct Hash;

impl Balancer for Hash {
    fn choose(&self, asked: &mut BalancerInput<'_>) -> Option<usize> {
        let Key::Text(key) = asked.key else {
            return None;
        };
        if key.is_empty() || asked.side.len() < 2 || asked.search.is_over() {
            return None;
        }
        if let Some(hinted) = asked.hinted() {
            return Some(hinted);
        }
        loop {
            let search = &mut *asked.search;
            let mut hasher = Hasher::new();
            if search.rounds > 0 {
                hasher.update(search.rounds.to_string().as_bytes());
            }
            hasher.update(key);
            search.hash = search.hash.wrapping_add((hasher.finalize() >> 16) & 0x7fff);
            search.rounds += 1;
            let total = u64::try_from(asked.side.total_weight()).ok()?;
            let share = u64::from(search.hash).checked_rem(total)?;
            let place = asked.side.at_weight(share)?;
            if asked.live(place).is_some() {
                return Some(place);
            }
            if asked.search.miss() {
                return None;
            }
        }
    }
}
