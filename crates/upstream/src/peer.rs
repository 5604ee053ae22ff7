//! One server of a group: what the configuration or a lookup says of it.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::net::Address;

use crate::health::{Checks, Finding, Health};
use crate::moment::millis;
use crate::slow_start;
use crate::state::State;

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

    /// The outcome of the peer's health checks; `None` if it has none.
    pub fn health(&self) -> Option<&Arc<Health>> {
        let checks = self.checks.as_ref()?;
        let health = self.health.get_or_init(|| Arc::new(Health::new(checks)));
        Some(health)
    }

    /// Another handle to this peer, for another list; both share their state.
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

    /// Goes on with a state of another process, and with what its checks had found there.
    pub(crate) fn go_on(&mut self, state: State, health: Option<Health>) {
        self.state = OnceLock::from(Arc::new(state));
        if let Some(health) = health {
            self.checks = Some(Arc::clone(health.checks()));
            self.health = OnceLock::from(Arc::new(health));
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
