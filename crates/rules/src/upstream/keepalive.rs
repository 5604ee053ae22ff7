//! `keepalive` and related directives: how many idle connections to the servers of a group are kept
//! for later requests, and for how long.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#keepalive>

use std::time::Duration;

use ::upstream::Keepalive;
use conf::{Arity, Contexts, Fault, ScopeRef, Setter, Setting, parse};

pub(super) static KEEPALIVE: Setting<(usize, bool)> =
    Setting::new("keepalive", &["connections [local]"], keepalive)
        .contexts(Contexts::UPSTREAM)
        .arity(Arity::between(1, 2))
        .manual("How many idle connections to the group's servers each thread keeps at most; 0 keeps none. With `local`, as without this line, only requests of the same location use one again.");

pub(super) static KEEPALIVE_REQUESTS: Setting<u64> =
    Setting::new("keepalive_requests", &["number"], parse::number)
        .contexts(Contexts::UPSTREAM)
        .default("1000")
        .manual("How many requests go over one connection to a server of the group.");

pub(super) static KEEPALIVE_TIME: Setting<Duration> = Setting::new(
    "keepalive_time",
    &["time"],
    parse::milliseconds,
)
.contexts(Contexts::UPSTREAM)
.default("1h")
.manual(
    "How old a connection to a server of the group may be when it is kept for another request.",
);

pub(super) static KEEPALIVE_TIMEOUT: Setting<Duration> =
    Setting::new("keepalive_timeout", &["timeout"], parse::milliseconds)
        .contexts(Contexts::UPSTREAM)
        .default("60s")
        .manual("How long a connection to a server of the group may be idle.");

/// Parses a line of `keepalive`: the number of connections, and whether `local` is set.
fn keepalive(setter: &Setter<'_>) -> Result<(usize, bool), Fault> {
    let connections = setter.word()?;
    let Some(most) = parse::number_of(&connections.bytes) else {
        let text = format!(
            "invalid value \"{}\" in \"keepalive\" directive",
            connections.text()
        );
        return Err(Fault::at(connections, text));
    };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    match setter.args().get(1) {
        Some(word) if &*word.bytes != b"local" => Err(Fault::invalid_parameter(word)),
        local => Ok((most, local.is_some())),
    }
}

/// The settings of a block for idle connections; `None` if no connections are kept.
pub(super) fn kept(block: ScopeRef<'_>) -> Result<Option<Keepalive>, Fault> {
    let default = Keepalive::default();
    let (connections, local) = block
        .own(&KEEPALIVE)?
        .unwrap_or((default.connections, default.local));
    let keepalive = Keepalive {
        connections,
        local,
        requests: block.get(&KEEPALIVE_REQUESTS)?,
        time: block.get(&KEEPALIVE_TIME)?,
        timeout: block.get(&KEEPALIVE_TIMEOUT)?,
    };
    Ok((connections > 0).then_some(keepalive))
}
