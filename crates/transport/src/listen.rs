//! `listen`: a line, its addresses and its options.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#listen>. Parsing only records; who opens the sockets is
//! outside this crate, and which servers are behind an address is a protocol's business.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use conf::{Arity, Contexts, Fault, Inherit, ScopeRef, Setter, Setting, Word};
use engine::net::{Address, KeepAlive, ListenOptions};
use framework::compile::Compiler;
pub use framework::door::ListenerId;

/// `listen`
pub static LISTEN: Setting<Vec<Written>> = Setting::new(
    "listen",
    &[
        "address[:port[-port]] [options]",
        "port [options]",
        "unix:path [options]",
    ],
    listens,
)
.contexts(Contexts::SERVER)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.manual(
    "An address that the server is reached at. Options: default_server, ssl, bind, backlog=, \
     rcvbuf=, sndbuf=, deferred, fastopen=, reuseport, ipv6only=on|off, \
     so_keepalive=on|off|idle:interval:count; proxy_protocol: connections begin with a header of \
     the PROXY protocol, version 1 or 2; quic: for HTTP/3, which is not there yet, so that nothing \
     listens.",
);

/// The warning about whatever a configuration says of HTTP/3.
pub const HTTP3_NOT_YET: &str = "HTTP/3 is not there yet: clients use HTTP/2 meanwhile, \
                                 and h3 is left out of \"Alt-Svc\"";

/// One `listen` line before the names of hosts are looked up.
#[derive(Clone, Debug)]
pub struct Written {
    /// All but the address.
    listen: Listen,
    place: Place,
}

/// Where a line says that the server listens.
#[derive(Clone, Debug)]
enum Place {
    /// There.
    Addresses(Vec<Address>),
    /// At every address of this host.
    Host {
        name: String,
        ports: RangeInclusive<u16>,
    },
}

/// One address that a `listen` line names.
#[derive(Clone, Debug)]
pub struct Listen {
    /// Address and socket options.
    pub options: ListenOptions,
    /// `default_server`.
    pub default_server: bool,
    /// Whether any socket option is written: only one line of an address may do so.
    pub set: bool,
    /// `bind`, or an option that implies it.
    pub bind: bool,
    /// What clients speak before HTTP.
    pub protocols: Protocols,
    /// `quic`: a line for HTTP/3, for which no socket is opened yet.
    quic: bool,
    /// The line's address as a word, for errors; `None` where it is the default.
    pub word: Option<Word>,
}

impl Listen {
    /// A fault at the line's address.
    pub fn fault(&self, text: String) -> Fault {
        let fault = match &self.word {
            Some(word) => Fault::at(word, text),
            None => Fault::new(text),
        };
        fault.while_reading()
    }
}

/// What clients of an address speak before HTTP. What several lines for one address say adds up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protocols {
    /// A header of the PROXY protocol.
    pub proxy_protocol: bool,
    /// TLS (`ssl`).
    pub ssl: bool,
    /// HTTP/2 (`http2`), whatever their servers say.
    pub http2: bool,
}

impl Protocols {
    /// What any of both names.
    #[must_use]
    pub fn or(self, other: Protocols) -> Protocols {
        Protocols {
            proxy_protocol: self.proxy_protocol || other.proxy_protocol,
            ssl: self.ssl || other.ssl,
            http2: self.http2 || other.http2,
        }
    }

    /// Whether it names all that the other does.
    pub fn includes(self, other: Protocols) -> bool {
        self.or(other) == self
    }
}

/// The address of a server without `listen`: port 80, or 8000 without privileges.
pub fn default_listen(privileged: bool) -> Listen {
    let port = if privileged { 80 } else { 8000 };
    Listen {
        options: ListenOptions::new(Address::Inet(SocketAddr::from((
            Ipv4Addr::UNSPECIFIED,
            port,
        )))),
        default_server: false,
        set: false,
        bind: false,
        protocols: Protocols::default(),
        quic: false,
        word: None,
    }
}

/// Every address that a `server` block names, or the one that it has without `listen`.
pub fn of_server(compiler: &Compiler<'_>, server: ScopeRef<'_>) -> Result<Vec<Listen>, Fault> {
    match server.own(&LISTEN)? {
        Some(lines) => addresses(compiler, lines),
        None => Ok(vec![default_listen(compiler.privileged)]),
    }
}

/// Every address that these lines of a `server` block name.
///
/// # Errors
/// An address that is named twice, a host that is not found.
pub fn addresses(compiler: &Compiler<'_>, lines: Vec<Written>) -> Result<Vec<Listen>, Fault> {
    let mut all: Vec<Listen> = Vec::new();
    for Written { listen, place } in lines {
        let addresses = match place {
            Place::Addresses(addresses) => addresses,
            Place::Host { name, ports } => {
                let found = compiler.files.addresses(&name);
                let found = found.ok_or_else(|| misplaced(&listen, "host not found"))?;
                let at = |port| {
                    found
                        .iter()
                        .map(move |ip| Address::Inet((*ip, port).into()))
                };
                ports.flat_map(at).collect()
            }
        };
        for address in addresses {
            let is_same =
                |other: &Listen| (&other.options.address, other.quic) == (&address, listen.quic);
            if all.iter().any(is_same) {
                return Err(listen.fault(format!("a duplicate listen {address}")));
            }
            let mut one = listen.clone();
            one.options.address = address;
            all.push(one);
        }
    }
    all.retain(|listen| !listen.quic);
    Ok(all)
}

/// nginx's error for a line whose address is of no use.
fn misplaced(listen: &Listen, why: &str) -> Fault {
    let word = listen.word.as_ref().map(Word::text).unwrap_or_default();
    listen.fault(format!("{why} in \"{word}\" of the \"listen\" directive"))
}

fn listens(setter: &Setter<'_>) -> Result<Vec<Written>, Fault> {
    let mut all = Vec::new();
    for line in setter.lines() {
        if let Some(word) = line
            .args
            .iter()
            .skip(1)
            .find(|word| &*word.bytes == b"http2")
        {
            setter.warn(
                word,
                "the \"listen ... http2\" directive is deprecated, use the \"http2\" directive instead",
            );
        }
        let quic = |word: &&Word| &*word.bytes == b"quic";
        if let Some(word) = line.args.iter().skip(1).find(quic) {
            setter.warn_once(word, HTTP3_NOT_YET);
        }
        all.push(listen(&line.args, HTTP_PORT, of_http)?);
    }
    if !all.is_empty() && all.iter().all(|written| written.listen.quic) {
        let text = "no client reaches this server: it listens with \"quic\" alone";
        setter.warn(&setter.first().name, text);
    }
    Ok(all)
}

/// Whether a protocol takes an option that not all of them have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It has been noted.
    Yes,
    /// nginx has it for this protocol; Tidegate does not yet.
    NotYet,
    /// It is none of the protocol's.
    Unknown,
}

/// Takes an option without a value, by its name, that not all protocols have.
pub type TakeOption = fn(&mut Listen, &str) -> Taken;

/// Reads lines of a protocol's `listen`, with its port for lines that name none, and the options
/// that it adds.
///
/// # Errors
/// nginx's, at the word that is wrong.
pub fn lines(
    setter: &Setter<'_>,
    default_port: u16,
    own: TakeOption,
) -> Result<Vec<Written>, Fault> {
    let lines = setter.lines().iter();
    lines
        .map(|line| listen(&line.args, default_port, own))
        .collect()
}

/// HTTP's port, of a line that names none.
const HTTP_PORT: u16 = 80;

/// The options that only HTTP has.
fn of_http(listen: &mut Listen, name: &str) -> Taken {
    match name {
        "default_server" | "default" => listen.default_server = true,
        "proxy_protocol" => listen.protocols.proxy_protocol = true,
        "ssl" => listen.protocols.ssl = true,
        // `listens` says that it is deprecated.
        "http2" => listen.protocols.http2 = true,
        // `listens` says that no socket is opened there.
        "quic" => listen.quic = true,
        _ => return Taken::Unknown,
    }
    Taken::Yes
}

fn listen(args: &[Word], default_port: u16, own: TakeOption) -> Result<Written, Fault> {
    let Some((first, rest)) = args.split_first() else {
        return Err(Fault::new(
            "invalid number of arguments in \"listen\" directive",
        ));
    };
    let mut listen = Listen {
        options: ListenOptions::new(Address::Unix("".into())),
        default_server: false,
        set: false,
        bind: false,
        protocols: Protocols::default(),
        quic: false,
        word: Some(first.clone()),
    };
    let place = place(&first.text(), default_port).map_err(|error| misplaced(&listen, error))?;
    for word in rest {
        option(&mut listen, word, own)?;
    }
    if listen.quic {
        check_quic(&listen, rest)?;
    }
    Ok(Written { listen, place })
}

/// Refuses what means nothing for UDP, as nginx does.
fn check_quic(listen: &Listen, options: &[Word]) -> Result<(), Fault> {
    let is_written = |name: &str| {
        let mut names = options.iter().map(Word::text);
        names.any(|text| text.split('=').next() == Some(name))
    };
    let streams = [
        "fastopen",
        "backlog",
        "deferred",
        "ssl",
        "http2",
        "so_keepalive",
    ];
    let mut refused = streams.into_iter().chain(["proxy_protocol"]);
    match refused.find(|name| is_written(name)) {
        Some(name) => Err(listen.fault(format!(
            "\"listen\" directive \"{name}\" parameter is incompatible with \"quic\""
        ))),
        None => Ok(()),
    }
}

fn option(listen: &mut Listen, word: &Word, own: TakeOption) -> Result<(), Fault> {
    let text = word.text();
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (&*text, None),
    };
    let invalid = |what: &str| Fault::at(word, format!("invalid {what} \"{text}\""));
    let number = |what: &str| {
        value
            .and_then(|value| conf::parse::number_of(value.as_bytes()))
            .map(|number| i32::try_from(number).unwrap_or(i32::MAX))
            .ok_or_else(|| invalid(what))
    };
    let size = |what: &str| {
        value
            .and_then(conf::parse::size_text)
            .map(|v| v as usize)
            .ok_or_else(|| invalid(what))
    };
    let options = &mut listen.options;
    match (name, value) {
        ("bind", None) => {}
        ("deferred", None) => options.deferred = true,
        ("reuseport", None) => options.reuseport = true,
        ("fastopen", Some(_)) => options.fastopen = Some(number("fastopen")?),
        ("backlog", Some(_)) => {
            options.backlog = number("backlog")?;
            if options.backlog == 0 {
                return Err(invalid("backlog"));
            }
        }
        ("rcvbuf", Some(_)) => options.rcvbuf = Some(size("rcvbuf")?),
        ("sndbuf", Some(_)) => options.sndbuf = Some(size("sndbuf")?),
        ("ipv6only", Some(flag)) => {
            options.ipv6only = Some(match flag {
                "on" => true,
                "off" => false,
                _ => {
                    let rest = flag.strip_prefix('o').unwrap_or(flag);
                    return Err(Fault::at(
                        word,
                        format!("invalid ipv6only flags \"{rest}\""),
                    ));
                }
            });
        }
        ("so_keepalive", Some(value)) => {
            options.so_keepalive = Some(keepalive(value).ok_or_else(|| {
                Fault::at(word, format!("invalid so_keepalive value: \"{value}\""))
            })?);
        }
        ("accept_filter" | "setfib", Some(_)) | ("multipath", None) => {
            let text = format!("the \"{name}\" parameter is not supported on this platform");
            return Err(Fault::at(word, text));
        }
        (name, None) => {
            return match own(listen, name) {
                Taken::Yes => Ok(()),
                Taken::NotYet => {
                    let text =
                        format!("the \"{name}\" parameter is not supported by this version yet");
                    Err(Fault::at(word, text))
                }
                Taken::Unknown => Err(Fault::at(word, format!("invalid parameter \"{text}\""))),
            };
        }
        _ => return Err(Fault::at(word, format!("invalid parameter \"{text}\""))),
    }
    listen.set = true;
    listen.bind = true;
    Ok(())
}

/// `on`, `off`, or `idle:interval:count` with parts left out.
fn keepalive(value: &str) -> Option<KeepAlive> {
    match value {
        "on" => {
            return Some(KeepAlive::On {
                idle: None,
                interval: None,
                count: None,
            });
        }
        "off" => return Some(KeepAlive::Off),
        _ => {}
    }
    let mut parts = value.splitn(3, ':');
    let mut seconds = || match parts.next() {
        None | Some("") => Some(None),
        Some(text) => conf::parse::seconds_text(text).map(|s| Some(Duration::from_secs(s))),
    };
    let idle = seconds()?;
    let interval = seconds()?;
    let count = match parts.next() {
        None | Some("") => None,
        Some(text) => Some(text.parse().ok()?),
    };
    if idle.is_none() && interval.is_none() && count.is_none() {
        return None;
    }
    Some(KeepAlive::On {
        idle,
        interval,
        count,
    })
}

/// What the first word of a `listen` names. The error is nginx's short reason.
fn place(text: &str, default_port: u16) -> Result<Place, &'static str> {
    if let Some(path) = text.strip_prefix("unix:") {
        if path.is_empty() {
            return Err("no path in the unix domain socket");
        }
        return Ok(Place::Addresses(vec![Address::Unix(path.into())]));
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (ip, rest) = rest.split_once(']').ok_or("invalid host")?;
        let ports = match rest.strip_prefix(':') {
            _ if rest.contains('/') => return Err("invalid host"),
            Some(ports) => parse_ports(ports)?,
            None if rest.is_empty() => default_port..=default_port,
            None => return Err("invalid host"),
        };
        if ip.is_empty() {
            return Err("no host");
        }
        let ip: Ipv6Addr = ip.parse().map_err(|_| "invalid IPv6 address")?;
        return Ok(at_ports(ip.into(), ports));
    }
    if text.contains(['/', '?']) {
        return Err("invalid host"); // no URI belongs here
    }
    let (host, ports) = match text.split_once(':') {
        Some((host, ports)) => (host, parse_ports(ports)?),
        None if is_ports(text) => ("*", parse_ports(text)?),
        None => (text, default_port..=default_port),
    };
    let ip = match host {
        "" => return Err("no host"),
        "*" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        host => match host.parse() {
            Ok(ip) => ip,
            Err(_) => {
                let name = host.to_owned();
                return Ok(Place::Host { name, ports });
            }
        },
    };
    Ok(at_ports(ip, ports))
}

fn at_ports(ip: IpAddr, ports: RangeInclusive<u16>) -> Place {
    let at = |port| Address::Inet(SocketAddr::from((ip, port)));
    Place::Addresses(ports.map(at).collect())
}

/// Whether a text without a colon is a port or a range of them, and no host.
fn is_ports(text: &str) -> bool {
    let is_number = |text: &str| conf::parse::number_of(text.as_bytes()).is_some();
    match text.split_once('-') {
        Some((first, last)) => is_number(first) && is_number(last),
        None => is_number(text),
    }
}

/// A port or a range of ports, `8000-8010`.
fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, &'static str> {
    match text.split_once('-') {
        None => parse_port(text).map(|port| port..=port),
        Some((first, last)) => {
            let last = parse_port(last)?;
            let first = parse_port(first)?;
            if last < first {
                Err("invalid port range")
            } else {
                Ok(first..=last)
            }
        }
    }
}

fn parse_port(text: &str) -> Result<u16, &'static str> {
    let number = conf::parse::number_of(text.as_bytes());
    match number.and_then(|number| u16::try_from(number).ok()) {
        Some(port @ 1..) => Ok(port),
        _ => Err("invalid port"),
    }
}
