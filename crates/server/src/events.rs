//! The `events` block: engine and connections.
//!
//! <https://nginx.org/en/docs/ngx_core_module.html#events>

use conf::{Contexts, Declared, Fault, Inherit, Reload, ScopeRef, Setter, Setting, Word, parse};
use engine::EngineKind;
use framework::compile::{Compiler, Feature};
use framework::network::{DebugConnections, Peers};

static EVENTS: Setting<()> = Setting::new("events", &["{ ... }"], |_| Ok(()))
    .contexts(Contexts::MAIN)
    .block()
    .opens(Contexts::EVENTS)
    .inherit(Inherit::Never)
    .manual("The block of what concerns connections in general.");

static WORKER_CONNECTIONS: Setting<u64> =
    Setting::new("worker_connections", &["number"], connections)
        .contexts(Contexts::EVENTS)
        .default("512")
        .reload(Reload::NewProcess)
        .manual(
            "How many connections one worker thread holds, those to upstreams among them. Where few are left, idle ones \
             are closed; where none is, a request that needs an upstream is answered with 500.",
        );

static USE: Setting<Option<EngineKind>> = Setting::new("use", &["epoll | io_uring"], engine_kind)
    .contexts(Contexts::EVENTS)
    .reload(Reload::NewProcess)
    .manual("The engine of the worker threads. Without it the best that works here is chosen, and the log says why.");

static MULTI_ACCEPT: Setting<bool> = Setting::new("multi_accept", &["on | off"], parse::flag)
    .contexts(Contexts::EVENTS)
    .default("off")
    .reload(Reload::NewProcess)
    .manual("Takes all waiting connections at once instead of one at a time.");

static ACCEPT_MUTEX: Setting<bool> = Setting::new("accept_mutex", &["on | off"], parse::flag)
    .contexts(Contexts::EVENTS)
    .default("off")
    .no_effect("the kernel wakes one thread a connection, so there is nothing to take turns for")
    .manual("Makes nginx's workers take turns in accepting.");

static ACCEPT_MUTEX_DELAY: Setting<std::time::Duration> =
    Setting::new("accept_mutex_delay", &["time"], parse::milliseconds)
        .contexts(Contexts::EVENTS)
        .default("500ms")
        .no_effect("there is no accept mutex")
        .manual("How long nginx's workers wait for their turn in accepting.");

static DEBUG_CONNECTION: Setting<Vec<Word>> = Setting::new(
    "debug_connection",
    &["address | CIDR | name | unix:"],
    |setter| Ok(Peers::words(setter)),
)
.contexts(Contexts::EVENTS)
.inherit(Inherit::List)
.manual(
    "Logs everything about connections from these clients, debug lines among them, to every error log in force, \
     whatever its level. Who is a client is told by the connection's own address.",
);

fn connections(setter: &Setter<'_>) -> Result<u64, Fault> {
    let word = setter.word()?;
    let invalid = || Fault::at(word, format!("invalid number \"{}\"", word.text()));
    parse::number_of(&word.bytes).ok_or_else(invalid)
}

fn engine_kind(setter: &Setter<'_>) -> Result<Option<EngineKind>, Fault> {
    let word = setter.word()?;
    match &*word.bytes {
        b"epoll" => Ok(Some(EngineKind::Epoll)),
        b"io_uring" => Ok(Some(EngineKind::Uring)),
        _ => Err(Fault::at(
            word,
            format!("invalid event type \"{}\"", word.text()),
        )),
    }
}

/// The compiled `events` block.
pub struct Events {
    /// `use`.
    pub engine: Option<EngineKind>,
    /// `worker_connections`.
    pub connections: usize,
    /// `multi_accept`.
    pub multi_accept: bool,
    /// `debug_connection`.
    pub debug_connections: DebugConnections,
}

impl Feature for Events {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &EVENTS,
        &WORKER_CONNECTIONS,
        &USE,
        &MULTI_ACCEPT,
        &DEBUG_CONNECTION,
        &ACCEPT_MUTEX,
        &ACCEPT_MUTEX_DELAY,
    ];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Events, Fault> {
        let connections = scope.get(&WORKER_CONNECTIONS)?;
        if connections == 0 {
            return Err(Fault::new(
                "invalid value \"0\" in \"worker_connections\" directive",
            ));
        }
        Ok(Events {
            engine: scope.written(&USE)?.flatten(),
            connections: connections as usize,
            multi_accept: scope.get(&MULTI_ACCEPT)?,
            debug_connections: DebugConnections(Peers::compile(
                &scope.written(&DEBUG_CONNECTION)?.unwrap_or_default(),
                "debug_connection",
                compiler.files,
            )?),
        })
    }
}

/// The `events` block of a configuration, or its root where there is none.
pub fn scope(root: ScopeRef<'_>) -> ScopeRef<'_> {
    root.children("events").next().unwrap_or(root)
}
