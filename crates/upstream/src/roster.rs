//! The current peers of a group: those of the configuration, and the addresses that DNS lookups
//! have found since.
//!
//! A request keeps the list of peers with which it began; changes apply to later requests.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};

use bytes::Bytes;
use engine::net::Address;

use crate::balancer::Method;
use crate::health::Checks;
use crate::members::{Edited, Keep, MemberChange};
use crate::peer::{Peer, PeerSet};
use crate::peers::{Peers, SideOf};

/// The peers of a group, and the host names that are looked up for it.
#[derive(Debug)]
pub struct Roster {
    /// Only locked to clone or replace the pointer, since requests wait for the lock.
    current: RwLock<Arc<Peers>>,
    /// Held while the next list is made, which may take long.
    changing: Mutex<()>,
    method: Method,
    hosts: Box<[Host]>,
    /// The number of each host, assigned on demand.
    host_numbers: Box<[OnceLock<u64>]>,
    /// The health checks of every peer.
    pub(crate) checks: Option<Checks>,
    /// Where its members are saved, if they are.
    keep: Option<Box<dyn Keep>>,
    /// Edits of members that are not saved.
    pub(crate) edited: Mutex<Edited>,
    /// Edits that its reload has undone.
    pub(crate) undone: Mutex<Vec<(Bytes, MemberChange)>>,
    /// The roster of the next generation, during a reload.
    pub(crate) next: Mutex<Weak<Roster>>,
}

/// A server whose addresses are looked up periodically (`resolve`).
#[derive(Clone, Debug)]
pub struct Host {
    /// The name of the host.
    pub name: Bytes,
    /// The port of its peers; with `service`, the lookup tells it.
    pub port: u16,
    /// The service whose servers are looked up (SRV).
    pub service: Option<Bytes>,
    /// The template of its peers.
    pub template: Peer,
    /// The `route` parameter of its peers.
    pub route: Option<Bytes>,
    /// Makes the id of a peer without `route`, from its address.
    pub id_of: fn(&[u8]) -> Bytes,
    /// Whether its peers are primary or backup peers.
    pub side: SideOf,
}

/// An address that a DNS lookup has returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedAddress {
    /// The address, with its port.
    pub address: Address,
    /// The server's name, if it differs from the host's.
    pub server: Option<Bytes>,
    /// The weight of an SRV record.
    pub weight: Option<u16>,
    /// Whether the address is a backup.
    pub is_backup: bool,
}

impl Roster {
    /// A roster of these peers and the addresses of `hosts`, with this balancing method.
    pub fn new(primary: Vec<Peer>, backup: Vec<Peer>, method: Method, hosts: Vec<Host>) -> Roster {
        let peers = Peers::new(PeerSet::new(primary), PeerSet::new(backup), method);
        Roster {
            current: RwLock::new(Arc::new(peers)),
            changing: Mutex::new(()),
            method,
            host_numbers: hosts.iter().map(|_| OnceLock::new()).collect(),
            hosts: hosts.into(),
            checks: None,
            keep: None,
            edited: Mutex::default(),
            undone: Mutex::default(),
            next: Mutex::default(),
        }
    }

    /// Sets the health checks of every peer, those that join later included.
    #[must_use]
    pub fn with_checks(self, checks: Option<Checks>) -> Roster {
        Roster { checks, ..self }
    }

    /// Sets where changes of the members are saved.
    #[must_use]
    pub fn kept_by(self, keep: Option<Box<dyn Keep>>) -> Roster {
        Roster { keep, ..self }
    }

    /// The peers now of the roster.
    pub fn peers(&self) -> Arc<Peers> {
        let current = self.current.read();
        Arc::clone(&current.unwrap_or_else(PoisonError::into_inner))
    }

    /// The balancing method.
    pub fn method(&self) -> Method {
        self.method
    }

    /// The servers whose addresses are to be looked up.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Updates the addresses of a host: known peers stay as they are, missing ones are removed, new
    /// ones are appended. Returns whether anything has changed.
    pub fn resolved(&self, host: usize, found: &[ResolvedAddress]) -> bool {
        let Some(of) = self.hosts.get(host) else {
            return false;
        };
        let _changing = self.changing();
        let before = self.peers();
        let mut missing: Vec<&ResolvedAddress> = found.iter().collect();
        let mut gone = false;
        let mut keep = |side: SideOf, peer: &Peer| {
            if peer.host != Some(host) {
                return true;
            }
            let same = missing
                .iter()
                .position(|found| of.side_of(found) == side && of.makes(found).is_alike(peer));
            gone |= same.is_none();
            same.map(|at| missing.remove(at)).is_some()
        };
        let mut kept = [SideOf::Peers, SideOf::Backups].map(|side| {
            let peers = before.side(side).iter();
            let kept = peers.filter(|peer| keep(side, peer)).map(Peer::share);
            kept.collect::<Vec<Peer>>()
        });
        if !gone && missing.is_empty() {
            return false;
        }
        for found in missing {
            let mut peer = of.makes(found);
            peer.host = Some(host);
            let [primary, backup] = &mut kept;
            match of.side_of(found) {
                SideOf::Peers => primary.push(peer),
                SideOf::Backups => backup.push(peer),
            }
        }
        let [primary, backup] = kept.map(PeerSet::new);
        self.put(before.followed_by(primary, backup, self.method));
        true
    }

    /// Replaces the list of peers.
    pub(crate) fn put(&self, peers: Peers) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(peers);
    }

    /// Locks the roster for a change.
    pub(crate) fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn keep(&self) -> Option<&dyn Keep> {
        self.keep.as_deref()
    }

    /// Whether its members are saved.
    pub fn is_kept(&self) -> bool {
        self.keep.is_some()
    }

    /// Gives every host without a number one, after the peers of the configuration.
    pub(crate) fn number_hosts(&self) {
        let peers = self.peers();
        for peer in peers.iter().filter(|peer| peer.host.is_none()) {
            peers.number_of(peer);
        }
        for number in &self.host_numbers {
            number.get_or_init(|| peers.next_number());
        }
    }

    pub(crate) fn number_of_host(&self, host: usize) -> Option<u64> {
        self.host_numbers.get(host)?.get().copied()
    }

    /// Takes over the state before a reload: the states of the same peers, and the addresses of the
    /// same names.
    pub(crate) fn adopt(self: &Arc<Self>, previous: &Roster) {
        self.take_edits(previous);
        let before = previous.peers();
        // A peer with a state of its own adopts none, so this must precede all changes of the list.
        self.peers().adopt(&before);
        for (number, host) in self.hosts.iter().enumerate() {
            let same = |known: &Host| {
                (&known.name, &known.service, known.side) == (&host.name, &host.service, host.side)
            };
            let Some(known) = previous.hosts.iter().position(same) else {
                continue;
            };
            if let (Some(own), Some(known)) = (
                self.host_numbers.get(number),
                previous.number_of_host(known),
            ) {
                let _ = own.set(known); // the host is the same server
            }
            let found = [SideOf::Peers, SideOf::Backups]
                .into_iter()
                .flat_map(|side| {
                    let of_host = before.side(side).iter();
                    let of_host = of_host.filter(move |peer| peer.host == Some(known));
                    of_host.map(move |peer| ResolvedAddress {
                        address: host.placed(&peer.address),
                        server: (host.service.is_some()).then(|| peer.server.clone()),
                        weight: u16::try_from(peer.weight).ok(),
                        is_backup: side == SideOf::Backups,
                    })
                });
            self.resolved(number, &found.collect::<Vec<_>>());
            self.peers().adopt(&before);
        }
    }
}

impl Host {
    /// The peer for an address.
    fn makes(&self, found: &ResolvedAddress) -> Peer {
        let template = &self.template;
        let mut peer = template.at(found.address.clone());
        if let Some(server) = &found.server {
            peer.server = server.clone();
        }
        // A configured weight takes precedence over that of a lookup.
        peer.weight = match (template.weight, found.weight) {
            (1, Some(weight)) if self.service.is_some() => i64::from(weight.max(1)),
            (weight, _) => weight,
        };
        peer.id = match &self.route {
            Some(route) => route.clone(),
            None => (self.id_of)(&peer.name),
        };
        peer
    }

    /// An address of an earlier lookup, with the current port of the host.
    fn placed(&self, address: &Address) -> Address {
        match address {
            Address::Inet(known) if self.service.is_none() => {
                Address::Inet(std::net::SocketAddr::new(known.ip(), self.port))
            }
            address => address.clone(),
        }
    }

    fn side_of(&self, found: &ResolvedAddress) -> SideOf {
        if found.is_backup {
            SideOf::Backups
        } else {
            self.side
        }
    }
}
