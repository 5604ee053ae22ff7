//! Ports for servers that a test starts.
//!
//! Not from the kernel (port 0): between the moment that such a port is given back and the one at
//! which the server takes it, it may become the local port of another test's connection.

use std::net::{Ipv6Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 10_000;
/// Where the range begins from which the kernel takes the ports of connections, with some distance.
pub const END: u16 = 32_000;

/// A port that nobody uses, on any address. No two calls in a process give the same one.
pub fn free_port() -> u16 {
    free_ports(1)
}

/// The first of `count` such ports in a row.
pub fn free_ports(count: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = FIRST + (std::process::id() % 2000) as u16 * 10;
    let _ = NEXT.compare_exchange(0, begin, Ordering::Relaxed, Ordering::Relaxed);
    loop {
        let first = NEXT.fetch_add(count, Ordering::Relaxed);
        if first >= END - count {
            NEXT.store(FIRST, Ordering::Relaxed);
            continue;
        }
        if (first..first + count).all(is_free) {
            return first;
        }
    }
}

fn is_free(port: u16) -> bool {
    // Where there is IPv6, a server may want both.
    let taken = |error: std::io::Error| error.kind() == std::io::ErrorKind::AddrInUse;
    TcpListener::bind(("0.0.0.0", port)).is_ok()
        && TcpListener::bind(("127.0.0.1", port)).is_ok()
        && !TcpListener::bind((Ipv6Addr::LOCALHOST, port)).is_err_and(taken)
}
