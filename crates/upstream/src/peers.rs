//! The peers of a group, and the state that all requests to the group share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::balancer::{self, Balancer, Method};
use crate::gate::Gate;
use crate::hosts::ListedHost;
use crate::peer::{Peer, PeerSet};
use crate::queue::Queue;
use crate::retries::Retries;
use crate::roster::Roster;
use crate::state::State;

/// The two lists of peers in a group: primary and backup peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerSide {
    /// The primary peers.
    Peers,
    /// The backup peers.
    Backups,
}

/// The state of a group that all threads share and reloads keep.
#[derive(Debug, Default)]
struct RotationState {
    /// Held while a peer is chosen or the result of an attempt is counted.
    lock: Mutex<()>,
    /// Requests that wait for a peer.
    queue: Arc<Queue>,
    /// The retry budget.
    retries: Retries,
    /// The limit of requests in flight.
    gate: Arc<Gate>,
    /// The number that the next member without a number gets.
    next_number: AtomicU64,
    /// The states of removed peers that still have requests.
    removed: Mutex<Vec<Arc<State>>>,
    /// The group's rosters of later configurations than the first, in their order.
    rosters: Mutex<Vec<Weak<Roster>>>,
}

/// The primary and the backup peers of a group.
#[derive(Debug)]
pub struct Peers {
    /// The primary peers, which get requests first.
    pub primary: PeerSet,
    /// The backup peers, which get requests if no primary peer is available.
    pub backup: PeerSet,
    /// The hosts whose addresses are looked up, in the order of their keys.
    hosts: Arc<[Arc<ListedHost>]>,
    /// The state that all threads share. Adopted from the same group before a reload.
    turn: OnceLock<Arc<RotationState>>,
    balancer: Box<dyn Balancer>,
}

impl Peers {
    /// The peers of a group, with a new balancer of this method.
    pub fn new(primary: PeerSet, backup: PeerSet, method: Method) -> Peers {
        Peers {
            balancer: balancer::of(method, &primary),
            primary,
            backup,
            hosts: Arc::default(),
            turn: OnceLock::new(),
        }
    }

    /// Sets the hosts whose addresses are looked up.
    #[must_use]
    pub fn with_hosts(self, hosts: impl Into<Arc<[Arc<ListedHost>]>>) -> Peers {
        let hosts = hosts.into();
        Peers { hosts, ..self }
    }

    /// The next list of peers of the same group, with the same hosts.
    pub(crate) fn followed_by(&self, primary: PeerSet, backup: PeerSet, method: Method) -> Peers {
        Peers {
            hosts: Arc::clone(&self.hosts),
            turn: OnceLock::from(Arc::clone(self.turn())),
            ..Peers::new(primary, backup, method)
        }
    }

    pub(crate) fn balancer(&self) -> &dyn Balancer {
        &*self.balancer
    }

    /// The primary or the backup peers.
    pub fn side(&self, of: PeerSide) -> &PeerSet {
        match of {
            PeerSide::Peers => &self.primary,
            PeerSide::Backups => &self.backup,
        }
    }

    /// All peers, primary ones first.
    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.primary.iter().chain(self.backup.iter())
    }

    /// The hosts whose addresses are looked up, in the order of their keys.
    pub fn hosts(&self) -> &Arc<[Arc<ListedHost>]> {
        &self.hosts
    }

    /// The number of a host, which identifies it in its group.
    pub(crate) fn number_of_host(&self, host: &ListedHost) -> u64 {
        *host.number.get_or_init(|| self.next_number())
    }

    /// Whether there is only one peer.
    pub fn is_single(&self) -> bool {
        self.primary.len() == 1 && self.backup.is_empty()
    }

    /// The maximum number of attempts of a request: each peer once, except for peers that are down
    /// or draining.
    pub fn tries(&self) -> usize {
        let staying = self.iter().filter(|peer| !peer.down && !peer.draining);
        staying.count()
    }

    /// Locks the group's rotation, for the choice of a peer or a change of several values of a
    /// peer's state. A holder examines each peer a few times at most, so the wait is short.
    pub(crate) fn take_turn(&self) -> MutexGuard<'_, ()> {
        let turn = &self.turn().lock;
        // No code that holds the lock can panic half-way.
        turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of requests that wait for a peer.
    pub fn waiting(&self) -> usize {
        self.queue().len()
    }

    /// The queue of requests that wait for a peer.
    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.turn().queue
    }

    /// The counts of recent requests and retries.
    pub(crate) fn retries(&self) -> &Retries {
        &self.turn().retries
    }

    /// The gate that limits the requests in flight.
    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.turn().gate
    }

    /// The number of a peer, which identifies it in its group.
    pub(crate) fn number_of(&self, peer: &Peer) -> u64 {
        *peer.state().number.get_or_init(|| self.next_number())
    }

    /// Sets the lowest number that members without a number get.
    pub(crate) fn number_from(&self, number: u64) {
        self.turn().next_number.fetch_max(number, Ordering::Relaxed);
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.turn().next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes that a peer leaves the group. Its state is kept as long as the peer has requests in
    /// flight, for the API.
    pub(crate) fn note_removed(&self, peer: &Peer) {
        let removed = self.turn().removed.lock();
        let mut removed = removed.unwrap_or_else(PoisonError::into_inner);
        removed.retain(|state| state.connections() > 0);
        if peer.state().connections() > 0 {
            removed.push(Arc::clone(peer.state()));
        }
    }

    /// The states of removed peers that still have requests.
    pub(crate) fn removed(&self) -> Vec<Arc<State>> {
        let removed = self.turn().removed.lock();
        let mut removed = removed.unwrap_or_else(PoisonError::into_inner);
        removed.retain(|state| state.connections() > 0);
        removed.clone()
    }

    /// Notes the roster of a new configuration, which has taken over the members.
    pub(crate) fn note_roster(&self, roster: &Arc<Roster>) {
        let mut rosters = self.rosters();
        rosters.retain(|known| known.strong_count() > 0);
        rosters.push(Arc::downgrade(roster));
    }

    /// The first roster after this one that there is still: a configuration in between may have
    /// ended before the one of this roster does.
    pub(crate) fn roster_after(&self, roster: &Roster) -> Option<Arc<Roster>> {
        let rosters = self.rosters();
        let is_it = |known: &Weak<Roster>| std::ptr::eq(known.as_ptr(), roster);
        // The first one of all is not among them.
        let from = rosters.iter().position(is_it).map_or(0, |at| at + 1);
        rosters.iter().skip(from).find_map(Weak::upgrade)
    }

    fn rosters(&self) -> MutexGuard<'_, Vec<Weak<Roster>>> {
        let rosters = self.turn().rosters.lock();
        rosters.unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self) -> &Arc<RotationState> {
        self.turn.get_or_init(Arc::default)
    }

    /// Takes over the state of the same group before a reload: each peer adopts the state of a
    /// previous peer with the same server and address. If several peers have the same server and
    /// address, they are paired in their order.
    pub(crate) fn adopt(&self, previous: &Peers) {
        let _ = self.turn.set(Arc::clone(previous.turn()));
        let mut known: base::hash::Map<Identity<'_>, Vec<&Peer>> = base::hash::Map::default();
        // In reverse order, because `pop` takes the last.
        for peer in previous.iter().collect::<Vec<_>>().into_iter().rev() {
            known.entry(identity(peer)).or_default().push(peer);
        }
        for peer in self.iter() {
            let same = known.get_mut(&identity(peer)).and_then(Vec::pop);
            if let Some(same) = same {
                peer.adopt(same);
            }
        }
        for peer in known.into_values().flatten() {
            previous.note_removed(peer);
        }
    }
}

/// The identity of a peer over reloads: its server as written, and its address.
type Identity<'a> = (&'a [u8], &'a [u8]);

fn identity(peer: &Peer) -> Identity<'_> {
    (&peer.server, &peer.name)
}
