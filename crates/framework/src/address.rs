//! Addresses as a configuration or a URL writes them, their resolution, and their form in logs and
//! variables.
//!
//! Names are resolved when the configuration is compiled, through its [`Files`]: in the master by
//! the system's resolver, in a worker from the results that the master has passed on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;

use conf::Files;
use engine::net::Address;

/// An address as written: `host`, `host:port`, `[ipv6]:port`, `unix:path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenAddress<'a> {
    /// The host without brackets and port, or the path of the socket.
    pub name: &'a [u8],
    /// The port; `None` if the text has none.
    pub port: Option<u16>,
    /// Whether the address is that of a Unix socket.
    pub unix: bool,
}

/// Reads an address. The error is nginx's text, to be followed by `in upstream "…"`.
pub fn parse(text: &[u8]) -> Result<WrittenAddress<'_>, &'static str> {
    if let Some(path) = text.strip_prefix(b"unix:") {
        if path.is_empty() {
            return Err("no path in the unix domain socket");
        }
        return Ok(WrittenAddress {
            name: path,
            port: None,
            unix: true,
        });
    }
    if text.iter().any(|byte| matches!(byte, b'/' | b'?')) {
        return Err("invalid host"); // no URI belongs here
    }
    let (name, port) = match text.strip_prefix(b"[") {
        Some(literal) => ipv6(literal)?,
        None => match memchr::memchr(b':', text).and_then(|colon| text.split_at_checked(colon)) {
            Some((name, port)) => (name, port.get(1..)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(digits) => Some(port_of(digits).ok_or("invalid port")?),
        None => None,
    };
    if name.is_empty() {
        return Err("no host");
    }
    Ok(WrittenAddress {
        name,
        port,
        unix: false,
    })
}

/// Splits the text after a `[` into the address and the digits of the port.
fn ipv6(text: &[u8]) -> Result<(&[u8], Option<&[u8]>), &'static str> {
    let close = memchr::memchr(b']', text).ok_or("invalid host")?;
    let (name, rest) = text.split_at_checked(close).ok_or("invalid host")?;
    let valid = std::str::from_utf8(name).is_ok_and(|name| name.parse::<Ipv6Addr>().is_ok());
    if !valid {
        return Err("invalid IPv6 address");
    }
    match rest {
        [b']'] => Ok((name, None)),
        [b']', b':', port @ ..] => Ok((name, Some(port))),
        _ => Err("invalid host"),
    }
}

fn port_of(digits: &[u8]) -> Option<u16> {
    let port = conf::parse::number_of(digits)?;
    u16::try_from(port).ok().filter(|port| *port > 0)
}

impl WrittenAddress<'_> {
    /// The address, if `name` is an IP address or the path of a Unix socket; `None` for a host
    /// name.
    pub fn literal(&self, default_port: u16) -> Option<Address> {
        let name = std::str::from_utf8(self.name).ok()?;
        if self.unix {
            return Some(Address::Unix(name.into()));
        }
        let ip: IpAddr = name.parse().ok()?;
        let port = self.port.unwrap_or(default_port);
        Some(Address::Inet(SocketAddr::from((ip, port))))
    }

    /// All addresses of the name, without duplicates; `None` if there are none.
    pub fn resolve(&self, files: &dyn Files, default_port: u16) -> Option<Vec<Address>> {
        if let Some(address) = self.literal(default_port) {
            return Some(vec![address]);
        }
        let name = std::str::from_utf8(self.name).ok()?;
        let port = self.port.unwrap_or(default_port);
        let found = files.addresses(name)?.into_iter();
        let addresses: Vec<Address> = found.map(|ip| Address::Inet((ip, port).into())).collect();
        (!addresses.is_empty()).then_some(addresses)
    }
}

/// Appends an address without its port, as nginx shows clients: `127.0.0.1`, `::1`,
/// `unix:/path`, or `unix:` for a socket without a name.
pub fn append_address(address: &Address, out: &mut Vec<u8>) {
    match address {
        Address::Inet(address) => match address.ip() {
            IpAddr::V4(ip) => append_v4(ip, out),
            IpAddr::V6(ip) => append_v6(ip, out),
        },
        Address::Unix(path) => {
            out.extend_from_slice(b"unix:");
            out.extend_from_slice(path.as_os_str().as_bytes());
        }
    }
}

/// Does not use the standard library's formatting, which is slower: most access-log lines begin
/// with an IPv4 address.
fn append_v4(ip: Ipv4Addr, out: &mut Vec<u8>) {
    for (at, octet) in ip.octets().into_iter().enumerate() {
        if at > 0 {
            out.push(b'.');
        }
        if octet >= 100 {
            out.push(b'0' + octet / 100);
        }
        if octet >= 10 {
            out.push(b'0' + octet / 10 % 10);
        }
        out.push(b'0' + octet % 10);
    }
}

/// RFC 5952, but nginx also shows IPv4-compatible addresses (`::1.2.3.4`) with dots.
fn append_v6(ip: Ipv6Addr, out: &mut Vec<u8>) {
    let [.., high, low] = ip.segments();
    let is_compatible =
        ip.octets().starts_with(&[0; 12]) && (high != 0 || (low >= 0x100 && low & 0xff != 1));
    if is_compatible {
        out.extend_from_slice(b"::");
        append_v4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)), out);
    } else {
        out.extend_from_slice(ip.to_string().as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected texts: the output of `ngx_inet6_ntop`.
    #[test]
    fn addresses_as_nginx_shows_them() {
        for text in [
            "127.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "2001:db8::1",
            "2001:db8:0:1:1:1:1:1",
            "2001:0:0:1::1",
            "::ffff:192.0.2.1",
            "fe80::1:0:0:1",
            "::1.2.3.4",
            "::0.0.1.2",
            "::5",
        ] {
            let ip: IpAddr = text.parse().unwrap();
            let mut out = Vec::new();
            append_address(&Address::Inet((ip, 80).into()), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }

    #[test]
    fn forms_of_addresses() {
        let shown = |text: &str| {
            let written = parse(text.as_bytes()).unwrap();
            (
                String::from_utf8(written.name.to_vec()).unwrap(),
                written.port,
                written.unix,
            )
        };
        assert_eq!(shown("backend"), ("backend".into(), None, false));
        assert_eq!(shown("10.0.0.1:81"), ("10.0.0.1".into(), Some(81), false));
        assert_eq!(shown("[::1]"), ("::1".into(), None, false));
        assert_eq!(shown("[::1]:81"), ("::1".into(), Some(81), false));
        assert_eq!(shown("unix:/a:b"), ("/a:b".into(), None, true));
    }

    /// Expected texts: the errors of `ngx_parse_url`.
    #[test]
    fn faults_in_nginx_words() {
        for (text, fault) in [
            ("", "no host"),
            (":80", "no host"),
            ("a:", "invalid port"),
            ("a:0", "invalid port"),
            ("a:65536", "invalid port"),
            ("a:1:2", "invalid port"),
            ("a/b", "invalid host"),
            ("[::1", "invalid host"),
            ("[::1]x", "invalid host"),
            ("[1.2.3.4]", "invalid IPv6 address"),
            ("unix:", "no path in the unix domain socket"),
        ] {
            assert_eq!(parse(text.as_bytes()), Err(fault), "{text}");
        }
    }

    #[test]
    fn literals_need_no_resolving() {
        let literal = |text: &'static str| parse(text.as_bytes()).unwrap().literal(80);
        assert_eq!(literal("127.0.0.1").unwrap().to_string(), "127.0.0.1:80");
        assert_eq!(literal("[::1]:8080").unwrap().to_string(), "[::1]:8080");
        assert_eq!(literal("unix:/run/a").unwrap().to_string(), "unix:/run/a");
        assert_eq!(literal("localhost"), None);
    }
}
