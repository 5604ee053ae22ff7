//! Datagram sockets: UDP, and Unix sockets of type `SOCK_DGRAM`.
//!
//! Datagrams are received and sent in batches: one call of the engine receives all that are
//! available, and sends all that were pushed. A datagram arrives whole or not at all, may get lost,
//! and may overtake others. If the kernel's send buffer is full, datagrams wait in a queue of this
//! socket; when they exceed [`BACKLOG_MAX`], further ones are dropped.
//!
//! Several datagrams of equal length to the same peer are sent as one message if the kernel
//! supports segmentation, and a connected socket may receive them in that form, too
//! (`messages.rs`). Not here yet: ECN marks, which QUIC needs.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::task::{Poll, Waker};

use base::slab::Key;
use bytes::Bytes;

use super::{Address, BoundSocket, ConnectError, Datagram, Segment, SocketOptions};
use crate::budget;
use crate::buffer::Buffer;
use crate::engine::{Op, OpKind, OperationOutcome, Socket, Token};
use crate::messages::coalesce;
use crate::worker::{Reactor, enter, try_enter};

/// Maximum total size of the datagrams that wait to be sent, including the bookkeeping for each.
/// Further datagrams are dropped, as by a full queue anywhere in the network.
const BACKLOG_MAX: usize = 1 << 20;

/// A connected socket enables `UDP_GRO` after one call has received at least this many datagrams.
const COALESCES_FROM: usize = 4;

/// The number of datagrams that may wait for the end of a turn. At this number they are sent at
/// once, since one call sends no more.
const LEAVE_SOON_MAX: usize = 32;

/// A datagram socket. Dropping it sends the datagrams that [`send_soon`](Self::send_soon) has
/// scheduled, discards those that are then still queued, and closes the socket.
#[derive(Debug)]
pub struct DatagramSocket {
    key: Key,
    /// Not `Send`: the key belongs to this thread's table.
    _local: PhantomData<*const ()>,
}

impl DatagramSocket {
    /// Creates a socket that is connected to `address`, so that the kernel drops datagrams from
    /// others. The kernel chooses the local address and port. Sends no packet.
    ///
    /// # Errors
    /// Those of `socket()` and `connect()`.
    ///
    /// # Panics
    /// If the thread has no runtime.
    pub fn connect(address: &Address) -> io::Result<DatagramSocket> {
        DatagramSocket::connect_with(address, &SocketOptions::default())
            .map_err(|failed| failed.error)
    }

    /// Creates a socket with these options that is connected to `address`. Sends no packet.
    ///
    /// # Errors
    /// The failed call: `socket()`, `setsockopt()`, `bind()` or `connect()`.
    ///
    /// # Panics
    /// If the thread has no runtime.
    pub fn connect_with(
        address: &Address,
        options: &SocketOptions,
    ) -> Result<DatagramSocket, ConnectError> {
        enter(|worker| {
            let socket = worker.engine.connected_datagrams(address, options)?;
            worker.outgoing += 1;
            let connected = DatagramSocket::over(worker, socket);
            if let Some(state) = worker.datagrams.get_mut(connected.key) {
                state.outgoing = true;
                state.is_own = true;
            }
            Ok(connected)
        })
    }

    /// Creates a socket that is bound to `address` and receives from any peer. With port 0 the
    /// kernel chooses the port.
    ///
    /// # Errors
    /// Those of `socket()` and `bind()`.
    ///
    /// # Panics
    /// If the thread has no runtime.
    pub fn bind(address: &Address) -> io::Result<DatagramSocket> {
        enter(|worker| {
            let socket = worker.engine.bound_datagrams(address)?;
            Ok(DatagramSocket::over(worker, socket))
        })
    }

    /// Takes over a datagram socket that was bound elsewhere; it need not be non-blocking. If
    /// several threads take over the same socket, each datagram is received by one of them.
    ///
    /// # Errors
    /// If `socket` is not a datagram socket, or this thread's engine cannot use it.
    ///
    /// # Panics
    /// If the thread has no runtime.
    pub fn new(socket: impl Into<BoundSocket>) -> io::Result<DatagramSocket> {
        let socket = socket.into().into_socket();
        enter(|worker| {
            worker.engine.take_datagrams(&socket)?;
            Ok(DatagramSocket::over(worker, socket))
        })
    }

    /// Takes over a descriptor other than a socket, such as a timerfd, whose reads return all eight
    /// bytes or none; [`read`](Self::read) waits for them.
    pub(crate) fn watch(descriptor: OwnedFd) -> DatagramSocket {
        enter(|worker| DatagramSocket::over(worker, Socket::Descriptor(descriptor)))
    }

    /// Adds a socket to the thread's table.
    fn over(worker: &mut Reactor, socket: Socket) -> DatagramSocket {
        let state = DatagramsState {
            socket,
            outgoing: false,
            is_own: false,
            coalesces: false,
            receiving: false,
            sending: false,
            is_flush_scheduled: false,
            dropped: false,
            reader: None,
            writer: None,
            arrived: VecDeque::new(),
            pending: VecDeque::new(),
            backlog: 0,
            failure: None,
        };
        DatagramSocket {
            key: worker.datagrams.insert(state),
            _local: PhantomData,
        }
    }

    /// The local address.
    ///
    /// # Errors
    /// Those of `getsockname()`.
    pub fn local(&self) -> io::Result<Address> {
        enter(|worker| match worker.datagrams.get(self.key) {
            Some(state) => worker.engine.address(&state.socket),
            None => Err(io::ErrorKind::NotConnected.into()),
        })
    }

    /// Queues a datagram, without a system call. Returns false if the datagram was dropped because
    /// the queue is full.
    pub fn push(&self, datagram: Datagram<Bytes>) -> bool {
        enter(|worker| worker.push_datagram(self.key, datagram))
    }

    /// Passes all queued datagrams to the kernel in as few calls as possible. Never waits:
    /// datagrams for which the send buffer has no room are sent automatically once it has. Returns
    /// the number of those.
    pub fn start_send(&self) -> usize {
        enter(|worker| {
            worker.start_send_datagrams(self.key);
            let state = worker.datagrams.get(self.key);
            state.map_or(0, |state| state.pending.len())
        })
    }

    /// Like [`start_send`](Self::start_send), but at the end of this turn of the loop: for a socket
    /// that several tasks share, whose datagrams are then sent by one call.
    /// [`take_failure`](Self::take_failure) returns the error of a failed send.
    pub fn send_soon(&self) {
        enter(|worker| worker.send_datagrams_soon(self.key));
    }

    /// The first send error since the last call: either a datagram was dropped because of the
    /// error, or the network reported that it did not deliver an earlier one (`ECONNREFUSED`).
    #[must_use]
    pub fn take_failure(&self) -> Option<io::Error> {
        enter(|worker| worker.datagrams.get_mut(self.key)?.failure.take())
    }

    /// Starts sending, and waits until every queued datagram has been sent or has failed.
    /// Cancel-safe.
    ///
    /// # Errors
    /// The first send error since the last call: either a datagram was dropped because of the
    /// error, or the network reported that it did not deliver an earlier one (`ECONNREFUSED`); then
    /// none was dropped. All other datagrams have been sent.
    pub async fn drained(&self) -> io::Result<()> {
        poll_fn(|context| enter(|worker| worker.poll_datagrams_drained(self.key, context.waker())))
            .await
    }

    /// Receives one datagram, whole. Cancel-safe.
    ///
    /// # Errors
    /// Those of `recvmsg()`, including `ECONNREFUSED` for a datagram that was sent earlier. The
    /// socket remains usable.
    pub async fn recv(&self) -> io::Result<Datagram<Buffer>> {
        budget::take().await;
        poll_fn(|context| enter(|worker| worker.poll_datagram(self.key, context.waker()))).await
    }

    /// Returns a datagram that an earlier call of the engine has received, if there is one. Makes
    /// no system call.
    pub fn take_received(&self) -> Option<Datagram<Buffer>> {
        enter(|worker| worker.datagrams.get_mut(self.key)?.arrived.pop_front())
    }

    /// Waits for eight bytes of the descriptor given to [`watch`](Self::watch), and discards them.
    /// Returns the number of bytes read. Cancel-safe.
    pub(crate) async fn read(&self) -> io::Result<usize> {
        poll_fn(|context| enter(|worker| worker.poll_watched(self.key, context.waker()))).await
    }

    /// Runs `call` with the socket's descriptor.
    pub(crate) fn with_descriptor<R>(
        &self,
        call: impl FnOnce(BorrowedFd<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        enter(|worker| {
            let state = worker.datagrams.get(self.key);
            match state.and_then(|state| state.socket.descriptor()) {
                Some(descriptor) => call(descriptor),
                None => Err(io::ErrorKind::NotConnected.into()),
            }
        })
    }
}

impl Drop for DatagramSocket {
    fn drop(&mut self) {
        try_enter(|worker| worker.drop_datagrams(self.key));
    }
}

/// The state of one datagram socket. The entry stays in the table until the handle is dropped and
/// no operation is in flight.
pub(crate) struct DatagramsState {
    socket: Socket,
    /// The socket counts among [`outgoing`](super::outgoing).
    outgoing: bool,
    /// This thread created the socket, and no other process has it.
    is_own: bool,
    /// `UDP_GRO` is enabled: datagrams that arrive together may be received as one message.
    coalesces: bool,
    /// A receive is in flight: the engine waits for readability.
    receiving: bool,
    /// A send is in flight: the engine waits for room in the send buffer.
    sending: bool,
    /// The pending datagrams are sent at the end of this turn.
    is_flush_scheduled: bool,
    /// The handle is dropped.
    dropped: bool,
    /// The task that waits to receive.
    reader: Option<Waker>,
    /// The task that waits until all pending datagrams have been sent.
    writer: Option<Waker>,
    /// Received datagrams that no task has taken yet: at most one batch of the engine.
    arrived: VecDeque<Datagram<Buffer>>,
    /// Datagrams to be sent, in order.
    pending: VecDeque<Datagram<Bytes>>,
    /// The total [`weight`] of the pending datagrams, which [`BACKLOG_MAX`] limits.
    backlog: usize,
    /// The first send error that has not been reported.
    failure: Option<io::Error>,
}

/// The size of a pending datagram towards [`BACKLOG_MAX`], in bytes.
fn weight(datagram: &Datagram<Bytes>) -> usize {
    datagram.bytes.len() + size_of::<Datagram<Bytes>>()
}

// Receiving.
impl Reactor {
    /// Returns the next received datagram, or starts a receive and registers the task.
    fn poll_datagram(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<Datagram<Buffer>>> {
        loop {
            let Some(state) = self.datagrams.get_mut(key) else {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            };
            if let Some(datagram) = state.arrived.pop_front() {
                return Poll::Ready(Ok(datagram));
            }
            if state.receiving {
                state.reader = Some(waker.clone());
                return Poll::Pending;
            }
            state.receiving = true;
            let op = Op::RecvMsg {
                socket: &state.socket,
                into: &mut state.arrived,
            };
            if let Some(outcome) = self.engine.submit(op, token(key, OpKind::RecvMsg)) {
                state.receiving = false;
                if let OperationOutcome::Messages(Err(error)) = outcome {
                    return Poll::Ready(Err(error));
                }
                // Not enabled from the start, since most sessions exchange one datagram each and
                // would not regain the cost of the call. Only for sockets of this process alone: a
                // program that inherits a socket does not expect the option.
                if state.is_own && !state.coalesces && state.arrived.len() >= COALESCES_FROM {
                    state.coalesces = true;
                    state.socket.descriptor().map(coalesce);
                }
            }
        }
    }

    /// Reads from a watched descriptor, or waits for readability and registers the task.
    fn poll_watched(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<usize>> {
        loop {
            let Some(state) = self.datagrams.get_mut(key) else {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            };
            let Some(descriptor) = state.socket.descriptor() else {
                return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
            };
            match rustix::io::read(descriptor, &mut [0; 8]) {
                Err(rustix::io::Errno::AGAIN) => {}
                result => return Poll::Ready(Ok(result?)),
            }
            state.reader = Some(waker.clone());
            if state.receiving {
                return Poll::Pending;
            }
            let op = Op::Readable {
                socket: &state.socket,
            };
            match self.engine.submit(op, token(key, OpKind::Readable)) {
                None => {
                    state.receiving = true;
                    return Poll::Pending;
                }
                Some(OperationOutcome::Messages(Err(error))) => return Poll::Ready(Err(error)),
                // The descriptor has become readable: read again.
                Some(_) => {}
            }
        }
    }

    /// Handles a completion: datagrams, or a watched descriptor, can be read.
    pub(crate) fn datagrams_readable(&mut self, key: Key) {
        let Some(state) = self.datagrams.get_mut(key) else {
            return;
        };
        state.receiving = false;
        self.after.wakes.extend(state.reader.take());
        self.release_datagrams(key);
    }
}

// Sending.
impl Reactor {
    fn push_datagram(&mut self, key: Key, datagram: Datagram<Bytes>) -> bool {
        let weight = weight(&datagram);
        let room = |state: &&mut DatagramsState| state.backlog + weight <= BACKLOG_MAX;
        let Some(state) = self.datagrams.get_mut(key).filter(room) else {
            self.after.spent.push(Segment::Bytes(datagram.bytes));
            return false;
        };
        state.backlog += weight;
        state.pending.push_back(datagram);
        true
    }

    fn send_datagrams_soon(&mut self, key: Key) {
        let Some(state) = self.datagrams.get_mut(key) else {
            return;
        };
        if state.pending.len() >= LEAVE_SOON_MAX {
            self.start_send_datagrams(key);
        } else if !std::mem::replace(&mut state.is_flush_scheduled, true) {
            self.datagrams_to_flush.push(key);
        }
    }

    /// Sends the datagrams that were scheduled for the end of the turn.
    pub(crate) fn flush_datagrams(&mut self) {
        let mut keys = std::mem::take(&mut self.datagrams_to_flush);
        for key in keys.drain(..) {
            if let Some(state) = self.datagrams.get_mut(key)
                && std::mem::take(&mut state.is_flush_scheduled)
            {
                self.start_send_datagrams(key);
            }
        }
        self.datagrams_to_flush = keys;
    }

    fn start_send_datagrams(&mut self, key: Key) {
        let Some(state) = self.datagrams.get_mut(key) else {
            return;
        };
        let mut is_retry = false;
        while !state.sending && !state.pending.is_empty() {
            state.sending = true;
            let op = Op::SendMsg {
                socket: &state.socket,
                datagrams: &state.pending,
            };
            let gone = match self.engine.submit(op, token(key, OpKind::SendMsg)) {
                None => return,
                Some(OperationOutcome::Messages(Err(error))) => {
                    // The error concerns a datagram that was sent earlier: keep the first pending
                    // one and send again.
                    let of_earlier = error.kind() == io::ErrorKind::ConnectionRefused && !is_retry;
                    is_retry = of_earlier;
                    state.failure.get_or_insert(error);
                    usize::from(!of_earlier)
                }
                Some(OperationOutcome::Messages(Ok(count))) => {
                    is_retry = false;
                    count
                }
                Some(_) => 0,
            };
            state.sending = false;
            for datagram in state.pending.drain(..gone.min(state.pending.len())) {
                state.backlog -= weight(&datagram).min(state.backlog);
                self.after.spent.push(Segment::Bytes(datagram.bytes));
            }
        }
        if state.pending.is_empty() {
            self.after.wakes.extend(state.writer.take());
        }
    }

    fn poll_datagrams_drained(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<()>> {
        self.start_send_datagrams(key);
        let Some(state) = self.datagrams.get_mut(key) else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        if state.pending.is_empty() {
            return Poll::Ready(state.failure.take().map_or(Ok(()), Err));
        }
        state.writer = Some(waker.clone());
        Poll::Pending
    }

    /// Handles a completion: the send buffer has room.
    pub(crate) fn datagrams_writable(&mut self, key: Key) {
        let Some(state) = self.datagrams.get_mut(key) else {
            return;
        };
        state.sending = false;
        if state.dropped {
            self.release_datagrams(key)
        } else {
            self.start_send_datagrams(key)
        }
    }
}

// The life of an entry.
impl Reactor {
    /// The handle is dropped: sends scheduled datagrams, cancels operations in flight and closes
    /// the socket.
    fn drop_datagrams(&mut self, key: Key) {
        if let Some(state) = self.datagrams.get_mut(key)
            && std::mem::take(&mut state.is_flush_scheduled)
        {
            self.start_send_datagrams(key);
        }
        let Some(state) = self.datagrams.get_mut(key) else {
            return;
        };
        state.dropped = true;
        if std::mem::take(&mut state.outgoing) {
            self.outgoing -= 1;
        }
        (state.reader, state.writer) = (None, None);
        let forgotten = state.pending.drain(..);
        let spent = forgotten.map(|datagram| Segment::Bytes(datagram.bytes));
        self.after.spent.extend(spent);
        // If the engine cannot cancel an operation at once, its completion is still to come. Of the
        // first two kinds only one is in flight; cancelling the other has no effect.
        if state.receiving {
            let kinds = [OpKind::RecvMsg, OpKind::Readable];
            let taken_back = kinds.map(|kind| self.engine.cancel(token(key, kind)).is_some());
            state.receiving = !taken_back.contains(&true);
        }
        if state.sending {
            let taken_back = self.engine.cancel(token(key, OpKind::SendMsg));
            state.sending = taken_back.is_none();
        }
        self.release_datagrams(key);
    }

    /// Drops all remaining sockets when the runtime ends.
    pub(crate) fn drop_all_datagrams(&mut self) {
        let keys: Vec<Key> = self.datagrams.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.drop_datagrams(key));
    }

    /// Closes the socket if its handle is dropped and no operation is in flight.
    fn release_datagrams(&mut self, key: Key) {
        let done = |state: &DatagramsState| state.dropped && !state.receiving && !state.sending;
        if self.datagrams.get(key).is_some_and(done)
            && let Some(state) = self.datagrams.remove(key)
        {
            self.engine.close_datagrams(key, state.socket, state.is_own);
        }
    }
}

fn token(key: Key, kind: OpKind) -> Token {
    Token { key, kind }
}
