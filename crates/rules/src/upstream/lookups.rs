//! `resolve`: resolves the names of servers repeatedly.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#resolve>. One thread resolves the
//! names of the newest configuration; the roster of a group holds the addresses. A lookup that
//! fails leaves the addresses unchanged, unless the name does not exist.
//!
//! The API can also add and remove names, so the thread is started when the first name exists.
//!
//! ```text
//! (compiled) ── start ──▶ Idle ── a name ──▶ Running ── the service ends ──▶ Off
//! ```

use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::upstream::{Host, HostLookup, ListedHost, ResolvedAddress, Roster};
use engine::net::Address;
use engine::select::either;
use framework::flag::Flag;
use framework::generation::Generation;
use framework::service::{RunningService, Service};
use logs::{Printable, event};
use proto::dns::DnsError;
use transport::resolver::{Resolving, ServiceFound, Unresolved};

use super::protocol::Upstreams;
use crate::service_thread;

/// The shortest pause after a failed lookup.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// The resolver for the names of a group, and the roster that gets the addresses.
#[derive(Clone, Debug)]
pub(super) struct GroupLookup {
    pub(super) roster: Arc<Roster>,
    pub(super) resolving: Arc<Resolving>,
}

/// The service that resolves the names of a configuration.
pub(super) struct Lookups<U: Upstreams> {
    pub(super) all: Vec<GroupLookup>,
    pub(super) thread: Arc<LookupThread>,
    pub(super) upstreams: PhantomData<U>,
}

impl<U: Upstreams> Service for Lookups<U> {
    fn key(&self) -> String {
        format!("names of {} upstreams", U::BLOCK)
    }

    /// Ends the thread of the previous configuration, and starts a thread if there are names.
    fn start(&self, _: &Arc<Generation>, before: Option<RunningService>) -> Option<RunningService> {
        drop(before);
        *self.thread.lock() = ThreadState::Idle(self.all.clone());
        self.thread.host_added();
        Some(Box::new(UntilDropped(Arc::clone(&self.thread))))
    }
}

/// The thread that resolves the names of a configuration.
#[derive(Debug, Default)]
pub(super) struct LookupThread(Mutex<ThreadState>);

#[derive(Default)]
enum ThreadState {
    /// The configuration has not come into force yet, or is no longer in force.
    #[default]
    Off,
    /// The configuration is in force, but the thread has not been started, because these groups
    /// have had no names.
    Idle(Vec<GroupLookup>),
    /// The thread runs. The flag tells it that a name has been added.
    Running(
        Flag,
        #[expect(dead_code, reason = "ends the thread when dropped")] RunningService,
    ),
}

// Implemented by hand, because a running service need not implement `Debug`.
impl std::fmt::Debug for ThreadState {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            ThreadState::Off => "Off",
            ThreadState::Idle(_) => "Idle",
            ThreadState::Running(..) => "Running",
        })
    }
}

impl LookupThread {
    fn lock(&self) -> MutexGuard<'_, ThreadState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostLookup for LookupThread {
    fn host_added(&self) {
        let mut state = self.lock();
        match &*state {
            ThreadState::Running(added, _) => added.raise(),
            ThreadState::Idle(lookups) if lookups.iter().any(GroupLookup::has_names) => {
                let (lookups, added) = (lookups.clone(), Flag::default());
                let told = added.clone();
                let work = move || look_up_all(lookups, told);
                // If the thread cannot be started, the next name that is added tries again.
                if let Some(running) = service_thread::start("resolve", "names of upstreams", work)
                {
                    *state = ThreadState::Running(added, running);
                }
            }
            ThreadState::Idle(_) | ThreadState::Off => {}
        }
    }
}

/// Ends the lookup thread when dropped.
struct UntilDropped(Arc<LookupThread>);

impl Drop for UntilDropped {
    fn drop(&mut self) {
        *self.0.lock() = ThreadState::Off;
    }
}

impl GroupLookup {
    fn has_names(&self) -> bool {
        !self.roster.hosts().is_empty()
    }
}

/// Starts a task for every name, which resolves the name again whenever its records expire. `added`
/// tells that names have been added.
async fn look_up_all(lookups: Vec<GroupLookup>, added: Flag) {
    // With each group, the lowest key of the hosts without a task: hosts that are added later have
    // greater keys.
    let mut lookups: Vec<(GroupLookup, usize)> =
        lookups.into_iter().map(|lookup| (lookup, 0)).collect();
    loop {
        for (lookup, next_key) in &mut lookups {
            let hosts = lookup.roster.hosts();
            let new = hosts.iter().filter(|host| host.key >= *next_key);
            for host in new {
                let (lookup, host) = (lookup.clone(), Arc::clone(host));
                engine::spawn(async move {
                    either(refresh_loop(&lookup, &host), host.removed()).await;
                });
            }
            *next_key = hosts.last().map_or(*next_key, |host| host.key + 1);
        }
        added.take().await;
    }
}

/// Resolves a host repeatedly.
async fn refresh_loop(lookup: &GroupLookup, listed: &ListedHost) {
    let GroupLookup { roster, resolving } = lookup;
    let (key, host) = (listed.key, &listed.host);
    loop {
        let found = match &host.service {
            None => look_up(resolving, host).await,
            Some(service) => look_up_service(resolving, host, service).await,
        };
        let pause = match found {
            Ok((found, valid)) => {
                roster.resolved(key, &found);
                // As in nginx, one second after the records expire.
                valid + Duration::from_secs(1)
            }
            Err(Unresolved::Failed(DnsError::NotFound)) => {
                roster.resolved(key, &[]);
                resolving.absence() + RETRY_MIN
            }
            Err(_) => resolving.timeout().max(RETRY_MIN),
        };
        engine::sleep(pause).await;
    }
}

async fn look_up(
    resolving: &Resolving,
    host: &Host,
) -> Result<(Vec<ResolvedAddress>, Duration), Unresolved> {
    let looked_up = resolving.look_up(&host.name).await;
    let (addresses, valid) = looked_up.inspect_err(|error| {
        event!(
            Error,
            "{} could not be resolved ({error})",
            Printable(&host.name)
        );
    })?;
    let found = addresses.into_iter().map(|ip| ResolvedAddress {
        address: Address::Inet(SocketAddr::new(ip, host.port)),
        server: None,
        weight: None,
        is_backup: false,
    });
    Ok((found.collect(), valid))
}

async fn look_up_service(
    resolving: &Resolving,
    host: &Host,
    service: &[u8],
) -> Result<(Vec<ResolvedAddress>, Duration), Unresolved> {
    let (name, service_name) = (Printable(&host.name), Printable(service));
    let looked_up = resolving.look_up_service(service, &host.name).await;
    let (servers, valid) = looked_up.inspect_err(|error| {
        event!(
            Error,
            "service {service_name} of {name} could not be resolved ({error})"
        );
    })?;
    let least = |servers: &[ServiceFound]| {
        let resolved = servers.iter().filter(|one| one.addresses.is_ok());
        resolved.map(|one| one.server.priority).min()
    };
    let first = least(&servers);
    let mut found = Vec::new();
    let mut unresolved = None;
    for ServiceFound { server, addresses } in servers {
        let addresses = match addresses {
            Ok(addresses) => addresses,
            Err(error) => {
                event!(
                    Error,
                    "{} could not be resolved ({error}) while resolving service {service_name} of {name}",
                    server.name
                );
                let is_absent = error == Unresolved::Failed(DnsError::NotFound);
                if is_absent || unresolved.is_none() {
                    unresolved = Some(error);
                }
                continue;
            }
        };
        found.extend(addresses.into_iter().map(|ip| ResolvedAddress {
            address: Address::Inet(SocketAddr::new(ip, server.port)),
            server: Some(server.name.to_string().into()),
            weight: Some(server.weight),
            is_backup: Some(server.priority) != first,
        }));
    }
    // If no address was found because names did not resolve, the known addresses stay.
    match unresolved.filter(|_| found.is_empty()) {
        Some(error) => Err(error),
        None => Ok((found, valid)),
    }
}
