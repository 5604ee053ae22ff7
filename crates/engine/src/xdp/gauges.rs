//! Counters of queues, for other threads to read.
//!
//! A queue's thread stores its counts once per turn, without an atomic read-modify-write. The
//! reading thread adds the kernel's counts.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use netstack::Counts;
use rustix::net::sockopt;

use super::socket::FrameCounts;

/// The queues of this process.
static QUEUES: Mutex<Vec<Weak<Gauges>>> = Mutex::new(Vec::new());

/// The counters of one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueReport {
    /// The name of the queue's interface.
    pub interface: String,
    /// The receive queue's number.
    pub number: u32,
    /// Connections in any state, including TIME-WAIT.
    pub connections: u64,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Frames that were received.
    pub received: u64,
    /// Frames that were sent.
    pub sent: u64,
    /// Frames that were dropped: by the kernel, because no empty frame or no room in the receive
    /// ring was left, and by us, if too many SYNs waited.
    pub dropped: u64,
    /// Segments with data that were retransmitted.
    pub sent_again: u64,
    /// Segments that were received with a wrong checksum.
    pub damaged: u64,
    /// SYNs that were answered with a SYN cookie.
    pub cookies: u64,
    /// Frames that are available for sending.
    pub spare: u64,
    /// How often the kernel found no empty frame to receive into.
    pub fill_empty: u64,
}

/// The counters of every queue of this process.
#[must_use]
pub fn reports() -> Vec<QueueReport> {
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    queues.retain(|queue| queue.strong_count() > 0);
    let queues: Vec<_> = queues.iter().filter_map(Weak::upgrade).collect();
    queues.iter().map(|queue| queue.report()).collect()
}

/// The counts of one queue.
#[derive(Debug)]
pub(super) struct Gauges {
    interface: String,
    number: u32,
    /// The queue's socket, for reading the kernel's counts.
    socket: OwnedFd,
    connections: AtomicU64,
    accepted: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
    dropped: AtomicU64,
    sent_again: AtomicU64,
    damaged: AtomicU64,
    cookies: AtomicU64,
    spare: AtomicU64,
}

impl Gauges {
    /// Registers a queue that is being opened.
    pub(super) fn new(interface: &str, number: u32, socket: OwnedFd) -> Arc<Gauges> {
        let zero = || AtomicU64::new(0);
        let gauges = Arc::new(Gauges {
            interface: interface.to_owned(),
            number,
            socket,
            connections: zero(),
            accepted: zero(),
            received: zero(),
            sent: zero(),
            dropped: zero(),
            sent_again: zero(),
            damaged: zero(),
            cookies: zero(),
            spare: zero(),
        });
        let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
        queues.push(Arc::downgrade(&gauges));
        gauges
    }

    /// Stores the counts of the queue's thread.
    pub(super) fn show(&self, frames: FrameCounts, segments: Counts, connections: usize) {
        let store = |to: &AtomicU64, value| to.store(value, Ordering::Relaxed);
        store(&self.connections, connections as u64);
        store(&self.accepted, segments.accepted);
        store(&self.received, frames.received);
        store(&self.sent, frames.sent);
        store(&self.dropped, frames.dropped);
        store(&self.sent_again, segments.sent_again);
        store(&self.damaged, segments.damaged);
        store(&self.cookies, segments.cookies);
        store(&self.spare, frames.spare);
    }

    /// The stored counts, together with the kernel's.
    fn report(&self) -> QueueReport {
        let load = |from: &AtomicU64| from.load(Ordering::Relaxed);
        let of_kernel = sockopt::xdp_statistics(&self.socket).ok();
        let dropped = of_kernel.as_ref().map_or(0, |of_kernel| {
            of_kernel.rx_dropped + of_kernel.rx_ring_full.unwrap_or_default()
        });
        let fill_empty = of_kernel.and_then(|of_kernel| of_kernel.rx_fill_ring_empty_descs);
        QueueReport {
            interface: self.interface.clone(),
            number: self.number,
            connections: load(&self.connections),
            accepted: load(&self.accepted),
            received: load(&self.received),
            sent: load(&self.sent),
            dropped: dropped + load(&self.dropped),
            sent_again: load(&self.sent_again),
            damaged: load(&self.damaged),
            cookies: load(&self.cookies),
            spare: load(&self.spare),
            fill_empty: fill_empty.unwrap_or_default(),
        }
    }
}
