//! System calls that more than one file needs, behind safe functions.
//!
//! `rustix` provides almost all of them. The unsafe calls here are for socket options that `rustix`
//! does not know, the processor time of another process, and random numbers. Descriptors are passed
//! as borrowed or owned types, never as numbers.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use crate::engine::{CloseMode, Control, Outgoing, SendStop};
use crate::kernel_tls;
use crate::net::{Address, ConnectError, ConnectStep, Segment, SocketOptions};

/// Maximum number of byte strings that one call sends. Far below the kernel's `IOV_MAX` of 1024, to
/// keep the stack small.
pub(crate) const PARTS_MAX: usize = 64;

/// If a file range has at least this many bytes, the byte strings before it are sent without
/// waiting for the file, so that the peer can begin to read. Not if segments are to be full.
const LARGE_FILE: u64 = 128 * 1024;

/// Closes a connection after all data has been sent; the FIN leaves with the data that the kernel
/// still holds back. Unless `ending` is [`CloseMode::Quick`], the sending side is shut down first,
/// since a close alone would send a reset instead of a FIN if the peer has sent data that was not
/// read.
pub(crate) fn finish(socket: OwnedFd, ending: CloseMode) {
    if ending != CloseMode::Quick {
        let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Write);
    }
    drop(socket);
}

/// Sets a socket option of type `int`.
pub(crate) fn set_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the option value is an `int` that lives until the call returns, and its size is
    // given.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// An instruction of classic BPF.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Instruction(libc::sock_filter);

impl Instruction {
    /// An instruction with a code composed as in `linux/filter.h`, and its constant.
    pub(crate) fn new(code: u32, constant: u32) -> Instruction {
        Instruction(libc::sock_filter {
            code: code as u16, // codes have 16 bits
            jt: 0,
            jf: 0,
            k: constant,
        })
    }

    /// Makes a conditional jump skip the next `count` instructions if its condition is false.
    pub(crate) fn or_skip(self, count: u8) -> Instruction {
        Instruction(libc::sock_filter {
            jf: count,
            ..self.0
        })
    }
}

/// Attaches a program that chooses among the datagram sockets that share this socket's address.
pub(crate) fn steer(socket: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let filter = libc::sock_fprog {
        len: length,
        filter: program.as_ptr().cast_mut().cast(),
    };
    // SAFETY: the option's value is a `sock_fprog` whose length is the number of instructions. It
    // and the instructions live until the call returns, and the kernel only reads them;
    // `Instruction` has the layout of `sock_filter`.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Statistics of a TCP connection: a part of `TCP_INFO`, see `tcp(7)`.
#[derive(Clone, Copy, Debug)]
pub struct TcpInfo {
    /// Smoothed round-trip time in microseconds.
    pub rtt: u32,
    /// Variation of the round-trip time in microseconds.
    pub rttvar: u32,
    /// The congestion window in segments.
    pub snd_cwnd: u32,
    /// The kernel's receive buffer space (`tcpi_rcv_space`), in bytes.
    pub rcv_space: u32,
}

/// Queries the statistics of a TCP connection; `None` for other sockets.
pub(crate) fn tcp_info(socket: BorrowedFd<'_>) -> Option<TcpInfo> {
    let whole = size_of::<libc::tcp_info>();
    // SAFETY: `tcp_info` consists of integers, for which all bytes are values.
    let info: io::Result<libc::tcp_info> =
        unsafe { option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, whole) };
    info.ok().map(|info| TcpInfo {
        rtt: info.tcpi_rtt,
        rttvar: info.tcpi_rttvar,
        snd_cwnd: info.tcpi_snd_cwnd,
        rcv_space: info.tcpi_rcv_space,
    })
}

/// The processor time that a process has used so far, including that of threads that have ended,
/// but not that of child processes.
///
/// # Errors
/// `NotFound` if there is no such process.
pub fn process_time(pid: u32) -> io::Result<Duration> {
    let absent = || {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("there is no process {pid}"),
        )
    };
    let mut clock = 0;
    let pid = i32::try_from(pid).map_err(|_| absent())?;
    // SAFETY: the call writes one clock number into a place of that type.
    let found = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one `timespec` into a place of that type; a clock that is gone is an
    // error.
    if found != 0 || unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(absent());
    }
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Ok(Duration::new(seconds, nanoseconds))
}

/// Creates a non-blocking, close-on-exec stream socket that can be connected to `to`.
pub(crate) fn stream_socket(
    to: &Address,
    options: &SocketOptions,
) -> Result<OwnedFd, ConnectError> {
    outgoing_socket(SocketType::STREAM, to, options)
}

/// Creates a non-blocking, close-on-exec datagram socket that is connected to `to`.
pub(crate) fn connected_datagram_socket(
    to: &Address,
    options: &SocketOptions,
) -> Result<OwnedFd, ConnectError> {
    let socket = outgoing_socket(SocketType::DGRAM, to, options)?;
    connect(socket.as_fd(), to).map_err(ConnectError::at(ConnectStep::Connect))?;
    Ok(socket)
}

/// Creates a socket that can be connected to `to`, and sets its options.
fn outgoing_socket(
    kind: SocketType,
    to: &Address,
    options: &SocketOptions,
) -> Result<OwnedFd, ConnectError> {
    let family = match to {
        Address::Inet(SocketAddr::V4(_)) => AddressFamily::INET,
        Address::Inet(SocketAddr::V6(_)) => AddressFamily::INET6,
        Address::Unix(_) => AddressFamily::UNIX,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let made = rustix::net::socket_with(family, kind, flags, None);
    let socket = made.map_err(|error| ConnectError::at(ConnectStep::Socket)(error.into()))?;
    let sized = |name, size: Option<u32>| {
        if let Some(size) = size {
            let size = libc::c_int::try_from(size).unwrap_or(libc::c_int::MAX);
            // If this fails, the kernel's default size serves as well.
            let _ = set_option(socket.as_fd(), libc::SOL_SOCKET, name, size);
        }
    };
    sized(libc::SO_RCVBUF, options.receive_buffer);
    sized(libc::SO_SNDBUF, options.send_buffer);
    if options.keepalive {
        let _ = set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    }
    if let (Some(from), Address::Inet(_)) = (options.from, to) {
        if options.transparent {
            let (level, name) = match from {
                SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TRANSPARENT),
                SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT),
            };
            set_option(socket.as_fd(), level, name, 1)
                .map_err(ConnectError::at(ConnectStep::Transparent))?;
        }
        if from.port() == 0 {
            // Without this option the bind would reserve a port for all destinations of the
            // address, and the ports would run out early.
            let _ = set_option(
                socket.as_fd(),
                libc::IPPROTO_IP,
                libc::IP_BIND_ADDRESS_NO_PORT,
                1,
            );
        }
        rustix::net::bind(&socket, &from)
            .map_err(|error| ConnectError::at(ConnectStep::Bind)(error.into()))?;
    }
    Ok(socket)
}

/// Creates a non-blocking, close-on-exec datagram socket that is bound to an address.
pub(crate) fn bound_datagram_socket(from: &Address) -> io::Result<OwnedFd> {
    let family = match from {
        Address::Inet(SocketAddr::V4(_)) => AddressFamily::INET,
        Address::Inet(SocketAddr::V6(_)) => AddressFamily::INET6,
        Address::Unix(_) => AddressFamily::UNIX,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    match from {
        Address::Inet(address) => {
            rustix::net::bind(&socket, address)?;
            enable_packet_info(socket.as_fd(), *address)?;
        }
        Address::Unix(path) => rustix::net::bind(&socket, &unix_address(path)?)?,
    }
    Ok(socket)
}

/// Prepares a datagram socket that was bound elsewhere: makes it non-blocking, and lets it report
/// the local address of each datagram.
pub(crate) fn take_datagram_socket(socket: BorrowedFd<'_>) -> io::Result<()> {
    if sockopt::socket_type(socket)? != SocketType::DGRAM {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::io::ioctl_fionbio(socket, true)?;
    match local(socket)? {
        Address::Inet(address) => enable_packet_info(socket, address),
        Address::Unix(_) => Ok(()),
    }
}

/// Makes a listening socket non-blocking. Returns whether accepted connections inherit
/// `TCP_NODELAY` from it.
pub(crate) fn take_listener(socket: BorrowedFd<'_>) -> io::Result<bool> {
    rustix::io::ioctl_fionbio(socket, true)?;
    // This fails for Unix sockets, which have no delay.
    Ok(sockopt::tcp_nodelay(socket).unwrap_or(false))
}

/// Lets a datagram socket that is bound to a wildcard address report the local address of each
/// datagram, since an answer must leave from that address.
pub(crate) fn enable_packet_info(socket: BorrowedFd<'_>, bound: SocketAddr) -> io::Result<()> {
    match bound {
        _ if !bound.ip().is_unspecified() => Ok(()),
        SocketAddr::V4(_) => set_option(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1),
        SocketAddr::V6(_) => set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1),
    }
}

/// Starts connecting. `Ok(false)` means that the connect continues in the background.
pub(crate) fn connect(socket: BorrowedFd<'_>, address: &Address) -> io::Result<bool> {
    let result = match address {
        Address::Inet(address) => rustix::net::connect(socket, address),
        Address::Unix(path) => rustix::net::connect(socket, &unix_address(path)?),
    };
    match result {
        Ok(()) => Ok(true),
        Err(Errno::INPROGRESS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The socket address of a Unix path. A path that begins with `@` names a socket in the abstract
/// namespace, in systemd's notation.
pub(crate) fn unix_address(path: &std::path::Path) -> io::Result<SocketAddrUnix> {
    match path.as_os_str().as_bytes().strip_prefix(b"@") {
        Some(name) => Ok(SocketAddrUnix::new_abstract_name(name)?),
        None => Ok(SocketAddrUnix::new(path)?),
    }
}

/// Returns and clears the socket's pending error (`SO_ERROR`), such as that of a failed connect.
pub(crate) fn pending_error(socket: BorrowedFd<'_>) -> io::Result<()> {
    match sockopt::socket_error(socket)? {
        Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Changes one property of a stream's socket.
pub(crate) fn control(socket: BorrowedFd<'_>, control: Control) -> io::Result<()> {
    match control {
        Control::NoDelay(on) => sockopt::set_tcp_nodelay(socket, on)?,
        Control::ResetOnClose => sockopt::set_socket_linger(socket, Some(Duration::ZERO))?,
        Control::ShutdownWrite => rustix::net::shutdown(socket, rustix::net::Shutdown::Write)?,
        Control::ShutdownRead => rustix::net::shutdown(socket, rustix::net::Shutdown::Read)?,
        Control::ShutdownBoth => rustix::net::shutdown(socket, rustix::net::Shutdown::Both)?,
        Control::KernelTls => kernel_tls::prepare(socket)?,
    }
    Ok(())
}

/// The peer's address, even if the peer has already reset the connection: data received before the
/// reset is still served, and needs its client's address.
pub(crate) fn peer(socket: BorrowedFd<'_>) -> io::Result<Address> {
    match rustix::net::getpeername(socket) {
        Ok(Some(address)) => Ok(address_of(address)),
        Ok(None) => Ok(Address::Unix(PathBuf::new())),
        Err(Errno::NOTCONN) => former_peer(socket).map(Address::Inet),
        Err(error) => Err(error.into()),
    }
}

/// The peer's address of a connection that has ended, for which `getpeername()` fails.
fn former_peer(socket: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    // The kernel rejects a buffer that is longer than the address.
    let address = peer_name(socket, size_of::<libc::sockaddr_in>())?;
    let port = u16::from_be(address.sin6_port);
    match i32::from(address.sin6_family) {
        // In a `sockaddr_in`, the address has the position of `sin6_flowinfo`.
        libc::AF_INET => {
            let ip = Ipv4Addr::from(u32::from_be(address.sin6_flowinfo));
            Ok(SocketAddrV4::new(ip, port).into())
        }
        libc::AF_INET6 => {
            let address = peer_name(socket, size_of::<libc::sockaddr_in6>())?;
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            let scope = address.sin6_scope_id;
            Ok(SocketAddrV6::new(ip, port, address.sin6_flowinfo, scope).into())
        }
        _ => Err(io::ErrorKind::NotConnected.into()),
    }
}

/// The first `length` bytes of `SO_PEERNAME`; the rest is zero.
fn peer_name(socket: BorrowedFd<'_>, length: usize) -> io::Result<libc::sockaddr_in6> {
    // SAFETY: `sockaddr_in6` consists of integers and arrays of them, for which all bytes are
    // values.
    unsafe { option(socket, libc::SOL_SOCKET, libc::SO_PEERNAME, length) }
}

/// Reads at most `length` bytes of a socket option, limited to the size of `T`. Bytes that the
/// kernel does not write are zero.
///
/// # Errors
/// Those of `getsockopt()`, for example if the socket does not have the option.
///
/// # Safety
/// Every byte pattern, including zeros, must be a valid `T`.
unsafe fn option<T: Copy>(
    socket: BorrowedFd<'_>,
    level: i32,
    name: i32,
    length: usize,
) -> io::Result<T> {
    // SAFETY: zeros are a valid `T`, as the caller guarantees.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut length = length.min(size_of::<T>()) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is at most the size of `value`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(value)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The socket's local address.
pub(crate) fn local(socket: BorrowedFd<'_>) -> io::Result<Address> {
    Ok(address_of(rustix::net::getsockname(socket)?))
}

/// Converts an address from the kernel. An address of an unknown family becomes an unnamed Unix
/// socket.
fn address_of(address: SocketAddrAny) -> Address {
    if let Ok(inet) = SocketAddr::try_from(address.clone()) {
        return Address::Inet(inet);
    }
    let Ok(unix) = SocketAddrUnix::try_from(address) else {
        return Address::Unix(PathBuf::new());
    };
    if let Some(name) = unix.abstract_name().filter(|name| !name.is_empty()) {
        let mut path = vec![b'@'];
        path.extend_from_slice(name);
        return Address::Unix(PathBuf::from(OsStr::from_bytes(&path)));
    }
    Address::Unix(PathBuf::from(OsStr::from_bytes(
        unix.path_bytes().unwrap_or_default(),
    )))
}

/// Accepts one connection, as a non-blocking, close-on-exec socket. The address is `None` for a
/// Unix socket.
pub(crate) fn accept(socket: BorrowedFd<'_>) -> Result<(OwnedFd, Option<SocketAddr>), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (fd, peer) = rustix::net::acceptfrom_with(socket, flags)?;
    let peer = peer.and_then(|address| SocketAddr::try_from(address).ok());
    Ok((fd, peer))
}

/// Sends as much of `outgoing` as the kernel takes now, with as few calls as possible. Never waits.
///
/// Returns the number of bytes taken, and why the send stopped. At most about `chunk` bytes of
/// files are sent. If `last`, the connection is closed right after: the kernel then holds back the
/// last packet, and the FIN that [`finish`] causes leaves with it, which saves a packet.
pub(crate) fn transmit(
    socket: BorrowedFd<'_>,
    outgoing: &mut Outgoing,
    chunk: u64,
    last: bool,
) -> (u64, SendStop) {
    let mut taken = 0;
    let mut of_files = 0;
    loop {
        if outgoing.fills_segments || outgoing.corked {
            cork(socket, outgoing, chunk.saturating_sub(of_files));
        }
        let (wanted, result) = match outgoing.front() {
            None => return (taken, SendStop::Empty),
            Some(Segment::Bytes(_)) => send_bytes(socket, outgoing, last),
            Some(Segment::File { .. }) if of_files >= chunk => return (taken, SendStop::Chunk),
            Some(Segment::File { .. }) if outgoing.warm == 0 => return (taken, SendStop::Cold),
            Some(Segment::File {
                file,
                offset,
                length,
            }) => {
                let count = (*length).min(outgoing.warm).min(chunk - of_files);
                let mut offset = *offset;
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                let result = rustix::fs::sendfile(socket, file.as_fd(), Some(&mut offset), count);
                of_files += result.unwrap_or(0) as u64;
                // A short count may mean a full socket or the end of the file; the next call tells
                // which.
                (0, result)
            }
            // As for a file: the next call tells whether the socket is full.
            Some(Segment::Piped { pipe, length }) => (0, pipe.pour(socket, *length)),
            Some(Segment::Keys(keys)) => {
                if let Err(error) = kernel_tls::set_keys(socket, keys) {
                    return (taken, SendStop::Failed(error));
                }
                outgoing.pop_front();
                continue;
            }
            Some(Segment::Record { .. }) if !has_room(socket) => return (taken, SendStop::Blocked),
            Some(Segment::Record {
                content_type,
                bytes,
            }) => (
                bytes.len(),
                kernel_tls::send_record(socket, *content_type, bytes),
            ),
        };
        match result {
            Ok(0) => return (taken, SendStop::Failed(io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => {
                outgoing.advance(count as u64);
                taken += count as u64;
                if count < wanted {
                    return (taken, SendStop::Blocked);
                }
            }
            Err(Errno::AGAIN) => return (taken, SendStop::Blocked),
            Err(Errno::INTR) => {}
            Err(error) => return (taken, SendStop::Failed(error.into())),
        }
    }
}

/// Corks the socket (`TCP_CORK`) while a file is sent in several pieces, so that only full TCP
/// segments leave, and uncorks it after the last file. `room` limits the next piece, in bytes.
fn cork(socket: BorrowedFd<'_>, outgoing: &mut Outgoing, room: u64) {
    let wanted = match outgoing.front() {
        Some(Segment::File { length, .. }) if outgoing.fills_segments => {
            outgoing.corked || outgoing.warm.min(room) < *length
        }
        _ => outgoing.corked && outgoing.takes_calls(),
    };
    if wanted != outgoing.corked {
        // This fails for Unix sockets, which have no segments.
        let _ = sockopt::set_tcp_cork(socket, wanted);
        outgoing.corked = wanted;
    }
}

/// Whether the socket has room to send. Kernel TLS may hold back the end of an encrypted record,
/// and discards it if the socket is closed. Sending the next record pushes it out, if there is room
/// for both. So a record that may be the last, such as an alert, waits for room.
fn has_room(socket: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(&socket, PollFlags::OUT)];
    rustix::event::poll(&mut polled, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}

/// Sends the byte strings at the front of the queue in one call. Also returns the number of bytes
/// that it offered to the kernel.
fn send_bytes(
    socket: BorrowedFd<'_>,
    outgoing: &Outgoing,
    last: bool,
) -> (usize, Result<usize, Errno>) {
    let mut flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    // `MSG_MORE` only if nothing but byte strings is queued: the head of a response whose file must
    // still be read leaves at once.
    let only_bytes = || {
        outgoing
            .segments()
            .all(|segment| matches!(segment, Segment::Bytes(_)))
    };
    flags.set(SendFlags::MORE, last && only_bytes());
    let mut segments = outgoing.segments();
    match (segments.next(), segments.next()) {
        (Some(Segment::Bytes(bytes)), None) => {
            (bytes.len(), rustix::net::send(socket, bytes, flags))
        }
        _ => send_parts(socket, outgoing, flags),
    }
}

/// Sends several byte strings in one call.
#[inline(never)] // The list of parts takes much stack, and most sends have one part.
fn send_parts(
    socket: BorrowedFd<'_>,
    outgoing: &Outgoing,
    mut flags: SendFlags,
) -> (usize, Result<usize, Errno>) {
    let mut parts = [IoSlice::new(&[]); PARTS_MAX];
    let mut count = 0;
    let mut total = 0;
    for segment in outgoing.segments() {
        match (segment, parts.get_mut(count)) {
            (Segment::Bytes(bytes), Some(part)) => {
                *part = IoSlice::new(bytes);
                count += 1;
                total += bytes.len();
            }
            // More data follows at once, so the kernel must not send a small packet for the head
            // alone. A file range that must first be read from the disk does not follow at once.
            (Segment::Bytes(_), None) => {
                flags |= SendFlags::MORE;
                break;
            }
            (Segment::File { length, .. }, _) => {
                let waits = outgoing.fills_segments || *length < LARGE_FILE;
                if outgoing.warm > 0 && waits {
                    flags |= SendFlags::MORE;
                }
                break;
            }
            (Segment::Piped { .. } | Segment::Keys(_) | Segment::Record { .. }, _) => break,
        }
    }
    let mut control = rustix::net::SendAncillaryBuffer::default();
    let parts = parts.get(..count).unwrap_or_default();
    let result = rustix::net::sendmsg(socket, parts, &mut control, flags);
    (total, result)
}

/// A cryptographically secure random number.
///
/// # Errors
/// The kernel's.
pub(crate) fn random() -> io::Result<u64> {
    let mut bytes = [0_u8; 8];
    // SAFETY: the kernel writes at most `bytes.len()` bytes to the array.
    let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    match usize::try_from(count) {
        // Reads of up to 256 bytes are never short.
        Ok(_) => Ok(u64::from_ne_bytes(bytes)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// The TCP keepalive settings of a listening socket; `None` if keepalive is off.
pub(crate) fn keep_alive(socket: BorrowedFd<'_>) -> Option<netstack::tcp::KeepAlive> {
    sockopt::socket_keepalive(socket).ok().filter(|on| *on)?;
    Some(netstack::tcp::KeepAlive {
        idle: sockopt::tcp_keepidle(socket).ok()?,
        interval: sockopt::tcp_keepintvl(socket).ok()?,
        probes_max: sockopt::tcp_keepcnt(socket).ok()?,
    })
}
