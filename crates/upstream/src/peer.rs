//! One server of a group: its configuration, and its address from the configuration or a DNS
//! lookup.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::net::Address;

use crate::health::{Checks, Finding, Health};
use crate::moment::millis;
use crate::slow_start;
use crate::state::State;

/// One address of a server, with its parameters.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The address that the peer listens on.
    pub address: Address,
    /// The address as `$upstream_addr` and log lines show it.
    pub name: Bytes,
    /// The server as the configuration writes it, such as `example.org:8080`. All peers of a name
    /// with several addresses have the same text.
    pub server: Bytes,
    /// The id by which sticky sessions request this peer; empty if sessions cannot request it.
    pub id: Bytes,
    /// `id`: the number that the configuration gives the server for metrics.
    pub number: Option<u64>,
    /// `weight`: the peer's share of the requests; at least 1.
    pub weight: i64,
    /// `max_conns`: maximum number of requests in flight; 0 is no limit.
    pub max_conns: usize,
    /// `max_fails`: failed attempts after which the peer is unavailable; 0 is never.
    pub max_fails: u64,
    /// `fail_timeout`: how long failures count, and how long the peer is then unavailable.
    pub fail_timeout: Duration,
    /// `slow_start`: how long the weight takes to grow to its full value once the peer is available
    /// again; zero turns this off.
    pub slow_start: Duration,
    /// The peer's health checks; `None` if it has none.
    pub checks: Option<Checks>,
    /// `down`: the peer gets no requests.
    pub down: bool,
    /// The key of the host for which the address was looked up; `None` for a configured or added
    /// address.
    pub(crate) host: Option<usize>,
    /// `drain`: the peer only gets requests that name it.
    pub draining: bool,
    /// The state of the peer: a new state, or the adopted state of the same peer before a reload.
    /// Set at the first use.
    state: OnceLock<Arc<State>>,
    /// The results of the peer's health checks in this generation.
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

    /// A peer with the same parameters at another address, and with a new state.
    pub(crate) fn at(&self, address: Address) -> Peer {
        Peer {
            name: Bytes::from(address.to_string()),
            address,
            state: OnceLock::new(),
            health: OnceLock::new(),
            ..self.clone()
        }
    }

    /// The state of the peer, shared by all threads.
    pub fn state(&self) -> &Arc<State> {
        self.state.get_or_init(Arc::default)
    }

    /// The results of the peer's health checks; `None` if it has no checks.
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

    /// Whether both peers have the same name, server and weight.
    pub(crate) fn is_alike(&self, other: &Peer) -> bool {
        (&self.name, &self.server, self.weight) == (&other.name, &other.server, other.weight)
    }

    /// Takes over the state and the check results of the same peer before a reload. Has no effect
    /// if the peer has a state already.
    pub(crate) fn adopt(&self, before: &Peer) {
        // Fails if the peer has a state already, because the state has been used then.
        let _ = self.state.set(Arc::clone(before.state()));
        if let Some(checks) = &self.checks {
            let known = before.health().map(|health| &**health);
            let _ = self.health.set(Arc::new(Health::following(checks, known)));
        }
    }

    /// Takes over the state and the check results that another process has saved.
    pub(crate) fn go_on(&mut self, state: State, health: Option<Health>) {
        self.state = OnceLock::from(Arc::new(state));
        if let Some(health) = health {
            self.checks = Some(Arc::clone(health.checks()));
            self.health = OnceLock::from(Arc::new(health));
        }
    }

    /// The health checks have passed again: starts the `slow_start` period.
    pub(crate) fn recover(&self, now: Instant) {
        let now = millis(now);
        self.state().recover(now);
        self.state().outages_seen.end(now);
    }

    /// The current share of its weight: [`slow_start::WHOLE`], or less during `slow_start`.
    pub(crate) fn share_of_weight(&self, now: u64) -> i64 {
        if self.slow_start.is_zero() {
            slow_start::WHOLE
        } else {
            slow_start::share(self.state().recovered_at(), now, self.slow_start)
        }
    }

    /// Takes part in a round of the balancer: see [`State::grow`].
    pub(crate) fn grow(&self, now: u64) -> (i64, i64) {
        let share = self.share_of_weight(now);
        self.state().grow(self.weight, share)
    }

    /// The current availability of the peer, for monitoring.
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

    /// Notes that a health check has found the peer unhealthy, for [`Peer::downtime`].
    pub fn note_unhealthy(&self, now: Instant) {
        self.state().outages_seen.begin(millis(now));
    }

    /// The total time in which the peer got no requests because of its failures or health checks,
    /// and how long ago the last such outage began; `None` if there was none.
    pub fn downtime(&self, now: Instant) -> (Duration, Option<Duration>) {
        let (standing, at) = (self.standing(now), millis(now));
        let state = self.state();
        let is_out = matches!(
            standing,
            Standing::Unavailable | Standing::Checking | Standing::Unhealthy
        );
        if is_out {
            state.outages_seen.begin(at);
        } else {
            state
                .outages_seen
                .end(state.counts_until(at, self.fail_timeout));
        }
        let (total, last) = state.outages_seen.read(at);
        let ago = last.map(|last| Duration::from_millis(at.saturating_sub(last)));
        (Duration::from_millis(total), ago)
    }

    /// Whether the peer is healthy and not `down`.
    pub(crate) fn is_open(&self) -> bool {
        !self.down
            && self
                .health()
                .is_none_or(|health| health.finding() == Finding::Healthy)
    }

    /// Whether the peer may get any request now.
    pub(crate) fn is_live(&self, now: u64) -> bool {
        self.is_fit(now) && !self.is_full()
    }

    /// Whether the peer may get a request that prefers it by its id, which is also possible while
    /// it is draining.
    pub(crate) fn is_live_by_name(&self, now: u64) -> bool {
        self.is_open() && !self.is_out(now) && !self.is_full()
    }

    /// Whether the peer is available. Does not consider `max_conns` and outlier detection.
    pub(crate) fn is_fit(&self, now: u64) -> bool {
        self.is_open() && !self.draining && !self.is_out(now)
    }

    /// Whether the peer is unavailable because of `max_fails`.
    pub(crate) fn is_out(&self, now: u64) -> bool {
        self.max_fails > 0
            && self.state().fails() >= self.max_fails
            && !self.state().is_stale(now, self.fail_timeout)
    }

    /// Whether the peer has reached `max_conns`.
    pub(crate) fn is_full(&self) -> bool {
        self.max_conns > 0 && self.state().connections() >= self.max_conns
    }
}

/// The availability of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The peer gets requests.
    Up,
    /// The peer is `down` in the configuration.
    Down,
    /// Requests have failed: no requests until `fail_timeout` has passed.
    Unavailable,
    /// The peer must pass a health check first.
    Checking,
    /// The peer has failed its health checks.
    Unhealthy,
    /// Only requests that name the peer get it.
    Draining,
}

impl Standing {
    /// All variants.
    pub const ALL: [Standing; 6] = [
        Standing::Up,
        Standing::Down,
        Standing::Unavailable,
        Standing::Checking,
        Standing::Unhealthy,
        Standing::Draining,
    ];

    /// The name in the API of NGINX Plus.
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

/// The primary or the backup peers of a group.
#[derive(Debug, Default)]
pub struct PeerSet {
    peers: Box<[Peer]>,
    total_weight: i64,
}

impl PeerSet {
    /// A set of these peers, in the order of the configuration.
    pub fn new(peers: impl Into<Box<[Peer]>>) -> PeerSet {
        let peers = peers.into();
        PeerSet {
            total_weight: peers.iter().map(|peer| peer.weight).sum(),
            peers,
        }
    }

    /// The sum of the weights of the peers.
    pub fn total_weight(&self) -> i64 {
        self.total_weight
    }

    /// The index of the first peer with this [`Peer::id`].
    pub(crate) fn named(&self, id: &[u8]) -> Option<usize> {
        self.peers.iter().position(|peer| peer.id == id)
    }

    /// The index of the peer whose part of the total weight contains `share`, if the weights of the
    /// peers are laid end to end.
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
