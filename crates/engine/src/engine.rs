//! The narrow interface between a thread and its kernel: operations go in, completions come out.
//!
//! An operation that can complete at once does: [`Engine::submit`] then returns its outcome.
//! Otherwise exactly one final [`Completion`] follows, from [`Engine::wait`], even if the operation
//! is cancelled meanwhile. The engine owns the operation's data (the bytes to send, the receive
//! buffer) until then.
//!
//! At most one operation of each kind is in flight per socket, so a socket and a kind identify an
//! operation.
//!
//! **Who owns a descriptor.** The engine owns a stream's socket from [`Engine::adopt`] until it
//! closes the socket, and no layer above knows the descriptor's number: operations name the stream.
//! An engine that submits the close of a descriptor to its kernel forgets the number in the same
//! step, so that a late completion cannot act on a number that another connection has reused.
//! Listening sockets are shared with the engine while it accepts from them. Datagram sockets belong
//! to the thread's table, which keeps them open until no operation is in flight and then passes
//! them to [`Engine::close_datagrams`].
//!
//! **Datagrams** stay with the thread, too: an operation on datagrams that cannot complete at once
//! ends with [`OperationOutcome::Ready`], and the caller submits it again. An engine that sends
//! asynchronously would have to hold references to the bytes, and one that receives asynchronously
//! would have to keep the datagrams until the next operation.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use base::pieces;
use base::slab::Key;
use bytes::Bytes;

use crate::buffer::Buffer;
use crate::net::{Address, ConnectError, Datagram, Segment, SocketOptions, TcpInfo};
use crate::notifier::Notifier;
use crate::sys::{self, PARTS_MAX};
use crate::xdp::QueueParts;

/// The operations that a thread requests from its kernel. Implemented by `epoll.rs`, `uring`, `xdp`
/// and `sim`.
pub trait Engine {
    /// Starts `op`. `Some` is the final outcome, and no completion follows; `None` means that
    /// completions with `token` follow.
    fn submit(&mut self, op: Op<'_>, token: Token) -> Option<OperationOutcome>;

    /// Whether each send is a system call of its own, made by [`submit`](Self::submit); otherwise
    /// sends are batched until [`wait`](Self::wait).
    fn sends_at_once(&self) -> bool {
        false
    }

    /// Cancels the operation identified by `token`. `Some` is its final outcome, and no completion
    /// follows; `None` means that its final completion is still to come, with the progress it made,
    /// or that no such operation is in flight.
    fn cancel(&mut self, token: Token) -> Option<OperationOutcome>;

    /// Submits all queued operations to the kernel, waits until an operation completes, the
    /// notifier is signalled or `timeout` (rounded up to milliseconds) has passed, and appends the
    /// completions. With `None` there is no time limit.
    ///
    /// # Errors
    /// Only if the engine itself is broken; the caller then ends the process.
    fn wait(
        &mut self,
        timeout: Option<Duration>,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()>;

    /// Ends a wait from another thread.
    fn notifier(&self) -> Notifier;

    /// The monotonic time. A simulated engine returns its simulated time.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Takes ownership of the socket of the new stream `key`. All other operations on streams name
    /// only the key.
    fn adopt(&mut self, key: Key, socket: Socket);

    /// The descriptor of the stream `key`, which the default methods below use; `None` if the
    /// stream has no kernel socket, or its socket is closed.
    fn descriptor(&self, _key: Key) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Starts to wait for bytes of the stream `key` without receiving them; its receive is then in
    /// flight, and [`OperationOutcome::Ready`] completes it. False if the engine cannot wait this
    /// way, or the stream may have ended; the caller submits a receive instead.
    fn await_bytes(&mut self, _key: Key) -> bool {
        false
    }

    /// Creates a stream socket that can be connected to `to`, with these options.
    ///
    /// # Errors
    /// Those of `socket()`, `bind()` and, for an option that is required, `setsockopt()`.
    fn socket(&mut self, to: &Address, options: &SocketOptions) -> Result<Socket, ConnectError> {
        sys::stream_socket(to, options).map(Socket::Descriptor)
    }

    /// Creates a datagram socket and binds it to an address.
    ///
    /// # Errors
    /// Those of `socket()` and `bind()`.
    fn bound_datagrams(&mut self, from: &Address) -> io::Result<Socket> {
        sys::bound_datagram_socket(from).map(Socket::Descriptor)
    }

    /// Creates a datagram socket and connects it to the address `to`.
    ///
    /// # Errors
    /// The failed call: `socket()`, `setsockopt()`, `bind()` or `connect()`.
    fn connected_datagrams(
        &mut self,
        to: &Address,
        options: &SocketOptions,
    ) -> Result<Socket, ConnectError> {
        sys::connected_datagram_socket(to, options).map(Socket::Descriptor)
    }

    /// Prepares a datagram socket that was bound elsewhere for use on this thread.
    ///
    /// # Errors
    /// If `socket` is not a datagram socket of this engine.
    fn take_datagrams(&mut self, socket: &Socket) -> io::Result<()> {
        sys::take_datagram_socket(connected(socket.descriptor())?)
    }

    /// Closes the datagram socket `key`. No operation on it may be in flight. `is_own` says that no
    /// other process has the socket.
    fn close_datagrams(&mut self, _key: Key, socket: Socket, _is_own: bool) {
        drop(socket);
    }

    /// The local address of a socket that is not a stream's.
    ///
    /// # Errors
    /// Those of `getsockname()`.
    fn address(&self, socket: &Socket) -> io::Result<Address> {
        sys::local(connected(socket.descriptor())?)
    }

    /// Changes one property of a stream's socket immediately.
    ///
    /// # Errors
    /// Those of `setsockopt()` and `shutdown()`; `NotConnected` if the stream has no socket any
    /// more.
    fn control(&mut self, key: Key, control: Control) -> io::Result<()> {
        sys::control(connected(self.descriptor(key))?, control)
    }

    /// Closes a socket that was accepted and never adopted.
    fn discard(&mut self, socket: Socket) {
        drop(socket);
    }

    /// Prepares a listening socket for use on this thread. True if accepted connections inherit
    /// `TCP_NODELAY` from it.
    ///
    /// # Errors
    /// If `socket` is not a listening socket of this engine, or cannot be made non-blocking.
    fn listen(&mut self, socket: &Socket) -> io::Result<bool>;

    /// Accepts a waiting connection immediately, without an accept operation.
    ///
    /// # Errors
    /// Those of `accept()`: `WouldBlock` if no connection waits.
    fn accept_now(&mut self, listener: &Socket) -> io::Result<(Socket, Option<SocketAddr>)> {
        let (socket, peer) = sys::accept(connected(listener.descriptor())?)?;
        Ok((Socket::Descriptor(socket), peer))
    }

    /// Whether clients have begun connections that [`accept_now`](Engine::accept_now) does not
    /// return yet, and that no other thread or process can accept. Only an engine with a TCP stack
    /// of its own has such connections.
    fn has_handshakes(&mut self, _listener: &Socket) -> bool {
        false
    }

    /// Accepts the oldest waiting connection although the process is out of descriptors, sends
    /// `answer` to it and closes it. False if no connection waits, or the engine has no reserve
    /// descriptor for this.
    fn shed_connection(&mut self, listener: &Socket, answer: &[u8]) -> bool;

    /// Forgets a listening socket that this thread no longer uses. No accept on it may be in
    /// flight.
    fn forget_listener(&mut self, _socket: &Socket) {}

    /// The peer's address of the stream `key`.
    ///
    /// # Errors
    /// Those of `getpeername()`; `NotConnected` if the stream has no socket any more.
    fn peer(&self, key: Key) -> io::Result<Address> {
        sys::peer(connected(self.descriptor(key))?)
    }

    /// The local address of the stream `key`.
    ///
    /// # Errors
    /// Those of `getsockname()`; `NotConnected` if the stream has no socket any more.
    fn local(&self, key: Key) -> io::Result<Address> {
        sys::local(connected(self.descriptor(key))?)
    }

    /// TCP statistics of the stream `key`; `None` if it is not a TCP connection.
    fn info(&self, key: Key) -> Option<TcpInfo> {
        self.descriptor(key).and_then(sys::tcp_info)
    }

    /// Whether everything that this turn can receive from the stream `key` had arrived when the
    /// turn began. True only for an engine with a TCP stack of its own, which handles received
    /// frames only in [`wait`](Engine::wait).
    fn receives_ahead(&self, _key: Key) -> bool {
        false
    }

    /// Whether all data of closed streams has left this process. Only an engine with a TCP stack of
    /// its own may still have to send some.
    fn is_settled(&self) -> bool {
        true
    }

    /// Also serves the connections of one queue of a network interface.
    ///
    /// # Errors
    /// `Unsupported` if the engine has no TCP stack of its own.
    fn attach(&mut self, _parts: QueueParts) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The descriptor, or `NotConnected` if there is none.
fn connected(descriptor: Option<BorrowedFd<'_>>) -> io::Result<BorrowedFd<'_>> {
    descriptor.ok_or_else(|| io::ErrorKind::NotConnected.into())
}

/// A socket outside the engine's stream table: a stream's socket before adoption, a datagram
/// socket, or a listening socket.
#[derive(Debug)]
pub enum Socket {
    /// A kernel socket.
    Descriptor(OwnedFd),
    /// A socket of the simulation, which only the simulation closes.
    Simulated(i32),
    /// A connection of our own TCP stack on a queue of an interface.
    Carried {
        /// The queue's index in the engine.
        port: usize,
        /// The connection.
        id: netstack::ConnectionId,
    },
}

impl Socket {
    /// The descriptor, if this is a kernel socket.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Socket::Descriptor(descriptor) => Some(descriptor.as_fd()),
            Socket::Simulated(_) | Socket::Carried { .. } => None,
        }
    }
}

/// Identifies an operation: the socket's key in the thread's tables, and the kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Key of the stream, listener or datagram socket. Not reused before the last completion.
    pub key: Key,
    /// The kind of operation.
    pub kind: OpKind,
}

/// The kinds of operations, as a [`Token`] distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OpKind {
    /// The kind of [`Op::Accept`], with a key of the listener table. The keys of
    /// [`OpKind::Readable`], [`OpKind::RecvMsg`] and [`OpKind::SendMsg`] belong to the datagram
    /// table, those of all other kinds to the stream table.
    Accept = 0,
    /// The kind of [`Op::Connect`] in a token.
    Connect = 1,
    /// The kind of [`Op::Recv`] in a token.
    Recv = 2,
    /// The kind of [`Op::Send`] in a token.
    Send = 3,
    /// The kind of [`Op::Close`] in a token.
    Close = 4,
    /// The kind of [`Op::Readable`] in a token.
    Readable = 5,
    /// The kind of [`Op::RecvMsg`] in a token.
    RecvMsg = 6,
    /// The kind of [`Op::SendMsg`] in a token.
    SendMsg = 7,
}

/// One operation. Variants without a socket act on the stream that the token names.
#[derive(Debug)]
pub enum Op<'a> {
    /// Accept one connection, or several if `many`: then every completion but the last says that
    /// more follow.
    Accept {
        /// The listening socket. The engine holds a reference until the last completion.
        socket: &'a Rc<Socket>,
        /// Whether to go on accepting until no connection waits, or until cancelled.
        many: bool,
    },
    /// Connect a new socket.
    Connect {
        /// The address to connect to.
        address: Address,
    },
    /// Receive once, into a buffer that the engine provides when data has arrived.
    Recv {
        /// Whether the engine may continue receiving on its own, because the next data may arrive
        /// late.
        keep: bool,
    },
    /// Send the segments of `outgoing`: all of them, or as many as possible before the engine has
    /// to stop.
    Send {
        /// The segments to send. The outcome returns those that were not sent.
        outgoing: Box<Outgoing>,
        /// Stop after about this many bytes of files, so that other streams are served.
        chunk: u64,
        /// Whether and how to close the socket after everything has been sent.
        ending: CloseMode,
    },
    /// Close the socket once no operation uses it.
    Close,
    /// Report, by [`OperationOutcome::Ready`], when a descriptor other than a socket becomes
    /// readable. The key is of the datagram table.
    Readable {
        /// The descriptor. The caller keeps it open until the completion.
        socket: &'a Socket,
    },
    /// Receive all datagrams that are available at once.
    RecvMsg {
        /// The socket. The caller keeps it open until the completion.
        socket: &'a Socket,
        /// Empty. Received datagrams are appended, but only by [`Engine::submit`] itself.
        into: &'a mut VecDeque<Datagram<Buffer>>,
    },
    /// Send datagrams from the front of the queue, as many as possible at once.
    SendMsg {
        /// The socket. The caller keeps it open until the completion.
        socket: &'a Socket,
        /// At least one datagram. The caller removes as many as the outcome counts.
        datagrams: &'a VecDeque<Datagram<Bytes>>,
    },
}

impl Op<'_> {
    /// The outcome of the operation if its stream has no socket any more.
    pub(crate) fn unconnected(self) -> OperationOutcome {
        let error = || io::ErrorKind::NotConnected.into();
        match self {
            Op::Accept { .. } => OperationOutcome::Accepted(Err(error())),
            Op::Connect { .. } => OperationOutcome::Connected(Err(error())),
            Op::Recv { .. } => OperationOutcome::Received(Err(error())),
            Op::Send { outgoing, .. } => OperationOutcome::Sent {
                outgoing,
                taken: 0,
                stop: SendStop::Failed(error()),
            },
            Op::Close => OperationOutcome::Closed,
            Op::Readable { .. } | Op::RecvMsg { .. } | Op::SendMsg { .. } => {
                OperationOutcome::Messages(Err(error()))
            }
        }
    }
}

/// Whether a send closes the connection, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CloseMode {
    /// The connection goes on after the send.
    #[default]
    Never,
    /// Close so that the peer receives everything that was sent, even if it sends more data
    /// meanwhile.
    Careful,
    /// Close a connection whose peer has announced that it sends nothing more, so the FIN may leave
    /// in the packet of the last bytes. If the peer does send more, it may lose data that was sent
    /// to it.
    Quick,
}

impl CloseMode {
    /// Whether the socket is closed after the send.
    #[must_use]
    pub fn closes(self) -> bool {
        self != CloseMode::Never
    }
}

/// The outcome of an operation, or of one of its several completions.
#[derive(Debug)]
pub enum OperationOutcome {
    /// The connection and, if the engine learned it at no cost, the peer's address.
    Accepted(io::Result<(Socket, Option<SocketAddr>)>),
    /// Whether the connection was established.
    Connected(io::Result<()>),
    /// Data is available, or there is room: submit the operation again when the result is wanted.
    Ready,
    /// The number of datagrams received or sent, at least one. If a send fails, only the first
    /// datagram has failed, and the others may be sent without it.
    Messages(io::Result<usize>),
    /// The received bytes. An empty buffer is the end of input.
    Received(io::Result<Buffer>),
    /// A part of the segments was sent.
    Sent {
        /// The segments that are left to send.
        outgoing: Box<Outgoing>,
        /// The number of bytes that the kernel took.
        taken: u64,
        /// Why the send stopped.
        stop: SendStop,
    },
    /// The socket is closed.
    Closed,
}

/// Why a send stopped.
#[derive(Debug)]
pub enum SendStop {
    /// All queued segments have been sent.
    Empty,
    /// All segments were sent, and the socket was closed as requested.
    Closed,
    /// The kernel's send buffer is full; submit again at once to wait for room.
    Blocked,
    /// The chunk is complete; submit again in the next turn.
    Chunk,
    /// The next range of a file may not be in memory.
    Cold,
    /// The connection has failed.
    Failed(io::Error),
}

/// One completion of an operation.
#[derive(Debug)]
pub struct Completion {
    /// The token of the operation that completed.
    pub token: Token,
    /// How the operation ended.
    pub outcome: OperationOutcome,
    /// Whether more completions with this token follow.
    pub more: bool,
}

/// The socket options that [`Engine::control`] changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Sets or clears the option `TCP_NODELAY`.
    NoDelay(bool),
    /// Send a reset instead of a FIN when the socket is closed (`SO_LINGER` of zero).
    ResetOnClose,
    /// No more bytes will be sent: `shutdown(SHUT_WR)`.
    ShutdownWrite,
    /// No more bytes will be received: `shutdown(SHUT_RD)`.
    ShutdownRead,
    /// Shuts down both directions: `shutdown(SHUT_RDWR)`.
    ShutdownBoth,
    /// Enable kernel TLS (`TCP_ULP`), so that the socket accepts keys; see [`crate::kernel_tls`].
    KernelTls,
}

/// The segments to be sent on one stream, in order.
#[derive(Debug, Default)]
pub struct Outgoing {
    segments: VecDeque<Segment>,
    /// The number of segments other than byte strings, each of which takes its own system call.
    calls: u32,
    /// Segments that have been sent. Their destructors may run foreign code, so the owner drops
    /// them when nothing is borrowed.
    pub(crate) spent: Vec<Segment>,
    /// Bytes at the front of the first file segment that are known to be in memory.
    pub(crate) warm: u64,
    /// Whether files, and the segments before them, leave in full TCP segments.
    pub(crate) fills_segments: bool,
    /// Whether the socket is corked: it holds back partial TCP segments until the last file is
    /// sent.
    pub(crate) corked: bool,
}

impl Outgoing {
    /// Appends a segment at the end of the queue.
    pub fn push(&mut self, segment: Segment) {
        self.calls += u32::from(!matches!(segment, Segment::Bytes(_)));
        self.segments.push_back(segment);
    }

    /// Appends a segment. If there are at least `many` segments already, small ones are joined;
    /// `spent` then receives the leftover memory.
    pub(crate) fn push_or_join(&mut self, segment: Segment, many: usize, spent: &mut Vec<Segment>) {
        if self.segments.len() >= many
            && let Segment::Bytes(more) = &segment
            && let Some(Segment::Bytes(last)) = self.segments.back_mut()
            && let Some(before) = pieces::join(last, more)
        {
            spent.extend([segment, Segment::Bytes(before)]);
            return;
        }
        self.push(segment);
    }

    /// The remaining segments, in order.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter()
    }

    /// Whether no segment is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Whether there are segments other than byte strings, which cannot be sent together in one
    /// call.
    pub(crate) fn takes_calls(&self) -> bool {
        self.calls > 0
    }

    /// The next segment to send.
    #[must_use]
    pub fn front(&self) -> Option<&Segment> {
        self.segments.front()
    }

    /// Appends all segments of `other`, as [`push_or_join`](Self::push_or_join) does.
    pub(crate) fn append(&mut self, other: &mut Outgoing, many: usize, spent: &mut Vec<Segment>) {
        if self.first_file().is_none() {
            self.warm = other.warm;
        }
        self.corked |= std::mem::take(&mut other.corked);
        other.calls = 0;
        other.warm = 0;
        for segment in other.segments.drain(..) {
            self.push_or_join(segment, many, spent);
        }
    }

    /// Drops all remaining segments, without running their destructors yet.
    pub(crate) fn abandon(&mut self) {
        if !self.segments.is_empty() {
            self.spent.extend(self.segments.drain(..));
        }
        self.calls = 0;
        self.warm = 0;
        self.corked = false;
    }

    /// Shrinks the memory to the size that a short queue needs.
    pub(crate) fn fit(&mut self) {
        self.segments.shrink_to(2 * PARTS_MAX);
        self.spent.shrink_to(2 * PARTS_MAX);
    }

    /// The first segment that is a file.
    pub(crate) fn first_file(&self) -> Option<&Segment> {
        if self.calls == 0 {
            return None;
        }
        self.segments
            .iter()
            .find(|segment| matches!(segment, Segment::File { .. }))
    }

    /// Removes `count` sent bytes from the front.
    pub(crate) fn advance(&mut self, mut count: u64) {
        while count > 0 {
            let Some(front) = self.segments.front_mut() else {
                return;
            };
            let step = count.min(front.len());
            if let Segment::File { .. } = front {
                self.warm = self.warm.saturating_sub(step);
            }
            if step < front.len() {
                front.advance(step);
                return;
            }
            count -= step;
            self.pop_front();
        }
    }

    /// Removes the first segment, which has been sent or applied.
    pub(crate) fn pop_front(&mut self) {
        let Some(front) = self.segments.pop_front() else {
            return;
        };
        if let Segment::File { .. } = front {
            self.warm = 0;
        }
        self.calls -= u32::from(!matches!(front, Segment::Bytes(_)));
        self.spent.push(front);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn outgoing_advances_over_segments() {
        let mut outgoing = Outgoing::default();
        outgoing.push(Segment::Bytes(Bytes::from_static(b"head")));
        outgoing.push(Segment::Bytes(Bytes::from_static(b"body")));
        outgoing.advance(6);
        assert_eq!(outgoing.spent.len(), 1);
        let left: Vec<u64> = outgoing.segments().map(Segment::len).collect();
        assert_eq!(left, [2]);
        outgoing.advance(2);
        assert!(outgoing.is_empty());
        outgoing.advance(99);
    }

    #[test]
    fn a_long_queue_of_small_segments_is_copied_together() {
        let (mut outgoing, mut spent) = (Outgoing::default(), Vec::new());
        let mut later = Outgoing::default();
        for number in 0..30_000_u32 {
            let segment = Segment::Bytes(Bytes::copy_from_slice(&[number as u8]));
            if number < 20_000 {
                outgoing.push_or_join(segment, PARTS_MAX, &mut spent)
            } else {
                later.push_or_join(segment, 1, &mut spent)
            }
        }
        outgoing.append(&mut later, PARTS_MAX, &mut spent);
        assert!(later.is_empty());
        let count = outgoing.segments().count();
        assert!(count <= PARTS_MAX + 10, "{count}");
        for number in 0..30_000_u32 {
            let Some(Segment::Bytes(bytes)) = outgoing.front() else {
                panic!("{number}: {:?}", outgoing.front());
            };
            assert_eq!(bytes[0], number as u8, "{number}");
            outgoing.advance(1);
        }
        assert!(outgoing.is_empty());
    }
}
