//! The client's end of a session over UDP.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};

use bytes::Bytes;
use engine::Buffer;
use engine::net::{Datagram, DatagramSocket};
use framework::workers::Worker;

/// Maximum number of bytes of a client's datagrams that are queued for its session. Further
/// datagrams are dropped, as by any full queue on their path.
const ARRIVED_MAX: usize = 256 << 10;

/// The overhead of a queued datagram, in addition to its bytes.
const OVERHEAD: usize = 128;

/// The state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionStatus {
    /// The client may send more.
    Open,
    /// The client's earlier datagrams are still being answered.
    Ending,
    /// The session ends at once.
    Aborted,
}

/// The client's end of a session over UDP.
pub(crate) struct DatagramEnd {
    /// The client's address, and the local address from which datagrams are sent to it.
    pub(crate) to: Datagram<()>,
    /// The socket, which all clients of an address share.
    pub(crate) socket: Rc<DatagramSocket>,
    /// The PROXY protocol header of the first datagram, once it has been taken off.
    pub(crate) header: OnceCell<Box<[u8]>>,
    /// Datagrams that have been received and not taken.
    pub(crate) arrived: RefCell<VecDeque<Buffer>>,
    /// The size of the queued datagrams that counts towards [`ARRIVED_MAX`].
    pub(crate) occupied: Cell<usize>,
    /// Wakes the task that waits in [`DatagramEnd::next`] or [`DatagramEnd::aborted`].
    pub(crate) reader: RefCell<Option<Waker>>,
    /// The state of the session.
    pub(crate) course: Cell<SessionStatus>,
    /// The session's place among the connections of its thread.
    pub(crate) place: Cell<Option<u32>>,
}

impl DatagramEnd {
    /// Queues a received datagram for the session, or drops it if the queue is full.
    pub(crate) fn arrive(&self, mut bytes: Buffer) {
        let occupied = self.occupied.get() + bytes.len() + OVERHEAD;
        if occupied > ARRIVED_MAX {
            return;
        }
        bytes.fit();
        self.occupied.set(occupied);
        self.arrived.borrow_mut().push_back(bytes);
        self.wake();
    }

    /// Takes the PROXY protocol header, of this length in bytes, off the session's first datagram.
    pub(crate) fn take_off_header(&self, datagram: &mut Buffer, length: usize) {
        let header = datagram.get(..length).unwrap_or_default();
        let _ = self.header.set(header.into());
        datagram.advance(length);
    }

    /// Returns datagrams that were taken: they come next, in this order.
    pub(crate) fn put_back(&self, datagrams: Vec<Buffer>) {
        let mut arrived = self.arrived.borrow_mut();
        for bytes in datagrams.into_iter().rev() {
            let occupied = self.occupied.get() + bytes.len() + OVERHEAD;
            self.occupied.set(occupied);
            arrived.push_front(bytes);
        }
    }

    fn wake(&self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    /// The client's next datagram; `None` once the session is [ending](Self::finish) and all
    /// datagrams received before have been taken. Cancel-safe.
    pub(crate) async fn next(&self) -> Option<Buffer> {
        poll_fn(|context| {
            if let Some(bytes) = self.take() {
                return Poll::Ready(Some(bytes));
            }
            if self.course.get() != SessionStatus::Open {
                return Poll::Ready(None);
            }
            self.reader.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// The client's next datagram, if one has been received.
    pub(crate) fn take(&self) -> Option<Buffer> {
        let bytes = self.arrived.borrow_mut().pop_front()?;
        let occupied = self.occupied.get();
        self.occupied
            .set(occupied.saturating_sub(bytes.len() + OVERHEAD));
        Some(bytes)
    }

    /// Length of the datagram that is [next](Self::next), in bytes; 0 if none has been received.
    pub(crate) fn waiting(&self) -> usize {
        self.arrived.borrow().front().map_or(0, |bytes| bytes.len())
    }

    /// Ends the session after its pending answers: the client's later datagrams do not belong to
    /// it.
    pub(crate) fn finish(&self) {
        if self.course.get() == SessionStatus::Open {
            self.course.set(SessionStatus::Ending);
        }
        self.wake();
    }

    /// Ends the session at once, even if answers are pending.
    pub(crate) fn abort(&self) {
        self.course.set(SessionStatus::Aborted);
        self.wake();
    }

    /// Waits until the session is aborted. Cancel-safe.
    pub(crate) async fn aborted(&self) {
        poll_fn(|context| {
            if self.course.get() == SessionStatus::Aborted {
                return Poll::Ready(());
            }
            self.reader.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// The session's place among the connections of its thread.
    pub(crate) fn place(&self) -> Option<u32> {
        self.place.get()
    }

    /// Records that the session is in use: sessions that have been silent for longest are closed
    /// first to make room.
    pub(crate) fn note_use(&self, worker: &Worker) {
        if let Some(place) = self.place.get() {
            worker.set_idle(place, false);
            worker.set_idle(place, true);
        }
    }

    /// Sends a datagram to the client at the end of this event loop iteration, together with those
    /// of other clients. A datagram that does not fit is dropped, as the network might do.
    pub(crate) fn send(&self, bytes: Bytes) {
        if self.socket.push(self.to.with(bytes)) {
            self.socket.send_soon();
        }
    }
}

/// Sends a datagram, or drops it if too many are already queued.
///
/// # Errors
/// Errors of `sendmsg()`.
pub(crate) async fn send(socket: &DatagramSocket, datagram: Datagram<Bytes>) -> io::Result<()> {
    // A dropped datagram needs no wait.
    if socket.push(datagram) {
        return send_pushed(socket).await;
    }
    Ok(())
}

/// Sends the datagrams that were pushed to a socket. Datagrams for which the kernel has no room are
/// sent later, without waiting.
///
/// # Errors
/// The first error of `sendmsg()`, which may be about an earlier datagram (`ECONNREFUSED`).
pub(crate) async fn send_pushed(socket: &DatagramSocket) -> io::Result<()> {
    if socket.start_send() == 0 {
        return socket.drained().await;
    }
    Ok(())
}
