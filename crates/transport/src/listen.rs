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
     the PROXY protocol, version 1 or 2.",
);

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
        word: None,
    }
}

/// Every address that a `server` block names, or the one that it has without `listen`.
pub fn of_server(compiler: &Compiler<'_>, server: ScopeRef<'_>) -> Result<Vec<Listen>, Fault> {
    let Some(lines) = server.own(&LISTEN)? else {
        return Ok(vec![default_listen(compiler.privileged)]);
    };
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
            if all.iter().any(|other| other.options.address == address) {
                return Err(listen.fault(format!("a duplicate listen {address}")));
            }
            let mut one = listen.clone();
            one.options.address = address;
            all.push(one);
        }
    }
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
        all.push(listen(&line.args)?);
    }
    Ok(all)
}

fn listen(args: &[Word]) -> Result<Written, Fault> {
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
        word: Some(first.clone()),
    };
    let place = place(&first.text()).map_err(|error| misplaced(&listen, error))?;
    for word in rest {
        option(&mut listen, word)?;
    }
    Ok(Written { listen, place })
}

fn option(listen: &mut Listen, word: &Word) -> Result<(), Fault> {
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
        ("default_server" | "default", None) => {
            listen.default_server = true;
            return Ok(());
        }
        ("proxy_protocol", None) => {
            listen.protocols.proxy_protocol = true;
            return Ok(());
        }
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
        ("ssl", None) => {
            listen.protocols.ssl = true;
            return Ok(());
        }
        // `listens` says that it is deprecated.
        ("http2", None) => {
            listen.protocols.http2 = true;
            return Ok(());
        }
        ("quic", None) => {
            let text = format!("the \"{name}\" parameter is not supported by this version yet");
            return Err(Fault::at(word, text));
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
fn place(text: &str) -> Result<Place, &'static str> {
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
            None if rest.is_empty() => 80..=80,
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
        None => (text, 80..=80),
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
