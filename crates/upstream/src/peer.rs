//! The peers of a group: what the configuration or a lookup says of each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::net::Address;

use crate::balancer::{self, Balancer, Method};
use crate::gate::Gate;
use crate::health::{Checks, Finding, Health};
use crate::queue::Queue;
use crate::retries::Retries;
use crate::slow_start;
use crate::state::{State, millis};

/// One address of a server, with how much it gets and when it is given up.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The address that the peer listens on.
    pub address: Address,
    /// The address as `$upstream_addr` and log lines show it.
    pub name: Bytes,
    /// The server as the configuration writes it: several addresses may be of one.
    pub server: Bytes,
    /// What requests name it by that want it and no other; empty where none can.
    pub id: Bytes,
    /// The number that the configuration gives its server, for metrics.
    pub number: Option<u64>,
    /// How many parts of the requests it gets; at least 1.
    pub weight: i64,
    /// The most requests that it is given at a time; 0 is no limit.
    pub max_conns: usize,
    /// Failed tries that put it out; 0 is never.
    pub max_fails: u64,
    /// How long failures count, and how long it is out.
    pub fail_timeout: Duration,
    /// How long its weight takes to grow to what it is, once it is available again; zero is no
    /// time.
    pub slow_start: Duration,
    /// The checks that are made of it; `None` where there are none.
    pub checks: Option<Checks>,
    /// It is never asked.
    pub down: bool,
    /// Which host of the roster it is an address of, where that is looked up.
    pub(crate) host: Option<usize>,
    /// Only requests that name it get it.
    pub draining: bool,
    /// How it does, once that is known to be its own or that of the peer before a reload.
    state: OnceLock<Arc<State>>,
    /// What its checks have found, in this generation.
    health: OnceLock<Arc<Health>>,
}

impl Peer {
    /// A peer with nginx's defaults.
    pub fn new(address: Address) -> Peer {
        let name = Bytes::from(address.to_string());
        Peer {
            server: name.clone(),
            id: Bytes::new(),
            number: None,
            name,
            address,
            weight: 1,
            max_conns: 0,
            max_fails: 1,
            fail_timeout: Duration::from_secs(10),
            slow_start: Duration::ZERO,
            checks: None,
            down: false,
            host: None,
            draining: false,
            state: OnceLock::new(),
            health: OnceLock::new(),
        }
    }

    /// A peer like this one at another address, which has a state of its own.
    pub(crate) fn at(&self, address: Address) -> Peer {
        Peer {
            name: Bytes::from(address.to_string()),
            address,
            state: OnceLock::new(),
            health: OnceLock::new(),
            ..self.clone()
        }
    }

    /// How it does, by what all threads have seen.
    pub fn state(&self) -> &Arc<State> {
        self.state.get_or_init(Arc::default)
    }

    /// What its checks have found; `None` where none are made.
    pub fn health(&self) -> Option<&Arc<Health>> {
        let checks = self.checks.as_ref()?;
        let health = self.health.get_or_init(|| Arc::new(Health::new(checks)));
        Some(health)
    }

    /// The same peer for another list: both have one state.
    pub fn share(&self) -> Peer {
        self.state();
        self.health();
        self.clone()
    }

    /// Whether it would be the same peer if it stood in the other's place.
    pub(crate) fn is_alike(&self, other: &Peer) -> bool {
        (&self.name, &self.server, self.weight) == (&other.name, &other.server, other.weight)
    }

    /// Goes on with the state of the same peer before, and with what its checks had found. The
    /// first one stays.
    pub(crate) fn adopt(&self, before: &Peer) {
        // A state that it has already is its own: it has been asked before.
        let _ = self.state.set(Arc::clone(before.state()));
        if let Some(checks) = &self.checks {
            let known = before.health().map(|health| &**health);
            let _ = self.health.set(Arc::new(Health::following(checks, known)));
        }
    }

    /// Its checks let it have requests again: where it starts slowly, from now on.
    pub(crate) fn recover(&self, now: Instant) {
        self.state().recover(millis(now));
    }

    /// How many parts of its weight it has now: all ([`slow_start::WHOLE`]) unless it starts
    /// slowly.
    pub(crate) fn share_of_weight(&self, now: u64) -> i64 {
        if self.slow_start.is_zero() {
            slow_start::WHOLE
        } else {
            slow_start::share(self.state().recovered_at(), now, self.slow_start)
        }
    }

    /// A round in which it might be chosen: see [`State::grow`].
    pub(crate) fn grow(&self, now: u64) -> (i64, i64) {
        let share = self.share_of_weight(now);
        self.state().grow(self.weight, share)
    }

    /// How it stands at this moment, for people and monitoring.
    pub fn standing(&self, now: Instant) -> Standing {
        let now = millis(now);
        match self.health().map(|health| health.finding()) {
            _ if self.down => Standing::Down,
            Some(Finding::Unhealthy) => Standing::Unhealthy,
            Some(Finding::Checking) => Standing::Checking,
            _ if self.draining => Standing::Draining,
            _ if self.is_out(now) => Standing::Unavailable,
            _ => Standing::Up,
        }
    }

    /// Whether its checks let it have requests, and so does the configuration.
    pub(crate) fn is_open(&self) -> bool {
        !self.down
            && self
                .health()
                .is_none_or(|health| health.finding() == Finding::Healthy)
    }

    /// Whether any request may be given to it now.
    pub(crate) fn is_live(&self, now: u64) -> bool {
        self.is_fit(now) && !self.is_full()
    }

    /// Whether a request may be given to it now that names it.
    pub(crate) fn is_live_by_name(&self, now: u64) -> bool {
        self.is_open() && !self.is_out(now) && !self.is_full()
    }

    /// Whether nothing speaks against it but the requests that it has, or that it does worse than
    /// others.
    pub(crate) fn is_fit(&self, now: u64) -> bool {
        self.is_open() && !self.draining && !self.is_out(now)
    }

    /// Whether it has failed too often of late.
    pub(crate) fn is_out(&self, now: u64) -> bool {
        self.max_fails > 0
            && self.state().fails() >= self.max_fails
            && !self.state().is_stale(now, self.fail_timeout)
    }

    /// Whether it has as many requests as it may have.
    pub(crate) fn is_full(&self) -> bool {
        self.max_conns > 0 && self.state().connections() >= self.max_conns
    }
}

/// How a peer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The peer is asked in its turn.
    Up,
    /// The configuration has it down.
    Down,
    /// Requests have failed, so that it is asked again only after a time.
    Unavailable,
    /// It has to pass a check first.
    Checking,
    /// It has failed its checks.
    Unhealthy,
    /// Only requests that name it get it.
    Draining,
}

impl Standing {
    /// Every one of them.
    pub const ALL: [Standing; 6] = [
        Standing::Up,
        Standing::Down,
        Standing::Unavailable,
        Standing::Checking,
        Standing::Unhealthy,
        Standing::Draining,
    ];

    /// As NGINX Plus calls it.
    pub fn name(self) -> &'static str {
        match self {
            Standing::Up => "up",
            Standing::Down => "down",
            Standing::Unavailable => "unavail",
            Standing::Checking => "checking",
            Standing::Unhealthy => "unhealthy",
            Standing::Draining => "draining",
        }
    }
}

/// Peers that stand beside each other.
#[derive(Debug, Default)]
pub struct PeerSet {
    peers: Box<[Peer]>,
    total_weight: i64,
}

impl PeerSet {
    /// These, in the order of the configuration.
    pub fn new(peers: impl Into<Box<[Peer]>>) -> PeerSet {
        let peers = peers.into();
        PeerSet {
            total_weight: peers.iter().map(|peer| peer.weight).sum(),
            peers,
        }
    }

    /// The sum of their weights.
    pub fn total_weight(&self) -> i64 {
        self.total_weight
    }

    /// The first peer of this name.
    pub(crate) fn named(&self, id: &[u8]) -> Option<usize> {
        self.peers.iter().position(|peer| peer.id == id)
    }

    /// The peer that this share of the total weight, counted from the first, belongs to.
    pub(crate) fn at_weight(&self, share: u64) -> Option<usize> {
        let mut rest = i64::try_from(share).ok()?;
        self.peers.iter().position(|peer| {
            rest -= peer.weight;
            rest < 0
        })
    }
}

impl std::ops::Deref for PeerSet {
    type Target = [Peer];

    fn deref(&self) -> &[Peer] {
        &self.peers
    }
}

/// Which of the two sides of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideOf {
    /// Those that share requests out among them.
    Peers,
    /// Those that stand by.
    Backups,
}

/// What requests to a group have in common, over all threads and reloads.
#[derive(Debug, Default)]
struct RotationState {
    /// Held while a peer is chosen.
    lock: Mutex<()>,
    /// Requests for which there was none.
    queue: Arc<Queue>,
    /// Requests that were tried once more.
    retries: Retries,
    /// How many requests are under way, where that is bounded.
    gate: Arc<Gate>,
    /// The number of the next member that has none.
    next_number: AtomicU64,
    /// How those do that have left the group, as long as they have requests.
    removed: Mutex<Vec<Arc<State>>>,
}

/// The peers of a group: those that share requests out among them, and others that stand by.
#[derive(Debug)]
pub struct Peers {
    /// Those that are asked first.
    pub primary: PeerSet,
    /// Those that are asked when no other may be.
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
