//! The addresses that `serve` listens on: `--listen`, the search for a free port, and the URLs to
//! print.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};

/// The default port.
const PORT: u16 = 8080;

/// Ports that are tried, starting with [`PORT`], if no port was requested.
const PORTS_TRIED_MAX: u16 = 100;

/// The addresses that were chosen for listening.
pub(crate) struct ListenChoice {
    pub(crate) addresses: Vec<SocketAddr>,
    /// A message if the port is not the expected one.
    pub(crate) note: Option<String>,
}

/// The addresses of `--listen`, checked to be free; without `--listen`, the first free port
/// starting with 8080. The error is the line to print.
pub(crate) fn choose(listen: &[String]) -> Result<ListenChoice, String> {
    if listen.is_empty() {
        return first_free(PORT);
    }
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for text in listen {
        for address in parse(text)? {
            let address = check_bind(address).map_err(|error| {
                process::log::failure(&format!("cannot listen on {address}"), &error)
            })?;
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    Ok(ListenChoice {
        addresses,
        note: None,
    })
}

/// The first free port of 127.0.0.1, starting with `wanted`.
fn first_free(wanted: u16) -> Result<ListenChoice, String> {
    let last = wanted.saturating_add(PORTS_TRIED_MAX - 1);
    for port in wanted..=last {
        match check_bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))) {
            Ok(address) => {
                let note =
                    (port != wanted).then(|| format!("Port {wanted} is taken, this is {port}."));
                return Ok(ListenChoice {
                    addresses: vec![address],
                    note,
                });
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => {
                let call = format!("cannot listen on 127.0.0.1:{port}");
                return Err(process::log::failure(&call, &error));
            }
        }
    }
    Err(format!(
        "no port from {wanted} to {last} is free on 127.0.0.1; name one with --listen"
    ))
}

/// Checks that an address is usable by binding it for a moment, and resolves port 0.
fn check_bind(address: SocketAddr) -> io::Result<SocketAddr> {
    TcpListener::bind(address)?.local_addr()
}

/// The addresses of a `--listen` argument: a host name may have several.
fn parse(text: &str) -> Result<Vec<SocketAddr>, String> {
    if let Ok(port) = text.parse::<u16>() {
        // Without an explicit address, the server is not reachable from the network.
        return Ok(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))]);
    }
    // The system would parse a plain number as an IPv4 address.
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("--listen {text}: there is no such port"));
    }
    let unbracketed = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    if let Ok(ip) = unbracketed.unwrap_or(text).parse::<IpAddr>() {
        return Ok(vec![SocketAddr::from((ip, PORT))]);
    }
    let with_port = match text.rsplit_once(':') {
        Some(("" | "*", port)) => format!("0.0.0.0:{port}"),
        Some(_) => text.to_owned(),
        None => format!("{}:{PORT}", if text == "*" { "0.0.0.0" } else { text }),
    };
    let found = with_port
        .to_socket_addrs()
        .map_err(|error| format!("--listen {text}: {error}"))?;
    Ok(found.collect())
}

/// The URLs for some addresses; for an unspecified address, those of all addresses of this machine.
pub(crate) fn urls(addresses: &[SocketAddr]) -> Vec<String> {
    let mut urls = Vec::new();
    for address in addresses {
        let port = address.port();
        let ips = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => {
                let table = fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
                with_loopback(Ipv4Addr::LOCALHOST.into(), own_ipv4(&table))
            }
            IpAddr::V6(ip) if ip.is_unspecified() => {
                let table = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
                with_loopback(Ipv6Addr::LOCALHOST.into(), own_ipv6(&table))
            }
            ip => vec![ip],
        };
        let new: Vec<String> = ips
            .into_iter()
            .map(|ip| format!("http://{}/", SocketAddr::from((ip, port))))
            .collect();
        urls.extend(new);
    }
    urls
}

/// The loopback address, followed by the other addresses.
fn with_loopback<Ip: Into<IpAddr>>(loopback: IpAddr, others: Vec<Ip>) -> Vec<IpAddr> {
    let others = others.into_iter().map(Into::into);
    std::iter::once(loopback).chain(others).collect()
}

/// This machine's addresses in the kernel's routing table: the line after an address has its type.
fn own_ipv4(table: &str) -> Vec<Ipv4Addr> {
    let mut found: Vec<Ipv4Addr> = Vec::new();
    let mut last = None;
    for line in table.lines() {
        if let Some((_, address)) = line.split_once("|-- ") {
            last = address.trim().parse().ok();
        } else if line.trim() == "/32 host LOCAL"
            && let Some(address) = last
            && !Ipv4Addr::is_loopback(&address)
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    found
}

/// This machine's addresses in the kernel's list of IPv6 addresses, without link-local addresses,
/// whose URLs would need an interface name.
fn own_ipv6(table: &str) -> Vec<Ipv6Addr> {
    const GLOBAL: &str = "00";
    let address = |line: &str| {
        let mut fields = line.split_whitespace();
        let digits = fields.next()?;
        let scope = fields.nth(2)?;
        let bits = u128::from_str_radix(digits, 16).ok()?;
        (scope == GLOBAL).then(|| Ipv6Addr::from(bits))
    };
    table.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_parts_get_defaults() {
        for (text, expected) in [
            ("9000", "127.0.0.1:9000"),
            ("0.0.0.0", "0.0.0.0:8080"),
            ("127.0.0.2:81", "127.0.0.2:81"),
            (":81", "0.0.0.0:81"),
            ("*:81", "0.0.0.0:81"),
            ("*", "0.0.0.0:8080"),
            ("[::1]", "[::1]:8080"),
            ("::1", "[::1]:8080"),
            ("[::]:81", "[::]:81"),
        ] {
            let expected: SocketAddr = expected.parse().unwrap();
            assert_eq!(parse(text), Ok(vec![expected]), "{text}");
        }
        assert!(parse("127.0.0.1:99999").is_err());
        assert!(parse("[::1").is_err() && parse("::1]").is_err());
    }

    #[test]
    fn taken_port_is_an_error_if_requested_and_skipped_otherwise() {
        let error = choose(&["99999".to_owned()]).err().unwrap();
        assert_eq!(error, "--listen 99999: there is no such port");
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = choose(&[port.to_string()]).err().unwrap();
        let expected = format!("cannot listen on 127.0.0.1:{port} (98: Address already in use)");
        assert_eq!(error, expected);
        let chosen = first_free(port).unwrap();
        let free = chosen.addresses[0].port();
        assert!(free > port);
        let note = format!("Port {port} is taken, this is {free}.");
        assert_eq!(chosen.note, Some(note));
    }

    #[test]
    fn own_addresses_are_found_in_the_tables_of_the_kernel() {
        let table = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n     \
                     |-- 192.168.1.0\n        /24 link UNICAST\n     |-- 192.168.1.7\n        /32 \
                     host LOCAL\n     |-- 192.168.1.255\n        /32 link BROADCAST\nLocal:\n     \
                     |-- 192.168.1.7\n        /32 host LOCAL\n";
        assert_eq!(own_ipv4(table), [Ipv4Addr::new(192, 168, 1, 7)]);
        let table = "00000000000000000000000000000001 01 80 10 80       lo\n\
                     fe800000000000000000000000000001 02 40 20 80     eth0\n\
                     20010db8000000000000000000000007 02 40 00 80     eth0\n";
        assert_eq!(
            own_ipv6(table),
            ["2001:db8::7".parse::<Ipv6Addr>().unwrap()]
        );
        let urls = urls(&["127.0.0.1:80".parse().unwrap(), "[::1]:81".parse().unwrap()]);
        assert_eq!(urls, ["http://127.0.0.1:80/", "http://[::1]:81/"]);
    }
}
