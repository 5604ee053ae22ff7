//! A thread's cache of resolved names, and the tasks that wait for pending queries.
//!
//! ```text
//!           lookup: the first                    the answer
//! (nothing) ─────────────────▶ Asked ───────────────────────────────▶ Resolved ── time over ──▶
//! (nothing)
//!               others wait ──▶ │  no task waits any more, or the task died
//!                               └───────────────────────────────────────────▶ (nothing)
//! ```
//!
//! An alias has an entry of its own, so names with the same alias share its result. The absence of
//! a name is cached for the time that its zone specifies, within limits (RFC 2308); all other
//! failures are forgotten at once.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use base::hash::Map;
use framework::random;
use proto::dns::{ALIASES_MAX, DnsError, HostName};

use super::{Resolver, client};

/// Maximum number of names that one thread caches for one `resolver`.
const NAMES_MAX: usize = 10_000;

/// Maximum number of concurrent queries of one thread for one `resolver`, since clients may choose
/// the names. Further queries fail as if the server had failed.
const INQUIRIES_MAX: usize = 1000;

/// Maximum time that a missing name is cached, so that a new name is found soon.
const NEGATIVE_TTL_MAX: Duration = Duration::from_secs(60);

/// The result of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Resolution {
    /// The addresses of the name, at least one; IPv4 first.
    Addresses(Rc<[IpAddr]>),
    /// The names that this name is an alias of. If the families have different aliases, they are
    /// tried in turn.
    Alias(Rc<[HostName]>),
    /// The name has no address, or no server answered usefully.
    Failed(DnsError),
}

enum Entry {
    Resolved {
        resolution: Resolution,
        until: Instant,
    },
    Asked(Rc<PendingQuery>),
}

/// A pending query for a name.
#[derive(Default)]
struct PendingQuery {
    /// The result; `None` while the query is pending.
    outcome: RefCell<Option<Resolution>>,
    wakers: RefCell<Vec<Waker>>,
    /// Number of tasks that wait for the result.
    waiting: Cell<usize>,
}

/// One thread's cache of one `resolver`.
pub(super) struct Cache {
    resolver: Arc<Resolver>,
    entries: RefCell<Map<HostName, Entry>>,
    inquiries: Cell<usize>,
    /// Index of the server that is asked first for the next name.
    next_server: Cell<usize>,
}

impl Cache {
    pub(super) fn new(resolver: &Arc<Resolver>) -> Cache {
        Cache {
            resolver: Arc::clone(resolver),
            entries: RefCell::default(),
            inquiries: Cell::new(0),
            next_server: Cell::new(0),
        }
    }

    /// The addresses of a name, following aliases.
    pub(super) async fn resolve(
        self: &Rc<Cache>,
        mut name: HostName,
    ) -> Result<Vec<IpAddr>, DnsError> {
        let mut others = Aliases::default();
        for _ in 0..=ALIASES_MAX {
            let (resolution, fresh) = match self.remembered(&name) {
                Some(resolution) => (resolution, false),
                None => (self.inquire(&name).await, true),
            };
            match resolution {
                Resolution::Addresses(addresses) if fresh => return Ok(addresses.to_vec()),
                Resolution::Addresses(addresses) => return Ok(turned(&addresses)),
                Resolution::Alias(targets) => name = others.follow(&targets)?,
                Resolution::Failed(failure) => name = others.instead(failure)?,
            }
        }
        Err(DnsError::NotFound)
    }

    fn remembered(&self, name: &HostName) -> Option<Resolution> {
        match self.entries.borrow().get(name)? {
            Entry::Resolved { resolution, until } if *until > engine::now() => {
                Some(resolution.clone())
            }
            _ => None,
        }
    }

    /// Waits for the result of the query for a name, which is started if there is none.
    async fn inquire(self: &Rc<Cache>, name: &HostName) -> Resolution {
        let asked = match self.entries.borrow().get(name) {
            Some(Entry::Asked(inquiry)) => Some(Rc::clone(inquiry)),
            _ => None,
        };
        let inquiry = match asked {
            Some(inquiry) => inquiry,
            None if self.inquiries.get() >= INQUIRIES_MAX => {
                return Resolution::Failed(DnsError::Server);
            }
            None => self.begin(name),
        };
        let _waiting = WaiterCount::new(&inquiry);
        poll_fn(|context| match &*inquiry.outcome.borrow() {
            Some(resolution) => Poll::Ready(resolution.clone()),
            None => {
                let mut wakers = inquiry.wakers.borrow_mut();
                if !wakers.iter().any(|known| known.will_wake(context.waker())) {
                    wakers.push(context.waker().clone());
                }
                Poll::Pending
            }
        })
        .await
    }

    /// Starts a task that queries the name.
    fn begin(self: &Rc<Cache>, name: &HostName) -> Rc<PendingQuery> {
        let inquiry = Rc::new(PendingQuery::default());
        let entry = Entry::Asked(Rc::clone(&inquiry));
        self.make_room();
        self.entries.borrow_mut().insert(name.clone(), entry);
        self.inquiries.set(self.inquiries.get() + 1);
        let first = self.next_server.get();
        self.next_server.set(first.wrapping_add(1));
        let asking = PendingLookup {
            cache: Rc::clone(self),
            name: name.clone(),
            inquiry: Rc::clone(&inquiry),
        };
        engine::spawn(async move {
            let wanted = || asking.inquiry.waiting.get() > 0;
            let answer = client::ask(&asking.cache.resolver, &asking.name, first, wanted).await;
            if let Some((resolution, ttl)) = answer {
                asking.settle(resolution, ttl.map(|ttl| Duration::from_secs(ttl.into())));
            }
        });
        inquiry
    }

    /// Removes expired names if there are too many; if that does not help, all names but those with
    /// a pending query. This is rare, so no order of use is kept.
    fn make_room(&self) {
        let mut entries = self.entries.borrow_mut();
        if entries.len() < NAMES_MAX {
            return;
        }
        let now = engine::now();
        entries.retain(|_, entry| match entry {
            Entry::Resolved { until, .. } => *until > now,
            Entry::Asked(_) => true,
        });
        if entries.len() >= NAMES_MAX {
            entries.retain(|_, entry| matches!(entry, Entry::Asked(_)));
        }
    }

    /// How long to cache a result with this `ttl`; `None` if it is not cached.
    fn lifetime(&self, resolution: &Resolution, ttl: Option<Duration>) -> Option<Duration> {
        let valid = self.resolver.valid;
        match resolution {
            Resolution::Addresses(_) | Resolution::Alias(_) => valid.or(ttl),
            Resolution::Failed(_) => {
                let bound = valid.map_or(NEGATIVE_TTL_MAX, |valid| valid.min(NEGATIVE_TTL_MAX));
                Some(ttl?.min(bound))
            }
        }
    }
}

/// The aliases of a name that remain to be tried.
#[derive(Default)]
pub(super) struct Aliases(Vec<HostName>);

impl Aliases {
    /// The first of these names. The others are tried if it has no address.
    pub(super) fn follow(&mut self, targets: &[HostName]) -> Result<HostName, DnsError> {
        let (first, others) = targets.split_first().ok_or(DnsError::NotFound)?;
        self.0.extend_from_slice(others);
        Ok(first.clone())
    }

    /// The next name to try after a name has failed with this error. The error is `failure`, if no
    /// name is left or the failure is not that the name was not found.
    pub(super) fn instead(&mut self, failure: DnsError) -> Result<HostName, DnsError> {
        let next = self.0.pop().filter(|_| failure == DnsError::NotFound);
        next.ok_or(failure)
    }
}

/// The addresses in the order in which a cache hit returns them. The list is rotated by a random
/// number, and so are the IPv4 and the IPv6 addresses within it, so that connections are spread
/// over all addresses.
fn turned(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let mut addresses = addresses.to_vec();
    if addresses.len() > 1 {
        let v6_at = addresses.partition_point(IpAddr::is_ipv4);
        let (v4, v6) = addresses.split_at_mut(v6_at);
        v4.rotate_left(random::below(v4.len()));
        v6.rotate_left(random::below(v6.len()));
        let count = addresses.len();
        addresses.rotate_left(random::below(count));
    }
    addresses
}

/// Counts a waiting task until it is dropped.
struct WaiterCount<'a>(&'a PendingQuery);

impl WaiterCount<'_> {
    fn new(inquiry: &PendingQuery) -> WaiterCount<'_> {
        inquiry.waiting.set(inquiry.waiting.get() + 1);
        WaiterCount(inquiry)
    }
}

impl Drop for WaiterCount<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get().saturating_sub(1));
    }
}

/// The guard of a query's task: however the task ends, its entry does not stay pending.
struct PendingLookup {
    cache: Rc<Cache>,
    name: HostName,
    inquiry: Rc<PendingQuery>,
}

impl PendingLookup {
    fn settle(&self, resolution: Resolution, ttl: Option<Duration>) {
        let lifetime = self.cache.lifetime(&resolution, ttl);
        if let Some(until) = lifetime.and_then(|time| engine::now().checked_add(time)) {
            let resolution = resolution.clone();
            let entry = Entry::Resolved { resolution, until };
            let mut entries = self.cache.entries.borrow_mut();
            entries.insert(self.name.clone(), entry);
        }
        *self.inquiry.outcome.borrow_mut() = Some(resolution);
    }
}

impl Drop for PendingLookup {
    fn drop(&mut self) {
        let cache = &self.cache;
        cache.inquiries.set(cache.inquiries.get().saturating_sub(1));
        let mut entries = cache.entries.borrow_mut();
        if let Some(Entry::Asked(_)) = entries.get(&self.name) {
            entries.remove(&self.name);
        }
        drop(entries);
        // Tasks that still wait after the query's task has panicked get an error.
        let mut outcome = self.inquiry.outcome.borrow_mut();
        outcome.get_or_insert(Resolution::Failed(DnsError::Server));
        drop(outcome);
        let wakers = self.inquiry.wakers.take();
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(valid: Option<u64>) -> Cache {
        Cache::new(&Arc::new(Resolver {
            servers: Box::default(),
            valid: valid.map(Duration::from_secs),
            ipv4: true,
            ipv6: true,
            counted: crate::resolver::counted::ResolverCounter::default(),
        }))
    }

    fn lifetime(valid: Option<u64>, resolution: &Resolution, ttl: Option<u64>) -> Option<u64> {
        let ttl = ttl.map(Duration::from_secs);
        let lifetime = cache(valid).lifetime(resolution, ttl);
        lifetime.map(|time| time.as_secs())
    }

    #[test]
    fn how_long_things_are_known() {
        let address = IpAddr::from([10, 0, 0, 1]);
        let found = Resolution::Addresses([address].into());
        assert_eq!(lifetime(None, &found, Some(300)), Some(300));
        assert_eq!(lifetime(Some(10), &found, Some(300)), Some(10));
        assert_eq!(lifetime(Some(10), &found, Some(0)), Some(10));

        let missing = Resolution::Failed(DnsError::NotFound);
        assert_eq!(lifetime(None, &missing, Some(5)), Some(5));
        assert_eq!(lifetime(None, &missing, Some(3600)), Some(60));
        assert_eq!(lifetime(Some(10), &missing, Some(3600)), Some(10));
        assert_eq!(lifetime(Some(10), &missing, None), None);
    }

    #[test]
    fn turning_keeps_every_address() {
        let addresses: Vec<IpAddr> = ["10.0.0.1", "10.0.0.2", "::1", "::2", "::3"]
            .map(|text| text.parse().unwrap())
            .into();
        let mut firsts = Vec::new();
        for _ in 0..200 {
            let turned = turned(&addresses);
            firsts.push(turned[0]);
            let mut sorted = turned;
            sorted.sort();
            assert_eq!(sorted, addresses);
        }
        assert!(addresses.iter().all(|address| firsts.contains(address)));
        assert_eq!(turned(&addresses[..1]), &addresses[..1]);
    }
}
