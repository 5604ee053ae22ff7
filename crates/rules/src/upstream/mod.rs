//! `upstream`: groups of servers to which requests are passed on.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_module.html>. A block is compiled into a group
//! of the crate `upstream`, which chooses the peer of an attempt, counts results, and pools
//! connections; reloads keep this state. `servers` parses lines of `server`, `methods` the
//! balancing method, `failover` the handling of failing servers, `limit` the concurrency limit,
//! `keepalive` the settings of idle connections; `groups` contains the table in which `proxy_pass`
//! looks up groups.
//!
//! `lookups` resolves names repeatedly, `state` reads and writes a file with the servers of a
//! group, and `checks` collects the health checks that other modules declare. [`Upstreams`]
//! describes the differences between protocols.

mod checks;
mod failover;
mod groups;
pub mod health_check;
mod keepalive;
mod limit;
mod lookups;
mod methods;
mod protocol;
mod servers;
pub mod socket;
mod state;
pub mod sticky;

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use ::upstream::{PeerSide, Queueing, Remembered, Roster};
use bytes::Bytes;
use conf::{Arity, Declared, Fault, Inherit, Line, ScopeRef, Setter, Setting, Word, parse};
use framework::compile::Compiler;
use framework::zone::{SIZE_MIN, State, ZoneError, ZoneFactSink};
use transport::resolver::Resolving;

pub use checks::WrittenChecks;
pub use groups::{Block, Blocks, Group, Groups, add, literal, of_address};
use lookups::GroupLookup;
use methods::Supported;
pub use methods::{LEAST_TIME, timed};
use protocol::BLOCKS;
pub use protocol::{Servers, Upstreams};
use servers::Server;
pub use servers::{hash_of, host_of, route_of};

/// The setting only declares the directive: [`Server::parse`](servers::Server::parse) parses the
/// lines, because the allowed parameters depend on the balancing method before the line.
static SERVER: Setting<()> = Setting::new(
    "server",
    &["address [weight=number] [max_conns=number] [max_fails=number] [fail_timeout=time] [slow_start=time] [resolve] [service=name] [backup] [down | drain] [route=name] [id=number]"],
    parse::nothing,
)
.contexts(BLOCKS)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.manual(
    "A server of the group: HOST[:PORT] or unix:PATH; a name stands for all its addresses. It \
     gets `weight` (1) parts of the requests, and no more than `max_conns` at a time (0 is no limit). After `max_fails` (1) failed tries within \
     `fail_timeout` (10s) it gets none for that time; `max_fails=0` never gives it up. With `slow_start` \
     its weight grows within that time from nothing to what it is, once it gets requests again: after failed tries, or after a health check. A `backup` \
     is asked when all others are out; `down` takes it out for good, `drain` for all but those requests that `sticky` has \
     bound to it. `route` is the name that `sticky` knows it by, `id` a number of its own that `metrics` shows it with. With `resolve` the addresses of a name are \
     looked up again and again, by the group's `resolver`; with `service` its servers as well (SRV).",
);

static ZONE: Setting<ZoneLine> = Setting::new("zone", &["name [size]"], zone_line)
    .contexts(BLOCKS)
    .arity(Arity::between(1, 2))
    .manual("A name for what is known of the group's servers, and the size of nginx's memory for it. All threads know it and reloads keep it without that, too.");

static QUEUE: Setting<Queueing> = Setting::new("queue", &["number [timeout=time]"], queue)
    .contexts(BLOCKS)
    .arity(Arity::between(1, 2))
    .manual("How many requests wait while every server of the group has as many as it may have (`max_conns`) or is out, and for how long each (60s). One that finds no room, or waits for too long, is answered with 502. Where `concurrency_limit` is written, those wait who are over it as well: for 8s unless `timeout` says otherwise, and the answer is 503 with `Retry-After`.");

fn queue(setter: &Setter<'_>) -> Result<Queueing, Fault> {
    let number = setter.word()?;
    let length = parse::number_of(&number.bytes).filter(|length| *length > 0);
    let length = length.ok_or_else(|| Fault::invalid_value(number))?;
    let timeout = match setter.args().get(1) {
        None => None,
        Some(word) => {
            let time = word.bytes.strip_prefix(b"timeout=");
            let time = time.and_then(parse::time_milliseconds);
            let time = time.ok_or_else(|| Fault::invalid_parameter(word))?;
            Some(Duration::from_millis(time))
        }
    };
    Ok(Queueing {
        length: usize::try_from(length).unwrap_or(usize::MAX),
        timeout,
    })
}

struct ZoneLine {
    name: String,
    /// The size in bytes; `None` if the `zone` of another block sets it.
    size: Option<u64>,
}

fn zone_line(setter: &Setter<'_>) -> Result<ZoneLine, Fault> {
    let name = setter.word()?;
    if name.bytes.is_empty() {
        let text = format!("invalid zone name \"{}\"", name.text());
        return Err(Fault::at(name, text));
    }
    let size = match setter.args().get(1) {
        None => None,
        Some(word) => {
            let invalid = || Fault::at(word, format!("invalid zone size \"{}\"", word.text()));
            let size = parse::size_of(&word.bytes).ok_or_else(invalid)?;
            if size < SIZE_MIN {
                let text = format!("zone \"{}\" is too small", name.text());
                return Err(Fault::at(name, text));
            }
            Some(size)
        }
    };
    Ok(ZoneLine {
        name: name.text().into_owned(),
        size,
    })
}

/// The directives inside an `upstream` block.
pub const DIRECTIVES: &[&dyn Declared] = &[
    &SERVER,
    &state::STATE,
    &ZONE,
    &methods::HASH,
    &methods::IP_HASH,
    &methods::LEAST_CONN,
    &methods::LEAST_TIME,
    &methods::RANDOM,
    &methods::P2C,
    &failover::RETRY_BUDGET,
    &failover::EJECT_OUTLIERS,
    &limit::CONCURRENCY_LIMIT,
    &QUEUE,
    &keepalive::KEEPALIVE,
    &keepalive::KEEPALIVE_REQUESTS,
    &keepalive::KEEPALIVE_TIME,
    &keepalive::KEEPALIVE_TIMEOUT,
];

/// A name that `zone` has declared. The zone itself has no state: the groups contain the state of
/// their servers.
struct ZoneName<U>(PhantomData<U>);

impl<U: Upstreams> State for ZoneName<U> {
    const KIND: &'static str = "upstream_zone";

    type Settings = ();

    fn new(_: u64) -> ZoneName<U> {
        ZoneName(PhantomData)
    }

    fn describe(&self, (): &(), _: &mut ZoneFactSink<'_>) {}
}

/// Compiles all `upstream` blocks of a scope. Must be called before directives that refer to the
/// blocks are compiled, because a block may come after its use.
pub fn compile<U: Upstreams>(compiler: &Compiler<'_>, scope: ScopeRef<'_>) {
    for block in scope.children("upstream") {
        if let Err(fault) = declare::<U>(compiler, block) {
            compiler.report(fault);
        }
    }
    // The size of a block's zone may be set by a later block.
    for block in scope.children("upstream") {
        if let Ok(Some(line)) = block.own(&ZONE)
            && let Err(text) = compiler.zones.borrow().find::<ZoneName<U>>(&line.name)
        {
            compiler.report(Fault::new(text).of_missing(&line.name, &["zone"]));
        }
    }
}

fn declare<U: Upstreams>(compiler: &Compiler<'_>, block: ScopeRef<'_>) -> Result<(), Fault> {
    let Some((line, [name])) = block.line().map(|line| (line, line.args.as_slice())) else {
        return Ok(()); // the arity has been checked
    };
    let groups = compiler.registry::<Groups<U>>();
    let mut groups = groups.borrow_mut();
    if groups.declared(&name.bytes).is_some() {
        let text = format!("duplicate upstream \"{}\"", name.text());
        return Err(Fault::at(name, text).while_reading());
    }
    let chosen = methods::read::<U>(compiler, block).map_err(Fault::while_reading)?;
    let own = block.own_lines(&SERVER.spec);
    let of_file = state::servers(compiler, block, &own).map_err(Fault::while_reading)?;
    let lines: Vec<(&Line, Supported)> = match &of_file {
        None => {
            let own = own.iter().copied();
            own.map(|line| (line, chosen.supported_at(line))).collect()
        }
        Some(lines) => lines
            .iter()
            .map(|line| (line, chosen.supported()))
            .collect(),
    };
    if lines.is_empty() && of_file.is_none() {
        // As in nginx, reported at the end of the block and after faults of its lines: a faulty
        // `server` may be the reason.
        let fault = Fault::new("no servers are inside upstream").or_at(line.end());
        let fault = fault.with_related(line.position, "the block is opened here");
        return Err(fault.while_reading());
    }
    let (mut primary, mut backup, mut hosts) = (Vec::new(), Vec::new(), Vec::new());
    let (mut numbers, mut unresolved) = (Vec::new(), Vec::new());
    let checks = compiler.registry::<WrittenChecks<U>>();
    let checks = checks.borrow().of(&name.bytes);
    for (line, supported) in lines {
        let server = Server::parse(line, supported, U::SERVERS);
        let mut server = server.map_err(|fault| fault.or_at(line.position).while_reading())?;
        server.checks.clone_from(&checks);
        if let Some(number) = server.number {
            if numbers.contains(&number) {
                let fault = Fault::new(format!("duplicate server id \"{number}\""));
                return Err(fault.or_at(line.position).while_reading());
            }
            numbers.push(number);
        }
        if let Some(host) = server.host().map_err(Fault::while_reading)? {
            hosts.push(host);
            continue;
        }
        let peers = match server.peers(compiler.files) {
            Ok(peers) => peers,
            Err(fault) => {
                // Every host that is not found is reported, in the order of the lines.
                unresolved.push(fault.while_reading());
                continue;
            }
        };
        if server.backup {
            backup.extend(peers)
        } else {
            primary.extend(peers)
        }
    }
    if let Some(last) = unresolved.pop() {
        unresolved
            .into_iter()
            .for_each(|fault| compiler.report(fault));
        return Err(last);
    }
    let has_primary = !primary.is_empty() || hosts.iter().any(|host| host.side == PeerSide::Peers);
    if !has_primary && of_file.is_none() {
        // nginx reports this at the end of the configuration.
        let text = format!("no servers in upstream \"{}\"", name.text());
        return Err(Fault::at(&line.name, text));
    }
    let zone = block.own(&ZONE)?;
    if let Some(zone) = &zone {
        let lines = block.own_lines(&ZONE.spec);
        name_zone::<U>(compiler, zone).map_err(|fault| match lines.first() {
            Some(line) => fault.or_at(line.position).while_reading(),
            None => fault.while_reading(),
        })?;
    }
    let sticky = U::sticky(compiler, block, &name.text())?;
    let resolving = if hosts.is_empty() {
        // The API may add hosts to a group with a zone, if the group has a resolver.
        let resolving = compiler.feature::<Resolving>(block)?;
        Some(resolving).filter(|resolving| zone.is_some() && resolving.is_possible())
    } else {
        Some(resolving(compiler, block, name)?)
    };
    let lookup = Arc::clone(&groups.thread);
    let roster = Roster::new(primary, backup, chosen.method, hosts);
    let roster = roster
        .with_checks(checks)
        .looked_up_by(resolving.is_some().then_some(lookup))
        .kept_by(state::kept(compiler, block, U::SERVERS.default_port)?);
    let roster = Arc::new(roster);
    remember::<U>(compiler, &name.text(), &roster)?;
    if let Some(resolving) = resolving {
        let roster = Arc::clone(&roster);
        groups.lookups.push(GroupLookup { roster, resolving });
    }
    let name = Bytes::copy_from_slice(&name.bytes);
    let mut group = ::upstream::Group::new(
        name,
        roster,
        U::KEEPS_CONNECTIONS
            .then(|| keepalive::kept(block))
            .transpose()?
            .flatten(),
    );
    group.is_editable = zone.is_some();
    group.queueing = block.own(&QUEUE)?;
    group.concurrency = block.own(&limit::CONCURRENCY_LIMIT)?;
    group.retry_budget = block.own(&failover::RETRY_BUDGET)?;
    group.outliers = block.own(&failover::EJECT_OUTLIERS)?;
    let sticky = sticky.filter(|_| chosen.keeps_sessions);
    let group = Group::by(group, chosen.key).with_sessions(sticky);
    groups.add(None, group.in_zone(zone.map(|zone| zone.name.into())));
    Ok(())
}

/// The resolver for the names of a block: `resolver` must be set and, as in nginx, `zone` too.
fn resolving(
    compiler: &Compiler<'_>,
    block: ScopeRef<'_>,
    name: &Word,
) -> Result<Arc<Resolving>, Fault> {
    let fault = |text: String| Err(Fault::at(name, text));
    let shown = name.text();
    if block.own(&ZONE)?.is_none() {
        return fault(format!(
            "resolving names at run time requires upstream \"{shown}\" to be in shared memory"
        ));
    }
    let resolving = compiler.feature::<Resolving>(block)?;
    if !resolving.is_possible() {
        return fault(format!(
            "no resolver defined to resolve names at run time in upstream \"{shown}\""
        ));
    }
    Ok(resolving)
}

/// Declares the zone of a `zone` line with a size. Several blocks may share a zone.
fn name_zone<U: Upstreams>(compiler: &Compiler<'_>, line: &ZoneLine) -> Result<(), Fault> {
    let Some(size) = line.size else {
        return Ok(());
    };
    let mut zones = compiler.zones.borrow_mut();
    match zones.declare::<ZoneName<U>>(&line.name, size, ()) {
        Ok(_) | Err(ZoneError::Declared(_)) => Ok(()),
        Err(ZoneError::Conflict(text)) => Err(Fault::new(text)),
    }
}

/// Declares the internal zone by which the next generation finds the state of the peers. The zone's
/// name contains a space, so that no configured zone can have this name.
fn remember<U: Upstreams>(
    compiler: &Compiler<'_>,
    name: &str,
    roster: &Arc<Roster>,
) -> Result<(), Fault> {
    let zone = format!("{} upstream {}", U::BLOCK, name.to_ascii_lowercase());
    let mut zones = compiler.zones.borrow_mut();
    match zones.declare::<Remembered>(&zone, SIZE_MIN, Arc::clone(roster)) {
        // a second block with the name has been refused
        Ok(_) | Err(ZoneError::Declared(_)) => Ok(()),
        Err(ZoneError::Conflict(text)) => Err(Fault::new(text)),
    }
}
