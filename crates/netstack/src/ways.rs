//! Whom packets are handed to, as a kernel's stack beside this one has found out.

use std::net::Ipv4Addr;

use base::hash::Map;

use crate::wire::ethernet::MacAddress;

/// Hosts whose cards are remembered at most; a kernel keeps no more by default.
const NEIGHBOURS_MAX: usize = 4096;

/// Routes that are followed at most. A machine with more has another one for its door.
const ROUTES_MAX: usize = 1024;

/// Whom packets for a network are handed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network, whose first bits are those of all its hosts.
    pub network: Ipv4Addr,
    /// How many bits those are.
    pub prefix_length: u8,
    /// Who passes packets on; hosts themselves are reached where that is nobody.
    pub gateway: Option<Ipv4Addr>,
}

impl Route {
    fn leads_to(&self, host: Ipv4Addr) -> bool {
        let bits = u32::from(self.prefix_length.min(32));
        let mask = u32::MAX.checked_shl(32 - bits).unwrap_or_default();
        (self.network.to_bits() ^ host.to_bits()) & mask == 0
    }
}

/// Routes, and the cards of the next hops.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    cards: Map<Ipv4Addr, MacAddress>,
    /// The longest prefix first.
    routes: Vec<Route>,
    /// Counts the changes of both: a card that was found holds until the next one.
    epoch: u32,
}

impl Ways {
    /// Differs from what it was where a card may be another one.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The card that packets for `host` go to, if both it and the way there are known.
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
        // Of routes to the same network those that come first stay first.
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
        // A host of this network that nobody has heard of.
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
