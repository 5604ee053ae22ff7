//! The narrow interface between a thread and its kernel: operations go in, completions come out.
//!
//! An operation that can be finished at once is: [`Engine::submit`] then returns its outcome.
//! Otherwise exactly one final [`Completion`] follows, from [`Engine::wait`], even when the
//! operation is cancelled meanwhile. What an operation owns (the bytes to send, the buffer to
//! receive into) stays with the engine until then.
//!
//! At most one operation of a kind is in flight for one socket, so a socket and a kind name an
//! operation.
//!
//! **Who owns a descriptor.** A stream's socket belongs to the engine from [`Engine::adopt`] until
//! the engine closes it, and nothing above knows its number: operations name the stream. An engine
//! that gives a descriptor to its kernel to be closed forgets the number in the same step, so that
//! whatever completes later cannot use what may be another connection's by then. Listening sockets
//! are shared with the engine for as long as it accepts from them. Datagram sockets belong to the
//! thread's table, which keeps them open until no operation is in flight and then gives them to
//! [`Engine::close_datagrams`].
//!
//! **Datagrams** stay with the thread, too: an operation on them that cannot be finished at once
//! ends with [`OperationOutcome::Ready`], and is submitted again. An engine that sends by itself
//! meanwhile takes shares of the bytes; one that receives by itself keeps what came until it is
//! asked.

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

/// What a thread asks of its kernel. Implemented by `epoll.rs`, `uring` and `sim`.
pub trait Engine {
    /// Starts `op`. `Some` is its outcome, and nothing follows; `None` means that completions with
    /// `token` follow.
    fn submit(&mut self, op: Op<'_>, token: Token) -> Option<OperationOutcome>;

    /// Whether a send is a call of its own, made when it is submitted; else sends are gathered
    /// until the wait.
    fn sends_at_once(&self) -> bool {
        false
    }

    /// Asks the operation named by `token` to end. `Some` is its outcome, and nothing follows;
    /// `None` means that its final completion is still to come, with whatever it achieved, or that
    /// no such operation is in flight.
    fn cancel(&mut self, token: Token) -> Option<OperationOutcome>;

    /// Hands everything submitted to the kernel, waits until something completes, the notifier is
    /// used or `timeout` (rounded up to milliseconds) is over, and appends what completed. `None`
    /// waits without end.
    ///
    /// # Errors
    /// Only when the engine itself is broken; the caller ends the process.
    fn wait(
        &mut self,
        timeout: Option<Duration>,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()>;

    /// Ends a wait from another thread.
    fn notifier(&self) -> Notifier;

    /// The monotonic time; simulated engines have their own.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Takes over the socket of the stream `key`, which is new. Everything else about streams names
    /// the key alone.
    fn adopt(&mut self, key: Key, socket: Socket);

    /// The descriptor of the stream `key`, for the calls below, of which those of the kernel's
    /// engines are the default; `None` where there is none (any more).
    fn descriptor(&self, _key: Key) -> Option<BorrowedFd<'_>> {
        None
    }

    /// A new stream socket that can be connected to `to`, with these options.
    ///
    /// # Errors
    /// Those of `socket()`, `bind()` and, where it allows what is asked for, `setsockopt()`.
    fn socket(&mut self, to: &Address, options: &SocketOptions) -> Result<Socket, ConnectError> {
        sys::stream_socket(to, options).map(Socket::Descriptor)
    }

    /// A new datagram socket that is bound to an address.
    ///
    /// # Errors
    /// Those of `socket()` and `bind()`.
    fn bound_datagrams(&mut self, from: &Address) -> io::Result<Socket> {
        sys::bound_datagram_socket(from).map(Socket::Descriptor)
    }

    /// A new datagram socket that is connected to the address `to`.
    ///
    /// # Errors
    /// Which of the calls failed: `socket()`, `setsockopt()`, `bind()` or `connect()`.
    fn connected_datagrams(
        &mut self,
        to: &Address,
        options: &SocketOptions,
    ) -> Result<Socket, ConnectError> {
        sys::connected_datagram_socket(to, options).map(Socket::Descriptor)
    }

    /// Readies a datagram socket that was bound elsewhere for this thread.
    ///
    /// # Errors
    /// Where it is no datagram socket of this engine's.
    fn take_datagrams(&mut self, socket: &Socket) -> io::Result<()> {
        sys::take_datagram_socket(connected(socket.descriptor())?)
    }

    /// Closes the datagram socket `key`, of which no operation is in flight.
    fn close_datagrams(&mut self, _key: Key, socket: Socket) {
        drop(socket);
    }

    /// The address of this end of a socket that is no stream's.
    ///
    /// # Errors
    /// Those of `getsockname()`.
    fn address(&self, socket: &Socket) -> io::Result<Address> {
        sys::local(connected(socket.descriptor())?)
    }

    /// A call that changes one property of a stream's socket at once.
    ///
    /// # Errors
    /// Those of `setsockopt()` and `shutdown()`; `NotConnected` where there is no socket any more.
    fn control(&mut self, key: Key, control: Control) -> io::Result<()> {
        sys::control(connected(self.descriptor(key))?, control)
    }

    /// Closes a socket that was accepted and never adopted.
    fn discard(&mut self, socket: Socket) {
        drop(socket);
    }

    /// Readies a listening socket for this thread. Whether connections inherit `TCP_NODELAY` from
    /// it.
    ///
    /// # Errors
    /// Where it is no listening socket of this engine's, or cannot be made non-blocking.
    fn listen(&mut self, socket: &Socket) -> io::Result<bool>;

    /// Accepts a connection that waits, beside the operation.
    ///
    /// # Errors
    /// Those of `accept()`: `WouldBlock` when none waits.
    fn accept_now(&mut self, listener: &Socket) -> io::Result<(Socket, Option<SocketAddr>)> {
        let (socket, peer) = sys::accept(connected(listener.descriptor())?)?;
        Ok((Socket::Descriptor(socket), peer))
    }

    /// Accepts the connection that has waited for longest, although there is no descriptor for it,
    /// sends it `answer` and closes it. False when none waits, or the engine has kept nothing in
    /// reserve for that.
    fn turn_away(&mut self, listener: &Socket, answer: &[u8]) -> bool;

    /// This thread is done with a listening socket; no accept on it is in flight.
    fn forget_listener(&mut self, _socket: &Socket) {}

    /// The address of the other end.
    ///
    /// # Errors
    /// Those of `getpeername()`; `NotConnected` where there is no socket any more.
    fn peer(&self, key: Key) -> io::Result<Address> {
        sys::peer(connected(self.descriptor(key))?)
    }

    /// The address of this end.
    ///
    /// # Errors
    /// Those of `getsockname()`; `NotConnected` where there is no socket any more.
    fn local(&self, key: Key) -> io::Result<Address> {
        sys::local(connected(self.descriptor(key))?)
    }

    /// What is known of how the stream's bytes travel; `None` where it is no TCP.
    fn info(&self, key: Key) -> Option<TcpInfo> {
        self.descriptor(key).and_then(sys::tcp_info)
    }

    /// Whether nothing of what was sent on streams that are closed is still on its way by this
    /// process alone.
    fn is_settled(&self) -> bool {
        true
    }

    /// Serves connections by a queue of an interface, too.
    ///
    /// # Errors
    /// `Unsupported` where the engine has no TCP of its own.
    fn attach(&mut self, _parts: QueueParts) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

fn connected(descriptor: Option<BorrowedFd<'_>>) -> io::Result<BorrowedFd<'_>> {
    descriptor.ok_or_else(|| io::ErrorKind::NotConnected.into())
}

/// A socket that is not in the engine's table: of a stream that is on its way there, of datagrams,
/// or one that listens.
#[derive(Debug)]
pub enum Socket {
    /// One of the kernel's.
    Descriptor(OwnedFd),
    /// One of the simulation's own, which only the simulation closes.
    Simulated(i32),
    /// A connection that our own TCP carries on a queue of an interface.
    Carried {
        /// The queue's number among those of the engine.
        port: usize,
        /// The connection.
        id: netstack::ConnectionId,
    },
}

impl Socket {
    /// Its descriptor, if it is one of the kernel's.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Socket::Descriptor(descriptor) => Some(descriptor.as_fd()),
            Socket::Simulated(_) | Socket::Carried { .. } => None,
        }
    }
}

/// Names an operation: the socket's place in the thread's tables, and what is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Place of the stream or listener; stays its own until the last completion.
    pub key: Key,
    /// Which of its operations.
    pub kind: OpKind,
}

/// The kinds of operations, as they are told apart in a [`Token`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OpKind {
    /// [`Op::Accept`]; its key is of the table of listeners. [`OpKind::Readable`],
    /// [`OpKind::RecvMsg`] and [`OpKind::SendMsg`] are of that of datagram sockets, all others are
    /// of the table of streams.
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

/// One operation. Those without a socket are of the stream that the token names.
#[derive(Debug)]
pub enum Op<'a> {
    /// Accept one connection, or several if `many`: then each but the last completion says that
    /// more follow.
    Accept {
        /// The listening socket; the engine keeps a share of it until the last completion.
        socket: &'a Rc<Socket>,
        /// Whether to go on accepting until there is nothing, or until cancelled.
        many: bool,
    },
    /// Connect a fresh socket.
    Connect {
        /// The address to connect to.
        address: Address,
    },
    /// Receive once, into a buffer that the engine provides when bytes are there.
    Recv {
        /// Whether the engine may go on receiving by itself, because what comes next is awaited
        /// without hurry.
        keep: bool,
    },
    /// Send what `outgoing` holds: all of it, or as much as goes before the engine has to stop.
    Send {
        /// What to send; comes back with the outcome, without what was sent.
        outgoing: Box<Outgoing>,
        /// Stop after about this many bytes of files, so that others get their turn.
        chunk: u64,
        /// Whether the socket is closed when everything was sent.
        ending: CloseMode,
    },
    /// Closes the socket once it is idle.
    Close,
    /// Tell, by [`OperationOutcome::Ready`], when a descriptor that is no socket can be read. Its
    /// key and its place are those of a datagram socket.
    Readable {
        /// The descriptor. The caller keeps it open until the completion.
        socket: &'a Socket,
    },
    /// Receive datagrams, as many as are there and go at once.
    RecvMsg {
        /// The socket. The caller keeps it open until the completion.
        socket: &'a Socket,
        /// Empty; those that were received are put there, but only by [`Engine::submit`] itself.
        into: &'a mut VecDeque<Datagram<Buffer>>,
    },
    /// Send datagrams, from the front on, as many as go at once.
    SendMsg {
        /// The socket. The caller keeps it open until the completion.
        socket: &'a Socket,
        /// At least one. The caller takes those off that the outcome counts.
        datagrams: &'a VecDeque<Datagram<Bytes>>,
    },
}

impl Op<'_> {
    /// What comes of it where the stream has no socket any more.
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

/// Whether a connection ends with a send, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CloseMode {
    /// The connection goes on after the send.
    #[default]
    Never,
    /// It ends. The peer may send more meanwhile, and has to get all that was sent to it even so.
    Careful,
    /// It ends, and the peer has said that it sends nothing more: the end may leave in the packet
    /// of the last bytes. If it does send more, it may lose what was sent to it.
    Quick,
}

impl CloseMode {
    /// Whether the socket is closed.
    #[must_use]
    pub fn closes(self) -> bool {
        self != CloseMode::Never
    }
}

/// How an operation ended, or what one of several completions brings.
#[derive(Debug)]
pub enum OperationOutcome {
    /// A connection and, if the engine learned it at no cost, the address of its peer.
    Accepted(io::Result<(Socket, Option<SocketAddr>)>),
    /// The connection stands, or not.
    Connected(io::Result<()>),
    /// Something can be received, or there is room: submit the operation again, when it is wanted.
    Ready,
    /// So many datagrams, at least one, were received or sent. Where the error is that of a send,
    /// the first datagram has failed, and the others may go on without it.
    Messages(io::Result<usize>),
    /// What was received; an empty buffer is the end of input.
    Received(io::Result<Buffer>),
    /// Some of it was sent.
    Sent {
        /// What is left to send.
        outgoing: Box<Outgoing>,
        /// How many bytes the kernel took.
        taken: u64,
        /// Why it stopped there.
        stop: SendStop,
    },
    /// The socket is closed.
    Closed,
}

/// Why a send stopped.
#[derive(Debug)]
pub enum SendStop {
    /// Everything that was queued has been sent.
    Empty,
    /// Everything was sent, and the socket was closed as asked.
    Closed,
    /// The kernel takes no more now; submit again at once.
    Blocked,
    /// The chunk is full; submit again in the next turn.
    Chunk,
    /// A range of a file comes next that is not known to be in memory.
    Cold,
    /// The connection is of no further use.
    Failed(io::Error),
}

/// One completion of an operation.
#[derive(Debug)]
pub struct Completion {
    /// The token of the operation that completed.
    pub token: Token,
    /// How the operation ended.
    pub outcome: OperationOutcome,
    /// Whether further completions with this token follow.
    pub more: bool,
}

/// The socket options that [`Engine::control`] changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Sets or clears the option `TCP_NODELAY`.
    NoDelay(bool),
    /// Send a reset instead of an orderly end when the socket is closed (`SO_LINGER` of zero).
    ResetOnClose,
    /// No more bytes will be sent: `shutdown(SHUT_WR)`.
    ShutdownWrite,
    /// No more bytes will be received: `shutdown(SHUT_RD)`.
    ShutdownRead,
    /// Shuts down both directions: `shutdown(SHUT_RDWR)`.
    ShutdownBoth,
    /// Take keys for what is sent (`TCP_ULP`); see [`crate::kernel_tls`].
    KernelTls,
}

/// What waits to be sent on one stream, in order.
#[derive(Debug, Default)]
pub struct Outgoing {
    segments: VecDeque<Segment>,
    /// How many of them are no byte strings, so that each takes a call of its own.
    calls: u32,
    /// What was sent. Its destructors may run foreign code, so the owner drops it when nothing is
    /// borrowed.
    pub(crate) spent: Vec<Segment>,
    /// Bytes at the front of the first file segment that are known to be in memory.
    pub(crate) warm: u64,
    /// Files, and what stands before them, are to leave in full segments.
    pub(crate) fills_segments: bool,
    /// The socket holds back what fills no segment, until the last file was sent.
    pub(crate) corked: bool,
}

impl Outgoing {
    /// Appends a segment at the end of the queue.
    pub fn push(&mut self, segment: Segment) {
        self.calls += u32::from(!matches!(segment, Segment::Bytes(_)));
        self.segments.push_back(segment);
    }

    /// Appends a segment. Where there are `many` already, small ones are copied together; `spent`
    /// is what is left over then.
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

    /// The segments that are left, in order.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter()
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Whether there is more than byte strings, which can be sent several at once.
    pub(crate) fn takes_calls(&self) -> bool {
        self.calls > 0
    }

    /// The next segment of the outgoing.
    #[must_use]
    pub fn front(&self) -> Option<&Segment> {
        self.segments.front()
    }

    /// Moves all segments of `other` behind those that are here, as
    /// [`push_or_join`](Self::push_or_join) does.
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

    /// Forgets everything that is left, without running destructors yet.
    pub(crate) fn abandon(&mut self) {
        if !self.segments.is_empty() {
            self.spent.extend(self.segments.drain(..));
        }
        self.calls = 0;
        self.warm = 0;
        self.corked = false;
    }

    /// Gives room back that only a long queue needs.
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

    /// Takes `count` sent bytes off the front.
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

    /// Takes off the first segment, which has been sent or put into effect.
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
