//! The current peers of a group: those of the configuration, and the addresses that DNS lookups
//! have found since.
//!
//! A request keeps the list of peers with which it began; changes apply to later requests.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use base::hash::Map;
use bytes::Bytes;

use crate::balancer::Method;
use crate::health::Checks;
use crate::hosts::{Host, ListedHost, ResolvedAddress};
use crate::members::{Edited, Keep, MemberChange};
use crate::peer::{Peer, PeerSet};
use crate::peers::{PeerSide, Peers};

/// The peers of a group, and the host names that are looked up for it.
#[derive(Debug)]
pub struct Roster {
    /// Only locked to clone or replace the pointer, since requests wait for the lock.
    current: RwLock<Arc<Peers>>,
    /// Held while the next list is made, which may take long.
    changing: Mutex<()>,
    method: Method,
    /// The key of the next host.
    next_key: AtomicUsize,
    /// Looks up the names of hosts that are added; `None` if nothing can.
    lookup: Option<Arc<dyn HostLookup>>,
    /// The health checks of every peer.
    pub(crate) checks: Option<Checks>,
    /// Where its members are saved, if they are.
    keep: Option<Box<dyn Keep>>,
    /// Edits of members that are not saved.
    pub(crate) edited: Mutex<Edited>,
    /// Edits that its reload has undone.
    pub(crate) undone: Mutex<Vec<(Bytes, MemberChange)>>,
}

/// Looks up the names of hosts.
pub trait HostLookup: std::fmt::Debug + Send + Sync {
    /// A host has been added to a roster.
    fn host_added(&self);
}

impl Roster {
    /// A roster of these peers and the addresses of `hosts`, with this balancing method.
    pub fn new(primary: Vec<Peer>, backup: Vec<Peer>, method: Method, hosts: Vec<Host>) -> Roster {
        let peers = Peers::new(PeerSet::new(primary), PeerSet::new(backup), method);
        let next_key = AtomicUsize::new(hosts.len());
        let hosts = hosts.into_iter().enumerate();
        let hosts: Vec<_> = hosts
            .map(|(key, host)| ListedHost::new(key, host))
            .collect();
        let peers = peers.with_hosts(hosts);
        Roster {
            current: RwLock::new(Arc::new(peers)),
            changing: Mutex::new(()),
            method,
            next_key,
            lookup: None,
            checks: None,
            keep: None,
            edited: Mutex::default(),
            undone: Mutex::default(),
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

    /// Sets what looks up the names of hosts that are added.
    #[must_use]
    pub fn looked_up_by(self, lookup: Option<Arc<dyn HostLookup>>) -> Roster {
        Roster { lookup, ..self }
    }

    /// Whether hosts may be added.
    pub fn takes_hosts(&self) -> bool {
        self.lookup.is_some()
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

    /// The servers whose addresses are to be looked up, in the order of their keys.
    pub fn hosts(&self) -> Arc<[Arc<ListedHost>]> {
        Arc::clone(self.peers().hosts())
    }

    /// Updates the addresses of the host with this key: known peers stay as they are, missing ones
    /// are removed, new ones are appended. Returns whether anything has changed; nothing has if the
    /// host has been removed.
    pub fn resolved(&self, key: usize, found: &[ResolvedAddress]) -> bool {
        let _changing = self.changing();
        let before = self.peers();
        let Some(listed) = before.hosts().iter().find(|host| host.key == key) else {
            return false;
        };
        let of = &listed.host;
        let mut missing: Vec<&ResolvedAddress> = found.iter().collect();
        let mut gone = false;
        let mut keep = |side: PeerSide, peer: &Peer| {
            if peer.host != Some(key) {
                return true;
            }
            let same = missing
                .iter()
                .position(|found| of.side_of(found) == side && of.makes(found).is_alike(peer));
            gone |= same.is_none();
            same.map(|at| missing.remove(at)).is_some()
        };
        let mut kept = [PeerSide::Peers, PeerSide::Backups].map(|side| {
            let peers = before.side(side).iter();
            let kept = peers.filter(|peer| keep(side, peer)).map(Peer::share);
            kept.collect::<Vec<Peer>>()
        });
        if !gone && missing.is_empty() {
            return false;
        }
        for found in missing {
            let peer = of.makes_listed(found, key);
            let [primary, backup] = &mut kept;
            match of.side_of(found) {
                PeerSide::Peers => primary.push(peer),
                PeerSide::Backups => backup.push(peer),
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

    /// A host of this roster, with a key of its own.
    pub(crate) fn list(&self, host: Host) -> Arc<ListedHost> {
        let key = self.next_key.fetch_add(1, Ordering::Relaxed);
        ListedHost::new(key, host)
    }

    pub(crate) fn lookup(&self) -> Option<&dyn HostLookup> {
        self.lookup.as_deref()
    }

    /// Gives every host without a number one, after the peers of the configuration.
    pub(crate) fn number_hosts(&self) {
        let peers = self.peers();
        for peer in peers.iter().filter(|peer| peer.host.is_none()) {
            peers.number_of(peer);
        }
        for host in peers.hosts().iter() {
            peers.number_of_host(host);
        }
    }

    /// Takes over the state before a reload: the states of the same peers, and the addresses of the
    /// same names.
    pub(crate) fn adopt(self: &Arc<Self>, previous: &Roster) {
        // An edit is made either before, and taken over, or after, and made here as well.
        let _changing = previous.changing();
        self.take_edits(previous);
        let before = previous.peers();
        // A peer with a state of its own adopts none, so this must precede all changes of the list.
        self.peers().adopt(&before);
        self.adopt_hosts(&before);
        // Not before: who looks at the newest roster must find the members under their numbers.
        before.note_roster(self);
    }

    /// Takes over the numbers and addresses of the same hosts.
    fn adopt_hosts(&self, before: &Peers) {
        let now = self.peers();
        if now.hosts().is_empty() || before.hosts().is_empty() {
            return;
        }
        let mut by_host: Map<usize, Vec<(PeerSide, &Peer)>> = Map::default();
        for side in [PeerSide::Peers, PeerSide::Backups] {
            for peer in before.side(side).iter() {
                if let Some(key) = peer.host {
                    by_host.entry(key).or_default().push((side, peer));
                }
            }
        }
        let mut sides = [PeerSide::Peers, PeerSide::Backups]
            .map(|side| now.side(side).iter().map(Peer::share).collect::<Vec<_>>());
        for (listed, known) in same_hosts(now.hosts(), before.hosts()) {
            let host = &listed.host;
            if let Some(number) = known.number.get() {
                let _ = listed.number.set(*number); // the host is the same server
            }
            for (side, peer) in by_host.remove(&known.key).into_iter().flatten() {
                let found = ResolvedAddress {
                    address: host.placed(&peer.address),
                    server: host.service.is_some().then(|| peer.server.clone()),
                    weight: u16::try_from(peer.weight).ok(),
                    is_backup: side == PeerSide::Backups,
                };
                let [primary, backup] = &mut sides;
                let side = match host.side_of(&found) {
                    PeerSide::Peers => primary,
                    PeerSide::Backups => backup,
                };
                let mut made = host.makes_listed(&found, listed.key);
                if self.is_kept() {
                    made.take_own_settings(peer, &known.host.template);
                }
                side.push(made);
            }
        }
        let [primary, backup] = sides.map(PeerSet::new);
        self.put(now.followed_by(primary, backup, self.method));
        self.peers().adopt(before);
    }
}

/// The hosts that are the same as earlier ones, with these. A host of another port is taken for the
/// same one if no host of its own port was there.
fn same_hosts<'a>(
    hosts: &'a [Arc<ListedHost>],
    before: &'a [Arc<ListedHost>],
) -> impl Iterator<Item = (&'a Arc<ListedHost>, &'a Arc<ListedHost>)> {
    let mut known: VecDeque<&Arc<ListedHost>> = before.iter().collect();
    let mut found: Vec<Option<&Arc<ListedHost>>> = vec![None; hosts.len()];
    for is_same in [Host::is_same, Host::is_same_name] {
        for (listed, found) in hosts.iter().zip(&mut found) {
            if found.is_none() {
                let mut all = known.iter();
                let at = all.position(|known| is_same(&known.host, &listed.host));
                *found = at.and_then(|at| known.remove(at));
            }
        }
    }
    let pairs = hosts.iter().zip(found);
    pairs.filter_map(|(listed, known)| Some((listed, known?)))
}
