//! Routes and neighbours, as learned from the kernel's stack beside this one.

use std::net::Ipv4Addr;

use base::hash::Map;

use crate::wire::ethernet::MacAddress;

/// Limit of known neighbours, which is the kernel's default limit.
const NEIGHBOURS_MAX: usize = 4096;

/// Limit of routes. A machine with more routes is not a typical server.
const ROUTES_MAX: usize = 1024;

/// A route to a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network's address.
    pub network: Ipv4Addr,
    /// Length of the network's prefix, in bits.
    pub prefix_length: u8,
    /// The router; `None` if the network's hosts are reached directly.
    pub gateway: Option<Ipv4Addr>,
}

impl Route {
    fn leads_to(&self, host: Ipv4Addr) -> bool {
        let bits = u32::from(self.prefix_length.min(32));
        let mask = u32::MAX.checked_shl(32 - bits).unwrap_or_default();
        (self.network.to_bits() ^ host.to_bits()) & mask == 0
    }
}

/// The kernel's routes, and the hardware addresses of next hops.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    cards: Map<Ipv4Addr, MacAddress>,
    /// Sorted by prefix length, the longest first.
    routes: Vec<Route>,
    /// Incremented with each change of either: a looked-up address is valid until the next change.
    epoch: u32,
}

impl Ways {
    /// Changes whenever a hardware address may have changed.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The hardware address for packets to `host`, if the route and the address are known.
    pub(crate) fn card(&self, host: Ipv4Addr) -> Option<MacAddress> {
        let route = self.routes.iter().find(|route| route.leads_to(host))?;
        let hop = route.gateway.unwrap_or(host);
        self.cards.get(&hop).copied()
    }

    pub(crate) fn set_neighbour(&mut self, host: Ipv4Addr, card: Option<MacAddress>) {
        self.epoch = self.epoch.wrapping_add(1);
        match card.filter(|card| card.is_unicast()) {
            Some(card) if self.cards.len() < NEIGHBOURS_MAX || self.cards.contains_key(&host) => {
                self.cards.insert(host, card);
            }
            Some(_) => {}
            None => {
                self.cards.remove(&host);
            }
        }
    }

    pub(crate) fn set_routes(&mut self, mut routes: Vec<Route>) {
        // A stable sort: of routes to the same network, the first stays first.
        routes.sort_by_key(|route| std::cmp::Reverse(route.prefix_length));
        routes.truncate(ROUTES_MAX);
        self.routes = routes;
        self.epoch = self.epoch.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 7);
    const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);

    fn card(number: u8) -> MacAddress {
        MacAddress([2, 0, 0, 0, 0, number])
    }

    #[test]
    fn the_longest_prefix_leads_to_the_card_of_its_hop() {
        let mut ways = Ways::default();
        ways.set_neighbour(NEAR, Some(card(7)));
        ways.set_neighbour(GATEWAY, Some(card(1)));
        assert_eq!(ways.card(NEAR), None);
        let route = |network, prefix_length, gateway| Route {
            network,
            prefix_length,
            gateway,
        };
        ways.set_routes(vec![
            route(Ipv4Addr::UNSPECIFIED, 0, Some(GATEWAY)),
            route(Ipv4Addr::new(10, 0, 0, 0), 24, None),
        ]);
        assert_eq!(ways.card(NEAR), Some(card(7)));
        assert_eq!(ways.card(FAR), Some(card(1)));
        // A host of this network without an entry.
        assert_eq!(ways.card(Ipv4Addr::new(10, 0, 0, 8)), None);
        ways.set_neighbour(GATEWAY, None);
        assert_eq!(ways.card(FAR), None);
        ways.set_neighbour(GATEWAY, Some(MacAddress::BROADCAST));
        assert_eq!(ways.card(FAR), None);
    }

    #[test]
    fn cards_are_bounded_and_known_hosts_may_change_theirs() {
        let mut ways = Ways::default();
        ways.set_routes(vec![Route {
            network: Ipv4Addr::UNSPECIFIED,
            prefix_length: 0,
            gateway: None,
        }]);
        for number in 0..5000 {
            ways.set_neighbour(Ipv4Addr::from_bits(number), Some(card(3)));
        }
        assert_eq!(ways.cards.len(), NEIGHBOURS_MAX);
        ways.set_neighbour(Ipv4Addr::from_bits(5), Some(card(4)));
        assert_eq!(ways.card(Ipv4Addr::from_bits(5)), Some(card(4)));
        assert_eq!(ways.card(Ipv4Addr::from_bits(4999)), None);
    }
}
