//! Distributes datagrams among the sockets that share an address: all datagrams of one client go to
//! the same socket.
//!
//! For each datagram the kernel runs a small classic BPF program that is attached to the sockets
//! (`SO_ATTACH_REUSEPORT_CBPF`, which needs no privilege). The program hashes the client's address
//! and port. It must read them relative to the network header, because its input begins after the
//! UDP header. [`socket_of`] computes the same hash, so that a thread that receives another
//! thread's datagram can tell whose it is; that happens if another program, or none, was attached
//! when the datagram arrived.
//!
//! Without a program, the kernel's choice changes with the number of sockets, and includes sockets
//! that are bound but from which no thread receives yet. Read `bpf(2)` and the kernel's
//! `networking/filter.rst` first.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::BoundSocket;
use crate::sys::{self, Instruction};

/// Added to an offset to make it relative to the IP header (`SKF_NET_OFF`).
const NETWORK: u32 = -0x10_0000_i32 as u32;

/// Multiplier of the hash, which spreads inputs that differ in few bits: 2^32 divided by the golden
/// ratio.
const SPREAD: u32 = 0x9e37_79b1;

/// The number, below `count`, of the socket that gets a client's datagrams; 0 if `count` is 0.
#[must_use]
pub fn socket_of(client: SocketAddr, count: u32) -> u32 {
    let address = match client.ip().to_canonical() {
        IpAddr::V4(address) => u32::from(address),
        IpAddr::V6(address) => {
            let bits = u128::from(address);
            let words = [96, 64, 32, 0].map(|shift| (bits >> shift) as u32);
            let fold = |folded: u32, word: u32| folded.wrapping_mul(SPREAD) ^ word;
            words.into_iter().fold(0, fold)
        }
    };
    let both = address.wrapping_mul(SPREAD) ^ u32::from(client.port());
    let mixed = both.wrapping_mul(SPREAD);
    (mixed ^ (mixed >> 16)).checked_rem(count).unwrap_or(0)
}

/// Attaches the program to all sockets that share this socket's address: from now on, each client's
/// datagrams go to the socket that [`socket_of`] names. Sockets are numbered in the order in which
/// they were bound; those from `count` on get no datagrams.
///
/// # Errors
/// Those of `setsockopt()`: `EINVAL` if the socket was bound without `SO_REUSEPORT`. `Unsupported`
/// for a simulated socket.
pub fn steer(socket: &BoundSocket, count: u32) -> io::Result<()> {
    let descriptor = socket.descriptor();
    let descriptor = descriptor.ok_or(io::ErrorKind::Unsupported)?;
    sys::steer(descriptor, &program(count.max(1)))
}

/// The program for `count` sockets. The register `X` holds the value to be mixed in next, and
/// `M[0]` the port.
fn program(count: u32) -> Vec<Instruction> {
    use libc::{
        BPF_A, BPF_ABS, BPF_ALU, BPF_B, BPF_H, BPF_IND, BPF_JA, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD,
        BPF_LDX, BPF_MEM, BPF_MISC, BPF_MOD, BPF_MSH, BPF_MUL, BPF_RET, BPF_RSH, BPF_ST, BPF_TAX,
        BPF_W, BPF_X, BPF_XOR,
    };
    let does = |code: u32, k: u32| Instruction::new(code, k);
    let load = |size: u32, at: u32| does(BPF_LD | size | BPF_ABS, NETWORK.wrapping_add(at));
    let spread = does(BPF_ALU | BPF_MUL | BPF_K, SPREAD);
    let keep = does(BPF_MISC | BPF_TAX, 0);
    let mix = does(BPF_ALU | BPF_XOR | BPF_X, 0);
    let store_port = does(BPF_ST, 0);

    let v4 = [
        does(BPF_LDX | BPF_B | BPF_MSH, NETWORK), // the header's length
        does(BPF_LD | BPF_H | BPF_IND, NETWORK),
        store_port,
        load(BPF_W, 12),
    ];
    // IPv6 extension headers are not skipped: such a datagram is hashed with other bytes in place
    // of the port, so [`socket_of`] may name another socket.
    let mut v6 = vec![load(BPF_H, 40), store_port, load(BPF_W, 8)];
    for word in [12, 16, 20] {
        v6.extend([spread, keep, load(BPF_W, word), mix]);
    }
    let is_v4 = does(BPF_JMP | BPF_JEQ | BPF_K, 4).or_skip(v4.len() as u8 + 1);
    let over_v6 = does(BPF_JMP | BPF_JA, v6.len() as u32);
    let version = [load(BPF_B, 0), does(BPF_ALU | BPF_RSH | BPF_K, 4), is_v4];
    let end = [
        spread,
        keep,
        does(BPF_LD | BPF_MEM, 0),
        mix,
        spread,
        keep,
        does(BPF_ALU | BPF_RSH | BPF_K, 16),
        mix,
        does(BPF_ALU | BPF_MOD | BPF_K, count),
        does(BPF_RET | BPF_A, 0),
    ];
    [&version[..], &v4, &[over_v6], &v6, &end].concat()
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;
    use crate::net::{Address, ListenOptions, SocketKind, bound_address, listen};

    /// Sockets of one address, in the order in which they were bound.
    fn group(address: &str, count: usize) -> (Vec<UdpSocket>, SocketAddr) {
        let mut options = ListenOptions::new(Address::Inet(address.parse().unwrap()));
        options.carries = SocketKind::Datagrams;
        options.reuseport = true;
        options.ipv6only = Some(false);
        let mut sockets = Vec::new();
        for _ in 0..count {
            let socket = listen(&options).unwrap();
            options.address = bound_address(&socket).unwrap().0;
            let socket = UdpSocket::from(socket);
            socket.set_nonblocking(false).unwrap();
            let patience = Some(Duration::from_millis(1));
            socket.set_read_timeout(patience).unwrap();
            sockets.push(socket);
        }
        let Address::Inet(address) = options.address else {
            panic!("it is of a network");
        };
        (sockets, address)
    }

    fn steered(sockets: &[UdpSocket], count: u32) -> io::Result<()> {
        steer(
            &BoundSocket::from(std::os::fd::OwnedFd::from(sockets[0].try_clone()?)),
            count,
        )
    }

    /// Which of the sockets gets what a client sends, and from whom it is there.
    fn where_it_comes(sockets: &[UdpSocket], from: &str, to: SocketAddr) -> (usize, SocketAddr) {
        let client = UdpSocket::bind(from).unwrap();
        client.send_to(b"x", to).unwrap();
        loop {
            for (number, socket) in sockets.iter().enumerate() {
                match socket.recv_from(&mut [0; 8]) {
                    Ok((_, client)) => return (number, client),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
        }
    }

    #[test]
    fn the_kernel_gives_a_client_the_socket_that_is_its_own() {
        let cases = [
            ("127.0.0.1:0", "127.0.0.1:0", "127.0.0.1"),
            ("[::1]:0", "[::1]:0", "::1"),
            ("[::]:0", "[::1]:0", "::1"),
            ("[::]:0", "127.0.0.3:0", "127.0.0.1"),
        ];
        for (address, from, to) in cases {
            let (sockets, address) = group(address, 6);
            let to = SocketAddr::new(to.parse().unwrap(), address.port());
            // The last two are not served.
            steered(&sockets, 4).unwrap();
            let mut seen = [0; 6];
            for _ in 0..64 {
                let (number, client) = where_it_comes(&sockets, from, to);
                assert_eq!(number, socket_of(client, 4) as usize, "{client}");
                seen[number] += 1;
            }
            assert!(seen[..4].iter().all(|&count| count > 0), "{seen:?}");
            assert_eq!(seen[4..], [0, 0]);
            steered(&sockets, 1).unwrap();
            assert_eq!(where_it_comes(&sockets, from, to).0, 0);
        }
    }

    #[test]
    fn sockets_that_are_alone_by_choice_are_not_steered() {
        let alone = UdpSocket::bind("127.0.0.1:0").unwrap();
        let error = steered(&[alone], 2).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
