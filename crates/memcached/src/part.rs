//! The `memcached` block of a configuration: its directives, and their compilation into servers.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use conf::{
    Arity, Contexts, Declared, Diagnostic, Fault, Inherit, ScopeRef, Setter, Setting, Word, parse,
};
use engine::net::Address;
use framework::compile::{Compiler, Feature as _};
use framework::connection_handler::{ConnectionHandler, ListenerId};
use framework::generation::Generation;
use framework::places::{FileAccess, name_of};
use framework::protocol_part::{CompiledPart, Directives, ListenSocket, ProtocolPart};
use framework::zone::{SIZE_MIN, Zone, ZoneError};
use logs::ErrorLog;
use rules::access::{self, Access};
use rules::access_log::{ACCESS_LOG, AccessLogs};
use rules::limit_conn::{self, LimitConn};
use rules::session_zones::{SessionBlock, SessionZones};
use transport::listen::{self, Listen, ListenLine, OptionSupport};
use transport::tls::settings::TlsSettings;
use transport::tls::verify::Mode;
use variables::TableBuilder;

use crate::auth::{ServerAuth, UserPasswords};
use crate::connection_handler::{self, CacheOf, MemcachedPart, Server};
use crate::session::{Session, VARIABLES};
use crate::state::StateKeeper;
use crate::sweeper::Sweeper;
use crate::tls::ClientTls;
use crate::zone::{ZoneSettings, ZonedCache};

/// The protocol part that serves memcached's protocols.
pub const MEMCACHED: &dyn ProtocolPart = &Block;

const CONTEXTS: Contexts = Contexts::MEMCACHED.or(Contexts::MEMCACHED_SERVER);

/// The default port of `listen`.
const PORT: u16 = 11211;

/// The name of a zone whose line names none.
const DEFAULT_ZONE: &str = "memcached";

/// Minimum size of a cache in bytes, as in memcached.
const ZONE_SIZE_MIN: u64 = 1 << 20;

static BLOCK: Setting<()> = Setting::new("memcached", &["{ ... }"], parse::nothing)
    .contexts(Contexts::MAIN)
    .block()
    .opens(Contexts::MEMCACHED)
    .inherit(Inherit::Never)
    .manual("The block of servers that answer memcached's clients.");

static SERVER: Setting<()> = Setting::new("server", &["{ ... }"], parse::nothing)
    .contexts(Contexts::MEMCACHED)
    .block()
    .opens(Contexts::MEMCACHED_SERVER)
    .manual("A memcached server, reached at the addresses of its `listen` lines.");

static LISTEN: Setting<Vec<ListenLine<OwnOptions>>> = Setting::new(
    "listen",
    &[
        "address[:port] [options]",
        "port [options]",
        "unix:path [options]",
    ],
    |setter| {
        let lines = setter.lines().iter();
        lines
            .map(|line| listen::line(line, PORT, take_option))
            .collect()
    },
)
.contexts(Contexts::MEMCACHED_SERVER)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.manual(
    "An address that the server is reached at, port 11211 unless written. With `ssl` clients speak \
     TLS. Options: bind, backlog=, \
     rcvbuf=, sndbuf=, deferred, fastopen=, reuseport, ipv6only=on|off, \
     so_keepalive=on|off|idle:interval:count.",
);

static ZONE: Setting<ZoneLine> = Setting::new("zone", &["[name] size=size [state=file]"], zone)
    .contexts(CONTEXTS)
    .arity(Arity::between(1, 3))
    .default("size=64m")
    .manual(
        "The cache that the server answers from, and how much memory its items may take with all \
         tables. Servers that name one zone share it. The items outlive reloads, but for one that \
         changes the size, `item_size_max` or `key_length_max`. With `state` they outlive a \
         restart and an upgrade of the program, too: they are written to the file when the worker \
         process is told to quit, and read beside service by the one that follows, so the user of \
         the workers must be able to make files in its folder.",
    );

static KEY_LENGTH_MAX: Setting<u64> = Setting::new("key_length_max", &["number"], key_length)
    .contexts(CONTEXTS)
    .default("250")
    .manual(
        "The longest key in bytes, up to 65535. memcached's clients refuse more than 250 by \
         themselves, unless they are told otherwise.",
    );

static AUTH_FILE: Setting<Word> = Setting::new("auth_file", &["file"], user_file)
    .contexts(CONTEXTS)
    .manual(
        "The file of users that clients of the text protocol must name themselves by, as \
         memcached's `-Y`: a line `user:password` each. Without `sasl_file` no other protocol is \
         spoken then. An empty name asks for no password, where an outer block names a file.",
    );

static SASL_FILE: Setting<Word> = Setting::new("sasl_file", &["file"], user_file)
    .contexts(CONTEXTS)
    .manual(
        "The same for clients of the binary protocol, who say it by SASL with the mechanism PLAIN, \
         as memcached's `-S`. Without `auth_file` no other protocol is spoken then.",
    );

static STATUS_ZONE: Setting<Bytes> = Setting::new("status_zone", &["zone"], |setter| {
    let word = setter.word()?;
    if word.bytes.is_empty() {
        return Err(Fault::at(word, "invalid zone name \"\""));
    }
    Ok(Bytes::copy_from_slice(&word.bytes))
})
.contexts(Contexts::MEMCACHED_SERVER)
.manual(
    "Counts the server's sessions under this name, for `api` at `/memcached/server_zones`. Several \
     servers may have one zone.",
);

static SSL_HANDSHAKE_TIMEOUT: Setting<Duration> =
    Setting::new("ssl_handshake_timeout", &["time"], parse::milliseconds)
        .contexts(CONTEXTS)
        .default("60s")
        .manual("How long a client may take to shake hands.");

static ITEM_SIZE_MAX: Setting<u64> = Setting::new("item_size_max", &["size"], item_size)
    .contexts(CONTEXTS)
    .default("1m")
    .manual("The largest item, as memcached's `-I`.");

const DIRECTIVES: &[&dyn Declared] = &[
    &BLOCK,
    &SERVER,
    &LISTEN,
    &ZONE,
    &ITEM_SIZE_MAX,
    &KEY_LENGTH_MAX,
    &AUTH_FILE,
    &SASL_FILE,
    &STATUS_ZONE,
    &SSL_HANDSHAKE_TIMEOUT,
    &access::ALLOW,
    &limit_conn::LIMIT_CONN_ZONE,
];

/// Options of `listen` beyond those of all protocols.
#[derive(Clone, Copy, Debug, Default)]
struct OwnOptions {
    /// `ssl`: connections use TLS.
    ssl: bool,
}

fn take_option(listen: &mut Listen<OwnOptions>, option: &str) -> OptionSupport {
    match option {
        "ssl" => {
            listen.own.ssl = true;
            OptionSupport::Yes
        }
        _ => OptionSupport::Unknown,
    }
}

/// A `zone` line.
#[derive(Clone)]
struct ZoneLine {
    name: Bytes,
    size: u64,
    word: Word,
    /// The file of `state=`, before it is made absolute.
    state: Option<Word>,
}

fn zone(setter: &Setter<'_>) -> Result<ZoneLine, Fault> {
    let line = setter.first();
    let (mut name, mut size, mut state) = (None, None, None);
    for (place, word) in line.args.iter().enumerate() {
        if let Some(written) = word.bytes.strip_prefix(b"size=") {
            let bytes = parse::size_of(written).ok_or_else(|| Fault::invalid_parameter(word))?;
            if bytes < ZONE_SIZE_MIN.max(SIZE_MIN) {
                return Err(Fault::at(word, "a cache has at least 1m".to_owned()));
            }
            size = Some((bytes, word));
        } else if let Some(path) = word.bytes.strip_prefix(b"state=")
            && !path.is_empty()
        {
            state = Some(Word {
                bytes: path.into(),
                ..word.clone()
            });
        } else if place == 0 {
            name = Some(Bytes::copy_from_slice(&word.bytes));
        } else {
            return Err(Fault::invalid_parameter(word));
        }
    }
    let Some((size, word)) = size else {
        return Err(Fault::at(
            &line.name,
            "\"zone\" must have \"size\" parameter",
        ));
    };
    Ok(ZoneLine {
        name: name.unwrap_or(Bytes::from_static(DEFAULT_ZONE.as_bytes())),
        size,
        word: word.clone(),
        state,
    })
}

fn key_length(setter: &Setter<'_>) -> Result<u64, Fault> {
    match parse::number(setter)? {
        length @ 250..=65535 => Ok(length),
        _ => Err(Fault::new(
            "keys may have between 250 and 65535 bytes at most",
        )),
    }
}

fn user_file(setter: &Setter<'_>) -> Result<Word, Fault> {
    setter.word().cloned()
}

/// Reads the user file that a directive names. `None` if the directive is absent or empty.
fn users(
    compiler: &Compiler<'_>,
    server: ScopeRef<'_>,
    setting: &Setting<Word>,
) -> Result<Option<UserPasswords>, Fault> {
    let Some(word) = server.written(setting)? else {
        return Ok(None);
    };
    if word.bytes.is_empty() {
        return Ok(None);
    }
    let path = compiler.path(word.path());
    let shown = path.display();
    let text = compiler.files.read(&path).map_err(|error| {
        let error = logs::Errno(&error);
        Fault::at(&word, format!("open() \"{shown}\" failed {error}"))
    })?;
    let users = UserPasswords::parse(&text).map_err(|line| {
        let text = match line {
            0 => format!("\"{shown}\" names no user; a line is user:password"),
            line => format!("line {line} of \"{shown}\" is not user:password"),
        };
        Fault::at(&word, text)
    })?;
    Ok(Some(users))
}

fn item_size(setter: &Setter<'_>) -> Result<u64, Fault> {
    match parse::size(setter)? {
        size @ 1024..=0x4000_0000 => Ok(size),
        _ => Err(Fault::new("items may have between 1k and 1g at most")),
    }
}

struct Block;

impl ProtocolPart for Block {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn directives(&self) -> Vec<Directives> {
        vec![
            DIRECTIVES,
            AccessLogs::<Session>::DIRECTIVES,
            LimitConn::<Session>::DIRECTIVES,
            TlsSettings::<Session>::DIRECTIVES,
        ]
    }

    fn module_names(&self) -> Vec<&'static str> {
        Vec::new()
    }

    fn has_variable(&self, name: &str) -> bool {
        VARIABLES.iter().any(|find| find(name).is_some())
    }

    fn declare(&self, compiler: &Compiler<'_>) {
        let variables = compiler.registry::<TableBuilder<Session>>();
        variables.borrow_mut().builtins = VARIABLES.into();
    }

    fn compile(
        &self,
        compiler: &Compiler<'_>,
        root: ScopeRef<'_>,
    ) -> Option<Box<dyn CompiledPart>> {
        let mut compiled = Compiled::default();
        let mut whole = true;
        for block in root.children("memcached") {
            limit_conn::compile::<Session>(compiler, block);
            if let Err(fault) = rules::format::check::<Session>(compiler, block) {
                compiler.report(fault);
                whole = false;
            }
            // As in nginx, the block's own `access_log` files are opened even if every server
            // overrides them.
            if block.writes(&[&ACCESS_LOG]) {
                let opened = compiler.feature_or_report::<AccessLogs<Session>>(block);
                whole &= opened.is_some();
            }
            for server in block.children("server") {
                if let Err(fault) = compiled.add_server(compiler, server) {
                    compiler.report(fault);
                    whole = false;
                }
            }
        }
        whole.then(|| Box::new(compiled) as Box<dyn CompiledPart>)
    }

    fn unknown_variables(&self, compiler: &Compiler<'_>) -> Vec<Box<str>> {
        let variables = compiler.registry::<TableBuilder<Session>>();
        variables.borrow().unknown()
    }

    fn handler(&self) -> Rc<dyn ConnectionHandler> {
        connection_handler::handler()
    }
}

/// The compiled block on its way into a generation.
#[derive(Default)]
struct Compiled {
    listening: Vec<ListenSocket>,
    servers: Vec<Arc<Server>>,
    zones: Vec<Arc<Zone<ZonedCache>>>,
}

impl Compiled {
    fn add_server(&mut self, compiler: &Compiler<'_>, server: ScopeRef<'_>) -> Result<(), Fault> {
        let position = server.line().map(|line| line.name.position);
        let at_block = |text: &str| {
            let fault = Fault::new(text);
            match position {
                Some(position) => fault.or_at(position),
                None => fault,
            }
        };
        let Some(lines) = server.own(&LISTEN)? else {
            return Err(at_block("no \"listen\" is defined for server"));
        };
        let access = compiler.feature::<Access>(server)?;
        let zone = self.zone(compiler, server)?;
        let error_log = compiler.feature::<ErrorLog>(server)?;
        let tls = compiler.feature::<TlsSettings<Session>>(server)?;
        for text in &tls.warnings {
            compiler.diagnose(Diagnostic::warn(text.clone(), position));
        }
        let handshake_timeout = server.get(&SSL_HANDSHAKE_TIMEOUT)?;
        let client_tls = match (&tls.server, &tls.certificates) {
            (_, Some(_)) => {
                return Err(at_block(
                    "variables in names of certificates are not supported by memcached's servers",
                ));
            }
            (Some(server), None) => Some(ClientTls::new(
                Arc::clone(server),
                tls.verify_client,
                handshake_timeout,
            )),
            (None, None) => None,
        };
        let auth = ServerAuth {
            text: users(compiler, server, &AUTH_FILE)?,
            sasl: users(compiler, server, &SASL_FILE)?,
        };
        let auth = (!auth.is_off()).then(|| Arc::new(auth));
        let access_logs = compiler.feature::<AccessLogs<Session>>(server)?;
        let limit_conn = compiler.feature::<LimitConn<Session>>(server)?;
        let status_zone = server.own(&STATUS_ZONE)?.map(|name| {
            let zones = compiler.registry::<SessionZones>();
            zones.borrow_mut().number(SessionBlock::Memcached, name)
        });
        for line in listen::addresses(compiler, lines)? {
            let address = &line.options.address;
            let id = ListenerId::of_address(address, line.options.carries);
            if self.listening.iter().any(|other| other.id == id) {
                return Err(line.fault(format!("a duplicate listen {address}")));
            }
            if line.own.ssl && client_tls.is_none() {
                return Err(line.fault(
                    "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive"
                        .to_owned(),
                ));
            }
            let tls = client_tls.clone().filter(|_| line.own.ssl);
            let shows_certificate = tls
                .as_ref()
                .is_some_and(|tls| tls.verifies == Some(Mode::Required));
            let is_secret = shows_certificate || auth.is_some();
            if access.is_empty() && !is_secret && is_open_to_others(address) {
                let text = format!(
                    "every client that reaches {address} can read and change the whole cache: \
                     neither \"allow\" and \"deny\" nor \"auth_file\" or \"sasl_file\" are written"
                );
                compiler.warn_each_time(text, line.word.as_ref().map(|word| word.position));
            }
            self.servers.push(Arc::new(Server {
                listener: id.clone(),
                cache: CacheOf::Zone(Arc::clone(&zone)),
                access: Arc::clone(&access),
                tls,
                error_log: Some(Arc::clone(&error_log)),
                auth: auth.clone(),
                access_logs: Some(Arc::clone(&access_logs)).filter(|logs| !logs.is_empty()),
                limit_conn: Some(Arc::clone(&limit_conn)).filter(|limits| !limits.is_off()),
                status_zone,
            }));
            let mut options = line.options;
            options.nodelay = true;
            self.listening.push(ListenSocket { id, options });
        }
        Ok(())
    }

    /// Checks that no other zone has the same `state` file.
    fn claim(&self, path: &Path, zone: &str, word: &Word) -> Result<(), Fault> {
        let has_path = |other: &&Arc<Zone<ZonedCache>>| {
            other.settings().state.as_deref() == Some(path) && other.name() != zone
        };
        match self.zones.iter().find(has_path) {
            None => Ok(()),
            Some(other) => {
                let (path, other) = (path.display(), other.name());
                let text = format!("\"{path}\" keeps the items of zone \"{other}\" already");
                Err(Fault::at(word, text))
            }
        }
    }

    /// Declares the server's zone, or finds it if another server has declared the same.
    fn zone(
        &mut self,
        compiler: &Compiler<'_>,
        server: ScopeRef<'_>,
    ) -> Result<Arc<Zone<ZonedCache>>, Fault> {
        let ZoneLine {
            name,
            size,
            word,
            state,
        } = server.get(&ZONE)?;
        let item_max = usize::try_from(server.get(&ITEM_SIZE_MAX)?).unwrap_or(usize::MAX);
        let key_max = usize::try_from(server.get(&KEY_LENGTH_MAX)?).unwrap_or(usize::MAX);
        let state = state.map(|word| (compiler.path(word.path()), word));
        let settings = ZoneSettings {
            item_max,
            key_max,
            state: state.as_ref().map(|(path, _)| path.clone()),
        };
        let name = String::from_utf8_lossy(&name);
        if let Some((path, word)) = &state {
            self.claim(path, &name, word)?;
            let by = name_of(server.line(), "zone");
            compiler.will_open(FileAccess::Write, path.parent().unwrap_or(path), &by);
        }
        let declared =
            compiler
                .zones
                .borrow_mut()
                .declare::<ZonedCache>(&name, size, settings.clone());
        match declared {
            Ok(zone) => {
                self.zones.push(Arc::clone(&zone));
                Ok(zone)
            }
            Err(ZoneError::Declared(zone)) if *zone.settings() == settings => Ok(zone),
            Err(ZoneError::Declared(_)) => {
                let text = format!(
                    "the servers of zone \"{name}\" differ in \"item_size_max\", \
                     \"key_length_max\" or \"state\""
                );
                Err(Fault::at(&word, text))
            }
            Err(ZoneError::Conflict(text)) => Err(Fault::at(&word, text)),
        }
    }
}

/// Whether clients on other machines may reach an address.
fn is_open_to_others(address: &Address) -> bool {
    matches!(address, Address::Inet(address) if !address.ip().is_loopback())
}

impl CompiledPart for Compiled {
    fn add_to(
        self: Box<Self>,
        compiler: &Compiler<'_>,
        generation: &mut Generation,
    ) -> Vec<ListenSocket> {
        for zone in &self.zones {
            if let Some(path) = zone.settings().state.clone() {
                let zone = Arc::clone(zone);
                generation
                    .services
                    .push(Arc::new(StateKeeper { zone, path }));
            }
        }
        if !self.zones.is_empty() {
            generation.services.push(Arc::new(Sweeper(self.zones)));
        }
        // Unknown variables have been reported by `unknown_variables`.
        let variables = compiler.registries.take::<TableBuilder<Session>>();
        generation.add(MemcachedPart {
            servers: self.servers,
            variables: variables.finish().unwrap_or_default(),
        });
        // The registry has the status zones of `stream` as well, unless `stream` took it before.
        let zones = compiler.registries.take::<SessionZones>();
        if !zones.is_empty() {
            generation.add(zones);
        }
        self.listening
    }
}
