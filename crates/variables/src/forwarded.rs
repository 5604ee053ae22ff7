//! The addresses of clients behind proxies, from `X-Forwarded-For` or a similar field.
//!
//! Used by `realip`, `geo` and `geoip2`; like nginx's `ngx_http_get_forwarded_addr`. The caller
//! decides which proxies are trusted.

use std::net::{IpAddr, SocketAddr};

use engine::net::Address;
use framework::network::parse_address;

/// If `address` is that of a trusted proxy, returns the last address in `lines`, the values of the
/// field. With `recursive`, if that address is trusted too, goes on to the address before it, until
/// an address is not trusted or no valid address is left.
pub fn client(
    address: Address,
    lines: &[&[u8]],
    trusted: impl Fn(&Address) -> bool,
    recursive: bool,
) -> Address {
    let separates = |&byte: &u8| byte == b' ' || byte == b',';
    let mut address = address;
    for line in lines.iter().rev() {
        let mut rest = *line;
        loop {
            if !trusted(&address) {
                return address;
            }
            while rest.len() > 1 && rest.last().is_some_and(separates) {
                rest = rest.get(..rest.len() - 1).unwrap_or_default();
            }
            // As in nginx, a separator at the start of a line counts as a part of the address,
            // which is invalid then.
            let start = rest.iter().rposition(&separates).filter(|&at| at > 0);
            let text = rest.get(start.map_or(0, |at| at + 1)..).unwrap_or_default();
            let Some(next) = parse_address_port(text) else {
                return address;
            };
            address = Address::Inet(next);
            if !recursive {
                return address;
            }
            match start {
                Some(at) => rest = rest.get(..at).unwrap_or_default(),
                None => break,
            }
        }
    }
    address
}

/// Parses an address with an optional port, which defaults to 0: `10.0.0.1`, `10.0.0.1:80`, `::1`,
/// `[::1]`, `[::1]:80`.
fn parse_address_port(text: &[u8]) -> Option<SocketAddr> {
    let with_port = |address: &[u8], port: u16| {
        let address: IpAddr = parse_address(address)?;
        Some(SocketAddr::new(address, port))
    };
    if let Some(address) = with_port(text, 0) {
        return Some(address);
    }
    let (address, port) = if let Some(rest) = text.strip_prefix(b"[") {
        let end = memchr::memchr(b']', rest)?;
        let (address, behind) = (rest.get(..end)?, rest.get(end + 1..)?);
        if behind.is_empty() {
            return with_port(address, 0);
        }
        (address, behind.strip_prefix(b":")?)
    } else {
        let colon = memchr::memchr(b':', text)?;
        (text.get(..colon)?, text.get(colon + 1..)?)
    };
    let port = conf::parse::number_of(port).and_then(|port| u16::try_from(port).ok())?;
    with_port(address, port).filter(|_| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(from: &str, lines: &[&[u8]], recursive: bool) -> String {
        let from = Address::Inet(SocketAddr::new(from.parse().unwrap(), 0));
        let trusted = |address: &Address| match address.ip().map(|ip| ip.to_canonical()) {
            Some(IpAddr::V4(ip)) => ip.is_loopback() || ip.octets()[0] == 10,
            _ => false,
        };
        client(from, lines, trusted, recursive).to_string()
    }

    #[test]
    fn proxies_are_passed_through() {
        let once = |from: &str, lines: &[&[u8]]| found(from, lines, false);
        let all = |from: &str, lines: &[&[u8]]| found(from, lines, true);
        assert_eq!(once("192.0.2.9", &[b"192.0.2.1"]), "192.0.2.9:0");
        assert_eq!(once("127.0.0.1", &[b"192.0.2.1"]), "192.0.2.1:0");
        assert_eq!(once("::ffff:127.0.0.1", &[b"192.0.2.1"]), "192.0.2.1:0");
        let two: &[u8] = b"192.0.2.1, 10.0.0.1";
        assert_eq!(once("127.0.0.1", &[two]), "10.0.0.1:0");
        let spaced: &[u8] = b"192.0.2.1, 10.0.0.1 , ";
        assert_eq!(all("127.0.0.1", &[spaced]), "192.0.2.1:0");
        let lines: &[&[u8]] = &[b"192.0.2.1", b"10.0.0.1,10.0.0.2"];
        assert_eq!(all("127.0.0.1", lines), "192.0.2.1:0");
        let unknown: &[u8] = b"192.0.2.1, unknown, 10.0.0.1";
        assert_eq!(all("127.0.0.1", &[unknown]), "10.0.0.1:0");
        assert_eq!(once("127.0.0.1", &[b""]), "127.0.0.1:0");
    }

    #[test]
    fn addresses_with_ports() {
        let once = |line: &[u8]| found("127.0.0.1", &[line], false);
        assert_eq!(once(b"192.0.2.1:8080"), "192.0.2.1:8080");
        assert_eq!(once(b"[2001:db8::1]:80"), "[2001:db8::1]:80");
        assert_eq!(once(b"[2001:db8::1]"), "[2001:db8::1]:0");
        for wrong in [
            "192.0.2.1:0",
            "192.0.2.1:",
            "192.0.2.1:65536",
            "[::1",
            "[::1]80",
        ] {
            assert_eq!(once(wrong.as_bytes()), "127.0.0.1:0", "{wrong}");
        }
    }
}
