//! `health_check` in `stream`: servers of a group are probed periodically, with a connection or a
//! datagram; a server that fails gets no sessions.
//!
//! <https://nginx.org/en/docs/stream/ngx_stream_upstream_hc_module.html>, of NGINX Plus. `matching`
//! has the data to send and the expected response, `prober` runs the probes.
//! `rules::upstream::health_check` has the schedule, and applies the results.

mod answers;
mod matching;
mod prober;
mod protocols;

use std::sync::Arc;
use std::time::Duration;

use base::hash::Map;
use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, ScopeId, ScopeRef, Setter, Setting, Word, parse};
use framework::compile::Compiler;
use framework::generation::Generation;
use framework::registry::Registry;
use rules::upstream::WrittenChecks;
use rules::upstream::health_check::{
    Parameter, PeerCheck, Schedule, name_and_value, named_group, without_zone,
};

use crate::plan::{Content, Server};
use crate::proxy::settings::Target;
use crate::upstream::{Groups, OfSessions};
use matching::{AnswerMatch, Matches};
use prober::HealthService;
use protocols::CheckedProtocol;

static HEALTH_CHECK: Setting<HealthCheckLine> = Setting::new(
    "health_check",
    &[
        "[interval=time] [jitter=time] [fails=number] [passes=number] [mandatory [persistent]] \
       [match=name] [type=mysql|postgres|redis|smtp [user=name]] [port=number] [udp]",
    ],
    HealthCheckLine::read,
)
.contexts(Contexts::STREAM_SERVER)
.arity(Arity::at_least(0))
.manual(
    "Asks the servers of the group that `proxy_pass` of the same server names whether they are \
     well: each every `interval` (5s) and a chance time up to `jitter` (none). A server is well \
     that can be connected to, with TLS where `proxy_ssl` is on, and that answers as the block \
     `match` says. After `fails` (1) failed checks in a row it gets no sessions until it has \
     passed `passes` (1) in a row. A server that is new gets sessions at once, or where the check \
     is `mandatory` once it has passed; after a reload as well, unless the check is `persistent` \
     and the server was healthy. `port` is that which checks go to in the place of the server's \
     own. With `type` a server is spoken to by its protocol: one of Redis is sent `PING`, one of \
     PostgreSQL is asked to let `user` (`tidegate`) in and may refuse, those of MySQL and SMTP must \
     greet; a server that says that it starts, ends or has no room fails. With `udp` a datagram is \
     sent, `nginx health check` where `match` says no other: that nothing listens there is a \
     failure, silence is none unless `match` expects an answer. The group must have a `zone`.",
);

static HEALTH_CHECK_TIMEOUT: Setting<Duration> =
    Setting::new("health_check_timeout", &["time"], parse::milliseconds)
        .contexts(Contexts::STREAM.or(Contexts::STREAM_SERVER))
        .default("5s")
        .manual("How long a server that has been connected to may take to pass a health check.");

/// The directives of this module.
pub(crate) const DIRECTIVES: &[&dyn Declared] = &[
    &HEALTH_CHECK,
    &HEALTH_CHECK_TIMEOUT,
    &matching::MATCH,
    &matching::SEND,
    &matching::EXPECT,
];

/// The default user for PostgreSQL.
const USER: &[u8] = b"tidegate";

/// The transport protocol of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ProbeProtocol {
    #[default]
    Tcp,
    Udp,
}

/// A `health_check` directive.
#[derive(Default)]
struct HealthCheckLine {
    schedule: Schedule,
    protocol: ProbeProtocol,
    /// The application protocol, from `type`.
    spoken: Option<CheckedProtocol>,
    /// The user for that protocol.
    user: Option<Bytes>,
}

impl HealthCheckLine {
    fn read(setter: &Setter<'_>) -> Result<HealthCheckLine, Fault> {
        let mut written = HealthCheckLine::default();
        for word in setter.args() {
            match written.schedule.take(word) {
                Parameter::Taken => {}
                Parameter::Unknown if &*word.bytes == b"udp" => {
                    written.protocol = ProbeProtocol::Udp;
                }
                Parameter::Unknown => written.take(word)?,
                Parameter::Invalid => return Err(Fault::invalid_parameter(word)),
            }
        }
        written.check(setter)?;
        Ok(written)
    }

    /// Parses a parameter that only `stream` has.
    fn take(&mut self, word: &Word) -> Result<(), Fault> {
        match name_and_value(&word.bytes) {
            (b"type", Some(name)) => {
                let known = CheckedProtocol::named(name);
                let text = || {
                    format!(
                        "unknown \"{}\" of \"health_check\": mysql, postgres, redis and smtp can \
                         be spoken",
                        word.text()
                    )
                };
                self.spoken = Some(known.ok_or_else(|| Fault::at(word, text()))?);
                Ok(())
            }
            (b"user", Some(name)) if !name.is_empty() && !name.contains(&0) => {
                self.user = Some(Bytes::copy_from_slice(name));
                Ok(())
            }
            _ => Err(Fault::invalid_parameter(word)),
        }
    }

    /// Rejects contradictory parameters.
    fn check(&self, setter: &Setter<'_>) -> Result<(), Fault> {
        let name = &setter.first().name;
        let of_type = self.spoken.is_some();
        if of_type && (self.protocol == ProbeProtocol::Udp || self.schedule.match_name.is_some()) {
            let text = "\"type\" of \"health_check\" excludes \"match\" and \"udp\"";
            return Err(Fault::at(name, text));
        }
        if self.user.is_some() && self.spoken != Some(CheckedProtocol::Postgres) {
            let text = "\"user\" of \"health_check\" wants \"type=postgres\"";
            return Err(Fault::at(name, text));
        }
        Ok(())
    }
}

/// A check of the servers of a group.
struct HealthCheck {
    check: PeerCheck<OfSessions>,
    protocol: ProbeProtocol,
    /// Time limit for the exchange after the connection to the server.
    timeout: Duration,
    /// The data to send and the expected response.
    matching: Arc<AnswerMatch>,
    /// The server whose `proxy_pass` is checked: probes connect with the settings of its sessions.
    server: Arc<Server>,
}

/// The checks of all servers.
#[derive(Default)]
struct GatheredChecks {
    /// The index of each check among those of its group, by server.
    numbers: Map<ScopeId, usize>,
    checks: Vec<Arc<HealthCheck>>,
}

impl Registry for GatheredChecks {}

/// Reads the `match` blocks, and registers the checks of each group, since groups are compiled
/// next.
pub(crate) fn prepare(compiler: &Compiler<'_>, stream: ScopeRef<'_>) {
    matching::read_all(compiler, stream);
    let gathered = compiler.registry::<GatheredChecks>();
    let checks = compiler.registry::<WrittenChecks<OfSessions>>();
    for server in stream.children("server") {
        // Errors have already been reported.
        let Ok(Some(written)) = server.own(&HEALTH_CHECK) else {
            continue;
        };
        let Some(group) = named_group(server, &["proxy_pass"]) else {
            continue;
        };
        let check = written.schedule.check(server);
        let number = checks.borrow_mut().add(group, check);
        gathered.borrow_mut().numbers.insert(server.id(), number);
    }
}

/// Compiles the check of a server, if it has one.
///
/// # Errors
/// If `proxy_pass` names no group with a zone, or there is no `match` with the name.
pub(crate) fn of_server(
    compiler: &Compiler<'_>,
    block: ScopeRef<'_>,
    server: &Arc<Server>,
) -> Result<(), Fault> {
    let Some(written) = block.own(&HEALTH_CHECK)? else {
        return Ok(());
    };
    let schedule = written.schedule;
    let lines = block.own_lines(&HEALTH_CHECK.spec);
    let fault = |text: String| match lines.first() {
        Some(line) => Fault::at(&line.name, text),
        None => Fault::new(text),
    };
    let gathered = compiler.registry::<GatheredChecks>();
    let number = gathered.borrow().numbers.get(&block.id()).copied();
    let groups = compiler.registry::<Groups>();
    let groups = groups.borrow();
    let declared = match &server.content {
        Content::Proxy(proxy) => match &proxy.target {
            Target::Group(group) => Some(group),
            Target::Text(_) => None,
        },
        _ => None,
    };
    let declared = declared.filter(|group| groups.blocks().any(|block| Arc::ptr_eq(block, group)));
    let (Some(group), Some(number)) = (declared.cloned(), number) else {
        let text = "\"health_check\" requires \"proxy_pass\" to an upstream in the same server";
        return Err(fault(text.to_owned()));
    };
    if group.zone().is_none() {
        return Err(fault(without_zone(group.name())));
    }
    let matching = match (&schedule.match_name, written.spoken) {
        (_, Some(spoken)) => {
            let user = written.user.as_deref().unwrap_or(USER);
            Arc::new(AnswerMatch::of_protocol(spoken, user))
        }
        (None, None) => Arc::default(),
        (Some(name), None) => {
            let matches = compiler.registry::<Matches>();
            let known = matches.borrow().find(&name.bytes);
            let text = format!("unknown match \"{}\"", name.text());
            known.ok_or_else(|| Fault::at(name, text).of_missing(&name.text(), &["match"]))?
        }
    };
    gathered.borrow_mut().checks.push(Arc::new(HealthCheck {
        check: PeerCheck {
            group,
            number,
            schedule,
        },
        protocol: written.protocol,
        timeout: block.get(&HEALTH_CHECK_TIMEOUT)?,
        matching,
        server: Arc::clone(server),
    }));
    Ok(())
}

/// Runs the checks while the generation is in force.
pub(crate) fn add(compiler: &Compiler<'_>, generation: &mut Generation) {
    let gathered = compiler.registries.take::<GatheredChecks>();
    if !gathered.checks.is_empty() {
        generation
            .services
            .push(Arc::new(HealthService(gathered.checks)));
    }
}
