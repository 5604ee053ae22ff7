//! The `memcached` block of a configuration: servers of memcached's protocols beside those of HTTP.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use conf::{
    Arity, Contexts, Declared, Diagnostic, Fault, Inherit, ScopeRef, Setter, Setting, Word, parse,
};
use engine::net::Address;
use framework::compile::{Compiler, Feature as _};
use framework::door::{Door, ListenerId};
use framework::generation::Generation;
use framework::protocol_part::{CompiledPart, Directives, ListenSocket, ProtocolPart};
use framework::zone::{SIZE_MIN, Zone, ZoneError};
use logs::ErrorLog;
use rules::access::{self, Access};
use transport::listen::{self, Listen, ListenLine, Taken};
use transport::tls::settings::TlsSettings;
use transport::tls::verify::Mode;

use crate::door::{self, CacheOf, MemcachedPart, Server};
use crate::sweeper::Sweeper;
use crate::tls::ClientTls;
use crate::without_variables::WithoutVariables;
use crate::zone::{ZoneSettings, ZonedCache};

/// The protocol part that serves memcached's protocols.
pub const MEMCACHED: &dyn ProtocolPart = &Block;

const CONTEXTS: Contexts = Contexts::MEMCACHED.or(Contexts::MEMCACHED_SERVER);

/// The port of a `listen` line that names none.
const PORT: u16 = 11211;

/// The name of a zone that has none.
const DEFAULT_ZONE: &str = "memcached";

/// The smallest cache, in bytes: memcached's.
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

static ZONE: Setting<ZoneLine> = Setting::new("zone", &["[name] size=size"], zone)
    .contexts(CONTEXTS)
    .arity(Arity::between(1, 2))
    .default("size=64m")
    .manual(
        "The cache that the server answers from, and how much memory its items may take with all \
         tables. Servers that name one zone share it. The items outlive reloads, but for one that \
         changes the size or `item_size_max`.",
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
    &SSL_HANDSHAKE_TIMEOUT,
    &access::ALLOW,
];

/// What a `listen` line has that only this protocol has.
#[derive(Clone, Copy, Debug, Default)]
struct OwnOptions {
    /// `ssl`: clients speak TLS.
    ssl: bool,
}

fn take_option(listen: &mut Listen<OwnOptions>, option: &str) -> Taken {
    match option {
        "ssl" => {
            listen.own.ssl = true;
            Taken::Yes
        }
        _ => Taken::Unknown,
    }
}

/// A line of `zone`.
#[derive(Clone)]
struct ZoneLine {
    name: Bytes,
    size: u64,
    word: Word,
}

fn zone(setter: &Setter<'_>) -> Result<ZoneLine, Fault> {
    let line = setter.first();
    let (name, size) = match &*line.args {
        [name, size] => (Bytes::copy_from_slice(&name.bytes), size),
        _ => (
            Bytes::from_static(DEFAULT_ZONE.as_bytes()),
            line.argument(0),
        ),
    };
    let written = size.bytes.strip_prefix(b"size=");
    let bytes = written.and_then(parse::size_of);
    match bytes {
        Some(bytes) if bytes >= ZONE_SIZE_MIN.max(SIZE_MIN) => Ok(ZoneLine {
            name,
            size: bytes,
            word: size.clone(),
        }),
        Some(_) => Err(Fault::at(size, "a cache has at least 1m".to_owned())),
        None => Err(Fault::invalid_parameter(size)),
    }
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
        vec![DIRECTIVES, TlsSettings::<WithoutVariables>::DIRECTIVES]
    }

    fn module_names(&self) -> Vec<&'static str> {
        Vec::new()
    }

    fn has_variable(&self, _: &str) -> bool {
        false
    }

    fn declare(&self, _: &Compiler<'_>) {}

    fn compile(
        &self,
        compiler: &Compiler<'_>,
        root: ScopeRef<'_>,
    ) -> Option<Box<dyn CompiledPart>> {
        let mut compiled = Compiled::default();
        let mut whole = true;
        for block in root.children("memcached") {
            for server in block.children("server") {
                if let Err(fault) = compiled.add_server(compiler, server) {
                    compiler.report(fault);
                    whole = false;
                }
            }
        }
        whole.then(|| Box::new(compiled) as Box<dyn CompiledPart>)
    }

    fn unknown_variables(&self, _: &Compiler<'_>) -> Vec<Box<str>> {
        Vec::new()
    }

    fn door(&self) -> Rc<dyn Door> {
        door::door()
    }
}

/// The compiled block on its way into a generation.
#[derive(Default)]
struct Compiled {
    listening: Vec<ListenSocket>,
    servers: Vec<Server>,
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
        let tls = compiler.feature::<TlsSettings<WithoutVariables>>(server)?;
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
        for line in listen::addresses(compiler, lines)? {
            let address = &line.options.address;
            let id = ListenerId::of_address(address, line.options.carries);
            if self.listening.iter().any(|other| other.id == id) {
                return Err(line.fault(format!("a duplicate listen {address}")));
            }
            let tls = match line.own.ssl {
                true if client_tls.is_none() => {
                    return Err(line.fault(
                        "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive"
                            .to_owned(),
                    ));
                }
                true => client_tls.clone(),
                false => None,
            };
            let shows_certificate = tls
                .as_ref()
                .is_some_and(|tls| tls.verifies == Some(Mode::Required));
            if access.is_empty() && !shows_certificate && is_open_to_others(address) {
                let text = format!(
                    "every client that reaches {address} can read and change the whole cache: \
                     no \"allow\" and \"deny\" are written"
                );
                compiler.warn_each_time(text, line.word.as_ref().map(|word| word.position));
            }
            self.servers.push(Server {
                listener: id.clone(),
                cache: CacheOf::Zone(Arc::clone(&zone)),
                access: Arc::clone(&access),
                tls,
                error_log: Some(Arc::clone(&error_log)),
            });
            let mut options = line.options;
            options.nodelay = true;
            self.listening.push(ListenSocket { id, options });
        }
        Ok(())
    }

    /// The zone of a server. Several servers may have the same.
    fn zone(
        &mut self,
        compiler: &Compiler<'_>,
        server: ScopeRef<'_>,
    ) -> Result<Arc<Zone<ZonedCache>>, Fault> {
        let ZoneLine { name, size, word } = server.get(&ZONE)?;
        let item_max = usize::try_from(server.get(&ITEM_SIZE_MAX)?).unwrap_or(usize::MAX);
        let settings = ZoneSettings { item_max };
        let name = String::from_utf8_lossy(&name);
        let declared = compiler
            .zones
            .borrow_mut()
            .declare::<ZonedCache>(&name, size, settings);
        match declared {
            Ok(zone) => {
                self.zones.push(Arc::clone(&zone));
                Ok(zone)
            }
            Err(ZoneError::Declared(zone)) if *zone.settings() == settings => Ok(zone),
            Err(ZoneError::Declared(_)) => {
                let text = format!("the servers of zone \"{name}\" differ in \"item_size_max\"");
                Err(Fault::at(&word, text))
            }
            Err(ZoneError::Conflict(text)) => Err(Fault::at(&word, text)),
        }
    }
}

/// Whether clients of other machines may reach an address.
fn is_open_to_others(address: &Address) -> bool {
    matches!(address, Address::Inet(address) if !address.ip().is_loopback())
}

impl CompiledPart for Compiled {
    fn add_to(self: Box<Self>, _: &Compiler<'_>, generation: &mut Generation) -> Vec<ListenSocket> {
        if !self.zones.is_empty() {
            generation.services.push(Arc::new(Sweeper(self.zones)));
        }
        generation.add(MemcachedPart {
            servers: self.servers,
        });
        self.listening
    }
}
