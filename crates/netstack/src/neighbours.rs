//! The ARP cache: hardware addresses of next hops (RFC 826; RFC 1122, section 2.3.2).

use std::net::Ipv4Addr;
use std::time::Duration;

use base::hash::Map;

use crate::wire::ethernet::MacAddress;

/// Limit of entries in the cache.
const NEIGHBOURS_MAX: usize = 1024;

/// Lifetime of a resolved entry.
const KNOWN_FOR: Duration = Duration::from_secs(300);

/// Interval of requests for a host: at most one a second (RFC 1122, section 2.3.2.1).
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Unanswered requests after which a host counts as absent: more consecutive losses than are likely
/// if a tenth of all frames is lost.
const QUESTIONS_MAX: u32 = 8;

/// Time before an absent host is asked for again.
const ABSENT_FOR: Duration = Duration::from_secs(1);

/// The entry of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Neighbour {
    /// The hardware address, valid until the given time.
    Known(MacAddress, Duration),
    /// Being resolved: the number of requests so far, and the time of the next one.
    Asked(u32, Duration),
    /// The host did not answer, and is not asked for until the given time.
    Absent(Duration),
}

/// The cache of hosts in the stack's networks.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    hosts: Map<Ipv4Addr, Neighbour>,
    /// Addresses to send requests for.
    questions: Vec<Ipv4Addr>,
    /// Hosts that are being resolved.
    asked: usize,
}

impl Neighbours {
    /// The entry of `host`; a request is sent if there is none.
    pub(crate) fn find(&mut self, now: Duration, host: Ipv4Addr) -> Neighbour {
        match self.hosts.get(&host) {
            Some(Neighbour::Known(_, until) | Neighbour::Absent(until)) if *until <= now => {}
            Some(known) => return *known,
            None => {}
        }
        self.questions.push(host);
        let asked = Neighbour::Asked(1, now + ASK_EVERY);
        self.put(host, asked);
        asked
    }

    /// The hardware address of a host, if known.
    pub(crate) fn card(&self, host: Ipv4Addr) -> Option<MacAddress> {
        match self.hosts.get(&host) {
            Some(Neighbour::Known(mac, _)) => Some(*mac),
            _ => None,
        }
    }

    /// Learns the hardware address of a host from a message, if the message is for this stack or
    /// updates an existing entry. Returns whether the host was being resolved.
    pub(crate) fn learn(
        &mut self,
        now: Duration,
        host: Ipv4Addr,
        mac: MacAddress,
        is_for_us: bool,
    ) -> bool {
        let known = self.hosts.get(&host).copied();
        if mac.is_unicast() && (is_for_us || known.is_some()) {
            self.put(host, Neighbour::Known(mac, now + KNOWN_FOR));
        }
        matches!(known, Some(Neighbour::Asked(..)))
    }

    /// The next address to send a request for.
    pub(crate) fn poll_question(&mut self) -> Option<Ipv4Addr> {
        self.questions.pop()
    }

    /// Repeats unanswered requests. Returns whether any host has become absent.
    pub(crate) fn handle_timeout(&mut self, now: Duration) -> bool {
        let mut has_given_up = false;
        if self.asked == 0 {
            return has_given_up;
        }
        for (host, known) in &mut self.hosts {
            if let Neighbour::Asked(count, at) = *known
                && at <= now
            {
                if count < QUESTIONS_MAX {
                    *known = Neighbour::Asked(count + 1, now + ASK_EVERY);
                    self.questions.push(*host);
                } else {
                    *known = Neighbour::Absent(now + ABSENT_FOR);
                    self.asked -= 1;
                    has_given_up = true;
                }
            }
        }
        // The hash map's order is random, but the order of requests must be deterministic.
        self.questions.sort_unstable();
        has_given_up
    }

    /// The time of the next repetition.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        if self.asked == 0 {
            return None;
        }
        let asked = self.hosts.values().filter_map(|known| match known {
            Neighbour::Asked(_, at) => Some(*at),
            Neighbour::Known(..) | Neighbour::Absent(_) => None,
        });
        asked.min()
    }

    /// Stores an entry, replacing another one if the cache is full.
    fn put(&mut self, host: Ipv4Addr, known: Neighbour) {
        if self.hosts.len() >= NEIGHBOURS_MAX
            && !self.hosts.contains_key(&host)
            && let Some(other) = self.hosts.keys().next().copied()
        {
            let before = self.hosts.remove(&other);
            self.count(before, None);
        }
        let before = self.hosts.insert(host, known);
        self.count(before, Some(known));
    }

    /// Updates the number of hosts that are being resolved.
    fn count(&mut self, before: Option<Neighbour>, after: Option<Neighbour>) {
        let is_asked = |known| usize::from(matches!(known, Some(Neighbour::Asked(..))));
        self.asked = self.asked + is_asked(after) - is_asked(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
    const CARD: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_host_is_asked_for_once_a_second_and_eight_times() {
        let mut neighbours = Neighbours::default();
        for second in 0..8 {
            neighbours.find(at(second), HOST);
            neighbours.find(at(second), HOST);
            assert_eq!(neighbours.poll_question(), Some(HOST));
            assert_eq!(neighbours.poll_question(), None);
            assert_eq!(neighbours.deadline(), Some(at(second + 1)));
            assert_eq!(neighbours.handle_timeout(at(second + 1)), second == 7);
        }
        assert_eq!(neighbours.find(at(8), HOST), Neighbour::Absent(at(9)));
        assert_eq!(neighbours.poll_question(), None);
        assert!(matches!(
            neighbours.find(at(9), HOST),
            Neighbour::Asked(1, _)
        ));
    }

    #[test]
    fn cards_are_believed_for_a_while_and_only_of_those_who_speak_to_us() {
        let mut neighbours = Neighbours::default();
        assert!(!neighbours.learn(at(0), HOST, CARD, false));
        assert_eq!(neighbours.card(HOST), None);
        neighbours.find(at(0), HOST);
        assert!(neighbours.learn(at(0), HOST, CARD, true));
        assert_eq!(neighbours.card(HOST), Some(CARD));
        assert!(!neighbours.learn(at(0), HOST, MacAddress::BROADCAST, true));
        assert_eq!(neighbours.card(HOST), Some(CARD));
        assert!(matches!(
            neighbours.find(at(300), HOST),
            Neighbour::Asked(..)
        ));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut neighbours = Neighbours::default();
        for number in 0..3000 {
            neighbours.learn(at(0), Ipv4Addr::from_bits(number), CARD, true);
        }
        assert_eq!(neighbours.hosts.len(), NEIGHBOURS_MAX);
    }
}
