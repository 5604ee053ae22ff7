//! SYNs from addresses that no host has, as fast as one core can send them: what `benches/bypass
//! --flood` has a server bear.
//!
//! `flood INTERFACE MAC ADDRESS PORT SECONDS` sends to that card, and prints how many frames a
//! second have left. It takes root.
#![expect(unsafe_code, reason = "sockets of packets, which rustix does not have")]

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use netstack::wire::checksum::Sum;
use netstack::wire::ethernet::{self, EtherType, MacAddress};
use netstack::wire::ipv4::{self, Protocol};
use netstack::wire::sequence::Sequence;
use netstack::wire::tcp::{self, Flags, Options};

/// Frames in memory. They are sent one after the other, again and again, each time from the next
/// port, so that no two SYNs of a flood belong to the same connection.
const FRAMES: usize = 4096;

/// Frames of one call.
const BATCH: usize = 64;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [interface, mac, address, port, seconds] = words.as_slice() else {
        eprintln!("flood INTERFACE MAC ADDRESS PORT SECONDS");
        std::process::exit(2);
    };
    let octets: Vec<u8> = mac
        .split(':')
        .map(|octet| u8::from_str_radix(octet, 16).expect("a hardware address"))
        .collect();
    let mac = MacAddress(octets.try_into().expect("six octets"));
    let address: Ipv4Addr = address.parse().expect("an address");
    let to = SocketAddrV4::new(address, port.parse().expect("a port"));
    let seconds = Duration::from_secs(seconds.parse().expect("seconds"));
    let socket = open(interface).expect("a socket of packets");
    let mut frames: Vec<Vec<u8>> = (0..FRAMES as u64)
        .map(|number| syn(number, mac, to))
        .collect();
    let (begun, mut sent) = (Instant::now(), 0);
    while begun.elapsed() < seconds {
        for batch in frames.chunks_mut(BATCH) {
            sent += send(&socket, batch);
            batch.iter_mut().for_each(|frame| go_to_next_port(frame));
        }
    }
    println!("{:.0}", sent as f64 / begun.elapsed().as_secs_f64());
}

/// A socket that sends frames by an interface, past its queue.
fn open(interface: &str) -> io::Result<OwnedFd> {
    let name = std::ffi::CString::new(interface)?;
    // SAFETY: a name that ends with a zero.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    // SAFETY: no memory is shared.
    let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if index == 0 || socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made, and that nobody else has.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all of it may be zeros.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = index.cast_signed();
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address is read for its length.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    let one: libc::c_int = 1;
    // SAFETY: the value is read for its length.
    let bypasses = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_QDISC_BYPASS,
            (&raw const one).cast(),
            size_of_val(&one) as libc::socklen_t,
        )
    };
    if bound < 0 || bypasses < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// How many frames have left.
fn send(socket: &OwnedFd, frames: &[Vec<u8>]) -> u64 {
    let mut parts: Vec<libc::iovec> = frames
        .iter()
        .map(|frame| libc::iovec {
            iov_base: frame.as_ptr().cast_mut().cast(),
            iov_len: frame.len(),
        })
        .collect();
    let mut messages: Vec<libc::mmsghdr> = parts
        .iter_mut()
        .map(|part| {
            // SAFETY: all of it may be zeros.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            message
        })
        .collect();
    let count = messages.len() as libc::c_uint;
    // SAFETY: the messages point to parts and frames that outlive the call.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            count,
            libc::MSG_DONTWAIT,
        )
    };
    u64::try_from(sent).unwrap_or(0)
}

/// Changes the source port of a SYN to the next one above 1023, and its checksum accordingly (RFC
/// 1624).
fn go_to_next_port(frame: &mut [u8]) {
    const SOURCE_PORT: usize = ethernet::HEADER + ipv4::HEADER;
    const CHECKSUM: usize = SOURCE_PORT + 16;
    let word = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let before = word(frame, SOURCE_PORT);
    let after = before.checked_add(1).unwrap_or(1024);
    let sum = u32::from(!word(frame, CHECKSUM)) + u32::from(!before) + u32::from(after);
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    frame[SOURCE_PORT..SOURCE_PORT + 2].copy_from_slice(&after.to_be_bytes());
    frame[CHECKSUM..CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
}

fn syn(number: u64, mac: MacAddress, to: SocketAddrV4) -> Vec<u8> {
    // Any numbers that differ.
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let [a, b, c, d, e, f, g, h] = mixed.to_be_bytes();
    let from = Ipv4Addr::new(10, 80 + a % 100, b, 1 + c % 250);
    let segment = tcp::Header {
        source: 1024 + u16::from_be_bytes([d, e]) % 60_000,
        destination: to.port(),
        sequence: Sequence(u32::from_be_bytes([e, f, g, h])),
        acknowledgment: Sequence(0),
        flags: Flags::SYN,
        window: 64_240,
        options: Options {
            segment_max: Some(1460),
            ..Options::default()
        },
    };
    let mut frame = vec![0; ethernet::HEADER + ipv4::HEADER + segment.length()];
    let header = ethernet::Header {
        destination: mac,
        source: MacAddress([2, 0, 0, 0, 0, 0x77]),
        kind: EtherType::Ipv4,
    };
    header.emit(&mut frame);
    let packet = ipv4::Header {
        source: from,
        destination: *to.ip(),
        protocol: Protocol::Tcp,
        payload: segment.length(),
    };
    packet.emit(&mut frame[ethernet::HEADER..]);
    let ends = (from, *to.ip());
    segment.emit(
        &mut frame[ethernet::HEADER + ipv4::HEADER..],
        ends,
        (Sum::default(), 0),
    );
    frame
}
