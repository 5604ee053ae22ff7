//! A group of peers under a name.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::net::Address;

use crate::balancer::Method;
use crate::gate::{Concurrency, Entry, Load, Patience, Terms};
use crate::outliers::Outliers;
use crate::peer::Peer;
use crate::peers::Peers;
use crate::retries::RetryBudget;
use crate::roster::Roster;

/// A group of peers: an `upstream` block, or the addresses of a host.
#[derive(Debug)]
pub struct Group {
    /// The block's name, or the host.
    pub name: Bytes,
    /// How idle connections are kept; `None` if they are not kept.
    pub keepalive: Option<Keepalive>,
    /// `queue`: how requests wait while no peer is available; `None` if they do not wait.
    pub queueing: Option<Queueing>,
    /// `concurrency_limit`: the limit of requests in flight; `None` for no limit.
    pub concurrency: Option<Concurrency>,
    /// `retry_budget`: the limit of retries; `None` for no limit.
    pub retry_budget: Option<RetryBudget>,
    /// `eject_outliers`: when peers are ejected; `None` if they are not ejected.
    pub outliers: Option<Outliers>,
    /// Whether the API may change the group's members.
    pub is_editable: bool,
    /// Groups that are made later have greater versions.
    version: u64,
    roster: Arc<Roster>,
}

static VERSIONS: AtomicU64 = AtomicU64::new(1);

/// The number of requests that may wait for `concurrency_limit`, without `queue`.
const WAITING_MAX: usize = 10_000;

/// How long a request may wait for `concurrency_limit`, without a time in `queue`: well below the
/// ten seconds after which many clients give up.
const WAITING_TIME: Duration = Duration::from_secs(8);

/// How connections to a group's peers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Maximum number of idle connections per thread; beyond it, the connection that has been idle
    /// longest is closed.
    pub connections: usize,
    /// Whether connections are only reused by the same location (`local`).
    pub local: bool,
    /// Maximum number of requests per connection.
    pub requests: u64,
    /// The age up to which a connection is kept.
    pub time: Duration,
    /// How long a connection may be idle.
    pub timeout: Duration,
}

/// How requests wait for a peer, or for `concurrency_limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queueing {
    /// Maximum number of waiting requests.
    pub length: usize,
    /// How long a request may wait; `None` if it is not configured.
    pub timeout: Option<Duration>,
}

impl Queueing {
    /// How long a request may wait for a peer.
    pub fn timeout(&self) -> Duration {
        self.timeout.unwrap_or(Duration::from_secs(60))
    }
}

impl Default for Keepalive {
    /// The defaults of an `upstream` block of nginx 1.31.
    fn default() -> Keepalive {
        Keepalive {
            connections: 32,
            local: true,
            requests: 1000,
            time: Duration::from_secs(3600),
            timeout: Duration::from_secs(60),
        }
    }
}

impl Group {
    /// A group of these peers.
    pub fn new(name: Bytes, roster: Arc<Roster>, keepalive: Option<Keepalive>) -> Group {
        Group {
            name,
            keepalive,
            queueing: None,
            concurrency: None,
            version: VERSIONS.fetch_add(1, Ordering::Relaxed),
            retry_budget: None,
            outliers: None,
            is_editable: false,
            roster,
        }
    }

    /// A group with one peer. As the only peer, it remains available after failures.
    pub fn of_one(name: Bytes, address: Address) -> Arc<Group> {
        Group::of_addresses(name, [address])
    }

    /// A group of peers with nginx's default parameters, one for each address. The state of the
    /// peers is dropped with the group.
    pub fn of_addresses(name: Bytes, addresses: impl IntoIterator<Item = Address>) -> Arc<Group> {
        let peers = addresses.into_iter().map(Peer::new).collect();
        let roster = Roster::new(peers, Vec::new(), Method::RoundRobin, Vec::new());
        Arc::new(Group::new(name, Arc::new(roster), None))
    }

    /// The current peers of the group.
    pub fn peers(&self) -> Arc<Peers> {
        self.roster.peers()
    }

    /// The members of the group.
    pub fn roster(&self) -> &Arc<Roster> {
        &self.roster
    }

    /// Whether the list of peers may change, by the API or by DNS lookups.
    pub fn may_change(&self) -> bool {
        self.is_editable || !self.roster.hosts().is_empty()
    }

    /// Called when the health checks of a peer have passed again: starts `slow_start`, and wakes a
    /// request that waits for a peer.
    pub fn recovered(&self, peer: &Peer, now: Instant) {
        peer.recover(now);
        self.peers().queue().call_next();
    }

    /// Admits, queues or refuses a new request; `None` if the group has no limit of requests in
    /// flight.
    pub fn enter(&self, now: Instant) -> Option<Entry> {
        let terms = Terms {
            version: self.version,
            concurrency: self.concurrency?,
            patience: Patience {
                length: self
                    .queueing
                    .map_or(WAITING_MAX, |queueing| queueing.length),
                // The expected wait is estimated from past requests, so a margin is left for
                // errors.
                expected_max: self.waiting_time() * 3 / 4,
            },
        };
        Some(self.peers().gate().enter(now, &terms))
    }

    /// How long a request may wait for `concurrency_limit`.
    pub fn waiting_time(&self) -> Duration {
        let timeout = self.queueing.and_then(|queueing| queueing.timeout);
        timeout.unwrap_or(WAITING_TIME)
    }

    /// Puts the group's `concurrency_limit` into force, for waiting requests too.
    pub fn comes_into_force(&self, now: Instant) {
        let peers = self.peers();
        peers.gate().set(now, self.version, self.concurrency);
    }

    /// The state of the limit of requests in flight; `None` if there is no limit.
    pub fn load(&self) -> Option<Load> {
        self.concurrency?;
        // This may be called before the configuration of the group has come into force.
        self.comes_into_force(engine::now());
        Some(self.peers().gate().load())
    }

    /// The balancing method.
    pub fn method(&self) -> Method {
        self.roster.method()
    }
}
