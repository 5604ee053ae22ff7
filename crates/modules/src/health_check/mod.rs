//! `health_check`: servers of a group are probed periodically; an unhealthy server gets no
//! requests.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_hc_module.html>, of NGINX Plus. `matching`
//! tests responses, `prober` schedules the probes. The crate `upstream` applies the results to
//! requests. The modules that proxy requests send the probes: `proxy::probe`, `grpc::probe`.

mod matching;
mod prober;

use std::sync::Arc;
use std::time::Duration;

use base::hash::Map;
use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, ScopeId, ScopeRef, Setter, Setting, Word, parse};
use framework::compile::Compiler;
use framework::generation::Generation;
use framework::registry::Registry;
use http::config::plan_builder::PlanBuilder;

use crate::grpc::GrpcPass;
use crate::proxy::Proxy;
use matching::{Match, Matches};
use prober::Prober;
use proxying::upstream::{Groups, HttpUpstreams, WrittenChecks};
use rules::upstream::health_check::{
    Parameter, PeerCheck, Schedule, name_and_value, named_group, without_zone,
};

static HEALTH_CHECK: Setting<HealthCheckLine> = Setting::new(
    "health_check",
    &["[interval=time] [jitter=time] [fails=number] [passes=number] [uri=uri] [mandatory [persistent]] [match=name] [port=number] [type=http | type=grpc [grpc_service=name] [grpc_status=number]] [keepalive_time=time]"],
    HealthCheckLine::read,
)
.contexts(Contexts::LOCATION)
.arity(Arity::at_least(0))
.manual(
    "Asks the servers of the group that `proxy_pass` beside it names whether they are well: each every `interval` (5s) and a \
     chance time up to `jitter` (none), by a request for `uri` (/) that has the location's `proxy_set_header` and time limits. \
     After `fails` (1) failed checks in a row a server gets no requests until it has passed `passes` (1) in a row. \
     A check is passed by an answer that `match` fits, or of status 2xx or 3xx. A server that is new \
     gets requests at once, or where the check is `mandatory` once it has passed; after a reload as well, unless the check is \
     `persistent` and the server was healthy. `port` is that which checks go to in the place of the server's own. \
     With `keepalive_time` a connection serves the checks of that time. The group must have a `zone`. \
     With `type=grpc`, beside `grpc_pass`, a server is asked by gRPC's own health service, about `grpc_service` or as a whole: it must say that \
     it is serving, or end the call with `grpc_status`, such as 12 where it has no such service.",
);

/// The parameters of a `health_check`.
struct HealthCheckLine {
    schedule: Schedule,
    uri: Bytes,
    keepalive_time: Option<Duration>,
    is_grpc: bool,
    grpc_service: Bytes,
    grpc_status: u16,
}

impl Default for HealthCheckLine {
    /// The values of a `health_check` without parameters.
    fn default() -> HealthCheckLine {
        HealthCheckLine {
            schedule: Schedule::default(),
            uri: Bytes::from_static(b"/"),
            keepalive_time: None,
            is_grpc: false,
            grpc_service: Bytes::new(),
            grpc_status: 0,
        }
    }
}

impl HealthCheckLine {
    fn read(setter: &Setter<'_>) -> Result<HealthCheckLine, Fault> {
        let mut written = HealthCheckLine::default();
        for word in setter.args() {
            written
                .take(word)
                .ok_or_else(|| Fault::invalid_parameter(word))?;
        }
        let is_of_http = written.schedule.match_name.is_some() || written.uri != "/";
        let is_of_grpc = !written.grpc_service.is_empty() || written.grpc_status != 0;
        if written.is_grpc && is_of_http || !written.is_grpc && is_of_grpc {
            let text = "\"uri\" and \"match\" are for \"type=http\", \"grpc_service\" and \"grpc_status\" for \"type=grpc\"";
            return Err(Fault::new(text.to_owned()));
        }
        Ok(written)
    }

    /// Parses a parameter; `None` if it is unknown or invalid.
    fn take(&mut self, word: &Word) -> Option<()> {
        match self.schedule.take(word) {
            Parameter::Taken => return Some(()),
            Parameter::Invalid => return None,
            Parameter::Unknown => {}
        }
        match name_and_value(&word.bytes) {
            (b"uri", Some(value))
                if value.first() == Some(&b'/') && !value.iter().any(u8::is_ascii_control) =>
            {
                self.uri = Bytes::copy_from_slice(value);
            }
            (b"keepalive_time", Some(value)) => {
                let time = parse::time_milliseconds(value)?;
                self.keepalive_time = Some(Duration::from_millis(time));
            }
            (b"type", Some(b"http")) => self.is_grpc = false,
            (b"type", Some(b"grpc")) => self.is_grpc = true,
            (b"grpc_service", Some(value)) if !value.is_empty() => {
                self.grpc_service = Bytes::copy_from_slice(value);
            }
            (b"grpc_status", Some(value)) => {
                self.grpc_status = u16::try_from(parse::number_of(value)?).ok()?;
            }
            _ => return None,
        }
        Some(())
    }
}

/// The directives of this module.
pub const DIRECTIVES: &[&dyn Declared] = &[
    &HEALTH_CHECK,
    &matching::MATCH,
    &matching::STATUS,
    &matching::HEADER,
    &matching::BODY,
    &matching::REQUIRE,
];

/// The kinds of probes.
enum ProbeKind {
    /// A request for a URI, whose response must pass the `match` tests.
    Http {
        proxy: Arc<Proxy>,
        uri: Bytes,
        matching: Arc<Match>,
    },
    Grpc {
        pass: Arc<GrpcPass>,
        service: Bytes,
        status: u16,
    },
}

/// A check of the servers of a group.
struct HealthCheck {
    /// What a probe requests, and which response passes.
    asked: ProbeKind,
    check: PeerCheck<HttpUpstreams>,
    /// How long a connection may be reused for probes; `None` if each probe has its own.
    keepalive_time: Option<Duration>,
    /// The location of the check.
    scope: ScopeId,
    /// The `server` block of the check.
    server: ScopeId,
}

/// The checks of all locations.
#[derive(Default)]
struct GatheredChecks {
    /// The index of each check among the checks of its group, by location.
    numbers: Map<ScopeId, usize>,
    /// The compiled checks.
    checks: Vec<Arc<HealthCheck>>,
}

impl Registry for GatheredChecks {}

/// Reads the `match` blocks, and registers the checks of each group, since groups are compiled
/// next.
pub fn prepare(compiler: &Compiler<'_>, http: ScopeRef<'_>) {
    matching::read_all(compiler, http);
    let gathered = compiler.registry::<GatheredChecks>();
    let checks = compiler.registry::<WrittenChecks>();
    for scope in http.tree().scopes() {
        // Errors have already been reported.
        let Ok(Some(written)) = scope.own(&HEALTH_CHECK) else {
            continue;
        };
        let Some(group) = named_group(scope, &["proxy_pass", "grpc_pass"]) else {
            continue;
        };
        let number = checks
            .borrow_mut()
            .add(group, written.schedule.check(scope));
        gathered.borrow_mut().numbers.insert(scope.id(), number);
    }
}

/// Compiles the check of a location.
pub fn register(plan: &mut PlanBuilder<'_>) -> Option<()> {
    match compile(plan.compiler, plan.scope) {
        Ok(check) => {
            let gathered = plan.compiler.registry::<GatheredChecks>();
            gathered.borrow_mut().checks.extend(check.map(Arc::new));
            Some(())
        }
        Err(fault) => {
            plan.compiler.report(fault);
            None
        }
    }
}

fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Option<HealthCheck>, Fault> {
    let Some(written) = scope.own(&HEALTH_CHECK)? else {
        return Ok(None);
    };
    let lines = scope.own_lines(&HEALTH_CHECK.spec);
    let fault = |text: String| match lines.first() {
        Some(line) => Fault::at(&line.name, text),
        None => Fault::new(text),
    };
    let missing = || {
        let (parameter, pass) = if written.is_grpc {
            (" type=grpc", "grpc_pass")
        } else {
            ("", "proxy_pass")
        };
        fault(format!(
            "\"health_check{parameter}\" requires \"{pass}\" to an upstream in the same location"
        ))
    };
    // Errors of `proxy_pass` and `grpc_pass` are reported by their modules.
    let proxy = if written.is_grpc {
        None
    } else {
        Proxy::of_scope(compiler, scope).unwrap_or_default()
    };
    let pass = if written.is_grpc {
        GrpcPass::of_scope(compiler, scope).unwrap_or_default()
    } else {
        None
    };
    let gathered = compiler.registry::<GatheredChecks>();
    let number = gathered.borrow().numbers.get(&scope.id()).copied();
    let groups = compiler.registry::<Groups>();
    let groups = groups.borrow();
    let of_proxy = proxy.as_ref().and_then(|proxy| proxy.group());
    let declared = of_proxy.or(pass.as_ref().and_then(GrpcPass::group));
    let declared = declared.filter(|group| groups.blocks().any(|block| Arc::ptr_eq(block, group)));
    let (Some(group), Some(number)) = (declared.cloned(), number) else {
        return Err(missing());
    };
    if group.zone().is_none() {
        return Err(fault(without_zone(group.name())));
    }
    let matching = match &written.schedule.match_name {
        None => Arc::default(),
        Some(name) => {
            let matches = compiler.registry::<Matches>();
            let known = matches.borrow().find(&name.bytes);
            let text = format!("unknown match \"{}\"", name.text());
            known.ok_or_else(|| Fault::at(name, text).of_missing(&name.text(), &["match"]))?
        }
    };
    let asked = match (proxy, pass) {
        (Some(proxy), _) => ProbeKind::Http {
            proxy,
            uri: written.uri,
            matching,
        },
        (None, Some(pass)) => ProbeKind::Grpc {
            pass: Arc::new(pass),
            service: written.grpc_service,
            status: written.grpc_status,
        },
        (None, None) => return Err(missing()),
    };
    Ok(Some(HealthCheck {
        asked,
        check: PeerCheck {
            group,
            number,
            schedule: written.schedule,
        },
        keepalive_time: written.keepalive_time,
        scope: scope.id(),
        server: server_of(scope),
    }))
}

/// The `server` block of a location.
fn server_of(scope: ScopeRef<'_>) -> ScopeId {
    let mut at = scope;
    while at.context() != Contexts::SERVER {
        match at.parent() {
            Some(parent) => at = parent,
            None => break,
        }
    }
    at.id()
}

/// Runs the checks while the generation is in force.
pub fn add(compiler: &Compiler<'_>, generation: &mut Generation) {
    let gathered = compiler.registries.take::<GatheredChecks>();
    if !gathered.checks.is_empty() {
        generation.services.push(Arc::new(Prober(gathered.checks)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str) -> Word {
        Word {
            bytes: text.as_bytes().into(),
            ..Word::default()
        }
    }

    #[test]
    fn parameters() {
        let taken = |texts: &[&str]| {
            let mut written = HealthCheckLine::default();
            let mut texts = texts.iter();
            texts
                .try_for_each(|text| written.take(&word(text)))
                .map(|()| written)
        };
        let all = taken(&[
            "interval=1500ms",
            "jitter=2",
            "fails=3",
            "passes=4",
            "uri=/x?y=z",
            "mandatory",
            "persistent",
            "port=81",
            "type=http",
            "keepalive_time=60s",
        ])
        .unwrap();
        assert_eq!(
            (all.schedule.interval, all.schedule.jitter),
            (Duration::from_millis(1500), Duration::from_secs(2))
        );
        let schedule = &all.schedule;
        assert_eq!((schedule.fails, schedule.passes), (3, 4));
        assert_eq!(&*all.uri, b"/x?y=z");
        assert!(schedule.mandatory && schedule.persistent);
        assert_eq!(
            (schedule.port, all.keepalive_time),
            (Some(81), Some(Duration::from_secs(60)))
        );
        for wrong in [
            "interval=0",
            "interval=",
            "jitter=x",
            "fails=0",
            "passes=-1",
            "uri=",
            "uri=x",
            "uri=/\n",
            "persistent",
            "mandatory=1",
            "port=0",
            "port=65536",
            "type=tcp",
            "keepalive_time",
            "x",
        ] {
            assert!(taken(&[wrong]).is_none(), "{wrong}");
        }
    }
}
