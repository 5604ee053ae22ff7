//! The end of a session at which a client sends and receives datagrams.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};

use bytes::Bytes;
use engine::Buffer;
use engine::net::{Datagram, DatagramSocket};
use framework::workers::Worker;

/// Bytes of a client's datagrams that may wait for its session; more are dropped, as a full queue
/// anywhere on their way would drop them.
const ARRIVED_MAX: usize = 256 << 10;

/// What a datagram that waits counts beside its bytes.
const OVERHEAD: usize = 128;

/// Whether a session goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionStatus {
    /// More may come of the client.
    Open,
    /// What the client has asked is still answered.
    Ending,
    /// The session ends at once.
    Aborted,
}

/// The end of a session at which a client sends and receives datagrams.
pub(crate) struct DatagramEnd {
    /// Where datagrams to the client go, and from which address.
    pub(crate) to: Datagram<()>,
    /// The socket, which all of its clients share.
    pub(crate) socket: Rc<DatagramSocket>,
    /// What has come and has not been taken.
    pub(crate) arrived: RefCell<VecDeque<Buffer>>,
    /// What the arrived datagrams count towards [`ARRIVED_MAX`].
    pub(crate) occupied: Cell<usize>,
    pub(crate) reader: RefCell<Option<Waker>>,
    pub(crate) course: Cell<SessionStatus>,
    /// The session's place among the connections of its thread.
    pub(crate) place: Cell<Option<u32>>,
}

impl DatagramEnd {
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

    /// Gives back datagrams that were taken: they come next, in this order.
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

    /// The client's next datagram; `None` once the session is [to end](Self::end) and everything
    /// that has come was taken. Cancel-safe.
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

    /// The client's next datagram, if one has come.
    pub(crate) fn take(&self) -> Option<Buffer> {
        let bytes = self.arrived.borrow_mut().pop_front()?;
        let occupied = self.occupied.get();
        self.occupied
            .set(occupied.saturating_sub(bytes.len() + OVERHEAD));
        Some(bytes)
    }

    /// The session is to end: nothing more comes of the client.
    pub(crate) fn end(&self) {
        if self.course.get() == SessionStatus::Open {
            self.course.set(SessionStatus::Ending);
        }
        self.wake();
    }

    /// The session ends at once, whatever is still to be answered.
    pub(crate) fn abort(&self) {
        self.course.set(SessionStatus::Aborted);
        self.wake();
    }

    /// Waits until the session is to end at once. Cancel-safe.
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

    /// Notes that the session is used: of all sessions those make room first that have been silent
    /// for longest.
    pub(crate) fn note_use(&self, worker: &Worker) {
        if let Some(place) = self.place.get() {
            worker.set_idle(place, false);
            worker.set_idle(place, true);
        }
    }

    /// Sends a datagram to the client at the end of this turn of the loop, with those of the other
    /// clients. One that finds no room is lost, as one that the network loses is.
    pub(crate) fn send(&self, bytes: Bytes) {
        if self.socket.push(self.to.with(bytes)) {
            self.socket.send_soon();
        }
    }
}

/// Sends a datagram, or drops it where too many wait already for the network.
///
/// # Errors
/// Those of `sendmsg()`.
pub(crate) async fn send(socket: &DatagramSocket, datagram: Datagram<Bytes>) -> io::Result<()> {
    // What finds no room goes on by itself: nobody waits for that.
    if socket.push(datagram) && socket.start_send() == 0 {
        return socket.drained().await;
    }
    Ok(())
}
