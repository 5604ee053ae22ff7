//! `resolver`: non-blocking resolution of host names that become known only when a request is
//! served.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#resolver>. [`Resolving::resolve`]
//! returns the addresses of a name. `cache` caches results and makes concurrent requests for a name
//! share one query; `client` queries the servers; `proto::dns` encodes and decodes messages.
//!
//! Each thread has a cache for each `resolver`, with the lifetime of the generation, as in nginx's
//! workers. Names in the configuration itself are not resolved here but by `conf::Files`, when it
//! is compiled. `counted` counts the queries of resolvers with a `status_zone`.

mod cache;
mod client;
pub mod counted;

use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::hash::Map;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, Word, parse};
use engine::net::Address;
use engine::select::{Either, all, either};
use framework::address;
use framework::compile::{Compiler, Feature};
use framework::generation::GenerationView;
use framework::slot::{Slot, ThreadGeneration, ThreadState};
use proto::dns;

use cache::Cache;
use counted::ResolverCounter;

/// The contexts include `upstream` blocks, for names that are resolved repeatedly.
const CONTEXTS: Contexts = Contexts::HTTP
    .or(Contexts::SERVER)
    .or(Contexts::LOCATION)
    .or(Contexts::UPSTREAM)
    .or(Contexts::STREAM)
    .or(Contexts::STREAM_SERVER)
    .or(Contexts::STREAM_UPSTREAM);

/// Port of name servers unless another one is written.
const DEFAULT_PORT: u16 = 53;

/// Maximum number of servers of a service whose addresses are resolved concurrently. Every query
/// has its own socket.
const ASKED_AT_ONCE_MAX: usize = 32;

/// A directive; see its manual.
pub static RESOLVER: Setting<Parameters> = Setting::new(
    "resolver",
    &["address ... [valid=time] [ipv4=on|off] [ipv6=on|off] [status_zone=zone]"],
    parameters,
)
.contexts(CONTEXTS)
.arity(Arity::at_least(1))
.inherit(Inherit::Value)
.manual(
    "Name servers that are asked, in turn, for addresses of names which are known only when a request is served: \
     `proxy_pass` with variables. A server that is silent for five seconds makes the next one asked; an answer that is \
     cut short is asked for over TCP. Answers are kept as long as they say, or for the time of `valid`; both IPv4 and \
     IPv6 addresses are looked up unless one is turned off. Each worker thread keeps its own answers. With `status_zone` the API shows \
     how many questions were asked and what came of them.",
);

/// A directive; see its manual.
pub static RESOLVER_TIMEOUT: Setting<Duration> =
    Setting::new("resolver_timeout", &["time"], |setter| {
        parse::milliseconds(setter)
    })
    .contexts(CONTEXTS)
    .default("30s")
    .manual("How long a name may take to be resolved.");

/// The parsed arguments of a `resolver` line.
#[derive(Clone, Debug)]
pub struct Parameters {
    addresses: Vec<Word>,
    valid: Option<Duration>,
    ipv4: bool,
    ipv6: bool,
    zone: Option<Box<str>>,
}

fn parameters(setter: &Setter<'_>) -> Result<Parameters, Fault> {
    let mut parameters = Parameters {
        addresses: Vec::new(),
        valid: None,
        ipv4: true,
        ipv6: true,
        zone: None,
    };
    for word in setter.args() {
        let invalid = || Fault::at(word, format!("invalid parameter: {}", word.text()));
        let on_or_off = |text: &[u8]| match text {
            b"on" => Ok(true),
            b"off" => Ok(false),
            _ => Err(invalid()),
        };
        if let Some(time) = word.bytes.strip_prefix(b"valid=") {
            let seconds = parse::time_seconds(time).ok_or_else(invalid)?;
            // Zero means that the TTL of the answers counts, as by default.
            parameters.valid = Some(Duration::from_secs(seconds)).filter(|time| !time.is_zero());
        } else if let Some(text) = word.bytes.strip_prefix(b"ipv4=") {
            parameters.ipv4 = on_or_off(text)?;
        } else if let Some(text) = word.bytes.strip_prefix(b"ipv6=") {
            parameters.ipv6 = on_or_off(text)?;
        } else if let Some(name) = word.bytes.strip_prefix(b"status_zone=") {
            let name = std::str::from_utf8(name)
                .ok()
                .filter(|name| !name.is_empty());
            parameters.zone = Some(name.ok_or_else(invalid)?.into());
        } else {
            // The syntax is checked here, so that errors have nginx's order. Host names are
            // resolved when the configuration is compiled.
            address::parse(&word.bytes).map_err(|text| of_address(word, text))?;
            parameters.addresses.push(word.clone());
        }
    }
    if !parameters.ipv4 && !parameters.ipv6 {
        return Err(Fault::new("\"ipv4\" and \"ipv6\" cannot both be \"off\""));
    }
    if parameters.addresses.is_empty() {
        return Err(Fault::new("no name servers defined"));
    }
    Ok(parameters)
}

/// The error for an invalid address of a `resolver`.
fn of_address(word: &Word, text: &str) -> Fault {
    Fault::at(word, format!("{text} in resolver \"{}\"", word.text()))
}

/// One `resolver`: its servers and the settings of queries.
#[derive(Debug)]
pub struct Resolver {
    /// Queried in turn; without servers, names cannot be resolved.
    servers: Box<[Address]>,
    /// How long answers are cached, overriding their TTL.
    valid: Option<Duration>,
    ipv4: bool,
    ipv6: bool,
    counted: ResolverCounter,
}

impl Feature for Resolver {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&RESOLVER];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Resolver, Fault> {
        let parameters = scope.written(&RESOLVER)?.unwrap_or(Parameters {
            addresses: Vec::new(),
            valid: None,
            ipv4: true,
            ipv6: true,
            zone: None,
        });
        let mut servers = Vec::new();
        for word in &parameters.addresses {
            let fault = |text: &str| of_address(word, text).while_reading();
            let written = address::parse(&word.bytes).map_err(fault)?;
            let found = written.resolve(compiler.files, DEFAULT_PORT);
            servers.extend(found.ok_or_else(|| fault("host not found"))?);
        }
        Ok(Resolver {
            servers: servers.into(),
            valid: parameters.valid,
            ipv4: parameters.ipv4,
            ipv6: parameters.ipv6,
            counted: match &parameters.zone {
                Some(name) => ResolverCounter::of(compiler, name),
                None => ResolverCounter::default(),
            },
        })
    }
}

/// How a scope resolves names: its `resolver`, which scopes below share, and its
/// `resolver_timeout`.
#[derive(Debug)]
pub struct Resolving {
    resolver: Arc<Resolver>,
    timeout: Duration,
}

impl Feature for Resolving {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&RESOLVER, &RESOLVER_TIMEOUT];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Resolving, Fault> {
        Ok(Resolving {
            resolver: compiler.feature(scope)?,
            timeout: scope.get(&RESOLVER_TIMEOUT)?,
        })
    }
}

/// Why a name has no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// A server's answer, or an error that is known without a query, such as for an invalid name.
    Failed(dns::DnsError),
    /// No server answered in time.
    TimedOut,
}

impl fmt::Display for Unresolved {
    /// As in nginx's log lines: `3: Host not found`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unresolved::Failed(failure) => write!(f, "{}: {failure}", *failure as u8),
            Unresolved::TimedOut => write!(f, "{}: Operation timed out", libc::ETIMEDOUT),
        }
    }
}

impl Resolving {
    /// Whether the scope has name servers.
    pub fn is_possible(&self) -> bool {
        !self.resolver.servers.is_empty()
    }

    /// The addresses of a name, at least one, in the order in which to try them: the same order for
    /// all requests that waited for one answer, a random rotation for cache hits.
    pub async fn resolve(
        &self,
        local: &GenerationView,
        name: &[u8],
    ) -> Result<Vec<IpAddr>, Unresolved> {
        let not_found = Unresolved::Failed(dns::DnsError::NotFound);
        let name = dns::HostName::parse(name).ok_or(not_found)?;
        let caches = local.at(&CACHES);
        let cache = caches.borrow_mut().of(&self.resolver);
        let resolving = cache.resolve(name);
        match either(resolving, engine::sleep(self.timeout)).await {
            Either::First(resolved) => resolved.map_err(Unresolved::Failed),
            Either::Second(()) => {
                self.resolver.counted.timed_out();
                Err(Unresolved::TimedOut)
            }
        }
    }
}

/// A server of a service, with the addresses of its name.
#[derive(Debug)]
pub struct ServiceFound {
    /// The SRV record.
    pub server: dns::ServiceServer,
    /// The addresses of the server's name, or why it has none.
    pub addresses: Result<Vec<IpAddr>, Unresolved>,
}

/// Uncached lookups: the caller caches the result for the returned time.
impl Resolving {
    /// The addresses of a name, at least one, and how long they are valid.
    ///
    /// # Errors
    /// See [`Unresolved`].
    pub async fn look_up(&self, name: &[u8]) -> Result<(Vec<IpAddr>, Duration), Unresolved> {
        let not_found = Unresolved::Failed(dns::DnsError::NotFound);
        let name = dns::HostName::parse(name).ok_or(not_found)?;
        self.within_time(self.addresses_of(name)).await
    }

    /// The servers of a service at a name, and how long they are valid. A service without a dot is
    /// a TCP service (RFC 2782): `http` of `example.com` is queried as `_http._tcp.example.com`.
    ///
    /// # Errors
    /// See [`Unresolved`].
    pub async fn look_up_service(
        &self,
        service: &[u8],
        name: &[u8],
    ) -> Result<(Vec<ServiceFound>, Duration), Unresolved> {
        let text = if service.contains(&b'.') {
            [service, b".", name].concat()
        } else {
            [b"_", service, b"._tcp.", name].concat()
        };
        let not_found = Unresolved::Failed(dns::DnsError::NotFound);
        let name = dns::HostName::parse(&text).ok_or(not_found)?;
        let asking = client::ask_for_service(&self.resolver, &name);
        let (servers, ttl) = self.within_time(asking).await?;
        let mut found = Vec::new();
        let mut valid = self.lifetime(Some(ttl));
        let mut servers = servers.into_iter().peekable();
        while servers.peek().is_some() {
            let some = servers.by_ref().take(ASKED_AT_ONCE_MAX);
            let asking = some.map(|server| async move {
                let looked_up = self.within_time(self.addresses_of(server.name.clone()));
                (looked_up.await, server)
            });
            for (looked_up, server) in all(asking).await {
                let addresses = looked_up.map(|(addresses, holds)| {
                    valid = valid.min(holds);
                    addresses
                });
                found.push(ServiceFound { server, addresses });
            }
        }
        Ok((found, valid))
    }

    async fn within_time<T>(
        &self,
        asking: impl Future<Output = Result<T, dns::DnsError>>,
    ) -> Result<T, Unresolved> {
        match either(asking, engine::sleep(self.timeout)).await {
            Either::First(resolved) => resolved.map_err(Unresolved::Failed),
            Either::Second(()) => {
                self.resolver.counted.timed_out();
                Err(Unresolved::TimedOut)
            }
        }
    }

    async fn addresses_of(
        &self,
        mut name: dns::HostName,
    ) -> Result<(Vec<IpAddr>, Duration), dns::DnsError> {
        let mut others = cache::Aliases::default();
        for _ in 0..=dns::ALIASES_MAX {
            let asked = client::ask(&self.resolver, &name, 0, || true).await;
            match asked {
                Some((cache::Resolution::Addresses(addresses), ttl)) => {
                    // Removes duplicates: an address is one server, even if the answer repeats it.
                    let mut once = Vec::new();
                    for address in addresses.iter() {
                        if !once.contains(address) {
                            once.push(*address);
                        }
                    }
                    return Ok((once, self.lifetime(ttl)));
                }
                Some((cache::Resolution::Alias(targets), _)) => name = others.follow(&targets)?,
                Some((cache::Resolution::Failed(failure), _)) => name = others.instead(failure)?,
                None => break,
            }
        }
        Err(dns::DnsError::NotFound)
    }

    /// How long an answer is valid: the time of `valid`, else its TTL.
    fn lifetime(&self, ttl: Option<u32>) -> Duration {
        let said = Duration::from_secs(ttl.unwrap_or(0).into());
        self.resolver.valid.unwrap_or(said)
    }

    /// How long the absence of a name is cached: as in nginx the time of `valid`, else ten seconds.
    pub fn absence(&self) -> Duration {
        const ABSENCE: Duration = Duration::from_secs(10);
        self.resolver.valid.unwrap_or(ABSENCE)
    }

    /// How long a lookup may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }
}

/// The caches of one thread for the resolvers of one generation.
#[derive(Default)]
struct Caches {
    /// By the address of the resolver in memory, which the generation keeps.
    by_resolver: Map<usize, Rc<Cache>>,
}

static CACHES: Slot<Caches, ThreadGeneration> = Slot::new();

impl ThreadState for Caches {
    fn begin(_: &GenerationView) -> Caches {
        Caches::default()
    }
}

impl Caches {
    fn of(&mut self, resolver: &Arc<Resolver>) -> Rc<Cache> {
        let place = Arc::as_ptr(resolver).addr();
        let cache = self.by_resolver.entry(place);
        Rc::clone(cache.or_insert_with(|| Rc::new(Cache::new(resolver))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use engine::net::DatagramSocket;
    use engine::sim::{self, Faults};

    #[test]
    fn the_servers_of_a_service_are_looked_up_at_once() {
        const TIMEOUT: Duration = Duration::from_secs(30);
        let settings = engine::Settings::default();
        let mut runtime = sim::runtime(1, Faults::default(), settings).unwrap();
        let (found, time) = runtime.block_on(async {
            let address = Address::Inet("10.0.0.1:53".parse().unwrap());
            let server = DatagramSocket::bind(&address).unwrap();
            engine::spawn(async move {
                loop {
                    let question = server.recv().await.unwrap();
                    // RFC 2782: the server knows the service, but does not answer for the addresses
                    // of the service's servers.
                    if !question.bytes.ends_with(&[0, 33, 0, 1]) {
                        continue;
                    }
                    let mut answer = question.bytes.to_vec();
                    (answer[2], answer[7]) = (0x80, 3);
                    for name in *b"abc" {
                        answer.extend([0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 60, 0, 9]);
                        answer.extend([0, 0, 0, 1, 0, 80, 1, name, 0]);
                    }
                    server.push(question.with(Bytes::from(answer)));
                    server.start_send();
                }
            });
            let resolver = Resolver {
                servers: [address].into(),
                valid: None,
                ipv4: true,
                ipv6: false,
                counted: ResolverCounter::default(),
            };
            let resolving = Resolving {
                resolver: Arc::new(resolver),
                timeout: TIMEOUT,
            };
            let began = engine::now();
            let found = resolving.look_up_service(b"http", b"site.example").await;
            (found.unwrap().0, engine::now() - began)
        });
        let names = found.iter().map(|one| one.server.name.to_string());
        assert_eq!(names.collect::<Vec<_>>(), ["a", "b", "c"]);
        let timed_out = Err(Unresolved::TimedOut);
        assert!(found.iter().all(|one| one.addresses == timed_out));
        assert!((TIMEOUT..2 * TIMEOUT).contains(&time), "{time:?}");
    }

    /// A server's answer for the addresses of this name in this family: the aliases of the name,
    /// then its addresses.
    fn said(name: &[u8], is_v4: bool) -> (&'static [&'static [u8]], &'static [[u8; 4]]) {
        match (name, is_v4) {
            (b"ok", true) => (&[], &[[10, 0, 0, 9]]),
            (b"same", true) => (&[], &[[10, 0, 0, 7], [10, 0, 0, 7], [10, 0, 0, 9]]),
            (b"dead-end", _) => (&[b"none"], &[]),
            (b"first", true) | (b"second", false) => (&[b"ok"], &[]),
            (b"first", false) | (b"second", true) => (&[b"none"], &[]),
            (b"third", true) => (&[b"dead-end"], &[]),
            (b"third", false) => (&[b"second"], &[]),
            (b"nowhere", true) => (&[b"none"], &[]),
            (b"nowhere", false) => (&[b"dead-end"], &[]),
            (b"one", true) => (&[b"ok"], &[]),
            (b"several", _) => (&[b"none", b"ok"], &[]),
            (b"circle", true) => (&[b"round"], &[]),
            (b"circle", false) => (&[b"circle"], &[]),
            (b"round", _) => (&[b"circle"], &[]),
            _ => (&[], &[]),
        }
    }

    /// The message with that answer.
    fn message(question: &[u8]) -> Vec<u8> {
        let length = usize::from(question[12]);
        let name = &question[13..13 + length];
        let (aliases, addresses) = said(name, question[13 + length + 2] == 1);
        let mut answer = question.to_vec();
        (answer[2], answer[7]) = (0x80, (aliases.len() + addresses.len()) as u8);
        let mut put = |kind: u8, data: &[u8]| {
            answer.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60, 0, data.len() as u8]);
            answer.extend(data);
        };
        for alias in aliases {
            put(5, &[&[alias.len() as u8], *alias, &[0]].concat());
        }
        for address in addresses {
            put(1, address);
        }
        answer
    }

    /// If the families have different aliases, the aliases are followed in turn until one has an
    /// address.
    #[test]
    fn aliases_that_differ_and_addresses_that_do_not() {
        let settings = engine::Settings::default();
        let mut runtime = sim::runtime(1, Faults::default(), settings).unwrap();
        runtime.block_on(async {
            let address = Address::Inet("10.0.0.1:53".parse().unwrap());
            let server = DatagramSocket::bind(&address).unwrap();
            engine::spawn(async move {
                while let Ok(question) = server.recv().await {
                    let answer = message(&question.bytes);
                    server.push(question.with(Bytes::from(answer)));
                    server.start_send();
                }
            });
            let resolver = Arc::new(Resolver {
                servers: [address].into(),
                valid: None,
                ipv4: true,
                ipv6: true,
                counted: ResolverCounter::default(),
            });
            let cache = Rc::new(Cache::new(&resolver));
            let resolving = Resolving {
                resolver,
                timeout: Duration::from_secs(30),
            };
            let found = |last: &[u8]| -> Vec<IpAddr> {
                last.iter()
                    .map(|last| IpAddr::from([10, 0, 0, *last]))
                    .collect()
            };
            for (name, expected) in [
                (&b"ok"[..], &[9][..]),
                (b"first", &[9]),
                (b"second", &[9]),
                (b"third", &[9]),
                (b"one", &[9]),
                (b"several", &[9]),
                (b"dead-end", &[]),
                (b"nowhere", &[]),
                (b"circle", &[]),
                (b"none", &[]),
            ] {
                let shown = name.escape_ascii();
                let expected = match expected {
                    [] => Err(dns::DnsError::NotFound),
                    some => Ok(found(some)),
                };
                // Queried once, then cached.
                for _ in 0..2 {
                    let name = dns::HostName::parse(name).unwrap();
                    assert_eq!(cache.resolve(name).await, expected, "{shown}");
                }
                let looked_up = resolving.look_up(name).await;
                let looked_up = looked_up.map(|(addresses, _)| addresses);
                assert_eq!(looked_up, expected.map_err(Unresolved::Failed), "{shown}");
            }
            // As in nginx, an address is tried as often as the answer repeats it, but counts as one
            // server of an `upstream`.
            let same = dns::HostName::parse(b"same").unwrap();
            assert_eq!(cache.resolve(same).await, Ok(found(&[7, 7, 9])));
            let looked_up = resolving.look_up(b"same").await;
            assert_eq!(
                looked_up.map(|(addresses, _)| addresses),
                Ok(found(&[7, 9]))
            );
        });
    }

    #[test]
    fn failures_in_nginx_words() {
        let failed = |failure| Unresolved::Failed(failure).to_string();
        assert_eq!(failed(dns::DnsError::NotFound), "3: Host not found");
        assert_eq!(failed(dns::DnsError::Server), "2: Server failure");
        assert_eq!(failed(dns::DnsError::Refused), "5: Operation refused");
        assert_eq!(failed(dns::DnsError::Unimplemented), "4: Unimplemented");
        assert_eq!(Unresolved::TimedOut.to_string(), "110: Operation timed out");
    }
}
