//! The peers of a group, and the state that all requests to the group share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::balancer::{self, Balancer, Method};
use crate::gate::Gate;
use crate::peer::{Peer, PeerSet};
use crate::queue::Queue;
use crate::retries::Retries;
use crate::state::State;

/// Primary or backup peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideOf {
    /// The primary peers.
    Peers,
    /// The backup peers.
    Backups,
}

/// The state of a group that all threads share and reloads keep.
#[derive(Debug, Default)]
struct RotationState {
    /// Held while a peer is chosen.
    lock: Mutex<()>,
    /// Requests that wait for a peer.
    queue: Arc<Queue>,
    /// The retry budget.
    retries: Retries,
    /// The limit of requests in flight.
    gate: Arc<Gate>,
    /// The number of the next member that has none.
    next_number: AtomicU64,
    /// The states of removed peers that still have requests.
    removed: Mutex<Vec<Arc<State>>>,
}

/// The primary and the backup peers of a group.
#[derive(Debug)]
pub struct Peers {
    /// The primary peers, which get requests first.
    pub primary: PeerSet,
    /// The backup peers, which get requests if no primary peer is available.
    pub backup: PeerSet,
    /// Held while a peer is chosen: what one thread has weighed, no other changes meanwhile. Shared
    /// with the same group before a reload, whose peers may be these.
    turn: OnceLock<Arc<RotationState>>,
    balancer: Box<dyn Balancer>,
}

impl Peers {
    /// A group's peers, chosen by this method.
    pub fn new(primary: PeerSet, backup: PeerSet, method: Method) -> Peers {
        Peers {
            balancer: balancer::of(method, &primary),
            primary,
            backup,
            turn: OnceLock::new(),
        }
    }

    /// Those of the same group from now on.
    pub(crate) fn followed_by(&self, primary: PeerSet, backup: PeerSet, method: Method) -> Peers {
        Peers {
            turn: OnceLock::from(Arc::clone(self.turn())),
            ..Peers::new(primary, backup, method)
        }
    }

    pub(crate) fn balancer(&self) -> &dyn Balancer {
        &*self.balancer
    }

    /// Those of one side.
    pub fn side(&self, of: SideOf) -> &PeerSet {
        match of {
            SideOf::Peers => &self.primary,
            SideOf::Backups => &self.backup,
        }
    }

    /// All peers, primary ones first.
    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.primary.iter().chain(self.backup.iter())
    }

    /// Whether there is no choice.
    pub fn is_single(&self) -> bool {
        self.primary.len() == 1 && self.backup.is_empty()
    }

    /// The most tries that a request has: each peer once that is not on its way out.
    pub fn tries(&self) -> usize {
        let staying = self.iter().filter(|peer| !peer.down && !peer.draining);
        staying.count()
    }

    /// Waits for other threads that are choosing; for as long as it takes to look at each peer
    /// once.
    pub(crate) fn take_turn(&self) -> MutexGuard<'_, ()> {
        let turn = &self.turn().lock;
        // Nothing lies in it that a panic could have left half done.
        turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many requests wait for a peer.
    pub fn waiting(&self) -> usize {
        self.queue().len()
    }

    /// Requests that wait for a peer.
    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.turn().queue
    }

    /// Requests of the last seconds, and retries.
    pub(crate) fn retries(&self) -> &Retries {
        &self.turn().retries
    }

    /// What requests go through where it is bounded how many are under way.
    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.turn().gate
    }

    /// What the peer is named by in its group.
    pub(crate) fn number_of(&self, peer: &Peer) -> u64 {
        *peer.state().number.get_or_init(|| self.next_number())
    }

    /// The next member without a number has this one at least.
    pub(crate) fn number_from(&self, number: u64) {
        self.turn().next_number.fetch_max(number, Ordering::Relaxed);
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.turn().next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// A peer leaves the group: it is remembered as long as it has requests.
    pub(crate) fn note_removed(&self, peer: &Peer) {
        let removed = self.turn().removed.lock();
        let mut removed = removed.unwrap_or_else(PoisonError::into_inner);
        removed.retain(|state| state.connections() > 0);
        if peer.state().connections() > 0 {
            removed.push(Arc::clone(peer.state()));
        }
    }

    /// How those do that have left the group and still have requests.
    pub(crate) fn removed(&self) -> Vec<Arc<State>> {
        let removed = self.turn().removed.lock();
        let mut removed = removed.unwrap_or_else(PoisonError::into_inner);
        removed.retain(|state| state.connections() > 0);
        removed.clone()
    }

    fn turn(&self) -> &Arc<RotationState> {
        self.turn.get_or_init(Arc::default)
    }

    /// Goes on with what was known of the same peers before: those whose server and address are the
    /// same, in their order where several are.
    pub(crate) fn adopt(&self, previous: &Peers) {
        let _ = self.turn.set(Arc::clone(previous.turn()));
        let mut known: base::hash::Map<Identity<'_>, Vec<&Peer>> = base::hash::Map::default();
        // From behind, so that the first is taken first.
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

/// What a peer is known by over reloads: how its server is written, and its address.
type Identity<'a> = (&'a [u8], &'a [u8]);

fn identity(peer: &Peer) -> Identity<'_> {
    (&peer.server, &peer.name)
}
