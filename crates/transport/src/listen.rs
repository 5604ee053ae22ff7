//! The `listen` directive: addresses and socket options.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#listen>. Parsing opens no socket.
//! Every protocol declares the directive itself, adds its own options and decides which servers an
//! address has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use conf::{Fault, Line, Word};
use engine::net::{Address, KeepAlive, ListenOptions};
use framework::compile::Compiler;
pub use framework::connection_handler::ListenerId;

/// One `listen` line before host names are resolved.
#[derive(Clone, Debug)]
pub struct ListenLine<O> {
    /// The options of the line. The address in it is a placeholder until [`addresses`] sets it.
    pub listen: Listen<O>,
    place: ListenTarget,
}

/// The addresses at which a line makes the server listen.
#[derive(Clone, Debug)]
enum ListenTarget {
    Addresses(Vec<Address>),
    /// All addresses of this host.
    Host {
        name: String,
        ports: RangeInclusive<u16>,
    },
}

/// One address that a `listen` line names, with the options that a protocol adds.
#[derive(Clone, Debug)]
pub struct Listen<O> {
    /// Address and socket options.
    pub options: ListenOptions,
    /// Whether any socket option is written; only one line per address may have socket options.
    pub set: bool,
    /// Whether `bind`, or an option that implies `bind`, is written.
    pub bind: bool,
    /// The options that only this protocol has.
    pub own: O,
    /// The address as written, for errors; `None` for the default address.
    pub word: Option<Word>,
}

impl<O: Default> Listen<O> {
    /// A line with an address and no option.
    #[must_use]
    pub fn new(address: Address, word: Option<Word>) -> Listen<O> {
        Listen {
            options: ListenOptions::new(address),
            set: false,
            bind: false,
            own: O::default(),
            word,
        }
    }
}

impl<O> Listen<O> {
    /// An error at the line's address.
    pub fn fault(&self, text: String) -> Fault {
        let fault = match &self.word {
            Some(word) => Fault::at(word, text),
            None => Fault::new(text),
        };
        fault.while_reading()
    }
}

/// The protocols that clients of an address speak. Several lines for one address are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protocols {
    /// Whether connections begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// Whether TLS is spoken (`ssl`).
    pub ssl: bool,
    /// Whether clients may speak HTTP/2 (`http2`), regardless of the settings of the servers.
    pub http2: bool,
}

impl Protocols {
    /// The union of both.
    #[must_use]
    pub fn or(self, other: Protocols) -> Protocols {
        Protocols {
            proxy_protocol: self.proxy_protocol || other.proxy_protocol,
            ssl: self.ssl || other.ssl,
            http2: self.http2 || other.http2,
        }
    }

    /// Whether all protocols of `other` are included.
    pub fn includes(self, other: Protocols) -> bool {
        self.or(other) == self
    }
}

/// Checks whether the lines for one address agree about its protocols, by nginx's rule: lines
/// without socket options may omit protocols, or all must name the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProtocolAgreement {
    /// The protocols of the second and later lines.
    later: Option<Protocols>,
    /// Whether any line named other protocols than the lines before it.
    changed: bool,
}

impl ProtocolAgreement {
    /// Adds a line. `known` is the union of the previous lines for the address, and `protocols`
    /// gets the protocols from a line's options. Returns false if nginx would warn.
    pub fn take<O>(
        &mut self,
        known: &Listen<O>,
        line: &Listen<O>,
        protocols: impl Fn(&O) -> Protocols,
    ) -> bool {
        let (before, now) = (protocols(&known.own), protocols(&line.own));
        let differs_from_later = self.later.is_some_and(|later| later != now);
        let (agrees, later) = if !before.includes(now) {
            let agrees = (line.set || !known.set) && !self.changed && now.includes(before);
            (agrees, before)
        } else if !now.includes(before) {
            (!line.set && !differs_from_later, now)
        } else {
            (!(differs_from_later || line.set && self.changed), now)
        };
        self.changed |= before != now;
        self.later = Some(later);
        agrees
    }
}

/// All addresses of the `listen` lines of a `server` block.
///
/// # Errors
/// If an address is listed twice, or a host is not found.
pub fn addresses<O: Clone>(
    compiler: &Compiler<'_>,
    lines: Vec<ListenLine<O>>,
) -> Result<Vec<Listen<O>>, Fault> {
    let mut all: Vec<Listen<O>> = Vec::new();
    for ListenLine { listen, place } in lines {
        let addresses = match place {
            ListenTarget::Addresses(addresses) => addresses,
            ListenTarget::Host { name, ports } => {
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
            let is_same = |other: &Listen<O>| {
                (&other.options.address, other.options.carries)
                    == (&address, listen.options.carries)
            };
            if all.iter().any(is_same) {
                return Err(listen.fault(format!("a duplicate listen {address}")));
            }
            let mut one = listen.clone();
            one.options.address = address;
            all.push(one);
        }
    }
    Ok(all)
}

/// nginx's error for a line with an invalid address.
fn misplaced<O>(listen: &Listen<O>, why: &str) -> Fault {
    let word = listen.word.as_ref().map(Word::text).unwrap_or_default();
    listen.fault(format!("{why} in \"{word}\" of the \"listen\" directive"))
}

/// Whether a protocol supports an option that not all protocols have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionSupport {
    /// The protocol has the option, and it is set.
    Yes,
    /// nginx supports the option for this protocol, but Tidegate does not yet.
    NotYet,
    /// The protocol does not have the option.
    Unknown,
}

/// Applies an option without a value that not all protocols have.
pub type TakeOption<O> = fn(&mut Listen<O>, &str) -> OptionSupport;

/// Parses a protocol's `listen` line, with a default port and the protocol's own options.
///
/// # Errors
/// nginx's text, at the position of the invalid word.
pub fn line<O: Default>(
    line: &Line,
    default_port: u16,
    own: TakeOption<O>,
) -> Result<ListenLine<O>, Fault> {
    let Some((first, rest)) = line.args.split_first() else {
        return Err(Fault::new(
            "invalid number of arguments in \"listen\" directive",
        ));
    };
    let mut listen = Listen::new(Address::Unix("".into()), Some(first.clone()));
    let place = place(&first.text(), default_port).map_err(|error| misplaced(&listen, error))?;
    for word in rest {
        option(&mut listen, word, own)?;
    }
    Ok(ListenLine { listen, place })
}

fn option<O>(listen: &mut Listen<O>, word: &Word, own: TakeOption<O>) -> Result<(), Fault> {
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
        ("xdp", None) => options.xdp = true,
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
        _ => {
            return match own(listen, &text) {
                OptionSupport::Yes => Ok(()),
                OptionSupport::NotYet => {
                    let text =
                        format!("the \"{name}\" parameter is not supported by this version yet");
                    Err(Fault::at(word, text))
                }
                OptionSupport::Unknown => {
                    Err(Fault::at(word, format!("invalid parameter \"{text}\"")))
                }
            };
        }
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

/// Parses the first argument of `listen`. The error is nginx's short reason.
fn place(text: &str, default_port: u16) -> Result<ListenTarget, &'static str> {
    if let Some(path) = text.strip_prefix("unix:") {
        if path.is_empty() {
            return Err("no path in the unix domain socket");
        }
        return Ok(ListenTarget::Addresses(vec![Address::Unix(path.into())]));
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
                return Ok(ListenTarget::Host { name, ports });
            }
        },
    };
    Ok(at_ports(ip, ports))
}

fn at_ports(ip: IpAddr, ports: RangeInclusive<u16>) -> ListenTarget {
    let at = |port| Address::Inet(SocketAddr::from((ip, port)));
    ListenTarget::Addresses(ports.map(at).collect())
}

/// Whether a text without a colon is a port or a range of ports, rather than a host.
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
