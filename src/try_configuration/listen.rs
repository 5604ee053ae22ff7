//! Addresses of `listen`, and their replacements, which do not conflict with the running server.

use std::collections::BTreeSet;
use std::net::ToSocketAddrs;
use std::ops::RangeInclusive;

use engine::net::ListenOptions;

/// The default port of `listen`, and of a server without `listen` if the master is root, as the
/// running server's is.
const PORT: u16 = 80;

/// The range in which free ports are searched: few programs listen on these ports, and they are
/// below the range of ephemeral ports.
const FREE_PORTS: RangeInclusive<u16> = 20000..=32000;

/// The address of a `listen` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Unix(String),
    /// A host, as written, and ports.
    Inet {
        /// `*`, an IP address (IPv6 in brackets) or a name, as written.
        host: String,
        /// One port, or a range of ports.
        ports: RangeInclusive<u16>,
    },
}

impl Address {
    /// Parses the first word of a `listen` line whose syntax has been checked; `None` if it has no
    /// address.
    pub(super) fn parse(text: &str) -> Option<Address> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Some(Address::Unix(path.to_owned()));
        }
        let is_port = text.starts_with(|first: char| first.is_ascii_digit()) && !text.contains('.');
        let (host, ports) = if is_port {
            ("*", Some(text))
        } else {
            match text.rsplit_once(':') {
                // Colons in brackets belong to an IPv6 address.
                Some((host, ports)) if !ports.contains(']') => (host, Some(ports)),
                _ => (text, None),
            }
        };
        let ports = match ports.map(|ports| ports.split_once('-').unwrap_or((ports, ports))) {
            Some((first, last)) => first.parse().ok()?..=last.parse().ok()?,
            None => PORT..=PORT,
        };
        let host = host.to_owned();
        Some(Address::Inet { host, ports })
    }

    /// The address with its ports moved by `offset`; `None` if a port would be out of range.
    pub(super) fn moved(&self, offset: u16) -> Option<Address> {
        let Address::Inet { host, ports } = self else {
            return Some(self.clone());
        };
        let first = ports.start().checked_add(offset)?;
        let last = ports.end().checked_add(offset)?;
        Some(Address::Inet {
            host: host.clone(),
            ports: first..=last,
        })
    }

    /// The address with the first range of free ports that are not `taken`.
    pub(super) fn at_free_ports(&self, taken: &BTreeSet<u16>) -> Option<Address> {
        let Address::Inet { host, ports } = self else {
            return Some(self.clone());
        };
        let more = ports.end().checked_sub(*ports.start())?;
        let host = host.clone();
        let at = |first: u16| {
            let ports = first..=first.checked_add(more)?;
            if taken.range(ports.clone()).next().is_some() {
                return None;
            }
            let host = host.clone();
            Some(Address::Inet { host, ports })
        };
        let mut all = FREE_PORTS.filter_map(at);
        all.find(|address| address.probe().is_ok())
    }

    /// Binds each port for a moment. The error says why a port is not usable.
    pub(super) fn probe(&self) -> Result<(), String> {
        let Address::Inet { host, ports } = self else {
            return Ok(());
        };
        let name = match host.as_str() {
            "*" => "0.0.0.0",
            host => host.trim_start_matches('[').trim_end_matches(']'),
        };
        for port in ports.clone() {
            // A name that does not resolve is reported as an error of the configuration.
            let Ok(found) = (name, port).to_socket_addrs() else {
                return Ok(());
            };
            for address in found {
                let options = ListenOptions::new(engine::net::Address::Inet(address));
                engine::net::listen(&options)
                    .map_err(|failed| process::log::failure("cannot be had", &failed.error))?;
            }
        }
        Ok(())
    }

    /// A host and a port at which this machine reaches the address; `None` for a Unix socket.
    pub(super) fn target(&self) -> Option<(String, u16)> {
        let Address::Inet { host, ports } = self else {
            return None;
        };
        let host = match host.as_str() {
            "*" | "0.0.0.0" => "127.0.0.1",
            "[::]" => "[::1]",
            host => host,
        };
        Some((host.to_owned(), *ports.start()))
    }

    /// The URL of the first port, reachable from this machine.
    pub(super) fn url(&self, scheme: &str) -> String {
        match self.target() {
            Some((host, port)) => format!("{scheme}://{host}:{port}/"),
            None => self.to_string(),
        }
    }
}

/// The address in the notation of `listen`.
impl std::fmt::Display for Address {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Unix(path) => write!(out, "unix:{path}"),
            Address::Inet { host, ports } if ports.start() == ports.end() => {
                write!(out, "{host}:{}", ports.start())
            }
            Address::Inet { host, ports } => {
                write!(out, "{host}:{}-{}", ports.start(), ports.end())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn addresses_of_every_shape_move() {
        for (old, new) in [
            ("80", "*:8080"),
            ("*:81", "*:8081"),
            ("127.0.0.1", "127.0.0.1:8080"),
            ("127.0.0.1:82", "127.0.0.1:8082"),
            ("localhost", "localhost:8080"),
            ("localhost:83", "localhost:8083"),
            ("[::]", "[::]:8080"),
            ("[::1]:84", "[::1]:8084"),
            ("1000-1010", "*:9000-9010"),
            ("127.0.0.1:20-30", "127.0.0.1:8020-8030"),
            ("unix:/run/x", "unix:/run/x"),
        ] {
            let moved = Address::parse(old).unwrap().moved(8000).unwrap();
            assert_eq!(moved.to_string(), new, "{old}");
        }
        let high = Address::parse("60000").unwrap();
        assert_eq!(high.moved(8000), None);
        assert_eq!(high.moved(5535).unwrap().to_string(), "*:65535");
    }

    #[test]
    fn a_taken_port_is_noticed() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::parse(&taken.local_addr().unwrap().to_string()).unwrap();
        let error = "cannot be had (98: Address already in use)".to_owned();
        assert_eq!(address.probe(), Err(error));
        let free = address.at_free_ports(&BTreeSet::new()).unwrap();
        assert_ne!(free, address);
        assert_eq!(free.probe(), Ok(()));
        let Some(Address::Inet { ports, .. }) = Address::parse("127.0.0.1:60000-60002")
            .unwrap()
            .at_free_ports(&[20001].into())
        else {
            panic!("three free ports");
        };
        assert!(*ports.start() > 20001 && ports.count() == 3);
        drop(taken);
        assert_eq!(address.probe(), Ok(()));
    }
}
