//! The `events` block: the engine of worker threads and their connections.
//!
//! <https://nginx.org/en/docs/ngx_core_module.html#events>

use conf::{Contexts, Declared, Fault, Inherit, Reload, ScopeRef, Setter, Setting, Word, parse};
use engine::EngineKind;
use engine::xdp::{Mode as XdpMode, Profile as XdpProfile};
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

static USE: Setting<Option<EngineKind>> =
    Setting::new("use", &["epoll | io_uring | xdp"], engine_kind)
        .contexts(Contexts::EVENTS)
        .reload(Reload::NewProcess)
        .manual(
            "The engine of the worker threads. Without it the best that works here is chosen, and the log says why. \
             With `xdp` connections that come by an `xdp_interface` pass the kernel by, and all others are epoll's.",
        );

static XDP_INTERFACE: Setting<Vec<Word>> =
    Setting::new("xdp_interface", &["name ..."], |setter| Ok(setter.args().to_vec()))
        .arity(conf::Arity::at_least(1))
        .contexts(Contexts::EVENTS)
        .reload(Reload::NewProcess)
        .manual(
            "The network interfaces whose TCP connections `use xdp` takes from the kernel: those to the addresses \
             that the interface has and a `listen` names, over IPv4. Where an interface cannot be used so, \
             the log says why, and the kernel has its connections as always.",
        );

static XDP_MODE: Setting<XdpMode> = Setting::new("xdp_mode", &["auto | native | generic"], xdp_mode)
    .contexts(Contexts::EVENTS)
    .default("auto")
    .reload(Reload::NewProcess)
    .manual(
        "Where frames of an `xdp_interface` are taken: in its driver (`native`), or behind it (`generic`), which every \
         driver can and which is slower. `auto` is `native` where the driver can.",
    );

static XDP_PROFILE: Setting<XdpProfile> =
    Setting::new("xdp_profile", &["balanced | latency"], xdp_profile)
        .contexts(Contexts::EVENTS)
        .default("balanced")
        .reload(Reload::NewProcess)
        .manual(
            "How worker threads learn that frames of an `xdp_interface` have come. With `balanced` the card interrupts, \
             the kernel fetches frames, and an idle thread sleeps. With `latency` the thread asks the card all the time, \
             which takes a whole core for each thread that has a queue, and interrupts are put off meanwhile. The log says \
             what of that the machine cannot do.",
        );

static XDP_REQUIRED: Setting<bool> = Setting::new("xdp_required", &["on | off"], parse::flag)
    .contexts(Contexts::EVENTS)
    .default("off")
    .reload(Reload::NewProcess)
    .manual(
        "Refuses to start where an `xdp_interface` cannot be used. Without it the kernel serves its connections then.",
    );

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

static XDP_BYPASS_FIREWALL: Setting<bool> =
    Setting::new("xdp_bypass_firewall", &["on | off"], parse::flag)
        .contexts(Contexts::EVENTS)
        .default("off")
        .reload(Reload::NewProcess)
        .manual(
            "Takes connections of an `xdp_interface` from the kernel although nftables or iptables have rules for what \
             comes in. These are not asked then, nor do conntrack, `tcpdump` and `ss` see the connections; `allow`, \
             `deny`, limits and logs are as always. Without it such an interface stays with the kernel.",
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
        b"xdp" => Ok(Some(EngineKind::Xdp)),
        _ => Err(Fault::at(
            word,
            format!("invalid event type \"{}\"", word.text()),
        )),
    }
}

fn xdp_mode(setter: &Setter<'_>) -> Result<XdpMode, Fault> {
    let word = setter.word()?;
    match &*word.bytes {
        b"auto" => Ok(XdpMode::Auto),
        b"native" => Ok(XdpMode::Native),
        b"generic" => Ok(XdpMode::Generic),
        _ => Err(Fault::at(
            word,
            format!("invalid value \"{}\"", word.text()),
        )),
    }
}

fn xdp_profile(setter: &Setter<'_>) -> Result<XdpProfile, Fault> {
    let word = setter.word()?;
    match &*word.bytes {
        b"balanced" => Ok(XdpProfile::Balanced),
        b"latency" => Ok(XdpProfile::Latency),
        _ => Err(Fault::at(
            word,
            format!("invalid value \"{}\"", word.text()),
        )),
    }
}

/// The settings of `use xdp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xdp {
    /// The value of `xdp_interface`: at least one interface, without duplicates.
    pub interfaces: Vec<String>,
    /// The value of `xdp_mode`.
    pub mode: XdpMode,
    /// The value of `xdp_profile`.
    pub profile: XdpProfile,
    /// The value of `xdp_required`.
    pub is_required: bool,
    /// The value of `xdp_bypass_firewall`.
    pub bypasses_firewall: bool,
}

impl Xdp {
    fn compile(scope: ScopeRef<'_>, engine: Option<EngineKind>) -> Result<Option<Xdp>, Fault> {
        let interfaces = scope.written(&XDP_INTERFACE)?.unwrap_or_default();
        match (engine, interfaces.first()) {
            (Some(EngineKind::Xdp), None) => {
                return Err(Fault::new("\"use xdp\" needs an \"xdp_interface\""));
            }
            (Some(EngineKind::Xdp), Some(_)) => {}
            (_, Some(first)) => {
                return Err(Fault::at(first, "\"xdp_interface\" needs \"use xdp\""));
            }
            (_, None) => return Ok(None),
        }
        for (place, word) in interfaces.iter().enumerate() {
            let text = word.text();
            if text.is_empty() || text.len() > INTERFACE_NAME_MAX || text.contains(['/', '\0']) {
                return Err(Fault::at(word, format!("invalid interface \"{text}\"")));
            }
            if interfaces
                .iter()
                .take(place)
                .any(|other| other.bytes == word.bytes)
            {
                return Err(Fault::at(word, format!("duplicate interface \"{text}\"")));
            }
        }
        Ok(Some(Xdp {
            interfaces: interfaces
                .iter()
                .map(|word| word.text().into_owned())
                .collect(),
            mode: scope.get(&XDP_MODE)?,
            profile: scope.get(&XDP_PROFILE)?,
            is_required: scope.get(&XDP_REQUIRED)?,
            bypasses_firewall: scope.get(&XDP_BYPASS_FIREWALL)?,
        }))
    }
}

/// Maximum length of a network interface's name in Linux, in bytes.
const INTERFACE_NAME_MAX: usize = 15;

/// The compiled `events` block.
pub struct Events {
    /// The engine that `use` selects; `None` without `use`.
    pub engine: Option<EngineKind>,
    /// The settings of `use xdp`; `None` for other engines.
    pub xdp: Option<Xdp>,
    /// The value of `worker_connections`, per worker thread; at least 1.
    pub connections: usize,
    /// The value of `multi_accept`.
    pub multi_accept: bool,
    /// The clients of `debug_connection`.
    pub debug_connections: DebugConnections,
}

impl Feature for Events {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &EVENTS,
        &WORKER_CONNECTIONS,
        &USE,
        &XDP_INTERFACE,
        &XDP_MODE,
        &XDP_PROFILE,
        &XDP_REQUIRED,
        &XDP_BYPASS_FIREWALL,
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
        let engine = scope.written(&USE)?.flatten();
        Ok(Events {
            engine,
            xdp: Xdp::compile(scope, engine)?,
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

/// The `events` block of a configuration, or its root if there is no such block.
pub fn scope(root: ScopeRef<'_>) -> ScopeRef<'_> {
    root.children("events").next().unwrap_or(root)
}
