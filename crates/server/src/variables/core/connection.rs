//! Both ends of the connection.

use std::net::IpAddr;

use engine::net::TcpInfo;

use crate::http::request::Request;
use framework::address::append_address;
use variables::write::{append_port, decimal, seconds};

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

pub(super) fn server_addr(request: &mut Request, out: &mut Vec<u8>) -> bool {
    append_address(request.connection.local(), out);
    true
}

pub(super) fn server_port(request: &mut Request, out: &mut Vec<u8>) -> bool {
    append_port(request.connection.local(), out)
}

pub(super) fn connection_time(request: &mut Request, out: &mut Vec<u8>) -> bool {
    seconds(
        engine::now().saturating_duration_since(request.connection.client.started),
        out,
    )
}

/// A number of `TCP_INFO`; not found for a Unix socket.
pub(super) fn tcp_info(request: &Request, number: fn(TcpInfo) -> u32, out: &mut Vec<u8>) -> bool {
    let info = request.connection.stream.tcp_info();
    info.is_some_and(|info| decimal(number(info).into(), out))
}

#[cfg(test)]
mod tests {
    use engine::net::Address;

    use super::*;

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
