//! Both ends of the connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::ffi::OsStrExt;

use engine::net::{Address, TcpInfo};

use super::{decimal, seconds};
use crate::http::request::Request;

pub(super) fn remote_addr(request: &mut Request, out: &mut Vec<u8>) -> bool {
    append_address(request.peer(), out);
    true
}

/// Four or sixteen bytes; for a Unix socket its text.
pub(super) fn binary_remote_addr(request: &mut Request, out: &mut Vec<u8>) -> bool {
    match request.peer().ip() {
        Some(IpAddr::V4(ip)) => out.extend_from_slice(&ip.octets()),
        Some(IpAddr::V6(ip)) => out.extend_from_slice(&ip.octets()),
        None => append_address(request.peer(), out),
    }
    true
}

pub(super) fn remote_port(request: &mut Request, out: &mut Vec<u8>) -> bool {
    append_port(request.peer(), out)
}

/// The connection's own end, whatever `realip` makes of it.
pub(super) fn realip_remote_addr(request: &mut Request, out: &mut Vec<u8>) -> bool {
    append_address(request.connection.peer(), out);
    true
}

pub(super) fn realip_remote_port(request: &mut Request, out: &mut Vec<u8>) -> bool {
    append_port(request.connection.peer(), out)
}

pub(super) fn server_addr(request: &mut Request, out: &mut Vec<u8>) -> bool {
    append_address(request.connection.local(), out);
    true
}

pub(super) fn server_port(request: &mut Request, out: &mut Vec<u8>) -> bool {
    append_port(request.connection.local(), out)
}

pub(super) fn connection_time(request: &mut Request, out: &mut Vec<u8>) -> bool {
    seconds(
        engine::now().saturating_duration_since(request.connection.started),
        out,
    )
}

/// A number of `TCP_INFO`; not found for a Unix socket.
pub(super) fn tcp_info(request: &Request, number: fn(TcpInfo) -> u32, out: &mut Vec<u8>) -> bool {
    let info = request.connection.stream.tcp_info();
    info.is_some_and(|info| decimal(number(info).into(), out))
}

/// A Unix socket has no port: found and empty.
fn append_port(address: &Address, out: &mut Vec<u8>) -> bool {
    match address.port() {
        Some(port) if port > 0 => decimal(port.into(), out),
        _ => true,
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

/// By hand, because most access-log lines begin with one.
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

    /// Expected texts by `ngx_inet6_ntop`.
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
    fn unix_sockets() {
        let mut out = Vec::new();
        append_address(&Address::Unix("/run/site.sock".into()), &mut out);
        assert!(append_port(
            &Address::Unix("/run/site.sock".into()),
            &mut out
        ));
        assert_eq!(out, b"unix:/run/site.sock");
        out.clear();
        append_address(&Address::Unix(Default::default()), &mut out);
        assert_eq!(out, b"unix:");
    }
}
