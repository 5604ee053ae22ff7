//! A line of `server` in an `upstream` block.

use std::fmt::Write as _;
use std::time::Duration;

use ::upstream::{Checks, Host, Peer, PeerSide};
use bytes::Bytes;
use conf::{Fault, Files, Line, Word, parse};
use engine::net::Address;
use framework::address::{self, WrittenAddress};
use md5::{Digest, Md5};
use proto::dns::HostName;

use super::methods::Supported;
use super::protocol::Servers;

/// One line of `server` in an `upstream` block.
#[derive(Clone, Debug)]
pub(super) struct Server {
    address: Word,
    weight: i64,
    /// Maximum number of requests in flight; 0 is no limit.
    max_conns: usize,
    max_fails: u64,
    fail_timeout: Duration,
    /// Zero disables the slow start.
    slow_start: Duration,
    pub(super) backup: bool,
    down: bool,
    resolve: bool,
    service: Option<Bytes>,
    /// Whether the server only gets requests that prefer it by its `route`.
    drain: bool,
    /// The id by which sticky sessions request the server; `None` for the hash of its address.
    route: Option<Bytes>,
    /// `id`: the number of the server in metrics.
    pub(super) number: Option<u64>,
    /// The health checks of the group.
    pub(super) checks: Option<Checks>,
    /// The port of an address without a port.
    default_port: u16,
}

impl Server {
    /// Parses a line. `supported` are the parameters that the balancing method supports.
    pub(super) fn parse(
        line: &Line,
        supported: Supported,
        servers: Servers,
    ) -> Result<Server, Fault> {
        Server::of_words(&line.args, supported, servers)
    }

    fn of_words(words: &[Word], supported: Supported, servers: Servers) -> Result<Server, Fault> {
        let [address, parameters @ ..] = words else {
            return Err(Fault::new(
                "invalid number of arguments in \"server\" directive",
            ));
        };
        let mut server = Server {
            address: address.clone(),
            weight: 1,
            max_conns: 0,
            max_fails: 1,
            fail_timeout: Duration::from_secs(10),
            slow_start: Duration::ZERO,
            backup: false,
            down: false,
            resolve: false,
            service: None,
            drain: false,
            route: None,
            number: None,
            checks: None,
            default_port: servers.default_port.unwrap_or(NO_PORT),
        };
        for word in parameters {
            let is_slow_start = word.bytes.starts_with(b"slow_start=");
            if !supported.backup && &*word.bytes == b"backup"
                || !supported.slow_start && is_slow_start
            {
                let word_text = word.text();
                let text = format!("balancing method does not support parameter \"{word_text}\"");
                return Err(Fault::at(word, text));
            }
            if &*word.bytes == b"service=" {
                return Err(Fault::at(word, "service is empty"));
            }
            if !servers.are_named && is_of_named(&word.bytes) {
                return Err(Fault::invalid_parameter(word));
            }
            if let Some(route) = word.bytes.strip_prefix(b"route=") {
                server.route = Some(route_of(route).map_err(|text| Fault::at(word, text))?);
                continue;
            }
            server
                .take(&word.bytes)
                .ok_or_else(|| Fault::invalid_parameter(word))?;
        }
        server.check_service()?;
        if servers.default_port.is_none() {
            server.check_port()?;
        }
        Ok(server)
    }

    /// Parses a parameter; `None` if it is unknown or invalid.
    fn take(&mut self, parameter: &[u8]) -> Option<()> {
        if let Some(weight) = parameter.strip_prefix(b"weight=") {
            let weight = parse::number_of(weight).filter(|weight| *weight > 0)?;
            self.weight = i64::try_from(weight).ok()?;
        } else if let Some(most) = parameter.strip_prefix(b"max_conns=") {
            self.max_conns = usize::try_from(parse::number_of(most)?).ok()?;
        } else if let Some(fails) = parameter.strip_prefix(b"max_fails=") {
            self.max_fails = parse::number_of(fails)?;
        } else if let Some(time) = parameter.strip_prefix(b"fail_timeout=") {
            self.fail_timeout = Duration::from_secs(parse::time_seconds(time)?);
        } else if let Some(time) = parameter.strip_prefix(b"slow_start=") {
            self.slow_start = Duration::from_millis(parse::time_milliseconds(time)?);
        } else if let Some(service) = parameter.strip_prefix(b"service=") {
            self.service = Some(Bytes::copy_from_slice(service));
        } else if let Some(number) = parameter.strip_prefix(b"id=") {
            self.number = Some(parse::number_of(number)?);
        } else if parameter == b"resolve" {
            self.resolve = true;
        } else if parameter == b"backup" {
            self.backup = true;
        } else if parameter == b"down" {
            // The last of `down` and `drain` applies.
            (self.down, self.drain) = (true, false);
        } else if parameter == b"drain" {
            (self.down, self.drain) = (false, true);
        } else {
            return None;
        }
        Some(())
    }

    /// Checks that a server with `service` is a name that is resolved repeatedly, without a port.
    fn check_service(&self) -> Result<(), Fault> {
        if self.service.is_none() {
            return Ok(());
        }
        let name = self.address.text();
        let fault = |text: &str| {
            Err(Fault::at(
                &self.address,
                format!("service upstream \"{name}\" {text}"),
            ))
        };
        if !self.resolve {
            return fault("requires \"resolve\" parameter");
        }
        let written = self.written()?;
        if written.port.is_some() {
            return fault("may not have port");
        }
        match written.literal(self.default_port) {
            Some(_) => fault("requires domain name"),
            None => Ok(()),
        }
    }

    /// Checks that the server has a port, unless it is a Unix socket or its port comes from SRV
    /// records (`service`).
    fn check_port(&self) -> Result<(), Fault> {
        let written = self.written()?;
        let needs_port = !written.unix && self.service.is_none();
        if needs_port && written.port.is_none() {
            return Err(self.fault("no port"));
        }
        Ok(())
    }

    fn fault(&self, text: &str) -> Fault {
        let text = format!("{text} in upstream \"{}\"", self.address.text());
        Fault::at(&self.address, text)
    }

    fn written(&self) -> Result<WrittenAddress<'_>, Fault> {
        address::parse(&self.address.bytes).map_err(|text| self.fault(text))
    }

    /// The host whose name is resolved repeatedly; `None` for a literal address, or without
    /// `resolve`.
    pub(super) fn host(&self) -> Result<Option<Host>, Fault> {
        let written = self.written()?;
        if !self.resolve || written.literal(self.default_port).is_some() {
            return Ok(None);
        }
        let mut template = self.peer(no_address());
        template.id = self.route.clone().unwrap_or_default();
        Ok(Some(Host {
            name: host_name(&written),
            port: written.port.unwrap_or(self.default_port),
            service: self.service.clone(),
            template,
            id_of: hash_of,
            side: if self.backup {
                PeerSide::Backups
            } else {
                PeerSide::Peers
            },
        }))
    }

    /// The server's peers: one for each address of its name.
    pub(super) fn peers(&self, files: &dyn Files) -> Result<Vec<Peer>, Fault> {
        let addresses = self.written()?.resolve(files, self.default_port);
        let addresses = addresses.ok_or_else(|| self.fault("host not found"))?;
        Ok(addresses
            .into_iter()
            .map(|address| self.peer(address))
            .collect())
    }

    fn peer(&self, address: Address) -> Peer {
        let mut peer = Peer::new(address);
        peer.server = Bytes::copy_from_slice(&self.address.bytes);
        peer.weight = self.weight;
        peer.max_conns = self.max_conns;
        peer.max_fails = self.max_fails;
        peer.fail_timeout = self.fail_timeout;
        peer.slow_start = self.slow_start;
        peer.checks = self.checks.clone();
        peer.number = self.number;
        peer.down = self.down;
        peer.draining = self.drain;
        peer.id = match &self.route {
            Some(route) => route.clone(),
            None => hash_of(&peer.name),
        };
        peer
    }
}

/// A host whose addresses are looked up, for a server that the API adds. `written` must not be a
/// literal address.
///
/// # Errors
/// An error text for a name that no lookup can be made for.
pub fn host_of(
    written: &WrittenAddress<'_>,
    service: Option<Bytes>,
    default_port: u16,
    side: PeerSide,
) -> Result<Host, &'static str> {
    let name = host_name(written);
    if HostName::parse(&name).is_none() {
        return Err("invalid host");
    }
    let mut host = Host {
        template: Peer::new(no_address()),
        port: written.port.unwrap_or(default_port),
        name,
        service,
        id_of: hash_of,
        side,
    };
    host.template.server = host.server();
    Ok(host)
}

/// The name of a host, without the trailing dot of a fully qualified name.
fn host_name(written: &WrittenAddress<'_>) -> Bytes {
    Bytes::copy_from_slice(written.name.strip_suffix(b".").unwrap_or(written.name))
}

/// A placeholder for the address of a template, which is not used.
fn no_address() -> Address {
    Address::Unix(Default::default())
}

/// Whether a parameter is only allowed if [`Servers::are_named`] is true.
fn is_of_named(parameter: &[u8]) -> bool {
    parameter == b"drain" || parameter.starts_with(b"route=") || parameter.starts_with(b"id=")
}

/// The port that stands for a missing port, of a server that needs no port.
pub(super) const NO_PORT: u16 = 0;

/// The longest `route`, in bytes.
const ROUTE_MAX: usize = 32;

/// Checks the value of `route`.
///
/// # Errors
/// nginx's errors for an empty or too long value.
pub fn route_of(route: &[u8]) -> Result<Bytes, String> {
    match route.len() {
        0 => Err("route is empty".to_owned()),
        1..=ROUTE_MAX => Ok(Bytes::copy_from_slice(route)),
        _ => Err(format!("route is longer than {ROUTE_MAX}")),
    }
}

/// The id of a server without `route`: the MD5 hash of its address, in hexadecimal.
pub fn hash_of(name: &[u8]) -> Bytes {
    let mut text = String::with_capacity(ROUTE_MAX);
    for byte in Md5::digest(name) {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Server, String> {
        let word = |text: &str| Word {
            bytes: text.as_bytes().into(),
            quoted: false,
            position: Default::default(),
        };
        let words: Vec<Word> = line.split(' ').map(word).collect();
        let servers = Servers {
            default_port: Some(80),
            are_named: true,
        };
        Server::of_words(&words, Supported::default(), servers).map_err(|fault| fault.message)
    }

    #[test]
    fn lines_of_server() {
        let plain = parsed("10.0.0.1").unwrap();
        assert_eq!((plain.weight, plain.max_conns, plain.max_fails), (1, 0, 1));
        assert_eq!(plain.fail_timeout, Duration::from_secs(10));
        assert!(!plain.backup && !plain.down);

        let full = parsed(
            "a:1 weight=5 max_conns=7 max_fails=0 fail_timeout=1m slow_start=1500ms backup down",
        )
        .unwrap();
        assert_eq!(full.slow_start, Duration::from_millis(1500));
        assert_eq!((full.weight, full.max_conns, full.max_fails), (5, 7, 0));
        assert_eq!(full.fail_timeout, Duration::from_secs(60));
        assert!(full.backup && full.down && !full.drain);
        let numbered = parsed("a:1 id=12").unwrap();
        assert_eq!((plain.number, numbered.number), (None, Some(12)));
        let [last, first] =
            ["down drain", "drain down"].map(|words| parsed(&format!("a:1 {words}")).unwrap());
        assert!(last.drain && !last.down && first.down && !first.drain);
    }

    /// Texts of nginx 1.31.
    #[test]
    fn faults_of_server() {
        for parameter in [
            "weight=0",
            "weight=x",
            "max_fails=-1",
            "fail_timeout=1x",
            "slow_start=1x",
            "slow_start=",
            "id=",
            "id=x",
            "id=-1",
            "up",
        ] {
            let text = format!("invalid parameter \"{parameter}\"");
            assert_eq!(parsed(&format!("a {parameter}")).map(drop), Err(text));
        }
        let long = format!("a route={}", "x".repeat(33));
        assert_eq!(parsed("a route=").map(drop), Err("route is empty".into()));
        assert_eq!(
            parsed(&long).map(drop),
            Err("route is longer than 32".into())
        );
    }

    #[test]
    fn a_name_stands_for_all_its_addresses() {
        let server = parsed("[::1]:81 weight=2 down").unwrap();
        let peers = server.peers(&conf::Disk).unwrap();
        assert_eq!(peers.len(), 1);
        assert_eq!(peers[0].name, "[::1]:81");
        assert!(peers[0].down && peers[0].weight == 2);
        // By `printf %s '[::1]:81' | md5sum`.
        assert_eq!(peers[0].id, "9a70ad7bdf417f6239f737609020794f");
        let routed = parsed("[::1]:81 route=x drain").unwrap();
        let routed = routed.peers(&conf::Disk).unwrap();
        assert!(routed[0].id == "x" && routed[0].draining);
        assert_eq!(
            parsed("10.0.0.1").unwrap().peers(&conf::Disk).unwrap()[0].name,
            "10.0.0.1:80"
        );
        let fault = parsed("10.0.0.1:0")
            .unwrap()
            .peers(&conf::Disk)
            .unwrap_err();
        assert_eq!(fault.message, "invalid port in upstream \"10.0.0.1:0\"");
    }
}
