//! Batches of datagrams: recvmmsg(2) and sendmmsg(2), which `rustix` lacks, with the addresses of
//! both ends.
//!
//! The epoll and io_uring engines share this code; each adds its own way to learn of readability
//! and room. A datagram of any length is received whole: into a pooled buffer if it fits; otherwise
//! the excess goes into a second buffer, and both parts are then copied together.
//!
//! Consecutive datagrams of equal length between the same two addresses are sent as the segments of
//! one message (udp(7), `UDP_SEGMENT`) if the kernel, the device and the route support it: the
//! network stack handles them as one packet, and the receiver gets separate datagrams. Likewise
//! several datagrams can be received as one message (`UDP_GRO`), which is split here; [`coalesce`]
//! enables this for a socket.
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

/// Maximum number of messages that one call receives or sends.
pub(crate) const BATCH_MAX: usize = 32;

/// Maximum length of a datagram in bytes: UDP's length field has 16 bits.
const LENGTH_MAX: usize = 65_535;

/// Room for the control messages of a header, in bytes: the local address and the segment length,
/// both when sending and when receiving.
const CONTROL_SIZE: usize = 64;

/// Maximum number of segments in one message: the kernel's `UDP_MAX_SEGMENTS` was 64 at first. A
/// whole batch has no more datagrams either.
const SEGMENTS_MAX: usize = 64;

/// Maximum length of a segment in bytes: what an Ethernet frame carries over IPv6. A datagram that
/// needs IP fragments cannot be a segment.
const SEGMENT_LENGTH_MAX: usize = 1_452;

/// Maximum total length of the segments of one message, in bytes. UDP's length limit applies to it,
/// too.
const SEGMENTS_LENGTH_MAX: usize = 65_000;

/// The headers and buffers of the calls. They are filled in before each call, and the kernel does
/// not use them after it.
pub(crate) struct Messages {
    headers: [libc::mmsghdr; BATCH_MAX],
    /// The byte strings of the messages: two for each when receiving, one for each datagram when
    /// sending.
    parts: [[libc::iovec; 2]; BATCH_MAX],
    /// The number of datagrams in each message to be sent.
    counts: [usize; BATCH_MAX],
    /// The peer's address of each message.
    names: [SocketName; BATCH_MAX],
    controls: [Control; BATCH_MAX],
    /// Receive buffers. Their number doubles after each receive that fills all of them, up to
    /// [`BATCH_MAX`]. Then they occupy 2 MiB, of which only the pages that received data are
    /// touched.
    rooms: Vec<DatagramBuffer>,
}

/// Room for one datagram of any length.
struct DatagramBuffer {
    /// A receive buffer.
    first: Memory,
    /// Memory for the bytes of a datagram that do not fit into `first`.
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

/// Memory for the control messages of one header, aligned as they require.
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
            counts: [0; BATCH_MAX],
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
            let (peer, told) = unsafe { (peer(&header.msg_hdr), told(&header.msg_hdr)) };
            let local = told.local;
            // SAFETY: the kernel has written `msg_len` bytes to the room's parts, in order.
            let bytes = unsafe { room.take(header.msg_len as usize) };
            match told.segment_length {
                Some(length) if length < bytes.len() => {
                    let segments = bytes.chunks(length).map(Buffer::copy_of);
                    into.extend(segments.map(|bytes| Datagram { bytes, peer, local }));
                }
                _ => into.push_back(Datagram { bytes, peer, local }),
            }
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
        segmentation: &mut Segmentation,
    ) -> Result<usize, Errno> {
        loop {
            let wanted = self.fill(datagrams, segmentation.length_max());
            let has_segments = self.counts.iter().take(wanted).any(|count| *count > 1);
            if has_segments && let Segmentation::Unknown = segmentation {
                *segmentation = Segmentation::of(socket);
                continue;
            }
            let error = match self.send_filled(socket, wanted) {
                Ok(sent) => return Ok(self.counts.iter().take(sent).sum()),
                Err(error) => error,
            };
            let length = datagrams.front().map_or(0, |first| first.bytes.len());
            // Send again without segments if the error may be due to them. If it has another cause,
            // the first datagram fails alone, too.
            match error {
                _ if self.counts.first() == Some(&1) => return Err(error),
                // The route's MTU is too small for segments of this length.
                Errno::INVAL | Errno::MSGSIZE => {
                    *segmentation = Segmentation::UpTo(length.saturating_sub(1));
                }
                // The device does not compute checksums, which segmentation requires.
                Errno::IO | Errno::OPNOTSUPP => *segmentation = Segmentation::UpTo(0),
                _ => return Err(error),
            }
        }
    }

    /// Fills in headers for datagrams from the front, with segments of at most `length_max` bytes,
    /// and returns their number.
    fn fill(&mut self, datagrams: &VecDeque<Datagram<Bytes>>, length_max: usize) -> usize {
        let places = self.headers.iter_mut().zip(&mut self.counts);
        let ends = self.names.iter_mut().zip(&mut self.controls);
        let mut parts = self.parts.as_flattened_mut();
        let (mut wanted, mut at) = (0, 0);
        for ((header, number), (name, control)) in places.zip(ends) {
            let Some(datagram) = datagrams.get(at) else {
                break;
            };
            *number = segments(datagrams, at, length_max).min(parts.len());
            let (own, left) = std::mem::take(&mut parts).split_at_mut(*number);
            parts = left;
            if own.is_empty() {
                break;
            }
            for (part, datagram) in own.iter_mut().zip(datagrams.range(at..)) {
                part.iov_base = datagram.bytes.as_ptr().cast_mut().cast();
                part.iov_len = datagram.bytes.len();
            }
            at += own.len();
            let header = &mut header.msg_hdr;
            header.msg_iov = own.as_mut_ptr();
            header.msg_iovlen = own.len() as _;
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
            header.msg_controllen = 0;
            match datagram.local {
                // SAFETY: the header's control bytes are those of `control`, and none are used.
                Some(IpAddr::V4(ip)) => unsafe { leave_from_v4(header, ip) },
                // SAFETY: as above.
                Some(IpAddr::V6(ip)) => unsafe { leave_from_v6(header, ip) },
                None => {}
            }
            if own.len() > 1 {
                let length = datagram.bytes.len() as u16; // at most `SEGMENT_LENGTH_MAX`
                // SAFETY: as above; there is room behind the longest address.
                unsafe { put_control(header, libc::SOL_UDP, libc::UDP_SEGMENT, length) };
            }
            if header.msg_controllen == 0 {
                header.msg_control = std::ptr::null_mut();
            }
            wanted += 1;
        }
        wanted
    }

    /// Sends the messages of the first `wanted` headers, which `fill` has just filled in, and
    /// returns how many the kernel has taken.
    fn send_filled(&mut self, socket: BorrowedFd<'_>, wanted: usize) -> Result<usize, Errno> {
        // SAFETY: `wanted` headers have just been filled. The memory they point to lies in `self`
        // and in the datagrams, and does not move during the call, which only reads it.
        let result = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                wanted as libc::c_uint,
                (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
            )
        };
        counted(result)
    }
}

/// The longest datagrams that a socket can send as segments of one message.
#[derive(Clone, Copy, Debug)]
enum Segmentation {
    /// Not queried yet, since no two datagrams could have been sent as segments.
    Unknown,
    /// Datagrams of at most this many bytes; 0 if the socket cannot segment.
    UpTo(usize),
}

impl Segmentation {
    /// Queries the kernel's support for a socket. Not every socket has the option, and a Unix
    /// socket would ignore the control message and send one long datagram.
    fn of(socket: BorrowedFd<'_>) -> Segmentation {
        let mut value: libc::c_int = 0;
        let mut length = size_of_val(&value) as libc::socklen_t;
        // SAFETY: both pointers are valid during the call, and the length is that of the value.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_UDP,
                libc::UDP_SEGMENT,
                (&raw mut value).cast(),
                &raw mut length,
            )
        };
        Segmentation::UpTo(if result == 0 { SEGMENT_LENGTH_MAX } else { 0 })
    }

    fn length_max(self) -> usize {
        match self {
            Segmentation::Unknown => SEGMENT_LENGTH_MAX,
            Segmentation::UpTo(length) => length,
        }
    }
}

/// The number of datagrams, from index `at` on, that can be sent as segments of one message: they
/// have the same addresses and a length of at most `length_max`, and only the last one may be
/// shorter than the first. At least 1 if there is a datagram.
fn segments(datagrams: &VecDeque<Datagram<Bytes>>, at: usize, length_max: usize) -> usize {
    let mut rest = datagrams.range(at.min(datagrams.len())..);
    let Some(first) = rest.next() else {
        return 0;
    };
    let length = first.bytes.len();
    if length == 0 || length > length_max {
        return 1;
    }
    let (mut count, mut total) = (1, length);
    for next in rest {
        let own = next.bytes.len();
        let has_same_ends = (next.peer, next.local) == (first.peer, first.local);
        let fits = count < SEGMENTS_MAX && total + own <= SEGMENTS_LENGTH_MAX;
        if !has_same_ends || !fits || own == 0 || own > length {
            break;
        }
        count += 1;
        total += own;
        if own < length {
            break;
        }
    }
    count
}

/// Converts the result of a call: a number of messages, or -1 with `errno`.
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

/// The contents of a received message's control messages.
#[derive(Default)]
struct ControlMessages {
    /// The local address that the message was sent to, if the socket reports it.
    local: Option<IpAddr>,
    /// The length in bytes of the datagrams that the message consists of; the last may be shorter.
    /// `None`, or the whole length, for a single datagram.
    segment_length: Option<usize>,
}

/// # Safety
/// The header's control bytes are as the kernel has left them.
unsafe fn told(header: &libc::msghdr) -> ControlMessages {
    let mut all = ControlMessages::default();
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
                all.local = Some(Ipv4Addr::from(u32::from_be(told.ipi_spec_dst.s_addr)).into());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                // SAFETY: as above.
                let told = unsafe { content.cast::<libc::in6_pktinfo>().read_unaligned() };
                all.local = Some(Ipv6Addr::from(told.ipi6_addr.s6_addr).into());
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                // SAFETY: the content of this kind is an integer.
                let length = unsafe { content.cast::<libc::c_int>().read_unaligned() };
                all.segment_length = usize::try_from(length).ok().filter(|length| *length > 0);
            }
            _ => {}
        }
        // SAFETY: as for the first one.
        message = unsafe { libc::CMSG_NXTHDR(header, message) };
    }
    all
}

/// Enables `UDP_GRO`: datagrams of equal length that arrive together are received as one message.
/// Not for sockets that another program may inherit, since that program would not expect it. If the
/// kernel does not support the option, nothing changes.
pub(crate) fn coalesce(socket: BorrowedFd<'_>) {
    let on: libc::c_int = 1;
    // SAFETY: the pointer is valid during the call, and the length is that of the value.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_GRO,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
}

/// Sets the local address that a datagram leaves from.
///
/// # Safety
/// The header's control bytes are writable, [`CONTROL_SIZE`] long, and aligned like [`Control`];
/// none are used.
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

/// Appends `content` to the header's control messages.
///
/// # Safety
/// The header's control bytes are aligned like [`Control`] and writable, also behind those that the
/// header says are used, for one more message.
unsafe fn put_control<T: Copy>(header: &mut libc::msghdr, level: i32, kind: i32, content: T) {
    let length = size_of::<T>() as libc::c_uint;
    // SAFETY: the caller's promise. Messages occupy whole words, so this one is aligned as well.
    unsafe {
        let used: usize = header.msg_controllen as _;
        let message = header
            .msg_control
            .cast::<u8>()
            .add(used)
            .cast::<libc::cmsghdr>();
        (*message).cmsg_level = level;
        (*message).cmsg_type = kind;
        (*message).cmsg_len = libc::CMSG_LEN(length) as _;
        libc::CMSG_DATA(message)
            .cast::<T>()
            .write_unaligned(content);
        header.msg_controllen = (used + libc::CMSG_SPACE(length) as usize) as _;
    }
}

/// Checks that [`CONTROL_SIZE`] suffices for an IPv6 address and a segment length.
const _: () = {
    let head = size_of::<libc::cmsghdr>();
    let address = head + size_of::<libc::in6_pktinfo>().next_multiple_of(8);
    assert!(address + head + size_of::<libc::c_int>().next_multiple_of(8) <= CONTROL_SIZE);
};

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
    /// The longest datagrams that can be sent as segments.
    segmentation: Segmentation,
}

impl Readiness {
    /// The readiness of a new socket, for which no event has arrived.
    pub(crate) fn new() -> Readiness {
        Readiness {
            readable: false,
            failing: false,
            writable: true,
            segmentation: Segmentation::Unknown,
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
            match messages.send(socket, datagrams, &mut self.segmentation) {
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
        let mut none = Segmentation::UpTo(0);
        let sent = messages.send(sender.as_fd(), &datagrams, &mut none);
        let sent = sent.unwrap();
        assert_eq!(sent, BATCH_MAX);
        for number in sent..100 {
            let one = datagrams.iter().skip(number).take(1).cloned().collect();
            assert_eq!(messages.send(sender.as_fd(), &one, &mut none), Ok(1));
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

    /// Each arrives as it was, whatever it leaves with.
    #[test]
    fn datagrams_of_all_lengths_to_several_leave_together() {
        let receivers = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let sender = UdpSocket::bind("0.0.0.0:0").unwrap();
        let lengths = [
            7, 7, 7, 3, 7, 0, 0, 1200, 1200, 1200, 1199, 1452, 1452, 1453, 1453, 65_507, 1, 2,
        ];
        for (local, mut segmentation) in [
            (None, Segmentation::Unknown),
            (Some("127.0.0.1".parse().unwrap()), Segmentation::Unknown),
            (None, Segmentation::UpTo(0)),
        ] {
            let mut datagrams = VecDeque::new();
            for (number, length) in (0_u8..).zip(lengths) {
                for receiver in receivers.iter().take(1 + usize::from(number) % 2) {
                    datagrams.push_back(Datagram {
                        bytes: Bytes::from(vec![number; length]),
                        peer: Some(receiver.local_addr().unwrap()),
                        local,
                    });
                }
            }
            let mut messages = Messages::new();
            while !datagrams.is_empty() {
                let sent = messages.send(sender.as_fd(), &datagrams, &mut segmentation);
                datagrams.drain(..sent.unwrap());
            }
            let mut buffer = vec![0; 65_536];
            for (place, receiver) in receivers.iter().enumerate() {
                for (number, length) in (0_u8..).zip(lengths) {
                    if usize::from(number) % 2 >= place {
                        let (count, _) = receiver.recv_from(&mut buffer).unwrap();
                        assert_eq!(count, length, "{number}");
                        assert!(buffer[..count].iter().all(|byte| *byte == number));
                    }
                }
            }
        }
    }

    #[test]
    fn coalesced_datagrams_are_taken_apart() {
        let receiver = UdpSocket::bind("0.0.0.0:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = receiver.local_addr().unwrap().port();
        sender.connect(("127.0.0.1", port)).unwrap();
        coalesce(receiver.as_fd());
        let lengths = [1200; 50].iter().chain(&[1100, 0, 65_507, 9, 9, 9, 2, 9]);
        let datagrams: VecDeque<_> = (0_u8..)
            .zip(lengths)
            .map(|(number, length)| Datagram::new(Bytes::from(vec![number; *length])))
            .collect();
        let (mut messages, mut segmentation) = (Messages::new(), Segmentation::Unknown);
        let (mut unsent, mut received) = (datagrams.clone(), VecDeque::new());
        while !unsent.is_empty() {
            let sent = messages.send(sender.as_fd(), &unsent, &mut segmentation);
            unsent.drain(..sent.unwrap());
        }
        while let Ok(true) = messages.receive(receiver.as_fd(), &mut received) {}
        assert_eq!(received.len(), datagrams.len());
        for (received, sent) in received.iter().zip(&datagrams) {
            assert_eq!(received.bytes[..], sent.bytes[..]);
            assert_eq!(
                received.peer.unwrap().port(),
                sender.local_addr().unwrap().port()
            );
        }
    }

    /// The kernel refuses to segment for a socket that sends no checksums; each datagram leaves on
    /// its own from then on.
    #[test]
    fn datagrams_leave_one_by_one_where_the_kernel_refuses() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let one: libc::c_int = 1;
        // SAFETY: the pointer is valid during the call, and the length is that of the value.
        let result = unsafe {
            libc::setsockopt(
                sender.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_NO_CHECK,
                (&raw const one).cast(),
                size_of_val(&one) as libc::socklen_t,
            )
        };
        assert_eq!(result, 0);
        let datagrams: VecDeque<_> = [40, 40, 30]
            .map(|length| Datagram::new(Bytes::from(vec![1; length])))
            .into();
        let (mut messages, mut segmentation) = (Messages::new(), Segmentation::Unknown);
        let sent = messages.send(sender.as_fd(), &datagrams, &mut segmentation);
        assert_eq!(sent, Ok(3));
        assert_eq!(segmentation.length_max(), 39);
        let received = [(); 3].map(|()| receiver.recv(&mut [0; 100]).unwrap());
        assert_eq!(received, [40, 40, 30]);
    }

    #[test]
    fn datagrams_of_unix_sockets_stay_apart() {
        let (sender, receiver) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let datagrams: VecDeque<_> = [5, 5, 5]
            .map(|length| Datagram::new(Bytes::from(vec![1; length])))
            .into();
        let (mut messages, mut segmentation) = (Messages::new(), Segmentation::Unknown);
        let sent = messages.send(sender.as_fd(), &datagrams, &mut segmentation);
        assert_eq!(sent, Ok(3));
        let received = [(); 3].map(|()| receiver.recv(&mut [0; 100]).unwrap());
        assert_eq!(received, [5, 5, 5]);
    }

    #[test]
    fn segments_have_the_same_ends_and_length() {
        let to = |port: u16, length: usize| Datagram {
            bytes: Bytes::from(vec![0; length]),
            peer: Some(([127, 0, 0, 1], port).into()),
            local: None,
        };
        let count = |datagrams: &[Datagram<Bytes>]| {
            segments(&datagrams.to_vec().into(), 0, SEGMENT_LENGTH_MAX)
        };
        assert_eq!(count(&[to(1, 5), to(1, 5), to(1, 4), to(1, 4)]), 3);
        assert_eq!(count(&[to(1, 5), to(1, 6)]), 1);
        assert_eq!(count(&[to(1, 5), to(2, 5)]), 1);
        assert_eq!(count(&[to(1, 5), to(1, 0)]), 1);
        assert_eq!(count(&[to(1, 0), to(1, 0)]), 1);
        assert_eq!(count(&[to(1, 1453), to(1, 1453)]), 1);
        assert_eq!(count(&vec![to(1, 1452); 100]), 44, "65,000 bytes");
        assert_eq!(count(&vec![to(1, 1); 100]), SEGMENTS_MAX);
        assert_eq!(count(&[]), 0);
    }
}
