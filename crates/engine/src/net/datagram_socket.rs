//! Sockets of datagrams: UDP, and Unix sockets of type `SOCK_DGRAM`.
//!
//! Datagrams come and go in batches: one call of the engine receives all that are there, and sends
//! all that were pushed. Each is whole or not at all, may get lost, and may overtake others.
//! Nothing waits for a peer: what the network does not take waits here, within [`BACKLOG_MAX`], and
//! what does not go is dropped.
//!
//! Several of one length to the same peer leave as one message where the kernel can segment, and
//! what a connected socket receives may come so as well (`messages.rs`). Not here yet: the
//! congestion marks of IP, which QUIC wants.

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

/// Bytes of datagrams that wait for room to be sent, what is kept beside their content included.
/// Beyond that they are dropped, as a full queue anywhere on their way would do.
const BACKLOG_MAX: usize = 1 << 20;

/// From so many datagrams received by one call on, a connected socket asks for more of them in one
/// message.
const COALESCES_FROM: usize = 4;

/// Datagrams that wait for the end of a turn; more than one call takes leave at once.
const LEAVE_SOON_MAX: usize = 32;

/// A socket that exchanges datagrams. Dropping it closes it and forgets what finds no room yet and
/// what was pushed without being sent.
#[derive(Debug)]
pub struct DatagramSocket {
    key: Key,
    /// Not `Send`: the key is of this thread's table.
    _local: PhantomData<*const ()>,
}

impl DatagramSocket {
    /// A socket connected to `address`, its own address and port chosen by the kernel, which drops
    /// what others send to it. No packet is sent.
    ///
    /// # Errors
    /// Those of `socket()` and `connect()`.
    ///
    /// # Panics
    /// When the thread has no runtime.
    pub fn connect(address: &Address) -> io::Result<DatagramSocket> {
        DatagramSocket::connect_with(address, &SocketOptions::default())
            .map_err(|failed| failed.error)
    }

    /// A socket connected to `address`, as the options have it. No packet is sent.
    ///
    /// # Errors
    /// Which of the calls failed: `socket()`, `setsockopt()`, `bind()` or `connect()`.
    ///
    /// # Panics
    /// When the thread has no runtime.
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

    /// A socket of `address` that takes datagrams from anybody; port 0 leaves the port to the
    /// kernel.
    ///
    /// # Errors
    /// Those of `socket()` and `bind()`.
    ///
    /// # Panics
    /// When the thread has no runtime.
    pub fn bind(address: &Address) -> io::Result<DatagramSocket> {
        enter(|worker| {
            let socket = worker.engine.bound_datagrams(address)?;
            Ok(DatagramSocket::over(worker, socket))
        })
    }

    /// Takes over a socket of datagrams that was bound elsewhere, which need not be non-blocking.
    /// Several threads may each have one over the same socket: then each datagram is received by
    /// one of them.
    ///
    /// # Errors
    /// Where it is no such socket, or none of this thread's engine.
    ///
    /// # Panics
    /// When the thread has no runtime.
    pub fn new(socket: impl Into<BoundSocket>) -> io::Result<DatagramSocket> {
        let socket = socket.into().into_socket();
        enter(|worker| {
            worker.engine.take_datagrams(&socket)?;
            Ok(DatagramSocket::over(worker, socket))
        })
    }

    /// Watches another descriptor that is read whole or not at all, and owns it from now on.
    pub(crate) fn watch(descriptor: OwnedFd) -> DatagramSocket {
        enter(|worker| DatagramSocket::over(worker, Socket::Descriptor(descriptor)))
    }

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

    /// The address of this end.
    ///
    /// # Errors
    /// Those of `getsockname()`.
    pub fn local(&self) -> io::Result<Address> {
        enter(|worker| match worker.datagrams.get(self.key) {
            Some(state) => worker.engine.address(&state.socket),
            None => Err(io::ErrorKind::NotConnected.into()),
        })
    }

    /// Appends a datagram to those that are to be sent; no system call. False where so many wait
    /// already that it was dropped.
    pub fn push(&self, datagram: Datagram<Bytes>) -> bool {
        enter(|worker| worker.push_datagram(self.key, datagram))
    }

    /// Gives everything that was pushed to the kernel in as few calls as possible. Never waits:
    /// what finds no room goes on by itself. How many datagrams that are is returned.
    pub fn start_send(&self) -> usize {
        enter(|worker| {
            worker.start_send_datagrams(self.key);
            let state = worker.datagrams.get(self.key);
            state.map_or(0, |state| state.pending.len())
        })
    }

    /// Like [`start_send`](Self::start_send), at the end of this turn of the loop: what many have
    /// pushed on a socket that they share leaves with one call. Nobody waits for it; what fails is
    /// told by [`take_failure`](Self::take_failure).
    pub fn send_soon(&self) {
        enter(|worker| worker.send_datagrams_soon(self.key));
    }

    /// The first error since the last call: that of a datagram which was dropped for it, or what
    /// the network said of an earlier one (`ECONNREFUSED`).
    #[must_use]
    pub fn take_failure(&self) -> Option<io::Error> {
        enter(|worker| worker.datagrams.get_mut(self.key)?.failure.take())
    }

    /// Starts sending, and waits until everything has left or failed. Cancel-safe.
    ///
    /// # Errors
    /// The first error since the last call: that of a datagram which was dropped for it, or what
    /// the network said of an earlier one (`ECONNREFUSED`), for which none is dropped. The others
    /// have been sent.
    pub async fn drained(&self) -> io::Result<()> {
        poll_fn(|context| enter(|worker| worker.poll_datagrams_drained(self.key, context.waker())))
            .await
    }

    /// Receives one datagram, whole. Cancel-safe.
    ///
    /// # Errors
    /// Those of `recvmsg()`, among them what the network said of datagrams that were sent
    /// (`ECONNREFUSED`). The socket is as good as before.
    pub async fn recv(&self) -> io::Result<Datagram<Buffer>> {
        budget::take().await;
        poll_fn(|context| enter(|worker| worker.poll_datagram(self.key, context.waker()))).await
    }

    /// A datagram that has been received already, with others of its batch; no system call.
    pub fn take_received(&self) -> Option<Datagram<Buffer>> {
        enter(|worker| worker.datagrams.get_mut(self.key)?.arrived.pop_front())
    }

    /// Reads the eight bytes of a descriptor that [`watch`](Self::watch) was given. Cancel-safe.
    pub(crate) async fn read(&self) -> io::Result<usize> {
        poll_fn(|context| enter(|worker| worker.poll_watched(self.key, context.waker()))).await
    }

    /// Makes a call on the descriptor.
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

/// What is known of one such socket. The entry stays until no operation is in flight.
pub(crate) struct DatagramsState {
    socket: Socket,
    /// The socket counts among [`outgoing`](super::outgoing).
    outgoing: bool,
    /// The thread has made it, and no other process has it.
    is_own: bool,
    /// Datagrams that arrive together may be received as one message.
    coalesces: bool,
    /// The engine watches it for something to receive.
    receiving: bool,
    /// The engine watches it for room.
    sending: bool,
    /// What is pending leaves at the end of this turn.
    is_flush_scheduled: bool,
    /// The handle is gone.
    dropped: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// At most what one call of the engine receives.
    arrived: VecDeque<Datagram<Buffer>>,
    pending: VecDeque<Datagram<Bytes>>,
    /// What the pending ones count towards [`BACKLOG_MAX`].
    backlog: usize,
    /// Of a datagram that could not be sent.
    failure: Option<io::Error>,
}

/// What a datagram that waits counts.
fn weight(datagram: &Datagram<Bytes>) -> usize {
    datagram.bytes.len() + size_of::<Datagram<Bytes>>()
}

// Receiving.
impl Reactor {
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
                // Most sessions exchange one datagram each, for which the call would not pay. A
                // socket that others know keeps its options: another program may inherit it.
                if state.is_own && !state.coalesces && state.arrived.len() >= COALESCES_FROM {
                    state.coalesces = true;
                    state.socket.descriptor().map(coalesce);
                }
            }
        }
    }

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
                // There is something by now.
                Some(_) => {}
            }
        }
    }

    /// The engine says that there is something to receive.
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

    /// Sends what has waited for the end of the turn.
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
                    // What the network says of an earlier datagram stops none of these.
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

    /// The engine says that there is room.
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
        // A completion is still to come where the engine cannot take the operation back at once.
        // One of the first two is not in flight, and taking it back does nothing.
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

    /// Drops every socket that is left, when the runtime ends.
    pub(crate) fn drop_all_datagrams(&mut self) {
        let keys: Vec<Key> = self.datagrams.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.drop_datagrams(key));
    }

    /// Closes the socket if its handle is gone and nothing is in flight.
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
