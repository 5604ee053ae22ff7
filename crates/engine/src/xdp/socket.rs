//! An AF_XDP socket with its four rings. The privileged process creates and binds it; the worker
//! process receives and sends frames with it.
//!
//! ```text
//!           fill ring: empty frames ─▶          ─▶ receive ring: received frames
//!   worker                            ─ kernel ─
//!           send ring: frames to send ─▶        ─▶ completion ring: sent frames
//! ```

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netstack::{Device, FrameTaker};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::dump::Tap;
use super::profile;
use super::ring::{Consumer, Filled, Producer};
use super::umem::{self, FRAME_SIZE, FRAMES_TO_RECEIVE, FRAMES_TO_SEND, Frame, Umem};

/// Maximum number of frames that are received, or sent, before the other direction continues. A
/// pair of virtual cards holds 256 frames between its ends, and drops more.
pub(super) const BURST_MAX: usize = 64;

/// Maximum number of received frames that one turn takes from the ring to find frames of
/// connections among SYNs.
const LOOKED_AT_MAX: usize = 512;

/// Maximum number of waiting SYNs. Further ones are dropped, so that frames of connections have
/// room however many SYNs arrive.
const SYNS_MAX: usize = FRAMES_TO_RECEIVE as usize / 2;

/// Number of waiting SYNs that every turn handles, even if it has a full burst of other frames.
const SYNS_MIN: usize = 16;

/// Maximum number of system calls per burst: the kernel sends 32 frames per call.
const KICKS_MAX: usize = 4;

/// Creates a socket with rings of their full sizes, and the frames in `file`.
///
/// # Errors
/// The call that failed, and its error.
pub(super) fn make(file: &OwnedFd) -> Result<OwnedFd, (&'static str, io::Error)> {
    let failed = |call| move |error: Errno| (call, io::Error::from(error));
    let socket = rustix::net::socket_with(
        AddressFamily::XDP,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(failed("socket(AF_XDP)"))?;
    umem::register(&socket, file).map_err(|error| ("setsockopt(XDP_UMEM_REG)", error))?;
    sockopt::set_xdp_umem_fill_ring_size(&socket, FRAMES_TO_RECEIVE)
        .map_err(failed("setsockopt(XDP_UMEM_FILL_RING)"))?;
    sockopt::set_xdp_umem_completion_ring_size(&socket, FRAMES_TO_SEND)
        .map_err(failed("setsockopt(XDP_UMEM_COMPLETION_RING)"))?;
    sockopt::set_xdp_rx_ring_size(&socket, FRAMES_TO_RECEIVE)
        .map_err(failed("setsockopt(XDP_RX_RING)"))?;
    sockopt::set_xdp_tx_ring_size(&socket, FRAMES_TO_SEND)
        .map_err(failed("setsockopt(XDP_TX_RING)"))?;
    Ok(socket)
}

/// Binds a socket to a receive queue of an interface. Returns whether the card itself reads and
/// writes the frames, without copies.
///
/// # Errors
/// `EBUSY` if another socket is bound to the queue.
pub(super) fn bind(socket: &OwnedFd, interface: u32, queue: u32) -> io::Result<bool> {
    let bind = |flags| {
        let flags = flags | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        rustix::net::bind(socket, &SocketAddrXdp::new(flags, interface, queue))
    };
    match bind(SocketAddrXdpFlags::XDP_ZEROCOPY) {
        Ok(()) => return Ok(true),
        Err(Errno::BUSY) => return Err(Errno::BUSY.into()),
        Err(_) => {}
    }
    bind(SocketAddrXdpFlags::XDP_COPY)?;
    Ok(false)
}

/// Counts of a queue's frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameCounts {
    pub(super) received: u64,
    pub(super) sent: u64,
    /// SYNs that were dropped because too many waited.
    pub(super) dropped: u64,
    /// Frames that are available for sending now.
    pub(super) spare: u64,
}

/// A socket with its rings and frames, in the worker process.
#[derive(Debug)]
pub(super) struct Queue {
    socket: OwnedFd,
    umem: Umem,
    /// The fill ring: empty frames for the kernel to receive into.
    fill: Producer<u64>,
    /// The receive ring.
    received: Consumer<Filled>,
    /// The send ring.
    to_send: Producer<Filled>,
    /// The completion ring: frames that have been sent.
    completed: Consumer<u64>,
    /// Free frames for sending.
    spare: Vec<Frame>,
    /// Reused buffer for the received frames of one call.
    came: Vec<(Frame, Range<usize>)>,
    /// Received SYNs that wait behind frames of connections.
    syns: VecDeque<(Frame, Range<usize>)>,
    /// Number of frames in the current burst.
    burst: usize,
    /// The kernel has not taken all published frames from the send ring.
    is_stuck: bool,
    counts: FrameCounts,
    /// The ring for dumps, if it could be created.
    tap: Option<Tap>,
    /// The thread busy-polls the card.
    is_polled: bool,
}

impl Queue {
    /// Takes over a socket that was created and bound elsewhere, with the memory file of its
    /// frames.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn open(socket: OwnedFd, file: &OwnedFd, tap: Option<Tap>) -> io::Result<Queue> {
        let (umem, mut frames) = Umem::map(file)?;
        let offsets = sockopt::xdp_mmap_offsets(&socket)?;
        let mut queue = Queue {
            fill: Producer::map(
                &socket,
                XDP_UMEM_PGOFF_FILL_RING,
                &offsets.fr,
                FRAMES_TO_RECEIVE,
            )?,
            received: Consumer::map(&socket, XDP_PGOFF_RX_RING, &offsets.rx, FRAMES_TO_RECEIVE)?,
            to_send: Producer::map(&socket, XDP_PGOFF_TX_RING, &offsets.tx, FRAMES_TO_SEND)?,
            completed: Consumer::map(
                &socket,
                XDP_UMEM_PGOFF_COMPLETION_RING,
                &offsets.cr,
                FRAMES_TO_SEND,
            )?,
            spare: frames.split_off(FRAMES_TO_RECEIVE as usize),
            umem,
            came: Vec::with_capacity(BURST_MAX),
            syns: VecDeque::new(),
            burst: 0,
            is_stuck: false,
            counts: FrameCounts::default(),
            tap,
            is_polled: profile::is_polled(&socket),
            socket,
        };
        for frame in frames {
            queue.refill(frame);
        }
        queue.fill.publish();
        Ok(queue)
    }

    /// Passes an empty frame to the kernel, to receive into.
    fn refill(&mut self, frame: Frame) {
        if self.fill.room() == 0 {
            // This cannot happen: the ring has as many entries as there are frames for receiving.
            self.spare.push(frame);
            return;
        }
        let address = self.umem.give(frame);
        self.fill.push(address);
    }

    /// Takes back the frames that have been sent.
    fn reclaim(&mut self) {
        while let Some(address) = self.completed.pop() {
            if let Some((frame, _)) = self.umem.take_back(address) {
                self.spare.push(frame);
            }
        }
        self.completed.release();
    }

    /// Begins a burst of frames to send.
    pub(super) fn begin_burst(&mut self) {
        self.burst = 0;
        self.reclaim();
    }

    /// Begins a turn of receiving.
    pub(super) fn begin_turn(&mut self) {
        if let Some(tap) = &mut self.tap {
            tap.begin_turn();
        }
        if self.is_polled {
            // The call polls the card, which fills the receive ring; it returns no data itself.
            let _ = rustix::net::recv(&self.socket, &mut [0; 0], RecvFlags::DONTWAIT);
        }
    }

    /// Passes the burst's frames to the kernel, to be sent.
    pub(super) fn flush(&mut self) {
        if self.burst == 0 && !self.is_stuck {
            return;
        }
        self.to_send.publish();
        for _ in 0..KICKS_MAX {
            if self.to_send.needs_wakeup() {
                // Frames that the kernel cannot send now stay in the ring, and are tried again.
                let _ = rustix::net::send(&self.socket, &[], SendFlags::DONTWAIT);
            }
            self.is_stuck = self.to_send.left() > 0;
            if !self.is_stuck {
                break;
            }
        }
    }

    /// Whether received frames wait to be handled.
    pub(super) fn has_received(&self) -> bool {
        self.has_syns() || self.received.has_more()
    }

    /// Whether SYNs wait that were taken from the receive ring. The thread must not sleep then,
    /// since the socket no longer reports them as readable.
    pub(super) fn has_syns(&self) -> bool {
        !self.syns.is_empty()
    }

    /// Takes frames from the receive ring: those of connections into `came`, up to [`BURST_MAX`],
    /// and SYNs into their queue. A flood's SYNs hold up no connection this way.
    fn sort_received(&mut self, came: &mut Vec<(Frame, Range<usize>)>) {
        for _ in 0..LOOKED_AT_MAX {
            if came.len() >= BURST_MAX {
                break;
            }
            let Some(filled) = self.received.pop() else {
                break;
            };
            let Some((frame, offset)) = self.umem.take_back(filled.address) else {
                continue;
            };
            self.counts.received += 1;
            let part = offset..offset.saturating_add(filled.length as usize);
            if !is_syn(self.umem.bytes(&frame, part.clone())) {
                came.push((frame, part));
            } else if self.syns.len() < SYNS_MAX {
                self.syns.push_back((frame, part));
            } else {
                self.counts.dropped += 1;
                self.refill(frame);
            }
        }
    }

    /// Whether the queue must be tried again later: the kernel has not taken all frames, or no
    /// frame is free for sending. No event reports when that changes.
    pub(super) fn is_stuck(&self) -> bool {
        self.is_stuck || self.spare.is_empty()
    }

    /// Whether the thread busy-polls the card: no event reports received frames then.
    pub(super) fn is_polled(&self) -> bool {
        self.is_polled
    }

    /// Whether the burst is full, so that more frames may be pending.
    pub(super) fn is_burst_full(&self) -> bool {
        self.burst >= BURST_MAX
    }

    /// The counts so far.
    pub(super) fn counts(&self) -> FrameCounts {
        FrameCounts {
            spare: self.spare.len() as u64,
            ..self.counts
        }
    }
}

/// Whether a frame that passed the filter begins a connection: TCP over IPv4 without options, with
/// SYN and without ACK.
fn is_syn(frame: &[u8]) -> bool {
    const VERSION: usize = 14;
    const PROTOCOL: usize = 23;
    const FLAGS: usize = 47;
    const SYN: u8 = 0x02;
    const SYN_AND_ACK: u8 = 0x12;
    frame.get(VERSION) == Some(&0x45)
        && frame.get(PROTOCOL) == Some(&6)
        && frame
            .get(FLAGS)
            .is_some_and(|flags| flags & SYN_AND_ACK == SYN)
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Device for Queue {
    /// Handles at most [`BURST_MAX`] frames, or up to [`SYNS_MIN`] more if SYNs wait.
    fn receive(&mut self, taker: &mut dyn FrameTaker) {
        let mut came = std::mem::take(&mut self.came);
        self.sort_received(&mut came);
        let room = (BURST_MAX - came.len()).max(SYNS_MIN).min(self.syns.len());
        came.extend(self.syns.drain(..room));
        for (frame, part) in &came {
            taker.expect(self.umem.bytes(frame, part.clone()));
        }
        for (frame, part) in came.drain(..) {
            let bytes = self.umem.bytes(&frame, part);
            if let Some(tap) = &self.tap {
                tap.take(bytes);
            }
            // The result does not matter, since the filter passes only frames for this stack.
            taker.take(bytes);
            self.refill(frame);
        }
        self.came = came;
        self.received.release();
        self.fill.publish();
    }

    fn transmit(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> bool {
        if self.is_burst_full() || self.to_send.room() == 0 {
            return false;
        }
        let Some(mut frame) = self.spare.pop() else {
            return false;
        };
        let length = fill(self.umem.bytes_mut(&mut frame)).filter(|length| *length <= FRAME_SIZE);
        let Some(length) = length else {
            self.spare.push(frame);
            return false;
        };
        if let Some(tap) = &self.tap {
            tap.take(self.umem.bytes(&frame, 0..length));
        }
        let address = self.umem.give(frame);
        self.to_send.push(Filled {
            address,
            length: length as u32,
            options: 0,
        });
        self.burst += 1;
        self.counts.sent += 1;
        true
    }
}
