//! Batches of datagrams: recvmmsg(2) and sendmmsg(2), which `rustix` lacks, with the addresses of
//! both ends.
//!
//! The epoll and io_uring engines share this code; each adds its own way to learn of readability
//! and room. A datagram of any length is received whole: into a pooled buffer if it fits; otherwise
//! the excess goes into a second buffer, and both parts are then copied together.
//!
//! See ip(7), `IP_PKTINFO`, and ipv6(7), `IPV6_RECVPKTINFO`, for the local address of a datagram.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

use bytes::Bytes;
use rustix::io::Errno;

use crate::buffer::{self, Buffer, Memory};
use crate::engine::OperationOutcome;
use crate::net::Datagram;

/// The most datagrams that one call receives or sends.
pub(crate) const BATCH_MAX: usize = 32;

/// The largest length of a datagram: UDP's length field has 16 bits.
const LENGTH_MAX: usize = 65_535;

/// Room for one control message, in bytes: the local address.
const CONTROL_SIZE: usize = 64;

/// The headers and buffers that the calls use. They are filled anew before each call, and the
/// kernel uses none of them after it.
pub(crate) struct Messages {
    headers: [libc::mmsghdr; BATCH_MAX],
    parts: [[libc::iovec; 2]; BATCH_MAX],
    names: [SocketName; BATCH_MAX],
    controls: [Control; BATCH_MAX],
    /// Receive buffers. Their number grows up to [`BATCH_MAX`] while datagrams fill all of them: 2
    /// MiB then, of which only the pages that received data are touched.
    rooms: Vec<DatagramBuffer>,
}

/// Room for one datagram of any length.
struct DatagramBuffer {
    first: Memory,
    rest: Memory,
}

/// A socket address; `family` says which variant is valid.
#[derive(Clone, Copy)]
#[repr(C)]
union SocketName {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

/// Aligned like control messages.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_SIZE]);

impl DatagramBuffer {
    fn new() -> DatagramBuffer {
        let first = buffer::take();
        let rest = LENGTH_MAX.saturating_sub(first.len());
        DatagramBuffer {
            first,
            rest: Box::new_uninit_slice(rest),
        }
    }

    fn parts(&mut self) -> [libc::iovec; 2] {
        [&mut self.first, &mut self.rest].map(|memory| libc::iovec {
            iov_base: memory.as_mut_ptr().cast(),
            iov_len: memory.len(),
        })
    }

    /// Takes the received datagram out of the buffer.
    ///
    /// # Safety
    /// `length` bytes have been written: first to `first`, the excess to `rest`.
    unsafe fn take(&mut self, length: usize) -> Buffer {
        if length == 0 {
            return Buffer::empty();
        }
        if length <= self.first.len() {
            let filled = std::mem::replace(&mut self.first, buffer::take());
            // SAFETY: the caller's promise.
            return unsafe { Buffer::filled(filled, length) };
        }
        let mut whole: Box<[MaybeUninit<u8>]> = Box::new_uninit_slice(length);
        let (first, rest) = whole.split_at_mut(self.first.len()); // invariant: `length` is greater
        first.copy_from_slice(&self.first);
        let count = rest.len().min(self.rest.len());
        let parts = rest.get_mut(..count).zip(self.rest.get(..count));
        parts
            .into_iter()
            .for_each(|(to, from)| to.copy_from_slice(from));
        let count = self.first.len() + count;
        // SAFETY: the caller's promise; `count` initialized bytes have been copied.
        unsafe { Buffer::filled(whole, count) }
    }
}

impl Messages {
    pub(crate) fn new() -> Box<Messages> {
        // SAFETY: these arrays consist of integers and raw pointers, for which zeros are valid.
        let (headers, parts, names, controls) = unsafe { std::mem::zeroed() };
        Box::new(Messages {
            headers,
            parts,
            names,
            controls,
            rooms: Vec::new(),
        })
    }

    /// Receives at most one batch and appends it to `into`. False if the socket is then empty.
    ///
    /// # Errors
    /// Those of `recvmmsg()`; `EAGAIN` if no datagram was waiting.
    fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        into: &mut VecDeque<Datagram<Buffer>>,
    ) -> Result<bool, Errno> {
        if self.rooms.is_empty() {
            self.rooms.push(DatagramBuffer::new());
        }
        let places = self.headers.iter_mut().zip(&mut self.parts);
        let ends = self.names.iter_mut().zip(&mut self.controls);
        for (((header, parts), (name, control)), room) in places.zip(ends).zip(&mut self.rooms) {
            *parts = room.parts();
            header.msg_hdr.msg_name = (&raw mut *name).cast();
            header.msg_hdr.msg_namelen = size_of::<SocketName>() as libc::socklen_t;
            header.msg_hdr.msg_iov = parts.as_mut_ptr();
            header.msg_hdr.msg_iovlen = parts.len() as _;
            header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = CONTROL_SIZE as _;
        }
        let wanted = self.rooms.len().min(BATCH_MAX);
        // SAFETY: `wanted` headers have just been filled. The memory they point to lies in `self`,
        // does not move and is not used otherwise during the call; the lengths match it.
        let result = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                wanted as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let count = counted(result)?;
        for (header, room) in self.headers.iter().zip(&mut self.rooms).take(count) {
            // SAFETY: the kernel has filled this header, whose pointers stay as they were.
            let (peer, local) = unsafe { (peer(&header.msg_hdr), local(&header.msg_hdr)) };
            // SAFETY: the kernel has written `msg_len` bytes to the room's parts, in order.
            let bytes = unsafe { room.take(header.msg_len as usize) };
            into.push_back(Datagram { bytes, peer, local });
        }
        let full = count == wanted;
        if full && wanted < BATCH_MAX {
            let more = wanted.min(BATCH_MAX - wanted);
            self.rooms.extend((0..more).map(|_| DatagramBuffer::new()));
        }
        Ok(full)
    }

    /// Sends at most one batch from the front, and returns how many the kernel has taken, at least
    /// one.
    ///
    /// # Errors
    /// Those of `sendmmsg()` for the first datagram; `EAGAIN` if the send buffer is full.
    fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        datagrams: &VecDeque<Datagram<Bytes>>,
    ) -> Result<usize, Errno> {
        let places = self.headers.iter_mut().zip(&mut self.parts);
        let ends = self.names.iter_mut().zip(&mut self.controls);
        let mut wanted = 0;
        for (((header, parts), (name, control)), datagram) in places.zip(ends).zip(datagrams) {
            let [part, _] = parts;
            part.iov_base = datagram.bytes.as_ptr().cast_mut().cast();
            part.iov_len = datagram.bytes.len();
            let header = &mut header.msg_hdr;
            header.msg_iov = &raw mut *part;
            header.msg_iovlen = 1;
            header.msg_flags = 0;
            match datagram.peer {
                Some(peer) => {
                    header.msg_name = (&raw mut *name).cast();
                    header.msg_namelen = name.set(peer);
                }
                None => {
                    header.msg_name = std::ptr::null_mut();
                    header.msg_namelen = 0;
                }
            }
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_SIZE as _;
            match datagram.local {
                // SAFETY: the header's control bytes are those of `control`, with its size.
                Some(IpAddr::V4(ip)) => unsafe { leave_from_v4(header, ip) },
                // SAFETY: as above.
                Some(IpAddr::V6(ip)) => unsafe { leave_from_v6(header, ip) },
                None => {
                    header.msg_control = std::ptr::null_mut();
                    header.msg_controllen = 0;
                }
            }
            wanted += 1;
        }
        // SAFETY: `wanted` headers have just been filled. The memory they point to lies in `self`
        // and in the datagrams, and does not move during the call, which only reads it.
        let result = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                wanted,
                (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
            )
        };
        counted(result)
    }
}

fn counted(result: i32) -> Result<usize, Errno> {
    usize::try_from(result)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

impl SocketName {
    /// Stores `address`, and returns its length in bytes.
    fn set(&mut self, address: SocketAddr) -> libc::socklen_t {
        match address {
            SocketAddr::V4(address) => {
                self.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: in_addr(*address.ip()),
                    sin_zero: [0; 8],
                };
                size_of::<libc::sockaddr_in>() as libc::socklen_t
            }
            SocketAddr::V6(address) => {
                self.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: address.ip().octets(),
                    },
                    sin6_scope_id: address.scope_id(),
                };
                size_of::<libc::sockaddr_in6>() as libc::socklen_t
            }
        }
    }
}

fn in_addr(ip: Ipv4Addr) -> libc::in_addr {
    libc::in_addr {
        s_addr: u32::from(ip).to_be(),
    }
}

/// The sender's address of a datagram; `None` for a Unix socket.
///
/// # Safety
/// The header's name is a [`SocketName`].
unsafe fn peer(header: &libc::msghdr) -> Option<SocketAddr> {
    if (header.msg_namelen as usize) < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: the caller's promise. All variants are integers, for which all bytes are valid, and
    // the memory was zeroed at first.
    let name = unsafe { &*header.msg_name.cast::<SocketName>() };
    // SAFETY: as above.
    match i32::from(unsafe { name.family }) {
        libc::AF_INET => {
            // SAFETY: as above.
            let v4 = unsafe { name.v4 };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { name.v6 };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// The local address that a datagram was sent to, if the socket reports it.
///
/// # Safety
/// The header's control bytes are as the kernel has left them.
unsafe fn local(header: &libc::msghdr) -> Option<IpAddr> {
    // SAFETY: the caller's promise; both calls read only as many bytes as the header says.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !message.is_null() {
        // SAFETY: the pointer is not null, so it points to a whole message, aligned like the
        // control bytes.
        let about = unsafe { *message };
        // SAFETY: as above.
        let content = unsafe { libc::CMSG_DATA(message) };
        match (about.cmsg_level, about.cmsg_type) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // SAFETY: the content of this kind is an `in_pktinfo`, which consists of integers.
                let told = unsafe { content.cast::<libc::in_pktinfo>().read_unaligned() };
                return Some(Ipv4Addr::from(u32::from_be(told.ipi_spec_dst.s_addr)).into());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                // SAFETY: as above.
                let told = unsafe { content.cast::<libc::in6_pktinfo>().read_unaligned() };
                return Some(Ipv6Addr::from(told.ipi6_addr.s6_addr).into());
            }
            // SAFETY: as for the first one.
            _ => message = unsafe { libc::CMSG_NXTHDR(header, message) },
        }
    }
    None
}

/// Sets the local address that a datagram leaves from.
///
/// # Safety
/// The header's control bytes are writable, [`CONTROL_SIZE`] long, and aligned like [`Control`].
unsafe fn leave_from_v4(header: &mut libc::msghdr, ip: Ipv4Addr) {
    let wish = libc::in_pktinfo {
        ipi_ifindex: 0,
        ipi_spec_dst: in_addr(ip),
        ipi_addr: in_addr(Ipv4Addr::UNSPECIFIED),
    };
    // SAFETY: the caller's promise.
    unsafe { put_control(header, libc::IPPROTO_IP, libc::IP_PKTINFO, wish) };
}

/// Like [`leave_from_v4`], for IPv6.
///
/// # Safety
/// As for [`leave_from_v4`].
unsafe fn leave_from_v6(header: &mut libc::msghdr, ip: Ipv6Addr) {
    let wish = libc::in6_pktinfo {
        ipi6_addr: libc::in6_addr {
            s6_addr: ip.octets(),
        },
        ipi6_ifindex: 0,
    };
    // SAFETY: the caller's promise.
    unsafe { put_control(header, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, wish) };
}

/// Makes `content` the only control message of the header.
///
/// # Safety
/// As for [`leave_from_v4`].
unsafe fn put_control<T: Copy>(header: &mut libc::msghdr, level: i32, kind: i32, content: T) {
    const { assert!(size_of::<T>() + size_of::<libc::cmsghdr>() <= CONTROL_SIZE) };
    let length = size_of::<T>() as libc::c_uint;
    // SAFETY: the control bytes have room for one message of this length, as asserted above.
    unsafe {
        let message = libc::CMSG_FIRSTHDR(header);
        (*message).cmsg_level = level;
        (*message).cmsg_type = kind;
        (*message).cmsg_len = libc::CMSG_LEN(length) as _;
        libc::CMSG_DATA(message)
            .cast::<T>()
            .write_unaligned(content);
        header.msg_controllen = libc::CMSG_SPACE(length) as _;
    }
}

/// The readiness of one datagram socket, for an engine that receives readiness events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readiness {
    /// There may be datagrams to receive.
    readable: bool,
    /// The kernel has reported an error, which may be queued behind datagrams, so a short batch
    /// does not mean an empty socket.
    failing: bool,
    /// There may be room to send.
    writable: bool,
}

impl Readiness {
    /// The readiness of a new socket, for which no event has arrived.
    pub(crate) fn new() -> Readiness {
        Readiness {
            readable: false,
            failing: false,
            writable: true,
        }
    }

    /// Notes an event of readability, with an error or without.
    pub(crate) fn note_readable(&mut self, failing: bool) {
        self.readable = true;
        self.failing |= failing;
    }

    /// Notes an event of room.
    pub(crate) fn note_writable(&mut self) {
        self.writable = true;
    }

    /// Whether there may be datagrams to receive. Clears the flag.
    pub(crate) fn take_readable(&mut self) -> bool {
        std::mem::take(&mut self.readable)
    }

    /// Receives available datagrams; `None` if there are none, so that the socket must be watched.
    pub(crate) fn receive(
        &mut self,
        messages: &mut Messages,
        socket: BorrowedFd<'_>,
        into: &mut VecDeque<Datagram<Buffer>>,
    ) -> Option<OperationOutcome> {
        while self.readable {
            match messages.receive(socket, into) {
                Ok(full) => {
                    // A short batch: the next datagram will cause an event.
                    self.readable = full || self.failing;
                    return Some(OperationOutcome::Messages(Ok(into.len())));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => (self.readable, self.failing) = (false, false),
                Err(error) => return Some(OperationOutcome::Messages(Err(error.into()))),
            }
        }
        None
    }

    /// Sends as much as possible; `None` if nothing could be sent, so that the socket must be
    /// watched for room.
    pub(crate) fn send(
        &mut self,
        messages: &mut Messages,
        socket: BorrowedFd<'_>,
        datagrams: &VecDeque<Datagram<Bytes>>,
    ) -> Option<OperationOutcome> {
        while self.writable {
            match messages.send(socket, datagrams) {
                Ok(count) => return Some(OperationOutcome::Messages(Ok(count))),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.writable = false,
                Err(error) => return Some(OperationOutcome::Messages(Err(error.into()))),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    /// Batches grow while a call fills all receive buffers.
    #[test]
    fn one_call_sends_and_receives_many() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let datagrams: VecDeque<_> = (0..100_u8)
            .map(|number| Datagram {
                bytes: Bytes::copy_from_slice(&[number]),
                peer: Some(receiver.local_addr().unwrap()),
                local: None,
            })
            .collect();
        let mut messages = Messages::new();
        let sent = messages.send(sender.as_fd(), &datagrams).unwrap();
        assert_eq!(sent, BATCH_MAX);
        for number in sent..100 {
            let one = datagrams.iter().skip(number).take(1).cloned().collect();
            assert_eq!(messages.send(sender.as_fd(), &one), Ok(1));
        }
        let (mut all, mut batches) = (VecDeque::new(), Vec::new());
        loop {
            let before = all.len();
            match messages.receive(receiver.as_fd(), &mut all) {
                Ok(full) => batches.push((all.len() - before, full)),
                Err(error) => break assert_eq!(error, Errno::AGAIN),
            }
        }
        let full = [1, 2, 4, 8, 16, 32, 32].map(|count| (count, true));
        assert_eq!(batches, [&full[..], &[(5, false)]].concat());
        let ours = sender.local_addr().unwrap();
        for (number, received) in all.iter().enumerate() {
            assert_eq!(received.bytes[..], [number as u8]);
            assert_eq!(received.peer, Some(ours));
        }
    }
}
