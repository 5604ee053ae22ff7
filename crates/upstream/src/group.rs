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

/// A group of peers: what an `upstream` block declares, or a host's addresses.
#[derive(Debug)]
pub struct Group {
    /// The block's name, or the host.
    pub name: Bytes,
    /// What it is kept by in a thread's pool, if its connections are kept.
    pub keepalive: Option<Keepalive>,
    /// How requests wait while no peer may be asked, if they do.
    pub queueing: Option<Queueing>,
    /// How many requests may be under way, if that is bounded.
    pub concurrency: Option<Concurrency>,
    /// How many requests may be tried once more, if that is bounded.
    pub retry_budget: Option<RetryBudget>,
    /// When peers are put out that do worse than others, if they are.
    pub outliers: Option<Outliers>,
    /// Whether its members may be changed while it serves.
    pub is_editable: bool,
    /// A group that is made later has a greater one.
    version: u64,
    roster: Arc<Roster>,
}

static VERSIONS: AtomicU64 = AtomicU64::new(1);

/// How many wait until they may be under way where nothing says how many do.
const WAITING_MAX: usize = 10_000;

/// How long they wait where nothing says how long: well below the ten seconds after which many
/// clients give up.
const WAITING_TIME: Duration = Duration::from_secs(8);

/// How connections to a group's peers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// The most that are idle on a thread; the one that has been so for longest makes room.
    pub connections: usize,
    /// Only who has made them uses them again.
    pub local: bool,
    /// How many requests go over one.
    pub requests: u64,
    /// How old one may be when it is kept.
    pub time: Duration,
    /// How long one may be idle.
    pub timeout: Duration,
}

/// How requests wait for a peer, or until they may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queueing {
    /// The most that wait at a time.
    pub length: usize,
    /// How long each may wait; `None` where nothing says so.
    pub timeout: Option<Duration>,
}

impl Queueing {
    /// How long each may wait for a peer.
    pub fn timeout(&self) -> Duration {
        self.timeout.unwrap_or(Duration::from_secs(60))
    }
}

impl Default for Keepalive {
    /// As an `upstream` block of nginx 1.31 has it that says nothing of it.
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

    /// A group of one peer, which is asked whatever it did before.
    pub fn of_one(name: Bytes, address: Address) -> Arc<Group> {
        Group::of_addresses(name, [address])
    }

    /// A group of addresses that are all alike. What its peers do is forgotten with it.
    pub fn of_addresses(name: Bytes, addresses: impl IntoIterator<Item = Address>) -> Arc<Group> {
        let peers = addresses.into_iter().map(Peer::new).collect();
        let roster = Roster::new(peers, Vec::new(), Method::RoundRobin, Vec::new());
        Arc::new(Group::new(name, Arc::new(roster), None))
    }

    /// The peers now of the group.
    pub fn peers(&self) -> Arc<Peers> {
        self.roster.peers()
    }

    /// Its members, as they are and are changed.
    pub fn roster(&self) -> &Arc<Roster> {
        &self.roster
    }

    /// Whether other peers may come into it, or leave it.
    pub fn may_change(&self) -> bool {
        self.is_editable || !self.roster.hosts().is_empty()
    }

    /// The checks of a peer let it have requests again: it starts as slowly as it is to, and who
    /// waits for a peer is called.
    pub fn recovered(&self, peer: &Peer, now: Instant) {
        peer.recover(now);
        self.peers().queue().call_next();
    }

    /// A request comes, in a group that bounds how many are under way; `None` in any other.
    pub fn enter(&self, now: Instant) -> Option<Entry> {
        let terms = Terms {
            version: self.version,
            concurrency: self.concurrency?,
            patience: Patience {
                length: self
                    .queueing
                    .map_or(WAITING_MAX, |queueing| queueing.length),
                // What is known is the past's: a part of the time is kept for being wrong.
                expected_max: self.waiting_time() * 3 / 4,
            },
        };
        Some(self.peers().gate().enter(now, &terms))
    }

    /// How long a request may wait until it may be under way.
    pub fn waiting_time(&self) -> Duration {
        let timeout = self.queueing.and_then(|queueing| queueing.timeout);
        timeout.unwrap_or(WAITING_TIME)
    }

    /// Its configuration is in force: who waits goes by its limit from now on.
    pub fn comes_into_force(&self, now: Instant) {
        let peers = self.peers();
        peers.gate().set(now, self.version, self.concurrency);
    }

    /// How many requests are under way; `None` where that is not bounded.
    pub fn load(&self) -> Option<Load> {
        self.concurrency?;
        // Requests may ask before all of the configuration has been told that it is in force.
        self.comes_into_force(engine::now());
        Some(self.peers().gate().load())
    }

    /// How it shares requests out.
    pub fn method(&self) -> Method {
        self.roster.method()
    }
}
