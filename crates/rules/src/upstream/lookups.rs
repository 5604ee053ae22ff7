//! `resolve`: resolves the names of servers repeatedly.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#resolve>. One thread resolves the
//! names for the whole process, however many generations still serve; each group's roster holds the
//! addresses. A lookup that fails leaves the addresses unchanged, unless the name does not exist.

use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ::upstream::{Host, ResolvedAddress, Roster};
use engine::net::Address;
use framework::generation::Generation;
use framework::service::{RunningService, Service};
use logs::{Printable, event};
use proto::dns::DnsError;
use transport::resolver::{Resolving, ServiceFound, Unresolved};

use super::protocol::Upstreams;
use crate::service_thread;

/// The shortest pause after a failed lookup.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// The resolution of a group's names, and the roster for the addresses.
#[derive(Clone, Debug)]
pub(super) struct GroupLookup {
    pub(super) roster: Arc<Roster>,
    pub(super) resolving: Arc<Resolving>,
}

/// The service that resolves the names of a configuration.
pub(super) struct Lookups<U: Upstreams> {
    pub(super) all: Vec<GroupLookup>,
    pub(super) upstreams: PhantomData<U>,
}

impl<U: Upstreams> Service for Lookups<U> {
    fn key(&self) -> String {
        format!("names of {} upstreams", U::BLOCK)
    }

    /// Starts a thread; the previous one ends.
    fn start(&self, _: &Arc<Generation>, before: Option<RunningService>) -> Option<RunningService> {
        drop(before);
        let lookups = self.all.clone();
        service_thread::start("resolve", "names of upstreams", || look_up_all(lookups))
    }
}

/// Resolves every name, each at the interval of its records.
async fn look_up_all(lookups: Vec<GroupLookup>) {
    for lookup in lookups {
        for number in 0..lookup.roster.hosts().len() {
            engine::spawn(refresh_loop(lookup.clone(), number));
        }
    }
    std::future::pending().await
}

async fn refresh_loop(lookup: GroupLookup, number: usize) {
    let GroupLookup { roster, resolving } = &lookup;
    let Some(host) = roster.hosts().get(number) else {
        return;
    };
    loop {
        let found = match &host.service {
            None => look_up(resolving, host).await,
            Some(service) => look_up_service(resolving, host, service).await,
        };
        let pause = match found {
            Ok((found, valid)) => {
                roster.resolved(number, &found);
                // As in nginx, one second after the records expire.
                valid + Duration::from_secs(1)
            }
            Err(Unresolved::Failed(DnsError::NotFound)) => {
                roster.resolved(number, &[]);
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
    // The known addresses stay if no new ones were found.
    match unresolved.filter(|_| found.is_empty()) {
        Some(error) => Err(error),
        None => Ok((found, valid)),
    }
}
